"""The tasks in the store: creates, reads and changes their records, each change a compare-and-set.

Knows the keys, the lists of each principal's tasks, and the limits. `record` defines the changes.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from toolpost.errors import InternalError
from toolpost.stores.store import Store
from toolpost.tasks.record import TaskCall, TaskRecord

QUEUE: Final = "tasks"
"""The queue of items to run."""

MAX_TASKS: Final = 10_000
"""Tasks that this process has created and that the store still keeps."""

MAX_TASKS_PER_PRINCIPAL: Final = 1000
"""Tasks of one principal that the store keeps."""

EXPIRY_MARGIN: Final = 1.0
"""Seconds for which a record is kept beyond its ttl, so that none expires early."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORDS: Final = msgspec.msgpack.Decoder(TaskRecord)
_CALLS: Final = msgspec.msgpack.Decoder(TaskCall)
_LISTS: Final = msgspec.msgpack.Decoder(list[tuple[str, int]])


def make_item(task_id: str, number: int) -> str:
    """Return the item of the queue for one round of a task."""
    return f"{task_id}.{number}"


def parse_item(item: str) -> tuple[str, int]:
    """Return the task and the round of an item."""
    task_id, _, number = item.rpartition(".")
    return task_id, int(number)


class TaskTable:
    """The tasks of one server. `clock` returns the time in seconds since 1970."""

    def __init__(self, store: Callable[[], Store], clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._own: deque[tuple[str, int]] = deque()  # the tasks of this process, and when they may expire

    @property
    def store(self) -> Store:
        """The store."""
        return self._store()

    @property
    def now(self) -> int:
        """The time in milliseconds since 1970."""
        return int(self._clock() * 1000)

    async def create(self, task_id: str, record: TaskRecord, call: TaskCall, *, is_listed: bool) -> None:
        """Store a new task. Raises InternalError if there are too many, StoreUnavailable."""
        while self._own and self._own[0][1] <= self.now:
            self._own.popleft()
        if len(self._own) >= MAX_TASKS:
            raise InternalError(f"Internal error: too many tasks: this server keeps {MAX_TASKS}")
        if is_listed:
            await self._add_to_list(record, task_id)
        records, life = self.store.records, self._compute_ttl(record)
        await records.put(f"task/{task_id}/call", _ENCODER.encode(call), life)
        await records.put(f"task/{task_id}", _ENCODER.encode(record), life)
        self._own.append((task_id, record.expires))

    async def get(self, task_id: str) -> TaskRecord | None:
        """Return a task, if there is one."""
        encoded = await self.store.records.get(f"task/{task_id}")
        return None if encoded is None else _RECORDS.decode(encoded)

    async def get_call(self, task_id: str) -> TaskCall | None:
        """Return the call behind a task."""
        encoded = await self.store.records.get(f"task/{task_id}/call")
        return None if encoded is None else _CALLS.decode(encoded)

    async def change(
        self,
        task_id: str,
        change: Callable[[TaskRecord], Any],
        prepare: Callable[[TaskRecord], Awaitable[None]] | None = None,
    ) -> tuple[TaskRecord | None, Any]:
        """Change a task, and return it with what `change` returned; a false value changes nothing.

        `change` may be called several times. `prepare` is awaited before the new record is stored.
        """
        records, key = self.store.records, f"task/{task_id}"
        while True:
            encoded = await records.get(key)
            if encoded is None:
                return None, None
            record = _RECORDS.decode(encoded)
            life = record.ttl
            outcome = change(record)
            if not outcome:
                return record, outcome
            if prepare is not None:
                await prepare(record)
            ttl = self._compute_ttl(record)
            if await records.swap(key, encoded, _ENCODER.encode(record), ttl):
                if record.ttl != life:
                    await records.touch(f"{key}/call", ttl)
                return record, outcome

    def _compute_ttl(self, record: TaskRecord) -> float:
        return max(0.0, (record.expires - self.now) / 1000) + EXPIRY_MARGIN

    # ----------------------------------------------------------------- lists

    async def list_tasks(self, owner: str) -> list[tuple[str, int]]:
        """Return the tasks of an owner with the times of their creation, oldest first."""
        encoded = await self.store.records.get(f"tasks/{owner}")
        return [] if encoded is None else _LISTS.decode(encoded)

    async def _add_to_list(self, record: TaskRecord, task_id: str) -> None:
        records, key = self.store.records, f"tasks/{record.owner}"
        while True:
            encoded = await records.get(key)
            listed = [] if encoded is None else _LISTS.decode(encoded)
            if len(listed) >= MAX_TASKS_PER_PRINCIPAL:
                found = await asyncio.gather(*(records.get(f"task/{each}") for each, _ in listed))
                listed = [each for each, kept in zip(listed, found, strict=True) if kept is not None]
                if len(listed) >= MAX_TASKS_PER_PRINCIPAL:
                    raise InternalError(
                        f"Internal error: too many tasks: a principal has {MAX_TASKS_PER_PRINCIPAL} at most"
                    )
            listed.append((task_id, record.created))
            # As long as any task of the list may live: each later one writes it again.
            ttl = max(self._compute_ttl(record), MAX_LIST_TTL)
            if await records.swap(key, encoded, _ENCODER.encode(listed), ttl):
                return


MAX_LIST_TTL: Final = 31 * 86400.0
"""Seconds for which the list of a principal's tasks is kept after the last one was added."""


def make_token() -> str:
    """Return the name of a run."""
    return secrets.token_hex(8)
