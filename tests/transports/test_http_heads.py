"""Heads of requests that uvicorn alone would read without end, or would read as an offer that we ignore."""

import gc
import re
import sys
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hosted import Stage, call, kitchen, legacy, message, modern, opening, run, serving
from leftovers import until
from raw_http import wired

import toolpost.web
from toolpost.transports.gate import MAX_HEADERS
from toolpost.transports.heads import heads

ECHO = modern("tools/call", call("echo", text="hi"))
ENOUGH = MAX_HEADERS + 1


@asynccontextmanager
async def guarded(stage: Stage | None = None):
    """A server behind the protocol that `run` and `serve_http` use."""
    async with serving(kitchen(stage).asgi(), http=heads()) as site:
        yield site


def test_who_serves_by_itself_uses_it():
    app: Any = kitchen().asgi()
    protocol: Any = toolpost.web._server(app).config.http
    assert protocol.__name__ == "Heads"


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


def test_only_a_head_is_looked_at():
    """A body, or what is left of one, comes through as it is."""

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
def test_a_head_without_end_is_refused(line):
    async def main():
        async with guarded() as site, wired(site.port) as wire:
            await wire.send(f"POST /mcp HTTP/1.1\r\nHost: {wire.authority}\r\n".encode() + line)
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (431, "close")
            assert str(MAX_HEADERS) in answer.text
            assert await wire.ended()

    run(main)


def test_a_head_without_end_behind_another_request_ends_the_connection():
    async def main():
        stage = Stage()
        async with guarded(stage) as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", *modern("tools/call", call("quiet")))
            await stage.begun.wait()
            await wire.send(b"POST /mcp HTTP/1.1\r\nX: " + b"a" * ENOUGH)
            assert await wire.ended()

    run(main)


def test_many_heads_on_one_connection_are_no_long_one():
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


def test_nothing_stays_of_a_connection_that_is_lost():
    """Whoever vanishes while its connection is kept alive, many times a second perhaps."""

    def left() -> list[Any]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each).__name__ == "Heads"]

    async def main():
        async with serving(kitchen().asgi(), http=heads(), timeout_keep_alive=3600) as site:
            before = len(left())
            for _ in range(3):
                wire = await site.wire()
                await wire.ask("POST", "/mcp", *ECHO)
                assert (await wire.answer()).status == 200
                await wire.abort()
            await until(lambda: len(left()) == before)

    run(main)


def test_another_parser_has_a_bound_of_its_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    assert heads() is None
