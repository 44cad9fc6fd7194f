"""Backpressure for responses: how many wait for a client that reads slowly, and when to stop reading from it.

Counts responses and their bytes. Their content, and how a channel sends them, is not known here.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from toolpost.channel import Channel
from toolpost.errors import ChannelClosed
from toolpost.types.base import RequestId

MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of responses that may wait for a client before no more is read from it."""

RESPONSE_OVERHEAD: Final = 2048
"""Bytes that a waiting response takes beside its own."""

logger: Final = logging.getLogger("toolpost.server")

SpawnTask: TypeAlias = Callable[[Coroutine[Any, Any, Any]], object]


@runtime_checkable
class _SupportsOffer(Protocol):
    """A channel with one stream, which takes data at once unless it is full."""

    def offer(self, data: bytes, /) -> bool: ...


@runtime_checkable
class _SupportsAnswer(Protocol):
    """A channel on which each request has a stream of its own, which its response ends."""

    async def answer(self, data: bytes, request_id: RequestId, /) -> None: ...


class ResponseDelivery:
    """The responses of one conversation."""

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
        self._queued_count = 0  # responses of `send_soon` that the channel has not taken yet
        self._unsent_bytes = 0
        self._all_sent: asyncio.Event | None = None
        self._writable: asyncio.Event | None = None

    @property
    def is_free(self) -> bool:
        """Whether the channel has taken all of `send_soon`, and not too much of the rest waits."""
        return not self._queued_count and self._unsent_bytes <= MAX_UNSENT_BYTES

    def offer(self, data: bytes) -> bool:
        """Return whether the channel has taken a response at once."""
        return self._offer is not None and self._offer(data)

    def send_soon(self, data: bytes, request_id: RequestId | None) -> None:
        """Send a response at once, or in the background; until it is sent, `is_free` is false."""
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
        """Send a response that may have to wait until the client reads."""
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
        """Send a response. Raises ChannelClosed if the client has gone."""
        if self._answer is None or request_id is None:
            await self._send(data, request_id)
        else:
            await self._answer(data, request_id)

    async def wait_until_writable(self) -> None:
        """Wait until few enough bytes of responses wait."""
        while self._unsent_bytes > MAX_UNSENT_BYTES:
            self._writable = asyncio.Event()
            await self._writable.wait()

    async def wait_until_sent(self) -> None:
        """Wait until all of `send_soon` is sent."""
        if self._all_sent is not None:
            await self._all_sent.wait()
