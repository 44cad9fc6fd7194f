"""PyPI's `mcp` over HTTP, as its documentation says: `mcp_http.py PORT json|sse [TOOLS]`."""

import sys

from mcp.server.mcpserver import Context, MCPServer

TOOLS = int(sys.argv[3]) if len(sys.argv) > 3 else 0
LARGE = ("The quick brown fox jumps over the lazy dog.\n" * 25000)[: 1 << 20]
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


@server.tool()
async def count(to: int, ctx: Context) -> int:
    """Count."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to)
    return to


@server.resource("bench://large")
async def large() -> str:
    """One MiB of text."""
    return LARGE


for number in range(3, TOOLS):
    server.add_tool(add, name=f"tool_{number}")
server.run("streamable-http", port=int(sys.argv[1]), json_response=sys.argv[2] == "json")
