"""PyPI's `mcp` over HTTP with sessions, in one process, as its documentation asks: `mcp_fleet.py PORT`."""

import asyncio
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import SamplingMessage, TextContent
from mcp_server import add, wait

sessions: list[Any] = []
"""The sessions to notify of changes: a server keeps no list of them."""


async def ask(ctx: Context) -> str:
    """Ask the client's model."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text="Who are you?"))
    answer = await ctx.session.create_message([question], max_tokens=100, related_request_id=ctx.request_id)
    return str(answer.content)


async def join(ctx: Context) -> str:
    """Note the session."""
    sessions.append(ctx.session)
    return "joined"


async def grow() -> str:
    """Notify all sessions that the list of tools has changed."""
    await asyncio.gather(*(session.send_tool_list_changed() for session in sessions))
    return "grown"


def main(port: str) -> None:
    """Serve."""
    server = MCPServer("bench", version="1", log_level="ERROR")
    for function in (add, wait, ask, join, grow):
        server.add_tool(function)
    server.run("streamable-http", port=int(port))


main(*sys.argv[1:])
