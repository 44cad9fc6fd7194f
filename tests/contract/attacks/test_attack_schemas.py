"""Schemas and values that are small, and would keep a validator busy for hours."""

import asyncio
from functools import reduce
from typing import Any

import pytest

from toolpost import Client, Server
from toolpost.errors import ToolError
from toolpost.testing import ScriptedChannel
from toolpost.types import CallToolResult, Tool

pytest.importorskip("jsonschema_rs", reason="it validates the schemas")

LEVELS = 40


def refer(name: object) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def double(keyword: str) -> dict[str, Any]:
    """2 KB with 40 levels of two references each."""
    levels = {f"a{level}": {keyword: [refer(f"a{level + 1}")] * 2} for level in range(LEVELS)}
    return {"type": "object", **refer("a0"), "$defs": {**levels, f"a{LEVELS}": {"required": ["y"]}}}


def recur(*names: str) -> dict[str, Any]:
    parts = [{"properties": {"x": {"$ref": name}}, "required": ["x"]} for name in names]
    return {"type": "object", "$anchor": "self", "anyOf": parts, "x-parts": ["1", {"$ref": "#"}]}


NESTED: Any = reduce(lambda inner, _: {"x": inner}, range(LEVELS), {})
SCHEMAS: dict[str, dict[str, Any]] = {
    "references": double("allOf"),
    "alternatives": double("anyOf"),
    "recursion": recur("#", "#"),
    "recursion by anchor": recur("#self", "#self"),
    "recursion by pointer": recur("#/x-parts/1", "#/x-parts/+1"),
    "recursion by escape": recur("#/x%2Dparts/1", "#/x%2Dparts/1"),
    "another root": {
        "type": "object",
        "$defs": {"bomb": {"$id": "b", **double("allOf")}, "a0": {}},
        "$ref": "b",
    },
    "unevaluated": reduce(
        lambda inner, _: {"type": "object", "allOf": [inner], "unevaluatedProperties": False},
        range(LEVELS // 2),
        {"properties": {"y": {}}},
    ),
}


@pytest.mark.requirement("JSCH-11")
@pytest.mark.parametrize("name", list(SCHEMAS))
def test_a_schema_cannot_hang_a_client_or_a_server(name):
    server, calls = Server("s"), list[str]()

    def read(_: dict[str, Any]) -> CallToolResult:
        calls.append("read")
        return CallToolResult([], structured_content=NESTED)

    server.add_tool(Tool("read", {"type": "object"}, output_schema=SCHEMAS[name]), read)
    server.add_tool(Tool("write", SCHEMAS[name]), read)

    async def main() -> None:
        async with Client(server) as client:
            await client.list_tools()
            assert (await client.call_tool("read")).structured_content == NESTED
            assert client.stats.unchecked == 1
            with pytest.raises(ToolError, match="too complex"):
                await client.call_tool("write", NESTED)
        assert calls == ["read"]

    asyncio.run(main())


FORMS: dict[str, dict[str, Any]] = {
    **{name: {**schema, "properties": {"x": {"type": "string"}}} for name, schema in SCHEMAS.items()},
    "pattern": {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(x+x+)+y$"}}},
    "choices": {
        "type": "object",
        "properties": {"x": {"type": "string", "enum": [f"{n}" for n in range(100_000)]}},
    },
}


@pytest.mark.parametrize("name", list(FORMS))
def test_a_form_cannot_hang_a_client(name):
    form = {"message": "x?", "requestedSchema": FORMS[name]}
    about = {"name": "s", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
    answers: list[dict[str, Any]] = []

    async def serve(channel: ScriptedChannel) -> None:
        asked = await channel.next_sent()
        channel.feed({"jsonrpc": "2.0", "id": asked["id"], "result": hello})
        while (asked := await channel.next_sent())["method"] != "tools/call":
            pass
        channel.feed({"jsonrpc": "2.0", "id": "form", "method": "elicitation/create", "params": form})
        answers.append(await channel.next_sent())
        channel.feed({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": []}})

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.create_task(serve(channel))
        fill = lambda _: {"x": "x" * 10_000}  # noqa: E731 - shorter
        async with Client(channel, revision="2025-11-25", on_elicitation=fill) as client:
            await client.call_tool("ask")
            await serving

    asyncio.run(main())
    assert [answer["id"] for answer in answers] == ["form"]


TREE = {
    "$defs": {"tree": {"type": "object", "properties": {"name": {"type": "string"}, "x": refer("tree")}}},
    **refer("tree"),
}


@pytest.mark.parametrize(("value", "where"), [(NESTED, None), ({"x": {"x": {"name": 1}}}, r"x\.x\.name")])
def test_a_recursive_schema_is_used(value, where):
    server = Server("s")
    server.add_tool(Tool("write", {"type": "object", **TREE}), lambda tree: str(len(tree)))

    async def main() -> None:
        async with Client(server) as client:
            if where is None:
                assert (await client.call_tool("write", value)).text == "1"
            else:
                with pytest.raises(ToolError, match=where):
                    await client.call_tool("write", value)

    asyncio.run(main())


def test_a_mismatch_with_many_alternatives_is_told_in_few_words():
    server = Server("s")
    schema = {"type": "object", "properties": {"n": {"anyOf": [{"const": each} for each in range(1000)]}}}
    server.add_tool(Tool("write", schema), len)

    async def main() -> None:
        async with Client(server) as client:
            assert (await client.call_tool("write", {"n": 7})).text == "1"
            with pytest.raises(ToolError, match="too large for an explanation"):
                await client.call_tool("write", {"n": ["x" * 1000] * 1000})

    asyncio.run(main())


def test_a_schema_or_a_pattern_that_is_too_large_is_refused():
    large = {"type": "object", "required": ["x" * 1000 + str(each) for each in range(1100)]}
    counted = {"type": "object", "properties": {"x": {"pattern": "^(a{1,1000}){1,1000}$"}}}
    for schema in (large, counted):
        with pytest.raises(ValueError, match="the input schema of 'write' is not valid"):
            Server("s").add_tool(Tool("write", schema), len)
