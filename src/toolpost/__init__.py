"""The Model Context Protocol from both ends: client and server, every revision, every transport.

The names below are the public ones, and with them five modules: `toolpost.errors` (what can go wrong),
`toolpost.types` (the vocabulary), `toolpost.server.middleware` (what is shipped to put around requests),
`toolpost.prompting` (callbacks that ask the user) and `toolpost.testing`. Everything else is importable but
unpromised. Names are loaded on first use, so that `import toolpost` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toolpost.version import __version__

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
    from toolpost.client.paused import Paused as Paused
    from toolpost.client.paused import Question as Question
    from toolpost.client.results import ToolResult as ToolResult
    from toolpost.client.sync import SyncClient as SyncClient
    from toolpost.errors import AuthError as AuthError
    from toolpost.errors import ChannelClosed as ChannelClosed
    from toolpost.errors import ConnectFailed as ConnectFailed
    from toolpost.errors import InvalidParams as InvalidParams
    from toolpost.errors import MCPError as MCPError
    from toolpost.errors import NotDeclared as NotDeclared
    from toolpost.errors import ProtocolError as ProtocolError
    from toolpost.errors import RateLimited as RateLimited
    from toolpost.errors import RequestFailed as RequestFailed
    from toolpost.errors import RequestTimeout as RequestTimeout
    from toolpost.errors import ResourceNotFound as ResourceNotFound
    from toolpost.errors import RPCError as RPCError
    from toolpost.errors import ToolError as ToolError
    from toolpost.errors import TransportError as TransportError
    from toolpost.errors import UrlElicitationRequired as UrlElicitationRequired
    from toolpost.errors import UserRejected as UserRejected
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
    from toolpost.types.asks import CreateMessageParams as CreateMessageParams
    from toolpost.types.asks import CreateMessageResult as CreateMessageResult
    from toolpost.types.asks import ElicitParams as ElicitParams
    from toolpost.types.asks import ElicitResult as ElicitResult
    from toolpost.types.base import Annotations as Annotations
    from toolpost.types.base import Icon as Icon
    from toolpost.types.content import AudioContent as AudioContent
    from toolpost.types.content import Content as Content
    from toolpost.types.content import EmbeddedResource as EmbeddedResource
    from toolpost.types.content import ImageContent as ImageContent
    from toolpost.types.content import ResourceContents as ResourceContents
    from toolpost.types.content import ResourceLink as ResourceLink
    from toolpost.types.content import TextContent as TextContent
    from toolpost.types.prompts import Completion as Completion
    from toolpost.types.prompts import PromptMessage as PromptMessage
    from toolpost.types.prompts import PromptReference as PromptReference
    from toolpost.types.prompts import ResourceReference as ResourceReference
    from toolpost.types.tools import CallToolResult as CallToolResult
    from toolpost.types.tools import Tool as Tool
    from toolpost.types.tools import ToolAnnotations as ToolAnnotations

_HOMES: Final = {
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
        "ChannelClosed",
        "ConnectFailed",
        "InvalidParams",
        "MCPError",
        "NotDeclared",
        "ProtocolError",
        "RPCError",
        "RateLimited",
        "RequestFailed",
        "RequestTimeout",
        "ResourceNotFound",
        "ToolError",
        "TransportError",
        "UrlElicitationRequired",
        "UserRejected",
    ),
    "client.answer": ("Answer",),
    "client.changes": ("Change",),
    "client.client": ("Client",),
    "client.paused": ("Paused", "Question"),
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
    "types": (
        "Annotations",
        "AudioContent",
        "CallToolResult",
        "Completion",
        "Content",
        "CreateMessageParams",
        "CreateMessageResult",
        "ElicitParams",
        "ElicitResult",
        "EmbeddedResource",
        "Icon",
        "ImageContent",
        "PromptMessage",
        "PromptReference",
        "ResourceContents",
        "ResourceLink",
        "ResourceReference",
        "TextContent",
        "Tool",
        "ToolAnnotations",
    ),
}
_HOME: Final = {name: f"toolpost.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "Accepted",
    "Annotations",
    "Answer",
    "Ask",
    "Audio",
    "AudioContent",
    "Auth",
    "AuthError",
    "Cache",
    "CallToolResult",
    "Cancelled",
    "Change",
    "Channel",
    "ChannelClosed",
    "Client",
    "ClientCredentials",
    "ClientGroup",
    "Completion",
    "ConnectFailed",
    "Content",
    "Context",
    "CreateMessageParams",
    "CreateMessageResult",
    "Declined",
    "ElicitParams",
    "ElicitResult",
    "EmbeddedResource",
    "EnterpriseManaged",
    "File",
    "FileTokens",
    "Handler",
    "Header",
    "Http",
    "Icon",
    "Image",
    "ImageContent",
    "InputRequired",
    "Introspection",
    "InvalidParams",
    "Jwt",
    "KeyRing",
    "MCPError",
    "MemoryTokens",
    "NotDeclared",
    "OAuth",
    "Paused",
    "Principal",
    "PromptMessage",
    "PromptReference",
    "ProtocolError",
    "Question",
    "RPCError",
    "RateLimited",
    "RequestFailed",
    "RequestTimeout",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "ResourceReference",
    "Server",
    "SignatureError",
    "Stdio",
    "SyncClient",
    "SyncContext",
    "TextContent",
    "Titles",
    "Tool",
    "ToolAnnotations",
    "ToolError",
    "ToolResult",
    "Transition",
    "TransportError",
    "UrlElicitationRequired",
    "UserRejected",
    "WorkloadIdentity",
    "__version__",
    "safe_icons",
]


if not TYPE_CHECKING:  # a checker that knows of it would take any name for good

    def _load(home: str) -> Any:
        import gc  # noqa: PLC0415 - of use here only

        # Nothing of what is loaded is garbage: the collector rests, and takes it for old afterwards. Or it
        # would look at all of it again and again, for 8 % of the time from a server's start to its answer.
        collects = gc.isenabled()
        gc.disable()
        try:
            return import_module(home)
        finally:
            if collects:
                if not gc.get_freeze_count():  # who has frozen something wants it to stay so
                    gc.freeze()
                    gc.unfreeze()  # into the oldest generation
                gc.enable()

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'toolpost' has no attribute {name!r}")
        value = getattr(_load(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
