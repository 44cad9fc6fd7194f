"""The Model Context Protocol: client and server, every revision, every transport.

The public API is the names below and five modules: `toolpost.errors`, `toolpost.types` (the vocabulary),
`toolpost.server.middleware` (ready-made middleware), `toolpost.prompting` (callbacks that ask the user) and
`toolpost.testing`. Everything else may change. Names load on first use, so that `import toolpost` is fast.
"""

from toolpost.version import __version__ as __version__

TYPE_CHECKING = False  # checkers know the name; an import of `typing` is slow

if TYPE_CHECKING:
    from toolpost.auth.client.credential_grants import ClientCredentials as ClientCredentials
    from toolpost.auth.client.credential_grants import EnterpriseManaged as EnterpriseManaged
    from toolpost.auth.client.credential_grants import WorkloadIdentity as WorkloadIdentity
    from toolpost.auth.client.oauth import OAuth as OAuth
    from toolpost.auth.client.storage import FileTokens as FileTokens
    from toolpost.auth.client.storage import MemoryTokens as MemoryTokens
    from toolpost.auth.server.auth import Auth as Auth
    from toolpost.auth.server.introspection import Introspection as Introspection
    from toolpost.auth.server.jwt import Jwt as Jwt
    from toolpost.channel import Channel as Channel
    from toolpost.client.callbacks import Answer as Answer
    from toolpost.client.callbacks import Question as Question
    from toolpost.client.changes import Change as Change
    from toolpost.client.client import Client as Client
    from toolpost.client.connection.status import Transition as Transition
    from toolpost.client.group import ClientGroup as ClientGroup
    from toolpost.client.multi_round import PausedCall as PausedCall
    from toolpost.client.sync import SyncClient as SyncClient
    from toolpost.client.tasks import TaskHandle as TaskHandle
    from toolpost.client.tasks import TaskState as TaskState
    from toolpost.client.tools import ToolResult as ToolResult
    from toolpost.errors import AuthError as AuthError
    from toolpost.errors import MCPError as MCPError
    from toolpost.errors import RequestTimeout as RequestTimeout
    from toolpost.errors import RPCError as RPCError
    from toolpost.errors import ToolError as ToolError
    from toolpost.errors import TransportError as TransportError
    from toolpost.gateway.edit import Edit as Edit
    from toolpost.gateway.mount import Mount as Mount
    from toolpost.principal import Principal as Principal
    from toolpost.protocol.extension import Extension as Extension
    from toolpost.protocol.forward import ForwardedResult as ForwardedResult
    from toolpost.protocol.local_peer import safe_icons as safe_icons
    from toolpost.protocol.seal import KeyRing as KeyRing
    from toolpost.server.context import Context as Context
    from toolpost.server.elicitation.asked_parameters import Ask as Ask
    from toolpost.server.elicitation.forms import Accepted as Accepted
    from toolpost.server.elicitation.forms import Cancelled as Cancelled
    from toolpost.server.elicitation.forms import Declined as Declined
    from toolpost.server.elicitation.input_required import InputRequired as InputRequired
    from toolpost.server.handler import Handler as Handler
    from toolpost.server.registry.media import Audio as Audio
    from toolpost.server.registry.media import File as File
    from toolpost.server.registry.media import Image as Image
    from toolpost.server.registry.proxy import ProxyEntry as ProxyEntry
    from toolpost.server.registry.registry import Cache as Cache
    from toolpost.server.server import Server as Server
    from toolpost.server.signature.annotations import Header as Header
    from toolpost.server.signature.annotations import Titles as Titles
    from toolpost.server.signature.errors import SignatureError as SignatureError
    from toolpost.server.sync_context import SyncContext as SyncContext
    from toolpost.stores.memory import MemoryStore as MemoryStore
    from toolpost.tasks.options import TaskOptions as TaskOptions
    from toolpost.transports.targets import Http as Http
    from toolpost.transports.targets import Stdio as Stdio

_HOMES = {
    "auth.client.credential_grants": "ClientCredentials EnterpriseManaged WorkloadIdentity",
    "auth.client.oauth": "OAuth",
    "auth.client.storage": "FileTokens MemoryTokens",
    "auth.server.auth": "Auth",
    "auth.server.introspection": "Introspection",
    "auth.server.jwt": "Jwt",
    "channel": "Channel",
    "client.callbacks": "Answer Question",
    "client.changes": "Change",
    "client.client": "Client",
    "client.connection.status": "Transition",
    "client.group": "ClientGroup",
    "client.multi_round": "PausedCall",
    "client.sync": "SyncClient",
    "client.tasks": "TaskHandle TaskState",
    "client.tools": "ToolResult",
    "errors": "AuthError MCPError RPCError RequestTimeout ToolError TransportError",
    "gateway.edit": "Edit",
    "gateway.mount": "Mount",
    "principal": "Principal",
    "protocol.extension": "Extension",
    "protocol.forward": "ForwardedResult",
    "protocol.local_peer": "safe_icons",
    "protocol.seal": "KeyRing",
    "server.context": "Context",
    "server.elicitation.asked_parameters": "Ask",
    "server.elicitation.forms": "Accepted Cancelled Declined",
    "server.elicitation.input_required": "InputRequired",
    "server.handler": "Handler",
    "server.registry.media": "Audio File Image",
    "server.registry.proxy": "ProxyEntry",
    "server.registry.registry": "Cache",
    "server.server": "Server",
    "server.signature.annotations": "Header Titles",
    "server.signature.errors": "SignatureError",
    "server.sync_context": "SyncContext",
    "stores.memory": "MemoryStore",
    "tasks.options": "TaskOptions",
    "transports.targets": "Http Stdio",
}
"""Module → its public names. Each is loaded on first use."""
_HOME = {name: f"toolpost.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605 # pyright: ignore[reportUnsupportedDunderAll] - one table

if not TYPE_CHECKING:  # a checker that knew of `__getattr__` would accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'toolpost' has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - start-up time

        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
