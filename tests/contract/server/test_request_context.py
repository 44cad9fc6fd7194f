"""The context of a request: its facts and its methods, in every revision."""

import asyncio
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, Server
from toolpost.errors import CapabilityNotDeclared, LocalProtocolError
from toolpost.testing import REVISIONS
from toolpost.types import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingMessage,
    TextContent,
    Tool,
    ToolAnnotations,
)

SESSIONS = [date for date in DATES if not REVISIONS[date].stateless]
[STATELESS] = [date for date in DATES if REVISIONS[date].stateless]


def counting() -> Server:
    """A server that counts in its state."""
    server = Server("s")

    @server.tool
    async def count(ctx: Context) -> int:
        assert ctx.state is ctx.state
        count = await ctx.state.get("n", 0) + 1
        await ctx.state.set("n", count)
        return count

    return server


@pytest.mark.parametrize("revision", DATES)
def test_the_facts_of_a_context(revision):
    server = Server("s", lifespan=None)
    seen: list[Any] = []

    @server.tool
    async def look(ctx: Context) -> str:
        assert ctx.request is ctx.request
        seen.extend([repr(ctx), repr(ctx.client), ctx.revision, ctx.request.method, ctx.cancelled])
        seen.extend(
            [ctx.request.id, ctx.related, ctx.request.meta["com.example/a"], dict(ctx.request.headers)]
        )
        seen.append(ctx.principal)
        return ""

    async def main() -> None:
        async with Client(server, revision=revision, name="c", version="1") as client:
            await client.call_tool("look", meta={"com.example/a": 1})

    asyncio.run(main())
    shown, client, spoken, method, cancelled, request_id, related, meta, headers, principal = seen
    assert shown == f"<Context of tools/call, id {request_id!r}>"
    assert (client, spoken, method, cancelled) == ("<Client c 1>", revision, "tools/call", False)
    assert (related, meta, headers, principal) == (request_id, 1, {}, None)


@pytest.mark.parametrize("revision", SESSIONS)
def test_state_is_the_sessions(revision):
    async def main() -> None:
        server = counting()
        async with Client(server, revision=revision) as one, Client(server, revision=revision) as two:
            assert [(await one.call_tool("count")).text for _ in range(2)] == ["1", "2"]
            assert (await two.call_tool("count")).text == "1"

    asyncio.run(main())


def test_state_without_a_session_is_the_requests():
    async def main() -> None:
        async with Client(counting(), revision=STATELESS) as client:
            assert [(await client.call_tool("count")).text for _ in range(2)] == ["1", "1"]

    asyncio.run(main())


@pytest.mark.parametrize("revision", SESSIONS)
def test_capabilities_declared_in_the_handshake_stay(revision):
    """Entries that `init` registers are declared in the response, and served from then on."""

    class Late(Server):
        async def init(self, ctx: Context) -> None:
            self.tool(name="first")(lambda: "there")

    async def main() -> None:
        async with Client(Late("late"), revision=revision) as client:
            assert client.capabilities.tools is not None
            assert (await client.call_tool("first")).text == "there"

    asyncio.run(main())


@pytest.mark.parametrize("revision", SESSIONS)
def test_a_server_that_declares_no_log_writes_none(revision):
    class Quiet(Handler):
        async def list_tools(self, cursor: str | None) -> list[Tool]:
            return [Tool("t", {"type": "object"}, annotations=ToolAnnotations(title="T"))]

        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
            await ctx.error("nobody hears it")
            await ctx.warning("nor this")
            await ctx.debug("nor this")
            raise LocalProtocolError("done")

    async def main() -> list[Any]:
        logs: list[Any] = []
        async with Client(Quiet(), revision=revision, on_log=logs.append) as client:
            with pytest.raises(Exception, match="done"):
                await client.call_tool("t")
        return logs

    assert asyncio.run(main()) == []


def test_messages_after_the_end_of_a_request_are_not_sent():
    async def main() -> None:
        server = Server("s")
        kept: list[Context] = []

        @server.tool
        async def keep(ctx: Context) -> str:
            kept.append(ctx)
            return ""

        logs: list[Any] = []
        async with Client(
            server, revision="2025-11-25", on_log=logs.append, on_elicitation=lambda p: {}
        ) as c:
            await c.call_tool("keep", progress=logs.append)
            [ctx] = kept
            assert ctx.cancelled
            await ctx.info("late")
            await ctx.progress(1)
            with pytest.raises(LocalProtocolError, match="can no longer ask"):
                await ctx.elicit("Well?", str)
        assert logs == []

    asyncio.run(main())


# --------------------------------------------------------------------- questions

SAMPLING = [date for date in SESSIONS if "sampling/createMessage" in REVISIONS[date].requests["server"]]


@pytest.mark.requirement("SAMP-1")
@pytest.mark.parametrize("revision", SAMPLING)
@pytest.mark.parametrize(
    ("messages", "texts"),
    [
        ("hi", [("user", "hi")]),
        (TextContent("hi"), [("user", "hi")]),
        (SamplingMessage("assistant", TextContent("hi")), [("assistant", "hi")]),
        (["a", SamplingMessage("assistant", TextContent("b"))], [("user", "a"), ("assistant", "b")]),
    ],
)
def test_a_model_is_asked(revision, messages, texts):
    async def main() -> None:
        server = Server("s")
        asked: list[Any] = []

        @server.tool
        async def ask(ctx: Context) -> str:
            result = await ctx.sample(
                messages, max_tokens=9, system="Be brief.", model="small", temperature=0.5, stop=["."]
            )
            with pytest.raises(CapabilityNotDeclared, match="tools"):
                await ctx.sample("x", tools=[Tool("t", {"type": "object"})], tool_choice="auto")
            return str(result.model)

        async def sample(params: Any) -> str:
            asked.append(params)
            return "fine"

        async with Client(server, revision=revision, on_sampling=sample) as client:
            await client.call_tool("ask")
        [params] = asked
        assert [(message.role, message.content.text) for message in params.messages] == texts
        assert (params.max_tokens, params.system_prompt, params.temperature) == (9, "Be brief.", 0.5)
        assert params.model_preferences.hints[0].name == "small"
        assert params.stop_sequences == ["."]

    asyncio.run(main())


@pytest.mark.requirement("ELIC-9", "ELIC-13")
@pytest.mark.parametrize("capable", [False, True])
def test_a_user_is_sent_to_a_url_if_the_client_can_open_one(capable):
    async def main() -> str:
        server = Server("s")

        @server.tool
        async def visit(ctx: Context) -> str:
            try:
                return repr(await ctx.elicit_url("Log in.", "https://example.com/login"))
            except CapabilityNotDeclared as error:
                return error.capability

        capabilities = (
            ClientCapabilities(elicitation=ElicitationCapability(form={}, url={})) if capable else None
        )
        async with Client(
            server, revision="2025-11-25", on_elicitation=lambda params: True, capabilities=capabilities
        ) as client:
            return (await client.call_tool("visit")).text

    assert asyncio.run(main()) == ("Accepted(data=None)" if capable else "elicitation.url")


@pytest.mark.requirement("STDIO-7")
def test_without_a_session_nothing_is_asked():
    async def main() -> None:
        server = Server("s")

        @server.tool
        async def ask(ctx: Context) -> str:
            with pytest.raises(LocalProtocolError, match="no session"):
                await ctx.request("example/ask")
            return "asked nothing"

        async with Client(server, revision=STATELESS, on_roots=["file:///a"]) as client:
            assert (await client.call_tool("ask")).text == "asked nothing"

    asyncio.run(main())
