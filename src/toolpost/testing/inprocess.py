"""HTTP to a server in this process: real headers, streams and sessions, and no socket.

Owns the address that such a server has. What carries the requests is the transport's own.
"""

from typing import Any, Final, Literal, Protocol, TypeAlias

from toolpost.transports.address import Http

__all__ = ["HasApp", "WebTransport", "in_process"]

WebTransport: TypeAlias = Literal["http", "sse"]
"""Streamable HTTP, or HTTP+SSE, the way of the first revision."""

_URLS: Final[dict[WebTransport, str]] = {"http": "http://127.0.0.1/mcp", "sse": "http://127.0.0.1/sse"}


class HasApp(Protocol):
    """A server that can be an ASGI application."""

    def asgi(self) -> Any:
        """The application."""
        ...


def in_process(server: HasApp, over: WebTransport = "http") -> Http:
    """The target of a client that talks over HTTP to a server in this process.

    Example:
        >>> import asyncio
        >>> from toolpost import Client, Server
        >>> async def main():
        ...     async with Client(in_process(Server("weather"))) as mcp:
        ...         return mcp.server_info.name
        >>> asyncio.run(main())
        'weather'

    Args:
        server: the server, with its tokens, middleware and all. To give it options of HTTP, or to reach an
            application that it is mounted in, use `Http("http://127.0.0.1/mcp", http=application)`.
        over: Streamable HTTP or HTTP+SSE.

    Raises:
        TypeError: this is no server object.
        ValueError: there is no such way.
    """
    if not hasattr(server, "asgi"):
        raise TypeError(f"HTTP in this process is for a server object; a {type(server).__name__} is none")
    if over not in _URLS:
        raise ValueError(f"over: {over!r} is none of {', '.join(map(repr, _URLS))}")
    return Http(_URLS[over], http=server.asgi(), sse=over == "sse")
