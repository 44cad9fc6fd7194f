"""The server of the soak: a bit of everything, over stdin and stdout or over HTTP.

The first argument is JSON: what `server.run` takes; the second is a name, for whoever reads the list of
processes.
"""

import asyncio
import json
import sys
from typing import Any

from toolpost import Accepted, Context, Server, ToolError

server = Server("soak")


@server.tool
async def echo(text: str) -> str:
    """Say the same."""
    return text


@server.tool
def add(a: int, b: int) -> int:
    """Add, in a thread."""
    return a + b


@server.tool
async def big(size: int) -> str:
    """Say much."""
    return "x" * size


@server.tool
async def steps(count: int, ctx: Context) -> str:
    """Say how far it has come."""
    for done in range(count):
        await ctx.progress(done + 1, count)
        await asyncio.sleep(0)
    return "done"


@server.tool
async def flood(count: int, ctx: Context) -> str:
    """Say more than anybody wants to hear."""
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
    """Say no."""
    raise ToolError("no")


@server.tool
async def ask(ctx: Context) -> str:
    """Ask the user."""
    answer = await ctx.elicit("How many?", int)
    return str(answer.data) if isinstance(answer, Accepted) else "nobody is there"


@server.tool
async def news() -> str:
    """Let everybody know that something has changed."""
    server.notify_resource_updated("soak://page")
    return "told"


@server.resource("soak://page")
async def page() -> str:
    """Something to read."""
    return "a page"


@server.prompt
def greet(name: str) -> str:
    """Something to say."""
    return f"Hello, {name}"


if __name__ == "__main__":
    settings: dict[str, Any] = json.loads(sys.argv[1])
    server.run(**settings)
