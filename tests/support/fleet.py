"""Several endpoints in one loop that share one store: a fleet of workers, without processes.

`FleetStore` counts the messages between workers, and can let one die: the others see what they would see of a
process that was killed, while its own tasks stay where they are.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from hosted import Site, Stage, kept, kitchen, serving
from toolpost import Context, Server
from toolpost.server.http import streams
from toolpost.stores.memory import MemoryRecords, MemoryStore

__all__ = ["Fleet", "FleetStore", "Worker", "fleet", "turns"]


class _Records(MemoryRecords):
    """Records whose access takes a turn of the loop, so that workers race."""

    async def get(self, key: str) -> bytes | None:
        await asyncio.sleep(0)
        found = await super().get(key)
        await asyncio.sleep(0)
        return found

    async def swap(self, key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
        await asyncio.sleep(0)
        return await super().swap(key, old, new, ttl)


class FleetStore(MemoryStore):
    """An in-memory store that records its workers in order."""

    def __init__(self) -> None:
        super().__init__()
        self.records = _Records(time.monotonic)
        self.numbers: list[int] = []
        self.messages = 0
        self._dead: set[int] = set()

    def kill(self, index: int) -> None:
        """Kill a worker: it gets no more messages."""
        self._dead.add(self.numbers[index])

    @asynccontextmanager
    async def join(self, receive: Callable[[bytes], None]) -> AsyncGenerator[int]:
        async with super().join(receive) as number:
            self.numbers.append(number)
            yield number

    async def send(self, worker: int, data: bytes) -> bool:
        self.messages += 1
        return worker not in self._dead and await super().send(worker, data)

    async def publish(self, data: bytes) -> None:
        self.messages += 1
        await super().publish(data)


class Worker:
    """One endpoint of a fleet."""

    def __init__(self, server: Server, stage: Stage, site: Site) -> None:
        self.server = server
        self.stage = stage
        self.site = site
        self.post = site.post
        self.ask = site.ask
        self.begin = site.begin
        self.open = site.open


class Fleet(list[Worker]):
    """The endpoints, and the store that they share."""

    def __init__(self, store: FleetStore) -> None:
        super().__init__()
        self.store = store


@asynccontextmanager
async def fleet(
    count: int = 2, more: Callable[[Server, Stage], object] | None = None, **web: Any
) -> AsyncGenerator[Any]:
    """Create this number of endpoints, each with its own kitchen; `more` extends each server."""
    store = FleetStore()
    workers = Fleet(store)
    poll, streams.POLL_INTERVAL = streams.POLL_INTERVAL, 0.05  # pyright: ignore[reportConstantRedefinition] - a dead worker is noticed sooner
    try:
        async with AsyncExitStack() as stack:
            for _ in range(count):
                stage = Stage()
                server = kitchen(stage, store=store)
                _remembering(server)
                if more is not None:
                    more(server, stage)
                site = await stack.enter_async_context(serving(server.asgi(**web)))
                workers.append(Worker(server, stage, site))
            yield workers
            for worker in workers:
                worker.stage.go.set()
    finally:
        streams.POLL_INTERVAL = poll  # pyright: ignore[reportConstantRedefinition] - as above
    assert kept(store) == []


def _remembering(server: Server) -> None:
    @server.tool
    async def remember(value: str, ctx: Context) -> str:
        await ctx.state.set("value", value)
        return "kept"

    @server.tool
    async def recall(ctx: Context) -> str:
        return await ctx.state.get("value", "nothing")

    @server.tool
    async def complain(ctx: Context) -> str:
        await ctx.info("low")
        await ctx.error("high")
        return "said"


async def turns(count: int) -> None:
    """Let the loop run this number of turns, so that pending work finishes."""
    for _ in range(count):
        await asyncio.sleep(0)
