"""How an endpoint begins and ends: with and without a lifespan, in a loop of ours, and as a process."""

import asyncio
import inspect
import json
import os
import re
import signal
import socket
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hosted import (
    PATIENCE,
    Site,
    Stage,
    call,
    hosted,
    kept,
    kitchen,
    legacy,
    message,
    modern,
    opening,
    run,
    serving,
)
from leftovers import until
from raw_http import wired

import remains
from toolpost import Context, Server, web
from toolpost.stores.memory import MemoryStore
from toolpost.transports import exchange as exchanges
from toolpost.transports import http_life

PROGRAM = str(Path(__file__).parent / "programs" / "web.py")
GET = {"Accept": "text/event-stream"}
TOKEN = {"progressToken": 1}
ECHO = modern("tools/call", call("echo", text="hi"))


def tool(name: str, **arguments: Any) -> tuple[dict[str, str], bytes]:
    return modern("tools/call", call(name, **arguments), meta=TOKEN)


def alive(log: list[str], fails: list[bool] | None = None):
    """A lifespan that tells what happens to it, and fails as often as the list says."""

    @asynccontextmanager
    async def lifespan(_: Server):
        if fails and fails.pop(0):
            log.append("failed")
            raise RuntimeError("no database")
        log.append("begun")
        yield "value"
        log.append("ended")

    return lifespan


# --------------------------------------------------------------------- beginning


@pytest.mark.parametrize("lifespan", ["on", "off"])
def test_it_begins_with_the_lifespan_or_with_the_first_request(lifespan):
    async def main():
        log: list[str] = []
        app = kitchen(lifespan=alive(log)).asgi()
        async with serving(app, lifespan=lifespan) as site:
            assert log == (["begun"] if lifespan == "on" else [])
            answers = await asyncio.gather(*(site.post(*ECHO) for _ in range(5)))
            assert [answer.status for answer in answers] == [200] * 5
            session = await site.open()
            assert (await site.post(legacy(session), message("ping", id=1))).status == 200
            assert log == ["begun"]
        assert log == ["begun", "ended"]

    run(main)


def test_functions_find_what_the_lifespan_gave():
    server = Server("life", lifespan=alive([]))

    @server.tool
    async def value(ctx: Context) -> str:
        return ctx.lifespan

    async def main():
        async with hosted(server) as site:
            assert (await site.post(*tool("value"))).json["result"]["content"][0]["text"] == "value"
            session = await site.open()
            answer = await site.post(legacy(session), message("tools/call", call("value"), 1))
            assert answer.json["result"]["content"][0]["text"] == "value"

    run(main)


def test_one_server_may_be_many_applications():
    async def main():
        log: list[str] = []
        server = kitchen(lifespan=alive(log))
        async with serving(server.asgi()) as one, serving(server.asgi("/other")) as two:
            assert (await one.post(*ECHO)).status == 200
            assert (await two.post(*ECHO, target="/other")).status == 200
            session = await one.open()
            answer = await two.post(legacy(session), message("ping", id=1), target="/other")
            assert answer.status == 200  # they share the store
            for _ in range(20):
                server.asgi()
        assert log == ["begun", "ended"]

    run(main)


@pytest.mark.parametrize("lifespan", ["on", "off"])
def test_one_application_serves_in_one_loop_after_another(lifespan):
    app = kitchen().asgi()

    async def main():
        async with serving(app, lifespan=lifespan) as site:
            assert (await site.post(*ECHO)).status == 200
            session = await site.open()
            assert (await site.post(legacy(session), message("ping", id=1))).status == 200

    for _ in range(3):
        run(main)


def test_a_loop_that_goes_on_in_another_thread_serves_its_own_requests_alone():
    app: Any = kitchen().asgi()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.start())
    begun, thread = app._life, threading.Thread(target=loop.run_forever)
    thread.start()

    async def main():
        async with serving(app, lifespan="off") as site:
            assert (await site.post(*ECHO)).status == 200
            assert app._life.loop is asyncio.get_running_loop()

    try:
        run(main)
        assert not begun.thread
    finally:
        asyncio.run_coroutine_threadsafe(begun.end(0), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_loop_that_ends_without_a_word_hurts_no_other():
    """As in a test client that throws its loop away, with a request in the middle of its work."""
    app: Any = kitchen().asgi()

    async def first():
        async def receive():
            return said.pop() if said else await asyncio.get_running_loop().create_future()

        async def send(_):
            pass

        headers, body = tool("quiet")
        said = [{"type": "http.request", "body": body}]
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [(b"host", b"localhost"), *raw]}
        working = asyncio.create_task(app(scope, receive, send))
        await until(lambda: app._life is not None and app._life.running)
        assert not working.done()

    asyncio.run(first())
    assert remains.cut_off
    remains.cut_off.clear()

    async def second():
        async with serving(app, lifespan="off") as site:
            assert (await site.post(*ECHO)).status == 200
            assert not app._life.running

    run(second)


def test_a_lifespan_that_fails_is_tried_again():
    async def main():
        log: list[str] = []
        app = kitchen(lifespan=alive(log, [True, True])).asgi()
        async with serving(app, lifespan="off") as site:
            answers = await asyncio.gather(*(site.post(*ECHO) for _ in range(3)))
            assert {answer.status for answer in answers} <= {500, 200}
            assert b"no database" not in answers[0].body
            await until(lambda: "failed" in log)
            while (await site.post(*ECHO)).status != 200:
                pass
            assert log == ["failed", "failed", "begun"]
        assert log[-1] == "ended"

    run(main)


def test_a_lifespan_that_fails_fails_the_start():
    async def main():
        said: list[Any] = []
        events = [{"type": "lifespan.startup"}]

        async def receive():
            return events.pop()

        async def send(event):
            said.append(event)

        app = kitchen(lifespan=alive([], [True])).asgi()
        await app({"type": "lifespan"}, receive, send)
        assert said == [{"type": "lifespan.startup.failed", "message": "no database"}]

    run(main)


def test_a_lifespan_that_fails_at_its_end_says_so():
    @asynccontextmanager
    async def lifespan(_: Server):
        yield
        raise RuntimeError("cannot close")

    async def main():
        said: list[Any] = []
        events = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]

        async def receive():
            return events.pop()

        async def send(event):
            said.append(event)

        app = kitchen(lifespan=lifespan).asgi()
        await app({"type": "lifespan"}, receive, send)
        assert [each["type"] for each in said] == ["lifespan.startup.complete", "lifespan.shutdown.failed"]
        assert said[1]["message"] == "cannot close"

    run(main)


def test_a_lifespan_that_is_cancelled_does_not_leave_requests_waiting():
    @asynccontextmanager
    async def lifespan(_: Server):
        raise asyncio.CancelledError
        yield

    async def main():
        app = kitchen(lifespan=lifespan).asgi()
        async with serving(app, lifespan="off") as site:
            assert (await site.post(*ECHO)).status == 500
            assert (await site.post(*ECHO)).status == 500

    run(main)


def test_who_leaves_before_it_has_begun_ends_nothing():
    async def main():
        begun, go = asyncio.Event(), asyncio.Event()

        @asynccontextmanager
        async def lifespan(_: Server):
            begun.set()
            await go.wait()
            yield

        app = kitchen(lifespan=lifespan).asgi()
        async with serving(app, lifespan="off") as site:
            first = await site.wire()
            await first.ask("POST", "/mcp", *ECHO)
            await begun.wait()
            await first.abort()
            second = await site.wire()
            await second.ask("POST", "/mcp", *ECHO)
            go.set()
            assert (await second.answer()).status == 200

    run(main)


# --------------------------------------------------------------------- ending


@pytest.mark.requirement("SUB-8")
def test_the_order_of_the_end():
    """Nothing new, streams at once, running calls when they are done, then the lifespan."""

    async def main():
        stage, log = Stage(), []
        app = kitchen(stage, lifespan=alive(log)).asgi(drain=PATIENCE, health="/health")
        async with serving(app) as site:
            session = await site.open(capabilities={"elicitation": {}})
            general, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": session})
            await general.event()
            old, _ = await site.begin("GET", GET, target="/sse")
            await old.event()
            listen, _ = await site.begin(
                "POST", *modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "sub")
            )
            await listen.event()
            new = await site.wire()
            await new.ask("POST", "/mcp", *tool("quiet"))
            asking, _ = await site.begin("POST", legacy(session), message("tools/call", call("asked"), 1))
            await asking.event()
            question = (await asking.event()).json["id"]
            idle = await site.wire()
            await idle.ask("POST", "/mcp", *ECHO)
            assert (await idle.answer()).status == 200
            stopping = asyncio.create_task(app.stop())
            # Streams end, the subscription with its result.
            assert await general.events() == []
            assert await old.events() == []
            assert [event.json["id"] for event in await listen.events()] == ["sub"]
            # Nothing new is taken, and it is said when to come back.
            for headers, body in (ECHO, (legacy(), opening()), (legacy(session), message("ping", id=9))):
                await idle.ask("POST", "/mcp", headers, body)
                refused = await idle.answer()
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            for target, headers in (("/mcp", {**GET, "Mcp-Session-Id": session}), ("/sse", GET)):
                assert (await site.ask("GET", target, headers)).status == 503
            assert (await site.ask("GET", "/health")).status == 200
            assert (await site.ask("GET", "/health/ready")).status == 503
            # What runs is finished, and may get the answers that it needs.
            posted = await site.post(legacy(session), message(id=question, result={"action": "decline"}))
            assert posted.status == 202
            assert "Declined" in (await asking.event()).data
            assert log == ["begun"]
            stage.go.set()
            assert (await new.answer()).status == 200
            await stopping
            assert log == ["begun", "ended"]
            assert (await site.post(legacy(session), message("notifications/x"))).status == 503

    run(main)


@pytest.mark.parametrize("name", ["wait", "stubborn"])
def test_calls_that_do_not_end_are_given_up(name):
    async def main():
        stage = Stage()
        app: Any = kitchen(stage).asgi(drain=0.05)
        async with serving(app) as site:
            session = await site.open()
            new, old = await site.wire(), await site.wire()
            await new.ask("POST", "/mcp", *tool(name))
            await old.ask("POST", "/mcp", legacy(session), message("tools/call", call(name), 1))
            noisy, _ = await site.begin("POST", *tool("noisy"))
            await noisy.event()
            await until(lambda: len(app._life.running) == 3)
            stopping = asyncio.create_task(app.stop())
            assert (await old.answer()).status in {404, 503}
            assert await noisy.events() == []
            if name == "wait":
                given_up = await new.answer()
                assert (given_up.status, given_up.code) == (503, -32603)
            stage.go.set()
            if name == "stubborn":  # it had an answer after all
                assert (await new.answer()).status == 200
            await stopping
            assert "cancelled" in stage.log

    run(main)


def test_a_function_in_a_thread_learns_that_we_stop():
    async def main():
        stage = Stage()
        app = kitchen(stage).asgi(drain=0.01)
        async with serving(app) as site:
            wire = await site.wire()
            await wire.ask("POST", "/mcp", *tool("blocked"))
            await stage.begun.wait()
            await app.stop()
            await stage.thread_saw_cancel.wait()
            assert (await wire.answer()).status == 503

    run(main)


def test_it_may_begin_again():
    async def main():
        log: list[str] = []
        app = kitchen(lifespan=alive(log)).asgi()
        async with serving(app) as site:
            await app.stop()
            assert (await site.post(*ECHO)).status == 503
            await app.stop()
            async with app.lifespan():
                assert (await site.post(*ECHO)).status == 200
            assert (await site.post(*ECHO)).status == 503
        assert log == ["begun", "ended"] * 2

    run(main)


def test_nothing_stays_when_it_ends_with_sessions_open():
    async def main():
        store = MemoryStore()
        stage = Stage()
        app = kitchen(stage, store=store).asgi(drain=0.01)
        async with serving(app) as site:
            for _ in range(3):
                session = await site.open()
                general, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": session})
                await general.event()
                body = message("tools/call", {**call("noisy"), "_meta": TOKEN}, 1)
                noisy, _ = await site.begin("POST", legacy(session), body)
                await noisy.event()
                await noisy.abort()
            assert kept(store)
        assert kept(store) == []

    run(main)


# --------------------------------------------------------------------- in a loop of ours


@asynccontextmanager
async def announced(capfd: pytest.CaptureFixture[str], **web: Any):
    """`serve_http` in a task, and what it has told a person."""
    stage = Stage()
    server = kitchen(stage)
    task = asyncio.create_task(server.serve_http("127.0.0.1:0", **web))
    said = ""
    while "\n" not in said:
        await asyncio.sleep(0.001)
        said += capfd.readouterr().err
    found = re.search(r"kitchen serves MCP at http://127\.0\.0\.1:(\d+)(\S+)", said)
    assert found is not None
    yield stage, task, int(found[1]), found[2]
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


def test_serve_http_ends_when_it_is_cancelled(capfd):
    async def main():
        async with announced(capfd, path="/x") as (_, task, port, path):
            assert path == "/x"
            async with wired(port) as wire:
                await wire.ask("POST", "/x", *ECHO)
                assert (await wire.answer()).status == 200
                listen = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, "sub")
                await wire.ask("POST", "/x", *listen)
                await wire.head()
                await wire.event()
                task.cancel()
                assert [event.json["id"] for event in await wire.events()] == ["sub"]
                assert await wire.ended()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

    run(main)


def test_serve_http_hears_signals_and_gives_them_back(capfd):
    async def main():
        before = signal.getsignal(signal.SIGTERM)
        async with announced(capfd) as (_, task, port, _):
            async with wired(port) as wire:
                await wire.ask("POST", "/mcp", *ECHO)
                assert (await wire.answer()).status == 200
            os.kill(os.getpid(), signal.SIGTERM)
            await task
        assert signal.getsignal(signal.SIGTERM) is before

    run(main)


def test_serve_http_raises_what_the_lifespan_raises(capfd):
    async def main():
        server = kitchen(lifespan=alive([], [True]))
        with pytest.raises(RuntimeError, match="no database"):
            await server.serve_http("127.0.0.1:0")

    run(main)


def test_workers_need_processes_of_their_own():
    async def main():
        with pytest.raises(ValueError, match=r"server\.run"):
            await kitchen().serve_http(workers=2)
        with pytest.raises(RuntimeError, match="serve_http"):
            kitchen().run(http="127.0.0.1:0")

    run(main)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:"])
def test_an_address_that_is_none(address):
    with pytest.raises(ValueError, match="no address"):
        kitchen().run(http=address)


def test_an_address_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot serve at {address}"):
            kitchen().run(http=address)


@pytest.mark.requirement("HTTP-3", "SSE-6")
@pytest.mark.parametrize("address", [":0", "0", "localhost:0", "[::1]:0"])
def test_an_address_is_of_this_machine_unless_told_otherwise(address):
    with web._bound(address) as listening:
        assert listening.getsockname()[0] in {"127.0.0.1", "::1"}
    assert inspect.signature(Server.serve_http).parameters["address"].default == "127.0.0.1:8000"


@pytest.mark.parametrize("store", ["memory://", MemoryStore()])
def test_workers_cannot_share_the_memory_of_one(store):
    with pytest.raises(ValueError, match=r"2 workers cannot share.*stateless=True"):
        kitchen(store=store).run(http="127.0.0.1:0", workers=2)
    with pytest.raises(ValueError, match="1 or more"):
        kitchen().run(http="127.0.0.1:0", workers=0)


def test_keywords_of_http_need_http():
    with pytest.raises(TypeError, match="http="):
        kitchen().run(workers=2)


# --------------------------------------------------------------------- as a process


class Child:
    """A process that serves."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.said = ""

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    async def ends(self) -> int:
        """The code that it ends with; what it said is in `said`."""
        assert self.process.stderr is not None
        self.said = (await self.process.stderr.read()).decode()
        return await self.process.wait()


@asynccontextmanager
async def process(**settings: Any):
    child = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, json.dumps(settings), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert child.stderr is not None
        line = (await child.stderr.readline()).decode()
        found = re.fullmatch(r"web serves MCP at http://127\.0\.0\.1:(\d+)/mcp\n", line)
        assert found is not None, line
        yield Child(child, int(found[1]))
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()


async def first_pid(port: int) -> int:
    """The process that serves a connection of its own."""
    async with wired(port) as wire:
        await wire.ask("POST", "/mcp", *modern("tools/call", call("pid")))
        answer = await wire.answer()
        return int(answer.json["result"]["content"][0]["text"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_in_order_with_streams_open(number):
    async def main():
        async with process() as child, wired(child.port) as general, wired(child.port) as listen:
            site = Site(None, child.port)
            session = await site.open()
            await general.ask("GET", "/mcp", {**GET, "Mcp-Session-Id": session})
            await general.head()
            await general.event()
            wishes = {"notifications": {"toolsListChanged": True}}
            await listen.ask("POST", "/mcp", *modern("subscriptions/listen", wishes, "sub"))
            await listen.head()
            await listen.event()
            async with wired(child.port) as slow:
                await slow.ask("POST", "/mcp", *tool("slow"))
                await slow.head()
                await slow.event()
                child.tell(number)
                assert (await slow.events())[-1].json["result"]["content"][0]["text"] == "slow"
            assert await general.events() == []
            assert [event.json["id"] for event in await listen.events()] == ["sub"]
            assert await child.ends() == 0
            assert child.said == ""

    run(main)


def test_a_process_gives_up_what_does_not_end():
    async def main():
        async with process(drain=0.1) as child, wired(child.port) as wire:
            await wire.ask("POST", "/mcp", *tool("stuck"))
            await wire.head()
            await wire.event()
            child.tell(signal.SIGTERM)
            assert await wire.events() == []
            assert await child.ends() == 0
            assert child.said == ""

    run(main)


@pytest.mark.parametrize("name", ["deaf", "blocks"])
def test_a_process_that_cannot_end_is_ended(name):
    async def main():
        async with process(drain=0.1, grace=0.5) as child, wired(child.port) as wire:
            await wire.ask("POST", "/mcp", *tool(name))
            await wire.head()
            await wire.event()
            child.tell(signal.SIGTERM)
            assert await child.ends() == 1
            assert "does not end by itself" in child.said

    run(main)


async def workers_of(port: int, count: int) -> set[int]:
    """The processes that serve, once each of them has."""
    found: set[int] = set()
    while len(found) < count:
        found.add(await first_pid(port))
    return found


def gone(pid: int) -> bool:
    """Whether a process is no more; one of nobody's is reaped by whoever reaps such."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_workers_serve_are_replaced_and_end_together():
    async def main():
        async with process(workers=2, stateless=True, probation=0) as child:
            first = await workers_of(child.port, 2)
            assert child.process.pid not in first
            victim = min(first)
            os.kill(victim, signal.SIGKILL)
            await until(lambda: gone(victim))
            second = await workers_of(child.port, 2)
            assert len(second & first) == 1
            child.tell(signal.SIGTERM)
            assert await child.ends() == 0
            assert "is replaced" in child.said
            await until(lambda: all(map(gone, first | second)))

    run(main)


def test_workers_end_with_their_parent_however_it_dies():
    async def main():
        async with process(workers=2, stateless=True) as child:
            pids = await workers_of(child.port, 2)
            child.tell(signal.SIGKILL)
            await child.process.wait()
            await until(lambda: all(map(gone, pids)))

    run(main)


def test_workers_that_die_at_once_are_not_replaced_for_ever():
    async def main():
        async with process(workers=2, stateless=True, probation=1000) as child:
            pids = await workers_of(child.port, 2)
            os.kill(min(pids), signal.SIGKILL)
            assert await child.ends() == 1
            assert "a worker has ended with code -9 as soon as it was started" in child.said
            await until(lambda: all(map(gone, pids)))

    run(main)


@pytest.mark.parametrize("look", [http_life.LOOK, 0.0], ids=["now and then", "all the time"])
def test_a_call_over_http_and_sse_is_finished_too(look, monkeypatch):
    """Its session has no request any more before the client has its answer: the stream ends behind both."""
    monkeypatch.setattr(http_life, "LOOK", look)

    async def main():
        stage = Stage()
        app = kitchen(stage).asgi(drain=PATIENCE)
        async with serving(app) as site:
            old, _ = await site.begin("GET", GET, target="/sse")
            place = (await old.event()).data
            idle, _ = await site.begin("GET", GET, target="/sse")
            await idle.event()
            for body in (
                opening(),
                message("notifications/initialized"),
                message("tools/call", call("quiet"), 1),
            ):
                assert (await site.ask("POST", place, legacy(revision=None), body)).status == 202
            assert (await old.event()).json["id"] == 0
            await stage.begun.wait()
            stopping = asyncio.create_task(app.stop())
            assert await idle.events() == []
            stage.go.set()
            assert [event.json["id"] for event in await old.events()] == [1]
            await stopping

    run(main)


def test_an_asgi_server_that_cancels_a_stream_hears_nothing():
    async def main():
        app = kitchen().asgi()
        async with serving(app) as site:
            session = await site.open()
            general, _ = await site.begin("GET", {**GET, "Mcp-Session-Id": session})
            await general.event()
            [task] = [
                task
                for task in asyncio.all_tasks()
                if "run_asgi" in repr(task.get_coro()) and not task.done()
            ]
            task.cancel()
            assert await general.events() == []
            await task  # it does not raise
            await app.stop()

    run(main)


@pytest.mark.parametrize("is_async", [False, True])
def test_who_speaks_may_have_to_be_looked_up(is_async):
    def known(scope):
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async def looked_up(scope):
        await asyncio.sleep(0)
        return known(scope)

    async def main():
        async with serving(kitchen().asgi(principal=looked_up if is_async else known)) as site:
            opened = await site.post({**legacy(), "X-User": "ann"}, opening())
            session = opened.headers["mcp-session-id"]
            for user, status in (("ann", 202), ("bob", 404)):
                headers = {**legacy(session), "X-User": user}
                assert (await site.post(headers, message("notifications/initialized"))).status == status

    run(main)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"port": 8000}, "there is no port=; what HTTP takes: allowed_hosts, "),
        ({"allowed_host": []}, "there is no allowed_host="),
    ],
)
def test_a_keyword_that_there_is_not_is_told_with_those_that_there_are(given, told):
    with pytest.raises(TypeError, match=told):
        kitchen().asgi(**given)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "127.0.0.1", "127.0.0.1:port", 8000])
def test_an_address_that_is_none_is_told(address):
    with pytest.raises(ValueError, match=r"write it like '127\.0\.0\.1:8000'"):
        kitchen().run(http=address)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(exchanges, "SLOW", 0.05)

    async def main():
        async with serving(kitchen().asgi()) as site:
            for part in (b"", b'{"jsonrpc":'):
                wire = await site.wire()
                headers = {**legacy(), "Content-Length": "100"}
                await wire.ask("POST", "/mcp", headers, part, length=False)
                assert (await wire.answer()).status == 408

    run(main)
