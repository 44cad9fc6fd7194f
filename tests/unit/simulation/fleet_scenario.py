"""The scenario of a fleet: workers share a store, and die, pause or lose it while clients call.

At the end the faults stop. Then everything has to work at each worker, and nothing may be left in the store.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from faulty_store import LEASE, SharedData
from fleet_actors import URI, FleetLedger, FleetWorker, Guest
from simulated_loop import World

from toolpost import KeyRing
from toolpost.server.options import HTTP

__all__ = ["over_fleet"]

KINDS = ("none", "none", "kill", "kill", "pause", "cut", "away", "loss", "reply", "all")
"""What goes wrong in a world: one kind of fault, or all of them. `reply` is a reply that gets lost."""

SEAL_LIFE = HTTP.session_life + 120.0
"""Seconds after which no session can be alive: nothing of it may be left in the store."""

SETTLED = 50.0
"""Seconds after which all leases have expired, also those of readers that could not give them back."""


class Play:
    """A fleet, its clients, and what happens to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kind = world.rng.choice(KINDS)
        self.ledger = FleetLedger()
        self.data = SharedData(world)
        self.loss = 0.02 if self.kind in {"reply", "all"} else 0.0
        if self.loss:
            self.ledger.faults.add("reply")
        self.has_given_keys = world.rng.random() < 0.5 or self.kind in {"loss", "all"}
        self.fleet: list[FleetWorker] = []
        for _ in range(world.rng.choice((2, 3, 3))):
            self.add_worker()
        names = range(world.rng.choice((1, 2)))
        self.guests = [Guest(world, self.ledger, self.fleet, f"guest{name}") for name in names]

    def add_worker(self) -> None:
        """Start a worker."""
        key = KeyRing([b"k" * 32]) if self.has_given_keys else None
        name = f"worker{len(self.fleet)}"
        self.fleet.append(FleetWorker(self.world, self.ledger, self.data, name, key=key, loss=self.loss))

    async def run_faults(self) -> None:
        """Let something go wrong now and then."""
        if self.kind in {"none", "reply"}:
            return
        rng = self.world.rng
        kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "kill": self.kill,
            "pause": self.pause,
            "cut": self.cut_off,
            "away": self.take_away,
            "loss": self.lose,
        }
        for _ in range(rng.randrange(1, 5)):
            await asyncio.sleep(rng.choice((0.01, 0.1, 0.5, 2.0, 5.0)))
            kind = rng.choice([*kinds]) if self.kind == "all" else self.kind
            self.world.note(f"fault: {kind}")
            self.ledger.faults.add(kind)
            await kinds[kind]()

    def choose(self) -> FleetWorker:
        """Return a worker that lives."""
        return self.world.rng.choice([each for each in self.fleet if not each.store.is_dead])

    async def kill(self) -> None:
        """Kill a worker, and start another one."""
        worker = self.choose()
        self.add_worker()
        worker.kill()

    async def pause(self) -> None:
        """Stop a worker for a while, perhaps beyond its lease."""
        worker = self.choose()
        worker.store.running.clear()
        await asyncio.sleep(self.world.rng.choice((0.5, LEASE / 2, LEASE * 1.5)))
        worker.store.running.set()
        worker.store.renew()

    async def cut_off(self) -> None:
        """Let a worker lose the store for a while."""
        worker = self.choose()
        worker.store.is_cut_off = True
        await asyncio.sleep(self.world.rng.choice((0.5, LEASE / 2, LEASE * 1.5)))
        worker.store.is_cut_off = False
        worker.store.renew()

    async def take_away(self) -> None:
        """Let all workers lose the store for a while."""
        self.data.is_away = True
        await asyncio.sleep(self.world.rng.choice((0.1, 2.0, 8.0, 20.0)))
        self.data.come_back()

    async def lose(self) -> None:
        """Let the store come back empty."""
        self.data.is_away = True
        await asyncio.sleep(self.world.rng.choice((0.1, 2.0)))
        self.data.lose()
        self.data.come_back()

    async def act(self, guest: Guest) -> None:
        """Let a client do several things at once."""
        rng = self.world.rng
        await guest.open()
        verbs = [guest.plain, guest.hear, guest.hear, guest.think, guest.think, guest.give_up]

        async def later(verb: Callable[[], Coroutine[Any, Any, None]]) -> None:
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.1, 1.0, 4.0)))
            await verb()

        acts = [later(rng.choice(verbs)) for _ in range(rng.randrange(2, 7))]
        if rng.random() < 0.5:
            acts.append(guest.listen(rng.choice((1.0, 20.0))))
        await asyncio.gather(*acts)

    async def check_calm(self, guest: Guest) -> None:
        """Check that everything works when nothing goes wrong any more."""
        before = guest.outcomes["ok"]
        for verb in (guest.plain, guest.hear, guest.think, guest.give_up):
            await verb()
        if guest.outcomes["ok"] != before + 3:
            guest.wrong(f"not everything works in the end: {guest.outcomes}")
        heard = guest.heard["notifications/resources/updated"]
        await guest.post({"id": "s", "method": "resources/subscribe", "params": {"uri": URI}})
        listening = self.world.create_task(guest.listen(5.0))
        await asyncio.sleep(3.0)
        self.choose().server.notify_resource_updated(URI)
        await listening
        if guest.heard["notifications/resources/updated"] <= heard:
            guest.wrong("it was not notified of a change")

    async def run(self) -> None:
        """Play it to its end."""
        self.world.note(f"{self.kind}, {len(self.fleet)} workers")
        await asyncio.gather(self.run_faults(), *map(self.act, self.guests))
        await asyncio.sleep(SETTLED)
        for guest in self.guests:
            await guest.settle()
        if self.ledger.hanging - self._list_lost():
            self.ledger.wrong.append(f"these hang though they were cancelled: {self.ledger.hanging}")
        self.ledger.faults.clear()
        for worker in self.fleet:
            worker.store.loss = 0.0
        for guest in self.guests:
            await self.check_calm(guest)
        for guest in self.guests[:1]:
            await guest.end()
        for worker in self.fleet:
            await worker.app.stop()
            await worker.backend.close()
        await asyncio.sleep(SEAL_LIFE)
        if left := self.data.list_lasting():
            self.ledger.wrong.append(f"the store keeps {left}")

    def _list_lost(self) -> set[str]:
        """Return the keys of calls on dead workers: here they continue, but no client can reach them."""
        dead = any(worker.store.is_dead for worker in self.fleet)
        return (
            set(self.ledger.hanging)
            if dead or self.ledger.faults & {"pause", "cut", "away", "loss"}
            else set()
        )


async def over_fleet(world: World) -> list[Guest]:
    """Play a fleet."""
    play = Play(world)
    await play.run()
    return play.guests
