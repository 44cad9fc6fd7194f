"""Redis is paused, killed, emptied or fails over: plain calls continue, and the rest works afterwards."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fleet_site import (
    FleetSite,
    answer_question,
    answer_to,
    call_pid,
    cancel_call,
    next_message,
    open_session,
    resume_stream,
    three_workers,
)
from hosted import call, legacy, modern
from raw_http import wired
from redis_link import redis_link
from redis_servers import (
    PROGRAMS,
    RedisCluster,
    RedisServer,
    redis_cluster,
    redis_server,
    sentinel_group,
)
from server_processes import Victim, run, victim
from session_site import text, tool

CALLS = 200
"""Calls before, during and after the fault."""

LINES = 50
"""The most lines that a worker logs: it reports the loss and the return of Redis, not each call."""


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
    """Keep the workers busy, and check at the end that no call failed."""
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


async def restart(server: RedisServer, calls: Load) -> None:
    await asyncio.to_thread(server.kill)
    await calls.more()
    await asyncio.to_thread(server.start)


async def restart_empty(server: RedisServer, calls: Load) -> None:
    await asyncio.to_thread(server.kill)
    await calls.more()
    server.options = ()
    await asyncio.to_thread(server.start)


async def flush(server: RedisServer, calls: Load) -> None:
    await asyncio.to_thread(server.run, "flushall")
    await calls.more()


async def fill(server: RedisServer, calls: Load) -> None:
    """Take all memory from Redis, which may not evict keys, for a while."""
    await asyncio.to_thread(server.run, "config", "set", "maxmemory", "1")
    await calls.more()
    await asyncio.to_thread(server.run, "config", "set", "maxmemory", "0")


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


PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def server(tmp_path):
    with redis_server(tmp_path, "redis-server", *PERSISTENT) as running:
        yield running


@pytest.fixture
def sentinels(tmp_path):
    with sentinel_group(tmp_path) as running:
        yield running


async def check_after(site: FleetSite, session: str) -> None:
    """Check that everything works again, and that the workers logged no traceback."""
    await recover(site)
    for number in range(1, 10):
        await answer_question(site, session, number)
        await cancel_call(site, session, 100 + number)
    for worker in site.workers:
        worker.tell(signal.SIGTERM)
        assert await worker.ends() == 0
        assert "Traceback" not in worker.output
        assert worker.output.count("\n") < LINES, worker.output


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "fault", [pause, restart, restart_empty, flush, fill], ids=lambda fault: fault.__name__
)
def test_no_plain_call_fails(tmp_path, program, fault: Callable[[RedisServer, Load], Awaitable[None]]):
    async def main(server: RedisServer):
        async with three_workers(server.url) as site:
            async with load(site) as calls:
                session = await open_session(site)
                await fault(server, calls)
            await check_after(site, session)

    with redis_server(tmp_path, program, *PERSISTENT) as server:
        run(lambda: main(server))


@pytest.mark.parametrize("how", ["fail_over", "switch"])
def test_no_plain_call_fails_when_another_server_takes_over(sentinels, how):
    async def main():
        async with three_workers(sentinels.url) as site:
            async with load(site) as calls:
                session = await open_session(site)
                await asyncio.to_thread(getattr(sentinels, how))
                await calls.more()
            await check_after(site, session)

    run(main)


def test_no_plain_call_fails_when_slots_of_a_cluster_move(tmp_path):
    async def main(cluster: RedisCluster):
        async with three_workers(cluster.url) as site:
            async with load(site) as calls:
                session = await open_session(site)
                for number in range(1, 10):  # so that many slots have keys
                    await resume_stream(site, session, number)
                assert await asyncio.to_thread(cluster.move_keys)
                await calls.more()
            await check_after(site, session)

    with redis_cluster(tmp_path) as cluster:
        run(lambda: main(cluster))


def test_no_plain_call_fails_when_connections_to_redis_break_or_hang(server):
    async def main():
        async with redis_link(server.port) as link, three_workers(link.url) as site:
            async with load(site) as calls:
                session = await open_session(site)
                for _ in range(10):
                    link.cut()
                    await calls.more(CALLS // 10)
                link.freeze()
                await calls.more()
                link.thaw()
            await check_after(site, session)

    run(main)


def test_settings_survive_a_restart_of_redis_with_its_data(server):
    async def main():
        async with three_workers(f"{server.url}?fresh=0&timeout=60") as site:  # even on a busy machine
            kept, gone = await open_session(site), await open_session(site)
            assert (await site.ask("DELETE", "/mcp", legacy(gone))).status == 200
            for _ in site.workers:
                assert (await site.post(legacy(gone), tool("pid", 1))).status == 404
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await recover(site)
            for _ in site.workers:
                assert (await site.post(legacy(gone), tool("pid", 1))).status == 404
                await call_pid(site, kept, 1)

    run(main)


def test_sessions_survive_a_redis_that_came_back_empty_and_then_all_first_workers(server):
    """The workers put the keys of sessions back, for those that start later."""

    async def main():
        async with three_workers(server.url) as site:
            session = await open_session(site)
            for number in range(1, 4):
                await call_pid(site, session, number)
            await asyncio.to_thread(server.run, "flushall")
            await asyncio.to_thread(server.wait_for, ":1", "exists", "tp:victim:r:keys/states")
            for _ in range(3):
                await site.kill_worker()
                await site.start_worker()
            for number in range(1, 4):
                await call_pid(site, session, number)

    run(main)


@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_an_answer_waits_for_redis(server, fault):
    """A call asks, Redis goes away, the client answers at any worker, and Redis comes back."""

    async def main():
        async with three_workers(server.url) as site, AsyncExitStack() as stack:
            session, questions = await open_session(site), []
            for number in range(1, 7):
                wire = await stack.enter_async_context(wired(site.port))
                await wire.ask("POST", "/mcp", legacy(session), tool("sample", number))
                await wire.head()
                questions.append((wire, (await next_message(wire))["id"]))
            await asyncio.to_thread(getattr(server, fault))
            answers = [
                asyncio.create_task(site.post(legacy(session), answer_to(question)))
                for _, question in questions
            ]
            # Those that came to the worker of their question need no store.
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(server.resume if fault == "pause" else server.start)
            for answered in await asyncio.gather(*answers):
                assert (answered.status, answered.body) == (202, b"")
            for wire, _ in questions:
                result = await next_message(wire)
                assert result["result"]["content"][0]["text"] == "Hello, guest"

    run(main)


def test_a_call_without_a_session_sends_no_command(server):
    """MONITOR sees the workers wait for messages, and nothing else."""

    async def main():
        async with three_workers(f"{server.url}?lease=600") as site:
            for worker in site.workers:
                await worker.holdings()  # it has joined
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"MONITOR\r\n")
            assert await reader.readline() == b"+OK\r\n"
            for number in range(50):
                answer = await site.post(*modern("tools/call", call("echo", text="x"), number))
                assert text(answer) == "x"
            await asyncio.to_thread(server.run, "echo", "that is all")
            seen: list[bytes] = []
            while not seen or b"that is all" not in seen[-1]:
                seen.append(await reader.readline())
            writer.close()
            await writer.wait_closed()
            assert [line for line in seen[:-1] if b'"XREAD"' not in line] == []

    run(main)


def test_a_server_without_sessions_does_not_connect_to_its_store(server):
    async def main():
        async with victim(store=server.url, stateless=True) as worker:
            assert await worker.ask("echo", text="x") == "x"
            clients = await asyncio.to_thread(server.run, "client", "list")
            assert clients.count(" age=") == 1

    run(main)


def test_a_worker_is_not_ready_while_its_store_is_away(server):
    async def main():
        options = {"store": server.url, "health": "/health"}
        async with victim(**options, require_store=True) as strict, victim(**options) as lax:

            async def get(worker: Victim) -> int:
                async with wired(worker.port) as wire:
                    await wire.ask("GET", "/health/ready", {})
                    return (await wire.answer()).status

            assert [await get(strict), await get(lax)] == [200, 200]
            await asyncio.to_thread(server.kill)
            assert [await get(strict), await get(lax)] == [503, 200]
            await asyncio.to_thread(server.start)
            while await get(strict) != 200:
                pass  # the server has no event for this

    run(main)
