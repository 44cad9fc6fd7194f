"""Redis is paused, killed, emptied or fails over: plain calls continue, and the rest works afterwards."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fleet_site import FleetSite, answer_question, open_session, resume_stream, three_workers
from hosted import call, legacy, modern
from redis_servers import RedisServer, redis_server, sentinel_group
from server_processes import run
from session_site import text, tool

CALLS = 200
"""Calls before, during and after the fault."""


class Load:
    """Calls of some sessions that go on until the end; each has a connection of its own."""

    def __init__(self, site: FleetSite) -> None:
        self.site = site
        self.count = 0
        self.failures: list[object] = []

    async def run(self, session: str) -> None:
        """Make one call after the other."""
        while True:
            self.count += 1
            answer = await self.site.post(legacy(session), tool("echo", self.count, text=str(self.count)))
            if answer.status != 200 or "result" not in answer.json:
                self.failures.append(answer)

    async def more(self, count: int = CALLS) -> None:
        """Wait until so many more calls were made."""
        wanted = self.count + count
        while self.count < wanted:  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def load(site: FleetSite, sessions: int = 4) -> AsyncGenerator[Load]:
    """Keep the workers busy; in the end, no call has failed."""
    calls = Load(site)
    opened = [await open_session(site) for _ in range(sessions)]
    tasks = [asyncio.create_task(calls.run(session)) for session in opened]
    try:
        await calls.more()
        yield calls
        await calls.more()
        assert calls.failures == []
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def pause(server: RedisServer, calls: Load) -> None:
    server.pause()
    await calls.more()
    server.resume()


async def restart_empty(server: RedisServer, calls: Load) -> None:
    await asyncio.to_thread(server.kill)
    await calls.more()
    await asyncio.to_thread(server.start)


async def recover(site: FleetSite) -> None:
    """Wait until each worker uses the store again: a stream is resumable only if its events are stored."""
    session, number, successes = await open_session(site), 0, 0
    while successes < 3 * len(site.workers):
        number += 1
        try:
            await resume_stream(site, session, number)
            successes += 1
        except AssertionError:
            successes = 0


@pytest.fixture
def server(tmp_path):
    with redis_server(tmp_path) as running:
        yield running


@pytest.fixture
def sentinels(tmp_path):
    with sentinel_group(tmp_path) as running:
        yield running


@pytest.mark.parametrize("fault", [pause, restart_empty], ids=lambda fault: fault.__name__)
def test_no_plain_call_fails(server, fault: Callable[[RedisServer, Load], Awaitable[None]]):
    async def main():
        async with three_workers(server.url) as site, load(site) as calls:
            session = await open_session(site)
            await fault(server, calls)
            await recover(site)
            for number in range(1, 10):
                await answer_question(site, session, number)

    run(main)


def test_no_plain_call_fails_when_another_server_takes_over(sentinels):
    async def main():
        async with three_workers(sentinels.url) as site, load(site) as calls:
            session = await open_session(site)
            await asyncio.to_thread(sentinels.fail_over)
            await calls.more()
            await recover(site)
            for number in range(1, 10):
                await answer_question(site, session, number)

    run(main)


def test_a_call_without_a_session_sends_no_command(server):
    """Only the leases of the workers are renewed."""

    async def main():
        async with three_workers(f"{server.url}?lease=600") as site:
            for worker in site.workers:
                await worker.holdings()  # it has joined
            before = await asyncio.to_thread(server.run, "info", "commandstats")
            for number in range(50):
                answer = await site.post(*modern("tools/call", call("echo", text="x"), number))
                assert text(answer) == "x"
            after = await asyncio.to_thread(server.run, "info", "commandstats")
            assert count_commands(after) == count_commands(before)

    run(main)


def count_commands(stats: str) -> dict[str, int]:
    """Return how often each command was used; reading the counts, and waiting for messages, do not count."""
    lines = [line.partition(":calls=") for line in stats.splitlines() if ":calls=" in line]
    counts = {name.removeprefix("cmdstat_"): int(rest.partition(",")[0]) for name, _, rest in lines}
    return {name: count for name, count in counts.items() if name not in {"info", "xread"}}
