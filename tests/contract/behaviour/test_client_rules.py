"""Rules for clients, and for both sides, that other files do not prove: questions, dialects, byte streams."""

import asyncio
import importlib.util
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from features import needs, on, record
from raw_server import Asked, RawServer
from toolpost import Client, Context, Server
from toolpost.errors import InvalidParams, RemoteProtocolError
from toolpost.types import (
    CallToolResult,
    CreateMessageResult,
    ListToolsResult,
    Raw,
    SamplingMessage,
    TextContent,
    Tool,
    ToolResultContent,
    ToolUseContent,
)

ROOT = Path(__file__).resolve().parents[3]


def asking(method: str, *questions: dict[str, Any]) -> RawServer:
    """Return a server that asks one question per call, unchanged, as its era does."""
    left = list(questions)

    async def call(asked: Asked) -> Any:
        if not asked.stateless:
            answer = await asked.ask(method, left.pop(0))
            return CallToolResult(content=[TextContent((answer.raw or b"").decode())])
        if asked.params.input_responses is None:
            asks = {"q": {"method": method, "params": left.pop(0)}}
            said = {"resultType": "input_required", "inputRequests": asks, "requestState": "s"}
            return Raw(json.dumps(said).encode())  # unchanged: it may be invalid on purpose
        return CallToolResult(content=[TextContent(bytes(asked.params.input_responses["q"]).decode())])

    return RawServer({"tools/call": call})


async def attended(link, server: RawServer) -> Client:
    """A client of such a server, with the callbacks of the test."""
    client = Client(server, revision=link.revision, timeout=20, **link.desk.options())
    return await link.stack.enter_async_context(client)


# --------------------------------------------------------------------- elicitation


@on("memory")
@needs("URL elicitation")
@pytest.mark.requirement("ELIC-22")
@pytest.mark.parametrize("number", ["", " ", "0", "null", "é\n\0", '{"id":1}', "../../x", "x" * 10_000])
async def test_the_id_of_an_elicitation_is_passed_on_unchanged(link, number):
    question = {"mode": "url", "message": "?", "url": "https://example.com", "elicitationId": number}
    client = await attended(link, asking("elicitation/create", question))
    link.desk.elicited = True
    assert '"accept"' in (await client.call_tool("t")).text
    assert link.desk.asked[0].elicitation_id == number


@on("memory")
@needs("URL elicitation")
@pytest.mark.requirement("ELIC-37")
@pytest.mark.parametrize(("agrees", "told"), [(True, "Accepted"), (False, "Declined")])
async def test_the_library_neither_fetches_nor_opens_a_url(link, agrees, told):
    server = Server("sends away")

    @server.tool
    async def visit(url: str, ctx: Context) -> str:
        return type(await ctx.elicit_url("Log in", url)).__name__

    client = await link.attended(server)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        link.desk.elicited = agrees  # only the host may open it
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        assert (await client.call_tool("visit", {"url": url})).text == told
        assert link.desk.asked[0].url == url
        with pytest.raises(BlockingIOError):  # no request was sent
            listening.accept()


# --------------------------------------------------------------------- sampling


def question(*messages: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of sampling."""
    return {"messages": list(messages), "maxTokens": 5}


def turn(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": {"type": "text", "text": text}}


@on("memory")
@pytest.mark.requirement("SAMP-9")
@pytest.mark.parametrize(
    "message",
    [turn("x", "system"), turn("x", ""), {"role": "user"}, {"content": {"type": "text", "text": "x"}}],
)
async def test_a_message_needs_a_role_and_content(link, message):
    client = await attended(link, asking("sampling/createMessage", question(turn("fine"), message)))
    link.desk.sampled = "never"
    stateless = record(link.revision).stateless
    with pytest.raises(RemoteProtocolError if stateless else InvalidParams):
        await client.call_tool("t")
    assert link.desk.asked == []


@on("memory")
@pytest.mark.requirement("SAMP-10")
async def test_each_sampling_request_is_independent(link):
    questions = [question(turn("first"), turn("said", "assistant")), question(turn("second"))]
    client = await attended(link, asking("sampling/createMessage", *questions))
    link.desk.sampled = "fine"
    for _ in questions:
        assert '"fine"' in (await client.call_tool("t")).text
    heard = [[message.content.text for message in asked.messages] for asked in link.desk.asked]
    assert heard == [["first", "said"], ["second"]]


@needs("sampling")
@pytest.mark.requirement("SAMP-5")
async def test_no_context_of_other_servers_is_requested(link):
    client = await link("asking")
    link.desk.sampled = "fine"
    for tool in ("poem", "poem_sync"):
        await client.call_tool(tool, {"about": "love"})
    assert [asked.include_context for asked in link.desk.asked] == [None, None]


@on("memory")
@needs("sampling with tools")
@pytest.mark.requirement("SAMP-14")
async def test_the_meta_of_a_tool_call_by_the_model_is_returned_to_it(link):
    server = Server("loops")

    @server.tool
    async def loop(ctx: Context) -> str:
        tools = [Tool("t", {"type": "object"})]
        first = await ctx.sample("go", tools=tools)
        assert isinstance(first.content, ToolUseContent)
        result = ToolResultContent(first.content.id, [TextContent("4")], meta={"com.example/r": [1]})
        turns = ["go", SamplingMessage("assistant", first.content), SamplingMessage("user", [result])]
        second = await ctx.sample(turns, tools=tools)
        assert isinstance(second.content, TextContent)
        return second.content.text

    client = await link.attended(server)
    use = ToolUseContent("u1", "t", {}, meta={"com.example/cache": {"key": "é"}})
    said: list[Any] = [CreateMessageResult(role="assistant", content=use, model="m"), "four"]
    link.desk.sampled = lambda _: said.pop(0)
    assert (await client.call_tool("loop")).text == "four"
    _, call, answer = link.desk.asked[1].messages
    assert (call.content.id, call.content.meta) == ("u1", {"com.example/cache": {"key": "é"}})
    assert answer.content[0].meta == {"com.example/r": [1]}


# --------------------------------------------------------------------- schemas

DIALECTS: dict[str, tuple[dict[str, Any], Any]] = {
    "http://json-schema.org/draft-04/schema#": ({"minimum": 1, "exclusiveMinimum": True}, 1),
    "http://json-schema.org/draft-06/schema#": ({"exclusiveMinimum": 1}, 1),
    "http://json-schema.org/draft-07/schema#": ({"if": {"const": 1}, "then": False}, 1),
    "https://json-schema.org/draft/2019-09/schema": ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    "https://json-schema.org/draft/2020-12/schema": ({"prefixItems": [{"type": "string"}]}, [1]),
}
"""Dialect → schema that older dialects do not support, and a value that it rejects."""


@pytest.mark.requirement("JSCH-4")
def test_the_page_names_the_dialects_that_are_supported():
    page = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Dialects of JSON Schema")
    assert set(re.findall(r"`(https?://json-schema\.org/[^`]*)`", section)) == set(DIALECTS)


@pytest.mark.requirement("JSCH-4")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_both_sides_support_the_dialects_on_the_page(runner, dialect):
    schema, wrong = DIALECTS[dialect]
    listed = ListToolsResult(
        tools=[Tool("t", {"type": "object"}, output_schema={"$schema": dialect, **schema})]
    )
    values = iter(["fine", wrong])

    async def list_tools(asked: Asked) -> Any:
        return listed

    async def call(asked: Asked) -> Any:
        return CallToolResult(content=[], structured_content=next(values))

    async with Client(RawServer({"tools/list": list_tools, "tools/call": call})) as client:
        await client.list_tools()
        assert (await client.call_tool("t")).structured_content == "fine"
        with pytest.raises(RemoteProtocolError):
            await client.call_tool("t")
    server = Server("dialects")
    whole = {"$schema": dialect, "type": "object", "properties": {"x": schema}}
    server.add_tool(Tool("t", whole), lambda arguments: "ran")
    async with Client(server) as client:
        assert (await client.call_tool("t", {"x": "fine"})).text == "ran"
        assert (await client.call_tool("t", {"x": wrong}, raise_on_error=False)).is_error


# --------------------------------------------------------------------- streams of bytes


def line_channel() -> Any:
    """Return the channel for byte streams from docs/transports.md."""
    spec = importlib.util.spec_from_file_location("example_transport", ROOT / "examples" / "transport.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LineChannel


@pytest.mark.requirement("STDIO-15", "SSE-8")
async def test_a_transport_over_a_socket_puts_each_message_on_a_line(runner):
    server = Server("lines")

    @server.tool
    def echo(text: str) -> str:
        return text

    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    serving = asyncio.create_task(server.serve(line_channel()(*await asyncio.open_connection(sock=theirs))))
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    text = "one\ntwo\r\nthree\u2028four\x85"
    call = {"name": "echo", "arguments": {"text": text}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    first, *rest = [json.dumps(message, ensure_ascii=False).encode() + b"\n" for message in messages]
    writer.write(first[:20])  # a message may arrive in pieces,
    await writer.drain()
    writer.write(first[20:] + b"".join(rest))  # and several at once
    async with asyncio.timeout(20):
        answers = [json.loads(await reader.readuntil(b"\n")) for _ in range(2)]
        assert [answer["id"] for answer in answers] == [1, 2]
        assert answers[1]["result"]["content"][0]["text"] == text
        writer.close()
        await writer.wait_closed()
        await serving
