"""Waiting for conditions that have no event."""

import asyncio
import time

from leak_check import PATIENCE
from toolpost.testing.leaks import list_children, list_descriptors

__all__ = ["close_pipes", "eventually", "list_children", "list_descriptors", "until"]


def close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close what asyncio keeps open of a process that has ended until it is collected."""
    transport: asyncio.SubprocessTransport = process._transport  # pyright: ignore[reportAttributeAccessIssue] - asyncio has no public way
    transport.close()


def eventually(condition, what: str) -> None:
    """Return as soon as the condition holds; fail with these words if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


async def until(condition) -> None:
    """The same for a test in an event loop, which has a time limit of its own."""
    while not condition():  # noqa: ASYNC110 - the condition has no event
        await asyncio.sleep(0.001)
