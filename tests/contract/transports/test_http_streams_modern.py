"""Requests of the stateless era: responses as JSON or in a stream, and cancellation."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosted import NEW, Stage, call, hosted, kitchen, legacy, message, modern, run
from raw_http import wired
from toolpost import Context, Server
from toolpost.errors import InvalidParams, MethodNotFound, MissingCapability
from toolpost.types import SUBSCRIPTION_ID
from waiting import until

TOKEN = {"progressToken": "t"}
LOGS = {"io.modelcontextprotocol/logLevel": "info"}


def tool(name: str, id: Any = 1, *, meta: Any = None, **arguments: Any) -> tuple[dict[str, str], bytes]:  # noqa: A002 - the protocol's word
    return modern("tools/call", call(name, **arguments), id, meta=meta)


def listen(id: Any = "sub", **wishes: Any) -> tuple[dict[str, str], bytes]:  # noqa: A002 - as above
    return modern("subscriptions/listen", {"notifications": wishes}, id)


@asynccontextmanager
async def stage_and_site(**web: Any):
    stage = Stage()
    async with hosted(kitchen(stage), **web) as site:
        yield stage, site
        stage.go.set()


# --------------------------------------------------------------------- JSON or a stream


@pytest.mark.requirement("HTTP-9", "HTTP-11", "HTTPM-5", "HTTPM-7")
def test_an_answer_is_json_unless_a_notification_comes_first():
    async def main():
        async with hosted(kitchen()) as site:
            assert (await site.post(*tool("steps", count=3))).json["result"]["resultType"] == "complete"
            wire, head = await site.begin("POST", *tool("steps", "x", meta=TOKEN, count=3))
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            assert head.headers["x-accel-buffering"] == "no"
            assert "no-cache" in head.headers["cache-control"]
            *told, answer = await wire.events()
            assert [event.json["params"]["progress"] for event in told] == [1, 2, 3]
            assert {event.json["params"]["progressToken"] for event in told} == {"t"}
            assert answer.json["id"] == "x"
            # There is nothing to come back to.
            assert {event.id for event in [*told, answer]} == {None}
            # And the connection serves on.
            await wire.ask("POST", "/mcp", *tool("echo", text="again"))
            assert (await wire.answer()).status == 200

    run(main)


@pytest.mark.requirement("HTTPM-6", "HTTPM-5")
def test_no_question_goes_out_on_a_stream():
    async def main():
        async with hosted(kitchen()) as site:
            wire = await site.wire()
            headers, body = modern("tools/call", call("asked"), capabilities={"elicitation": {}})
            await wire.ask("POST", "/mcp", headers, body)
            answer = await wire.answer()
            assert answer.headers["content-type"] == "application/json"
            assert "method" not in answer.json

    run(main)


def faulty() -> Server:
    server = Server("faulty")

    @server.tool
    async def fails(kind: str, first: bool, ctx: Context) -> str:
        if first:
            await ctx.progress(1)
        if kind == "method":
            raise MethodNotFound("Method not found: by the tool")
        if kind == "params":
            raise InvalidParams("Invalid params: by the tool")
        raise MissingCapability("needs more", {"requiredCapabilities": {"sampling": {}}})

    return server


@pytest.mark.requirement("HTTPM-18")
@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("method", 404, -32601), ("params", 200, -32602), ("capability", 400, -32021)],
)
def test_an_error_has_its_status_while_that_is_open(kind, status, code):
    async def main():
        async with hosted(faulty()) as site:
            early = await site.post(*tool("fails", kind=kind, first=False, meta=TOKEN))
            assert (early.status, early.code) == (status, code)
            wire, head = await site.begin("POST", *tool("fails", kind=kind, first=True, meta=TOKEN))
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
            _, last = await wire.events()
            assert last.json["error"]["code"] == code

    run(main)


def test_log_lines_come_if_the_request_wants_them():
    server = Server("logs")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.debug("low")
        await ctx.info("high")
        return "done"

    async def main():
        async with hosted(server) as site:
            assert (await site.post(*tool("work"))).json["result"]["content"][0]["text"] == "done"
            wire, head = await site.begin("POST", *tool("work", meta=LOGS))
            if head.headers["content-type"] == "text/event-stream":
                *told, _ = await wire.events()
                assert [event.json["params"]["data"] for event in told] == ["high"]

    run(main)


def test_events_are_sent_as_fast_as_they_are_read():
    """A function that sends more than its client reads waits for it, and memory does not grow."""
    server = Server("flood")
    said: list[int] = []

    @server.tool
    async def flood(ctx: Context) -> str:
        for number in range(400):
            await ctx.progress(number + 1, message="x" * 50_000)
            said.append(number)
        return "done"

    async def main():
        async with hosted(server) as site:
            wire, _ = await site.begin("POST", *tool("flood", meta=TOKEN))
            await until(lambda: said)
            before = -1
            while len(said) != before:  # until it has come to a halt
                before = len(said)
                for _ in range(50):
                    await asyncio.sleep(0)
            assert len(said) < 400
            assert len(await wire.events()) == 401

    run(main)


@pytest.mark.requirement("HTTPM-10", "HTTPM-11")
def test_a_function_in_a_thread_sees_that_the_request_has_ended():
    async def main():
        async with stage_and_site() as (stage, site):
            wire = await site.wire()
            await wire.ask("POST", "/mcp", *tool("blocked"))
            await stage.begun.wait()
            await wire.abort()
            await stage.thread_saw_cancel.wait()

    run(main)


def test_a_handler_that_raises_cancelled_error_is_answered():
    server = Server("odd")

    @server.tool
    async def odd() -> str:
        raise asyncio.CancelledError

    @server.tool
    async def odder() -> str:
        await asyncio.sleep(0)
        raise SystemExit(3)

    async def main():
        async with hosted(server) as site:
            for name in ("odd", "odder"):
                answer = await site.post(*tool(name))
                assert answer.status == 200
                assert "error" in answer.json or answer.json["result"]["isError"]

    run(main)


# --------------------------------------------------------------------- subscriptions


@pytest.mark.requirement("SUB-2", "SUB-3", "SUB-4", "SUB-6", "SUB-1")
def test_a_subscription_starts_with_the_accepted_filter():
    async def main():
        async with hosted(kitchen()) as site:
            wishes = {
                "toolsListChanged": True,
                "promptsListChanged": True,
                "resourceSubscriptions": ["kitchen://menu", "kitchen://none"],
            }
            for each in ("sub", 7):
                wire, head = await site.begin("POST", *listen(each, **wishes))
                assert head.headers["content-type"] == "text/event-stream"
                first = (await wire.event()).json
                assert first["method"] == "notifications/subscriptions/acknowledged"
                assert first["params"]["_meta"][SUBSCRIPTION_ID] == each
                honoured = first["params"]["notifications"]
                assert honoured["toolsListChanged"] is True
                assert "resourcesListChanged" not in honoured
                assert "kitchen://menu" in honoured["resourceSubscriptions"]

    run(main)


@pytest.mark.requirement("SUB-1", "SUB-6", "SUB-10")
def test_a_subscription_receives_the_requested_changes():
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            tools, _ = await site.begin("POST", *listen("t", toolsListChanged=True))
            menu, _ = await site.begin("POST", *listen("m", resourceSubscriptions=["kitchen://menu"]))
            both, _ = await site.begin(
                "POST", *listen("b", toolsListChanged=True, resourceSubscriptions=["kitchen://menu"])
            )
            for wire in (tools, menu, both):
                await wire.event()
            assert (await site.post(*tool("news"))).status == 200
            server.tools.remove("echo")
            heard = {}
            for name, wire, count in (("t", tools, 1), ("m", menu, 1), ("b", both, 2)):
                said = [(await wire.event()).json for _ in range(count)]
                assert {each["params"]["_meta"][SUBSCRIPTION_ID] for each in said} == {name}
                heard[name] = sorted(each["method"] for each in said)
            changed, updated = "notifications/tools/list_changed", "notifications/resources/updated"
            assert heard == {"t": [changed], "m": [updated], "b": [updated, changed]}

    run(main)


@pytest.mark.requirement("SUB-8")
def test_a_subscription_ends_with_its_result_when_we_stop():
    async def main():
        async with hosted(kitchen()) as site:
            wire, _ = await site.begin("POST", *listen("sub", toolsListChanged=True))
            await wire.event()
            await site.app.stop()
            (last,) = await wire.events()
            assert last.json["id"] == "sub"
            assert last.json["result"]["resultType"] == "complete"
            assert last.json["result"]["_meta"][SUBSCRIPTION_ID] == "sub"
            async with wired(site.port) as late:
                await late.ask("POST", "/mcp", *listen("sub", toolsListChanged=True))
                assert (await late.answer()).status == 503

    run(main)


def test_a_subscription_where_answers_are_plain():
    async def main():
        async with hosted(kitchen(), json_only=True) as site:
            wire, _ = await site.begin("POST", *listen(toolsListChanged=True))
            assert (await wire.event()).json["method"] == "notifications/subscriptions/acknowledged"

    run(main)


def test_all_eras_hear_of_a_change():
    async def main():
        server = kitchen()
        async with hosted(server) as site:
            new, _ = await site.begin("POST", *listen(toolsListChanged=True))
            await new.event()
            session = await site.open()
            old, _ = await site.begin("GET", {"Accept": "text/event-stream", "Mcp-Session-Id": session})
            await old.event()
            server.tools.remove("echo")
            for wire in (new, old):
                assert (await wire.event()).json["method"] == "notifications/tools/list_changed"

    run(main)


# --------------------------------------------------------------------- what else a function may do


def test_a_stream_without_a_session_is_not_interrupted():
    """Its client could not resume it."""

    async def main():
        async with stage_and_site() as (stage, site):
            stage.go.set()
            wire, _ = await site.begin("POST", *tool("polled", meta=TOKEN))
            events = await wire.events()
            assert [event.json["params"]["progress"] for event in events[:-1]] == [1, 2]
            assert events[-1].json["result"]["content"][0]["text"] == "polled"

    run(main)


def test_middleware_sees_outgoing_messages():
    seen: list[Any] = []

    async def watch(call, go_on):
        seen.append((call.method, call.incoming, call.is_notification))
        return await go_on(call)

    async def main():
        async with hosted(kitchen(middleware=[watch])) as site:
            wire, _ = await site.begin("POST", *tool("steps", meta=TOKEN, count=1))
            assert len(await wire.events()) == 2
            assert seen == [("tools/call", True, False), ("notifications/progress", False, True)]

    run(main)


def test_notifications_without_a_session_are_received(caplog):
    server = Server("hears")
    heard: list[Any] = []

    @server.on_notification("notifications/note")
    async def note(ctx: Context, params: dict[str, Any]) -> None:
        heard.append((params["n"], ctx.request.headers.get("mcp-method")))
        if params["n"] == 2:
            raise RuntimeError("cannot")

    async def main():
        for web in ({}, {"stateless": True}):
            async with hosted(server, **web) as site:
                for number in (1, 2):
                    headers, _ = modern("notifications/note")
                    body = message("notifications/note", {"n": number})
                    assert (await site.post(headers, body)).status == 202
                if web:
                    assert (await site.post(legacy(), message("notifications/note", {"n": 3}))).status == 202

    run(main)
    method = "notifications/note"
    assert [each[0] for each in heard] == [1, 2, 1, 2, 3]
    assert caplog.text.count(f"{method} could not be handled") == 2


def test_a_function_knows_its_principal():
    server = Server("who")

    @server.tool
    async def who(ctx: Context) -> str:
        return f"{ctx.principal} {ctx.request.headers.get('x-word')} {ctx.revision == NEW}"

    async def main():
        async with hosted(server, principal=lambda _: "ann") as site:
            headers, body = tool("who")
            answer = await site.post({**headers, "X-Word": "please"}, body)
            assert answer.json["result"]["content"][0]["text"] == "ann please True"

    run(main)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_a_notification_whose_function_raises_ends_nothing(kind):
    async def main():
        server = kitchen()

        @server.on_notification("example/hello")
        async def hello(ctx: Context) -> None:
            raise kind("no")

        async with hosted(server) as site:
            headers, _ = modern("example/hello")
            assert (await site.post(headers, message("example/hello", {}))).status == 202
            assert (await site.post(*modern("tools/list"))).status == 200

    run(main)
