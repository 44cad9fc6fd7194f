"""Wrappers around a target or a channel, to record or to change its messages.

`WrappedTarget` is a target that `Client` takes, `ChannelWrapper` the channel in between. Both keep the
negotiation, the fallbacks and the optional features of the inner one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar, cast

from toolpost.channel import Channel
from toolpost.client.connection.negotiate import Connector
from toolpost.connect import Target, TargetOptions, make_connector

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
