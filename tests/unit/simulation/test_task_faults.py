"""Tasks of three workers over one store, in hundreds of worlds in which workers die and the store fails.

A seed draws when a worker stops (for good, or for longer than its lease), which commands of the store fail,
and whether they had an effect. Whatever happens, every task whose client got a handle ends exactly once,
within the attempts that its author allows, and a step whose result was stored does not run again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from simulated_loop import World

from toolpost import Context, Server, TaskOptions
from toolpost.errors import StoreUnavailable
from toolpost.protocol.connection import Connection
from toolpost.stores.memory import MemoryStore
from toolpost.tasks.record import TaskCall, TaskRecord
from toolpost.tasks.run import DetachedClient
from toolpost.tasks.runner import restore_request
from toolpost.tasks.table import QUEUE, parse_item

WORLDS, BLOCKS = 200, 4
WORKERS, JOBS = 3, 6
LEASE = 10.0
END = 2000.0
"""Seconds after which a simulation is stuck."""

_RECORDS = msgspec.msgpack.Decoder(TaskRecord)


class Truth(MemoryStore):
    """The store itself, which checks each state of each task against the one before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.states: dict[str, TaskRecord] = {}
        self.wrong: list[str] = []
        swap, put = self.records.swap, self.records.put

        async def checked_swap(key: str, old: bytes | None, new: bytes | None, ttl: float | None) -> bool:
            done = await swap(key, old, new, ttl)
            if done and new is not None:
                self._check(key, new)
            return done

        async def checked_put(key: str, value: bytes, ttl: float | None) -> None:
            await put(key, value, ttl)
            self._check(key, value)

        self.records.swap, self.records.put = checked_swap, checked_put  # type: ignore[method-assign] - to watch

    def _check(self, key: str, value: bytes) -> None:
        if not key.startswith("task/") or key.endswith("/call"):
            return
        before, after = self.states.get(key), _RECORDS.decode(value)
        self.states[key] = after
        if before is None:
            return
        if before.is_over and (before.status, before.result, before.error) != (
            after.status,
            after.result,
            after.error,
        ):
            self.wrong.append(f"{key} was {before.status} and became {after.status}")
        if after.deaths > after.attempts or after.ttl < before.ttl:
            self.wrong.append(f"{key}: {after.deaths} deaths of {after.attempts}, ttl {after.ttl}")
        if not after.is_over and not set(_steps(before)) <= set(_steps(after)):
            self.wrong.append(f"{key} has forgotten a step")


def _steps(record: TaskRecord) -> dict[str, Any]:
    return msgspec.json.decode(record.journal)["steps"] if record.journal else {}


class Link:
    """The store as one worker sees it: slow, failing, or gone while the worker stands still."""

    def __init__(self, world: World, truth: Truth) -> None:
        self._world = world
        self._truth = truth
        self.lease = LEASE
        self.running = asyncio.Event()
        self.running.set()
        self.faults = 0.05
        self.records = self._wrap(truth.records, "get", "put", "swap", "touch", "delete")
        self.queues = self._wrap(truth.queues, "put", "take", "renew", "remove")

    def _wrap(self, inner: Any, *names: str) -> Any:
        def wrap(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def call(*arguments: Any, **options: Any) -> Any:
                await self.running.wait()
                await asyncio.sleep(self._world.rng.uniform(0, 0.1))
                if self._world.rng.random() < self.faults:
                    raise StoreUnavailable("the command did not arrive")
                done = await method(*arguments, **options)
                await asyncio.sleep(self._world.rng.uniform(0, 0.1))
                await self.running.wait()
                if self._world.rng.random() < self.faults:
                    raise StoreUnavailable("the reply was lost")
                return done

            return call

        return type("Faulty", (), {name: staticmethod(wrap(getattr(inner, name))) for name in names})()


class Simulation:
    """Three workers and their tasks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truth = Truth(asyncio.get_running_loop().time)
        self.links = [Link(world, self.truth) for _ in range(WORKERS)]
        self.servers = [self._make_server(link) for link in self.links]
        self.repeated: list[str] = []
        self.started: list[str] = []

    def _make_server(self, link: Link) -> Server:
        server = Server("simulated", store=link)  # type: ignore[arg-type] - as much of a store as tasks need

        async def effect(ctx: Context, step: str) -> str:
            run = ctx.task_run
            assert run is not None
            record = self.truth.states[f"task/{run.id}"]
            if record.holder == run.token and step in str(_steps(record)):
                self.repeated.append(f"{run.id}: {step}")
            await asyncio.sleep(self.world.rng.uniform(0, 2))
            return step

        async def job(asks: bool, ctx: Context) -> str:
            await link.running.wait()
            await ctx.step("one", effect, ctx, "first")
            await asyncio.sleep(self.world.rng.uniform(0, 8))
            await link.running.wait()
            if asks:
                await ctx.elicit("Go on?", bool)
            await ctx.step("two", effect, ctx, "second")
            return "done"

        server.tool(task=TaskOptions(attempts=1), name="once")(job)
        server.tool(task=TaskOptions(attempts=3), name="again")(job)
        return server

    def context(self, worker: int, tool: str, *, asks: bool) -> Context:
        """The context of a call at one worker."""
        params = msgspec.json.encode({"name": tool, "arguments": {"asks": asks}})
        incoming = restore_request("call", TaskCall(params, "2025-11-25", b'{"elicitation":{}}', None))
        server = self.servers[worker]
        connection = Connection(server.local_peer, peer=incoming.peer)
        connection.incoming[incoming.id] = incoming
        client = DetachedClient(connection, is_remote=False, headers={})
        return Context(server, client, "tools/call", incoming)

    async def start(self, number: int) -> None:
        """Start a task; the client asks again if the server fails."""
        rng = self.world.rng
        await asyncio.sleep(rng.uniform(0, 20))
        while True:
            worker = rng.randrange(WORKERS)
            ctx = self.context(worker, "again" if number % 2 else "once", asks=number % 3 == 0)
            tool = self.servers[worker].tools.get(ctx.incoming.params.name)  # type: ignore[union-attr] - it is a request
            assert tool is not None
            assert tool.task is not None
            try:
                async with asyncio.timeout(5):
                    task_id, _ = await self.servers[worker].tasks.start(ctx, tool.task, None)
            except (StoreUnavailable, TimeoutError):
                continue
            self.started.append(f"task/{task_id}")
            return

    async def answer(self) -> None:
        """Answer open questions at any worker, until all tasks have ended."""
        rng = self.world.rng
        while True:
            await asyncio.sleep(rng.uniform(0, 5))
            for key, record in list(self.truth.states.items()):
                tasks = self.servers[rng.randrange(WORKERS)].tasks
                answers = dict.fromkeys(
                    record.questions, msgspec.Raw(b'{"action":"accept","content":{"value":true}}')
                )
                if answers:
                    try:
                        async with asyncio.timeout(5):
                            await tasks.answer(key.removeprefix("task/"), answers)
                    except (StoreUnavailable, TimeoutError):
                        continue

    async def harm(self) -> None:
        """Stop workers, for a while or permanently; one stays alive."""
        rng = self.world.rng
        for link in self.links[1:]:
            await asyncio.sleep(rng.uniform(0, 25))
            link.running.clear()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0, 3 * LEASE))
                link.running.set()

    async def live(self) -> None:
        """Run until all tasks have ended."""
        for server in self.servers:
            server.start_tasks(None)
        answering = asyncio.ensure_future(self.answer())
        harming = asyncio.ensure_future(self.harm())
        await asyncio.gather(*(self.start(number) for number in range(JOBS)))
        loop = asyncio.get_running_loop()
        until = loop.time() + END
        while working := [key for key in self.started if not self.truth.states[key].is_over]:
            assert loop.time() < until, [self.truth.states[key] for key in working]
            await asyncio.sleep(1)
        for link in self.links:
            link.faults = 0.0
        await asyncio.sleep(3 * LEASE)
        left = await self.truth.queues.take(QUEUE, JOBS, LEASE)
        assert not [item for item in left if f"task/{parse_item(item)[0]}" in self.started]
        answering.cancel()
        harming.cancel()
        for link in self.links:
            link.running.set()
        await asyncio.gather(*(server.tasks.close() for server in self.servers))


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_task_ends_once_whatever_happens_to_workers_and_store(block: int):
    ends: set[str] = set()
    for seed in range(block, WORLDS, BLOCKS):
        found: list[Simulation] = []

        async def main(world: World, found: list[Simulation] = found) -> None:
            found.append(Simulation(world))
            await found[0].live()

        try:
            World(seed).live(main)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        assert (found[0].truth.wrong, found[0].repeated) == ([], []), f"seed {seed}"
        ends |= {found[0].truth.states[key].status for key in found[0].started}
    assert ends == {"completed", "failed"}
