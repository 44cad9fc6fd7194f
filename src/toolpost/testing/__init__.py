"""Tools for tests of servers and clients, without processes and sockets.

The fixtures are in `plugin`, which pytest loads automatically. `Transcript`, `record` and `faulty` wrap any
target of a client; `replay` plays the server of a recording. With `ScriptedChannel` the test is the peer,
message by message, and `memory_pair` connects two ends in memory. `AuthorizationServer` and `TokenIssuer`
issue tokens: neither is for production.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolpost.protocol.revisions import REVISIONS as REVISIONS
    from toolpost.testing.auth_server import AuthorizationServer as AuthorizationServer
    from toolpost.testing.auth_server import TokenIssuer as TokenIssuer
    from toolpost.testing.channel import ScriptedChannel as ScriptedChannel
    from toolpost.testing.channel import in_process as in_process
    from toolpost.testing.faults import Chance as Chance
    from toolpost.testing.faults import Fault as Fault
    from toolpost.testing.faults import Faulty as Faulty
    from toolpost.testing.faults import faulty as faulty
    from toolpost.testing.leaks import no_leaks as no_leaks
    from toolpost.testing.masking import Mask as Mask
    from toolpost.testing.playback import Replay as Replay
    from toolpost.testing.playback import replay as replay
    from toolpost.testing.plugin import ClientFactory as ClientFactory
    from toolpost.testing.plugin import SyncClientFactory as SyncClientFactory
    from toolpost.testing.schemas import assert_tool_schema as assert_tool_schema
    from toolpost.testing.schemas import lint_tools as lint_tools
    from toolpost.testing.tape import Tape as Tape
    from toolpost.testing.tape import read_tape as read_tape
    from toolpost.testing.tape import record as record
    from toolpost.testing.transcript import Transcript as Transcript
    from toolpost.transports.memory import memory_pair as memory_pair

_HOMES: Final = {
    "protocol.revisions": "REVISIONS",
    "testing.auth_server": "AuthorizationServer TokenIssuer",
    "testing.channel": "ScriptedChannel in_process",
    "testing.faults": "Chance Fault Faulty faulty",
    "testing.leaks": "no_leaks",
    "testing.masking": "Mask",
    "testing.plugin": "ClientFactory SyncClientFactory",
    "testing.playback": "Replay replay",
    "testing.schemas": "assert_tool_schema lint_tools",
    "testing.tape": "Tape read_tape record",
    "testing.transcript": "Transcript",
    "transports.memory": "memory_pair",
}
"""Module → its public names, loaded on first use: every run of pytest loads the plugin."""
_HOME: Final = {name: f"toolpost.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME)  # noqa: PLE0605 # pyright: ignore[reportUnsupportedDunderAll] - one table

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'toolpost.testing' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(_HOME)
