"""Sessions over HTTP: owners, expiry, and no event lost, repeated or sent to another session."""

from typing import Any

import pytest

from fleet import fleet
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
    run,
)
from session_site import GET, listening, stage_and_site, steps, text, tool
from toolpost import Context, Server
from toolpost.server.http import exchange
from toolpost.server.http import sessions as sessions_module
from toolpost.server.http import streams as streams_module
from toolpost.server.http import worker as worker_module
from toolpost.stores.memory import MemoryStore
from waiting import until

MENU = "kitchen://menu"
READY = message("notifications/initialized")


def logs_of(store: Any) -> Any:
    return store.logs._logs._items


def sessions_of(site: Any) -> Any:
    return site.app._worker.sessions


# --------------------------------------------------------------------- how they end


@pytest.mark.requirement("HTTPL-27")
def test_delete_ends_all_that_belongs_to_a_session():
    async def main():
        async with stage_and_site() as (stage, site):
            session, other = await site.open(), await site.open()
            wire, _ = await site.begin("GET", listening(session))
            assert (await wire.event()).id.startswith("0.")
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
            assert session not in sessions_of(site)._cache
            assert (await site.post(legacy(other), message("ping", id=1))).status == 200

    run(main)


def test_early_cancellations_have_a_bound_and_an_end(monkeypatch):
    monkeypatch.setattr(worker_module, "MAX_EARLY_CANCELLATIONS", 2)

    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()

            async def is_cancelled(number: int) -> bool:
                answer = await site.post(legacy(session), message("ping", id=number))
                return "error" in answer.json

            async def cancel(number: int) -> None:
                notice = message("notifications/cancelled", {"requestId": number})
                assert (await site.post(legacy(session), notice)).status == 202

            for number in range(4):
                await cancel(number)
            assert [await is_cancelled(number) for number in range(4)] == [False, False, True, True]
            assert not await is_cancelled(3)  # it counts once
            monkeypatch.setattr(worker_module, "EARLY_CANCELLATION_TTL", 0)
            await cancel(3)
            assert not await is_cancelled(3)

    run(main)


def test_nothing_is_kept_for_a_request_that_is_over():
    """A thousand requests of all kinds leave no more than one."""

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


def test_events_of_finished_streams_are_kept_only_briefly():
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
            streams = [*logs_of(store)]
            assert len(streams) == 3
            now[0] += streams_module.DELIVERED_RETENTION + 1
            for name in streams:
                assert not await store.logs.touch(name, 1)

    run(main)


class Clock:
    """The clock of sessions and their store, which a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.looks = 0
        end_idle = sessions_module.Sessions.end_idle

        async def counted(sessions: Any) -> None:
            await end_idle(sessions)
            self.looks += 1

        monkeypatch.setattr(sessions_module.Sessions, "end_idle", counted)
        monkeypatch.setattr(worker_module, "SWEEP_INTERVAL", 0.001)
        monkeypatch.setattr(sessions_module, "time", self)
        self.store = MemoryStore(clock=self.monotonic)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    async def passes(self, seconds: float) -> None:
        """Advance the clock in small steps, and check the sessions after each."""
        for _ in range(10):
            self.now += seconds / 10
            looks = self.looks
            await until(lambda looks=looks: self.looks > looks + 1)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.requirement("HTTPL-27")
def test_an_idle_session_ends(clock):
    async def main():
        async with hosted(kitchen(store=clock.store), idle=100) as site:
            idle, used = await site.open(), await site.open()
            await clock.passes(60)
            assert (await site.post(legacy(used), message("ping", id=1))).status == 200
            await clock.passes(60)
            assert [*sessions_of(site)._cache] == [used]
            assert (await site.post(legacy(idle), message("ping", id=1))).status == 404
            assert (await site.post(legacy(used), message("ping", id=2))).status == 200

    run(main)


def test_a_session_lives_while_it_is_listened_to_or_works(clock):
    """For longer than the idle time, and without a message."""

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
            await until(lambda: not sessions_of(site)._cache)

    run(main)


def test_a_session_whose_client_never_comes_back_ends(clock):
    """Its work continues after a disconnect, but not without limit."""

    async def main():
        stage = Stage()
        async with hosted(kitchen(stage, store=clock.store), idle=100) as site:
            session = await site.open()
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool("quiet", 1))
            await stage.begun.wait()
            await wire.abort()
            await until(lambda: all(each.is_disconnected for each in site.app._worker.running))
            await clock.passes(60)
            assert [*sessions_of(site)._cache] == [session]
            clock.now += 60
            await stage.ended.wait()
            await until(lambda: not sessions_of(site)._cache)

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
def test_messages_of_a_call_come_only_on_its_stream():
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


def test_more_notifications_than_a_log_holds():
    """A function that never waits does not keep others from reading."""

    async def main():
        async with hosted(kitchen(notification_rate=2000)) as site:
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
    monkeypatch.setattr(exchange, "KEEP_ALIVE_INTERVAL", 0.02)

    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            first, _ = await site.begin("GET", listening(session))
            await first.event()
            second, _ = await site.begin("GET", listening(session, "0."))
            await second.event()
            assert await first.events() == []

    run(main)


def test_messages_before_the_first_listener_are_kept():
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            session = await site.open()
            server.tools.remove("echo")
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
    monkeypatch.setattr(exchange, "KEEP_ALIVE_INTERVAL", 0.01)

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
def test_polling_before_any_message():
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
    """It does not expire as a stream does whose answer was sent."""
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


def test_a_resource_that_a_session_subscribes_to_at_two_workers_is_released_by_both():
    hooks: dict[Server, list[str]] = {}

    def adds_hooks(server: Server, stage: Stage) -> None:
        hooks[server] = []
        subscribe, unsubscribe = server.subscribe, server.unsubscribe

        async def note_subscribe(uri, ctx):
            hooks[server].append("subscribe")
            await subscribe(uri, ctx)

        async def note_unsubscribe(uri, ctx):
            hooks[server].append("unsubscribe")
            await unsubscribe(uri, ctx)

        server.subscribe, server.unsubscribe = note_subscribe, note_unsubscribe

    async def main():
        async with fleet(3, adds_hooks) as (a, b, c):
            session = await a.open()
            for number, worker in enumerate((a, b)):
                subscribe = message("resources/subscribe", {"uri": MENU}, number)
                assert (await worker.post(legacy(session), subscribe)).json["result"] == {}
            assert (await c.ask("DELETE", "/mcp", legacy(session))).status == 200
            await until(lambda: len(hooks[a.server]) == len(hooks[b.server]) == 2)
            both = ["subscribe", "unsubscribe"]
            assert hooks == {a.server: both, b.server: both, c.server: []}

    run(main)
