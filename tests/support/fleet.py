"""Several endpoints in one loop that share one store: a fleet of workers, without processes.

`FleetStore` counts the messages between workers, and can kill one: to the others it looks like a killed
process, while its own tasks continue.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

from hosted import Site, Stage, kept, kitchen, serving
from redis_servers import RedisServer
from toolpost import Context, Server
from toolpost.server.http import streams
from toolpost.stores.memory import MemoryRecords, MemoryStore
from toolpost.stores.redis_store import RedisStore

__all__ = ["Fleet", "FleetStore", "Worker", "fleet", "fleets_on", "turns"]


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


class _Recording:
    """Records the workers of a store in order."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.numbers: list[int] = []
        self.messages = 0
        self._dead: set[int] = set()

    def kill(self, index: int) -> None:
        """Kill a worker: it gets no more messages."""
        self._dead.add(self.numbers[index])

    @asynccontextmanager
    async def join(self, receive: Callable[[bytes], None]) -> AsyncGenerator[int]:
        joined: Any = super()
        async with joined.join(receive) as number:
            self.numbers.append(number)
            yield number

    async def send(self, worker: int, data: bytes) -> bool:
        self.messages += 1
        sender: Any = super()
        return worker not in self._dead and await sender.send(worker, data)

    async def publish(self, data: bytes) -> None:
        self.messages += 1
        sender: Any = super()
        await sender.publish(data)


class FleetStore(_Recording, MemoryStore):
    """A store in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.records = _Records(time.monotonic)


class RedisFleetStore(_Recording, RedisStore):
    """A store on Redis, with its own names."""

    def __init__(self, server: RedisServer) -> None:
        self.prefix = f"{uuid4().hex}:"
        super().__init__(f"{server.url}?prefix={self.prefix}&timeout=60")
        self.server = server

    def list_lasting(self) -> list[str]:
        """Return the keys that never expire, except for the intended ones."""
        keys = re.findall(f"{self.prefix}[^\r]*", self.server.run("keys", f"{self.prefix}*"))
        meant = {f"{self.prefix}news", f"{self.prefix}r:keys/states"}
        return [key for key in keys if key not in meant and self.server.run("ttl", key) == ":-1\r\n"]


redis: RedisServer | None = None
"""The server for the stores of fleets; without one, they are in memory."""


@contextmanager
def fleets_on(server: RedisServer | None) -> Generator[None]:
    """Let fleets share a store on this server."""
    global redis  # noqa: PLW0603 - `fleet` is called in many tests
    redis = server
    try:
        yield
    finally:
        redis = None


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

    def __init__(self, store: FleetStore | RedisFleetStore) -> None:
        super().__init__()
        self.store = store


@asynccontextmanager
async def fleet(
    count: int = 2, more: Callable[[Server, Stage], object] | None = None, **web: Any
) -> AsyncGenerator[Any]:
    """Create this number of endpoints, each with its own kitchen; `more` extends each server."""
    store = FleetStore() if redis is None else RedisFleetStore(redis)
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
        await store.close()
    if isinstance(store, RedisFleetStore):
        assert await asyncio.to_thread(store.list_lasting) == []
    else:
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
