"""The Model Context Protocol from both ends: client and server, every revision, every transport.

The names below are the public ones; everything else is importable but unpromised. They are loaded on first
use, so that `import toolpost` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toolpost.version import __version__

if TYPE_CHECKING:
    from toolpost.channel import Channel as Channel
    from toolpost.errors import AuthError as AuthError
    from toolpost.errors import ChannelClosed as ChannelClosed
    from toolpost.errors import ConnectFailed as ConnectFailed
    from toolpost.errors import InvalidParams as InvalidParams
    from toolpost.errors import MCPError as MCPError
    from toolpost.errors import ProtocolError as ProtocolError
    from toolpost.errors import RequestTimeout as RequestTimeout
    from toolpost.errors import ResourceNotFound as ResourceNotFound
    from toolpost.errors import RPCError as RPCError
    from toolpost.errors import ToolError as ToolError
    from toolpost.errors import TransportError as TransportError
    from toolpost.types.base import Annotations as Annotations
    from toolpost.types.base import Icon as Icon
    from toolpost.types.content import AudioContent as AudioContent
    from toolpost.types.content import Content as Content
    from toolpost.types.content import EmbeddedResource as EmbeddedResource
    from toolpost.types.content import ImageContent as ImageContent
    from toolpost.types.content import ResourceContents as ResourceContents
    from toolpost.types.content import ResourceLink as ResourceLink
    from toolpost.types.content import TextContent as TextContent
    from toolpost.types.tools import CallToolResult as CallToolResult
    from toolpost.types.tools import Tool as Tool
    from toolpost.types.tools import ToolAnnotations as ToolAnnotations

_HOMES: Final = {
    "channel": ("Channel",),
    "errors": (
        "AuthError",
        "ChannelClosed",
        "ConnectFailed",
        "InvalidParams",
        "MCPError",
        "ProtocolError",
        "RPCError",
        "RequestTimeout",
        "ResourceNotFound",
        "ToolError",
        "TransportError",
    ),
    "types": (
        "Annotations",
        "AudioContent",
        "CallToolResult",
        "Content",
        "EmbeddedResource",
        "Icon",
        "ImageContent",
        "ResourceContents",
        "ResourceLink",
        "TextContent",
        "Tool",
        "ToolAnnotations",
    ),
}
_HOME: Final = {name: f"toolpost.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "Annotations",
    "AudioContent",
    "AuthError",
    "CallToolResult",
    "Channel",
    "ChannelClosed",
    "ConnectFailed",
    "Content",
    "EmbeddedResource",
    "Icon",
    "ImageContent",
    "InvalidParams",
    "MCPError",
    "ProtocolError",
    "RPCError",
    "RequestTimeout",
    "ResourceContents",
    "ResourceLink",
    "ResourceNotFound",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "ToolError",
    "TransportError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'toolpost' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
