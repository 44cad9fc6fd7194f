"""The promise of `toolpost.stores.store` as a table of cases, for every store to be put through.

A case is a coroutine function that is handed two workers' views of the same, still empty store, and a way to
let time pass. The test file of a store makes these `Views` and runs each of `CASES`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf, nan
from typing import TypeVar

import pytest

from toolpost.stores import LogEntry, LogGap, Store, TopicGap

__all__ = ["CASES", "ENTRIES", "SIZE", "Case", "Views"]

T = TypeVar("T")

ENTRIES = 4
"""How many entries a log of the store under test keeps, and how many messages wait for a subscriber."""

SIZE = 100
"""The same in bytes."""


@dataclass
class Views:
    """A store as two workers see it; for a store in one process, twice the same.

    Args:
        here: one worker's.
        there: the other's.
        later: returns after so many seconds of the store's time.
    """

    here: Store
    there: Store
    later: Callable[[float], Awaitable[None]]


Case = Callable[[Views], Awaitable[None]]

CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


async def waits(iterator: AsyncIterator[T]) -> asyncio.Task[T]:
    """The next step of an iteration, which has begun to wait for what is not there yet."""

    async def step() -> T:
        return await anext(iterator)

    task = asyncio.create_task(step())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def take(iterator: AsyncIterator[T], count: int) -> list[T]:
    return [await anext(iterator) for _ in range(count)]


async def ends(iterator: AsyncIterator[object]) -> bool:
    return [each async for each in iterator] == []


def data(entries: list[LogEntry]) -> list[bytes]:
    return [entry.data for entry in entries]


# --------------------------------------------------------------------- records


@case
async def a_record_is_what_was_put_last(views: Views) -> None:
    assert await views.there.records.get("k") is None
    for value in (b"one", b"", bytes(range(256)), b"x" * 10 * SIZE):
        await views.here.records.put("k", value, 60)
        assert await views.there.records.get("k") == value
    assert await views.there.records.get("K") is None


@case
async def names_are_any_strings(views: Views) -> None:
    names = ["", " ", "a", "a:b", "a:b:", "a\n", "a\0", "ä", "\N{SNOWMAN}", "*", "x" * 10_000]
    for name in names:
        await views.here.records.put(name, name.encode(), 60)
        await views.here.logs.append(name, name.encode(), 60)
    for name in names:
        assert await views.there.records.get(name) == name.encode()
        assert data(await views.there.logs.read(name)) == [name.encode()]


@case
async def records_logs_and_topics_do_not_share_names(views: Views) -> None:
    async with views.here.topics.subscribe("k") as messages:
        await views.here.records.put("k", b"record", 60)
        await views.here.logs.append("k", b"entry", 60)
        await views.here.topics.publish("k", b"message")
        assert await views.there.records.get("k") == b"record"
        assert data(await views.there.logs.read("k")) == [b"entry"]
        assert await anext(messages) == b"message"
        assert await views.here.records.delete("k")
        assert data(await views.there.logs.read("k")) == [b"entry"]


@case
async def a_record_goes_when_its_time_is_over(views: Views) -> None:
    records = views.here.records
    await records.put("short", b"1", 1)
    await records.put("long", b"1", 10)
    await records.put("ever", b"1", None)
    await views.later(2)
    assert [await records.get(key) for key in ("short", "long", "ever")] == [None, b"1", b"1"]
    await views.later(10)
    assert [await records.get(key) for key in ("short", "long", "ever")] == [None, None, b"1"]


@case
async def an_expired_record_is_not_there_for_any_call(views: Views) -> None:
    records = views.here.records
    for key in ("touch", "delete", "old", "none"):
        await records.put(key, b"1", 1)
    await views.later(2)
    assert not await records.touch("touch", 10)
    assert not await records.delete("delete")
    assert not await records.swap("old", b"1", b"2", 10)
    assert await records.swap("none", None, b"2", 10)
    assert [await records.get(key) for key in ("touch", "delete", "old", "none")] == [None, None, None, b"2"]


@case
async def each_write_sets_the_time_to_live_anew(views: Views) -> None:
    records = views.here.records
    for key in ("put", "swap", "touch", "shorter"):
        await records.put(key, b"1", 5)
    await records.put("endless", b"1", None)
    await records.put("put", b"1", 20)
    assert await records.swap("swap", b"1", b"1", 20)
    assert await records.touch("touch", None)
    assert await records.touch("shorter", 1)
    await records.put("endless", b"1", 5)
    await views.later(7)
    assert await records.get("put") == await records.get("swap") == await records.get("touch") == b"1"
    assert await records.get("shorter") is await records.get("endless") is None


@case
async def a_swap_needs_the_old_value(views: Views) -> None:
    records = views.here.records
    assert not await records.swap("k", b"1", b"2", 60)
    assert not await records.swap("k", b"", b"2", 60)
    assert await records.swap("k", None, b"1", 60)
    assert not await records.swap("k", None, b"2", 60)
    assert not await records.swap("k", b"0", b"2", 60)
    assert await views.there.records.get("k") == b"1"
    assert await records.swap("k", b"1", b"", 60)
    assert not await records.swap("k", None, b"2", 60)
    assert await records.swap("k", b"", b"2", 60)
    assert await views.there.records.get("k") == b"2"


@case
async def a_swap_for_nothing_deletes(views: Views) -> None:
    records = views.here.records
    await records.put("k", b"mine", 60)
    assert not await records.swap("k", b"yours", None, None)
    assert await records.get("k") == b"mine"
    assert await records.swap("k", b"mine", None, None)
    assert await records.get("k") is None
    assert await records.swap("k", None, None, None)
    assert await records.get("k") is None


@case
async def a_swap_that_fails_leaves_the_time_to_live(views: Views) -> None:
    await views.here.records.put("k", b"1", 5)
    assert not await views.here.records.swap("k", b"0", b"2", 60)
    await views.later(7)
    assert await views.here.records.get("k") is None


@case
async def of_many_swaps_one_succeeds(views: Views) -> None:
    both = (views.here.records, views.there.records)
    won = await asyncio.gather(*(both[n % 2].swap("lease", None, b"%d" % n, 60) for n in range(20)))
    assert sum(won) == 1
    assert await views.here.records.get("lease") == b"%d" % won.index(True)


@case
async def no_count_is_lost_between_swaps(views: Views) -> None:
    async def count(store: Store) -> None:
        while True:
            old = await store.records.get("count")
            await asyncio.sleep(0)
            if await store.records.swap("count", old, b"%d" % (int(old or 0) + 1), 60):
                return

    await asyncio.gather(*(count(view) for view in (views.here, views.there) * 10))
    assert await views.here.records.get("count") == b"20"


@case
async def of_many_deletes_one_hears_yes(views: Views) -> None:
    assert not await views.here.records.delete("once")
    await views.here.records.put("once", b"", 60)
    both = (views.here.records, views.there.records)
    assert sum(await asyncio.gather(*(both[n % 2].delete("once") for n in range(20)))) == 1
    assert await views.here.records.get("once") is None


@case
async def touch_says_whether_there_is_a_record(views: Views) -> None:
    assert not await views.here.records.touch("k", 60)
    assert await views.here.records.get("k") is None
    await views.here.records.put("k", b"", 60)
    assert await views.there.records.touch("k", 60)
    assert await views.here.records.get("k") == b""


@case
async def a_time_to_live_is_more_than_nothing_and_finite(views: Views) -> None:
    here = views.here
    await here.records.put("k", b"1", 60)
    await here.logs.append("l", b"1", 60)
    for ttl in (0, -1, inf, -inf, nan):
        for call in (
            here.records.put("k", b"2", ttl),
            here.records.swap("k", b"1", b"2", ttl),
            here.records.touch("k", ttl),
            here.logs.append("l", b"2", ttl),
            here.logs.append("new", b"2", ttl),
            here.logs.touch("l", ttl),
        ):
            with pytest.raises(ValueError, match="ttl"):
                await call
    assert await here.records.get("k") == b"1"
    assert data(await here.logs.read("l")) == [b"1"]
    assert await here.logs.read("new") == []


# --------------------------------------------------------------------- logs


@case
async def a_log_is_read_in_order_and_on_from_each_entry(views: Views) -> None:
    assert await views.there.logs.read("l") == []
    written = [b"one", b"", b"\0\n", b"four"]
    ids = [await views.here.logs.append("l", each, 60) for each in written]
    entries = [LogEntry(*each) for each in zip(ids, written, strict=True)]
    assert await views.there.logs.read("l") == entries
    for number, each in enumerate(ids, 1):
        assert await views.there.logs.read("l", each) == entries[number:]


@case
async def ids_are_unique_and_fit_into_a_header(views: Views) -> None:
    ids = [await views.here.logs.append(log, b"", 60) for log in "abab" * 10]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[0-9A-Za-z-]{1,64}", each) for each in ids)


@case
async def of_too_many_entries_the_oldest_go(views: Views) -> None:
    ids = [await views.here.logs.append("l", b"%d" % n, 60) for n in range(ENTRIES + 3)]
    kept = [b"%d" % n for n in range(3, ENTRIES + 3)]
    assert data(await views.there.logs.read("l")) == kept
    for gone in ids[:2]:
        with pytest.raises(LogGap):
            await views.there.logs.read("l", gone)
        with pytest.raises(LogGap):
            async with views.there.logs.tail("l", gone):
                pytest.fail("it is to be told on entering, before an answer has begun")
    # This one has gone too, but nothing that came behind it.
    assert data(await views.there.logs.read("l", ids[2])) == kept
    assert data(await views.there.logs.read("l", ids[3])) == kept[1:]


@case
async def of_too_many_bytes_the_oldest_go(views: Views) -> None:
    half = bytes(SIZE // 2)
    ids = [await views.here.logs.append("l", each, 60) for each in (b"a", b"b", half, half)]
    assert data(await views.there.logs.read("l")) == [half, half]
    with pytest.raises(LogGap):
        await views.there.logs.read("l", ids[0])
    assert data(await views.there.logs.read("l", ids[1])) == [half, half]


@case
async def the_newest_entry_stays_however_large(views: Views) -> None:
    last = await views.here.logs.append("l", b"a", 60)
    large = bytes(10 * SIZE)
    await views.here.logs.append("l", large, 60)
    assert data(await views.there.logs.read("l", last)) == [large]
    await views.here.logs.append("l", b"b", 60)
    assert data(await views.there.logs.read("l")) == [b"b"]


@case
async def an_id_of_something_else_is_a_gap(views: Views) -> None:
    here = views.here.logs
    own = await here.append("l", b"", 60)
    other = await here.append("other", b"", 60)
    strange = [other, "", "-", "0", "1", "999", own + "0", own + "x", own[:-1], f" {own}", f"{own}\n"]
    strange += [
        own.rpartition("-")[0] + suffix for suffix in ("-", "--1", "-x", "-1.0", "-²", "-" + "9" * 100_000)
    ]
    strange += ["\ud800", "ä" * 1000, "$", "+", "0-0", "-".join("9" * 10_000)]
    for each in strange:
        with pytest.raises(LogGap) as caught:
            await here.read("l", each)
        assert len(str(caught.value)) < 200
        with pytest.raises(LogGap):
            async with here.tail("l", each):
                pass
    assert await here.read("l", own) == []


@case
async def there_is_no_id_in_a_log_that_is_not_there(views: Views) -> None:
    other = await views.here.logs.append("other", b"", 60)
    with pytest.raises(LogGap):
        await views.here.logs.read("l", other)
    with pytest.raises(LogGap):
        async with views.here.logs.tail("l", other):
            pass
    assert await views.here.logs.read("l") == []


@case
async def a_log_that_comes_again_does_not_know_the_old_ids(views: Views) -> None:
    logs = views.here.logs
    dropped = await logs.append("dropped", b"old", 60)
    expired = await logs.append("expired", b"old", 1)
    await logs.drop("dropped")
    await views.later(2)
    for log, old in (("dropped", dropped), ("expired", expired)):
        assert await logs.read(log) == []
        with pytest.raises(LogGap):
            await logs.read(log, old)
        new = await logs.append(log, b"new", 60)
        assert new != old
        assert data(await views.there.logs.read(log)) == [b"new"]
        with pytest.raises(LogGap):
            await views.there.logs.read(log, old)


@case
async def each_entry_and_touch_sets_the_time_to_live_of_the_log(views: Views) -> None:
    logs = views.here.logs
    for log in ("append", "touch", "ever", "shorter"):
        await logs.append(log, b"1", 5)
    await views.later(3)
    await logs.append("append", b"2", 5)
    assert await logs.touch("touch", 5)
    assert await logs.touch("ever", None)
    await logs.append("shorter", b"2", 1)
    await views.later(3)
    assert data(await logs.read("append")) == [b"1", b"2"]
    assert data(await logs.read("touch")) == [b"1"]
    assert await logs.read("shorter") == []
    await views.later(60)
    assert await logs.read("append") == await logs.read("touch") == []
    assert not await logs.touch("touch", 5)
    assert data(await logs.read("ever")) == [b"1"]


@case
async def a_tail_gives_what_is_there_and_then_what_comes(views: Views) -> None:
    first = await views.here.logs.append("l", b"1", 60)
    await views.here.logs.append("l", b"2", 60)
    async with AsyncExitStack() as stack:
        tails = [
            await stack.enter_async_context(views.there.logs.tail("l")),
            await stack.enter_async_context(views.there.logs.tail("l", first)),
        ]
        assert data(await take(tails[0], 2)) == [b"1", b"2"]
        assert data(await take(tails[1], 1)) == [b"2"]
        steps = [await waits(tail) for tail in tails]
        await views.here.logs.append("other", b"not for us", 60)
        third = await views.here.logs.append("l", b"3", 60)
        assert [await step for step in steps] == [LogEntry(third, b"3")] * 2
        for n in range(ENTRIES - 1):
            await views.here.logs.append("l", b"%d" % n, 60)
        assert data(await take(tails[0], ENTRIES - 1)) == [b"%d" % n for n in range(ENTRIES - 1)]


@case
async def a_tail_may_wait_for_the_first_entry(views: Views) -> None:
    async with views.there.logs.tail("l") as tail:
        step = await waits(tail)
        assert not await views.here.logs.touch("l", 1)
        assert await views.here.logs.read("l") == []
        await views.later(2)
        entry = LogEntry(await views.here.logs.append("l", b"1", 60), b"1")
        assert await step == entry
    assert await views.here.logs.read("l") == [entry]


@case
async def a_step_that_is_cancelled_loses_nothing(views: Views) -> None:
    async with views.there.logs.tail("l") as tail, views.there.topics.subscribe("t") as messages:
        for n in range(3):
            for iterator in (tail, messages):
                step = await waits(iterator)
                step.cancel()
                await asyncio.wait([step])
                assert step.cancelled()
            await views.here.logs.append("l", b"%d" % n, 60)
            await views.here.topics.publish("t", b"%d" % n)
            assert (await anext(tail)).data == await anext(messages) == b"%d" % n


@case
async def a_tail_that_is_too_slow_hears_of_it(views: Views) -> None:
    await views.here.logs.append("l", b"read", 60)
    async with views.there.logs.tail("l") as tail:
        await anext(tail)
        for n in range(ENTRIES + 1):
            await views.here.logs.append("l", b"%d" % n, 60)
        for _ in range(2):
            with pytest.raises(LogGap):
                await anext(tail)


@case
async def a_tail_that_has_read_everything_misses_nothing_by_a_large_entry(views: Views) -> None:
    async with views.there.logs.tail("l") as tail:
        for size in (1, 10 * SIZE, 1, 10 * SIZE):
            await views.here.logs.append("l", bytes(size), 60)
            assert len((await anext(tail)).data) == size


@case
async def a_drop_ends_the_tails_behind_the_last_entry(views: Views) -> None:
    logs = views.here.logs
    await logs.append("l", b"1", 60)
    async with (
        views.there.logs.tail("l") as waiting,
        views.there.logs.tail("l") as behind,
        views.there.logs.tail("empty") as empty,
    ):
        await anext(waiting)
        await anext(behind)
        steps = [await waits(waiting), await waits(empty)]
        await logs.append("l", b"2", 60)
        await logs.drop("l")
        await logs.drop("empty")
        await logs.append("l", b"of another log", 60)
        assert (await steps[0]).data == b"2"
        await asyncio.wait(steps)
        assert isinstance(steps[1].exception(), StopAsyncIteration)
        assert await ends(waiting)
        assert data([entry async for entry in behind]) == [b"2"]
        assert await ends(empty)
    await logs.drop("l")
    await logs.drop("l")
    assert await logs.read("l") == []


@case
async def a_tail_of_an_expired_log_ends_with_the_next_append_at_the_latest(views: Views) -> None:
    await views.here.logs.append("l", b"1", 1)
    async with views.there.logs.tail("l") as tail:
        await anext(tail)
        await views.later(2)
        await views.here.logs.append("l", b"of another log", 60)
        assert await ends(tail)
        async with views.there.logs.tail("l") as again:
            assert (await anext(again)).data == b"of another log"


@case
async def a_tail_may_be_left_while_others_go_on(views: Views) -> None:
    async with views.there.logs.tail("l") as tail:
        async with views.there.logs.tail("l"), views.here.logs.tail("l"):
            pass
        step = await waits(tail)
        await views.here.logs.append("l", b"1", 60)
        assert (await step).data == b"1"


@case
async def many_writers_lose_no_entry(views: Views) -> None:
    async def write(store: Store, writer: int) -> None:
        for n in range(5):
            await store.logs.append("l", b"%d %d" % (writer, n), 60)
            await read.wait()

    read = asyncio.Barrier(ENTRIES + 1)
    async with views.there.logs.tail("l") as tail, asyncio.TaskGroup() as writers:
        for writer in range(ENTRIES):
            writers.create_task(write((views.here, views.there)[writer % 2], writer))
        for n in range(5):
            assert sorted(data(await take(tail, ENTRIES))) == [b"%d %d" % (w, n) for w in range(ENTRIES)]
            await read.wait()


# --------------------------------------------------------------------- topics


@case
async def those_who_listen_hear_everything_in_order(views: Views) -> None:
    await views.here.topics.publish("t", b"too early")
    async with (
        views.here.topics.subscribe("t") as here,
        views.there.topics.subscribe("t") as there,
        views.there.topics.subscribe("T") as other,
    ):
        step = await waits(there)
        told = [b"1", b"", b"\0\n", b"4"]
        for message in told:
            await views.here.topics.publish("t", message)
        await views.here.topics.publish("T", b"other")
        assert [await step, *(await take(there, 3))] == told
        assert await take(here, 4) == told
        async for message in other:
            assert message == b"other"
            break
        (await waits(other)).cancel()
    await views.here.topics.publish("t", b"too late")
    async with views.there.topics.subscribe("t") as again:
        step = await waits(again)
        await views.here.topics.publish("t", b"now")
        assert await step == b"now"


@case
async def a_slow_subscriber_is_cut_off_and_holds_up_nobody(views: Views) -> None:
    async with views.there.topics.subscribe("t") as slow, views.there.topics.subscribe("t") as quick:
        for n in range(3 * ENTRIES):
            await views.here.topics.publish("t", b"%d" % n)
            assert await anext(quick) == b"%d" % n
        for _ in range(2):
            with pytest.raises(TopicGap):
                await anext(slow)
        await views.here.topics.publish("t", b"more")
        assert await anext(quick) == b"more"
        with pytest.raises(TopicGap):
            await anext(slow)


@case
async def as_many_messages_as_are_promised_wait_for_a_subscriber(views: Views) -> None:
    async with views.there.topics.subscribe("t") as messages:
        for _ in range(3):
            for n in range(ENTRIES):
                await views.here.topics.publish("t", b"%d" % n)
            assert await take(messages, ENTRIES) == [b"%d" % n for n in range(ENTRIES)]


@case
async def waiting_messages_are_bounded_in_bytes(views: Views) -> None:
    half = bytes(SIZE // 2)
    async with views.there.topics.subscribe("t") as messages:
        for _ in range(3):
            await views.here.topics.publish("t", half)
            await views.here.topics.publish("t", half)
            assert await take(messages, 2) == [half, half]
        for message in (half, half, b"x"):
            await views.here.topics.publish("t", message)
        with pytest.raises(TopicGap):
            await anext(messages)


@case
async def a_single_message_fits_however_large(views: Views) -> None:
    large = bytes(10 * SIZE)
    async with views.there.topics.subscribe("t") as messages:
        for _ in range(2):
            await views.here.topics.publish("t", large)
            assert await anext(messages) == large
        await views.here.topics.publish("t", large)
        await views.here.topics.publish("t", b"")
        with pytest.raises(TopicGap):
            await anext(messages)


# --------------------------------------------------------------------- the store


@case
async def a_store_that_was_closed_opens_again(views: Views) -> None:
    await views.here.records.put("k", b"1", 60)
    for _ in range(2):
        await views.here.close()
    assert await views.here.records.get("k") == b"1"
