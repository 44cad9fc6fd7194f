"""The Model Context Protocol from both ends: client and server, every revision, every transport.

The names below are the public ones, and with them five modules: `toolpost.errors` (what can go wrong),
`toolpost.types` (the vocabulary), `toolpost.server.middleware` (what is shipped to put around requests),
`toolpost.prompting` (callbacks that ask the user) and `toolpost.testing`. Everything else is importable but
unpromised. Names are loaded on first use, so that `import toolpost` costs next to nothing.
"""

from toolpost.version import __version__

TYPE_CHECKING = False  # the word that checkers know, without 8 ms for `typing`

if TYPE_CHECKING:
    from toolpost.auth.enterprise import EnterpriseManaged as EnterpriseManaged
    from toolpost.auth.introspection import Introspection as Introspection
    from toolpost.auth.jwt import Jwt as Jwt
    from toolpost.auth.machine import ClientCredentials as ClientCredentials
    from toolpost.auth.machine import WorkloadIdentity as WorkloadIdentity
    from toolpost.auth.oauth import OAuth as OAuth
    from toolpost.auth.resource import Auth as Auth
    from toolpost.auth.storage import FileTokens as FileTokens
    from toolpost.auth.storage import MemoryTokens as MemoryTokens
    from toolpost.channel import Channel as Channel
    from toolpost.client.answer import Answer as Answer
    from toolpost.client.changes import Change as Change
    from toolpost.client.client import Client as Client
    from toolpost.client.group import ClientGroup as ClientGroup
    from toolpost.client.life import Transition as Transition
    from toolpost.client.paused import PausedCall as PausedCall
    from toolpost.client.paused import Question as Question
    from toolpost.client.results import ToolResult as ToolResult
    from toolpost.client.sync import SyncClient as SyncClient
    from toolpost.errors import AuthError as AuthError
    from toolpost.errors import MCPError as MCPError
    from toolpost.errors import RequestTimeout as RequestTimeout
    from toolpost.errors import RPCError as RPCError
    from toolpost.errors import ToolError as ToolError
    from toolpost.errors import TransportError as TransportError
    from toolpost.principal import Principal as Principal
    from toolpost.protocol.icons import safe_icons as safe_icons
    from toolpost.protocol.seal import KeyRing as KeyRing
    from toolpost.server.app import Server as Server
    from toolpost.server.ask import Ask as Ask
    from toolpost.server.cache import Cache as Cache
    from toolpost.server.context import Context as Context
    from toolpost.server.forms import Accepted as Accepted
    from toolpost.server.forms import Cancelled as Cancelled
    from toolpost.server.forms import Declined as Declined
    from toolpost.server.handler import Handler as Handler
    from toolpost.server.inputs import InputRequired as InputRequired
    from toolpost.server.marks import Header as Header
    from toolpost.server.marks import Titles as Titles
    from toolpost.server.media import Audio as Audio
    from toolpost.server.media import File as File
    from toolpost.server.media import Image as Image
    from toolpost.server.problems import SignatureError as SignatureError
    from toolpost.server.sync import SyncContext as SyncContext
    from toolpost.transports.address import Http as Http
    from toolpost.transports.command import Stdio as Stdio

_HOMES = {
    "auth.enterprise": ("EnterpriseManaged",),
    "auth.machine": ("ClientCredentials", "WorkloadIdentity"),
    "auth.oauth": ("OAuth",),
    "auth.storage": ("FileTokens", "MemoryTokens"),
    "auth.introspection": ("Introspection",),
    "auth.jwt": ("Jwt",),
    "auth.resource": ("Auth",),
    "channel": ("Channel",),
    "errors": (
        "AuthError",
        "MCPError",
        "RPCError",
        "RequestTimeout",
        "ToolError",
        "TransportError",
    ),
    "client.answer": ("Answer",),
    "client.changes": ("Change",),
    "client.client": ("Client",),
    "client.paused": ("PausedCall", "Question"),
    "client.results": ("ToolResult",),
    "client.group": ("ClientGroup",),
    "client.life": ("Transition",),
    "client.sync": ("SyncClient",),
    "principal": ("Principal",),
    "protocol.icons": ("safe_icons",),
    "protocol.seal": ("KeyRing",),
    "server.app": ("Server",),
    "server.ask": ("Ask",),
    "server.cache": ("Cache",),
    "server.context": ("Context",),
    "server.forms": ("Accepted", "Cancelled", "Declined"),
    "server.handler": ("Handler",),
    "server.inputs": ("InputRequired",),
    "server.marks": ("Header", "Titles"),
    "server.media": ("Audio", "File", "Image"),
    "server.problems": ("SignatureError",),
    "server.sync": ("SyncContext",),
    "transports.address": ("Http",),
    "transports.command": ("Stdio",),
    "types": (),
}
_HOME = {name: f"toolpost.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "Accepted",
    "Answer",
    "Ask",
    "Audio",
    "Auth",
    "AuthError",
    "Cache",
    "Cancelled",
    "Change",
    "Channel",
    "Client",
    "ClientCredentials",
    "ClientGroup",
    "Context",
    "Declined",
    "EnterpriseManaged",
    "File",
    "FileTokens",
    "Handler",
    "Header",
    "Http",
    "Image",
    "InputRequired",
    "Introspection",
    "Jwt",
    "KeyRing",
    "MCPError",
    "MemoryTokens",
    "OAuth",
    "PausedCall",
    "Principal",
    "Question",
    "RPCError",
    "RequestTimeout",
    "Server",
    "SignatureError",
    "Stdio",
    "SyncClient",
    "SyncContext",
    "Titles",
    "ToolError",
    "ToolResult",
    "Transition",
    "TransportError",
    "WorkloadIdentity",
    "__version__",
    "safe_icons",
]


if not TYPE_CHECKING:  # a checker that knows of it would take any name for good

    def _load(home: str) -> object:
        import gc  # noqa: PLC0415 - of use here only

        # Nothing of what is loaded is garbage: the collector rests, and takes it for old afterwards. Or it
        # would look at all of it again and again, for 8 % of the time from a server's start to its answer.
        collects = gc.isenabled()
        gc.disable()
        try:
            from importlib import import_module  # noqa: PLC0415 - what it loads is loaded in peace as well

            return import_module(home)
        finally:
            if collects:
                if not gc.get_freeze_count():  # who has frozen something wants it to stay so
                    gc.freeze()
                    gc.unfreeze()  # into the oldest generation
                gc.enable()

    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'toolpost' has no attribute {name!r}")
        value = getattr(_load(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
