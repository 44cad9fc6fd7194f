"""Three processes on one Redis or Valkey, behind a proxy without sticky sessions."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from fleet_site import answer_question, call_pid, cancel_call, open_session, resume_stream, three_workers
from hosted import Site
from redis_servers import PROGRAMS, redis_server
from revision_dates import DATES
from server_processes import run, victim

SESSION_REVISIONS = DATES[:4]
EACH = int(os.environ.get("FLEET_ROUNDS", "50"))
"""Rounds in each of the four revisions; 250 for a thousand."""

AT_ONCE = 8


@pytest.fixture(scope="module", params=PROGRAMS)
def url(request, tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis"), request.param) as server:
        yield server.url


@pytest.mark.parametrize(
    "step", [call_pid, answer_question, resume_stream, cancel_call], ids=lambda step: step.__name__
)
def test_each_request_is_served_where_it_lands(url, step: Callable[[Site, str, int, str], Awaitable[object]]):
    async def main():
        async with three_workers(url) as site:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(revision: str, session: str, number: int) -> object:
                async with gate:
                    return await step(site, session, number, revision)

            sessions = {revision: await open_session(site, revision) for revision in SESSION_REVISIONS}
            rounds = [one(*each, number) for each in sessions.items() for number in range(1, EACH + 1)]
            results = await asyncio.gather(*rounds)
            assert len(results) == 4 * EACH
            if step is call_pid:
                assert set(results) == {str(worker.pid) for worker in site.workers}
            for worker in site.workers:
                assert (await worker.holdings())["calls"] == 0

    run(main)


def test_worker_processes_of_one_run_share_a_store(url):
    async def main():
        async with victim(store=url, workers=2) as server:
            site = Site(None, server.port)
            session = await open_session(site)
            numbers, served = count(1), set[str]()
            while len(served) < 2:  # the system chooses which process accepts a connection
                served.add(await call_pid(site, session, next(numbers)))
            for number in range(1, 11):
                await answer_question(site, session, number)
                await resume_stream(site, session, 100 + number)

    run(main)
