"""Tools: the list, the results of calls, and the handling of exceptions."""

import asyncio
import logging
from typing import Any, NoReturn

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Server, ToolError, ToolResult
from toolpost.errors import InvalidParams
from toolpost.testing import REVISIONS, ScriptedChannel
from toolpost.types import (
    CLIENT_CAPABILITIES,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    CallToolResult,
    Icon,
    TextContent,
    Tool,
    ToolAnnotations,
)

HALF = "\ud800"  # of a character: Python has it, JSON does not
SAFE = [Icon("https://example.com/a.png")]
UNSAFE = [Icon("javascript:alert(1)")]


def called(server: Server, name: str, revision: str | None = None) -> ToolResult[Any]:
    async def main() -> ToolResult[Any]:
        async with Client(server, revision=revision) as client:
            return await client.call_tool(name, raise_on_error=False)

    return asyncio.run(main())


def refusing(error: BaseException, **options: Any) -> Server:
    server = Server("s", **options)

    @server.tool
    async def fails() -> NoReturn:
        raise error

    @server.tool
    def fails_sync() -> NoReturn:
        raise error

    return server


# --------------------------------------------------------------------- the list


def listed(server: Server, revision: str | None = None) -> list[Tool]:
    async def main() -> list[Tool]:
        async with Client(server, revision=revision) as client:
            return await client.list_tools()

    return asyncio.run(main())


def test_listed_fields_can_be_updated_and_others_stay():
    server = Server("s")

    @server.tool(title="one", icons=SAFE, meta={"com.example/a": 1})
    def tool() -> int:
        """Do it."""
        return 1

    before = tool.tool
    tool.update(title="two", annotations=ToolAnnotations(read_only_hint=True))
    [shown] = listed(server)
    assert (shown.title, shown.description, shown.icons) == ("two", "Do it.", SAFE)
    assert shown.annotations == ToolAnnotations(read_only_hint=True)
    assert (before.title, before.annotations) == ("one", None)
    tool.update(description="Do that.", icons=[*SAFE, *SAFE], meta={"com.example/b": 2})
    [shown] = listed(server)
    assert (shown.title, shown.description, shown.icons) == ("two", "Do that.", [*SAFE, *SAFE])
    assert shown.meta is not None
    assert shown.meta["com.example/b"] == 2


def test_an_icon_that_clients_would_refuse_is_refused():
    server = Server("s")
    with pytest.raises(ValueError, match=r"the icon 'javascript:alert\(1\)' is not safe"):
        server.tool(name="tool", icons=UNSAFE)(lambda: "")
    tool = server.tool(name="tool", icons=SAFE)(lambda: "")
    with pytest.raises(ValueError, match="javascript"):
        tool.update(title="new", icons=UNSAFE)
    assert tool.tool.title is None
    with pytest.raises(ValueError, match="javascript"):
        server.add_tool(Tool("other", {"type": "object"}, icons=UNSAFE), lambda arguments: "")
    assert [tool.name for tool in server.tools] == ["tool"]


@pytest.mark.requirement("TOOL-7", "TOOL-8")
@pytest.mark.parametrize("name", ["a b", "a/b", "ü", "x" * 129])
def test_a_name_that_clients_may_refuse_is_refused(name):
    with pytest.raises(ValueError, match="use 1 to 128 letters"):
        Server("s").tool(name=name)(lambda: "")


@pytest.mark.parametrize("revision", DATES)
def test_an_output_schema_has_the_shape_that_the_revision_takes(revision):
    server = Server("s")
    server.tool(name="number")(_number)
    server.tool(name="bare", wrap_result=False)(_number)
    server.tool(name="table")(_table)
    server.tool(name="words")(_words)
    number, bare, table, words = listed(server, revision)
    integer = {"type": "integer"}
    taken = REVISIONS[revision].structured
    assert number.output_schema == (_wrap(integer) if taken else None)
    assert bare.output_schema == {None: None, "object": _wrap(integer), "any": integer}[taken]
    assert words.output_schema == (_wrap({"type": "string"}) if taken else None)
    assert table.output_schema == ({"type": "object", "additionalProperties": integer} if taken else None)


@pytest.mark.parametrize("listing", [False, True])
@pytest.mark.parametrize("revision", DATES)
def test_a_result_is_an_object_on_the_wire_and_the_value_for_our_client(revision, listing):
    server = Server("s")
    server.tool(name="bare", wrap_result=False)(_number)
    for fn in (_number, _words, _pair, _anything, _table, _boxed):
        server.tool(fn)
    values = {"_number": 1, "_words": "words", "_pair": ["a", "5"], "_anything": [1, "b"]}
    values |= {"_table": {"legs": 4}, "_boxed": {"result": 4}}

    async def main() -> None:
        async with Client(server, revision=revision) as client:
            if listing:
                await client.list_tools()
            for name, value in {**values, "bare": 1}.items():
                result = await client.call_tool(name, result_type=type(value))
                assert result.data == value
                assert not any(key.startswith("toolpost") for key in result.meta or {})
                taken = REVISIONS[revision].structured
                if taken is not None:
                    assert (await client.call_tool(name)).data == value
                    is_plain = isinstance(value, dict) or (name == "bare" and taken == "any")
                    assert result.structured_content == (value if is_plain else {"result": value})

    asyncio.run(main())


def _wrap(schema: dict[str, Any]) -> dict[str, Any]:
    properties = {"properties": {"result": schema}, "required": ["result"]}
    return {"type": "object", **properties, "x-fastmcp-wrap-result": True}


def _pair() -> list[str]:
    return ["a", "5"]


def _anything() -> list[Any]:
    return [1, "b"]


def _boxed() -> dict[str, int]:
    return {"result": 4}


def _number() -> int:
    return 1


def _table() -> dict[str, int]:
    return {"legs": 4}


def _words() -> str:
    return "words"


# --------------------------------------------------------------------- calls


@pytest.mark.requirement("TOOL-18")
@pytest.mark.parametrize("tool", ["fails", "fails_sync"])
@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), TimeoutError("secret"), SystemExit(3), asyncio.CancelledError("secret")],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_are_logged_but_not_sent_to_the_client(tool, error, caplog):
    with caplog.at_level(logging.ERROR):
        result = called(refusing(error), tool)
    assert result.is_error
    assert result.content == [TextContent(f"Tool {tool!r} failed unexpectedly; see the server log.")]
    [line] = caplog.records
    assert line.getMessage() == f"tool {tool} failed"
    assert line.exc_info


def test_debug_mode_sends_the_exception_to_the_client():
    result = called(refusing(ValueError("the oven is cold"), debug=True), "fails")
    assert result.content == [TextContent("ValueError: the oven is cold")]


class Wordless(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


class WordlessRefusal(Wordless, ToolError):
    pass


@pytest.mark.requirement("TOOL-18")
def test_an_exception_without_a_message_affects_only_its_call():
    said = "(no message: its __str__ raised KeyError)"
    result = called(refusing(Wordless(), debug=True), "fails")
    assert (result.is_error, result.content) == (True, [TextContent(f"Wordless: {said}")])
    result = called(refusing(WordlessRefusal("x")), "fails")
    assert (result.is_error, result.content) == (True, [TextContent(said)])


@pytest.mark.requirement("TOOL-18")
@pytest.mark.parametrize(
    ("said", "told"), [("the oven is cold", "the oven is cold"), ("öfen", "öfen"), (f"a {HALF} b", "a ? b")]
)
def test_a_result_is_converted_as_far_as_possible(said, told):
    result = called(refusing(ToolError(said)), "fails")
    assert (result.is_error, result.content) == (True, [TextContent(told)])


def test_an_rpc_error_is_an_error_of_the_protocol():
    with pytest.raises(InvalidParams, match="not like this"):
        called(refusing(InvalidParams("not like this")), "fails")


@pytest.mark.requirement("TOOL-13")
@pytest.mark.parametrize("revision", DATES)
@pytest.mark.parametrize(
    "value",
    [
        HALF,
        TextContent(HALF),
        {"a": HALF},
        CallToolResult(content=[TextContent(HALF)]),
        object(),
        {"a": float("nan")},
    ],
    ids=["text", "block", "object", "result", "no JSON", "no number"],
)
def test_output_that_cannot_be_sent_is_an_error_of_the_tool(revision, value, caplog):
    server = Server("s")

    @server.tool
    async def broken():
        return value

    result = called(server, "broken", revision)
    assert result.is_error
    assert result.content == [TextContent("Tool 'broken' failed unexpectedly; see the server log.")]
    assert "cannot be sent" in caplog.text


@pytest.mark.parametrize("timeout", [0.001, None])
def test_a_tool_may_take_its_time_or_not(timeout, caplog):
    server = Server("s", timeout=0.001)

    @server.tool(timeout=timeout)
    async def late() -> str:
        await asyncio.Event().wait()
        return "never"

    result = called(server, "late")
    assert result.is_error
    assert result.content == [TextContent("Tool 'late' timed out after 0.001 seconds.")]
    assert "timed out after 0.001 s" in caplog.text


@pytest.mark.requirement("CANC-4")
def test_a_call_that_is_cancelled_is_not_answered():
    server = Server("s")
    ended: list[str] = []

    @server.tool
    async def forever(ctx: Context) -> str:
        await ctx.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled" if ctx.cancelled else "not yet")
        return "never"

    async def main() -> None:
        async with Client(server) as client:
            begun = asyncio.Event()
            call = asyncio.ensure_future(client.call_tool("forever", progress=lambda _: begun.set()))
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await client.list_tools()
            assert not client.stats.discarded

    asyncio.run(main())
    assert ended == ["cancelled"]


def message(revision: str, **members: Any) -> dict[str, Any]:
    """A request or a notification as a client of this revision encodes it."""
    params = members.setdefault("params", {})
    if REVISIONS[revision].stateless and "id" in members:
        params["_meta"] = params.get("_meta", {}) | {
            PROTOCOL_VERSION: revision,
            CLIENT_CAPABILITIES: {},
            LOG_LEVEL: "debug",
        }
    return {"jsonrpc": "2.0", **members}


async def opened(channel: ScriptedChannel, revision: str) -> None:
    """Complete the handshake, if the revision has one."""
    if not REVISIONS[revision].stateless:
        info = {"name": "raw", "version": "1"}
        hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": info}
        channel.feed(message(revision, id=0, method="initialize", params=hello))
        assert "result" in await channel.next_sent()
        channel.feed(message(revision, method="notifications/initialized"))


@pytest.mark.requirement("CANC-4", "STDIO-11", "PROG-5", "PROG-6", "LOG-7")
@pytest.mark.parametrize("revision", DATES)
@pytest.mark.parametrize("end", ["answered", "cancelled"])
def test_nothing_is_sent_for_a_finished_request(revision, end):
    server = Server("s")
    kept: list[Context] = []
    ended = asyncio.Event()

    async def go_on() -> None:
        await kept[0].progress(2)
        await kept[0].error("too late")

    @server.tool
    async def talks(ctx: Context) -> str:
        kept.append(ctx)
        await ctx.progress(1)
        if end == "cancelled":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await go_on()
                ended.set()
        return "the answer"

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(server.serve(channel))
        await opened(channel, revision)
        params = {"name": "talks", "_meta": {"progressToken": "t"}}
        channel.feed(message(revision, id=1, method="tools/call", params=params))
        said = await channel.next_sent()
        assert (said["method"], said["params"]["progressToken"]) == ("notifications/progress", "t")
        if end == "cancelled":
            params = {"requestId": 1, "reason": "enough"}
            channel.feed(message(revision, method="notifications/cancelled", params=params))
            await ended.wait()
        else:
            assert (await channel.next_sent())["id"] == 1
        await go_on()
        channel.feed(message(revision, id=2, method="tools/list"))
        assert (await channel.next_sent())["id"] == 2  # and nothing before it
        assert channel.unread == 0
        channel.end()
        await serving

    asyncio.run(main())


def test_a_function_that_never_returns_promises_nothing():
    server = Server("s")

    @server.tool
    def stop() -> NoReturn:
        raise ToolError("stopped")

    assert stop.tool.output_schema is None
    assert called(server, "stop").content == [TextContent("stopped")]
