"""Sessions over HTTP: whose they are, how they end, and that no event is lost, doubled or told to another."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from hosted import (
    FIRST,
    OLD,
    OLDER,
    Stage,
    hosted,
    kept,
    kitchen,
    legacy,
    message,
    opening,
    run,
    serving,
)
from session_site import ELICITS, GET, listening, stage_and_site, steps, text, tool
from toolpost import Context, Server
from toolpost.protocol import jsonrpc
from toolpost.server import context
from toolpost.server.http import capacity, disconnect
from toolpost.server.http import (
    session as session_module,
)
from toolpost.server.http import (
    sessions as sessions_module,
)
from toolpost.server.http import (
    streams as streams_module,
)
from toolpost.server.http.capacity import RequestCounts
from toolpost.stores.memory import MemoryStore
from waiting import until

READY = message("notifications/initialized")


def sessions_of(site: Any) -> Any:
    return site.app._life.sessions


# --------------------------------------------------------------------- how they end


@pytest.mark.requirement("HTTPL-27")
def test_delete_ends_all_that_belongs_to_a_session():
    async def main():
        async with stage_and_site() as (stage, site):
            session, other = await site.open(), await site.open()
            wire, _ = await site.begin("GET", listening(session))
            assert (await wire.event()).id == "0."
            noisy, _ = await site.begin("POST", legacy(session), tool("noisy", 5, token=1))
            assert steps([await noisy.event(), await noisy.event()]) == [1]
            quiet = await site.wire()
            await quiet.ask("POST", "/mcp", legacy(session), tool("quiet", 6))
            await stage.begun.wait()
            deleted = await site.ask("DELETE", "/mcp", legacy(session))
            assert (deleted.status, deleted.body) == (200, b"")
            assert await wire.events() == []
            assert await noisy.events() == []
            assert (await quiet.answer()).status == 404
            await stage.ended.wait()
            for verb, body in (("POST", message("ping", id=1)), ("GET", None), ("DELETE", None)):
                headers = {**legacy(session), **(GET if verb == "GET" else {})}
                assert (await site.ask(verb, "/mcp", headers, body)).status == 404
            assert not [name for name in kept(site.app._host.store) if session in name]
            assert (await site.post(legacy(other), message("ping", id=1))).status == 200

    run(main)


def test_nothing_is_kept_for_a_request_that_is_over():
    """A thousand requests of all kinds leave what one leaves."""

    async def main():
        async with hosted(kitchen()) as site:
            store = site.app._host.store
            session = await site.open()
            before = kept(store)
            wire = await site.wire()
            for number in range(200):
                await wire.ask("POST", "/mcp", legacy(session), message("ping", id=number))
                assert (await wire.answer()).status == 200
                await wire.ask("POST", "/mcp", legacy(session), message("notifications/x"))
                assert (await wire.answer()).status == 202
            assert sorted(kept(store)) == sorted(before)

    run(main)


def test_what_was_streamed_is_kept_for_a_moment_only():
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])

    async def main():
        async with hosted(kitchen(store=store)) as site:
            session = await site.open()
            for number in range(3):
                wire, _ = await site.begin(
                    "POST", legacy(session), tool("steps", number, token=number, count=2)
                )
                assert text((await wire.events())[-1]) == "done"
            streams = [name for name in kept(store) if "/stream/" in name]
            assert len(streams) == 3
            now[0] += streams_module.DELIVERED_RETENTION + 1
            for name in streams:
                assert not await store.logs.touch(name, 1)

    run(main)


class Clock:
    """The time of sessions and their store, which goes on when a test wants it to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.looks = 0
        look_at = sessions_module.Sessions._check_session

        async def counted(sessions: Any, session: Any) -> None:
            await look_at(sessions, session)
            self.looks += 1

        monkeypatch.setattr(sessions_module.Sessions, "_check_session", counted)
        monkeypatch.setattr(sessions_module, "SWEEP_INTERVAL", 0.001)
        for module in (session_module, sessions_module):
            monkeypatch.setattr(module, "time", self)
        self.store = MemoryStore(clock=self.monotonic)

    def monotonic(self) -> float:
        return self.now

    async def passes(self, seconds: float) -> None:
        """Let time go by in small steps; the sessions are looked at after each."""
        for _ in range(10):
            self.now += seconds / 10
            looks = self.looks
            await until(lambda looks=looks: self.looks > looks + 1)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.requirement("HTTPL-27")
def test_a_session_that_nobody_uses_ends(clock):
    async def main():
        async with hosted(kitchen(store=clock.store), idle=100) as site:
            idle, used = await site.open(), await site.open()
            await clock.passes(60)
            assert (await site.post(legacy(used), message("ping", id=1))).status == 200
            await clock.passes(60)
            assert [*sessions_of(site)._held] == [used]
            assert (await site.post(legacy(idle), message("ping", id=1))).status == 404
            assert (await site.post(legacy(used), message("ping", id=2))).status == 200

    run(main)


def test_a_session_lives_while_it_is_listened_to_or_works(clock):
    """Longer than it may be idle, and without a word."""

    async def main():
        stage = Stage()
        async with hosted(kitchen(stage, store=clock.store), idle=10) as site:
            session = await site.open()
            wire, _ = await site.begin("GET", listening(session))
            await wire.event()
            await clock.passes(40)
            await wire.abort()
            await until(lambda: not site.app._life.listening)
            working = await site.wire()
            await working.ask("POST", "/mcp", legacy(session), tool("quiet", 1))
            await stage.begun.wait()
            await clock.passes(50)
            stage.go.set()
            assert text(await working.answer()) == "waited"
            clock.now += 11
            await until(lambda: not sessions_of(site)._held)

    run(main)


def test_a_session_whose_client_never_comes_back_ends(clock):
    """What it has asked for goes on without it, but not for ever."""

    async def main():
        stage = Stage()
        async with hosted(kitchen(stage, store=clock.store), idle=100) as site:
            session = await site.open()
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool("quiet", 1))
            await stage.begun.wait()
            await wire.abort()
            await until(lambda: not site.app._life.running)
            await clock.passes(60)
            assert [*sessions_of(site)._held] == [session]
            clock.now += 60
            await stage.ended.wait()
            await until(lambda: not sessions_of(site)._held)

    run(main)


def test_who_listens_is_not_idle(clock):
    async def main():
        async with hosted(kitchen(store=clock.store), max_sessions=2) as site:
            listens, idle = await site.open(), await site.open()
            wire, _ = await site.begin("GET", listening(listens))
            await wire.event()
            await clock.passes(1)
            third = await site.open()
            assert {*sessions_of(site)._held} == {listens, third}
            assert (await site.post(legacy(idle), message("ping", id=1))).status == 404

    run(main)


def test_who_makes_room_is_found_without_a_look_at_all(monkeypatch):
    looks = [0]
    busy = session_module.HttpSession.is_busy.fget
    assert busy is not None

    def counted(session: Any) -> bool:
        looks[0] += 1
        return busy(session)

    monkeypatch.setattr(session_module.HttpSession, "is_busy", property(counted))

    async def main():
        async with hosted(kitchen(), max_sessions=20) as site:
            for _ in range(20):
                await site.open()
            assert looks == [0]
            for _ in range(30):
                await site.open()
            assert looks == [30]

    run(main)


def test_streams_that_are_over_have_a_bound(monkeypatch):
    """Who reads slowly still gets all of it; who comes back too late gets nothing."""
    monkeypatch.setattr(capacity, "MAX_FINISHED_BYTES", 3 * (capacity.STREAM_OVERHEAD + 2000))
    store = MemoryStore()

    async def main():
        async with hosted(kitchen(store=store)) as site:
            session = await site.open()
            ids: list[Any] = []
            wires: list[Any] = []
            for number in range(6):
                wire, _ = await site.begin(
                    "POST", legacy(session), tool("steps", number, token=number, count=5)
                )
                ids.append((await wire.event()).id)
                wires.append(wire)
                await until(lambda: not sessions_of(site).find_live(session).is_busy)
                assert len([name for name in kept(store) if "/stream/" in name]) == min(number + 1, 3)
            for wire in wires:
                assert text((await wire.events())[-1]) == "done"
            for number in range(6):
                wire, begun = await site.begin("GET", listening(session, ids[number]))
                assert begun.status == (200 if number > 2 else 400)
            for number in range(20):
                assert (await site.post(legacy(session), tool("echo", number, text="x" * 3000))).status == 200
            wire, begun = await site.begin("GET", listening(session, ids[5]))
            assert begun.status == 200  # plain answers are not kept, and take no room

    run(main)


@pytest.mark.parametrize("said", [[], [message("ping", id=1)], [message("tools/list", id=1)]])
def test_a_handshake_has_to_be_completed(clock, said):
    async def main():
        async with hosted(kitchen(store=clock.store), handshake=30) as site:
            opened = await site.post(legacy(), opening())
            session, ready = opened.headers["mcp-session-id"], await site.open()
            for each in said:
                assert (await site.post(legacy(session), each)).status == 200
            await clock.passes(29)
            assert len(sessions_of(site)._held) == 2
            await clock.passes(2)
            assert [*sessions_of(site)._held] == [ready]
            assert (await site.post(legacy(session), READY)).status == 404
            assert (await site.post(legacy(ready), message("ping", id=1))).status == 200

    run(main)


def test_the_session_that_was_idle_for_longest_makes_room():
    async def main():
        async with stage_and_site(max_sessions=2) as (stage, site):
            busy, idle = await site.open(), await site.open()
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(busy), tool("quiet", 1))
            await stage.begun.wait()
            assert (await site.post(legacy(idle), message("ping", id=1))).status == 200
            third = await site.open()
            assert (await site.post(legacy(idle), message("ping", id=1))).status == 404
            stage.go.set()
            assert text(await wire.answer()) == "waited"
            assert (await site.post(legacy(third), message("ping", id=1))).status == 200
            assert len(sessions_of(site)._held) == 2

    run(main)


def test_many_who_come_at_once_keep_to_the_bound():
    async def main():
        async with hosted(kitchen(), max_sessions=3) as site:
            answers = await asyncio.gather(*(site.post(legacy(), opening()) for _ in range(20)))
            assert {answer.status for answer in answers} <= {200, 404, 503}
            assert len(sessions_of(site)._held) <= 3

    run(main)


# --------------------------------------------------------------------- posts and their answers


@pytest.mark.requirement("HTTP-9", "HTTP-11", "HTTPL-7", "HTTPL-8")
@pytest.mark.parametrize("revision", [FIRST, OLDER, OLD])
def test_an_answer_is_json_unless_something_comes_before(revision):
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open(revision)
            plain = await site.post(legacy(session, revision), tool("steps", 1, count=2))
            assert text(plain) == "done"
            wire, head = await site.begin(
                "POST", legacy(session, revision), tool("steps", 2, token="t", count=2)
            )
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            assert head.headers["x-accel-buffering"] == "no"
            events = await wire.events()
            if revision == OLD:
                assert (events[0].data, events[0].retry) == ("", streams_module.RETRY_MILLISECONDS)
                assert events.pop(0).id
            assert steps(events) == [1, 2]
            assert text(events[-1]) == "done"
            assert len(events) == 3
            assert len({event.id for event in events}) == 3
            # The connection serves on.
            await wire.ask("POST", "/mcp", legacy(session, revision), message("ping", id=9))
            assert (await wire.answer()).status == 200

    run(main)


@pytest.mark.requirement("HTTPL-16", "HTTPL-17", "HTTPL-13", "HTTPL-14", "HTTPL-8")
def test_what_belongs_to_a_call_comes_on_its_stream_only():
    async def main():
        async with stage_and_site() as (stage, site):
            session, other = await site.open(), await site.open()
            general, _ = await site.begin("GET", listening(session))
            foreign, _ = await site.begin("GET", listening(other))
            first, _ = await site.begin("POST", legacy(session), tool("noisy", "a", token="A"))
            second, _ = await site.begin("POST", legacy(session), tool("noisy", "b", token="B"))
            stage.go.set()
            for wire, token, each in ((first, "A", "a"), (second, "B", "b")):
                _, told, answer = await wire.events()
                assert told.json["params"]["progressToken"] == token
                assert answer.json["id"] == each
            site.app._host._handler.tools.remove("echo")
            for wire in (general, foreign):
                primed, changed = await wire.event(), await wire.event()
                assert primed.data == ""
                assert changed.json["method"] == "notifications/tools/list_changed"

    run(main)


def test_more_notices_than_a_log_holds(monkeypatch):
    """A function that never waits lets others read all the same."""
    monkeypatch.setattr(context, "NOTIFICATION_BURST", 10_000)

    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=5000))
            events = await wire.events()
            assert steps(events) == list(range(1, 5001))
            assert text(events[-1]) == "done"

    run(main)


def test_who_does_not_read_loses_notices_but_not_the_answer(caplog, monkeypatch):
    monkeypatch.setattr(context, "NOTIFICATION_BURST", 10_000)
    server = Server("flood")
    told = 3000

    @server.tool
    async def flood(ctx: Context) -> str:
        for number in range(told):
            await ctx.progress(number + 1, message="x" * 10_000)
        return "done"

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("flood", 1, token=1))
            await until(lambda: not next(iter(sessions_of(site)._held.values())).session.is_busy)
            events = await wire.events()
            assert text(events[-1]) == "done"
            seen = steps(events)
            assert len(seen) < told
            assert seen == sorted(set(seen))

    run(main)
    assert "does not read" in caplog.text


# --------------------------------------------------------------------- the general stream


@pytest.mark.requirement("HTTPL-12", "HTTPL-1")
def test_a_second_reader_is_turned_away():
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            wire, head = await site.begin("GET", listening(session))
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            refused = await site.ask("GET", "/mcp", listening(session))
            assert refused.status == 409
            await wire.abort()
            await until(lambda: not site.app._life.listening)
            _, again = await site.begin("GET", listening(session))
            assert again.status == 200

    run(main)


def test_a_reader_that_was_replaced_learns_of_it(monkeypatch):
    monkeypatch.setattr(disconnect, "KEEP_ALIVE_INTERVAL", 0.02)

    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            first, _ = await site.begin("GET", listening(session))
            await first.event()
            second, _ = await site.begin("GET", listening(session, "0."))
            await second.event()
            assert await first.events() == []

    run(main)


def test_what_was_said_before_anybody_listened_is_not_lost():
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            session = await site.open()
            server.tools.remove("echo")
            await until(lambda: any(name.endswith("/stream/0") for name in kept(site.app._host.store)))
            wire, _ = await site.begin("GET", listening(session))
            assert (await wire.event()).data == ""
            assert (await wire.event()).json["method"] == "notifications/tools/list_changed"
            await wire.abort()
            await until(lambda: not site.app._life.listening)
            # What was handed out is not handed out again.
            wire, _ = await site.begin("GET", listening(session))
            server.resources.remove("kitchen://menu")
            await wire.event()
            assert (await wire.event()).json["method"] == "notifications/resources/list_changed"

    run(main)


@pytest.mark.requirement("HTTPM-8")
def test_quiet_streams_carry_comments(monkeypatch):
    monkeypatch.setattr(disconnect, "KEEP_ALIVE_INTERVAL", 0.01)

    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open()
            general, _ = await site.begin("GET", listening(session))
            noisy, _ = await site.begin("POST", legacy(session), tool("noisy", 1, token=1))
            for wire in (general, noisy):
                await wire.event()
            await noisy.event()
            quiet = await site.wire()
            await quiet.ask("POST", "/mcp", legacy(session), tool("quiet", 2))
            await stage.begun.wait()
            for _ in range(3):
                beat = await general.block()
                assert beat is not None
                assert beat.comment
            stage.go.set()
            events = await noisy.events()
            assert noisy.comments
            assert text(events[-1]) == "said"
            assert text(await quiet.answer()) == "waited"

    run(main)


@pytest.mark.requirement("HTTPL-3", "HTTPL-5", "HTTPL-15", "HTTPL-7")
def test_polling():
    server = Server("polls")
    stage: list[Stage] = []

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(1)
        await ctx.close_stream()
        stage[0].begun.set()
        await stage[0].go.wait()
        await ctx.progress(2)
        await ctx.close_stream()
        await stage[0].ended.wait()
        await ctx.progress(3)
        return "done"

    async def main():
        stage[:] = [Stage()]
        async with hosted(server) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("work", 1, token=1))
            first = await wire.events()
            assert (first[0].data, first[0].retry) == ("", streams_module.RETRY_MILLISECONDS)
            assert steps(first) == [1]
            # The connection is free for other things meanwhile.
            await wire.ask("POST", "/mcp", legacy(session), message("ping", id=2))
            assert (await wire.answer()).status == 200
            again, _ = await site.begin("GET", listening(session, first[-1].id))
            await again.event()
            stage[0].go.set()
            second = await again.events()
            assert steps(second) == [2]
            stage[0].ended.set()
            last, _ = await site.begin("GET", listening(session, second[-1].id))
            third = await last.events()
            assert steps(third) == [3]
            assert text(third[-1]) == "done"

    run(main)


@pytest.mark.requirement("HTTPL-3")
def test_polling_before_anything_was_said():
    server = Server("polls")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.close_stream()
        await ctx.close_stream()
        return "done"

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire, head = await site.begin("POST", legacy(session), tool("work", 1))
            assert head.headers["content-type"] == "text/event-stream"
            (primed,) = await wire.events()
            assert (primed.data, primed.retry) == ("", streams_module.RETRY_MILLISECONDS)
            back, _ = await site.begin("GET", listening(session, primed.id))
            assert text((await back.events())[-1]) == "done"

    run(main)


def test_a_stream_that_is_polled_is_kept_while_its_call_runs():
    """However long that takes: it is not taken for one whose answer was sent."""
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])

    async def main():
        stage = Stage()
        async with hosted(kitchen(stage, store=store)) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("polled", 1, token=1))
            first = await wire.events()
            now[0] += streams_module.DELIVERED_RETENTION * 3
            back, head = await site.begin("GET", listening(session, first[-1].id))
            assert head.status == 200
            stage.go.set()
            assert text((await back.events())[-1]) == "polled"

    run(main)


# --------------------------------------------------------------------- two workers


@asynccontextmanager
async def two_workers(**web: Any):
    """Two endpoints of one server on one store, as two processes would be."""
    store = MemoryStore()
    stage = Stage()
    async with AsyncExitStack() as stack:
        sites = [
            await stack.enter_async_context(serving(kitchen(stage, store=store).asgi(**web)))
            for _ in range(2)
        ]
        yield stage, *sites
        stage.go.set()
    assert kept(store) == []


def test_any_worker_serves_any_session():
    async def main():
        async with two_workers() as (stage, one, two):
            session = await one.open(capabilities=ELICITS)
            # A post reaches the other worker, and so does the answer.
            assert text(await two.post(legacy(session), tool("echo", 1, text="hi"))) == "hi"
            wire, _ = await two.begin("POST", legacy(session), tool("steps", 2, token=2, count=3))
            events = await wire.events()
            assert steps(events) == [1, 2, 3]
            # Resumed where it was not begun.
            back, _ = await one.begin("GET", listening(session, events[2].id))
            assert steps(await back.events()) == [3]
            # The general stream of one, read at the other; a second reader anywhere is turned away.
            general, _ = await two.begin("GET", listening(session))
            await general.event()
            assert (await one.ask("GET", "/mcp", listening(session))).status == 409
            one.app._host._handler.tools.remove("echo")
            assert (await general.event()).json["method"] == "notifications/tools/list_changed"
            # A question on the stream of the one, its answer posted to the other.
            asking, _ = await one.begin("POST", legacy(session), tool("asked", 3))
            await asking.event()
            question = (await asking.event()).json["id"]
            answer = message(id=question, result={"action": "cancel"})
            assert (await two.post(legacy(session), answer)).status == 202
            assert "Cancelled" in text(await asking.event())
            # Cancelled and ended by the other.
            waiting = await one.wire()
            await waiting.ask("POST", "/mcp", legacy(session), tool("quiet", 4))
            await stage.begun.wait()
            cancel = message("notifications/cancelled", {"requestId": 4})
            assert (await two.post(legacy(session), cancel)).status == 202
            assert (await waiting.answer()).status == 202
            assert (await two.ask("DELETE", "/mcp", legacy(session))).status == 200
            assert await general.events() == []
            for site in (one, two):
                assert (await site.post(legacy(session), message("ping", id=9))).status == 404

    run(main)


@pytest.mark.requirement("HTTPL-21")
def test_a_stream_is_resumed_on_another_worker():
    async def main():
        async with two_workers() as (stage, one, two):
            session = await one.open()
            broken, _ = await one.begin("POST", legacy(session), tool("noisy", 1, token=1))
            first = [await broken.event(), await broken.event()]
            await broken.abort()
            back, _ = await two.begin("GET", listening(session, first[-1].id))
            await back.event()
            stage.go.set()
            rest = await back.events()
            assert [text(event) for event in rest] == ["said"]

    run(main)


def test_a_post_to_a_session_that_ends_meanwhile_is_answered():
    async def main():
        async with two_workers() as (_, one, two):
            session = await one.open()
            there = sessions_of(one)
            here = two.app
            assert (await two.post(legacy(session), message("ping", id=1))).status == 200
            sessions = here._life.sessions
            record = await sessions.find(session, None)
            await there.end(session, record, "a test")
            await until(lambda: not there._held)
            # As if the other worker had looked just before.
            await sessions.save_record(session, record)
            await one.open()
            answer = await two.post(legacy(session), message("ping", id=2))
            assert answer.status in {202, 404}
            await sessions.store.records.delete(f"session/{session}")

    run(main)


def test_sessions_of_a_worker_that_has_died_are_gone():
    """It leaves its sessions behind in the store, but no sign of life."""

    async def main():
        async with two_workers() as (_, one, two):
            session = await one.open()
            found = await sessions_of(one).find(session, None)
            assert (await two.post(legacy(session), message("ping", id=1))).status == 200
            record = await sessions_of(one).find(session, None)
            assert record == found
            store = two.app._host.store
            dead = sessions_module.SessionRecord("gone")
            await store.records.put("session/orphan", jsonrpc.encode(dead), 60)
            answer = await two.post(legacy("orphan"), message("ping", id=1))
            assert answer.status == 404
            assert "session/orphan" not in kept(store)

    run(main)


def test_an_answer_of_a_worker_that_dies_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(disconnect, "KEEP_ALIVE_INTERVAL", 0.02)

    async def main():
        async with two_workers() as (stage, one, two):
            session = await one.open()
            wire = await two.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool("quiet", 1))
            await stage.begun.wait()
            store = two.app._host.store
            await store.records.delete(f"worker/{sessions_of(one)._worker}")
            assert (await wire.answer()).status == 503

    run(main)


def test_a_store_that_fails_for_a_while_hurts_nobody_else(monkeypatch, caplog):
    monkeypatch.setattr(sessions_module, "SWEEP_INTERVAL", 0.01)

    class Shaky(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            put, subscribe = self.records.put, self.topics.subscribe
            fails = {"put": 3, "subscribe": 1}

            def shaky(name, call):
                def called(key, *rest):
                    if "worker/" in key and fails[name]:
                        fails[name] -= 1
                        raise OSError("the store is away")
                    return call(key, *rest)

                return called

            self.fails = fails
            records: Any = self.records
            topics: Any = self.topics
            records.put, topics.subscribe = shaky("put", put), shaky("subscribe", subscribe)

    async def main():
        store = Shaky()
        async with hosted(kitchen(store=store)) as site:
            session = await site.open()
            assert (await site.post(legacy(session), message("ping", id=1))).status == 200
            await until(lambda: not any(store.fails.values()))
            assert (await site.post(legacy(session), message("ping", id=2))).status == 200

    run(main)
    assert "trying again" in caplog.text


def test_a_worker_that_cannot_keep_up_goes_on(caplog):
    """Some posts of others are lost, and their clients hear it; later ones are served."""

    async def main():
        store = MemoryStore(entries=2)
        async with hosted(kitchen(store=store)) as site:
            session = await site.open()
            sessions = sessions_of(site)
            record = await sessions.find(session, None)
            for _ in range(5):
                await sessions._send_to_worker(record, sessions_module._WorkerMessage("none"))
            await until(lambda: "some of it is lost" in caplog.text)
            await until(lambda: store.topics._subscribers)  # pyright: ignore[reportAttributeAccessIssue] - looks inside
            assert (await site.post(legacy(session), message("ping", id=1))).status == 200

    run(main)


def test_a_conversation_that_fails_ends_its_session(caplog, monkeypatch):
    async def main():
        async with hosted(kitchen()) as site:

            async def serve(session, principal):
                raise RuntimeError("no more")

            other = await site.open()
            monkeypatch.setattr(sessions_of(site), "_serve", serve)
            refused = await site.post(legacy(), opening())
            assert refused.status in {404, 503}
            assert "mcp-session-id" not in refused.headers
            assert (await site.post(legacy(other), message("ping", id=1))).status == 200

    run(main)
    assert "no more" in caplog.text


def test_what_could_not_be_said_is_owed_to_nobody():
    """Else the end of a server would wait for a client to take what it will never get."""

    async def main():
        store: Any = MemoryStore()
        kept_streams = capacity.FinishedStreams(store.logs)
        session = session_module.HttpSession("s", "", store, kept_streams, RequestCounts(), single=True)
        said = message("notifications/message", {"level": "info", "data": "hi"})
        await session.send(said)
        assert session.has_pending_output
        session.mark_read(len(said))
        assert not session.has_pending_output

        async def full(*_: Any) -> str:
            raise OSError("no room")

        store.logs.append = full
        with pytest.raises(OSError, match="no room"):
            await session.send(said)
        assert not session.has_pending_output

    run(main)
