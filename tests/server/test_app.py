"""`Server` beyond the decorators: schemas of one's own, middleware, names, the explicit form."""

import asyncio
import logging
from typing import Any

import pytest

from toolpost import (
    CallToolResult,
    Client,
    Context,
    Handler,
    InvalidParams,
    RPCError,
    Server,
    Tool,
    ToolError,
)
from toolpost.errors import InternalError, NotDeclared, RateLimited, ResourceNotFound
from toolpost.protocol.methods import Row
from toolpost.server.middleware import Concurrency, Logging, MaskErrors, RateLimit, Timeout
from toolpost.types import Params, Result, TextContent

OBJECT = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


async def called(server: Handler, name: str, arguments: dict[str, Any] | None = None) -> str:
    async with Client(server) as client:
        return (await client.call_tool(name, arguments)).text


# --------------------------------------------------------------------- registration


@pytest.mark.requirement("TOOL-7")
def test_a_name_is_taken_once():
    server = Server("s")
    server.tool(name="x")(lambda: "1")
    with pytest.raises(ValueError, match="'x' is among the tools"):
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

    with pytest.raises(ValueError, match="no argument 'x'"):
        server.prompt(name="p")(lambda: "").complete("x")


def test_handles_stay_functions():
    server = Server("s")

    @server.tool
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(2) == 4
    assert double.__name__ == "double"
    assert repr(double) == "<ServedTool double>"
    assert repr(server) == "<Server s: 1 tools>"


# --------------------------------------------------------------------- schemas of one's own


@pytest.mark.requirement("JSCH-1", "JSCH-2", "TOOL-13")
def test_a_schema_of_ones_own_checks_arguments_and_output():
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
    with pytest.raises(TypeError, match="takes one dict"):
        Server("s").add_tool(Tool("x", OBJECT), lambda: "")


# --------------------------------------------------------------------- middleware


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


def test_a_time_out_ends_what_takes_too_long():
    with pytest.raises(InternalError, match="given up"):
        asyncio.run(called(kitchen(Timeout(0.01)), "forever"))
    assert asyncio.run(called(kitchen(Timeout(5)), "echo", {"text": "x"})) == "x"


def test_a_time_out_for_all_tools_of_a_server():
    with pytest.raises(ToolError, match="took longer"):
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
def test_capabilities_follow_from_what_is_overridden(revision):
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
            with pytest.raises(NotDeclared):
                await client.list_prompts()

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


def test_methods_of_ones_own_are_served():
    class Own(Plain):
        def __init__(self) -> None:
            super().__init__(extra=[Row("example/double", Params, Result)])
            self.routes = {**self.routes, "example/double": self.double}

        def double(self, ctx: Context, params: Params) -> Result:
            return Result(meta={"com.example/answer": 2})

    async def main() -> Any:
        async with Client(Own(), revision="2025-11-25") as client:
            return await client.request("example/double", {"n": 1})

    assert asyncio.run(main()).meta == {"com.example/answer": 2}


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


def test_a_notice_may_be_served():
    heard: list[str] = []

    async def main() -> None:
        server = Server("s")
        told = asyncio.Event()

        async def roots_changed(event: Any) -> None:
            heard.append(event.method)
            told.set()

        server.notices["notifications/roots/list_changed"] = roots_changed
        async with Client(server, revision="2025-11-25", on_roots=["file:///a"]) as client:
            await client.notify_roots_changed()
            await asyncio.wait_for(told.wait(), 10)

    asyncio.run(main())
    assert heard == ["notifications/roots/list_changed"]
