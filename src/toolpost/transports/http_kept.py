"""Streams that are over, kept for clients that come back to them: as many as there is room for.

Owns the bound over all sessions of a worker; the store bounds each stream, and forgets it in its time. Knows
neither sessions nor what was said.
"""

import time
from collections import OrderedDict
from typing import Final

from toolpost.stores.promise import LogStore

__all__ = ["STREAM_RETENTION", "FinishedStreams"]

STREAM_RETENTION: Final = 300.0
"""Seconds for which a stream can be resumed after its last event."""

MAX_FINISHED_BYTES: Final = 128 * 1024 * 1024
"""Bytes of all of them together: 32 of the largest, or some seconds of a busy server."""

MAX_COUNTED_STREAM_SIZE: Final = 4 * 1024 * 1024
"""Bytes of one: about as much as a log holds, however much was said."""

STREAM_OVERHEAD: Final = 4096
"""Bytes that one takes beside what was said, generously."""


class FinishedStreams:
    """The logs of streams on which nothing more will be said.

    Args:
        logs: where they are.
    """

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._held: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how large, and until when
        self._size = 0

    async def add(self, log: str, size: int) -> None:
        """Keep a log of this size; the oldest make room for it. Who reads one of them reads it to its end."""
        now, size = time.monotonic(), min(size, MAX_COUNTED_STREAM_SIZE) + STREAM_OVERHEAD
        self._held[log] = (size, now + STREAM_RETENTION)
        self._size += size
        while self._size > MAX_FINISHED_BYTES or self._is_oldest_expired(now):
            await self.drop(next(iter(self._held)))

    def _is_oldest_expired(self, now: float) -> bool:
        """Whether the time of the oldest is over; else the names of 30 000 that are gone would be kept."""
        return bool(self._held) and next(iter(self._held.values()))[1] <= now

    async def drop(self, log: str) -> None:
        """Forget a log."""
        self._size -= self._held.pop(log, (0, 0.0))[0]
        await self._logs.drop(log)
