"""`Server` beyond the decorators: custom schemas, names, `Handler`."""

import asyncio
from typing import Any

import pytest

from toolpost import Client, Context, Handler, Server, ToolError
from toolpost.errors import CapabilityNotDeclared, InternalError, InvalidParams, ResourceNotFound
from toolpost.types import CallToolResult, TextContent, Tool

OBJECT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


async def called(server: Handler, name: str, arguments: dict[str, Any] | None = None) -> str:
    async with Client(server) as client:
        return (await client.call_tool(name, arguments)).text


# --------------------------------------------------------------------- registration


@pytest.mark.requirement("TOOL-7")
def test_a_name_is_taken_once():
    server = Server("s")
    server.tool(name="x")(lambda: "1")
    with pytest.raises(ValueError, match="a tool named 'x' is already registered"):
        server.tool(name="x")(lambda: "2")


@pytest.mark.requirement("TOOL-7", "TOOL-8")
@pytest.mark.parametrize("name", ["a b", "a,b", "ü", "a/b", "x" * 129, "a\n"])
def test_a_name_that_clients_may_refuse_is_refused(name):
    server = Server("s")
    with pytest.raises(ValueError, match="1 to 128"):
        server.tool(name=name)(lambda: "1")
    with pytest.raises(ValueError, match="1 to 128"):
        server.add_tool(Tool(name, OBJECT), lambda arguments: "1")


def test_variables_and_parameters_must_agree():
    server = Server("s")
    with pytest.raises(TypeError, match="no parameter for id"):
        server.resource("users://{id}", name="user")(lambda: "")
    with pytest.raises(TypeError, match="are not in"):

        @server.resource("users://{id}")
        def user(id: str, other: str) -> str:  # noqa: A002 - the template's word
            return id + other

    with pytest.raises(ValueError, match="unknown argument 'x'"):
        server.prompt(name="p")(lambda: "").complete("x")


def test_handles_stay_functions():
    server = Server("s")

    @server.tool
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(2) == 4
    assert double.__name__ == "double"
    assert repr(double) == "<RegisteredTool double>"
    assert repr(server) == "<Server s: 1 tools>"


# --------------------------------------------------------------------- custom schemas


@pytest.mark.requirement("JSCH-1", "JSCH-2", "TOOL-13")
def test_a_custom_schema_checks_arguments_and_output():
    server = Server("s")
    output = {"type": "object", "properties": {"twice": {"type": "integer"}}, "required": ["twice"]}

    async def double(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"twice": arguments["n"] * 2} if arguments["n"] < 5 else {}

    server.add_tool(Tool("double", OBJECT, output_schema=output), double)
    server.add_tool(Tool("plain", OBJECT), lambda arguments: str(arguments["n"]))
    assert asyncio.run(called(server, "double", {"n": 2})) == '{"twice":4}'
    assert asyncio.run(called(server, "plain", {"n": 2})) == "2"
    for arguments in ({}, {"n": 0}, {"n": "x"}):
        with pytest.raises(ToolError, match="n"):
            asyncio.run(called(server, "double", arguments))
    with pytest.raises(ToolError, match="failed"):
        asyncio.run(called(server, "double", {"n": 9}))


@pytest.mark.requirement("JSCH-5", "JSCH-7", "JSCH-10", "TOOL-5")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {},
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}},
    ],
)
def test_a_schema_that_is_none_is_refused(schema):
    with pytest.raises(ValueError, match=r"."):
        Server("s").add_tool(Tool("x", schema), lambda arguments: "")


def test_a_function_behind_a_schema_takes_one_dict():
    with pytest.raises(TypeError, match="must take one dict"):
        Server("s").add_tool(Tool("x", OBJECT), lambda: "")


# --------------------------------------------------------------------- the explicit form


class Plain(Handler):
    """Tools only."""

    async def list_tools(self, cursor: str | None) -> list[Tool]:
        return [Tool("echo", OBJECT)]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> CallToolResult:
        if name != "echo":
            raise InvalidParams(f"Unknown tool: {name}")
        return CallToolResult(content=[TextContent(str(arguments["n"]))])


@pytest.mark.requirement("TOOL-1", "LIFE-15")
@pytest.mark.parametrize("revision", Server("s").revisions)
def test_capabilities_follow_from_overridden_methods(revision):
    async def main() -> None:
        async with Client(Plain("plain"), revision=revision) as client:
            assert [tool.name for tool in await client.list_tools()] == ["echo"]
            assert (await client.call_tool("echo", {"n": 1})).text == "1"
            with pytest.raises(InvalidParams):
                await client.call_tool("nope")
            with pytest.raises(InternalError):
                await client.call_tool("echo", {})
            assert client.capabilities.resources is None
            assert client.capabilities.logging is None
            with pytest.raises(CapabilityNotDeclared):
                await client.get_prompt("nope")

    asyncio.run(main())


def test_a_client_may_be_refused():
    class Closed(Plain):
        async def init(self, ctx: Context) -> None:
            raise InvalidParams(f"not {ctx.client.info.name if ctx.client.info else 'you'}")

    async def main() -> None:
        async with Client(Closed(), revision="2025-11-25"):
            pass

    with pytest.raises(Exception, match="not toolpost"):
        asyncio.run(main())


def test_resources_may_be_read_for_another_request():
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        try:
            await ctx.read_resource("nope://x")
        except ResourceNotFound as error:
            raise ToolError("not there") from error
        return ""

    with pytest.raises(ToolError, match="not there"):
        asyncio.run(called(server, "look"))
