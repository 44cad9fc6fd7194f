"""The answers of a conversation on their way to its client, which may take its time.

Owns which of them wait, how many bytes they have, and when to stop hearing a client that does not read. Knows
neither what is answered nor what the channel does with it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed
from toolpost.types.base import RequestId

__all__ = ["EACH", "MAX_UNSENT", "Delivery"]

MAX_UNSENT: Final = 16 * 1024 * 1024
"""Bytes of answers that may wait for a client to take them before no more is read from it."""

EACH: Final = 2048
"""Bytes that an answer takes that waits, beside its own."""

logger: Final = logging.getLogger("toolpost.server")

Chore: TypeAlias = Callable[[Coroutine[Any, Any, Any]], object]


@runtime_checkable
class _Instant(Protocol):
    """A channel with one stream that need not be waited for, as long as nothing holds it up."""

    def offer(self, data: bytes, /) -> bool: ...


@runtime_checkable
class _Answering(Protocol):
    """A channel on which each request has a stream of its own, which its answer ends."""

    async def answer(self, data: bytes, request_id: RequestId, /) -> None: ...


class Delivery:
    """What a client has to take.

    Args:
        channel: the way to the client.
        chore: does what nobody waits for.
    """

    __slots__ = ("_answer", "_chore", "_offer", "_owed", "_paid", "_relief", "_send", "_unsent")

    def __init__(self, channel: Channel, chore: Chore) -> None:
        self._send = channel.send
        self._answer = channel.answer if isinstance(channel, _Answering) else None
        self._offer = channel.offer if isinstance(channel, _Instant) else None
        self._chore = chore
        self._owed = 0  # answers that the client has to make room for
        self._unsent = 0  # bytes of answers that the channel has not taken yet
        # An event takes 0.7 KiB, and an idle session needs none.
        self._paid: asyncio.Event | None = None
        self._relief: asyncio.Event | None = None

    @property
    def is_free(self) -> bool:
        """Whether all that was said at once has been taken, and not too much of the rest waits."""
        return not self._owed and self._unsent <= MAX_UNSENT

    def offer(self, data: bytes) -> bool:
        """Whether the channel has taken an answer at once."""
        return self._offer is not None and self._offer(data)

    def tell(self, data: bytes, request_id: RequestId | None) -> None:
        """Answer at once, or as soon as the client takes it; until then we are not free."""
        if self._offer is None or not self._offer(data):
            if self._paid is None:
                self._paid = asyncio.Event()
            self._owed += 1
            self._chore(self._pay(data, request_id, self._paid))

    async def _pay(self, data: bytes, request_id: RequestId | None, paid: asyncio.Event) -> None:
        try:
            await self.deliver(data, request_id)
        finally:
            self._owed -= 1
            if not self._owed:
                self._paid = None
                paid.set()

    async def deliver(self, data: bytes, request_id: RequestId | None) -> None:
        """Hand an answer over that may have to wait until the client takes it."""
        size = len(data) + EACH
        self._unsent += size
        try:
            await self.answer(data, request_id)
        except ChannelClosed:
            logger.debug("the client has gone before its answer to %r", request_id)
        finally:
            self._unsent -= size
            if self._unsent <= MAX_UNSENT and self._relief is not None:
                self._relief.set()

    async def answer(self, data: bytes, request_id: RequestId | None) -> None:
        """Hand an answer over.

        Raises:
            ChannelClosed: the client has gone.
        """
        if self._answer is None or request_id is None:
            await self._send(data, request_id)
        else:
            await self._answer(data, request_id)

    async def relieved(self) -> None:
        """Wait until a client that asks has taken some of its answers: until then it is not heard."""
        while self._unsent > MAX_UNSENT:
            self._relief = asyncio.Event()
            await self._relief.wait()

    async def paid(self) -> None:
        """Wait until all is taken that was said at once."""
        if self._paid is not None:
            await self._paid.wait()
