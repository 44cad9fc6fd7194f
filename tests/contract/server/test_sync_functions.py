"""Functions that are not async: messages and questions from their thread, and its end."""

import asyncio
import threading
from typing import Any

import pytest

import leak_check
from revision_dates import DATES
from toolpost import Client, Server, SyncContext, ToolError
from toolpost.errors import ChannelClosed, LocalProtocolError
from toolpost.testing import REVISIONS
from toolpost.types import ClientCapabilities, ElicitationCapability

SESSIONS = [date for date in DATES if not REVISIONS[date].stateless]
ELICITING = [date for date in SESSIONS if "elicitation/create" in REVISIONS[date].requests["server"]]


async def till(event: threading.Event) -> None:
    """Return when a thread has set the event."""
    assert await asyncio.to_thread(event.wait, 10)


@pytest.mark.parametrize("revision", SESSIONS)
def test_a_custom_method_is_requested(revision):
    server = Server("s")

    @server.tool
    def own(ctx: SyncContext) -> str:
        answer = ctx.request("example/ask", {"n": 2}, timeout=10)
        request = ctx.request
        known = request.meta["com.example/a"]
        return f"{answer.raw} {request.id is not None} {request.method} {known} {request.headers}"

    async def main() -> str:
        answers = {"example/ask": lambda params: {"double": 2 * params["n"]}}
        async with Client(server, revision=revision, request_handlers=answers) as client:
            return (await client.call_tool("own", meta={"com.example/a": 1})).text

    text = asyncio.run(main())
    assert '"double":4' in text
    assert text.endswith("True tools/call 1 {}")


@pytest.mark.requirement("CANC-4")
@pytest.mark.parametrize("revision", ELICITING)
def test_a_question_of_a_call_that_was_cancelled_ends(revision):
    """A thread cannot be stopped, but it does not wait for an answer that will not come."""
    server = Server("s")
    errors: list[Exception] = []
    ended = threading.Event()

    @server.tool
    def wait(ctx: SyncContext) -> str:
        for _ in range(2):
            try:
                ctx.elicit("Well?", str)
            except LocalProtocolError as error:
                errors.append(error)
        assert ctx.cancelled
        ctx.progress(1)
        ctx.info("nobody hears it")
        ended.set()
        return ""

    async def main() -> None:
        asked, withdrawn = asyncio.Event(), asyncio.Event()

        async def elicit(params: Any) -> None:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                withdrawn.set()

        async with Client(server, revision=revision, on_elicitation=elicit) as client:
            call = asyncio.create_task(client.call_tool("wait"))
            await asked.wait()
            call.cancel()
            await till(ended)
            await asyncio.wait_for(withdrawn.wait(), 10)
            await client.ping()

    asyncio.run(main())
    assert len(errors) == 2
    assert "tools/call" in str(errors[0])
    assert "can no longer ask" in str(errors[0])


def test_a_question_of_a_call_that_was_given_up_ends():
    server = Server("s")
    errors: list[Exception] = []
    ended = threading.Event()

    @server.tool(timeout=0.3)
    def wait(ctx: SyncContext) -> str:
        try:
            ctx.elicit("Well?", str)
        except LocalProtocolError as error:
            errors.append(error)
        ended.set()
        return ""

    async def main() -> None:
        async def elicit(params: Any) -> None:
            await asyncio.Event().wait()

        async with Client(server, revision="2025-11-25", on_elicitation=elicit) as client:
            with pytest.raises(ToolError, match="timed out"):
                await client.call_tool("wait")
            await till(ended)

    asyncio.run(main())
    assert len(errors) == 1


def test_a_question_to_a_client_that_has_gone_ends():
    server = Server("s")
    errors: list[Exception] = []
    ended = threading.Event()

    @server.tool
    def wait(ctx: SyncContext) -> str:
        try:
            ctx.elicit("Well?", str)
        except (ChannelClosed, LocalProtocolError) as error:
            errors.append(error)
        ended.set()
        return ""

    async def main() -> None:
        asked = asyncio.Event()

        async def elicit(params: Any) -> None:
            asked.set()
            await asyncio.Event().wait()

        async with Client(server, revision="2025-11-25", on_elicitation=elicit) as client:
            call = asyncio.create_task(client.call_tool("wait"))
            await asked.wait()
        await asyncio.wait([call])
        call.exception()
        await till(ended)

    asyncio.run(main())
    assert len(errors) == 1


def test_a_thread_that_outlives_the_loop_gets_an_error():
    server = Server("s")
    errors: list[Exception] = []
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    @server.tool
    def linger(ctx: SyncContext) -> str:
        started.set()
        go.wait(10)
        try:
            ctx.info("still here")
        except ChannelClosed as error:
            errors.append(error)
        ended.set()
        return ""

    async def main() -> None:
        async with Client(server, revision="2025-11-25") as client:
            call = asyncio.create_task(client.call_tool("linger"))
            await till(started)
            call.cancel()
            await asyncio.wait([call])

    asyncio.run(main())
    go.set()
    assert ended.wait(10)
    assert [str(error) for error in errors] == ["the server has stopped"]


def test_work_that_is_cancelled_with_the_loop_gets_an_error():
    """The loop cancels what it still runs when it ends."""
    errors: list[Exception] = []

    async def main() -> threading.Thread:
        loop = asyncio.get_running_loop()
        started = asyncio.Event()

        class Slow:
            async def notify_resource_updated(self, uri: str) -> None:
                started.set()
                await asyncio.Event().wait()

        context: Any = Slow()

        def run() -> None:
            try:
                SyncContext(context, loop).notify_resource_updated("a://b")
            except ChannelClosed as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        await started.wait()
        return thread

    thread = asyncio.run(main())
    thread.join(10)
    assert [str(error) for error in errors] == ["the server stopped during the call"]
    leak_check.cut_off.clear()


def test_an_error_of_a_context_method_is_raised_in_the_function():
    server = Server("s")

    @server.tool
    def look(ctx: SyncContext) -> str:
        with pytest.raises(RuntimeError, match="mine"):
            ctx.read_resource("broken://x")
        return f"{ctx.revision} {ctx.client!r} {ctx.lifespan} {ctx.state.get('x')}"

    @server.resource("broken://x")
    async def broken() -> str:
        raise RuntimeError("mine")

    async def main() -> str:
        async with Client(server, revision="2025-11-25", name="c", version="1") as client:
            return (await client.call_tool("look")).text

    assert asyncio.run(main()) == "2025-11-25 <Client c 1> None None"


def test_every_context_method_works_in_a_thread():
    server = Server("s")

    @server.tool
    def talk(ctx: SyncContext) -> str:
        ctx.debug("1")
        ctx.warning("2")
        ctx.error("3")
        ctx.notify("example/notice", {"n": 1})
        ctx.notify_resource_updated("state://now")
        said = ctx.sample("hi", max_tokens=3).content
        visited = ctx.elicit_url("Log in.", "https://example.com")
        return f"{said!r} {visited!r} {ctx.roots()!r} {ctx.read_resource('state://now')[0].text}"

    @server.resource("state://now")
    def now() -> str:
        return "now"

    async def main() -> None:
        logs: list[str] = []
        notices: list[str] = []

        async def log(params: Any) -> None:
            logs.append(params.data)

        async def note(method: str, params: Any) -> None:
            notices.append(method)

        async with Client(
            server,
            revision="2025-11-25",
            on_log=log,
            on_notification=note,
            on_sampling=lambda params: "fine",
            on_elicitation=lambda params: True,
            on_roots=["file:///a"],
            capabilities=ClientCapabilities(elicitation=ElicitationCapability(form={}, url={})),
        ) as client:
            await client.subscribe("state://now")
            text = (await client.call_tool("talk")).text
        assert "fine" in text
        assert "Accepted" in text
        assert "file:///a" in text
        assert text.endswith("now")
        assert logs == ["1", "2", "3"]
        assert sorted(notices) == ["example/notice", "notifications/resources/updated"]

    asyncio.run(main())
