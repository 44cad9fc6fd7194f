"""The store in memory keeps the contract, and holds no loop, no task and no leftovers."""

import asyncio
from typing import Any

import pytest
import store_contract

from toolpost.stores import MemoryStore, Store, memory


class Clock:
    """A clock that advances only when a test sets it."""

    def __init__(self):
        self.now = 1e6

    def __call__(self) -> float:
        return self.now

    async def later(self, seconds: float) -> None:
        self.now += seconds


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@pytest.mark.parametrize("case", store_contract.CASES, ids=lambda case: case.__name__)
def test_memory_keeps_the_promise(case):
    clock = Clock()
    store = MemoryStore(entries=store_contract.ENTRIES, size=store_contract.SIZE, clock=clock)
    run(case(store_contract.Views(store, store, clock.later)))


def held(store: Any) -> tuple[int, int, int]:
    """Return the actual numbers of records, logs and workers."""
    return len(store.records._values._items), len(store.logs._logs._items), len(store._workers)


def test_expired_records_are_removed_on_writes():
    async def main():
        clock = Clock()
        store = MemoryStore(clock=clock)
        for n in range(10):
            await store.records.put(f"ever {n}", b"", None)
            await store.logs.append(f"ever {n}", b"", 10_000)
        for n in range(1000):
            await store.records.put(f"old {n}", b"", 1)
            await store.logs.append(f"old {n}", b"", 1)
        await clock.later(2)
        for n in range(1000):
            await store.records.put(f"new {n}", b"", 60)
            await store.logs.append(f"new {n}", b"", 60)
        assert held(store) == (1010, 1010, 0)

    run(main())


def test_what_has_expired_never_outweighs_what_lives():
    async def main():
        clock = Clock()
        store = MemoryStore(clock=clock)
        most = 0
        for n in range(5000):
            await store.records.put(f"session {n}", b"", 100)
            await clock.later(1)
            most = max(most, held(store)[0])
        assert most <= 2 * 100 + 2

    run(main())


def test_all_records_together_are_bounded_and_the_least_recently_used_go():
    async def main():
        store = MemoryStore(total=100 * (memory.RECORD_OVERHEAD + 10))
        await store.records.put("key", b"k" * 10, None)
        for n in range(100):
            await store.records.put(f"{n}", b"x" * 10, 60)
            await store.records.get("0")
        assert held(store)[0] <= 100
        assert await store.records.get("key") is not None  # what has no end stays
        assert await store.records.get("0") is not None
        assert await store.records.get("1") is None
        assert await store.records.get("99") is not None
        for _ in range(1000):  # replaced and removed values count no more
            await store.records.put("99", b"y" * 10, 60)
            await store.records.swap("98", await store.records.get("98"), b"z", 60)
        assert await store.records.get("50") is not None
        for n in range(100):
            await store.records.delete(f"{n}")
        records: Any = store.records
        assert records._bytes == memory.RECORD_OVERHEAD + 10
        await store.records.put("large", b"l" * 1_000_000, 60)  # the newest is kept, whatever its size
        assert await store.records.get("large") is not None

    run(main())


def test_bytes_are_not_copied():
    async def main():
        store = MemoryStore()
        value = bytes(1000)
        await store.records.put("k", value, None)
        assert await store.records.get("k") is value
        await store.logs.append("l", value, 60)
        [entry] = await store.logs.read("l")
        assert entry.data is value

    run(main())


def test_one_loop_after_another():
    """A store is made without a loop, and what one loop wrote the next one reads."""
    store = MemoryStore()

    async def work() -> None:
        heard: list[bytes] = []
        async with store.join(heard.append) as number:
            await store.logs.append("l", b"entry", 60)
            assert await store.send(number, b"message")
            await asyncio.sleep(0)
            assert heard == [b"message"]

    for _ in range(3):
        run(work())
    assert len(run(store.logs.read("l"))) == 3


def test_a_store_in_memory_is_a_store():
    store: Store = MemoryStore()
    run(store.close())
