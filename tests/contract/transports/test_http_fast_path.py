"""Calls over HTTP that complete immediately: headers and limits apply to their own request only."""

import asyncio
import json
from typing import Any

import pytest

from hosted import NEW, OLD, call, hosted, legacy, message, modern, run
from toolpost import Server
from toolpost.testing import REVISIONS
from toolpost.types import CLIENT_CAPABILITIES, PROTOCOL_VERSION

LONG = 400
"""Bytes of a body. All have as many, so that their heads are the same."""


def padded(body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert len(data) <= LONG
    return data.ljust(LONG)


def adder(**options: Any) -> Server:
    server = Server("s", **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def sub(a: int, b: int) -> int:
        return a - b

    return server


HEADERS, BODY = modern("tools/call", call("add", a=1, b=2))
GOOD = json.loads(BODY)


def changed(**params: Any) -> dict[str, Any]:
    return {**GOOD, "params": {**GOOD["params"], **params}}


def meta(**other: Any) -> dict[str, Any]:
    return changed(_meta={**GOOD["params"]["_meta"], **other})


SPOILED: dict[str, tuple[Any, int, int]] = {
    "another method": ({**GOOD, "method": "tools/list"}, 400, -32020),
    "another name": (changed(name="sub"), 400, -32020),
    "an older revision": (meta(**{PROTOCOL_VERSION: OLD}), 400, -32020),
    "no capabilities": (changed(_meta={PROTOCOL_VERSION: NEW}), 400, -32602),
    "capabilities of no kind": (meta(**{CLIENT_CAPABILITIES: 5}), 400, -32602),
    "no facts": (changed(_meta=None), 400, -32602),
    "an id of no kind": ({**GOOD, "id": True}, 400, -32600),
    "a batch": ([GOOD], 400, -32600),
    "an answer": ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400, -32600),
    "no JSON": (b"{", 400, -32700),
    "no name": (changed(name=5), 200, -32602),
}


@pytest.mark.requirement("HDR-1", "HDR-23", "META-7", "META-8", "HTTPM-17")
@pytest.mark.parametrize("what", SPOILED)
def test_what_a_head_has_settled_is_settled_for_bodies_that_agree_with_it(what: str):
    body, status, code = SPOILED[what]

    async def main():
        async with hosted(adder()) as site:
            for _ in range(5):
                answer = await site.post(HEADERS, padded(BODY))
                assert json.loads(answer.body)["result"]["structuredContent"] == {"result": 3}
            refused = await site.post(HEADERS, padded(body))
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (status, code), refused
            fresh = await site.post({**HEADERS, "User-Agent": "new"}, padded(body))
            assert (fresh.status, fresh.body) == (refused.status, refused.body)
            again = await site.post(HEADERS, padded(BODY))
            assert json.loads(again.body)["result"]["structuredContent"] == {"result": 3}

    run(main)


@pytest.mark.requirement("HTTPL-27")
def test_what_a_head_has_settled_in_a_session_is_settled_for_requests_of_that_session():
    async def main():
        async with hosted(adder()) as site:
            session = await site.open()
            headers, plain = legacy(session), message("tools/call", call("add", a=1, b=2), 1)
            for _ in range(3):
                answer = await site.post(headers, padded(plain))
                assert json.loads(answer.body)["result"]["structuredContent"] == {"result": 3}
            # A body that says that it is of the other era goes there, and its headers do not fit then.
            marked = await site.post(headers, padded(BODY))
            assert (marked.status, json.loads(marked.body)["error"]["code"]) == (400, -32020)
            # Also if it is written in an odd way.
            odd = BODY.replace(
                b"modelcontextprotocol/protocolVersion", b"modelcontextprotocol\\/protocolVersion"
            )
            assert odd != BODY
            assert (await site.post(headers, padded(odd))).status == 400
            opened = await site.post(headers, padded(message("initialize", {"protocolVersion": OLD}, 2)))
            assert "error" in json.loads(opened.body)
            assert (await site.post(headers, padded(message("notifications/initialized")))).status == 202
            assert (await site.ask("DELETE", "/mcp", headers)).status == 200
            assert (await site.post(headers, padded(plain))).status == 404

    run(main)


def test_an_id_in_use_is_refused_to_a_call_that_would_end_at_once():
    server = adder()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @server.tool
    async def waits() -> int:
        begun.set()
        await go_on.wait()
        return 7

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            waiting = asyncio.create_task(site.post(legacy(session), message("tools/call", call("waits"), 1)))
            await begun.wait()
            refused = await site.post(legacy(session), message("tools/call", call("add", a=1, b=2), 1))
            assert json.loads(refused.body)["error"]["code"] == -32600
            served = await site.post(legacy(session), message("tools/call", call("add", a=1, b=2), 2))
            assert json.loads(served.body)["result"]["structuredContent"] == {"result": 3}
            go_on.set()
            assert json.loads((await waiting).body)["result"]["structuredContent"] == {"result": 7}

    run(main)


@pytest.mark.parametrize("era", ["stateless", "session"])
def test_the_principal_is_requested_each_time(era: str):
    """It may be a reason to refuse."""
    asked: list[str] = []

    def who(scope: Any) -> str | None:
        asked.append(scope["method"])
        if len(asked) > limit:
            raise PermissionError
        return None

    limit = 100

    async def main():
        nonlocal limit
        async with hosted(adder(), principal=who) as site:
            if era == "stateless":
                ask = HEADERS, BODY
            else:
                ask = legacy(await site.open()), message("tools/call", call("add", a=1, b=2), 1)
            before = len(asked)
            for _ in range(3):
                assert (await site.post(*ask)).status == 200
            assert len(asked) == before + 3
            limit = 0
            assert (await site.post(*ask)).status == 500

    run(main)


@pytest.mark.parametrize("revision", [NEW, OLD])
def test_calls_that_wait_count_and_those_that_end_at_once_are_refused_if_there_are_too_many(revision: str):
    server = adder(max_in_flight=2)
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    @server.tool
    async def waits() -> int:
        begun.release()
        await go_on.wait()
        return 7

    async def main():
        async with hosted(server) as site:
            session = "" if REVISIONS[revision].stateless else await site.open(revision)

            def post(name: str, number: int, **arguments: Any) -> Any:
                params = call(name, **arguments)
                if not session:
                    return site.post(*modern("tools/call", params, number))
                return site.post(legacy(session), message("tools/call", params, number))

            waiting = [asyncio.create_task(post("waits", number)) for number in (1, 2)]
            for _ in waiting:
                await begun.acquire()
            refused = await post("add", 3, a=1, b=2)
            assert "Too many requests" in json.loads(refused.body)["error"]["message"]
            go_on.set()
            for one in waiting:
                assert "result" in json.loads((await one).body)
            assert "result" in json.loads((await post("add", 4, a=1, b=2)).body)

    run(main)


@pytest.mark.requirement("HTTPM-10")
def test_a_call_that_waits_is_cancelled_with_its_client():
    server = Server("s")
    begun, ended = asyncio.Event(), asyncio.Event()

    @server.tool
    async def waits() -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 7

    async def main():
        async with hosted(server) as site:
            wire = await site.wire()
            headers, body = modern("tools/call", call("waits"))
            await wire.ask("POST", "/mcp", headers, body)
            await begun.wait()
            await wire.close()
            await ended.wait()

    run(main)


@pytest.mark.parametrize("ask", ["wrong name", "unknown method", "bad params"])
def test_the_principal_is_checked_before_the_request_is_validated(ask: str):
    def who(_scope: Any) -> str:
        raise PermissionError

    asks = {
        "wrong name": ({**HEADERS, "Mcp-Name": "other"}, BODY),
        "unknown method": modern("tools/nonsense"),
        "bad params": ({**HEADERS}, message("tools/call", changed(name=5)["params"], 1)),
    }

    async def main():
        async with hosted(adder(), principal=who) as site:
            assert (await site.post(*asks[ask])).status == 500

    run(main)


def test_a_large_answer_that_is_being_sent_is_waited_for():
    """Also for an immediate response: a server that stops still sends it."""
    server = Server("s")

    @server.tool
    async def large() -> str:
        return "x" * 200_000

    async def main():
        app = server.asgi(drain=5)
        headers, body = modern("tools/call", call("large"))
        headers["Host"] = "localhost"
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "headers": [
                (b"host", b"localhost"),
                *((k.lower().encode(), v.encode()) for k, v in headers.items()),
            ],
            "client": ("127.0.0.1", 1),
        }
        slow, begun, sent = asyncio.Event(), asyncio.Event(), []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": bytearray(body)}  # as some servers give it

        async def send(event: Any) -> None:
            begun.set()
            await slow.wait()
            sent.append(event)

        await app.start()
        serving = asyncio.create_task(app(scope, receive, send))
        await begun.wait()
        stopping = asyncio.create_task(app.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        slow.set()
        await stopping
        assert len(sent) == 2
        await serving

    run(main)
