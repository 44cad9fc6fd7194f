"""Three processes on one Redis or Valkey, behind a proxy without sticky sessions: any of them serves any request."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from hosted import Site, legacy, message, opening
from raw_http import Wire, wired
from redis_servers import PROGRAMS, redis_server
from revision_dates import DATES
from round_robin import RoundRobin, round_robin
from server_processes import Victim, run, victim
from session_site import listening, steps, text, tool

SESSION_REVISIONS = DATES[:4]
EACH = 250
"""Rounds in each of the four revisions."""

AT_ONCE = 8


@pytest.fixture(scope="module", params=PROGRAMS)
def url(request, tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis"), request.param) as server:
        yield server.url


class FleetSite(Site):
    """Three workers and the proxy in front of them; each request has a connection of its own."""

    def __init__(self, workers: list[Victim], proxy: RoundRobin) -> None:
        super().__init__(None, proxy.port)
        self.workers = workers


@asynccontextmanager
async def three_workers(url: str) -> AsyncGenerator[FleetSite]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(victim(store=url)) for _ in range(3)]
        proxy = await stack.enter_async_context(round_robin(*(worker.port for worker in workers)))
        yield FleetSite(workers, proxy)


async def open_session(site: Site, revision: str) -> str:
    opened = await site.post(legacy(revision=None), opening(revision, {"sampling": {}}))
    session = opened.headers["mcp-session-id"]
    await site.post(legacy(session, revision), message("notifications/initialized"))
    return session


async def repeat(site: Site, round_: Callable[[str, str, int], Awaitable[None]]) -> None:
    """Run 250 rounds in a session of each revision, some at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(revision: str, session: str, number: int) -> None:
        async with gate:
            await round_(revision, session, number)

    sessions = {revision: await open_session(site, revision) for revision in SESSION_REVISIONS}
    rounds = [one(*each, number) for each in sessions.items() for number in range(1, EACH + 1)]
    await asyncio.gather(*rounds)


def test_calls(url):
    async def main():
        async with three_workers(url) as site:
            seen: set[str] = set()

            async def call(revision: str, session: str, number: int) -> None:
                answer = await site.post(legacy(session, revision), tool("pid", number))
                assert (answer.status, answer.json["id"]) == (200, number)
                seen.add(text(answer))

            await repeat(site, call)
            assert seen == {str(worker.pid) for worker in site.workers}

    run(main)


def test_questions(url):
    """A question is answered at any worker, and the result comes on the stream of its call."""

    async def main():
        async with three_workers(url) as site:

            async def ask(revision: str, session: str, number: int) -> None:
                async with wired(site.port) as wire:
                    await wire.ask("POST", "/mcp", legacy(session, revision), tool("sample", number))
                    await wire.head()
                    question = await next_message(wire)
                    result = {"role": "assistant", "content": {"type": "text", "text": f"guest {number}"}, "model": "m"}
                    answered = await site.post(legacy(session, revision), message(id=question["id"], result=result))
                    assert (answered.status, answered.body) == (202, b"")
                    assert (await next_message(wire))["result"]["content"][0]["text"] == f"Hello, guest {number}"

            await repeat(site, ask)

    run(main)


def test_resumed_streams(url):
    """A stream that is cut after its first event is continued by any worker, without loss or double."""

    async def main():
        async with three_workers(url) as site:

            async def resume(revision: str, session: str, number: int) -> None:
                async with wired(site.port) as wire:
                    call = tool("steps", number, token=number, count=5)
                    await wire.ask("POST", "/mcp", legacy(session, revision), call)
                    await wire.head()
                    events = [await wire.event()]
                    await wire.abort()
                async with wired(site.port) as wire:
                    await wire.ask("GET", "/mcp", listening(session, events[-1].id, revision))
                    assert (await wire.head()).status == 200
                    events += await wire.events()
                assert steps(events) == [1, 2, 3, 4, 5]
                assert text(events[-1]) == "done"

            await repeat(site, resume)

    run(main)


def test_cancellations(url):
    """A call ends, whichever worker gets its cancellation."""

    async def main():
        async with three_workers(url) as site:

            async def cancel(revision: str, session: str, number: int) -> None:
                async with wired(site.port) as wire:
                    await wire.ask("POST", "/mcp", legacy(session, revision), tool("hang", number, token=number))
                    await wire.head()
                    await next_message(wire)
                    cancelled = message("notifications/cancelled", {"requestId": number})
                    assert (await site.post(legacy(session, revision), cancelled)).status == 202
                    assert not [event for event in await wire.events() if event.data]

            await repeat(site, cancel)
            for worker in site.workers:
                assert (await worker.holdings())["calls"] == 0

    run(main)


async def next_message(wire: Wire) -> Any:
    """Return the next message of a stream; a priming event has none."""
    while not (event := await wire.event()).data:
        pass
    return event.json
