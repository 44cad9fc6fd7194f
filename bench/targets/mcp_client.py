"""Clients of PyPI's `mcp`: `mcp_client.py stdio COMMAND...`, `… http URL`, or `… memory`."""

import asyncio
import sys
from functools import partial

from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer
from turns import repeat, take_turns

server = MCPServer("bench", version="1", log_level="ERROR")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(way: str, *given: str) -> None:
    """Connect and take turns."""
    if way == "stdio":
        target = StdioServerParameters(command=given[0], args=list(given[1:]))
    else:
        target = given[0] if way == "http" else server
    async with Client(target) as mcp:

        async def call() -> None:
            result = await mcp.call_tool("add", {"a": 1, "b": 2})
            assert result.content[0].text == "3", result

        await take_turns({"call": partial(repeat, call)})


asyncio.run(main(*sys.argv[1:]))
