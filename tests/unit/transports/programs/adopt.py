# ruff: noqa: T201 - a program that prints
"""Adopts orphaned processes, like the first process of a container, and closes a server that left one."""

import asyncio
import ctypes
import os
import sys
from pathlib import Path

from toolpost.errors import ChannelClosed
from toolpost.transports.stdio_client import Stdio, open_child

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


async def main() -> None:
    family = Path(__file__).parent / "family.py"
    child = await open_child(Stdio(sys.executable, [str(family), "leave"]))
    grandchild = await child.receive()
    try:
        await child.receive()
    except ChannelClosed:
        os.kill(int(grandchild), 0)
    await child.close()


asyncio.run(main())
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nobody is left")
