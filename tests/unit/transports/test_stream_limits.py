"""Stored streams and their readers: one reader each, and a limit on the data."""

import asyncio
from typing import Any

import pytest

from hosted import Stage, call, hosted, kitchen, legacy, message, run
from toolpost.server.http import security
from toolpost.server.http.exchange import HTTPRefusal
from toolpost.server.http.security import RequestGuard
from toolpost.server.options import HttpOptions
from toolpost.stores import memory
from toolpost.stores.memory import MemoryStore
from toolpost.stores.store import LogGap
from waiting import until

# --------------------------------------------------------------------- readers


def resumed(session: str, last: str) -> dict[str, str]:
    return {"Accept": "text/event-stream", "Mcp-Session-Id": session, "Last-Event-ID": last}


def test_a_stream_that_is_resumed_has_one_reader_the_last_that_came():
    async def main():
        stage = Stage()
        async with hosted(kitchen(stage)) as site:
            session = await site.open()
            asked = message("tools/call", {**call("noisy"), "_meta": {"progressToken": 1}}, 1)
            wire, _ = await site.begin("POST", legacy(session), asked)
            last = (await wire.event()).id
            await stage.begun.wait()
            await wire.abort()
            readers: list[Any] = []
            for _ in range(5):
                reader, head = await site.begin("GET", resumed(session, last))
                assert head.status == 200
                readers.append(reader)
                await until(lambda: len(site.app._worker.listening) == 1)
            for old in readers[:-1]:
                assert not [event for event in await old.events() if event.data and "result" in event.json]
            stage.go.set()
            told = [event.json for event in await readers[-1].events() if event.data]
            assert told[-1]["result"]["content"][0]["text"] == "said"
            await until(lambda: not site.app._worker.readers)

    run(main)


def test_concurrent_resumes_leave_one_reader():
    async def main():
        stage = Stage()
        async with hosted(kitchen(stage)) as site:
            session = await site.open()
            asked = message("tools/call", {**call("noisy"), "_meta": {"progressToken": 1}}, 1)
            wire, _ = await site.begin("POST", legacy(session), asked)
            last = (await wire.event()).id
            await wire.abort()
            await asyncio.gather(*(site.begin("GET", resumed(session, last)) for _ in range(20)))
            await until(lambda: len(site.app._worker.listening) == 1)
            stage.go.set()

    run(main)


# --------------------------------------------------------------------- logs


def entries(found: Any) -> list[bytes]:
    return [entry.data for entry in found]


def total(store: MemoryStore) -> int:
    logs: Any = store.logs
    assert logs._total_bytes == sum(len(entry) for log in logs._logs for entry in log.entries)
    return logs._total_bytes


def test_all_logs_together_are_bounded_and_the_largest_loses_its_oldest():
    async def main():
        store = MemoryStore(total=1000)
        for number in range(9):
            await store.logs.append("large", b"%d" % number * 100, 60)
        await store.logs.append("small", b"s" * 50, 60)
        await store.logs.append("small", b"t" * 50, 60)
        assert total(store) == 1000
        await store.logs.append("small", b"u", 60)
        assert total(store) <= 1000
        assert entries(await store.logs.read("small")) == [b"s" * 50, b"t" * 50, b"u"]
        with pytest.raises(LogGap):  # a reader learns that something is missing
            await store.logs.read("large")
        assert entries(await store.logs.read("large", 8)) == [b"8" * 100]
        await store.logs.append("large", b"news", 60)
        assert entries(await store.logs.read("large", 9)) == [b"news"]

    asyncio.run(main())


def test_what_goes_is_counted_no_more():
    now = [0.0]

    async def main():
        store = MemoryStore(clock=lambda: now[0])
        for name in "abc":
            await store.logs.append(name, b"x" * 10, 60)
        await store.logs.drop("a")
        assert total(store) == 20
        now[0] += 61
        with pytest.raises(LogGap):
            await store.logs.read("b")
        assert total(store) == 10
        await store.logs.append("c", b"y", 60)
        assert total(store) == 1

    asyncio.run(main())


def test_last_entries_stay_and_cost_no_look_at_all_logs_each_time(monkeypatch):
    looks: list[int] = []
    make_room = memory._MemoryLogs._trim_largest

    def counted(logs: Any) -> None:
        looks.append(1)
        make_room(logs)

    monkeypatch.setattr(memory._MemoryLogs, "_trim_largest", counted)

    async def main():
        store = MemoryStore(total=1000)
        for number in range(1000):
            await store.logs.append(f"log {number}", b"x" * 10, 60)
        assert total(store) == 10_000  # each has one, the newest, which stays
        assert len(looks) < 100
        for number in range(990):
            await store.logs.drop(f"log {number}")
        for number in range(200):
            await store.logs.append("another", b"%d" % number * 3, 60)
        assert total(store) <= 1000 + 125  # the bound counts again

    asyncio.run(main())


# --------------------------------------------------------------------- what a gate remembers


class _Request:
    def __init__(self, host: str, origin: str | None = None) -> None:
        self.raw_headers = {b"host": host.encode()}
        if origin is not None:
            self.raw_headers[b"origin"] = origin.encode()
        self.extra: list[Any] = []


def test_the_caches_of_the_request_guard_are_bounded(monkeypatch, caplog):
    monkeypatch.setattr(security, "MAX_CACHED_ORIGINS", 3)
    monkeypatch.setattr(security, "MAX_LOGGED_REFUSALS", 3)
    guard: Any = RequestGuard(HttpOptions(allowed_hosts=["*.example.com"]))
    for number in range(10):
        guard.check(_Request(f"h{number}.example.com"))
        with pytest.raises(HTTPRefusal):
            guard.check(_Request(f"evil{number}.example.org"))
    assert len(guard._allowed_origins) == len(guard._logged_refusals) == len(caplog.records) == 3
