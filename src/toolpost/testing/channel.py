"""Channels for tests: `ScriptedChannel`, where the test is the peer; wrappers of targets; in-process HTTP.

`WrappedTarget` gets between a client and its target, and keeps the negotiation and the channel's features.
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


W = TypeVar("W", bound=ChannelWrapper)


def with_traits(kind: type[W], inner: Channel) -> type[W]:
    """Return a subclass of the wrapper with the optional features of a channel."""
    return _make_class(
        kind, tuple(name for name in _TRAITS if hasattr(inner, name) and not hasattr(kind, name))
    )


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
    """A target with a wrapper around each channel to it."""

    def __init__(self, target: Target, wrap: Callable[[Channel], Channel]) -> None:
        self.target = target
        self.wrap = wrap

    def make_connector(self, options: TargetOptions) -> Connector:
        """Return the connector of the target, with wrapped channels."""
        server, headers, http, auth = options
        inner: Any = self.target
        return _wrap_way(
            make_connector(inner, server, headers=headers, http=http, auth=cast("Any", auth)), self.wrap
        )


def wrap_target(target: Target, wrap: Callable[[Channel], Channel]) -> WrappedTarget:
    """A target with something around each channel to it.

    Example:
        >>> from toolpost import Server
        >>> talk = wrap_target(Server("quiet"), lambda channel: channel)

    Args:
        target: whatever a client takes.
        wrap: makes the channel that the client gets of the one to the target.

    Raises:
        TypeError: it is no target.
    """
    wrapped = WrappedTarget(target, wrap)
    make_connector(wrapped)  # so that it fails here, and not where somebody connects
    return wrapped


def _wrap_way(way: Connector, wrap: Callable[[Channel], Channel]) -> Connector:
    async def open_it() -> Channel:
        return wrap(await way.open())

    find = way.resolve

    async def find_it() -> Connector:
        assert find is not None, "it is asked only where there is something to find"
        return _wrap_way(await find(), wrap)

    fallback = None if way.fallback is None else _wrap_way(way.fallback, wrap)
    # What is known of the target from elsewhere does not count: a test wants to see the same every time.
    return way._replace(open=open_it, fallback=fallback, key=None, resolve=None if find is None else find_it)
