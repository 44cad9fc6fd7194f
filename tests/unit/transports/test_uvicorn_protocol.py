"""Request heads on uvicorn: bounded in size and time, without upgrades, with reports of disconnects."""

import asyncio
import gc
import re
import sys
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosted import Site, Stage, call, kitchen, legacy, message, modern, opening, run, serving
from raw_http import wired
from toolpost.protocol.line_framing import READ_SIZE
from toolpost.server.http import disconnect_timer, serve
from toolpost.server.http.disconnect_timer import CONNECTION_MONITOR
from toolpost.server.http.exchange import HttpExchange
from toolpost.server.http.security import MAX_HEADERS
from toolpost.server.http.uvicorn import MAX_PIPELINED, make_bounded_protocol
from waiting import until

ECHO = modern("tools/call", call("echo", text="hi"))
ENOUGH = MAX_HEADERS + 1


@asynccontextmanager
async def guarded(stage: Stage | None = None):
    """A server behind the protocol that `run` and `serve_http` use."""
    async with serving(kitchen(stage).asgi(), http=make_bounded_protocol()) as site:
        yield site


def test_run_and_serve_http_use_it():
    app: Any = kitchen().asgi()
    protocol: Any = serve._make_uvicorn_server(app).config.http
    assert protocol.__name__ == "BoundedHttpProtocol"


@pytest.mark.parametrize("name", ["Upgrade", "upgrade", "UPGRADE"])
@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
@pytest.mark.parametrize("parted", [False, True])
def test_an_offer_to_upgrade_is_ignored(name, protocol, parted):
    """The HTTP client of Java offers HTTP/2 with each first request; uvicorn would drop the body."""

    async def main():
        headers, body = ECHO
        offer = {name: protocol, "Connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAMAAABk"}
        async with guarded() as site, wired(site.port) as wire:
            if parted:
                length = {"Content-Length": str(len(body))}
                await wire.ask("POST", "/mcp", {**headers, **offer, **length, "Expect": "100-continue"})
                assert (await wire.head()).status == 100
                await wire.send(body)
            else:
                await wire.ask("POST", "/mcp", {**headers, **offer}, body)
            assert (await wire.answer()).json["result"]["content"][0]["text"] == "hi"
            await wire.ask("POST", "/mcp", *ECHO)
            assert (await wire.answer()).status == 200

    run(main)


def test_a_connection_reads_small_chunks():
    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            exchange = await begin(site, stage, wire, "quiet")
            assert exchange.scope[CONNECTION_MONITOR].transport.max_size == READ_SIZE

    run(main)


def test_only_heads_are_checked():
    """A body, or the rest of one, passes through unchanged."""

    async def main():
        body = b'{"jsonrpc":"2.0",\r\nupgrade:'
        headers = {**legacy(), "Content-Length": str(2 * len(body)), "Expect": "100-continue"}
        async with guarded() as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", headers)
            assert (await wire.head()).status == 100
            await wire.send(body)
            await wire.send(body)
            answer = await wire.answer()
            assert answer.status == 400
            assert re.search(r"byte 19\b", answer.text), answer

    run(main)


@pytest.mark.parametrize(
    "line",
    [b"X: " + b"a" * ENOUGH, b"X: y\r\n" * (ENOUGH // 6 + 1), b"X" * ENOUGH],
    ids=["value", "lines", "name"],
)
def test_an_endless_head_is_rejected(line):
    async def main():
        async with guarded() as site, wired(site.port) as wire:
            await wire.send(f"POST /mcp HTTP/1.1\r\nHost: {wire.authority}\r\n".encode() + line)
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (431, "close")
            assert str(MAX_HEADERS) in answer.text
            assert await wire.ended()

    run(main)


def test_an_endless_head_behind_another_request_ends_the_connection():
    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", *modern("tools/call", call("quiet")))
            await stage.begun.wait()
            await wire.send(b"POST /mcp HTTP/1.1\r\nX: " + b"a" * ENOUGH)
            assert await wire.ended()

    run(main)


def test_many_heads_on_one_connection_are_not_added_up():
    async def main():
        async with guarded() as site, wired(site.port) as wire:
            for _ in range(4):
                headers = {**legacy(revision=None), "X": "a" * (MAX_HEADERS // 3)}
                await wire.ask("POST", "/mcp", headers, opening())
                session = (await wire.answer()).headers["mcp-session-id"]
                await wire.ask("DELETE", "/mcp", {**headers, "Mcp-Session-Id": session})
                assert (await wire.answer()).status == 200
            await wire.ask("POST", "/mcp", legacy("x"), message("ping", id=1))
            assert (await wire.answer()).status == 404

    run(main)


def test_a_lost_connection_leaves_nothing_behind():
    """Clients that disconnect while their connection is kept alive, many times a second perhaps."""

    def left() -> list[Any]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each).__name__ == "BoundedHttpProtocol"]

    async def main():
        async with serving(kitchen().asgi(), http=make_bounded_protocol(), timeout_keep_alive=3600) as site:
            before = len(left())
            for _ in range(3):
                wire = await site.wire()
                await wire.ask("POST", "/mcp", *ECHO)
                assert (await wire.answer()).status == 200
                await wire.abort()
            await until(lambda: len(left()) == before)

    run(main)


def test_a_lost_connection_leaves_no_reference_cycle():
    """A reference cycle would stay until the next collection: a busy server has thousands of them by then."""

    def left() -> int:
        return sum(type(each).__name__ == "BoundedHttpProtocol" for each in gc.get_objects())

    async def main():
        async with serving(kitchen().asgi(), http=make_bounded_protocol()) as site:
            gc.collect()
            gc.disable()
            try:
                before = left()
                wire = await site.wire()
                await wire.ask("POST", "/mcp", *ECHO)
                assert (await wire.answer()).status == 200
                assert left() == before + 1
                await wire.abort()
                await until(lambda: left() == before)
            finally:
                gc.enable()

    run(main)


# --------------------------------------------------------------------- disconnects


@pytest.fixture
def _deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting does not detect a disconnect."""

    async def gone(_: HttpExchange) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HttpExchange, "_wait_for_disconnect", gone)


def listening(session: str) -> dict[str, str]:
    return {"Accept": "text/event-stream", "Mcp-Session-Id": session}


def is_monitored(exchange: Any) -> bool:
    """Whether the connection will report a disconnect, so that no task waits for it."""
    return exchange._keep_alive_timer is not None and exchange._disconnect_task is None


async def looked_after(site: Site) -> None:
    """Return when the disconnect of the one listening client would be reported."""
    (exchange,) = site.app._worker.listening
    await until(lambda: is_monitored(exchange))


@pytest.mark.usefixtures("_deaf")
def test_a_stream_ends_with_its_client_although_no_task_waits():
    async def main():
        async with guarded() as site:
            wire, _ = await site.begin("GET", listening(await site.open()))
            await looked_after(site)
            await wire.abort()
            await until(lambda: not site.app._worker.listening)

    run(main)


def test_an_open_stream_has_one_task_and_no_headers():
    async def main():
        async with guarded() as site:
            sessions = [await site.open() for _ in range(10)]
            before = len(asyncio.all_tasks())
            for session in sessions:
                await site.begin("GET", listening(session))
            open_now = site.app._worker.listening
            await until(lambda: len(open_now) == 10 and all(each._keep_alive_timer for each in open_now))
            await until(lambda: all(is_monitored(each) for each in open_now))
            assert len(asyncio.all_tasks()) == before + 10
            for exchange in open_now:
                assert (exchange.method, exchange.path, exchange.headers) == ("GET", "/mcp", {})

    run(main)


@pytest.mark.usefixtures("_deaf")
def test_a_call_with_a_large_body_is_cancelled_with_its_client():
    """uvicorn stops reading a large body until the application asks for it, and misses the disconnect."""

    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            headers, body = modern("tools/call", {**call("wait"), "_meta": {}}, meta={"x": "a" * 200_000})
            await wire.ask("POST", "/mcp", headers, body)
            await stage.begun.wait()
            await until(lambda: all(is_monitored(each) for each in site.app._worker.running))
            await wire.abort()
            await stage.ended.wait()
            assert stage.log == ["cancelled"]

    run(main)


def test_the_stream_of_a_client_that_is_already_gone_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disconnect_timer, "CHECK_INTERVAL", 3600.0)

    async def main():
        async with guarded() as site:
            wire, _ = await site.begin("GET", listening(await site.open()))
            await until(lambda: site.app._worker.listening)
            (exchange,) = site.app._worker.listening
            tell = exchange.scope[CONNECTION_MONITOR]
            await until(lambda: exchange._working_task is not None)
            await wire.abort()
            await until(lambda: tell._served is None)
            exchange.start_watching()
            await until(lambda: not site.app._worker.listening)

    run(main)


def test_a_stream_requested_with_a_body_ends_with_its_client():
    """A task that waits for the disconnect reads the body first, so one task has to wait."""

    async def main():
        async with guarded() as site:
            wire, _ = await site.begin("GET", listening(await site.open()), b"x" * 100_000)
            (exchange,) = site.app._worker.listening
            await until(lambda: exchange._disconnect_task is not None)
            await wire.abort()
            await until(lambda: not site.app._worker.listening)

    run(main)


async def begin(site: Site, stage: Stage, wire: Any, tool: str, behind: int = 0) -> Any:
    """Call a tool that does not end, with this many requests behind it."""
    await wire.ask("POST", "/mcp", *modern("tools/call", call(tool)))
    for _ in range(behind):
        await wire.ask("POST", "/mcp", *ECHO)
    await stage.begun.wait()
    (exchange,) = site.app._worker.running
    await until(lambda: len(exchange.scope[CONNECTION_MONITOR].pipeline) == behind)
    return exchange


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_call_before_pipelined_requests_ends_with_its_client(before, after):
    """uvicorn reports the disconnect only to the last of them, and reads no more behind two requests."""

    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            exchange = await begin(site, stage, wire, "wait", before)
            await until(lambda: is_monitored(exchange))
            for _ in range(after):
                await wire.ask("POST", "/mcp", *ECHO)
            await until(lambda: len(exchange.scope[CONNECTION_MONITOR].pipeline) == before + after)
            await wire.abort()
            await stage.ended.wait()
            assert stage.log == ["cancelled"]

    run(main)


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_a_client_that_is_already_gone_is_detected(monkeypatch, caplog, behind):
    monkeypatch.setattr(disconnect_timer, "CHECK_INTERVAL", 3600.0)

    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            exchange = await begin(site, stage, wire, "wait", behind)
            await wire.abort()
            await until(lambda: CONNECTION_MONITOR not in exchange.scope)
            exchange.start_watching()
            await stage.ended.wait()
            assert stage.log == ["cancelled"]
            await until(lambda: not site.app._worker.running)

    run(main)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_pipelined_requests_are_read_no_faster_than_they_are_served():
    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            exchange = await begin(site, stage, wire, "quiet")
            await until(lambda: is_monitored(exchange))
            heads = exchange.scope[CONNECTION_MONITOR]
            for _ in range(MAX_PIPELINED - 1):
                await wire.ask("POST", "/mcp", *ECHO)
            await until(lambda: len(heads.pipeline) == MAX_PIPELINED - 1)
            assert not heads.flow.read_paused
            await wire.ask("POST", "/mcp", *ECHO)
            await until(lambda: heads.flow.read_paused)
            await wire.ask("POST", "/mcp", *ECHO)
            stage.go.set()
            for _ in range(2 + MAX_PIPELINED):
                assert (await wire.answer()).status == 200

    run(main)


def test_a_late_unwatch_does_not_affect_the_next_request():
    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            exchange = await begin(site, stage, wire, "wait")
            await until(lambda: is_monitored(exchange))
            exchange.scope[CONNECTION_MONITOR].unwatch_disconnect(object())
            await wire.abort()
            await stage.ended.wait()
            assert stage.log == ["cancelled"]

    run(main)


def test_a_connection_continues_after_a_watched_call():
    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", *modern("tools/call", call("quiet")))
            await stage.begun.wait()
            await until(lambda: all(is_monitored(each) for each in site.app._worker.running))
            stage.go.set()
            assert (await wire.answer()).status == 200
            await wire.ask("POST", "/mcp", *ECHO)
            assert (await wire.answer()).status == 200
            await wire.abort()

    run(main)


# --------------------------------------------------------------------- bodies


def test_a_buffered_body_is_not_read_in_parts(monkeypatch: pytest.MonkeyPatch):
    async def main():
        async with guarded() as site:
            asked: list[Any] = []
            inner = HttpExchange._receive_parts
            monkeypatch.setattr(
                HttpExchange, "_receive_parts", lambda self, *rest: asked.append(rest) or inner(self, *rest)
            )
            headers, body = ECHO
            assert (await site.post(headers, body)).json["result"]["content"][0]["text"] == "hi"
            assert not asked
            async with wired(site.port) as wire:
                head = {**headers, "Content-Length": str(len(body))}
                await wire.ask("POST", "/mcp", head, body[:9], length=False)
                await until(lambda: asked)
                await wire.send(body[9:])
                assert (await wire.answer()).json["result"]["content"][0]["text"] == "hi"

    run(main)


def test_a_body_changed_by_middleware_is_used():
    app = kitchen().asgi()

    async def between(scope: Any, receive: Any, send: Any) -> None:
        async def changed() -> Any:
            event = await receive()
            return {**event, "body": event.get("body", b"").replace(b'"hi"', b'"ho"')}

        await app(scope, changed if scope["type"] == "http" else receive, send)

    async def main():
        async with serving(between, http=make_bounded_protocol()) as site:
            answer = await site.post(*ECHO)
            assert answer.json["result"]["content"][0]["text"] == "ho"

    run(main)


def test_an_oversized_body_is_rejected_while_it_is_read():
    async def main():
        async with (
            serving(kitchen().asgi(max_body=100), http=make_bounded_protocol()) as site,
            wired(site.port) as wire,
        ):
            headers, body = ECHO
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            await wire.ask("POST", "/mcp", {**headers, "Transfer-Encoding": "chunked"})
            await wire.send(chunk)
            assert (await wire.answer()).status == 413

    run(main)


def test_another_parser_has_its_own_limit(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    assert make_bounded_protocol() is None
