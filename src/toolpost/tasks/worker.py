"""A worker without HTTP: takes the tasks of other processes from the store, until it is stopped.

It is an ordinary worker of an HTTP endpoint that receives no requests. Signals are left to the caller.
"""

import asyncio
from typing import TYPE_CHECKING

from toolpost.server.http.worker import Worker
from toolpost.server.options import HTTP

if TYPE_CHECKING:
    from toolpost.server.handler import Handler


def explain_no_shared_tasks(server: "Handler") -> str | None:
    """Return why a server has no tasks for other processes, or None."""
    if server.shares_tasks:
        return None
    if server.is_in_memory:
        return "its tasks are in memory, where no other process sees them: give it a store (Server(store=…))"
    return "none of its tools has tasks (task=…)"


async def serve_tasks(server: "Handler") -> None:
    """Run tasks of the server until cancelled. Those that still run then are given back."""
    worker = Worker(server, HTTP, None)
    try:
        await worker.ready
        await asyncio.Event().wait()
    finally:
        await worker.end()
