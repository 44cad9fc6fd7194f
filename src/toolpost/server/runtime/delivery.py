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

MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of answers that may wait for a client to take them before no more is read from it."""

RESPONSE_OVERHEAD: Final = 2048
"""Bytes that an answer takes that waits, beside its own."""

logger: Final = logging.getLogger("toolpost.server")

SpawnTask: TypeAlias = Callable[[Coroutine[Any, Any, Any]], object]


@runtime_checkable
class _SupportsOffer(Protocol):
    """A channel with one stream that need not be waited for, as long as nothing holds it up."""

    def offer(self, data: bytes, /) -> bool: ...


@runtime_checkable
class _SupportsAnswer(Protocol):
    """A channel on which each request has a stream of its own, which its answer ends."""

    async def answer(self, data: bytes, request_id: RequestId, /) -> None: ...


class ResponseDelivery:
    """What a client has to take.

    Args:
        channel: the way to the client.
        chore: does what nobody waits for.
    """

    __slots__ = (
        "_all_sent",
        "_answer",
        "_offer",
        "_queued_count",
        "_send",
        "_spawn",
        "_unsent_bytes",
        "_writable",
    )

    def __init__(self, channel: Channel, chore: SpawnTask) -> None:
        self._send = channel.send
        self._answer = channel.answer if isinstance(channel, _SupportsAnswer) else None
        self._offer = channel.offer if isinstance(channel, _SupportsOffer) else None
        self._spawn = chore
        self._queued_count = 0  # answers that the client has to make room for
        self._unsent_bytes = 0  # bytes of answers that the channel has not taken yet
        # An event takes 0.7 KiB, and an idle session needs none.
        self._all_sent: asyncio.Event | None = None
        self._writable: asyncio.Event | None = None

    @property
    def is_free(self) -> bool:
        """Whether all that was said at once has been taken, and not too much of the rest waits."""
        return not self._queued_count and self._unsent_bytes <= MAX_UNSENT_BYTES

    def offer(self, data: bytes) -> bool:
        """Whether the channel has taken an answer at once."""
        return self._offer is not None and self._offer(data)

    def send_soon(self, data: bytes, request_id: RequestId | None) -> None:
        """Answer at once, or as soon as the client takes it; until then we are not free."""
        if self._offer is None or not self._offer(data):
            if self._all_sent is None:
                self._all_sent = asyncio.Event()
            self._queued_count += 1
            self._spawn(self._send_queued(data, request_id, self._all_sent))

    async def _send_queued(self, data: bytes, request_id: RequestId | None, paid: asyncio.Event) -> None:
        try:
            await self.deliver(data, request_id)
        finally:
            self._queued_count -= 1
            if not self._queued_count:
                self._all_sent = None
                paid.set()

    async def deliver(self, data: bytes, request_id: RequestId | None) -> None:
        """Hand an answer over that may have to wait until the client takes it."""
        size = len(data) + RESPONSE_OVERHEAD
        self._unsent_bytes += size
        try:
            await self.answer(data, request_id)
        except ChannelClosed:
            logger.debug("the client has gone before its answer to %r", request_id)
        finally:
            self._unsent_bytes -= size
            if self._unsent_bytes <= MAX_UNSENT_BYTES and self._writable is not None:
                self._writable.set()

    async def answer(self, data: bytes, request_id: RequestId | None) -> None:
        """Hand an answer over.

        Raises:
            ChannelClosed: the client has gone.
        """
        if self._answer is None or request_id is None:
            await self._send(data, request_id)
        else:
            await self._answer(data, request_id)

    async def wait_until_writable(self) -> None:
        """Wait until a client that asks has taken some of its answers: until then it is not heard."""
        while self._unsent_bytes > MAX_UNSENT_BYTES:
            self._writable = asyncio.Event()
            await self._writable.wait()

    async def wait_until_sent(self) -> None:
        """Wait until all is taken that was said at once."""
        if self._all_sent is not None:
            await self._all_sent.wait()
