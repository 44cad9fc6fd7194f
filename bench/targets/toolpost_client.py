"""Clients of toolpost: `toolpost_client.py stdio COMMAND...`, `… http URL`, or `… memory`."""

import asyncio
import sys
from functools import partial
from typing import Any

from turns import repeat, take_turns

from toolpost import Client, Server

server = Server("bench", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(way: str, *given: str) -> None:
    """Connect and take turns."""
    target: Any = {"stdio": list(given), "http": "".join(given), "memory": server}[way]
    async with Client(target) as mcp:

        async def call() -> None:
            result = await mcp.call_tool("add", {"a": 1, "b": 2})
            assert result.text == "3", result

        await take_turns({"call": partial(repeat, call)})


asyncio.run(main(*sys.argv[1:]))
