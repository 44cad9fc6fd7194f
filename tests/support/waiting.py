"""Waiting for conditions that have no event."""

import asyncio
import time

from leak_check import PATIENCE
from toolpost.testing.leaks import list_children, list_descriptors

__all__ = ["close_pipes", "eventually", "list_children", "list_descriptors", "until"]


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes that asyncio keeps open after a process has ended."""
    transport: asyncio.SubprocessTransport = process._transport  # pyright: ignore[reportAttributeAccessIssue] - asyncio has no public way
    transport.close()


def eventually(condition, what: str) -> None:
    """Wait until the condition is true. Fails with this message if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


async def until(condition) -> None:
    """Do the same in an event loop; the test has its own timeout."""
    while not condition():  # noqa: ASYNC110 - the condition has no event
        await asyncio.sleep(0.001)
