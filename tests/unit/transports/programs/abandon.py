# ruff: noqa: T201 - a program that prints
"""Starts a server and ends its event loop without closing the channel."""

import asyncio
import gc
import sys
import warnings

from toolpost.transports.stdio_client import Stdio, open_child

warnings.simplefilter("always")


async def main() -> int:
    child = await open_child(Stdio("sleep", ["60"], env={"SECRET": "hush"}))
    await child.send(bytes(200_000))  # more than the pipe takes
    return child.pid


pid = asyncio.run(main())
gc.collect()
print(pid, file=sys.stdout, flush=True)
