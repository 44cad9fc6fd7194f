"""A store in the memory of this process: no other process sees it, and it ends with this one.

Owns records, logs and queues, drops expired ones, and delivers messages between the endpoints that share it,
all without a task of its own. Belongs to one event loop at a time, and keeps none, so another may follow.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from typing import Final, Generic, TypeVar

from msgspec import Struct

from toolpost.errors import LocalProtocolError
from toolpost.stores.store import LogEntry, LogGap, LogStore, QueueStore, Receive, RecordStore

T = TypeVar("T")

MAX_ENTRIES: Final = 1024  # how many entries a log keeps
MAX_LOG_BYTES: Final = 4 * 1024 * 1024  # the same in bytes: the size of the largest message
MAX_TOTAL_BYTES: Final = 256 * 1024 * 1024  # of all logs together, and of all records together
TRIM_TARGET: Final = 7 / 8  # the part of that which a trim leaves, so that many writes follow before the next
RECORD_OVERHEAD: Final = 256  # bytes of a record beside its value: key, expiry, place in the table
SWEEP_COUNT: Final = 2  # items that are checked for expiry whenever one is added
WORKER_BITS: Final = 20
LEASE: Final = 10.0  # seconds for which a silent endpoint keeps its tasks
FRESH: Final = 1.0  # seconds


class _ExpiringItem(Struct, Generic[T], gc=False):
    value: T
    expires: float


class ExpiringDict(Generic[T]):
    """Values under keys with a time to live; `on_removed` is called with each that expires or is removed."""

    def __init__(self, clock: Callable[[], float], on_removed: Callable[[T], None]) -> None:
        self._clock = clock
        self._on_removed = on_removed
        self._items: OrderedDict[str, _ExpiringItem[T]] = OrderedDict()  # the least recently used first
        self._unchecked: Iterator[str] = iter(())  # keys that the sweep has not checked yet

    def __iter__(self) -> Iterator[T]:
        """Iterate over all values, expired ones included."""
        return (item.value for item in self._items.values())

    def list_expiring(self) -> list[str]:
        """Return the keys of values that have an end, the least recently used first."""
        return [key for key, item in self._items.items() if item.expires < inf]

    def get(self, key: str) -> T | None:
        """Return the value, or None if there is none or it has expired."""
        item = self._items.get(key)
        if item is None:
            return None
        if item.expires <= self._clock():
            self._pop(key)
            return None
        self._items.move_to_end(key)
        return item.value

    def put(self, key: str, value: T, ttl: float | None) -> None:
        """Keep the value for `ttl` seconds, or without end; ValueError if that is not finite and above 0."""
        now = self._clock()
        is_new = key not in self._items
        self._items[key] = _ExpiringItem(value, _compute_expiry(now, ttl))
        if not is_new:
            self._items.move_to_end(key)
            return
        others = tuple(islice(self._unchecked, SWEEP_COUNT))
        if not others:
            self._unchecked = iter(tuple(self._items))
        for other in others:
            item = self._items.get(other)
            if item is not None and item.expires <= now:
                self._pop(other)

    def touch(self, key: str, ttl: float | None) -> T | None:
        """Give the value a new time to live; return it, if there is one."""
        item, now = self._items.get(key), self._clock()
        expires = _compute_expiry(now, ttl)
        if item is None:
            return None
        if item.expires <= now:
            self._pop(key)
            return None
        item.expires = expires
        self._items.move_to_end(key)
        return item.value

    def remove(self, key: str) -> bool:
        """Remove the value; return whether there was one."""
        if self.get(key) is None:
            return False
        self._pop(key)
        return True

    def _pop(self, key: str) -> None:
        self._on_removed(self._items.pop(key).value)


def _compute_expiry(now: float, ttl: float | None) -> float:
    if ttl is None:
        return inf
    if 0 < ttl < inf:
        return now + ttl
    raise ValueError(f"ttl must be more than 0 seconds, or None for no expiry, not {ttl}")


class MemoryStore:
    """A store for one process. Endpoints of one event loop may share it.

    Args:
        entries: the maximum number of entries in a log.
        size: the maximum number of bytes of these entries together; a single entry may be larger.
        total: the maximum number of bytes of all logs (without the last entry of each), and of all records.
            Beyond it, the least recently used records are dropped, except those without an expiry.
        clock: a monotonic clock in seconds.

    Examples:
        >>> server = Server("shop", store=MemoryStore(entries=4096))
    """

    def __init__(
        self,
        *,
        entries: int = MAX_ENTRIES,
        size: int = MAX_LOG_BYTES,
        total: int = MAX_TOTAL_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records: RecordStore = MemoryRecords(clock, total)
        self.logs: LogStore = _MemoryLogs(entries, size, total, clock)
        self.queues: QueueStore = MemoryQueues(clock)
        self.lease = LEASE
        self.fresh = FRESH
        self._workers: dict[int, Receive] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # of the workers
        self._next_number = secrets.randbits(WORKER_BITS)

    @asynccontextmanager
    async def join(self, receive: Receive) -> AsyncGenerator[int]:
        """Join as a worker until the context ends, and yield the number of the worker."""
        loop = asyncio.get_running_loop()
        if self._workers and self._loop is not loop and self._loop is not None and self._loop.is_running():
            raise LocalProtocolError(
                "the sessions of this server are in another event loop", hint="give each loop its own server"
            )
        self._loop = loop
        while (number := self._next_number % 2**WORKER_BITS) in self._workers or not number:
            self._next_number += 1
        self._next_number += 1
        self._workers[number] = receive
        try:
            yield number
        finally:
            self._workers.pop(number, None)

    async def send(self, worker: int, data: bytes) -> bool:
        """Send a message to one worker; return False if there is no such worker."""
        if worker not in self._workers:
            return False
        asyncio.get_running_loop().call_soon(self._deliver, worker, data)
        return True

    async def remove(self, worker: int) -> None:
        """Remove a worker that has died."""
        self._workers.pop(worker, None)

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

    def __init__(self, clock: Callable[[], float], total: int = MAX_TOTAL_BYTES) -> None:
        self._max_bytes = total
        self._bytes = 0
        self._values: ExpiringDict[bytes] = ExpiringDict(clock, on_removed=self._subtract)

    async def get(self, key: str) -> bytes | None:
        """Return the value, if there is one."""
        return self._values.get(key)

    async def put(self, key: str, value: bytes, ttl: float | None) -> None:
        """Replace the value and its time to live."""
        before = self._values.get(key)
        self._values.put(key, value, ttl)
        if before is not None:
            self._subtract(before)
        self._bytes += len(value) + RECORD_OVERHEAD
        if self._bytes > self._max_bytes:
            self._drop_unused()

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        """Replace the value if it is `old`."""
        if self._values.get(key) != old:
            return False
        if new is None:
            self._values.remove(key)
        else:
            await self.put(key, new, ttl)
        return True

    async def touch(self, key: str, ttl: float | None) -> bool:
        """Give the record a new time to live."""
        return self._values.touch(key, ttl) is not None

    async def delete(self, key: str) -> bool:
        """Delete the record."""
        return self._values.remove(key)

    def _subtract(self, value: bytes) -> None:
        """Subtract a removed value."""
        self._bytes -= len(value) + RECORD_OVERHEAD

    def _drop_unused(self) -> None:
        """Drop the least recently used records, but for the one that was just put."""
        for key in self._values.list_expiring()[:-1]:
            if self._bytes <= self._max_bytes * TRIM_TARGET:
                return
            self._values.remove(key)


class _MemoryLog(Struct, eq=False, gc=False):
    """One log: the data of its entries, the number of the newest, and their size."""

    entries: list[bytes] = []  # short, so smaller than a deque
    last: int = 0
    size: int = 0

    def trim(self, entries: int, size: int) -> None:
        """Drop the oldest entries until these limits hold; the newest stays."""
        removed = 0
        while len(self.entries) - removed > 1 and (len(self.entries) - removed > entries or self.size > size):
            self.size -= len(self.entries[removed])
            removed += 1
        del self.entries[:removed]


class _MemoryLogs:
    def __init__(self, entries: int, size: int, total: int, clock: Callable[[], float]) -> None:
        self._max_entries = entries
        self._max_log_bytes = size
        self._max_total_bytes = total
        self._trim_threshold: float = total
        self._total_bytes = 0
        self._logs: ExpiringDict[_MemoryLog] = ExpiringDict(clock, on_removed=self._subtract)

    async def append(self, log: str, data: bytes, ttl: float, *, number: int | None = None) -> int:
        found = self._logs.touch(log, ttl)
        if found is None:
            found = _MemoryLog()
            self._logs.put(log, found, ttl)
        if number is not None and number <= found.last:
            return number
        before = found.size
        found.last = number = found.last + 1 if number is None else number
        found.entries.append(data)
        found.size = size = before + len(data)
        if size > self._max_log_bytes or len(found.entries) > self._max_entries:
            found.trim(self._max_entries, self._max_log_bytes)
        self._total_bytes += found.size - before
        if self._total_bytes > self._trim_threshold:
            self._trim_largest()
        return number

    async def read(self, log: str, after: int = 0) -> list[LogEntry]:
        found = self._logs.get(log)
        if found is None or after > found.last:
            raise LogGap("the log does not exist, or is shorter")
        kept_after = found.last - len(found.entries)
        if after < kept_after:
            raise LogGap("entries after this number were removed", kept_after)
        entries = enumerate(found.entries[after - kept_after :], after + 1)
        return [LogEntry(number, data) for number, data in entries]

    async def touch(self, log: str, ttl: float) -> bool:
        return self._logs.touch(log, ttl) is not None

    async def drop(self, log: str) -> None:
        self._logs.remove(log)

    def _subtract(self, log: _MemoryLog) -> None:
        """Subtract a removed log."""
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
        """Return the total size at which to trim next, so that not every append looks at all logs."""
        return max(self._max_total_bytes, min(due, self._total_bytes + self._max_total_bytes / 8))


class MemoryQueues:
    """Queues in memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, dict[str, float]] = {}  # by queue and item
        self._order: dict[str, list[tuple[float, int, str]]] = {}  # heaps; an entry is old if `_due` differs
        self._next_number = count().__next__

    async def put(self, queue: str, item: str, delay: float = 0.0) -> None:
        """Add an item, or change when it is ready."""
        due = self._clock() + delay
        self._due.setdefault(queue, {})[item] = due
        heappush(self._order.setdefault(queue, []), (due, self._next_number(), item))

    async def take(self, queue: str, count: int, lease: float) -> list[str]:
        """Return items that are ready, and hide them."""
        now, order = self._clock(), self._order.get(queue, [])
        taken: list[str] = []
        while order and order[0][0] <= now and len(taken) < count:
            due, _, item = heappop(order)
            if self._due[queue].get(item) == due:
                taken.append(item)
                await self.put(queue, item, lease)
        return taken

    async def renew(self, queue: str, items: Sequence[str], lease: float) -> None:
        """Hide items for longer."""
        for item in items:
            if item in self._due.get(queue, ()):
                await self.put(queue, item, lease)

    async def remove(self, queue: str, item: str) -> None:
        """Remove an item."""
        due = self._due.get(queue, {})
        due.pop(item, None)
        if not due:
            self._due.pop(queue, None)
            self._order.pop(queue, None)
