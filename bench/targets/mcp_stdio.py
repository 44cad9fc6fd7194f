"""PyPI's `mcp` over stdio, as its documentation recommends."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("bench", version="1", log_level="ERROR")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


server.run()
