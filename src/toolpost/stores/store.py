"""The interface of a store: records under keys, logs of streams, queues, and messages between workers.

`tests/unit/stores/store_contract.py` tests it for every store. Keys and log names are plain strings; their
users keep names apart. Values are bytes, and access control is left to others.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias

Receive: TypeAlias = Callable[[bytes], None]
"""Takes a message for this worker. It must neither wait nor raise.

An empty message says that messages to all workers may be lost.
"""


class LogGap(LookupError):
    """Entries after the given number were removed, or the log never had that number.

    `kept_after` is the number after which all entries are kept, if older ones were removed.
    """

    def __init__(self, message: str, kept_after: int | None = None) -> None:
        super().__init__(message)
        self.kept_after = kept_after


class LogEntry(NamedTuple):
    """One entry of a log."""

    number: int
    data: bytes


class RecordStore(Protocol):
    """Values under keys. Each call is atomic.

    The time to live (`ttl`) is counted in seconds from the call that sets it; None is without end. A record
    whose time is over is not there for any call. A `ttl` that is not finite or not above 0 is a ValueError,
    and nothing changes.
    """

    async def get(self, key: str) -> bytes | None:
        """Return the value; None if there is none."""
        ...

    async def put(self, key: str, value: bytes, ttl: float | None) -> None:
        """Replace the value and its time to live."""
        ...

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        """Replace the value if it is `old`, and return whether it was: compare and set.

        None stands for no record. `ttl` is the time to live of the new value.
        """
        ...

    async def touch(self, key: str, ttl: float | None) -> bool:
        """Give the record a new time to live; return whether there is one."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete the record; return whether there was one. Of several callers, one gets True."""
        ...


class LogStore(Protocol):
    """Entries that are numbered from 1 on.

    A log exists from its first entry until `drop` or the end of its time to live. A store bounds the entries
    and the bytes of each log, and may bound all logs together: the oldest entries go, the newest stays.
    """

    async def append(self, log: str, data: bytes, ttl: float, *, number: int | None = None) -> int:
        """Append an entry and return its number; the log lives that long from now on.

        A log with one writer may be numbered by it. A number that the log has is not written again.
        """
        ...

    async def read(self, log: str, after: int = 0) -> list[LogEntry]:
        """Return the entries after this number, oldest first; none if the log has no later one.

        Raises:
            LogGap: entries after this number were removed, or the log does not exist or is shorter.
        """
        ...

    async def touch(self, log: str, ttl: float) -> bool:
        """Give the log a new time to live; return whether there is one."""
        ...

    async def drop(self, log: str) -> None:
        """Delete the log."""
        ...


class QueueStore(Protocol):
    """Items that wait for workers, each with the time when it is ready.

    A worker that takes an item hides it for the time of a lease, renews that while it works, and removes the
    item at the end. If the worker dies, the item is ready again.
    """

    async def put(self, queue: str, item: str, delay: float = 0.0) -> None:
        """Add an item that is ready after `delay` seconds, or change when it is ready."""
        ...

    async def take(self, queue: str, count: int, lease: float) -> list[str]:
        """Return items that are ready, the earliest first, and hide them for `lease` seconds."""
        ...

    async def renew(self, queue: str, items: Sequence[str], lease: float) -> None:
        """Hide items for `lease` seconds from now on, as far as they were not removed."""
        ...

    async def remove(self, queue: str, item: str) -> None:
        """Remove an item, if it is there."""
        ...


class Store(Protocol):
    """Records, logs, queues and messages, for the tasks of one event loop at a time, in its thread.

    A store that is out of reach raises StoreUnavailable after a short while.

    A store is made without a loop and connects on first use. Several workers may share one:
    processes over a network, or endpoints of one process over a store in memory.
    """

    @property
    def fresh(self) -> float:
        """Seconds for which a worker may use what it has read, without checking for changes by others."""
        ...

    @property
    def records(self) -> RecordStore:
        """Values that are looked up by name: settings of sessions, keys, single-use marks."""
        ...

    @property
    def logs(self) -> LogStore:
        """Event streams, which a client may resume."""
        ...

    @property
    def queues(self) -> QueueStore:
        """Work that any worker may do: tasks."""
        ...

    @property
    def lease(self) -> float:
        """Seconds after which a worker that is silent counts as dead."""
        ...

    def join(self, receive: Receive) -> AbstractAsyncContextManager[int]:
        """Join as a worker until the context ends. Its value is the number of the worker, of 20 bits.

        `receive` gets the messages that `send` addresses to this number, and those that `publish` sends to
        all. Numbers start at random, so that one of an earlier worker is not reused.
        """
        ...

    async def send(self, worker: int, data: bytes) -> bool:
        """Send a message to one worker, in order; return False if there is no such worker."""
        ...

    async def remove(self, worker: int) -> None:
        """Remove a worker that has died; a store that is out of reach notices it later, on its own."""
        ...

    async def publish(self, data: bytes) -> None:
        """Send a message to all workers, this one included.

        All workers receive all messages in the same order, so that they agree on which reader of a resumed
        stream is the latest.
        """
        ...

    async def close(self) -> None:
        """Close connections; the data stays. Closing twice is fine, and the next use opens it again."""
        ...
