"""A server that treats its process badly."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time

from toolpost import Context, Server

server = Server("rough")


@server.tool
def prints() -> str:
    print("stray from print")  # noqa: T201 - that is the point
    sys.stdout.write('{"jsonrpc":"2.0","id":1,"result":{}}\n')
    sys.stdout.flush()
    os.write(1, b"stray from write\n")
    subprocess.run(["echo", "stray from a child"], check=True)
    ctypes.CDLL(None).puts(b"stray from C")
    ctypes.CDLL(None).fflush(None)
    return "é said"


@server.tool
def reads() -> str:
    return repr(sys.stdin.read())


@server.tool
async def dies(code: int) -> str:
    print("last words", file=sys.stderr, flush=True)  # noqa: T201 - the test reads them
    os._exit(code)


@server.tool
async def blocks(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    return "blocked"


@server.tool
async def slow(ctx: Context) -> str:
    go_on = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go_on.set)
    await ctx.progress(1)
    await go_on.wait()
    return "finished"


@server.tool
async def forever(ctx: Context) -> str:
    await ctx.progress(1)
    await asyncio.Event().wait()
    return "never"


@server.tool
def stuck(ctx_free: int = 0) -> str:
    while True:
        time.sleep(60)


@server.tool
def number() -> int:
    return os.getpid()


if __name__ == "__main__":
    logging.getLogger("toolpost").setLevel(logging.CRITICAL)  # what breaks here breaks on purpose
    print("stray before the start")  # noqa: T201 - that is the point
    server.run()
