"""Channels for tests: `ScriptedChannel`, where the test is the peer; wrappers of targets; in-process HTTP.

`WrappedTarget` gets between a client and its target, and keeps the negotiation and the channel's features.
`TappedChannel` passes each message on to a listener.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast

import msgspec

from toolpost.channel import Channel
from toolpost.client.connection.negotiate import Connector
from toolpost.connect import Target, TargetOptions, make_connector
from toolpost.errors import ChannelClosed
from toolpost.transports.targets import Http

Sender = Literal["client", "server"]  # the sender of a message


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


# --------------------------------------------------------------------- wrapping

_TRAITS: Final = (
    "find_header_parameters",
    "early_exit_hint",
    "stderr_tail",
    "local",
    "on_login_pending",
    "on_request_lost",
    "on_oversized",
    "principal",
    "returncode",
    "stderr_hint",
)
"""What a channel may offer beyond its promise, as in `toolpost.client.channel_features`. The short cuts are
left out: everything has to come past `send` and `receive`."""


class ChannelWrapper:
    """A channel around a channel, with the optional features of the inner one."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner

    async def receive(self) -> bytes:
        """The next message of the peer."""
        return await self.inner.receive()

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Hand one message over to the peer."""
        await self.inner.send(data, related)

    async def close(self) -> None:
        """End the inner channel."""
        await self.inner.close()


class TappedChannel(ChannelWrapper):
    """A channel whose messages a listener gets, each with its sender; `end` is the side of this channel."""

    def __init__(
        self, inner: Channel, listen: Callable[[Sender, bytes], object], end: Sender = "client"
    ) -> None:
        super().__init__(inner)
        self._listen = listen
        self._here: Sender = end
        self._there: Sender = other_end(end)

    async def receive(self) -> bytes:
        """The next message of the peer."""
        data = await self.inner.receive()
        self._listen(self._there, data)
        return data

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Hand one message over to the peer."""
        self._listen(self._here, data)  # first: the answer may come before `send` returns
        await self.inner.send(data, related)


def other_end(sender: Sender) -> Sender:
    """The peer of a sender."""
    return "server" if sender == "client" else "client"


W = TypeVar("W", bound=ChannelWrapper)


def with_traits(kind: type[W], inner: Channel) -> type[W]:
    """Return a subclass of the wrapper with the optional features of a channel."""
    traits = (name for name in _TRAITS if hasattr(inner, name) and not hasattr(kind, name))
    return _make_class(kind, tuple(traits))


@cache
def _make_class(kind: type[W], traits: tuple[str, ...]) -> type[W]:
    # Properties of a class, because newer Pythons do not find a trait that only `__getattr__` knows.
    return cast("type[W]", type(kind.__name__, (kind,), {name: _make_forwarder(name) for name in traits}))


def _make_forwarder(name: str) -> property:
    def get(self: ChannelWrapper) -> Any:
        return getattr(self.inner, name)

    def put(self: ChannelWrapper, value: Any) -> None:
        setattr(self.inner, name, value)

    return property(get, put)


class WrappedTarget:
    """A target, with what `wrap` makes of each channel to it; raises `TypeError` if it is no target."""

    def __init__(self, target: Target, wrap: Callable[[Channel], Channel]) -> None:
        self._target: Any = target
        self._wrap = wrap
        make_connector(self)  # so that it fails here, and not where a client connects

    def make_connector(self, options: TargetOptions) -> Connector:
        """Return the connector of the target, with wrapped channels."""
        server, headers, http, auth = options
        way = make_connector(self._target, server, headers=headers, http=http, auth=cast("Any", auth))
        return _wrap_connector(way, self._wrap)


def _wrap_connector(way: Connector, wrap: Callable[[Channel], Channel]) -> Connector:
    async def open_it() -> Channel:
        return wrap(await way.open())

    find = way.resolve

    async def find_it() -> Connector:
        assert find is not None, "it is asked only where there is something to find"
        return _wrap_connector(await find(), wrap)

    fallback = None if way.fallback is None else _wrap_connector(way.fallback, wrap)
    # What is known of the target from elsewhere does not count: a test wants to see the same every time.
    return way._replace(open=open_it, fallback=fallback, key=None, resolve=None if find is None else find_it)
