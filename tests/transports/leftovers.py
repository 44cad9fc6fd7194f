"""What this process holds, and waiting for what no event tells."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 10.0


def eventually(condition, what: str) -> None:
    """Return as soon as the condition holds; fail with these words if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


async def until(condition) -> None:
    """The same for a test in an event loop, which has a time limit of its own."""
    while not condition():  # noqa: ASYNC110 - what is waited for is not ours to tell
        await asyncio.sleep(0.001)


def descriptors() -> dict[str, str]:
    """The open descriptors of this process and what they are."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that listed the folder
            found[link.name] = link.readlink().as_posix()
    return found


def children() -> set[str]:
    """The numbers of the child processes of this process, zombies included."""
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            found.update((task / "children").read_text().split())
    return found
