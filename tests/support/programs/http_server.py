"""A server over HTTP, configured by the JSON in its first argument."""

import asyncio
import json
import os
import sys
import time

from toolpost import Context, Server
from toolpost.server.http import serve

settings = json.loads(sys.argv[1])
serve.PROCESS_EXIT_TIMEOUT = settings.pop("grace", serve.PROCESS_EXIT_TIMEOUT)
serve.MIN_WORKER_LIFETIME = settings.pop("probation", serve.MIN_WORKER_LIFETIME)
server = Server("web")


@server.tool
def pid() -> int:
    """Return the id of the worker."""
    return os.getpid()


@server.tool
async def slow(ctx: Context) -> str:
    """Take a moment, and say so first."""
    await ctx.progress(1)
    await asyncio.sleep(0.3)  # the work itself, for a signal to come into
    return "slow"


@server.tool
async def stuck(ctx: Context) -> str:
    """Never end."""
    await ctx.progress(1)
    await asyncio.Event().wait()
    return "never"


@server.tool
async def deaf(ctx: Context) -> str:
    """Never end, even when cancelled."""
    await ctx.progress(1)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@server.tool
async def blocks(ctx: Context) -> str:
    """Block the event loop."""
    await ctx.progress(1)
    await asyncio.sleep(0.05)
    time.sleep(60)  # noqa: ASYNC251 - that is the point
    return "never"


if __name__ == "__main__":
    server.run(http=settings.pop("address", "127.0.0.1:0"), **settings)
