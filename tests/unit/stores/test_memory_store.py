"""The store in memory keeps the promise, and keeps nothing else: no loop, no task, no leftovers."""

import asyncio
from typing import Any

import pytest
import store_contract

import leak_check
from toolpost.stores import MemoryStore, Store


class Clock:
    """A time that passes only when a test says so."""

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
    """How many records, logs and topics there really are."""
    return len(store.records._values._items), len(store.logs._logs._items), len(store.topics._subscribers)


def test_what_has_expired_is_swept_as_other_things_are_put_down():
    async def main():
        clock = Clock()
        store = MemoryStore(clock=clock)
        for n in range(10):
            await store.records.put(f"ever {n}", b"", None)
            await store.logs.append(f"ever {n}", b"", None)
        for n in range(1000):
            await store.records.put(f"old {n}", b"", 1)
            await store.logs.append(f"old {n}", b"", 1)
        await clock.later(2)
        for _ in range(600):
            await store.records.touch("ever 0", 60)
            await store.logs.touch("ever 0", 60)
        assert held(store) == (10, 10, 0)

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


def test_a_sweep_tells_the_tails_of_an_expired_log():
    async def main():
        clock = Clock()
        store = MemoryStore(clock=clock)
        await store.logs.append("l", b"", 1)
        async with store.logs.tail("l") as tail:
            await anext(tail)
            waiting = asyncio.ensure_future(anext(tail, None))
            await asyncio.sleep(0)
            await clock.later(2)
            await store.logs.append("another", b"", 1)
            assert await waiting is None

    run(main())


def test_nothing_is_left_of_those_who_listened():
    async def main():
        store = MemoryStore()
        async with store.logs.tail("l"), store.logs.tail("l"), store.topics.subscribe("t"):
            async with store.topics.subscribe("t"):
                pass
            assert held(store) == (0, 1, 1)
        assert held(store) == (0, 0, 0)
        with pytest.raises(KeyError):
            async with store.logs.tail("l"), store.topics.subscribe("t"):
                raise KeyError
        async with store.logs.tail("l"):
            await store.logs.drop("l")
            await store.logs.append("l", b"", 60)
        assert held(store) == (0, 1, 0)
        await store.logs.drop("l")
        await store.records.put("k", b"", None)
        await store.records.swap("k", b"", None, None)
        assert held(store) == (0, 0, 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_subscriber_that_was_cut_off_holds_nothing():
    async def main():
        store: Any = MemoryStore(entries=4)
        async with store.topics.subscribe("t"):
            [subscriber] = store.topics._subscribers["t"]
            waiting: list[int] = []
            for _ in range(6):
                await store.topics.publish("t", b"x")
                waiting.append(len(subscriber._backlog))
            assert waiting == [1, 2, 3, 4, 0, 0]

    run(main())


def test_bytes_are_not_copied():
    async def main():
        store = MemoryStore()
        value = bytes(1000)
        await store.records.put("k", value, None)
        assert await store.records.get("k") is value
        await store.logs.append("l", value, None)
        [entry] = await store.logs.read("l")
        assert entry.data is value

    run(main())


def test_one_loop_after_another():
    """A store is made without a loop, and what one loop wrote the next one reads and waits for."""
    store = MemoryStore()

    async def listen(after):
        async with store.logs.tail("l", after) as tail, store.topics.subscribe("t") as messages:
            both = asyncio.gather(anext(tail), anext(messages))
            await asyncio.sleep(0)
            last = await store.logs.append("l", b"entry", None)
            await store.topics.publish("t", b"message")
            assert await both == [(last, b"entry"), b"message"]
            return last

    last = None
    for _ in range(3):
        last = run(listen(last))
    assert len(run(store.logs.read("l"))) == 3


def test_a_loop_that_died_with_its_listeners_disturbs_nobody():
    store = MemoryStore()

    async def listen():
        async with store.logs.tail("l") as tail, store.topics.subscribe("t") as messages:
            await asyncio.gather(anext(tail), anext(messages))

    async def main():
        await store.logs.append("l", b"1", None)
        await store.topics.publish("t", b"1")
        await store.logs.drop("l")

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it would complain about the tasks that die with it
    abandoned = loop.create_task(listen())
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    leak_check.cut_off.clear()
    run(main())
    assert not abandoned.done()


def test_a_store_in_memory_is_a_store():
    store: Store = MemoryStore()
    run(store.close())
