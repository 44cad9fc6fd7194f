"""A server for chaos tests, over stdin and stdout, or over HTTP if its first argument says so.

The argument is JSON: the options of `server.run`, `drain` for stdio, the `key` of sessions (random by
default) and the `store`. `holdings` reports the resources of the process.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import toolpost.run
from toolpost import Context, KeyRing, Server, SyncContext
from toolpost.server.http import serve
from toolpost.server.http.sessions import Session

settings: dict[str, Any] = json.loads(sys.argv[1])
serve.PROCESS_EXIT_TIMEOUT = settings.pop("grace", serve.PROCESS_EXIT_TIMEOUT)
serve.MIN_WORKER_LIFETIME = settings.pop("probation", serve.MIN_WORKER_LIFETIME)
key: str | None = settings.pop("key", None)
store: str = settings.pop("store", "memory://")
server = Server("victim", keys=None if key is None else KeyRing([key]), store=store)
running: Counter[str] = Counter()
"""The calls that are being served, by tool."""


@server.tool
def pid() -> int:
    """Return the id of the worker."""
    return os.getpid()


@server.tool
async def echo(text: str) -> str:
    """Say the same."""
    return text


@server.tool
async def big(size: int) -> str:
    """Say much."""
    return "x" * size


@server.tool
async def sample(ctx: Context) -> str:
    """Ask the client's model for a name."""
    answer = await ctx.sample("Who are you?")
    return f"Hello, {answer.text}"


@server.tool
async def hang(ctx: Context) -> str:
    """Say that it has begun, and never end."""
    running["hang"] += 1
    try:
        await ctx.progress(1, message=str(os.getpid()))
        await asyncio.Event().wait()
    finally:
        running["hang"] -= 1
    return "never"


@server.tool
async def hold(path: str, ctx: Context) -> int:
    """Report the start, and end when the file exists; return the id of the worker."""
    await ctx.progress(1, message=str(os.getpid()))
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - nothing else reaches a process
        await asyncio.sleep(0.01)
    return os.getpid()


@server.tool
async def steps(count: int, ctx: Context) -> str:
    """Let others work in between."""
    running["steps"] += 1
    try:
        for done in range(count):
            await ctx.progress(done + 1, count)
            await asyncio.sleep(0)
    finally:
        running["steps"] -= 1
    return "done"


@server.tool
def blocked(ctx: SyncContext) -> str:
    """Block a thread, whatever happens."""
    ctx.progress(1)
    time.sleep(600)
    return "never"


@server.tool
async def flood(count: int, size: int, ctx: Context) -> str:
    """Send more than a client can read."""
    running["flood"] += 1
    try:
        text = "x" * size
        for done in range(count):
            await ctx.progress(done + 1, message=text)
            await asyncio.sleep(0)
    finally:
        running["flood"] -= 1
    return "done"


@server.tool
async def holdings() -> dict[str, int]:
    """What this process holds at the moment."""
    gc.collect()
    sessions = sum(type(each) is Session for each in gc.get_objects())
    tasks = len(asyncio.all_tasks())
    return {"calls": running.total(), "sessions": sessions, "tasks": tasks}


if __name__ == "__main__":
    if settings.pop("stdio", False):
        limits: Any = toolpost.run.serve_stdio.__kwdefaults__
        limits["drain"] = settings.pop("drain", toolpost.run.DRAIN_TIMEOUT)
        server.run(**settings)
    else:
        server.run(http=settings.pop("address", "127.0.0.1:0"), **settings)
