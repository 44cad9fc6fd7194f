"""The contract of `toolpost.stores.store` as a table of cases for every store.

A case is a coroutine function that is handed two workers' views of the same, still empty store, and a way to
let time pass. The test file of a store makes these `Views` and runs each of `CASES`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf, nan

import pytest

from toolpost.stores import LogEntry, LogGap, Store
from waiting import until

__all__ = ["CASES", "ENTRIES", "SIZE", "Case", "Views"]

ENTRIES = 4
"""How many entries a log of the store under test keeps."""

SIZE = 100
"""The same in bytes."""

SHORT = 2.0
"""Seconds after which a record or log is to be gone. Not less: all writes of a case come within that time."""

LONG = 60.0
"""Seconds that no case waits for."""


@dataclass
class Views:
    """A store as two workers see it; for a store in one process, twice the same.

    Args:
        here: the view of one worker.
        there: the view of the other.
        later: returns after this many seconds of the store's time.
    """

    here: Store
    there: Store
    later: Callable[[float], Awaitable[None]]


Case = Callable[[Views], Awaitable[None]]

CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


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
async def records_and_logs_do_not_share_names(views: Views) -> None:
    await views.here.records.put("k", b"record", 60)
    await views.here.logs.append("k", b"entry", 60)
    assert await views.there.records.get("k") == b"record"
    assert data(await views.there.logs.read("k")) == [b"entry"]
    assert await views.here.records.delete("k")
    assert data(await views.there.logs.read("k")) == [b"entry"]


@case
async def a_record_goes_when_its_time_is_over(views: Views) -> None:
    records = views.here.records
    await records.put("short", b"1", SHORT)
    await records.put("long", b"1", LONG)
    await records.put("ever", b"1", None)
    await views.later(SHORT + 0.5)
    assert [await records.get(key) for key in ("short", "long", "ever")] == [None, b"1", b"1"]


@case
async def an_expired_record_is_not_there_for_any_call(views: Views) -> None:
    records = views.here.records
    for key in ("touch", "delete", "old", "none"):
        await records.put(key, b"1", SHORT)
    await views.later(SHORT + 0.5)
    assert not await records.touch("touch", 10)
    assert not await records.delete("delete")
    assert not await records.swap("old", b"1", b"2", 10)
    assert await records.swap("none", None, b"2", 10)
    assert [await records.get(key) for key in ("touch", "delete", "old", "none")] == [None, None, None, b"2"]


@case
async def each_write_resets_the_time_to_live(views: Views) -> None:
    records = views.here.records
    for key in ("put", "swap", "touch", "shorter"):
        await records.put(key, b"1", LONG if key == "shorter" else SHORT)
    await records.put("endless", b"1", None)
    await records.put("put", b"1", LONG)
    assert await records.swap("swap", b"1", b"1", LONG)
    assert await records.touch("touch", None)
    assert await records.touch("shorter", SHORT)
    await records.put("endless", b"1", SHORT)
    await views.later(SHORT + 0.5)
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
    await views.here.records.put("k", b"1", SHORT)
    assert not await views.here.records.swap("k", b"0", b"2", LONG)
    await views.later(SHORT + 0.5)
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
    with pytest.raises(LogGap):
        await here.logs.read("new")


# --------------------------------------------------------------------- logs


@case
async def a_log_is_read_in_order_and_on_from_each_entry(views: Views) -> None:
    numbers = [await views.here.logs.append("l", b"%d" % number, 60) for number in range(3)]
    assert numbers == [1, 2, 3]
    for after in range(4):
        assert data(await views.there.logs.read("l", after)) == [b"0", b"1", b"2"][after:]
    assert [entry.number for entry in await views.there.logs.read("l")] == [1, 2, 3]


@case
async def a_writer_may_number_its_entries(views: Views) -> None:
    for number in (1, 2, 3):
        assert await views.here.logs.append("l", b"x", 60, number=number) == number
    assert await views.there.logs.append("l", b"y", 60) == 4


@case
async def a_number_is_written_once(views: Views) -> None:
    await views.here.logs.append("l", b"1", 60, number=1)
    assert await views.there.logs.append("l", b"end", 60) == 2
    for number, late in ((1, b"x"), (2, b"y"), (3, b"3")):
        assert await views.here.logs.append("l", late, 60, number=number) == number
    assert data(await views.there.logs.read("l")) == [b"1", b"end", b"3"]


@case
async def of_too_many_entries_the_oldest_go(views: Views) -> None:
    for number in range(ENTRIES + 2):
        await views.here.logs.append("l", b"%d" % number, 60)
    assert data(await views.there.logs.read("l", 2)) == [b"%d" % n for n in range(2, ENTRIES + 2)]
    for gone in (0, 1):
        with pytest.raises(LogGap):
            await views.there.logs.read("l", gone)


@case
async def of_too_many_bytes_the_oldest_go(views: Views) -> None:
    for _ in range(3):
        await views.here.logs.append("l", b"x" * (SIZE // 2), 60)
    assert [entry.number for entry in await views.there.logs.read("l", 1)] == [2, 3]


@case
async def the_newest_entry_stays_however_large(views: Views) -> None:
    await views.here.logs.append("l", b"small", 60)
    await views.here.logs.append("l", b"x" * 10 * SIZE, 60)
    assert data(await views.there.logs.read("l", 1)) == [b"x" * 10 * SIZE]


@case
async def a_number_that_never_was_is_a_gap(views: Views) -> None:
    await views.here.logs.append("l", b"1", 60)
    assert await views.there.logs.read("l", 1) == []
    for after in (-1, 2, 10**30):
        with pytest.raises(LogGap):
            await views.there.logs.read("l", after)
    with pytest.raises(LogGap):
        await views.there.logs.read("none")


@case
async def a_gap_names_the_entries_that_are_kept(views: Views) -> None:
    for _ in range(ENTRIES + 3):
        await views.here.logs.append("l", b"1", 60)
    with pytest.raises(LogGap) as gap:
        await views.there.logs.read("l", 1)
    assert gap.value.kept_after == 3
    assert len(await views.there.logs.read("l", 3)) == ENTRIES
    with pytest.raises(LogGap) as gap:
        await views.there.logs.read("l", ENTRIES + 4)
    assert gap.value.kept_after is None


@case
async def each_entry_and_touch_sets_the_time_to_live_of_the_log(views: Views) -> None:
    logs = views.here.logs
    for log in ("append", "touch", "neither"):
        await logs.append(log, b"1", SHORT)
    await logs.append("append", b"2", LONG)
    assert await logs.touch("touch", LONG)
    assert not await logs.touch("none", LONG)
    await views.later(SHORT + 0.5)
    assert data(await logs.read("append")) == [b"1", b"2"]
    assert data(await logs.read("touch")) == [b"1"]
    with pytest.raises(LogGap):
        await logs.read("neither")


@case
async def a_log_that_was_dropped_begins_again(views: Views) -> None:
    await views.here.logs.append("l", b"1", 60)
    await views.there.logs.drop("l")
    await views.there.logs.drop("l")
    with pytest.raises(LogGap):
        await views.here.logs.read("l")
    assert await views.here.logs.append("l", b"2", 60) == 1


@case
async def many_writers_lose_no_entry(views: Views) -> None:
    both = (views.here.logs, views.there.logs)
    await asyncio.gather(*(both[n % 2].append("l", b"%d" % n, 60) for n in range(ENTRIES)))
    assert sorted(data(await views.here.logs.read("l"))) == [b"%d" % n for n in range(ENTRIES)]


# --------------------------------------------------------------------- workers


@case
async def a_message_reaches_the_worker_that_it_names_in_order(views: Views) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    async with views.here.join(first.append) as one, views.there.join(second.append) as other:
        assert one != other
        assert 0 < one < 2**20 > other > 0
        for number in range(5):
            assert await views.here.send(other, b"%d" % number)
        assert await views.there.send(one, b"back")
        await until(lambda: len(second) == 5 and len(first) == 1)
        assert second == [b"0", b"1", b"2", b"3", b"4"]


@case
async def what_is_published_reaches_all_workers(views: Views) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    async with views.here.join(first.append), views.there.join(second.append):
        await views.here.publish(b"1")
        await views.here.publish(b"2")
        await until(lambda: first == second == [b"1", b"2"])


@case
async def a_worker_that_has_left_gets_nothing(views: Views) -> None:
    heard: list[bytes] = []
    async with views.here.join(heard.append) as number:
        pass
    assert not await views.there.send(number, b"late")
    await views.there.publish(b"late")
    async with views.here.join(heard.append) as again:
        assert again != number
    assert heard == []


@case
async def a_worker_that_was_removed_counts_as_dead(views: Views) -> None:
    heard: list[bytes] = []
    async with views.here.join(heard.append) as number, views.there.join(heard.append) as other:
        assert await views.there.send(number, b"1")
        await views.there.remove(number)
        await views.there.remove(number)
        assert not await views.there.send(number, b"2")
        assert await views.there.send(other, b"3")
        await until(lambda: heard[-1:] == [b"3"])
        assert b"2" not in heard


# --------------------------------------------------------------------- the end


@case
async def a_store_that_was_closed_opens_again(views: Views) -> None:
    await views.here.records.put("k", b"1", 60)
    await views.here.close()
    await views.here.close()
    assert await views.here.records.get("k") == b"1"


# --------------------------------------------------------------------- queues


@case
async def an_item_is_given_to_one_worker_in_the_order_of_arrival(views: Views) -> None:
    here, there = views.here.queues, views.there.queues
    for item in ("b", "a"):
        await here.put("work", item)
        await views.later(0.01)
    assert await there.take("other", 9, LONG) == []
    assert await there.take("work", 1, LONG) == ["b"]
    assert await here.take("work", 9, LONG) == ["a"]
    assert await there.take("work", 9, LONG) == []


@case
async def an_item_is_ready_again_when_its_lease_is_over(views: Views) -> None:
    here, there = views.here.queues, views.there.queues
    await here.put("work", "lost")
    await here.put("work", "kept", SHORT)
    assert await here.take("work", 9, SHORT) == ["lost"]
    await here.renew("work", ["kept", "removed"], LONG)
    await views.later(SHORT)
    assert await there.take("work", 9, LONG) == ["lost"]


@case
async def a_removed_item_is_gone_and_a_second_put_moves_an_item(views: Views) -> None:
    here, there = views.here.queues, views.there.queues
    await here.put("work", "a")
    await there.remove("work", "a")
    await there.remove("work", "none")
    assert await here.take("work", 9, LONG) == []
    await here.put("work", "b", LONG)
    assert await there.take("work", 9, LONG) == []
    await there.put("work", "b")
    assert await here.take("work", 9, LONG) == ["b"]
