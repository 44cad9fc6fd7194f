"""Streams that are over, kept for clients that come back to them: as many as there is room for.

Owns the bound over all sessions of a worker; the store bounds each stream, and forgets it in its time. Knows
neither sessions nor what was said.
"""

from collections import OrderedDict
from typing import Final

from toolpost.stores.promise import Logs

__all__ = ["Kept"]

ROOM: Final = 128 * 1024 * 1024
"""Bytes of all of them together: 32 of the largest, or some seconds of a busy server."""

LARGEST: Final = 4 * 1024 * 1024
"""Bytes of one: about as much as a log holds, however much was said."""

EACH: Final = 4096
"""Bytes that one takes beside what was said, generously."""


class Kept:
    """The logs of streams on which nothing more will be said.

    Args:
        logs: where they are.
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._size = 0

    async def add(self, log: str, size: int) -> None:
        """Keep a log of this size; the oldest make room for it. Who reads one of them reads it to its end."""
        self._sizes[log] = size = min(size, LARGEST) + EACH
        self._size += size
        while self._size > ROOM:
            await self.drop(next(iter(self._sizes)))

    async def drop(self, log: str) -> None:
        """Forget a log."""
        self._size -= self._sizes.pop(log, 0)
        await self._logs.drop(log)
