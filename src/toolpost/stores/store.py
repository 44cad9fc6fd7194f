"""The interface of a store: records under keys, logs that can be resumed, topics to subscribe to.

`tests/unit/stores/store_contract.py` tests it for every store. Keys, logs and topics are plain strings in
three name spaces; their users keep names apart. Values are bytes, and access control is left to others.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol


class LogGap(LookupError):
    """Entries behind the given id are gone, or the id is none of this log. Start again without an id."""


class TopicGap(LookupError):
    """The subscriber was too slow and has missed messages. Subscribe again, and look up the state anew."""


class LogEntry(NamedTuple):
    """One entry of a log."""

    id: str
    data: bytes


class RecordStore(Protocol):
    """Values under keys. Each call happens at one instant, whoever else is at work on the same key.

    The time to live (`ttl`) is counted in seconds from the call that sets it, and None is for ever. When it
    is over, the record is not there any more, for any call. To set one that is not finite or not more than 0
    is a ValueError, and nothing changes.
    """

    async def get(self, key: str) -> bytes | None:
        """The value; None where there is none."""
        ...

    async def put(self, key: str, value: bytes, ttl: float | None) -> None:
        """Keep the value and its time to live, in place of those that were there."""
        ...

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        """Whether `old` was the value, and now `new` is: compare and set.

        Args:
            key: whose value.
            old: what has to be there; None: nothing may be there.
            new: what is to be there; None: nothing, and `ttl` is not looked at.
            ttl: the time to live of the new value.
        """
        ...

    async def touch(self, key: str, ttl: float | None) -> bool:
        """Whether there is a value, which lives that long from now on."""
        ...

    async def delete(self, key: str) -> bool:
        """Whether there was a value, which is gone now. Of those who try at the same time, one hears yes."""
        ...


class LogStore(Protocol):
    """Entries in the order in which they were appended, each with an id to read on from.

    A log comes to be with its first entry, and goes by `drop` or at the end of its time to live, for which
    the rules of `RecordStore` hold. If it comes again, none of its ids is one of the old.

    A store bounds each log in the number of entries and in bytes: the oldest go, the newest always stays. It
    may bound all logs together in the same way.

    An id is opaque, of ASCII letters, digits and hyphens. It cannot be compared, only be given back, and what
    is given back may be any string. Reading on from an id is possible as long as no entry behind it has gone.
    """

    async def append(self, log: str, data: bytes, ttl: float | None) -> str:
        """The id of the new entry, the last of the log, which lives that long from now on."""
        ...

    async def read(self, log: str, after: str | None = None) -> list[LogEntry]:
        """What there is behind the entry with this id, or all there is, oldest first.

        Raises:
            LogGap: entries behind this id are gone, or it is no id of this log; also if there is no such log.
        """
        ...

    def tail(
        self, log: str, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[LogEntry]]:
        """What `read` would give, and then each new entry as it comes; for one task, inside `async with`.

        There need not be a log yet. When the log goes, the iteration ends behind its last entry: at once on
        `drop`; some time after the end of its time to live, but no later than at the next `append`, which
        begins a new log. Who waits on a quiet log keeps it with `touch`.

        Cancelling a step of the iteration loses no entry; the next step goes on there.

        Raises:
            LogGap: on entering, as for `read`; or in the iteration and then in each further step, because
                entries have gone before they were read.
        """
        ...

    async def touch(self, log: str, ttl: float | None) -> bool:
        """Whether there is such a log, which lives that long from now on."""
        ...

    async def drop(self, log: str) -> None:
        """Forget the log. A tail that waits for the first entry of one ends as well."""
        ...


class TopicStore(Protocol):
    """Messages to those who listen at this moment, on whichever worker; nothing is kept for later."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Tell all subscribers, and wait for none of them. What one publisher says is heard in its order."""
        ...

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """What is published from entering `async with` on, without an end; for one task.

        A store bounds what waits for one subscriber in number and in bytes; a single message always fits. One
        who is slower is cut off, and what waits is thrown away: to miss a message without a word would be
        worse. Cancelling a step of the iteration loses no message; the next step goes on there.

        Raises:
            TopicGap: in the iteration, and then in each further step: messages were missed.
        """
        ...


class Store(Protocol):
    """The three together, for the tasks of one event loop at a time, in its thread.

    A store is made without a loop, opens what it needs on first use, and runs no task that outlives the call,
    tail or subscription that needed it.
    """

    @property
    def records(self) -> RecordStore:
        """Sessions, leases, keys, counters: what is looked up by name."""
        ...

    @property
    def logs(self) -> LogStore:
        """Event streams: what somebody reads on from where they were."""
        ...

    @property
    def topics(self) -> TopicStore:
        """News and answers: what has to reach whoever waits for it now."""
        ...

    async def close(self) -> None:
        """Let go of connections, when no call, tail or subscription is under way. Closing twice is fine.

        What is stored stays, and the next use opens the store again, in another event loop if need be.
        """
        ...
