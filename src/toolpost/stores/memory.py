"""A store in the memory of this process: no other worker sees it, and it goes with the process.

Owns records, logs and topics, and wakes those who wait for them. Belongs to one event loop at a time and to
the thread of that loop; it keeps none, so another may follow. Copies nothing: bytes come out as they went in.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Final, Self

from toolpost.stores.promise import Entry, LogGap, Logs, Records, TopicGap, Topics
from toolpost.stores.shelf import Shelf

__all__ = ["MemoryStore"]

ENTRIES: Final = 1024
"""How many entries a log keeps, and how many messages wait for a subscriber: minutes of a lively stream."""

SIZE: Final = 4 * 1024 * 1024
"""The same in bytes: as much as the largest message."""

TOTAL: Final = 256 * 1024 * 1024
"""Bytes of all logs together: some dozens that are full, which are those that nobody reads."""

SPARED: Final = 7 / 8
"""The part of `TOTAL` that stays when it is too much: so one look at all logs is followed by many appends."""

DIGITS: Final = 18
"""No log is longer. A peer may name any id, and to make a number of many digits takes quadratic time."""


class MemoryStore:
    """A store for one process.

    Args:
        entries: how many entries a log keeps, and how many messages may wait for a subscriber.
        size: how many bytes these may have together; a single one may have more.
        total: how many bytes all logs may have together, but for the last entry of each.
        clock: the time in seconds, which never goes back.
    """

    def __init__(
        self,
        *,
        entries: int = ENTRIES,
        size: int = SIZE,
        total: int = TOTAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records: Records = _Records(clock)
        self.logs: Logs = _Logs(entries, size, total, clock)
        self.topics: Topics = _Topics(entries, size)

    async def close(self) -> None:
        """Do nothing: there is no connection to let go of."""


class _Reader:
    """One who waits in its own event loop, which may be closed by the time that somebody wakes it."""

    __slots__ = ("_loop", "_news")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] | None = None  # 0.8 KiB less than an event

    def wait(self) -> "asyncio.Future[None]":
        self._news = self._loop.create_future()
        return self._news

    def wake(self) -> None:
        if self._news is not None and not (self._news.done() or self._loop.is_closed()):
            self._news.set_result(None)


# --------------------------------------------------------------------- records


class _Records:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._shelf: Shelf[bytes] = Shelf(clock)

    async def get(self, key: str) -> bytes | None:
        return self._shelf.get(key)

    async def put(self, key: str, value: bytes, ttl: float | None) -> None:
        self._shelf.put(key, value, ttl)

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        if self._shelf.get(key) != old:
            return False
        if new is None:
            self._shelf.remove(key)
        else:
            self._shelf.put(key, new, ttl)
        return True

    async def touch(self, key: str, ttl: float | None) -> bool:
        return self._shelf.touch(key, ttl)

    async def delete(self, key: str) -> bool:
        return self._shelf.remove(key)


# --------------------------------------------------------------------- logs


class _Log:
    """One log. A position is how many entries there were up to there; an id is the label and a position."""

    __slots__ = ("_data", "_gone", "_label", "ended", "readers", "size")

    def __init__(self) -> None:
        self._data: list[bytes] = []  # it is short; a deque takes 0.7 KiB more, and most logs have one entry
        self._gone = 0
        self._label = secrets.token_hex(8)  # tells us from an earlier log of the same name
        self.size = 0
        self.ended = False
        self.readers: list[_Tail] = []

    @property
    def last(self) -> int:
        return self._gone + len(self._data)

    def append(self, data: bytes, entries: int, size: int) -> str:
        self._data.append(data)
        self.size += len(data)
        self.cut(entries, size)
        self._wake()
        return f"{self._label}-{self.last}"

    def cut(self, entries: int, size: int) -> None:
        """Let the oldest entries go, until there are no more than this; the newest stays."""
        gone = 0
        while len(self._data) - gone > 1 and (len(self._data) - gone > entries or self.size > size):
            self.size -= len(self._data[gone])
            gone += 1
        del self._data[:gone]
        self._gone += gone

    def end(self) -> None:
        self.ended = True
        self._wake()

    def seek(self, after: str | None) -> int:
        if after is None:
            return self._gone
        label, _, digits = after.rpartition("-")
        if label == self._label and digits.isdecimal() and len(digits) <= DIGITS:
            position = int(digits)
            if self._gone <= position <= self.last:
                return position
        raise LogGap("entries behind this id are gone, or it is no id of this log; read without an id")

    def behind(self, position: int, most: int | None = None) -> list[Entry]:
        start = position - self._gone
        if start < 0:
            raise LogGap("entries have gone before they were read; read without an id")
        data = self._data[start : None if most is None else start + most]
        return [Entry(f"{self._label}-{number}", each) for number, each in enumerate(data, position + 1)]

    def _wake(self) -> None:
        for reader in self.readers:
            reader.wake()


class _Tail(_Reader):
    """One who reads a log, from `async with` on; a generator that does the same takes 0.5 KiB more."""

    __slots__ = ("_after", "_log", "_logs", "_name", "_position")

    def __init__(self, logs: "_Logs", name: str, after: str | None) -> None:
        super().__init__()
        self._logs = logs
        self._name = name
        self._after = after

    async def __aenter__(self) -> Self:
        self._log, self._position = self._logs.enter(self._name, self, self._after)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._logs.leave(self._name, self, self._log)

    def __aiter__(self) -> "_Tail":
        return self

    async def __anext__(self) -> Entry:
        while not (found := self._log.behind(self._position, 1)):
            if self._log.ended:
                raise StopAsyncIteration
            await self.wait()
        self._position += 1
        return found[0]


class _Logs:
    def __init__(self, entries: int, size: int, total: int, clock: Callable[[], float]) -> None:
        self._entries = entries
        self._size = size
        self._most = total
        self._due: float = total
        self._total = 0
        self._shelf: Shelf[_Log] = Shelf(clock, gone=self._end)

    async def append(self, log: str, data: bytes, ttl: float | None) -> str:
        found = self._find(log)
        self._shelf.put(log, found, ttl)
        before = found.size
        entry = found.append(data, self._entries, self._size)
        self._total += found.size - before
        if self._total > self._due:
            self._make_room()
        return entry

    async def read(self, log: str, after: str | None = None) -> list[Entry]:
        found = self._find(log)
        return found.behind(found.seek(after))

    def tail(self, log: str, after: str | None = None) -> _Tail:
        return _Tail(self, log, after)

    def enter(self, log: str, reader: _Tail, after: str | None) -> tuple[_Log, int]:
        """The log that somebody reads from now on, and from where on."""
        found = self._find(log)
        position = found.seek(after)
        if not found.last:
            self._shelf.put(log, found, None)  # where the first entry will look for us
        found.readers.append(reader)
        return found, position

    def leave(self, log: str, reader: _Tail, found: _Log) -> None:
        """Somebody reads a log no more."""
        found.readers.remove(reader)
        if not (found.last or found.readers or found.ended):
            self._shelf.remove(log)

    async def touch(self, log: str, ttl: float | None) -> bool:
        return self._find(log).last > 0 and self._shelf.touch(log, ttl)

    async def drop(self, log: str) -> None:
        self._shelf.remove(log)

    def _end(self, log: _Log) -> None:
        self._total -= log.size
        self._due = self._next_look(self._due)
        log.end()

    def _make_room(self) -> None:
        """Let the oldest entries of the largest logs go: who keeps up with a log has read them."""
        too_much = self._total - int(self._most * SPARED)
        for log in sorted(self._shelf, key=lambda log: log.size, reverse=True):
            if too_much <= 0:
                break
            before = log.size
            log.cut(self._entries, max(0, before - too_much))
            too_much -= before - log.size
            self._total -= before - log.size
        self._due = self._next_look(inf)  # what is left are last entries

    def _next_look(self, due: float) -> float:
        """How many bytes there have to be before it pays to look at all logs: not at each append."""
        return max(self._most, min(due, self._total + self._most / 8))

    def _find(self, log: str) -> _Log:
        """The log, or a new one that nobody knows of yet."""
        return self._shelf.get(log) or _Log()


# --------------------------------------------------------------------- topics


class _Subscriber(_Reader):
    __slots__ = ("_backlog", "_cut", "_size")

    def __init__(self) -> None:
        super().__init__()
        self._backlog: deque[bytes] = deque()
        self._cut = False
        self._size = 0

    def tell(self, data: bytes, entries: int, size: int) -> None:
        self._size += len(data)
        if self._backlog and (len(self._backlog) >= entries or self._size > size):
            self._cut = True
            self._backlog.clear()
        if not self._cut:
            self._backlog.append(data)
        self.wake()

    def __aiter__(self) -> "_Subscriber":
        return self

    async def __anext__(self) -> bytes:
        while not self._backlog:
            if self._cut:
                raise TopicGap("messages have come faster than they were read; subscribe again")
            await self.wait()
        data = self._backlog.popleft()
        self._size -= len(data)
        return data


class _Topics:
    def __init__(self, entries: int, size: int) -> None:
        self._entries = entries
        self._size = size
        self._topics: dict[str, set[_Subscriber]] = {}

    async def publish(self, topic: str, data: bytes) -> None:
        for subscriber in self._topics.get(topic, ()):
            subscriber.tell(data, self._entries, self._size)

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        subscriber = _Subscriber()
        subscribers = self._topics.setdefault(topic, set())
        subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            subscribers.remove(subscriber)
            if not subscribers:
                del self._topics[topic]
