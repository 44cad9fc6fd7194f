"""The interface of a transport: three methods that carry whole messages.

A channel does not read the bytes that it carries, and knows no revision, server or client.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, runtime_checkable

_IS_UNATTENDED: Final[ContextVar[bool]] = ContextVar("toolpost_unattended", default=False)


@contextmanager
def mark_unattended(unattended: bool = True) -> Generator[None]:
    """Mark messages sent in this context as background work: no channel opens a login page for them."""
    token = _IS_UNATTENDED.set(unattended)
    try:
        yield
    finally:
        _IS_UNATTENDED.reset(token)


def is_unattended() -> bool:
    """Return whether messages are sent as background work."""
    return _IS_UNATTENDED.get()


@runtime_checkable
class Channel(Protocol):
    """A two-way transport for messages, each one a JSON document in UTF-8.

    The peer of a channel with `local = True` is this process or its parent, and needs no scopes. Over any
    other channel, a server allows operations that need scopes only to a `principal` that has them.

    Examples:
        >>> class Letters:
        ...     async def receive(self) -> bytes: ...
        ...     async def send(self, data: bytes, related: int | str | None = None) -> None: ...
        ...     async def close(self) -> None: ...
        >>> isinstance(Letters(), Channel)
        True
    """

    async def receive(self) -> bytes:
        """Wait for the next message of the peer and return it.

        Raises:
            ChannelClosed: there are no more messages; the error says why.
        """
        ...

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Send one message to the peer.

        Args:
            data: the message.
            related: the id of the peer's request that this message belongs to. HTTP chooses the stream by
                it; a transport with a single stream ignores it.

        Raises:
            ChannelClosed: the peer can no longer be reached.
        """
        ...

    async def close(self) -> None:
        """Close the channel and free its resources. A second call does nothing."""
        ...
