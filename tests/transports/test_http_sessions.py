"""Sessions over HTTP: whose they are, how they end, and that no event is lost, doubled or told to another."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hosted import (
    FIRST,
    OLD,
    OLDER,
    Stage,
    call,
    hosted,
    kept,
    kitchen,
    legacy,
    message,
    opening,
    run,
    serving,
)
from leftovers import until

from toolpost import Context, Server
from toolpost.protocol import jsonrpc
from toolpost.server import measure
from toolpost.stores.memory import MemoryStore
from toolpost.transports import http_kept, http_session, http_sessions, http_streams, patrol
from toolpost.transports.http_load import Load

GET = {"Accept": "text/event-stream"}
READY = message("notifications/initialized")
ELICITS = {"elicitation": {}}


def tool(name: str, id: Any, *, token: Any = None, **arguments: Any) -> bytes:  # noqa: A002 - the protocol's word
    """A tool call; with a token its progress is told."""
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return message("tools/call", {**call(name, **arguments), **meta}, id)


def listening(session: str, last: str | None = None, revision: str = OLD) -> dict[str, str]:
    """The headers of a GET."""
    more = {} if last is None else {"Last-Event-ID": last}
    return {**GET, "Mcp-Session-Id": session, "MCP-Protocol-Version": revision, **more}


def text(event: Any) -> str:
    """What a tool said, in an event or a body."""
    return event.json["result"]["content"][0]["text"]


def steps(events: Any) -> list[Any]:
    """The progress in events."""
    said = [event.json for event in events if event.data]
    return [each["params"]["progress"] for each in said if each.get("method") == "notifications/progress"]


def sessions_of(site: Any) -> Any:
    return site.app._life.sessions


@asynccontextmanager
async def stage_and_site(**web: Any):
    stage = Stage()
    async with hosted(kitchen(stage), **web) as site:
        yield stage, site
        stage.go.set()


# --------------------------------------------------------------------- whose they are


@pytest.mark.requirement("HTTPL-22", "HTTPL-27")
def test_a_session_belongs_to_who_has_opened_it():
    def principal(scope):
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async def main():
        async with hosted(kitchen(), principal=principal) as site:
            ann, bob = {"X-User": "ann"}, {"X-User": "bob"}
            session = await site.open(headers=ann)
            ping = message("ping", id=1)
            assert (await site.post({**legacy(session), **ann}, ping)).status == 200
            for other in (bob, {}):
                assert (await site.post({**legacy(session), **other}, ping)).status == 404
                assert (await site.ask("GET", "/mcp", {**listening(session), **other})).status == 404
                assert (await site.ask("GET", "/mcp", {**listening(session, "0."), **other})).status == 404
                assert (await site.ask("DELETE", "/mcp", {**legacy(session), **other})).status == 404
            assert (await site.post({**legacy(session), **ann}, ping)).status == 200

    run(main)


def test_a_function_knows_who_speaks():
    server = Server("who")

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.principal} {ctx.request.headers.get('x-word')}"

    async def main():
        async with hosted(server, principal=lambda _: "ann") as site:
            session = await site.open()
            answer = await site.post({**legacy(session), "X-Word": "please"}, tool("who", 1))
            assert text(answer) == "ann please"

    run(main)


def test_state_belongs_to_one_session():
    server = Server("state")

    @server.tool
    async def count(ctx: Context) -> str:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        return str(ctx.state["n"])

    async def main():
        async with hosted(server) as site:
            first, second = await site.open(), await site.open()
            said = [text(await site.post(legacy(each), tool("count", 1))) for each in (first, first, second)]
            assert said == ["1", "2", "1"]

    run(main)


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
            now[0] += http_streams.DONE + 1
            for name in streams:
                assert not await store.logs.touch(name, 1)

    run(main)


class Clock:
    """The time of sessions and their store, which goes on when a test wants it to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.looks = 0
        look_at = http_sessions.Sessions._look_at

        async def counted(sessions: Any, session: Any) -> None:
            await look_at(sessions, session)
            self.looks += 1

        monkeypatch.setattr(http_sessions.Sessions, "_look_at", counted)
        monkeypatch.setattr(http_sessions, "SWEEP", 0.001)
        for module in (http_session, http_sessions):
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
    busy = http_session.Session.busy.fget
    assert busy is not None

    def counted(session: Any) -> bool:
        looks[0] += 1
        return busy(session)

    monkeypatch.setattr(http_session.Session, "busy", property(counted))

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
    monkeypatch.setattr(http_kept, "ROOM", 3 * (http_kept.EACH + 2000))
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
                await until(lambda: not sessions_of(site).held(session).busy)
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


def test_if_all_are_busy_none_makes_room():
    async def main():
        async with stage_and_site(max_sessions=1) as (stage, site):
            busy = await site.open()
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(busy), tool("quiet", 1))
            await stage.begun.wait()
            assert (await site.post(legacy(), opening())).status == 503
            stage.go.set()
            assert text(await wire.answer()) == "waited"
            assert await site.open()

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
                assert (events[0].data, events[0].retry) == ("", http_streams.RETRY)
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


@pytest.mark.requirement("HTTPL-8", "HTTP-7")
@pytest.mark.parametrize("revision", [OLDER, OLD])
def test_a_question_comes_on_the_stream_of_its_call(revision):
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open(revision, ELICITS)
            general, _ = await site.begin("GET", listening(session, revision=revision))
            wire, _ = await site.begin("POST", legacy(session, revision), tool("asked", 1))
            if revision == OLD:
                assert (await wire.event()).data == ""
            question = await wire.event()
            assert question.json["method"] == "elicitation/create"
            answer = message(id=question.json["id"], result={"action": "accept", "content": {"value": 7}})
            posted = await site.post(legacy(session, revision), answer)
            assert (posted.status, posted.body) == (202, b"")
            said = await wire.event()
            assert "7" in text(said)
            assert await wire.event() is None
            await site.ask("DELETE", "/mcp", legacy(session))
            assert [event for event in await general.events() if event.data] == []

    run(main)


def test_an_answer_of_another_session_is_no_answer():
    async def main():
        async with hosted(kitchen()) as site:
            session, other = await site.open(OLD, ELICITS), await site.open(OLD, ELICITS)
            wire, _ = await site.begin("POST", legacy(session), tool("asked", 1))
            await wire.event()
            question = (await wire.event()).json["id"]
            forged = message(id=question, result={"action": "accept", "content": {"value": 666}})
            assert (await site.post(legacy(other), forged)).status == 202
            right = message(id=question, result={"action": "decline"})
            assert (await site.post(legacy(session), right)).status == 202
            assert "Declined" in text(await wire.event())

    run(main)


@pytest.mark.parametrize("name", ["quiet", "noisy"])
def test_a_cancelled_call_ends_its_post(name):
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open()
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(session), tool(name, 5, token=1))
            await stage.begun.wait()
            cancel = message("notifications/cancelled", {"requestId": 5})
            assert (await site.post(legacy(session), cancel)).status == 202
            await stage.ended.wait()
            if name == "quiet":
                answer = await wire.answer()
                assert (answer.status, answer.body) == (202, b"")
            else:
                await wire.head()
                assert steps(await wire.events()) == [1]
            # The id is free again.
            stage.go.set()
            assert text(await site.post(legacy(session), tool("quiet", 5))) == "waited"

    run(main)


@pytest.mark.parametrize("revision", [OLD, FIRST])
def test_an_id_that_is_in_use_is_refused_at_once(revision):
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open(revision)
            wire = await site.wire()
            await wire.ask("POST", "/mcp", legacy(session, revision), tool("quiet", 5))
            await stage.begun.wait()
            refused = await site.post(legacy(session, revision), message("ping", id=5))
            assert (refused.status, refused.code) == (200, -32600)
            if revision == FIRST:
                batch = b"[%b,%b]" % (message("ping", id=5), message("ping", id=6))
                refused = await site.post(legacy(session, revision), batch)
                assert [each["error"]["code"] for each in refused.json] == [-32600] * 2
            assert (await site.post(legacy(session, revision), message("ping", id="5"))).json["result"] == {}
            stage.go.set()
            assert text(await wire.answer()) == "waited"

    run(main)


@pytest.mark.parametrize("ids", [(1, 1), (1, "1", 1)])
def test_a_batch_with_one_id_twice_is_refused(ids):
    """Which answer belongs to which request, nobody could tell."""

    async def main():
        async with stage_and_site() as (_, site):
            session = await site.open(FIRST)
            batch = b"[" + b",".join(tool("echo", each, text="x") for each in ids) + b"]"
            answers = (await site.post(legacy(session, FIRST), batch)).json
            assert [(each["id"], each["error"]["code"]) for each in answers] == [
                (each, -32600) for each in ids
            ]
            again = await site.post(legacy(session, FIRST), tool("echo", 1, text="x"))
            assert text(again) == "x"

    run(main)


def test_a_function_that_cancels_itself_is_answered():
    server = Server("odd")

    @server.tool
    async def odd() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            for _ in range(2):
                answer = await site.post(legacy(session), tool("odd", 1))
                assert (answer.status, answer.code) == (200, -32603)

    run(main)


def test_a_batch_whose_parts_are_cancelled_is_answered_in_part():
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open(FIRST)
            wire = await site.wire()
            batch = b"[%b,%b]" % (tool("quiet", "a"), message("ping", id="b"))
            await wire.ask("POST", "/mcp", legacy(session, FIRST), batch)
            await stage.begun.wait()
            cancel = message("notifications/cancelled", {"requestId": "a"})
            assert (await site.post(legacy(session, FIRST), cancel)).status == 202
            assert [each["id"] for each in (await wire.answer()).json] == ["b"]

    run(main)


def test_a_batch_with_notices_is_a_stream():
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open(FIRST)
            batch = b"[%b,%b]" % (message("ping", id="b"), tool("steps", "a", token=1, count=1))
            wire, _ = await site.begin("POST", legacy(session, FIRST), batch)
            events = await wire.events()
            assert [event.json.get("id") for event in events] == ["b", None, "a"]

    run(main)


@pytest.mark.parametrize("size", [10_000, 5 * 1024 * 1024])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_may_be_larger_than_a_log(size, streamed):
    server = Server("big")

    @server.tool
    async def big(size: int, ctx: Context) -> str:
        await ctx.progress(1)
        return "x" * size

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire = await site.wire()
            await wire.ask(
                "POST", "/mcp", legacy(session), tool("big", 1, token=1 if streamed else None, size=size)
            )
            await wire.head()
            said = (await wire.events())[-1].json if streamed else json.loads(await wire.rest())
            assert len(said["result"]["content"][0]["text"]) == size

    run(main)


def test_more_notices_than_a_log_holds(monkeypatch):
    """A function that never waits lets others read all the same."""
    monkeypatch.setattr(measure, "BURST", 10_000)

    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=5000))
            events = await wire.events()
            assert steps(events) == list(range(1, 5001))
            assert text(events[-1]) == "done"

    run(main)


def test_who_does_not_read_loses_notices_but_not_the_answer(caplog, monkeypatch):
    monkeypatch.setattr(measure, "BURST", 10_000)
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
            await until(lambda: not next(iter(sessions_of(site)._held.values())).session.busy)
            events = await wire.events()
            assert text(events[-1]) == "done"
            seen = steps(events)
            assert len(seen) < told
            assert seen == sorted(set(seen))

    run(main)
    assert "does not read" in caplog.text


def test_fire_and_forget_posts_are_taken_in_order():
    server = Server("order")
    heard: list[Any] = []

    @server.on_notice("notifications/note")
    async def note(ctx: Context, params: dict[str, Any]) -> None:
        heard.append(params["n"])

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire = await site.wire()
            for number in range(20):
                await wire.ask("POST", "/mcp", legacy(session), message("notifications/note", {"n": number}))
                assert (await wire.answer()).status == 202
            await until(lambda: len(heard) == 20)
            assert heard == list(range(20))

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
            await until(lambda: not site.app._life.listening)
            _, again = await site.begin("GET", listening(session))
            assert again.status == 200

    run(main)


@pytest.mark.requirement("HTTPL-18", "HTTPL-19")
def test_who_comes_back_to_the_general_stream_takes_it_over():
    """A client may know sooner than we do that its connection is dead."""

    async def main():
        server = kitchen()
        async with hosted(server) as site:
            session = await site.open()
            first, _ = await site.begin("GET", listening(session))
            primed = await first.event()
            server.tools.remove("echo")
            change = await first.event()
            second, head = await site.begin("GET", listening(session, change.id))
            assert head.status == 200
            assert (await second.event()).id == change.id
            server.resources.remove("kitchen://menu")
            told = await second.event()
            assert told.json["method"] == "notifications/resources/list_changed"
            assert await first.events() == []
            # Back to the very beginning: all of it again.
            third, _ = await site.begin("GET", listening(session, primed.id))
            again = [await third.event() for _ in range(3)]
            assert [event.id for event in again[1:]] == [change.id, told.id]

    run(main)


def test_a_reader_that_was_replaced_learns_of_it(monkeypatch):
    monkeypatch.setattr(patrol, "KEEP_ALIVE", 0.02)

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


@pytest.mark.parametrize("revision", [FIRST, OLDER])
def test_older_clients_get_no_empty_event(revision):
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            session = await site.open(revision)
            wire, _ = await site.begin("GET", listening(session, revision=revision))
            server.tools.remove("echo")
            assert (await wire.event()).data

    run(main)


def test_nobody_can_be_asked_who_does_not_listen():
    server = Server("asks")
    seen: list[Any] = []

    @server.on_notice("notifications/ask")
    async def ask(ctx: Context) -> None:
        try:
            await ctx.roots()
        except Exception as error:  # noqa: BLE001 - it is looked at
            seen.append(error)
        else:
            seen.append("asked")

    async def main():
        async with hosted(server) as site:
            session = await site.open(capabilities={"roots": {}})
            assert (await site.post(legacy(session), message("notifications/ask"))).status == 202
            await until(lambda: seen)
            assert "does not listen" in str(seen.pop())
            wire, _ = await site.begin("GET", listening(session))
            await wire.event()
            assert (await site.post(legacy(session), message("notifications/ask"))).status == 202
            question = (await wire.event()).json
            if question["method"] == "notifications/cancelled":  # of the question that was not sent
                question = (await wire.event()).json
            assert question["method"] == "roots/list"
            await site.post(legacy(session), message(id=question["id"], result={"roots": []}))
            await until(lambda: seen)
            assert seen == ["asked"]

    run(main)


@pytest.mark.requirement("HTTPM-8")
def test_quiet_streams_carry_comments(monkeypatch):
    monkeypatch.setattr(patrol, "KEEP_ALIVE", 0.01)

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


# --------------------------------------------------------------------- coming back


@pytest.mark.requirement("HTTPL-9", "HTTPL-18", "HTTPL-21")
@pytest.mark.parametrize("seen", [0, 1, 2])
@pytest.mark.parametrize("revision", [OLDER, OLD])
def test_a_stream_is_resumed_without_loss_or_double(revision, seen):
    """A connection that breaks does not cancel; what was missed comes later, of this stream only."""
    server = Server("steps")
    stage: list[Stage] = []

    @server.tool
    async def work(ctx: Context) -> str:
        for number in range(1, 3):
            await ctx.progress(number)
        stage[0].begun.set()
        await stage[0].go.wait()
        for number in range(3, 5):
            await ctx.progress(number)
        return "done"

    async def main():
        stage[:] = [Stage()]
        async with hosted(server) as site:
            session = await site.open(revision)
            broken, _ = await site.begin("POST", legacy(session, revision), tool("work", 1, token="a"))
            other, _ = await site.begin("POST", legacy(session, revision), tool("work", 2, token="b"))
            await stage[0].begun.wait()
            first = [await broken.event() for _ in range(seen + (revision == OLD))]
            if not first:
                first = [await broken.event()]
            await broken.abort()
            back, head = await site.begin("GET", listening(session, first[-1].id, revision))
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            stage[0].go.set()
            rest = await back.events()
            assert steps([*first, *rest]) == [1, 2, 3, 4]
            assert rest[-1].json["id"] == 1
            ids = [event.id for event in [*first, *rest] if event.data]
            assert len(ids) == len(set(ids)) == 5
            tokens = {
                event.json["params"]["progressToken"]
                for event in rest
                if event.data and "method" in event.json
            }
            assert tokens == {"a"}
            theirs = await other.events()
            assert steps(theirs) == [1, 2, 3, 4]
            assert not {event.id for event in theirs} & set(ids)

    run(main)


def test_a_stream_whose_answer_was_sent_can_be_read_again():
    """The last bytes may have been lost."""

    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=3))
            events = await wire.events()
            back, _ = await site.begin("GET", listening(session, events[1].id))
            again = await back.events()
            assert [event.id for event in again[1:]] == [event.id for event in events[2:]]
            back, _ = await site.begin("GET", listening(session, events[-1].id))
            assert [event.data for event in await back.events()] == [""]

    run(main)


@pytest.mark.requirement("HTTPL-21")
def test_a_stream_of_another_session_cannot_be_resumed():
    async def main():
        async with hosted(kitchen()) as site:
            session, other = await site.open(), await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=3))
            events = await wire.events()
            for last in (events[0].id, events[1].id, f"../../{session}/stream/{events[1].id}"):
                assert (await site.ask("GET", "/mcp", listening(other, last))).status == 400

    run(main)


def test_an_event_that_never_was_cannot_be_resumed():
    async def main():
        async with hosted(kitchen()) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), tool("steps", 1, token=1, count=3))
            stream = (await wire.events())[0].id
            for last in (f"{stream}x-1", f"{stream}{'9' * 5000}", f"{stream}é"):
                assert (await site.ask("GET", "/mcp", listening(session, last))).status == 400
            # Of the general stream there is always something to hear.
            back, head = await site.begin("GET", listening(session, "0.nonsense"))
            assert head.status == 200
            assert (await back.event()).id == "0."

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
            assert (first[0].data, first[0].retry) == ("", http_streams.RETRY)
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
            assert (primed.data, primed.retry) == ("", http_streams.RETRY)
            back, _ = await site.begin("GET", listening(session, primed.id))
            assert text((await back.events())[-1]) == "done"

    run(main)


@pytest.mark.parametrize("revision", [FIRST, OLDER])
def test_no_polling_for_older_clients(revision):
    async def main():
        async with stage_and_site() as (stage, site):
            session = await site.open(revision)
            wire, _ = await site.begin("POST", legacy(session, revision), tool("polled", 1, token=1))
            await stage.begun.wait()
            stage.go.set()
            events = await wire.events()
            assert all(event.data for event in events)
            assert steps(events) == [1, 2]
            assert text(events[-1]) == "polled"

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
            now[0] += http_streams.DONE * 3
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
            await sessions.note(session, record)
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
            dead = http_sessions.Record("gone")
            await store.records.put("session/orphan", jsonrpc.encode(dead), 60)
            answer = await two.post(legacy("orphan"), message("ping", id=1))
            assert answer.status == 404
            assert "session/orphan" not in kept(store)

    run(main)


def test_an_answer_of_a_worker_that_dies_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(patrol, "KEEP_ALIVE", 0.02)

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
    monkeypatch.setattr(http_sessions, "SWEEP", 0.01)

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
                await sessions._mail(record, http_sessions._Mail("none"))
            await until(lambda: "some of it is lost" in caplog.text)
            await until(lambda: store.topics._topics)  # pyright: ignore[reportAttributeAccessIssue] - looks inside
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
        kept_streams = http_kept.Kept(store.logs)
        session = http_session.Session("s", "", store, kept_streams, Load(), single=True)
        said = message("notifications/message", {"level": "info", "data": "hi"})
        await session.send(said)
        assert session.owing
        session.taken(len(said))
        assert not session.owing

        async def full(*_: Any) -> str:
            raise OSError("no room")

        store.logs.append = full
        with pytest.raises(OSError, match="no room"):
            await session.send(said)
        assert not session.owing

    run(main)
