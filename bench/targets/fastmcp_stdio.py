"""FastMCP over stdio, as its documentation recommends."""

from fastmcp import FastMCP

server = FastMCP("bench", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


server.run(show_banner=False, log_level="ERROR")
