"""FastMCP over HTTP, as its documentation recommends: `fastmcp_http.py PORT json|sse [TOOLS]`."""

import sys

from fastmcp import Context, FastMCP
from fastmcp.tools import Tool

TOOLS = int(sys.argv[3]) if len(sys.argv) > 3 else 0
server = FastMCP("bench", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def one(a: int, b: int, ctx: Context) -> int:
    """Add two numbers, and report progress once before."""
    await ctx.report_progress(1, 2)
    return a + b


for number in range(2, TOOLS):
    server.add_tool(Tool.from_function(add.fn if hasattr(add, "fn") else add, name=f"tool_{number}"))
server.run(
    "http",
    port=int(sys.argv[1]),
    json_response=sys.argv[2] == "json",
    show_banner=False,
    log_level="ERROR",
)
