import asyncio
import sys
from pathlib import Path

from toolpost import Client

HELLO = [sys.executable, str(Path(__file__).with_name("hello.py"))]


async def main() -> None:
    async with Client(HELLO) as mcp:
        print("revision:", mcp.revision)
        for tool in await mcp.list_tools():
            print("tool:", tool.name, "-", tool.description)
        result = await mcp.call_tool("greet", {"name": "Ann", "language": "fr"})
        print("result:", result.data)


asyncio.run(main())
