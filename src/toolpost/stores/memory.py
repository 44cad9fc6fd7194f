"""A store in the memory of this process: no other worker sees it, and it ends with the process.

Owns records, logs and topics, wakes those who wait for them, and drops what has expired, without a task of
its own. Belongs to one event loop at a time, and keeps none, so another may follow. Copies no bytes.
"""

import asyncio
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from math import inf
from typing import Final, Generic, Self, TypeVar

from toolpost.stores.store import LogEntry, LogGap, LogStore, RecordStore, TopicGap, TopicStore

T = TypeVar("T")

MAX_ENTRIES: Final = 1024
"""How many entries a log keeps, and how many messages wait for a subscriber."""

MAX_LOG_BYTES: Final = 4 * 1024 * 1024
"""The same in bytes: the size of the largest message."""

MAX_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""How many bytes all logs have together: some dozens of full ones."""

TRIM_TARGET: Final = 7 / 8
"""The part of `MAX_TOTAL_BYTES` that a trim leaves, so that it is followed by many appends."""

MAX_POSITION_DIGITS: Final = 18
"""No log is longer. A peer may name any id, and parsing many digits takes quadratic time."""

SWEEP_COUNT: Final = 2
"""How many items each `put` checks for expiry: more than one, so that expired ones get fewer."""


class ExpiringDict(Generic[T]):
    """Values under keys with a time to live; `gone` is called with each that expires or is removed."""

    def __init__(self, clock: Callable[[], float], gone: Callable[[T], None] | None = None) -> None:
        self._clock = clock
        self._on_removed = gone
        self._items: OrderedDict[str, tuple[T, float]] = OrderedDict()  # the front is checked next

    def __iter__(self) -> Iterator[T]:
        """Iterate over all values, expired ones included."""
        return (thing for thing, _ in self._items.values())

    def get(self, key: str) -> T | None:
        """Return the value, or None if there is none or it has expired."""
        held = self._items.get(key)
        if held is not None and held[1] <= self._clock():
            self._pop(key)
            return None
        return held and held[0]

    def put(self, key: str, thing: T, ttl: float | None) -> None:
        """Keep the value for `ttl` seconds, or without end; ValueError if that is not finite and above 0."""
        if ttl is not None and not 0 < ttl < inf:
            raise ValueError(f"ttl is {ttl}; give seconds, more than 0, or None for no end")
        now = self._clock()
        self._items[key] = (thing, inf if ttl is None else now + ttl)
        for other in list(islice(self._items, SWEEP_COUNT)):
            if self._items[other][1] <= now:
                self._pop(other)
            else:
                self._items.move_to_end(other)

    def touch(self, key: str, ttl: float | None) -> bool:
        """Give the value a new time to live; return whether there is one."""
        thing = self.get(key)
        if thing is None:
            return False
        self.put(key, thing, ttl)
        return True

    def remove(self, key: str) -> bool:
        """Remove the value; return whether there was one."""
        if self.get(key) is None:
            return False
        self._pop(key)
        return True

    def _pop(self, key: str) -> None:
        thing, _ = self._items.pop(key)
        if self._on_removed is not None:
            self._on_removed(thing)


class MemoryStore:
    """A store for one process.

    Args:
        entries: how many entries a log keeps, and how many messages may wait for a subscriber.
        size: how many bytes these may have together; a single one may have more.
        total: how many bytes all logs may have together, except the last entry of each.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        entries: int = MAX_ENTRIES,
        size: int = MAX_LOG_BYTES,
        total: int = MAX_TOTAL_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records: RecordStore = _MemoryRecords(clock)
        self.logs: LogStore = _MemoryLogs(entries, size, total, clock)
        self.topics: TopicStore = _MemoryTopics(entries, size)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""


class _Waiter:
    """Waits in its own event loop, which may be closed by the time of the wake-up."""

    __slots__ = ("_loop", "_wakeup")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakeup: asyncio.Future[None] | None = None

    def wait(self) -> "asyncio.Future[None]":
        self._wakeup = self._loop.create_future()
        return self._wakeup

    def wake(self) -> None:
        if self._wakeup is not None and not (self._wakeup.done() or self._loop.is_closed()):
            self._wakeup.set_result(None)


# --------------------------------------------------------------------- records


class _MemoryRecords:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._values: ExpiringDict[bytes] = ExpiringDict(clock)

    async def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    async def put(self, key: str, value: bytes, ttl: float | None) -> None:
        self._values.put(key, value, ttl)

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        if self._values.get(key) != old:
            return False
        if new is None:
            self._values.remove(key)
        else:
            self._values.put(key, new, ttl)
        return True

    async def touch(self, key: str, ttl: float | None) -> bool:
        return self._values.touch(key, ttl)

    async def delete(self, key: str) -> bool:
        return self._values.remove(key)


# --------------------------------------------------------------------- logs


class _MemoryLog:
    """One log. A position counts the entries up to there; an id is the label and a position."""

    __slots__ = ("_data", "_label", "_trimmed_count", "is_ended", "readers", "size")

    def __init__(self) -> None:
        self._data: list[bytes] = []  # short, so smaller than a deque
        self._trimmed_count = 0
        self._label = secrets.token_hex(8)  # differs from an earlier log of the same name
        self.size = 0
        self.is_ended = False
        self.readers: list[_LogTail] = []

    @property
    def last_position(self) -> int:
        return self._trimmed_count + len(self._data)

    def append(self, data: bytes, entries: int, size: int) -> str:
        self._data.append(data)
        self.size += len(data)
        self.trim(entries, size)
        self._wake()
        return f"{self._label}-{self.last_position}"

    def trim(self, entries: int, size: int) -> None:
        """Drop the oldest entries until these limits hold; the newest stays."""
        gone = 0
        while len(self._data) - gone > 1 and (len(self._data) - gone > entries or self.size > size):
            self.size -= len(self._data[gone])
            gone += 1
        del self._data[:gone]
        self._trimmed_count += gone

    def end(self) -> None:
        self.is_ended = True
        self._wake()

    def seek(self, after: str | None) -> int:
        if after is None:
            return self._trimmed_count
        label, _, digits = after.rpartition("-")
        if label == self._label and digits.isdecimal() and len(digits) <= MAX_POSITION_DIGITS:
            position = int(digits)
            if self._trimmed_count <= position <= self.last_position:
                return position
        raise LogGap("entries behind this id are gone, or it is no id of this log; read without an id")

    def read_after(self, position: int, most: int | None = None) -> list[LogEntry]:
        start = position - self._trimmed_count
        if start < 0:
            raise LogGap("entries have gone before they were read; read without an id")
        data = self._data[start : None if most is None else start + most]
        return [LogEntry(f"{self._label}-{number}", each) for number, each in enumerate(data, position + 1)]

    def _wake(self) -> None:
        for reader in self.readers:
            reader.wake()


class _LogTail(_Waiter):
    """Reads a log, from `async with` on. A class, because a generator needs more memory."""

    __slots__ = ("_after", "_log", "_logs", "_name", "_position")

    def __init__(self, logs: "_MemoryLogs", name: str, after: str | None) -> None:
        super().__init__()
        self._logs = logs
        self._name = name
        self._after = after

    async def __aenter__(self) -> Self:
        self._log, self._position = self._logs.add_reader(self._name, self, self._after)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._logs.remove_reader(self._name, self, self._log)

    def __aiter__(self) -> "_LogTail":
        return self

    async def __anext__(self) -> LogEntry:
        while not (found := self._log.read_after(self._position, 1)):
            if self._log.is_ended:
                raise StopAsyncIteration
            await self.wait()
        self._position += 1
        return found[0]


class _MemoryLogs:
    def __init__(self, entries: int, size: int, total: int, clock: Callable[[], float]) -> None:
        self._max_entries = entries
        self._max_log_bytes = size
        self._max_total_bytes = total
        self._trim_threshold: float = total
        self._total_bytes = 0
        self._logs: ExpiringDict[_MemoryLog] = ExpiringDict(clock, gone=self._end_log)

    async def append(self, log: str, data: bytes, ttl: float | None) -> str:
        found = self._get_or_create(log)
        self._logs.put(log, found, ttl)
        before = found.size
        entry = found.append(data, self._max_entries, self._max_log_bytes)
        self._total_bytes += found.size - before
        if self._total_bytes > self._trim_threshold:
            self._trim_largest()
        return entry

    async def read(self, log: str, after: str | None = None) -> list[LogEntry]:
        found = self._get_or_create(log)
        return found.read_after(found.seek(after))

    def tail(self, log: str, after: str | None = None) -> _LogTail:
        return _LogTail(self, log, after)

    def add_reader(self, log: str, reader: _LogTail, after: str | None) -> tuple[_MemoryLog, int]:
        """Register a reader; return its log and position."""
        found = self._get_or_create(log)
        position = found.seek(after)
        if not found.last_position:
            self._logs.put(log, found, None)  # so that the first entry finds the reader
        found.readers.append(reader)
        return found, position

    def remove_reader(self, log: str, reader: _LogTail, found: _MemoryLog) -> None:
        """Remove a reader, and with the last one a log that has no entries."""
        found.readers.remove(reader)
        if not (found.last_position or found.readers or found.is_ended):
            self._logs.remove(log)

    async def touch(self, log: str, ttl: float | None) -> bool:
        return self._get_or_create(log).last_position > 0 and self._logs.touch(log, ttl)

    async def drop(self, log: str) -> None:
        self._logs.remove(log)

    def _end_log(self, log: _MemoryLog) -> None:
        self._total_bytes -= log.size
        self._trim_threshold = self._compute_threshold(self._trim_threshold)
        log.end()

    def _trim_largest(self) -> None:
        """Drop the oldest entries of the largest logs."""
        too_much = self._total_bytes - int(self._max_total_bytes * TRIM_TARGET)
        for log in sorted(self._logs, key=lambda log: log.size, reverse=True):
            if too_much <= 0:
                break
            before = log.size
            log.trim(self._max_entries, max(0, before - too_much))
            too_much -= before - log.size
            self._total_bytes -= before - log.size
        self._trim_threshold = self._compute_threshold(inf)  # only last entries are left

    def _compute_threshold(self, due: float) -> float:
        """Return the size at which to look at all logs again: not at each append."""
        return max(self._max_total_bytes, min(due, self._total_bytes + self._max_total_bytes / 8))

    def _get_or_create(self, log: str) -> _MemoryLog:
        """Return the log, or a new one that is not registered yet."""
        return self._logs.get(log) or _MemoryLog()


# --------------------------------------------------------------------- topics


class _Subscriber(_Waiter):
    __slots__ = ("_backlog", "_is_cut_off", "_size")

    def __init__(self) -> None:
        super().__init__()
        self._backlog: deque[bytes] = deque()
        self._is_cut_off = False
        self._size = 0

    def deliver(self, data: bytes, entries: int, size: int) -> None:
        self._size += len(data)
        if self._backlog and (len(self._backlog) >= entries or self._size > size):
            self._is_cut_off = True
            self._backlog.clear()
        if not self._is_cut_off:
            self._backlog.append(data)
        self.wake()

    def __aiter__(self) -> "_Subscriber":
        return self

    async def __anext__(self) -> bytes:
        while not self._backlog:
            if self._is_cut_off:
                raise TopicGap("messages have come faster than they were read; subscribe again")
            await self.wait()
        data = self._backlog.popleft()
        self._size -= len(data)
        return data


class _MemoryTopics:
    def __init__(self, entries: int, size: int) -> None:
        self._max_entries = entries
        self._max_bytes = size
        self._subscribers: dict[str, set[_Subscriber]] = {}

    async def publish(self, topic: str, data: bytes) -> None:
        for subscriber in self._subscribers.get(topic, ()):
            subscriber.deliver(data, self._max_entries, self._max_bytes)

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        subscriber = _Subscriber()
        subscribers = self._subscribers.setdefault(topic, set())
        subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            subscribers.remove(subscriber)
            if not subscribers:
                del self._subscribers[topic]
