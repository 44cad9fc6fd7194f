"""PyPI's `mcp` as an ASGI application, without a socket."""

import asyncio

from in_process import ways
from mcp.server.mcpserver import Context, MCPServer
from turns import take_turns


def made() -> MCPServer:
    """A server; each application needs one of its own."""
    server = MCPServer("bench", version="1", log_level="ERROR")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def told(a: int, b: int, ctx: Context) -> int:
        """Add two numbers, and say so first."""
        await ctx.report_progress(1, 2)
        return a + b

    return server


async def main() -> None:
    """Take turns."""
    as_json, as_sse = (made().streamable_http_app(json_response=json) for json in (True, False))
    async with as_json.router.lifespan_context(as_json), as_sse.router.lifespan_context(as_sse):
        await take_turns(await ways(as_json, as_json, as_sse))


asyncio.run(main())
