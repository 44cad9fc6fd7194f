"""Broadcasts of a server's author to all workers, such as "load the catalogue again".

Calls the functions of this process. The endpoints carry a broadcast to the other workers.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

from toolpost.server.runtime.worker_threads import WorkerThreads
from toolpost.types.base import JSON

logger: Final = logging.getLogger("toolpost.server")

BroadcastFunction: TypeAlias = Callable[[Any], Awaitable[None] | None]


class BroadcastSender(Protocol):
    """An endpoint that exchanges messages with other workers."""

    async def send_broadcast(self, name: str, data: JSON) -> None:
        """Send a broadcast to all workers, this one included."""
        ...


class Broadcasts:
    """The functions for broadcasts, and the endpoints of this process, oldest first."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._threads = threads
        self._functions: dict[str, list[BroadcastFunction]] = {}
        self.endpoints: list[BroadcastSender] = []

    def add(self, name: str, function: BroadcastFunction) -> None:
        """Call a function with the data of each broadcast of this name."""
        self._functions.setdefault(name, []).append(function)

    async def send(self, name: str, data: JSON) -> None:
        """Send a broadcast. Without an endpoint there are no other workers."""
        if self.endpoints:
            await self.endpoints[0].send_broadcast(name, data)
        else:
            await self.receive(name, data)

    async def receive(self, name: str, data: JSON) -> None:
        """Call the functions for a broadcast one after the other, and log their exceptions."""
        for function in self._functions.get(name, ()):
            try:
                await self._threads.call_function(function, data)
            except Exception:
                logger.exception("a function for the broadcast %r failed", name)
