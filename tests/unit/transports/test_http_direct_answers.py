"""Responses that bypass the event stream: their order, their receiver, and their clean-up."""

import asyncio
import json
import types
from typing import Any

from hosted import OLD, Stage, call, hosted, kitchen, legacy, message, run
from toolpost import Context, Server
from waiting import until


def tool(name: str, id: Any, **arguments: Any) -> bytes:  # noqa: A002 - the protocol's word
    return message("tools/call", call(name, **arguments), id)


def load_of(site: Any) -> Any:
    return site.app._worker.counts


def adding(stage: Stage | None = None) -> Server:
    """The usual tools, and one that neither waits nor needs a thread."""
    server = kitchen(stage)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


def logs_of(server: Server) -> list[str]:
    held: Any = server.store
    return [*held.logs._logs._items]


def test_an_answer_that_nothing_came_before_leaves_no_stream():
    server = adding()

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            before = logs_of(server)
            for number in range(3):
                answer = await site.post(legacy(session), tool("add", number, a=1, b=number))
                assert answer.json["result"]["structuredContent"] == {"result": 1 + number}
                assert logs_of(server) == before
            assert load_of(site).calls == 0

    run(main)


def test_messages_before_an_immediate_response_come_first():
    server = Server("lane")

    @server.tool
    async def says(ctx: Context) -> str:
        await ctx.info("first")
        return "second"

    async def main():
        async with hosted(server) as site:
            session = await site.open()
            wire, head = await site.begin("POST", legacy(session), tool("says", 1))
            assert head.headers["content-type"] == "text/event-stream"
            said = [event.json for event in await wire.events() if event.data]
            assert said[0]["params"]["data"] == "first"
            assert said[1]["result"]["content"][0]["text"] == "second"
            assert load_of(site).calls == 0

    run(main)


def test_an_id_in_use_is_refused_and_the_first_still_answered():
    async def main():
        stage = Stage()
        async with hosted(adding(stage)) as site:
            session = await site.open()
            first = asyncio.create_task(site.post(legacy(session), tool("quiet", 7)))
            await stage.begun.wait()
            second = await site.post(legacy(session), tool("add", 7, a=1, b=2))
            assert second.json["error"]["code"] == -32600
            stage.go.set()
            assert "result" in (await first).json
            assert load_of(site).calls == 0

    run(main)


def test_many_at_once_are_answered_each_with_its_own():
    async def main():
        async with hosted(adding()) as site:
            session = await site.open()
            posts = [site.post(legacy(session), tool("add", n, a=n, b=0)) for n in range(40)]
            answers = await asyncio.gather(*posts)
            told = {each.json["id"]: each.json["result"]["structuredContent"]["result"] for each in answers}
            assert told == {n: n for n in range(40)}
            assert load_of(site).calls == 0

    run(main)


def test_a_disconnect_before_the_response_frees_the_slot():
    async def main():
        stage = Stage()
        async with hosted(adding(stage)) as site:
            session = await site.open()
            gone = asyncio.create_task(site.post(legacy(session), tool("quiet", 1)))
            await stage.begun.wait()
            gone.cancel()
            await asyncio.wait([gone])
            assert load_of(site).calls == 1  # in a session no call is cancelled because of that
            stage.go.set()
            await until(lambda: load_of(site).calls == 0)
            answer = await site.post(legacy(session), tool("add", 1, a=1, b=2))
            assert answer.json["id"] == 1

    run(main)


def test_the_end_of_a_session_ends_the_wait_for_its_answers():
    async def main():
        stage = Stage()
        async with hosted(adding(stage)) as site:
            session = await site.open()
            waiting = asyncio.create_task(site.post(legacy(session), tool("quiet", 1)))
            await stage.begun.wait()
            ended = await site.ask("DELETE", "/mcp", {"Mcp-Session-Id": session, "MCP-Protocol-Version": OLD})
            assert ended.status == 200
            assert (await waiting).status == 404
            assert load_of(site).calls == 0
            stage.go.set()

    run(main)


def test_an_invalid_request_is_answered_at_once():
    async def main():
        async with hosted(adding()) as site:
            session = await site.open()
            odd = json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 3}}
            ).encode()
            assert (await site.post(legacy(session), odd)).json["error"]["code"] == -32602
            nobody = await site.post(legacy(session), message("no/such", {}, 2))
            assert nobody.json["error"]["code"] == -32601
            assert load_of(site).calls == 0

    run(main)


def test_a_body_that_comes_from_a_generator_is_read():
    @types.coroutine
    def receive():
        yield
        return {"type": "http.request", "body": message("ping", None, 1), "more_body": False}

    async def main():
        app = Server("s").asgi()
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        names = {**legacy(None), "host": "127.0.0.1"}
        headers = [(name.lower().encode(), value.encode()) for name, value in names.items()]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers}
        async with app.lifespan():
            await app(scope, receive, send)
        assert b"Missing header mcp-session-id" in sent[1]["body"]  # it was read, or that could not be known

    run(main)
