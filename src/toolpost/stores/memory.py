"""A store in the memory of this process: no other process sees it, and it ends with this one.

Owns records and logs, drops what has expired, and delivers messages between the endpoints that share it, all
without a task of its own. Belongs to one event loop at a time, and keeps none, so another may follow.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from math import inf
from typing import Final, Generic, TypeVar

from toolpost.stores.store import LogEntry, LogGap, LogStore, Receive, RecordStore

T = TypeVar("T")

MAX_ENTRIES: Final = 1024
"""How many entries a log keeps."""

MAX_LOG_BYTES: Final = 4 * 1024 * 1024
"""The same in bytes: the size of the largest message."""

MAX_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""How many bytes all logs have together: some dozens of full ones."""

TRIM_TARGET: Final = 7 / 8
"""The part of `MAX_TOTAL_BYTES` that a trim leaves, so that it is followed by many appends."""

SWEEP_COUNT: Final = 2
"""How many items each `put` checks for expiry: more than one, so that expired ones get fewer."""

WORKER_BITS: Final = 20


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
    """A store for one process. Endpoints of one event loop may share it.

    Args:
        entries: how many entries a log keeps.
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
        self.records: RecordStore = MemoryRecords(clock)
        self.logs: LogStore = _MemoryLogs(entries, size, total, clock)
        self._workers: dict[int, Receive] = {}
        self._next_number = secrets.randbits(WORKER_BITS)

    @asynccontextmanager
    async def join(self, receive: Receive) -> AsyncGenerator[int]:
        """Join as a worker until the context ends; its value is the number of the worker."""
        while (number := self._next_number % 2**WORKER_BITS) in self._workers or not number:
            self._next_number += 1
        self._next_number += 1
        self._workers[number] = receive
        try:
            yield number
        finally:
            del self._workers[number]

    async def send(self, worker: int, data: bytes) -> bool:
        """Send a message to one worker; return False if there is no such worker."""
        if worker not in self._workers:
            return False
        asyncio.get_running_loop().call_soon(self._deliver, worker, data)
        return True

    async def publish(self, data: bytes) -> None:
        """Send a message to all workers."""
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            loop.call_soon(self._deliver, worker, data)

    def _deliver(self, worker: int, data: bytes) -> None:
        receive = self._workers.get(worker)
        if receive is not None:
            receive(data)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""


class MemoryRecords:
    """Records in memory; also for state that only one conversation shares."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._values: ExpiringDict[bytes] = ExpiringDict(clock)

    async def get(self, key: str) -> bytes | None:
        """Return the value, if there is one."""
        return self._values.get(key)

    async def put(self, key: str, value: bytes, ttl: float | None) -> None:
        """Replace the value and its time to live."""
        self._values.put(key, value, ttl)

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        """Replace the value if it is `old`."""
        if self._values.get(key) != old:
            return False
        if new is None:
            self._values.remove(key)
        else:
            self._values.put(key, new, ttl)
        return True

    async def touch(self, key: str, ttl: float | None) -> bool:
        """Give the record a new time to live."""
        return self._values.touch(key, ttl)

    async def delete(self, key: str) -> bool:
        """Delete the record."""
        return self._values.remove(key)


class _MemoryLog:
    """One log: its entries, the number of the newest, and their size."""

    __slots__ = ("entries", "last", "size")

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []  # short, so smaller than a deque
        self.last = self.size = 0

    def append(self, entry: LogEntry) -> None:
        self.entries.append(entry)
        self.last = entry.number
        self.size += len(entry.data)

    def trim(self, entries: int, size: int) -> None:
        """Drop the oldest entries until these limits hold; the newest stays."""
        gone = 0
        while len(self.entries) - gone > 1 and (len(self.entries) - gone > entries or self.size > size):
            self.size -= len(self.entries[gone].data)
            gone += 1
        del self.entries[:gone]


class _MemoryLogs:
    def __init__(self, entries: int, size: int, total: int, clock: Callable[[], float]) -> None:
        self._max_entries = entries
        self._max_log_bytes = size
        self._max_total_bytes = total
        self._trim_threshold: float = total
        self._total_bytes = 0
        self._logs: ExpiringDict[_MemoryLog] = ExpiringDict(clock, gone=self._subtract)

    async def append(self, log: str, data: bytes, ttl: float, *, number: int | None = None) -> int:
        found = self._logs.get(log) or _MemoryLog()
        self._logs.put(log, found, ttl)
        before = found.size
        number = found.last + 1 if number is None else number
        found.append(LogEntry(number, data))
        found.trim(self._max_entries, self._max_log_bytes)
        self._total_bytes += found.size - before
        if self._total_bytes > self._trim_threshold:
            self._trim_largest()
        return number

    async def read(self, log: str, after: int = 0) -> list[LogEntry]:
        found = self._logs.get(log)
        if found is None or not found.entries[0].number - 1 <= after <= found.last:
            raise LogGap("entries after this number are gone, or the log never had it")
        return found.entries[after - found.entries[0].number + 1 :]

    async def touch(self, log: str, ttl: float) -> bool:
        return self._logs.touch(log, ttl)

    async def drop(self, log: str) -> None:
        self._logs.remove(log)

    def _subtract(self, log: _MemoryLog) -> None:
        """Count a log that is gone."""
        self._total_bytes -= log.size
        self._trim_threshold = self._compute_threshold(self._trim_threshold)

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
