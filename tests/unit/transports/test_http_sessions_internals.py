"""Sessions over HTTP: whose they are, how they end, and that no event is lost, doubled or told to another."""

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
from toolpost.server import context
from toolpost.server.http import disconnect
from toolpost.server.http import sessions as sessions_module
from toolpost.server.http import streams as streams_module
from toolpost.stores.memory import MemoryStore
from waiting import until

READY = message("notifications/initialized")


def sessions_of(site: Any) -> Any:
    return site.app._worker.sessions


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
            assert not [name for name in kept(site.app._handler.store) if session in name]
            assert (await site.post(legacy(other), message("ping", id=1))).status == 200

    run(main)


def test_nothing_is_kept_for_a_request_that_is_over():
    """A thousand requests of all kinds leave what one leaves."""

    async def main():
        async with hosted(kitchen()) as site:
            store = site.app._handler.store
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
            await until(lambda: not site.app._worker.listening)
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
            await until(lambda: not site.app._worker.running)
            await clock.passes(60)
            assert [*sessions_of(site)._held] == [session]
            clock.now += 60
            await stage.ended.wait()
            await until(lambda: not sessions_of(site)._held)

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
            site.app._handler.tools.remove("echo")
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
            await until(lambda: not site.app._worker.listening)
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
            await until(lambda: any(name.endswith("/stream/0") for name in kept(site.app._handler.store)))
            wire, _ = await site.begin("GET", listening(session))
            assert (await wire.event()).data == ""
            assert (await wire.event()).json["method"] == "notifications/tools/list_changed"
            await wire.abort()
            await until(lambda: not site.app._worker.listening)
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
            one.app._handler.tools.remove("echo")
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
