"""Channels for tests: `ScriptedChannel`, where the test is the peer; wrappers of targets; in-process HTTP.

`WrappedTarget` stands between a client and its target, and keeps the negotiation and the channel's features.
`TappedChannel` passes each message on to a listener.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import msgspec

from toolpost.channel import Channel
from toolpost.client.connection.negotiate import Connector
from toolpost.connect import Target, TargetOptions, make_connector
from toolpost.errors import ChannelClosed
from toolpost.protocol.methods import Role
from toolpost.transports.targets import Http

if TYPE_CHECKING:
    from toolpost.server.handler import Handler


class ScriptedChannel:
    """A channel driven by a test.

    Example:
        >>> channel = ScriptedChannel()
        >>> channel.feed({"jsonrpc": "2.0", "id": 1, "result": {}})
        >>> asyncio.run(channel.receive())
        b'{"jsonrpc":"2.0","id":1,"result":{}}'
    """

    local = True
    """The peer is the test."""

    def __init__(self) -> None:
        self.closed = False
        """Whether the channel was closed from this side."""
        self.raw: list[bytes] = []
        """All messages that were sent, as bytes."""
        self.related: list[int | str | None] = []
        """The request that each sent message belongs to."""
        self.broken: Exception | None = None
        """An exception that every further `send` raises."""
        self.writable = asyncio.Event()
        """While this is cleared, `send` waits, as with a peer that does not read."""
        self.writable.set()
        self._arriving: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._leaving: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended: Exception | None = None

    async def receive(self) -> bytes:
        """Return the next message that was fed."""
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
        """Close the channel, and end `receive`."""
        if not self.closed:
            self.closed = True
            self.end("the channel is closed")

    def feed(self, *messages: Any) -> None:
        """Let messages arrive, one after the other.

        Args:
            messages: bytes arrive unchanged, a string in UTF-8, anything else as JSON.
        """
        for message in messages:
            data = message.encode() if isinstance(message, str) else message
            self._arriving.put_nowait(data if isinstance(data, bytes) else msgspec.json.encode(data))

    def end(self, reason: str | Exception = "the peer closed the connection") -> None:
        """End the channel after all fed messages have been received.

        Args:
            reason: the text of the `ChannelClosed` that `receive` raises, or another exception.
        """
        error = reason if isinstance(reason, Exception) else ChannelClosed(reason)
        self._arriving.put_nowait(error)

    @property
    def sent(self) -> list[Any]:
        """All messages that were sent, decoded."""
        return [msgspec.json.decode(data) for data in self.raw]

    async def next_sent(self) -> Any:
        """Wait for the next sent message and return it decoded. Returns each message once."""
        return msgspec.json.decode(await self._leaving.get())

    @property
    def unread(self) -> int:
        """The number of sent messages that `next_sent` has not returned."""
        return self._leaving.qsize()


# --------------------------------------------------------------------- HTTP in this process

WebTransport: TypeAlias = Literal["http", "sse"]
_URLS: Final[dict[WebTransport, str]] = {"http": "http://127.0.0.1/mcp", "sse": "http://127.0.0.1/sse"}


def in_process(server: "Handler", over: WebTransport = "http") -> Http:
    """Return a target: a server in this process, reached over HTTP without a socket.

    Example:
        >>> import asyncio
        >>> from toolpost import Client, Server
        >>> async def main():
        ...     async with Client(in_process(Server("weather"))) as mcp:
        ...         return mcp.server_info.name
        >>> asyncio.run(main())
        'weather'

    Args:
        server: the server, with its tokens and middleware. For options of HTTP, or an application that it is
            mounted in, use `Http("http://127.0.0.1/mcp", http=application)`.
        over: Streamable HTTP or HTTP+SSE.

    Raises:
        TypeError: `server` is not a server object.
        ValueError: `over` is unknown.
    """
    if not hasattr(server, "asgi"):
        raise TypeError(f"in_process requires a server object, not {type(server).__name__}")
    if over not in _URLS:
        raise ValueError(f"over: {over!r} is not one of {', '.join(map(repr, _URLS))}")
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
"""Optional features of a channel, as the client's `Dispatcher` describes them, without the shortcuts that
bypass `send` and `receive`."""


class ChannelWrapper:
    """A channel around a channel, with the optional features of the inner one."""

    def __new__(cls, inner: Channel, *_: Any, **__: Any) -> Self:
        """Create an object of a subclass with the features of the inner channel, and no others."""
        features = (name for name in _TRAITS if hasattr(inner, name) != hasattr(cls, name))
        return super().__new__(_make_subclass(cls, tuple(features)))

    def __init__(self, inner: Channel) -> None:
        self.inner = inner

    async def receive(self) -> bytes:
        """Return the next message of the peer."""
        return await self.inner.receive()

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Send one message to the peer."""
        await self.inner.send(data, related)

    async def close(self) -> None:
        """Close the inner channel."""
        await self.inner.close()


class TappedChannel(ChannelWrapper):
    """A channel that passes each message with its sender to a listener; `end` is its own side."""

    def __init__(self, inner: Channel, listen: Callable[[Role, bytes], object], end: Role = "client") -> None:
        super().__init__(inner)
        self._listen = listen
        self._here: Role = end
        self._there: Role = other_end(end)

    async def receive(self) -> bytes:
        """Return the next message of the peer."""
        data = await self.inner.receive()
        self._listen(self._there, data)
        return data

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Send one message to the peer."""
        self._listen(self._here, data)  # first: the response may come before `send` returns
        await self.inner.send(data, related)


def decode_or_text(data: bytes) -> Any:
    """Decode JSON; return anything else as a string."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return data.decode(errors="replace")


def other_end(sender: Role) -> Role:
    """Return the peer of a sender."""
    return "server" if sender == "client" else "client"


@cache
def _make_subclass(kind: type[Any], features: tuple[str, ...]) -> type[Any]:
    # Properties, because newer versions of Python ignore `__getattr__` in checks of a Protocol. One of a
    # feature that only `kind` has raises AttributeError.
    return type(kind.__name__, (kind,), {name: _make_forwarder(name) for name in features})


def _make_forwarder(name: str) -> property:
    return property(attrgetter(f"inner.{name}"), lambda self, value: setattr(self.inner, name, value))


class WrappedTarget:
    """A target whose channels go through `wrap`; raises `TypeError` if it is not a target."""

    def __init__(self, target: Target, wrap: Callable[[Channel], Channel]) -> None:
        self._target: Any = target
        self._wrap = wrap
        make_connector(self)  # an invalid target fails here, not when a client connects

    def make_connector(self, options: TargetOptions) -> Connector:
        """Return the connector of the target, with wrapped channels."""
        return _wrap_connector(make_connector(self._target, options), self._wrap)


def _wrap_connector(way: Connector, wrap: Callable[[Channel], Channel]) -> Connector:
    async def open_it() -> Channel:
        return wrap(await way.open())

    find = way.resolve

    async def find_it() -> Connector:
        assert find is not None, "only called if it exists"
        return _wrap_connector(await find(), wrap)

    fallback = None if way.fallback is None else _wrap_connector(way.fallback, wrap)
    # No key: a cached revision would make one test depend on another.
    return way._replace(open=open_it, fallback=fallback, key=None, resolve=None if find is None else find_it)
