"""A store that several workers of a simulation share, each over a link that may fail.

Behaves like Redis: leases expire, messages wait in inboxes until their worker reads them, and an outage ends
with an exception. A reply may be lost after its command was carried out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from faulty_channel import DELAYS
from simulated_loop import World

from toolpost.errors import StoreUnavailable
from toolpost.stores.memory import MemoryStore

__all__ = ["LEASE", "FaultyStore", "SharedData"]

LEASE = 10.0
"""Seconds after which a silent worker counts as dead."""

RECOVERY = 5.0
"""Seconds after a loss in which a lease may be missing."""

READ_TIMEOUT, WRITE_TIMEOUT = 0.25, 2.0
"""Seconds after which a command fails that gets no reply."""

T = TypeVar("T")


class SharedData:
    """What the workers share. `is_away` during an outage."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_away = False
        self.recovered_at = -RECOVERY
        self.kept = MemoryStore(clock=world.time)
        self.leases: dict[int, float] = {}
        self.inboxes: dict[int, list[bytes]] = {}
        self.views: list[FaultyStore] = []

    def lose(self) -> None:
        """Lose everything, as a restart without persistence does."""
        self.kept = MemoryStore(clock=self.world.time)
        self.leases.clear()
        self.inboxes.clear()

    def come_back(self) -> None:
        """End an outage. The workers notice it one after the other."""
        self.is_away = False
        self.recovered_at = self.world.time()
        for view in self.views:
            self.world.call_later(self.world.rng.random() * 2, view.renew)

    def list_lasting(self) -> list[str]:
        """Return the names of what is kept now, but for the keys."""
        kept: Any = self.kept
        records, logs = kept.records._values._items, kept.logs._logs._items
        now = self.world.time()
        left = [key for key, item in records.items() if item.expires > now and key != "keys/states"]
        return left + [key for key, item in logs.items() if item.expires > now]


class _Part:
    """The records or the logs, over a link."""

    def __init__(self, view: "FaultyStore", name: str) -> None:
        self._view = view
        self._name = name

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        timeout = READ_TIMEOUT if (self._name, verb) == ("records", "get") else WRITE_TIMEOUT

        def call(*args: Any, **more: Any) -> Awaitable[Any]:
            part = getattr(self._view.data.kept, self._name)
            return self._view.reach(lambda: getattr(part, verb)(*args, **more), timeout)

        return call


class FaultyStore:
    """The store as one worker sees it.

    `loss` is how likely a reply gets lost. The worker is `running` unless it is paused; once it `is_dead`,
    nothing that it does has an effect.
    """

    fresh = 1.0

    def __init__(self, data: SharedData, loss: float) -> None:
        self.data = data
        self.world = data.world
        self.loss = loss
        self.number = 0
        self.records: Any = _Part(self, "records")
        self.logs: Any = _Part(self, "logs")
        self.running = asyncio.Event()
        self.running.set()
        self.is_dead = self.is_cut_off = False
        self.commands: Counter[str] = Counter()
        self._receive: Callable[[bytes], None] | None = None
        self._heard: list[bytes] = []
        data.views.append(self)

    async def reach(self, command: Callable[[], Awaitable[T]], timeout: float = WRITE_TIMEOUT) -> T:
        """Carry out a command, or fail."""
        await self.running.wait()
        await asyncio.sleep(self.world.rng.choice(DELAYS) / 10)
        if self.is_dead or self.is_cut_off or self.data.is_away:
            await asyncio.sleep(self.world.rng.choice((0.0, timeout)))  # a breaker, or no reply
            raise StoreUnavailable("the store is away")
        reply = await command()
        if self.world.rng.random() < self.loss:
            raise StoreUnavailable("the reply was lost")
        await self.running.wait()
        return reply

    @asynccontextmanager
    async def join(self, receive: Callable[[bytes], None]) -> AsyncGenerator[int]:
        """Join as a worker."""
        self.number = self.world.rng.randrange(1, 2**20)
        self._receive = receive
        self.data.leases[self.number] = self.world.time() + LEASE
        timer = self.world.call_later(LEASE / 3, self._renew_and_repeat)
        self._timer = timer
        try:
            yield self.number
        finally:
            self._timer.cancel()
            self._receive = None
            if not self.is_dead:
                self.data.leases.pop(self.number, None)

    def _renew_and_repeat(self) -> None:
        self.renew()
        self._timer = self.world.call_later(LEASE / 3, self._renew_and_repeat)

    def renew(self) -> None:
        """Renew the lease, and read what has come."""
        if self._receive is None or not self._is_connected():
            return
        if self.data.leases.get(self.number, 0.0) <= self.world.time():
            self._receive(b"")
        self.data.leases[self.number] = self.world.time() + LEASE
        self.read()

    def read(self) -> None:
        """Pass the messages on that have come."""
        if self._receive is None or not self._is_connected():
            return
        for message in self.data.inboxes.pop(self.number, ()):
            self._receive(message)

    def _is_connected(self) -> bool:
        return self.running.is_set() and not (self.is_dead or self.is_cut_off or self.data.is_away)

    async def send(self, worker: int, data: bytes) -> bool:
        """Send a message to one worker."""
        return await self.reach(lambda: self._deliver(worker, data))

    async def _deliver(self, worker: int, data: bytes) -> bool:
        if self.data.leases.get(worker, 0.0) <= self.world.time():
            if self.world.time() < self.data.recovered_at + RECOVERY:
                raise StoreUnavailable("the worker has no lease yet")
            return False
        self.data.inboxes.setdefault(worker, []).append(data)
        self._wake()
        return True

    async def publish(self, data: bytes) -> None:
        """Send a message to all workers."""

        async def deliver() -> None:
            for view in self.data.views:
                if view._receive is not None:
                    self.data.inboxes.setdefault(view.number, []).append(data)
            self._wake()

        await self.reach(deliver)

    def _wake(self) -> None:
        for view in self.data.views:
            self.world.call_later(self.world.rng.choice(DELAYS) / 10, view.read)

    async def remove(self, worker: int) -> None:
        """Remove a worker that has died."""
        self.data.leases.pop(worker, None)

    async def close(self) -> None:
        """Do nothing: there is no connection."""
