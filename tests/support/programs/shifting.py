"""A server that changes while it serves."""

import logging
from typing import Any

from toolpost import Context, Server, SyncContext

server = Server("shifting")


@server.tool
def fixed() -> str:
    return "fixed"


@server.tool
def other() -> str:
    return "other"


@server.resource("state://now")
def now() -> str:
    return "now"


@server.resource("rows://{n}")
def row(n: int) -> str:
    return str(n)


@server.prompt
def ask() -> str:
    return "ask"


HANDLES: dict[str, Any] = {"tool": other, "resource": now, "template": row, "prompt": ask}


@server.tool
async def change(how: str, what: str = "tool") -> str:
    """Change a handle."""
    handle = HANDLES[what]
    if how == "update":
        handle.update(title="New", description="Changed.")
    else:
        getattr(handle, how)()
    return "done"


@server.tool
def grow(count: int) -> str:
    for n in range(count):
        server.tool(name=f"grown_{n}")(lambda: "grown")
    return "done"


@server.tool
async def touch(uri: str, ctx: Context) -> str:
    for _ in range(3):
        await ctx.notify_resource_updated(uri)
    return "done"


@server.tool
def touch_sync(uri: str, ctx: SyncContext) -> str:
    ctx.notify_resource_updated(uri)
    return "done"


if __name__ == "__main__":
    logging.getLogger("toolpost").setLevel(logging.CRITICAL)  # what breaks here breaks on purpose
    server.run()
