"""toolpost over stdio, as docs/running.md recommends."""

from toolpost import Server

server = Server("bench", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


server.run()
