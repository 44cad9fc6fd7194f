"""Streams that are over: how long they are kept, and how many of them."""

import asyncio
import time

from toolpost.server.http import capacity
from toolpost.server.http.capacity import STREAM_OVERHEAD, FinishedStreams
from toolpost.stores.memory import MemoryStore


async def fill(kept: FinishedStreams, store: MemoryStore, *names: str) -> None:
    for name in names:
        await kept.add(name, 1)
        await store.logs.append(name, b"x", 60.0)


def held(store: MemoryStore, *names: str) -> list[str]:
    async def look() -> list[str]:
        return [name for name in names if await store.logs.read(name)]

    return asyncio.run(look())


def test_what_is_over_stays_for_who_comes_back_to_it():
    store = MemoryStore()
    asyncio.run(fill(FinishedStreams(store.logs), store, "a", "b", "c"))
    assert held(store, "a", "b", "c") == ["a", "b", "c"]


def test_the_oldest_make_room(monkeypatch):
    monkeypatch.setattr(capacity, "MAX_FINISHED_BYTES", 2 * (STREAM_OVERHEAD + 1))
    store = MemoryStore()
    asyncio.run(fill(FinishedStreams(store.logs), store, "a", "b", "c"))
    assert held(store, "a", "b", "c") == ["b", "c"]


def test_nothing_is_known_of_those_whose_time_is_over(monkeypatch):
    """They are gone from the store by then: a server that runs for long would fill up with their names."""
    store = MemoryStore()
    kept = FinishedStreams(store.logs)
    asyncio.run(fill(kept, store, "a", "b"))
    assert list(kept._held) == ["a", "b"]
    later = time.monotonic() + capacity.STREAM_RETENTION + 1
    monkeypatch.setattr(capacity.time, "monotonic", lambda: later)
    asyncio.run(kept.add("c", 1))
    assert list(kept._held) == ["c"]
    assert held(store, "a", "b") == []


def test_who_drops_one_makes_room_at_once(monkeypatch):
    monkeypatch.setattr(capacity, "MAX_FINISHED_BYTES", 2 * (STREAM_OVERHEAD + 1))
    store = MemoryStore()
    kept = FinishedStreams(store.logs)

    async def main() -> None:
        await fill(kept, store, "a", "b")
        await kept.drop("a")
        await kept.drop("a")
        await fill(kept, store, "c")

    asyncio.run(main())
    assert held(store, "a", "b", "c") == ["b", "c"]
