"""The interface of a transport: three methods that carry whole messages.

A channel knows nothing of JSON-RPC, revisions, servers or clients; it never looks into the bytes it carries.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, runtime_checkable

_IS_UNATTENDED: Final[ContextVar[bool]] = ContextVar("toolpost_unattended", default=False)


@contextmanager
def mark_unattended(is_so: bool = True) -> Generator[None]:
    """Mark what is sent meanwhile as background work: a channel must not open a login page for it."""
    token = _IS_UNATTENDED.set(is_so)
    try:
        yield
    finally:
        _IS_UNATTENDED.reset(token)


def is_unattended() -> bool:
    """Return whether this is background work."""
    return _IS_UNATTENDED.get()


@runtime_checkable
class Channel(Protocol):
    """A two-way road for messages, each one the bytes of one JSON text in UTF-8.

    One with `local = True` leads to nobody but whoever started this process, or into it. At the other end of
    all others could be anybody: a server lets them do what needs scopes only with a `principal` that has
    them.

    Examples:
        >>> class Letters:
        ...     async def receive(self) -> bytes: ...
        ...     async def send(self, data: bytes, related: int | str | None = None) -> None: ...
        ...     async def close(self) -> None: ...
        >>> isinstance(Letters(), Channel)
        True
    """

    async def receive(self) -> bytes:
        """The next message of the peer, waiting for it if need be.

        Raises:
            ChannelClosed: there will be no more; its text says why.
        """
        ...

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        """Hand one message over to the peer.

        Args:
            data: the message.
            related: the id of the peer's request that this message belongs to. HTTP picks the stream by
                it; a transport with a single stream ignores it.

        Raises:
            ChannelClosed: the peer cannot be reached any more.
        """
        ...

    async def close(self) -> None:
        """End the channel and free what it holds. Closing twice is fine."""
        ...
