"""The start and the end of an endpoint: with and without a lifespan, in our own loop, and as a process."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hosted import (
    PATIENCE,
    Site,
    Stage,
    call,
    hosted,
    kitchen,
    legacy,
    message,
    modern,
    opening,
    run,
    serving,
)
from raw_http import wired
from toolpost import Context, Server
from waiting import until

PROGRAM = str(Path(__file__).parents[2] / "support" / "programs" / "http_server.py")
GET = {"Accept": "text/event-stream"}
TOKEN = {"progressToken": 1}
ECHO = modern("tools/call", call("echo", text="hi"))


def tool(name: str, **arguments: Any) -> tuple[dict[str, str], bytes]:
    return modern("tools/call", call(name, **arguments), meta=TOKEN)


def alive(log: list[str], fails: list[bool] | None = None):
    """A lifespan that records its events, and fails as often as the list says."""

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


def test_functions_get_the_value_of_the_lifespan():
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


def test_a_client_that_disconnects_early_cancels_nothing():
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
    """Streams end at once and no new ones open; calls finish; connections close; the lifespan ends."""

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
            # A kept connection is served once more, and closed.
            for wire, (headers, body) in zip(
                (idle, *[await site.wire() for _ in range(2)]),
                (ECHO, (legacy(), opening()), (legacy(session), message("ping", id=9))),
                strict=True,
            ):
                await wire.ask("POST", "/mcp", headers, body)
                last = await wire.answer()
                assert (last.status, last.headers["connection"]) == (200, "close")
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


def test_serve_http_raises_the_exception_of_the_lifespan(capfd):
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
    with pytest.raises(ValueError, match="invalid address"):
        kitchen().run(http=address)


def test_an_address_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            kitchen().run(http=address)


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
        """Return its exit code; `said` has its output."""
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
    """Return the id of the process that serves a new connection."""
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


def test_a_process_abandons_work_that_does_not_end():
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
            assert "did not stop within" in child.said

    run(main)


async def workers_of(port: int, count: int) -> set[int]:
    """The processes that serve, once each of them has."""
    found: set[int] = set()
    while len(found) < count:
        found.add(await first_pid(port))
    return found


def gone(pid: int) -> bool:
    """Return whether a process is gone; an orphan is reaped by its new parent."""
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
            assert "starting a new one" in child.said
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


def test_workers_that_die_as_soon_as_they_serve_are_replaced():
    async def main():
        async with process(workers=2, stateless=True, probation=1000) as child:
            pids = await workers_of(child.port, 2)
            for _ in range(2):
                victim = min(pids)
                os.kill(victim, signal.SIGKILL)
                await until(partial(gone, victim))
                pids = await workers_of(child.port, 2)
            child.tell(signal.SIGTERM)
            assert await child.ends() == 0
            for pause in ("0.1", "0.2"):
                assert f"starting a new one in {pause} s" in child.said

    run(main)


def test_a_first_worker_that_cannot_serve_ends_the_server():
    program = """
import contextlib
from toolpost import Server

@contextlib.asynccontextmanager
async def broken(server):
    raise LookupError("no database")
    yield

Server("s", lifespan=broken).run(http="127.0.0.1:0", workers=2, stateless=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no database" in done.stderr
    assert "a worker exited with code 1 before it could serve" in done.stderr


def test_an_asgi_server_that_cancels_a_stream_gets_no_error():
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
def test_the_principal_may_be_looked_up_asynchronously(is_async):
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
        ({"port": 8000}, r"^Server\.asgi\(\) has no keyword 'port'$"),
        ({"allowed_host": []}, "has no keyword 'allowed_host'; did you mean allowed_hosts"),
    ],
)
def test_an_unknown_keyword_is_reported(given, told):
    with pytest.raises(TypeError, match=told):
        kitchen().asgi(**given)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "127.0.0.1", "127.0.0.1:port", 8000])
def test_an_invalid_address_is_reported(address):
    with pytest.raises(ValueError, match=r"such as '127\.0\.0\.1:8000'"):
        kitchen().run(http=address)
