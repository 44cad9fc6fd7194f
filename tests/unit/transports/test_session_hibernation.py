"""Sessions that sleep: nobody can tell, except by the memory that they take."""

import asyncio
import gc
import json
from contextvars import ContextVar
from typing import Any

import pytest

from hosted import OLD, call, hosted, legacy, message, opening, run, serving
from toolpost import Context, Server
from toolpost.server.http import sessions as asleep_module
from toolpost.server.http.sessions import Bedtime
from toolpost.server.middleware import RateLimit
from waiting import until

GET = {"Accept": "text/event-stream"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """One session stays awake, and whoever is woken makes no room for another one."""
    monkeypatch.setattr(asleep_module, "AWAKE", 1)
    monkeypatch.setattr(Bedtime, "note_wake", lambda _: None)


def sessions_of(site: Any) -> Any:
    return site.app._life.sessions


def sleeps(site: Any, session: str) -> bool:
    return session in sessions_of(site)._asleep


async def asleep(site: Any) -> str:
    """A session that sleeps, because another one was opened or used."""
    session = await site.open(capabilities={"elicitation": {}})
    await site.open()
    await until(lambda: sleeps(site, session))
    return session


def adder() -> Server:
    server = Server("s")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.revision} {ctx.client.info and ctx.client.info.name}"

    @server.tool
    async def keep(value: str, ctx: Context) -> str:
        before = ctx.state.get("value", "nothing")
        ctx.state["value"] = value
        return before

    return server


async def answer(site: Any, session: str, name: str, id: int = 1, **arguments: Any) -> Any:  # noqa: A002 - the protocol's word
    got = await site.post(legacy(session), message("tools/call", call(name, **arguments), id))
    assert got.status == 200, got
    return json.loads(got.body.split(b"data: ")[-1])["result"]["content"][0]["text"]


# --------------------------------------------------------------------- going on


def test_a_session_goes_on_where_it_stood():
    async def main():
        async with hosted(adder()) as site:
            session = await asleep(site)
            assert await answer(site, session, "add", a=1, b=2) == "3"
            assert not sleeps(site, session)
            other = await asleep(site)
            assert await answer(site, other, "who") == f"{OLD} raw"
            assert sleeps(site, session)
            assert await answer(site, session, "add", 2, a=2, b=2) == "4"

    run(main)


def test_all_that_sleep_are_used_again_and_again():
    async def main():
        async with hosted(adder()) as site:
            sessions = [await site.open() for _ in range(10)]
            for turn in range(5):
                calls = (answer(site, session, "add", turn, a=turn, b=1) for session in sessions)
                assert await asyncio.gather(*calls) == [str(turn + 1)] * len(sessions)
            assert len(sessions_of(site)._held) + len(sessions_of(site)._asleep) == len(sessions)

    run(main)


def test_a_client_that_comes_while_its_session_falls_asleep_is_served():
    async def main():
        async with hosted(adder()) as site:
            session = await site.open()
            sessions = sessions_of(site)
            held = sessions._held[session]
            sessions._bedtime.limit = 0
            sessions._put_idle_to_sleep()
            assert sleeps(site, session)
            assert not held.task.done()
            assert await answer(site, session, "add", a=1, b=2) == "3"

    run(main)


def test_what_a_client_wants_to_hear_is_remembered():
    server = adder()

    @server.tool
    async def speak(ctx: Context) -> int:
        await ctx.log("debug", "quiet")
        await ctx.log("error", "loud")
        return 1

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            level = message("logging/setLevel", {"level": "error"}, 1)
            assert (await site.post(legacy(session), level)).status == 200
            await site.open()
            await until(lambda: sleeps(site, session))
            got = await site.post(legacy(session), message("tools/call", call("speak"), 2))
            assert b"loud" in got.body
            assert b"quiet" not in got.body

    run(main)


def test_questions_have_ids_of_their_own_before_and_after():
    server = adder()

    @server.tool
    async def ask(ctx: Context) -> str:
        return type(await ctx.elicit("well?", str)).__name__

    async def asked(site: Any, session: str, number: int) -> int:
        wire, _ = await site.begin("POST", legacy(session), message("tools/call", call("ask"), number))
        event: Any = {}
        while "method" not in event:  # the first one says nothing
            event = json.loads((await wire.event()).data or "{}")
        said = {"action": "decline"}
        assert (await site.post(legacy(session), message(id=event["id"], result=said))).status == 202
        await wire.event()
        await wire.close()
        return event["id"]

    async def main():
        async with hosted(server) as site:
            session = await site.open(capabilities={"elicitation": {}})
            first = await asked(site, session, 1)
            await until(lambda: not sessions_of(site).find_live(session).is_busy)
            await site.open()
            await until(lambda: sleeps(site, session))
            assert await asked(site, session, 2) > first

    run(main)


# --------------------------------------------------------------------- who stays awake


@pytest.mark.parametrize("comes_back", [False, True])
def test_who_only_listens_sleeps(comes_back):
    """A stream that is open takes memory enough; what is said on it wakes the session."""
    server = adder()

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": session})
            primed = await wire.event()
            if comes_back:
                again = {**GET, "Mcp-Session-Id": session, "Last-Event-ID": primed.id}
                wire, head = await site.begin("GET", again)
                assert head.status == 200
                await wire.event()
            for _ in range(5):
                await site.open()
            await until(lambda: sleeps(site, session))
            server.tools.remove("keep")
            assert (await wire.event()).json["method"] == "notifications/tools/list_changed"

    run(main)


async def stays(site: Any, session: str) -> None:
    """Return if a session stays awake while others are opened."""
    for _ in range(5):
        await site.open()
    await asyncio.sleep(0)
    assert not sleeps(site, session)


def test_who_has_a_state_stays_awake():
    async def main():
        async with hosted(adder()) as site:
            session = await site.open()
            assert await answer(site, session, "keep", value="x") == "nothing"
            await stays(site, session)
            assert await answer(site, session, "keep", 2, value="y") == "x"

    run(main)


def test_who_watches_a_resource_stays_awake():
    server = adder()

    @server.resource("a://b")
    async def thing() -> str:
        return "thing"

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            watch = message("resources/subscribe", {"uri": "a://b"}, 1)
            assert (await site.post(legacy(session), watch)).status == 200
            await stays(site, session)

    run(main)


def test_who_is_at_work_stays_awake():
    server = adder()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @server.tool
    async def work() -> int:
        begun.set()
        await go_on.wait()
        return 1

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            working = asyncio.create_task(answer(site, session, "work"))
            await begun.wait()
            await stays(site, session)
            go_on.set()
            assert await working == "1"
            for _ in range(5):
                await site.open()
            await until(lambda: sleeps(site, session))

    run(main)


def test_who_has_not_completed_the_handshake_stays_awake():
    async def main():
        async with hosted(adder()) as site:
            got = await site.post(legacy(revision=None), opening())
            await stays(site, got.headers["mcp-session-id"])

    run(main)


def test_whose_context_is_kept_stays_awake():
    """Somebody may speak to the client at any time."""
    server = adder()
    kept: list[Context] = []

    @server.on_notification("notifications/roots/list_changed")
    async def changed(ctx: Context) -> None:
        kept.append(ctx)

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            said = message("notifications/roots/list_changed")
            assert (await site.post(legacy(session), said)).status == 202
            await until(lambda: bool(kept))
            await stays(site, session)
            wire, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": session})
            await kept[0].log("error", "still there")
            while "still there" not in (await wire.event()).data:
                pass
            kept.clear()
            gc.collect()
            await wire.abort()
            await until(lambda: not sessions_of(site).find_live(session).waiting_clients)
            for _ in range(5):
                await site.open()
            await until(lambda: sleeps(site, session))

    run(main)


def test_whose_state_is_kept_stays_awake():
    """Somebody may write into it later."""
    server = adder()
    kept: list[dict[str, Any]] = []

    @server.tool
    async def lend(ctx: Context) -> int:
        kept.append(ctx.state)
        return 1

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            assert await answer(site, session, "lend") == "1"
            await stays(site, session)
            kept[0]["value"] = "later"
            kept.clear()
            await stays(site, session)
            assert await answer(site, session, "keep", 2, value="y") == "later"

    run(main)


def test_who_is_counted_stays_awake():
    server = Server("s", middleware=[RateLimit(1, 60)])

    @server.tool
    async def one() -> int:
        return 1

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            ask = legacy(session), message("tools/call", call("one"), 1)
            answers = [await site.post(*ask) for _ in range(5)]
            assert b"Too many requests" in answers[-1].body
            await stays(site, session)
            assert b"Too many requests" in (await site.post(*ask)).body

    run(main)


def test_what_cannot_be_written_down_stays_awake():
    """An author may have put something to what a client says of itself; others are not in the way of that."""
    server = adder()

    @server.tool
    async def mark(ctx: Context) -> int:
        assert ctx.client.info is not None
        ctx.client.info.title = object()  # pyright: ignore[reportAttributeAccessIssue] - on purpose
        return 1

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            assert await answer(site, session, "mark") == "1"
            await stays(site, session)

    run(main)


def test_what_a_client_says_of_itself_is_its_own():
    """Many say the same, and it is kept once; but each has its own."""
    server = adder()

    @server.tool
    async def mark(ctx: Context) -> str:
        assert ctx.client.info is not None
        before, ctx.client.info.title = ctx.client.info.title, "marked"
        return str(before)

    async def main():
        async with hosted(server) as site:
            sessions = [await asleep(site), await asleep(site)]
            assert [await answer(site, session, "mark") for session in sessions] == ["None", "None"]
            large = {"experimental": {"large": {"text": "x" * 100_000}}}
            session = await site.open(capabilities=large)
            await site.open()
            await until(lambda: sleeps(site, session))
            assert sum(map(len, server.peers)) < 2000

    run(main)


def test_who_is_woken_soon_makes_room_for_one_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    monkeypatch.setattr(asleep_module, "AWAKE", 8)
    bedtime = Bedtime(20)
    assert bedtime.limit == 8
    for _ in range(30):
        bedtime.note_wake()
    assert bedtime.limit == 20
    for _ in range(30):
        bedtime.shrink()
    assert bedtime.limit == 8
    assert Bedtime(5).limit == 5


# --------------------------------------------------------------------- what happens meanwhile


def test_who_sleeps_hears_that_a_list_has_changed():
    server = adder()

    async def main():
        async with hosted(server) as site:
            session = await asleep(site)
            wire, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": session})
            await wire.event()
            assert sleeps(site, session)

            @server.tool
            async def more() -> int:
                return 1

            while "tools/list_changed" not in (await wire.event()).data:
                pass
            other = await asleep(site)  # nobody reads it now, but somebody may come later

            @server.tool
            async def most() -> int:
                return 1

            await until(lambda: not sleeps(site, other))
            later, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": other})
            while "tools/list_changed" not in (await later.event()).data:
                pass

    run(main)


@pytest.mark.requirement("HTTPL-29")
def test_a_session_that_sleeps_can_be_ended():
    server = adder()

    async def main():
        async with hosted(server) as site:
            session = await asleep(site)
            assert (await site.ask("DELETE", "/mcp", legacy(session))).status == 200
            assert not sleeps(site, session)
            assert (await site.post(legacy(session), message("ping", id=1))).status == 404
            assert len(server.broadcaster.get_subscribers()) == 1

    run(main)
    assert not server.broadcaster.get_subscribers()


def test_a_session_that_sleeps_makes_room_for_another():
    async def main():
        async with hosted(adder(), max_sessions=3) as site:
            first = await asleep(site)
            await site.open()
            assert sleeps(site, first)
            await site.open()
            assert (await site.post(legacy(first), message("ping", id=1))).status == 404
            assert len(sessions_of(site)._held) + len(sessions_of(site)._asleep) == 3

    run(main)


def test_a_session_that_sleeps_for_too_long_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolpost.server.http.sessions.SWEEP_INTERVAL", 0.02)

    async def main():
        async with hosted(adder(), idle=0.3) as site:
            session = await asleep(site)
            used = await asleep(site)
            wire, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": used})
            await wire.event()
            await until(lambda: session not in sessions_of(site)._asleep)
            assert (await site.post(legacy(session), message("ping", id=1))).status == 404
            assert (await site.post(legacy(used), message("ping", id=1))).status == 200

    run(main)


@pytest.mark.requirement("HTTPL-20")
def test_a_stream_of_a_session_that_sleeps_can_be_resumed():
    server = adder()

    @server.tool
    async def speak(ctx: Context) -> str:
        await ctx.log("error", "hello")
        return "spoken"

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire, _ = await site.begin("POST", legacy(session), message("tools/call", call("speak"), 1))
            seen = await wire.event()
            await wire.abort()
            await until(lambda: not sessions_of(site).find_live(session).is_busy)
            await site.open()
            await until(lambda: sleeps(site, session))
            headers = {**GET, "Mcp-Session-Id": session, "Last-Event-ID": seen.id}
            back, _ = await site.begin("GET", headers)
            while "spoken" not in (await back.event()).data:
                pass

    run(main)


def test_a_session_is_served_in_the_context_that_it_was_opened_in():
    """Whoever wakes it up may be another client, who has announced something."""
    user: ContextVar[str] = ContextVar("user", default="nobody")
    server = adder()

    @server.tool
    async def who_asks(ctx: Context) -> str:
        return user.get()

    @server.tool
    async def announce(ctx: Context) -> int:
        server.tool(name="more")(lambda: 1)
        return 1

    class Wrapped:
        def __init__(self, app: Any) -> None:
            self._app = app

        @property
        def _life(self) -> Any:
            return self._app._life

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            names = dict(scope.get("headers", ()))
            user.set(names.get(b"user-agent", b"").decode())
            await self._app(scope, receive, send)

    async def main():
        async with serving(Wrapped(server.asgi())) as site:
            bob, ann = {"User-Agent": "bob"}, {"User-Agent": "ann"}
            session = await site.open(headers=bob)
            other = await site.open(headers=ann)
            await until(lambda: sleeps(site, session))
            told = await site.post({**legacy(other), **ann}, message("tools/call", call("announce"), 1))
            assert told.status == 200
            await until(lambda: not sleeps(site, session))
            got = await site.post({**legacy(session), **bob}, message("tools/call", call("who_asks"), 1))
            assert json.loads(got.body)["result"]["content"][0]["text"] == "bob"

    run(main)


def test_a_store_that_fails_at_the_end_leaves_nobody_behind(monkeypatch: pytest.MonkeyPatch):
    server = adder()

    async def main():
        async with serving(server.asgi()) as site:
            for _ in range(5):
                await site.open()
            await until(lambda: len(sessions_of(site)._asleep) == 4)

            async def fails(_key: str) -> bool:
                raise OSError("the store has gone")

            with monkeypatch.context() as patch:
                patch.setattr(server.store.records, "delete", fails)
                with pytest.raises(OSError, match="the store has gone"):
                    await sessions_of(site).close()
            assert not sessions_of(site)._asleep
            assert not sessions_of(site)._held
            assert not server.broadcaster.get_subscribers()

    run(main)


def test_who_is_woken_while_the_server_ends_ends_with_it(monkeypatch: pytest.MonkeyPatch):
    server = adder()

    async def main():
        async with serving(server.asgi()) as site:
            for _ in range(5):
                await site.open()
            sessions = sessions_of(site)
            await until(lambda: len(sessions._asleep) == 4)
            last = [*sessions._asleep][-1]
            inner, held = sessions._end_here, sessions._serve

            async def serve(session: Any, principal: Any) -> None:
                await held(session, principal)
                for _ in range(100):  # its end takes a while
                    await asyncio.sleep(0)

            async def end_here(session_id: str, why: str) -> None:
                sessions._wake_up(last)  # as an announcement does
                await inner(session_id, why)

            monkeypatch.setattr(sessions, "_serve", serve)
            monkeypatch.setattr(sessions, "_end_here", end_here)
            await sessions.close()
            assert not sessions._asleep
            assert not sessions._held

    run(main)


def test_nothing_is_left_of_those_who_sleep_when_the_server_ends():
    server = adder()

    async def main():
        async with hosted(server) as site:
            for _ in range(20):
                await site.open()
            await until(lambda: len(sessions_of(site)._asleep) == 19)

    run(main)  # which looks at the store
    assert not server.broadcaster.get_subscribers()
