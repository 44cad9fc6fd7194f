"""A worker is killed: its sessions continue elsewhere, and its calls are reported as lost; no other call is.

`FLEET_KILLS=100` kills more of them, and `pytest -s` prints how long the slowest report took.
"""

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fleet_site import FleetSite, answer_question, call_pid, next_message, open_session, three_workers
from hosted import Site, legacy
from raw_http import Wire, wired
from redis_servers import redis_server
from revision_dates import DATES
from server_processes import PATIENCE, run, victim
from session_site import listening, tool

KILLS = int(os.environ.get("FLEET_KILLS", "3"))
CALLS = 6
"""Calls that run when a worker is killed: two on each worker."""

LEASE = 2
"""Seconds after which a silent worker counts as dead."""


@pytest.fixture
def url(tmp_path):
    with redis_server(tmp_path) as server:
        yield f"{server.url}?lease={LEASE}"


class RunningCall:
    """A call that ends when a file appears."""

    def __init__(self, wire: Wire, session: str, number: int, path: str) -> None:
        self.wire = wire
        self.session = session
        self.number = number
        self.path = path
        self.worker = self.event_id = ""

    async def start(self) -> None:
        """Start the call, and learn which worker serves it."""
        call = tool("hold", self.number, token=self.number, path=self.path)
        await self.wire.ask("POST", "/mcp", legacy(self.session), call)
        await self.wire.head()
        while not self.worker:
            event = await self.wire.event()
            self.event_id = event.id
            if event.data:
                self.worker = event.json["params"]["message"]

    async def read_loss(self, port: int) -> Any:
        """Resume the stream at another worker, and return the error there."""
        with pytest.raises(asyncio.IncompleteReadError):
            await self.wire.event()
        async with wired(port) as wire:
            await wire.ask("GET", "/mcp", listening(self.session, self.event_id))
            assert (await wire.head()).status == 200
            return await next_message(wire)


async def kill_one(site: FleetSite, sessions: list[str], path: str) -> float:
    """Kill a worker under load; return how long the slowest report of a lost call took."""
    async with AsyncExitStack() as stack:
        calls = [
            RunningCall(await stack.enter_async_context(wired(site.port)), session, number, path)
            for number, session in zip(range(1, CALLS + 1), sessions * CALLS, strict=False)
        ]
        await asyncio.gather(*(call.start() for call in calls))
        killed = await site.kill_worker()
        began = time.monotonic()
        lost = [call for call in calls if call.worker == killed]
        assert 0 < len(lost) < len(calls)
        for session in sessions:
            await call_pid(site, session, 99)
        for error in await asyncio.gather(*(call.read_loss(site.port) for call in lost)):
            assert "died" in error["error"]["message"]
        slowest = time.monotonic() - began
        await asyncio.to_thread(Path(path).touch)
        for call in calls:
            if call not in lost:
                assert text_of(await next_message(call.wire)) == call.worker
    await site.start_worker()
    return slowest


def text_of(message: Any) -> str:
    return message["result"]["content"][0]["text"]


def test_a_killed_worker_takes_only_its_own_calls_with_it(url, tmp_path):
    async def main():
        async with three_workers(url) as site:
            sessions = [await open_session(site, DATES[3]) for _ in range(4)]
            slowest = [await kill_one(site, sessions, str(tmp_path / f"go {n}")) for n in range(KILLS)]
            print(f"{KILLS} workers killed; the slowest report came after {max(slowest):.1f} s")  # noqa: T201 - for `pytest -s`
            for number in range(1, 4):
                for session in sessions:
                    await call_pid(site, session, number)

    run(main, PATIENCE + 20 * KILLS)


def test_a_worker_that_was_paused_for_long_says_nothing_behind_the_report_of_its_death(url, tmp_path):
    async def main():
        async with three_workers(url) as site, AsyncExitStack() as stack:
            session = await open_session(site, DATES[3])
            path = tmp_path / "go"
            call = RunningCall(await stack.enter_async_context(wired(site.port)), session, 1, str(path))
            await call.start()
            paused = next(each for each in site.workers if str(each.pid) == call.worker)
            await paused.stop()
            site.avoid(paused)
            await call.wire.abort()
            seen = call.event_id
            async with wired(site.port) as wire:
                await wire.ask("GET", "/mcp", listening(session, seen))
                assert (await wire.head()).status == 200
                [*_, told] = [event for event in await wire.events() if event.data]
                assert "died" in told.json["error"]["message"]
            path.touch()
            paused.tell(signal.SIGCONT)
            while (await paused.holdings())["calls"]:  # its call ends
                pass
            for last, expected in ((seen, [told.data]), (told.id, [])):
                async with wired(site.port) as wire:
                    await wire.ask("GET", "/mcp", listening(session, last))
                    assert (await wire.head()).status == 200
                    assert [event.data for event in await wire.events() if event.data] == expected
            for number in range(1, 10):  # it works again
                site.take_back(paused)
                await answer_question(site, session, number)

    run(main)


def test_the_death_of_a_worker_of_one_run_is_reported_at_once(tmp_path):
    """The report does not wait for the lease, which is longer than this test may take."""

    async def main(url: str):
        async with victim(store=url, workers=2, probation=0) as server:
            site = Site(None, server.port)
            session = await open_session(site)
            for number in range(1, 4):
                async with wired(server.port) as wire:
                    call = RunningCall(wire, session, number, str(tmp_path / "never"))
                    await call.start()
                    os.kill(int(call.worker), signal.SIGKILL)
                    error = await call.read_loss(server.port)
                    assert "died" in error["error"]["message"]

    with redis_server(tmp_path) as server:
        run(lambda: main(f"{server.url}?lease=3000"))
