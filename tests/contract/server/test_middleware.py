"""Middleware around every request and notification, in both directions, and the included middleware."""

import asyncio
import logging
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, RPCError, Server, SyncContext, ToolError
from toolpost.errors import InternalError, InvalidParams, LocalProtocolError, RateLimited
from toolpost.server.middleware import Call, Concurrency, Logging, MaskErrors, Next, RateLimit, Timeout
from toolpost.testing import REVISIONS
from toolpost.types import CallToolResult, ElicitResult, TextContent

SESSIONS = [date for date in DATES if not REVISIONS[date].stateless]
ELICITING = [date for date in SESSIONS if "elicitation/create" in REVISIONS[date].requests["server"]]


async def called(server: Handler, name: str, arguments: dict[str, Any] | None = None) -> str:
    async with Client(server) as client:
        return (await client.call_tool(name, arguments)).text


async def soon(condition: Any) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)


# --------------------------------------------------------------------- around the requests of clients


def kitchen(*middleware: Any, **options: Any) -> Server:
    server = Server("kitchen", middleware=middleware, **options)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def forever() -> str:
        await asyncio.Event().wait()
        return ""

    @server.resource("broken://x")
    def broken() -> str:
        raise ValueError("secret")

    return server


def test_middleware_wraps_every_request_the_first_outermost():
    seen: list[str] = []

    def layer(name: str) -> Any:
        async def around(call: Any, next: Any) -> Any:  # noqa: A002 - the word for it
            seen.append(f"{name} {call.method}")
            try:
                return await next(call)
            finally:
                seen.append(f"{name} done")

        return around

    server = kitchen(layer("a"), layer("b"))
    assert asyncio.run(called(server, "echo", {"text": "x"})) == "x"
    assert seen[-4:] == ["a tools/call", "b tools/call", "b done", "a done"]


def test_middleware_may_answer_and_refuse():
    async def refuse(call: Any, next: Any) -> Any:  # noqa: A002 - the word for it
        if call.method == "tools/call" and call.params.name == "forever":
            return CallToolResult(content=[TextContent("short cut")])
        if call.method == "tools/call":
            raise InvalidParams("not you")
        return await next(call)

    assert asyncio.run(called(kitchen(refuse), "forever")) == "short cut"
    with pytest.raises(InvalidParams, match="not you"):
        asyncio.run(called(kitchen(refuse), "echo"))


def test_a_timeout_cancels_slow_calls():
    with pytest.raises(InternalError, match="timed out"):
        asyncio.run(called(kitchen(Timeout(0.01)), "forever"))
    assert asyncio.run(called(kitchen(Timeout(5)), "echo", {"text": "x"})) == "x"


def test_a_time_out_for_all_tools_of_a_server():
    with pytest.raises(ToolError, match="timed out"):
        asyncio.run(called(kitchen(timeout=0.01), "forever"))


def test_rates_are_limited_by_client_and_by_tool():
    now = [0.0]

    async def main() -> None:
        server = kitchen(RateLimit(2, 1.0, tool="echo", clock=lambda: now[0]))
        async with Client(server) as one, Client(server) as two:
            for client in (one, two):
                await client.call_tool("echo", {"text": "1"})
                await client.call_tool("echo", {"text": "2"})
                with pytest.raises(RateLimited, match="try again") as caught:
                    await client.call_tool("echo", {"text": "3"})
                assert caught.value.data == {"retryAfter": 0.5}
                await client.list_tools()
            now[0] += 0.5
            assert (await one.call_tool("echo", {"text": "4"})).text == "4"

    asyncio.run(main())


def test_concurrency_is_limited():
    running, most = 0, 0

    async def main() -> None:
        server = Server("s", middleware=[Concurrency(2)])

        @server.tool
        async def work() -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return ""

        async with Client(server) as client:
            await asyncio.gather(*(client.call_tool("work") for _ in range(8)))

    asyncio.run(main())
    assert most == 2


def test_concurrency_is_limited_in_each_loop_that_serves():
    running: list[int] = []
    server = Server("s", middleware=[Concurrency(1)])

    @server.tool
    async def work() -> str:
        running.append(1)
        await asyncio.sleep(0)
        running.pop()
        return str(len(running))

    async def main() -> list[str]:
        async with Client(server) as client:
            results = await asyncio.gather(*(client.call_tool("work") for _ in range(4)))
            return [result.text for result in results]

    for _ in range(2):
        assert asyncio.run(main()) == ["0"] * 4


def test_calls_are_logged(caplog):
    with caplog.at_level(logging.INFO, "toolpost.calls"):
        asyncio.run(called(kitchen(Logging()), "echo", {"text": "x"}))
        with pytest.raises(RPCError):
            asyncio.run(called(kitchen(Logging()), "nope"))
    assert any("tools/call ok" in line for line in caplog.messages)
    assert any("tools/call InvalidParams" in line for line in caplog.messages)


def test_errors_are_masked():
    async def main() -> None:
        async with Client(kitchen(MaskErrors("sorry"))) as client:
            with pytest.raises(InternalError, match="sorry"):
                await client.read_resource("broken://x")
            with pytest.raises(RPCError, match="nope"):
                await client.call_tool("nope")

    asyncio.run(main())


# --------------------------------------------------------------------- outgoing messages


class Watch:
    """Middleware that records messages, and handles them as the test says."""

    def __init__(self) -> None:
        self.seen: list[Call] = []
        self.on: dict[str, Any] = {}

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
        self.seen.append(call)
        do = self.on.get(call.method)
        return await next(call) if do is None else await do(call, next)

    @property
    def ways(self) -> list[tuple[str, bool, bool]]:
        return [(call.method, call.incoming, call.is_notification) for call in self.seen]

    @property
    def said(self) -> list[Call]:
        """Return the sent messages, without the acknowledgement of a subscription."""
        return [call for call in self.seen if not call.incoming and "acknowledged" not in call.method]


class Heard:
    """Messages that a client received."""

    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.logs: list[Any] = []
        self.notices: list[tuple[str, Any]] = []

    def options(self) -> dict[str, Any]:
        async def note(method: str, params: Any) -> None:
            self.notices.append((method, params))

        async def log(params: Any) -> None:
            self.logs.append(params)

        return {"on_log": log, "on_notification": note}


def talker(*middleware: Any) -> Server:
    """A server that sends every notification and every request."""
    server = Server("talker", middleware=middleware)

    @server.tool
    async def talk(ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        await ctx.info("line")
        await ctx.notify("example/notice", {"n": 1})
        return "done"

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return str(getattr(answer, "data", answer))

    @server.tool
    async def own(ctx: Context) -> str:
        return str((await ctx.request("example/ask", {"n": 1})).raw)

    @server.tool
    async def grow(ctx: Context) -> str:
        server.tool(name="grown")(lambda: "")
        await ctx.notify_resource_updated("state://now")
        return "grown"

    @server.resource("state://now")
    def now() -> str:
        return "now"

    return server


async def talked(server: Server, revision: str, heard: Heard) -> str:
    async with Client(server, revision=revision, **heard.options()) as client:
        await client.set_log_level("debug")
        return (await client.call_tool("talk", progress=heard.progress.append)).text


@pytest.mark.parametrize("revision", DATES)
def test_outgoing_notifications_pass_through_middleware(revision):
    async def main() -> None:
        watch, heard = Watch(), Heard()
        assert await talked(talker(watch), revision, heard) == "done"
        ours = watch.said
        assert [call.method for call in ours] == [
            "notifications/progress",
            "notifications/message",
            "example/notice",
        ]
        assert all(call.is_notification for call in ours)
        assert [call.context.request.method for call in ours] == ["tools/call"] * 3
        assert [said.message for said in heard.progress] == ["half"]
        assert [said.data for said in heard.logs] == ["line"]
        assert heard.notices == [("example/notice", {"n": 1})]

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_middleware_may_change_drop_or_fail_an_outgoing_notification(revision, caplog):
    async def change(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
        call.params.message = "changed"
        await next(call)

    async def drop(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
        pass

    async def fail(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
        raise ValueError("broken middleware")

    async def main() -> None:
        watch, heard = Watch(), Heard()
        watch.on = {"notifications/progress": change, "notifications/message": drop, "example/notice": fail}
        assert await talked(talker(watch), revision, heard) == "done"
        assert [said.message for said in heard.progress] == ["changed"]
        assert heard.logs == []
        assert heard.notices == []

    with caplog.at_level(logging.ERROR, "toolpost.server"):
        asyncio.run(main())
    assert "middleware failed; example/notice was not sent" in caplog.text
    assert "broken middleware" in caplog.text


@pytest.mark.parametrize("revision", SESSIONS)
def test_an_invalid_message_raises_in_its_sender_also_through_middleware(revision):
    server = Server("s", middleware=[Watch()])

    @server.tool
    async def lie(ctx: Context) -> str:
        with pytest.raises(LocalProtocolError, match="cannot send"):
            await ctx.send_notification("notifications/roots/list_changed", None)
        return "told"

    async def main() -> str:
        async with Client(server, revision=revision) as client:
            return (await client.call_tool("lie")).text

    assert asyncio.run(main()) == "told"


def test_lines_that_a_client_does_not_want_pass_no_middleware():
    async def main() -> None:
        watch = Watch()
        async with Client(talker(watch), revision="2025-11-25") as client:
            await client.set_log_level("error")
            await client.call_tool("talk")
        assert [call.method for call in watch.said] == ["notifications/progress", "example/notice"]

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_announcements_pass_on_their_way_out_to_each_client(revision):
    async def main() -> None:
        watch, one, two = Watch(), Heard(), Heard()
        server = talker(watch)

        async def mark(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
            seen = call.params.meta or {}
            call.params.meta = {**seen, "com.example/marks": seen.get("com.example/marks", 0) + 1}
            await next(call)

        async def refuse(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
            raise InvalidParams("not this one")

        watch.on["notifications/resources/updated"] = mark
        watch.on["notifications/tools/list_changed"] = refuse
        async with (
            Client(server, revision=revision, **one.options()) as client,
            Client(server, revision=revision, **two.options()) as other,
        ):
            for each in (client, other):
                await each.subscribe("state://now")
            await client.call_tool("grow")
            await soon(lambda: one.notices and two.notices)
            sent = watch.said
            assert sorted(call.method for call in sent) == [
                "notifications/resources/updated",
                "notifications/resources/updated",
                "notifications/tools/list_changed",
                "notifications/tools/list_changed",
            ]
            for [(method, params)] in (one.notices, two.notices):
                assert (method, params.uri) == ("notifications/resources/updated", "state://now")
                assert params.meta["com.example/marks"] == 1
            if not REVISIONS[revision].stateless:
                assert {call.context.related for call in sent} == {None}
                assert not any(call.context.cancelled for call in sent)

    asyncio.run(main())


@pytest.mark.parametrize("revision", ELICITING)
def test_questions_pass_on_their_way_out(revision):
    async def main() -> None:
        watch = Watch()
        asked: list[str] = []

        async def elicit(params: Any) -> dict[str, int]:
            asked.append(params.message)
            return {"value": 3}

        async def rephrase(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
            call.params.message = "Well?"
            return await next(call)

        async def answer(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
            return ElicitResult(action="accept", content={"value": 9})

        async def refuse(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
            raise ToolError("nobody is asked today")

        handlers = {"example/ask": lambda params: {"double": 2 * params["n"]}}
        async with Client(
            talker(watch), revision=revision, on_elicitation=elicit, request_handlers=handlers
        ) as client:
            assert (await client.call_tool("ask")).text == "3"
            watch.on["elicitation/create"] = rephrase
            assert (await client.call_tool("ask")).text == "3"
            watch.on["elicitation/create"] = answer
            assert (await client.call_tool("ask")).text == "9"
            watch.on["elicitation/create"] = refuse
            with pytest.raises(ToolError, match="nobody is asked"):
                await client.call_tool("ask")
            assert asked == ["How many?", "Well?"]
            assert '"double":2' in (await client.call_tool("own")).text
        assert watch.ways.count(("elicitation/create", False, False)) == 4
        assert watch.ways.count(("example/ask", False, False)) == 1

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_incoming_notifications_pass_through_middleware(revision):
    async def main() -> None:
        watch = Watch()
        heard: list[Any] = []
        server = Server("s", middleware=[watch])

        @server.on_notification("example/known")
        async def known(ctx: Context, params: dict[str, Any]) -> None:
            heard.append(params)

        async def change(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
            call.params = {"n": call.params["n"] + 1}
            await next(call)

        async def drop(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
            pass

        async def fail(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
            raise SystemExit(3)

        watch.on = {"example/known": change, "example/bad": fail}
        async with Client(server, revision=revision, on_roots=["file:///a"]) as client:
            await client.notify("example/known", {"n": 1})
            await client.notify("example/unknown", {"n": 1})
            await client.notify("example/bad")
            await soon(lambda: len(heard) == 1)
            watch.on["example/known"] = drop
            await client.notify("example/known", {"n": 5})
            await client.list_tools() if client.capabilities.tools else None
            await soon(lambda: sum(call.is_notification for call in watch.seen) == 4)
        assert heard == [{"n": 2}]
        assert [call.method for call in watch.seen if call.is_notification] == [
            "example/known",
            "example/unknown",
            "example/bad",
            "example/known",
        ]
        assert all(call.incoming for call in watch.seen)

    asyncio.run(main())


def test_the_protocols_own_bookkeeping_passes_no_middleware():
    async def main() -> None:
        watch, started = Watch(), asyncio.Event()
        server = Server("s", middleware=[watch])

        @server.tool
        async def forever() -> str:
            started.set()
            await asyncio.Event().wait()
            return ""

        async with Client(server, revision="2025-11-25") as client:
            call = asyncio.create_task(client.call_tool("forever"))
            await started.wait()
            call.cancel()
            await asyncio.wait([call])
            await client.ping()
        assert [call.method for call in watch.seen] == ["initialize", "tools/call", "ping"]

    asyncio.run(main())


def test_included_middleware_ignores_outgoing_messages():
    """A question may take longer than a call, and must not wait for the place of the call that asks."""

    async def main() -> None:
        limits = [
            Timeout(60),
            Concurrency(1),
            RateLimit(1, 60, method="elicitation/create"),
            MaskErrors("no"),
        ]
        server = talker(*limits)

        @server.on_notification("example/notice")
        async def broken(ctx: Context) -> None:
            raise ValueError("seen in the log")

        async with Client(
            server, revision="2025-11-25", on_elicitation=lambda params: {"value": 1}
        ) as client:
            await client.notify("example/notice")
            for _ in range(3):
                assert (await client.call_tool("ask")).text == "1"
            assert (await client.call_tool("talk")).text == "done"

    asyncio.run(main())


def test_outgoing_messages_are_logged_with_an_arrow(caplog):
    with caplog.at_level(logging.INFO, "toolpost.calls"):
        asyncio.run(talked(talker(Logging()), "2025-11-25", Heard()))
    lines = [line.rpartition(" in ")[0] for line in caplog.messages]
    assert "← notifications/message ok" in lines
    assert "→ tools/call ok" in lines


def test_a_sync_function_speaks_through_middleware_too():
    async def main() -> None:
        watch, heard = Watch(), Heard()
        server = Server("s", middleware=[watch])

        @server.tool
        def talk(ctx: SyncContext) -> str:
            ctx.progress(1)
            ctx.info("line")
            return "done"

        assert await talked(server, "2025-11-25", heard) == "done"
        assert [call.method for call in watch.said] == [
            "notifications/progress",
            "notifications/message",
        ]

    asyncio.run(main())
