"""The scenarios of a simulation: clients do all kinds of things at once while their connections fail.

There are two, over channels and over HTTP, each with its actors, its faults and its end. At the end the
faults stop: the server has to serve every client that can reach it, all clients disconnect, and nothing may
be left.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from actors import CALLS, Ledger, Player, judge, server_for
from faulty_backend import WEB_CALM, WEB_FAULTS, FaultyBackend
from faulty_channel import CALM, FAULTS, Faults, Way, Wire
from simulated_loop import World

from toolpost import Server
from toolpost.channel import Channel
from toolpost.errors import MCPError
from toolpost.protocol.methods import DATES
from toolpost.server.http.streams import STREAM_RETENTION
from toolpost.transports.backends.asgi import AsgiBackend
from toolpost.transports.memory import memory_pair
from toolpost.transports.targets import Http

__all__ = ["over_channels", "over_http"]

CLEAN = ("add", "spend", "count", "story", "read", "list", "ping")
"""The calls that must work after the faults."""

SETTLED = 20.0
"""Seconds after which everything in transit has arrived, or is lost."""

KEYS = "keys/states"
"""The record that the store keeps without expiry."""

IDLE = 60.0
"""Seconds after which an unused session ends."""


class Stage:
    """A server behind faulty channels, as a target for clients.

    Args:
        world: its event loop.
        faults: the probabilities of faults.
        ledger: the record of sent calls.
    """

    def __init__(self, world: World, server: Server, faults: Faults, ledger: Ledger, name: str) -> None:
        self.world = world
        self.server = server
        self.faults = faults
        self.ledger = ledger
        self.name = name
        self.wires: list[Wire] = []

    async def serve(self, channel: Channel) -> None:
        """Serve a client over a wire."""
        wire = Wire(self.world, channel, self.faults, self.name, self._told())
        self.wires.append(wire)
        await self.server.serve(wire)

    def calm(self) -> None:
        """Stop all faults."""
        self.faults = CALM
        for wire in self.wires:
            wire.calm()

    def _told(self) -> Callable[[Way, bytes, bool], None]:
        arrived: Counter[bytes] = Counter()
        found = _calls(self.ledger, self.name)

        def told(way: Way, data: bytes, there: bool) -> None:
            keys = found(data) if way == "up" else []
            if not there:
                self.ledger.sent.update(keys)
            elif keys:
                arrived[data] += 1
                if arrived[data] > 1:
                    self.ledger.again.update(keys)

        return told


def _calls(ledger: Ledger, name: str) -> Callable[[bytes], list[str]]:
    """Return a function that finds the keys of a client in its calls."""

    def found(data: bytes) -> list[str]:
        if b'"tools/call"' not in data:
            return []
        return [key for key, owner in ledger.owners.items() if owner == name and key.encode() in data]

    return found


async def over_channels(world: World) -> list[Player]:
    """Run clients and a server, with wires of every kind between them."""
    rng, ledger = world.rng, Ledger()
    server = server_for(world, ledger)
    serving: list[asyncio.Task[None]] = []
    players: list[Player] = []
    calming: list[Callable[[], None]] = []
    for number in range(rng.choice((1, 2, 2, 3))):
        name, kind, revision = f"player{number}", rng.choice([*FAULTS]), rng.choice((None, *DATES))
        stage = Stage(world, server, FAULTS[kind], ledger, name)
        target: object = stage
        if rng.random() < 0.3:
            target, other = memory_pair()  # which can be opened once only
            serving.append(world.create_task(stage.serve(other)))
        world.note(f"{name} {kind} {revision} {type(target).__name__}")
        faults = FAULTS[kind]
        player = Player(
            world, ledger, name, exact=faults.honest, whole=faults.faithful, obeyed=faults.faithful
        )
        player.join(target, revision=revision)
        players.append(player)
        calming.append(stage.calm)
    await _perform(world, server, players, calming)
    if serving:
        await asyncio.wait(serving)
    judge(world, server, ledger)
    return players


async def over_http(world: World) -> list[Player]:
    """Run clients of one ASGI application, with faults of HTTP between them."""
    rng, ledger = world.rng, Ledger()
    server = server_for(world, ledger)
    app: Any = server.asgi(idle=IDLE)
    inner = AsgiBackend(app)
    players: list[Player] = []
    calming: list[Callable[[], None]] = []
    for number in range(rng.choice((1, 2, 2))):
        name, kind, revision = f"player{number}", rng.choice([*WEB_FAULTS]), rng.choice((None, *DATES))
        found = _calls(ledger, name)
        backend = FaultyBackend(
            world, inner, WEB_FAULTS[kind], name, lambda body, found=found: ledger.sent.update(found(body))
        )
        sse = revision == DATES[0] and rng.random() < 0.5
        target = Http(f"http://127.0.0.1/{'sse' if sse else 'mcp'}", http=backend, sse=sse)
        world.note(f"{name} {kind} {revision} {'HTTP+SSE' if sse else 'HTTP'}")
        player = Player(world, ledger, name, obeyed=WEB_FAULTS[kind].arrives)
        player.join(target, revision=revision)
        players.append(player)
        calming.append(lambda backend=backend: setattr(backend, "faults", WEB_CALM))
    await _perform(world, server, players, calming)
    await asyncio.sleep(4 * IDLE + STREAM_RETENTION)  # what a client could not end, ends
    if app._worker is not None and app._worker.sessions._cache:
        ledger.wrong.append(f"unused sessions: {app._worker.sessions._cache}")
    if ledger.hanging:
        ledger.wrong.append(f"these calls hang without a waiting client: {ledger.hanging}")
    await inner.close()
    _check_store(world, server, ledger)
    judge(world, server, ledger)
    return players


def _check_store(world: World, server: Server, ledger: Ledger) -> None:
    """Check that finished streams leave nothing behind, and that every record expires."""
    store: Any = server.store
    records, logs = store.records._values._items, store.logs._logs._items
    kept = [key for key, item in records.items() if item.expires == inf and key != KEYS]
    kept += [key for key, item in logs.items() if item.expires > world.time()]
    if kept:
        ledger.wrong.append(f"the store keeps {kept}")


async def _perform(
    world: World, server: Server, players: list[Player], calming: list[Callable[[], None]]
) -> None:
    """Run all clients at once, then without faults, then end everything."""

    async def live(player: Player, calm: Callable[[], None]) -> None:
        await _act(player)
        calm()
        await asyncio.sleep(SETTLED)

    talking = world.create_task(_announce(world, server, players))
    await asyncio.gather(*map(live, players, calming))
    players[0].ledger.busy = False
    for player in players:
        player.check_given_up()
        await _recover(player)
        player.check_stories()
    await asyncio.gather(*(player.leave() for player in players))
    talking.cancel()
    await asyncio.wait([talking])


async def _act(player: Player) -> None:
    """Connect, and make concurrent calls; cancel some, and sometimes close the client."""
    rng, world = player.world.rng, player.world
    for _ in range(3):
        try:
            await player.client.connect()
            break
        except MCPError as error:
            world.note(f"{player.name} is not connected: {error!r}")
            player.outcomes[type(error).__name__] += 1

    async def later(name: str) -> None:
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.01, 0.02, 0.5, 1.0)))
        await player.act(name)

    calls = [
        world.create_task(later(rng.choice([*CALLS, "story", "count"]))) for _ in range(rng.randrange(1, 9))
    ]
    for call in calls:
        if rng.random() < 0.2:
            world.call_later(rng.choice((0.0, 0.01, 0.02, 0.1, 1.0, 4.0)), call.cancel)
    if rng.random() < 0.1:
        await asyncio.sleep(rng.choice((0.0, 0.01, 0.5, 4.0)))
        await player.leave()
    await asyncio.wait(calls)


async def _recover(player: Player) -> None:
    """Check that calls work again, unless the channel has ended and cannot be reopened."""
    client, exact = player.client, player.exact
    player.exact = True
    if not client._session._connector.can_reopen and not client.connected:
        return
    await client.connect()
    name = player.world.rng.choice(CLEAN)
    outcome = await player.act(name)
    if outcome == "CapabilityNotDeclared" and not exact:
        return  # the handshake itself was garbled
    if outcome != "ok":
        player.wrong(f"{name} fails although nothing goes wrong any more")


async def _announce(world: World, server: Server, players: list[Player]) -> None:
    while True:
        await asyncio.sleep(world.rng.choice((0.01, 0.3, 3.0)))
        server.notify_resource_updated(f"note://{world.rng.choice(players).name}")
