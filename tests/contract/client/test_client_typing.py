"""The types of a client: pyright checks each line, and each line runs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, assert_type

from raw_server import Asked, RawServer
from toolpost import Client, PausedCall, SyncClient, ToolResult
from toolpost.types import CallToolResult, ListToolsResult, Result, TextContent, Tool


@dataclass
class Number:
    n: int


async def said(_: Asked) -> Result:
    return CallToolResult(content=[TextContent("one")], structured_content={"n": 1})


async def tools(_: Asked) -> Result:
    return ListToolsResult(tools=[])


def server() -> RawServer:
    return RawServer({"tools/call": said, "tools/list": tools})


def test_the_types_of_a_client():
    async def main() -> None:
        async with Client(server()) as client:
            assert_type(client, Client)
            assert_type(await client.list_tools(), list[Tool])
            assert_type(client.list_tools_pages(), AsyncIterator[ListToolsResult])
            assert_type(await client.call_tool("t"), ToolResult[Any])
            typed = await client.call_tool("t", {"a": 1}, result_type=Number)
            assert_type(typed.data, Number)
            assert typed.data == Number(1)
            assert_type(await client.begin_call("t", result_type=Number), ToolResult[Number] | PausedCall)
            assert_type(await client.request("tools/list"), Result)
            assert_type(await client.request("tools/list", result_type=dict), dict[Any, Any])

    asyncio.run(main())


def test_the_types_of_a_client_without_await():
    with SyncClient(server(), timeout=30) as client:
        assert_type(client, SyncClient)
        assert_type(client.list_tools(), list[Tool])
        assert_type(client.list_tools_pages(), Iterator[ListToolsResult])
        assert_type(client.call_tool("t", result_type=Number).data, Number)
        assert_type(client.begin_call("t", result_type=Number), ToolResult[Number] | PausedCall)
        assert_type(client.request("tools/list"), Result)


def test_calls_that_a_type_checker_rejects_fail():
    for wrong in (
        lambda: Client(server(), timeut=5),  # pyright: ignore[reportCallIssue] - no such option
        lambda: SyncClient(server(), timeut=5),  # pyright: ignore[reportCallIssue] - no such option
        lambda: Client(7),  # pyright: ignore[reportArgumentType] - not a target
    ):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError(wrong)
