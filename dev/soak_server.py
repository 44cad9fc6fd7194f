"""The server of the soak test, with many features, over stdio or HTTP.

The first argument are the options of `server.run` as JSON. The second is a name for the process list.
"""

import asyncio
import json
import sys
from typing import Any

from toolpost import Accepted, Context, Server, ToolError

server = Server("soak")


@server.tool
async def echo(text: str) -> str:
    """Return the argument."""
    return text


@server.tool
def add(a: int, b: int) -> int:
    """Add, in a thread."""
    return a + b


@server.tool
async def big(size: int) -> str:
    """Return a long string."""
    return "x" * size


@server.tool
async def steps(count: int, ctx: Context) -> str:
    """Report progress."""
    for done in range(count):
        await ctx.progress(done + 1, count)
        await asyncio.sleep(0)
    return "done"


@server.tool
async def flood(count: int, ctx: Context) -> str:
    """Send many log messages."""
    for done in range(count):
        await ctx.progress(done + 1, message="x" * 10_000)
        await asyncio.sleep(0)
    return "done"


@server.tool
async def hang(ctx: Context) -> str:
    """Never end."""
    await ctx.progress(1)
    await asyncio.Event().wait()
    return "never"


@server.tool
async def fail() -> str:
    """Fail."""
    raise ToolError("no")


@server.tool
async def ask(ctx: Context) -> str:
    """Ask the user."""
    answer = await ctx.elicit("How many?", int)
    return str(answer.data) if isinstance(answer, Accepted) else "declined"


@server.tool
async def news() -> str:
    """Notify clients of a change."""
    server.notify_resource_updated("soak://page")
    return "sent"


@server.resource("soak://page")
async def page() -> str:
    """Return a page."""
    return "a page"


@server.prompt
def greet(name: str) -> str:
    """Return a prompt."""
    return f"Hello, {name}"


if __name__ == "__main__":
    settings: dict[str, Any] = json.loads(sys.argv[1])
    server.run(**settings)
