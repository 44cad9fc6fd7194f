"""Channels for tests without a network: `ScriptedChannel`, whose other end is the test, and `in_process`.

A scripted channel carries whatever the test feeds it, valid or not. `in_process` reaches a server in this
process over real HTTP, without a socket.
"""

import asyncio
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from toolpost.errors import ChannelClosed
from toolpost.transports.targets import Http


class ScriptedChannel:
    """A channel that is driven by a test.

    Example:
        >>> channel = ScriptedChannel()
        >>> channel.feed({"jsonrpc": "2.0", "id": 1, "result": {}})
        >>> asyncio.run(channel.receive())
        b'{"jsonrpc":"2.0","id":1,"result":{}}'
    """

    local = True
    """The test is at the other end."""

    def __init__(self) -> None:
        self.closed = False
        """Whether somebody closed the channel from this side."""
        self.raw: list[bytes] = []
        """All that was sent, as bytes."""
        self.related: list[int | str | None] = []
        """For each message that was sent, the request that it belongs to."""
        self.broken: Exception | None = None
        """Set it, and every further `send` raises it."""
        self.writable = asyncio.Event()
        """Clear it, and `send` waits until it is set, as with a peer that does not read."""
        self.writable.set()
        self._arriving: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._leaving: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended: Exception | None = None

    async def receive(self) -> bytes:
        """The next message that was fed."""
        if self._ended is not None:
            raise self._ended
        arrived = await self._arriving.get()
        if isinstance(arrived, Exception):
            self._ended = arrived
            raise arrived
        return arrived

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Keep a message for the test to read."""
        await self.writable.wait()
        if self.broken is not None:
            raise self.broken
        if self.closed:
            raise ChannelClosed("the channel is closed", sent=False)
        self.raw.append(data)
        self.related.append(related)
        self._leaving.put_nowait(data)

    async def close(self) -> None:
        """Remember that the channel was closed."""
        if not self.closed:
            self.closed = True
            self.end("the channel is closed")

    def feed(self, *messages: Any) -> None:
        """Let messages arrive, one after the other.

        Args:
            messages: bytes arrive as they are, a text in UTF-8, everything else as its JSON.
        """
        for message in messages:
            data = message.encode() if isinstance(message, str) else message
            self._arriving.put_nowait(data if isinstance(data, bytes) else msgspec.json.encode(data))

    def end(self, reason: str | Exception = "the peer has gone") -> None:
        """Let the channel end, after all that was fed has been received.

        Args:
            reason: the text of the `ChannelClosed` that `receive` raises, or what to raise instead.
        """
        error = reason if isinstance(reason, Exception) else ChannelClosed(reason)
        self._arriving.put_nowait(error)

    @property
    def sent(self) -> list[Any]:
        """All that was sent, decoded."""
        return [msgspec.json.decode(data) for data in self.raw]

    async def next_sent(self) -> Any:
        """The next message that was sent and not read here before, decoded; waits for it if need be."""
        return msgspec.json.decode(await self._leaving.get())

    @property
    def unread(self) -> int:
        """How many messages were sent and not read with `next_sent`."""
        return self._leaving.qsize()


# --------------------------------------------------------------------- HTTP in this process

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
