"""Remote servers behind a gateway: every pair of revisions, over real transports."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from kitchen_upstream import PIXEL, URL, Kitchen, open_gateway, wait_for_tools
from toolpost import Change, Client, Edit, RPCError, Server, ToolError
from toolpost.errors import MethodNotFound
from toolpost.types import CallToolResult, ElicitParams, ImageContent, LogParams, ProgressParams, TextContent

DATES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
ELICITING = ("2025-06-18", "2025-11-25", "2026-07-28")


def answer(asked: ElicitParams) -> dict[str, Any]:
    return {"value": True if "really" in asked.message else 3}


def parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def pairs(dates: tuple[str, ...] = DATES) -> Any:
    return pytest.mark.parametrize(("down", "up"), [(down, up) for down in dates for up in dates])


@pairs()
def test_every_revision_reaches_every_other_one(down: str, up: str):
    async def main() -> None:
        made: list[ProgressParams] = []
        logs: list[LogParams] = []
        async with (
            open_gateway(Kitchen(revisions=[up])) as gateway,
            Client(gateway, revision=down, on_log=logs.append) as client,
        ):
            tools = {tool.name: tool for tool in await client.list_tools()}
            assert "k_add" in tools
            assert set(tools["k_add"].input_schema["properties"]) == {"a", "b"}
            result = await client.call_tool("k_add", {"a": 1, "b": 2}, progress=made.append)
            assert result.data in (3, "3")
            assert [each.message for each in made] == ["half"]
            for number, value in enumerate([[1, None], 2.5, "x", None, True, {"a": 1}]):
                given = await client.call_tool("k_value", {"number": number}, validate=False)
                assert value in (given.data, given.text, parse(given.text))
            with pytest.raises(ToolError, match="burnt"):
                await client.call_tool("k_fail")
            with pytest.raises(RPCError, match="Unknown tool"):
                await client.call_tool("k_nothing")
            block = (await client.call_tool("k_picture")).content[0]
            assert isinstance(block, ImageContent)
            assert base64.b64decode(block.data) == PIXEL
            assert (await client.read_resource("kitchen://menu")).contents[0].text == "soup"
            assert (await client.read_resource("kitchen://egg/recipe")).contents[0].text == "boil egg"
            with pytest.raises(RPCError, match="not found"):
                await client.read_resource("kitchen://nothing")
            praised = await client.get_prompt("k_praise", {"dish": "soup"})
            assert praised.messages[0].content == TextContent("Praise the soup")
            assert (await client.complete("k_praise", "dish", "sou")).values == ["soup"]
            assert client.instructions is not None
            assert client.instructions.startswith("Everything.")
        assert [each.data for each in logs] == ["adding"]  # also those that came late

    asyncio.run(main())


@pairs(ELICITING)
def test_questions_reach_the_client_in_every_pair_of_revisions(down: str, up: str):
    async def main() -> None:
        kitchen = Kitchen(revisions=[up])
        async with (
            open_gateway(kitchen) as gateway,
            Client(
                gateway,
                revision=down,
                on_elicitation=answer,
                on_sampling=lambda _: "hello",
                on_roots=["file:///home"],
            ) as client,
        ):
            results = await asyncio.gather(
                *(client.call_tool("k_ask", {"name": name}) for name in ("eggs", "pens", "cups"))
            )
            assert [result.text for result in results] == ["3 eggs True", "3 pens True", "3 cups True"]
            assert (await client.call_tool("k_sample")).text == "model: hello"
            assert (await client.call_tool("k_list_roots")).text == "file:///home"
            if up != "2026-07-28":
                assert kitchen.runs == 3  # a parked call is never called again

    asyncio.run(main())


@pairs(("2024-11-05", "2026-07-28"))
def test_a_client_that_cannot_be_asked_gets_a_clear_error(down: str, up: str):
    async def main() -> None:
        async with open_gateway(Kitchen(revisions=[up])) as gateway, Client(gateway, revision=down) as client:
            await client.list_tools()
            with pytest.raises((RPCError, ToolError), match=r"(?i)elicitation"):
                await client.call_tool("k_ask", {"name": "eggs"})

    asyncio.run(main())


@pairs(("2025-11-25", "2026-07-28"))
def test_a_cancelled_call_cancels_exactly_its_upstream_call(down: str, up: str):
    async def main() -> None:
        kitchen = Kitchen(revisions=[up])
        async with (
            open_gateway(kitchen) as gateway,
            Client(gateway, revision=down, on_elicitation=answer) as client,
        ):
            await client.list_tools()
            call = asyncio.create_task(client.call_tool("k_wait"))
            await kitchen.started.wait()
            call.cancel()
            await kitchen.cancelled.wait()
            assert (await client.call_tool("k_add", {"a": 1, "b": 1})).data == 2

    asyncio.run(main())


@pairs(("2025-06-18", "2026-07-28"))
def test_changes_of_lists_and_resources_are_passed_on(down: str, up: str):
    async def main() -> None:
        kitchen = Kitchen(revisions=[up])
        async with open_gateway(kitchen) as gateway, Client(gateway, revision=down) as client:
            before = {tool.name for tool in await client.list_tools()}
            async with (
                client.listen(tools=True, prompts=True, uris=["kitchen://menu"]) as stream,
                aclosing(cast("AsyncGenerator[Change]", aiter(stream))) as changes,
            ):
                for name in ("fry", "bake"):
                    kitchen.tool(name=name)(lambda: "done")
                assert await anext(changes) == Change("tools")
                assert {tool.name for tool in await client.list_tools()} - before == {"k_fry", "k_bake"}
                kitchen.notify_resource_updated("kitchen://menu")
                assert await anext(changes) == Change("resource", "kitchen://menu")
                praise = kitchen.prompts.get("praise")
                assert praise is not None
                praise.disable()
                assert await anext(changes) == Change("prompts")
                assert await client.list_prompts() == []

    asyncio.run(main())


def test_sessions_have_their_own_state_upstream():
    async def main() -> None:
        async with (
            open_gateway(Kitchen(revisions=["2025-11-25"])) as gateway,
            Client(gateway, revision="2025-11-25") as ann,
            Client(gateway, revision="2025-11-25") as bob,
        ):
            await ann.list_tools()
            assert (await ann.call_tool("k_remember", {"word": "a"})).text == "None"
            assert (await bob.call_tool("k_remember", {"word": "b"})).text == "None"
            assert (await ann.call_tool("k_remember", {"word": "c"})).text == "a"

    asyncio.run(main())


def test_a_shared_connection_has_one_state_and_refuses_questions_of_unknown_calls():
    async def main() -> None:
        async with (
            open_gateway(Kitchen(revisions=["2025-11-25"]), share="all") as gateway,
            Client(gateway, revision="2025-11-25") as ann,
            Client(gateway, revision="2025-11-25", on_elicitation=answer) as bob,
        ):
            await ann.list_tools()
            await ann.call_tool("k_remember", {"word": "a"})
            assert (await bob.call_tool("k_remember", {"word": "b"})).text == "a"
            assert (await bob.call_tool("k_ask", {"name": "eggs"})).text == "3 eggs True"

    asyncio.run(main())


@pytest.mark.parametrize("up", ["2025-11-25", "2026-07-28"])
def test_edits_middleware_and_selections_apply_to_remote_tools(up: str):
    async def main() -> None:
        names: list[str] = []

        async def watch(call: Any, next: Any) -> Any:  # noqa: A002 - the usual name
            names.append(call.params.name)
            return await next(call)

        def shout(result: CallToolResult) -> CallToolResult:
            return CallToolResult(content=[TextContent("FIVE")], structured_content=result.structured_content)

        edits = {
            "add": Edit(
                name="plus", arguments={"a": Edit.Argument("first"), "b": Edit.Constant(4)}, result=shout
            )
        }
        async with (
            open_gateway(Kitchen(revisions=[up]), tools=edits, only=["add"], around=[watch]) as gateway,
            Client(gateway) as client,
        ):
            assert [tool.name for tool in await client.list_tools()] == ["k_plus"]
            assert (await client.call_tool("k_plus", {"first": 1, "b": 9})).text == "FIVE"
            assert names == ["k_plus"]

    asyncio.run(main())


def test_items_pass_with_all_their_members():
    """Members that no revision knows and the digits of numbers stay as they came."""

    async def main() -> None:
        gateway = Server("gateway")
        gateway.mount([sys.executable, "-c", ODD_SERVER], "odd")
        async with Client(gateway) as client:
            await client.list_tools()
            raw = (await client.forward("tools/list")).raw
            assert b'"later":1.50,"name":"odd_echo"' in raw
            result = await client.forward("tools/call", b'{"name":"odd_echo","arguments":{"x":1.0}}')
            assert b'"sent":{"x":1.0}' in result.raw
            assert b'"later":2.50' in result.raw
            with pytest.raises(RPCError) as caught:
                await client.call_tool("odd_refuse")
            assert (caught.value.code, caught.value.data) == (-31999, {"why": [1]})
        (mount,) = gateway.mounts
        assert mount.problems == ["tools: 'an item' cannot be read, and is left out"]

    asyncio.run(main())


ODD_SERVER = r"""
import json, re, sys
for line in sys.stdin:
    message = json.loads(line)
    method, number = message["method"], message.get("id")
    if number is None:
        continue
    if method == "initialize":
        result = ('{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},'
                  '"serverInfo":{"name":"odd","version":"1"}}')
    elif method == "tools/list":
        result = ('{"tools":[{"later":1.50,"name":"echo","inputSchema":{"type":"object"}},'
                  '{"name":"refuse","inputSchema":{"type":"object"}},{"nothing":1}]}')
    elif method == "tools/call" and message["params"]["name"] == "echo":
        sent = re.search(r'"arguments":(\{[^{}]*\})', line)[1]
        result = '{"content":[],"later":2.50,"sent":%s}' % sent
    elif method == "tools/call":
        error = {"code": -31999, "message": "no", "data": {"why": [1]}}
        print(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}), flush=True)
        continue
    else:
        error = {"code": -32601, "message": "Method not found"}
        print(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}), flush=True)
        continue
    print('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(number), result), flush=True)
"""


def test_two_servers_may_list_the_same_names_and_uris():
    async def main() -> None:
        first, second = Kitchen(), Kitchen(revisions=["2025-11-25"])
        apps = first.asgi(), second.asgi()
        async with apps[0].lifespan(), apps[1].lifespan():
            gateway = Server("gateway")
            one = gateway.mount(URL, http=apps[0])
            async with Client(gateway) as client:
                await client.list_tools()
                two = gateway.mount(URL, http=apps[1])
                await two.wait_listed()
                assert {"add", "127.0.0.1_add"} <= {tool.name for tool in await client.list_tools()}
                assert (await client.call_tool("127.0.0.1_add", {"a": 1, "b": 1})).data == 2
                other = "server-127-0-0-1+kitchen://menu"
                assert [each.uri for each in await client.list_resources()] == ["kitchen://menu", other]
                assert (await client.read_resource(other)).contents[0].uri == other
                await client.subscribe(other)
                assert len(two.problems) > len(one.problems) == 0
                one.remove()
                await wait_for_tools(client, *(f"127.0.0.1_{tool.name}" for tool in second.tools))

    asyncio.run(main())


def test_a_server_that_has_no_subscriptions_says_so():
    async def main() -> None:
        gateway = Server("gateway")
        gateway.mount(
            [sys.executable, "-c", ODD_SERVER.replace('{"tools":{}}', '{"tools":{},"resources":{}}')]
        )
        async with Client(gateway, revision="2025-11-25") as client:
            await client.list_tools()
            with pytest.raises(MethodNotFound, match="no subscriptions"):
                await client.subscribe("odd://x")

    asyncio.run(main())
