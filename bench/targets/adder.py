"""The toolpost server that is called without a socket, by all who do that."""

from toolpost import Context, Server

__all__ = ["server"]

server = Server("bench", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def told(a: int, b: int, ctx: Context) -> int:
    """Add two numbers, and say so first."""
    await ctx.progress(1, 2)
    return a + b
