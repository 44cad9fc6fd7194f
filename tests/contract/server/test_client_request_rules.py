"""Requests that a function may send to a client, and messages that it may not."""

import asyncio
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Server
from toolpost.errors import InvalidParams, ToolError
from toolpost.types import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
    SamplingMessage,
    TextContent,
    Tool,
    ToolResultContent,
    ToolUseContent,
)

USES = SamplingMessage("assistant", [ToolUseContent("1", "t", {})])
MIXED = SamplingMessage("user", [ToolResultContent("1", []), TextContent("x")])
SAMPLES = ClientCapabilities(sampling=SamplingCapability(tools={}))
OPENS = ClientCapabilities(elicitation=ElicitationCapability(url={}))


@pytest.mark.requirement("SAMP-6", "SAMP-7")
@pytest.mark.parametrize("messages", [[USES, MIXED], [USES, "next"], [USES]])
def test_a_model_is_not_asked_with_turns_out_of_order(messages):
    server = Server("s", debug=True)
    asked: list[Any] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample(messages, tools=[Tool("t", {"type": "object"})])).model

    async def main() -> None:
        client = Client(server, revision=DATES[3], on_sampling=asked.append, capabilities=SAMPLES)
        async with client:
            with pytest.raises(ToolError, match="invalid messages for the model: "):
                await client.call_tool("ask")

    asyncio.run(main())
    assert asked == []


@pytest.mark.requirement("SAMP-15")
def test_a_client_refuses_turns_out_of_order():
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        turn = {"role": "user", "content": {"type": "tool_result", "toolUseId": "1", "content": []}}
        with pytest.raises(InvalidParams, match="message 1"):
            await ctx.request("sampling/createMessage", {"messages": [turn], "maxTokens": 1})
        return "refused"

    async def main() -> None:
        client = Client(server, revision=DATES[3], on_sampling=lambda _: "said", capabilities=SAMPLES)
        async with client:
            assert (await client.call_tool("ask")).text == "refused"

    asyncio.run(main())


@pytest.mark.requirement("ELIC-13")
@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "x", ""])
def test_a_user_is_sent_to_no_url_that_is_none(url):
    server = Server("s", debug=True)

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit_url("go", url))

    async def main() -> None:
        client = Client(server, revision=DATES[3], on_elicitation=lambda _: True, capabilities=OPENS)
        async with client:
            with pytest.raises(ToolError, match="not a URL that a user can visit"):
                await client.call_tool("ask")

    asyncio.run(main())


@pytest.mark.requirement("ROOT-5")
@pytest.mark.parametrize("root", ["file:///a/../etc", "file:///a/%2e%2e/etc", "file:///.."])
def test_a_root_says_where_it_is(root):
    with pytest.raises(ValueError, match=r"must not contain '\.\.'"):
        Client(Server("s"), on_roots=[root])


@pytest.mark.requirement("CANC-7")
def test_the_reason_of_a_cancellation_is_logged(caplog):
    server = Server("s")
    began = asyncio.Event()

    @server.tool
    async def wait() -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        async with Client(server) as client:
            call = asyncio.ensure_future(client.call_tool("wait"))
            await began.wait()
            [request_id] = client.pending
            await client.cancel(request_id, "because")
            await asyncio.gather(call, return_exceptions=True)
            await client.list_tools()

    with caplog.at_level("DEBUG", "toolpost.server"):
        asyncio.run(main())
    assert "was cancelled: because" in caplog.text


@pytest.mark.parametrize("revision", DATES)
def test_a_completer_that_is_added_later_is_declared_to_later_clients(revision):
    server = Server("s")

    @server.prompt
    def greet(name: str) -> str:
        return name

    async def main() -> None:
        async with Client(server, revision=revision) as before:
            assert before.capabilities.completions is None
        greet.complete("name")(lambda _: ["ann"])
        async with Client(server, revision=revision) as after:
            assert after.capabilities.completions == {}

    asyncio.run(main())
