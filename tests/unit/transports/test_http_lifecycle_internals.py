"""The start and the end of an endpoint: with and without a lifespan, in our own loop, and as a process."""

import asyncio
import inspect
import os
import re
import signal
import threading
from contextlib import asynccontextmanager
from typing import Any

import pytest

import leak_check
from hosted import (
    PATIENCE,
    Stage,
    call,
    kept,
    kitchen,
    legacy,
    message,
    modern,
    opening,
    run,
    serving,
)
from raw_http import wired
from toolpost import Server
from toolpost.server.http import exchange as exchanges
from toolpost.server.http import serve
from toolpost.server.options import HttpOptions
from toolpost.stores.memory import MemoryStore
from waiting import until

GET = {"Accept": "text/event-stream"}
TOKEN = {"progressToken": 1}
ECHO = modern("tools/call", call("echo", text="hi"))


def tool(name: str, **arguments: Any) -> tuple[dict[str, str], bytes]:
    return modern("tools/call", call(name, **arguments), meta=TOKEN)


def test_an_application_serves_in_one_loop_until_that_loop_stops():
    app: Any = kitchen().asgi()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.start())
    begun, thread = app._worker, threading.Thread(target=loop.run_forever)
    thread.start()

    async def main(status: int, *, serves: bool):
        async with serving(app, lifespan="off") as site:
            assert (await site.post(*ECHO)).status == status
            assert (app._worker.loop is asyncio.get_running_loop()) is serves

    try:
        run(lambda: main(500, serves=False))  # requests of two loops would share what one of them owns
        assert app._worker is begun
        assert begun.is_open
        asyncio.run_coroutine_threadsafe(begun.end(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    run(lambda: main(200, serves=True))
    loop.close()


def test_a_loop_that_ends_without_a_word_hurts_no_other():
    """A test client may discard its loop in the middle of a request."""
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
        await until(lambda: app._worker is not None and app._worker.running)
        assert not working.done()

    asyncio.run(first())
    assert leak_check.cut_off
    leak_check.cut_off.clear()

    async def second():
        async with serving(app, lifespan="off") as site:
            assert (await site.post(*ECHO)).status == 200
            assert not app._worker.running

    run(second)


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
            await until(lambda: len(app._worker.running) == 3)
            stopping = asyncio.create_task(app.stop())
            assert await noisy.events() == []
            await until(lambda: stage.log == ["cancelled"] * 2)
            if name == "stubborn":  # it had an answer after all
                stage.go.set()
            for wire in (new, old):
                answer = await wire.answer()
                assert answer.status == (503 if name == "wait" else 200)
            await stopping

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
    """`serve_http` in a task, and its output on stderr."""
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


def test_serve_http_handles_signals_and_restores_the_handlers(capfd):
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


@pytest.mark.requirement("HTTP-3", "SSE-6")
@pytest.mark.parametrize("address", [":0", "0", "localhost:0", "[::1]:0"])
def test_an_address_is_local_by_default(address):
    with serve._bind_socket(address) as listening:
        assert listening.getsockname()[0] in {"127.0.0.1", "::1"}
    assert inspect.signature(Server.serve_http).parameters["address"].default == "127.0.0.1:8000"


def test_there_is_a_worker_at_least():
    with pytest.raises(ValueError, match="at least 1"):
        kitchen().run(http="127.0.0.1:0", workers=0)


@pytest.mark.parametrize(
    ("store", "stateless"), [("memory://", True), (MemoryStore(), True), ("redis://127.0.0.1:1", False)]
)
def test_workers_without_a_common_store_serve_without_sessions_and_say_so(store, stateless, capsys):
    server = kitchen(store=store)
    options = serve._choose_worker_options(server, HttpOptions(workers=2))
    assert options.stateless is stateless
    said = capsys.readouterr().err
    assert ("2 workers without a shared store: clients up to 2025-11-25 get no sessions" in said) is stateless
    assert said.count("\n") == stateless
    assert serve._choose_worker_options(server, options) == options
    assert not capsys.readouterr().err


def test_a_call_over_http_and_sse_is_finished_too():
    """Its session has no request any more before the client has its answer: the stream ends behind both."""

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


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(exchanges, "BODY_CHUNK_TIMEOUT", 0.05)

    async def main():
        async with serving(kitchen().asgi()) as site:
            for part in (b"", b'{"jsonrpc":'):
                wire = await site.wire()
                headers = {**legacy(), "Content-Length": "100"}
                await wire.ask("POST", "/mcp", headers, part, length=False)
                assert (await wire.answer()).status == 408

    run(main)
