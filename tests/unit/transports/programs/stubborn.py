"""A server that refuses to exit, in the way that its argument names."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolpost import Server
from toolpost.run import run_stdio

way = sys.argv[1]


@asynccontextmanager
async def lifespan(_: Server) -> AsyncGenerator[None]:
    if way == "prints":
        print("up", flush=True)  # noqa: T201 - what a careless author does
        os.write(1, b"up\n")
    if way == "hangs":
        print("hanging", file=sys.stderr, flush=True)  # noqa: T201 - for the test to wait for
        await asyncio.Event().wait()
    yield
    if way == "prints":
        print("down", flush=True)  # noqa: T201 - as above


server = Server("stubborn", lifespan=lifespan)


@server.tool
async def stay() -> str:
    print("staying", file=sys.stderr, flush=True)  # noqa: T201 - for the test to wait for
    while way == "blocks":
        time.sleep(0.05)  # noqa: ASYNC251 - this is the point
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


run_stdio(server, grace=0.3)
