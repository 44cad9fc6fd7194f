"""What a test of a server or a client needs, and no process and no socket.

The fixtures are in `plugin`, which pytest loads by itself. `Transcript`, `record` and `faulty` are put around
whatever a client connects to; `replay` plays the server of a recording. `ScriptedChannel` lets the test be
the peer, message by message, and `memory_pair` joins two ends in memory. `AuthorizationServer` issues tokens,
and `TokenIssuer` makes them without a word: neither is for production.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolpost.protocol.revisions import REVISIONS as REVISIONS
    from toolpost.testing.authorization import AuthorizationServer as AuthorizationServer
    from toolpost.testing.channel import ScriptedChannel as ScriptedChannel
    from toolpost.testing.faults import Chance as Chance
    from toolpost.testing.faults import Fault as Fault
    from toolpost.testing.faults import Faulty as Faulty
    from toolpost.testing.faults import faulty as faulty
    from toolpost.testing.inprocess import in_process as in_process
    from toolpost.testing.leftovers import no_leaks as no_leaks
    from toolpost.testing.masking import Mask as Mask
    from toolpost.testing.minting import TokenIssuer as TokenIssuer
    from toolpost.testing.plugin import ClientFactory as ClientFactory
    from toolpost.testing.plugin import SyncClientFactory as SyncClientFactory
    from toolpost.testing.recording import record as record
    from toolpost.testing.replaying import Replay as Replay
    from toolpost.testing.replaying import replay as replay
    from toolpost.testing.schemas import assert_tool_schema as assert_tool_schema
    from toolpost.testing.schemas import lint_tools as lint_tools
    from toolpost.testing.tape import Tape as Tape
    from toolpost.testing.tape import read_tape as read_tape
    from toolpost.testing.transcript import Transcript as Transcript
    from toolpost.transports.memory import memory_pair as memory_pair

_HOMES: Final = {
    "protocol.revisions": ("REVISIONS",),
    "testing.authorization": ("AuthorizationServer",),
    "testing.channel": ("ScriptedChannel",),
    "testing.faults": ("Chance", "Fault", "Faulty", "faulty"),
    "testing.inprocess": ("in_process",),
    "testing.leftovers": ("no_leftovers",),
    "testing.masking": ("Mask",),
    "testing.minting": ("Mint",),
    "testing.plugin": ("ClientFactory", "SyncClientFactory"),
    "testing.recording": ("record",),
    "testing.replaying": ("Replay", "replay"),
    "testing.schemas": ("assert_tool_schema", "lint_tools"),
    "testing.tape": ("Tape", "read_tape"),
    "testing.transcript": ("Transcript",),
    "transports.memory": ("pair",),
}
"""What is loaded on first use: every run of pytest loads the plugin, and most need little of the rest."""
_HOME: Final = {name: f"toolpost.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "REVISIONS",
    "AuthorizationServer",
    "Chance",
    "ClientFactory",
    "Fault",
    "Faulty",
    "Mask",
    "Replay",
    "ScriptedChannel",
    "SyncClientFactory",
    "Tape",
    "TokenIssuer",
    "Transcript",
    "assert_tool_schema",
    "faulty",
    "in_process",
    "lint_tools",
    "memory_pair",
    "no_leaks",
    "read_tape",
    "record",
    "replay",
]

if not TYPE_CHECKING:  # a checker that knows of it would take any name for good

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'toolpost.testing' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
