"""SIGKILL of a server, a client or a worker during calls: only its own calls fail."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack

import pytest

from server_processes import (
    FIRST,
    NEW,
    OLD,
    WAYS,
    begun,
    caller,
    descriptors,
    failures,
    gone,
    run,
    stdio,
    victim,
)
from toolpost import Client, ToolResult
from toolpost.errors import ChannelClosed, TransportError
from waiting import until

MANY = 5


async def pid_of(client: Client) -> int:
    return int((await client.call_tool("pid")).text)


@pytest.mark.parametrize("revision", [FIRST, OLD, NEW])
def test_a_server_over_pipes_takes_its_own_calls_along_and_comes_back(revision):
    async def main():
        async with Client(stdio(), revision=revision) as mcp, Client(stdio(), revision=revision) as other:
            first = await pid_of(mcp)
            calls, others = await begun(mcp, "hang", MANY), await begun(other, "hang", MANY)
            os.kill(first, signal.SIGKILL)
            for error in await failures(calls):
                assert isinstance(error, ChannelClosed)
                assert (error.sent, error.retry_safe) == (True, False)
                assert "SIGKILL" in str(error)
            assert (await other.call_tool("echo", {"text": "fine"})).text == "fine"
            assert not any(call.done() for call in others)
            assert await pid_of(mcp) != first
            assert not mcp.pending
            for call in others:
                call.cancel()
            await asyncio.wait(others)

    run(main)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_over_http_takes_its_own_calls_along_and_comes_back(way):
    async def main():
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(victim())
            mcp = await stack.enter_async_context(first.client(way))
            calls = await begun(mcp, "hang", MANY)
            first.tell(signal.SIGKILL)
            assert await first.ends() == -signal.SIGKILL
            # In a session a client comes back for the rest; the next server knows nothing of it.
            second = await stack.enter_async_context(victim(address=f"127.0.0.1:{first.port}"))
            for error in await failures(calls):
                assert isinstance(error, TransportError)
                assert (error.sent, error.retry_safe) == (True, False)
            assert await pid_of(mcp) == second.pid
            assert not mcp.pending

    run(main)


@pytest.mark.parametrize("way", WAYS)
def test_a_client_over_http_leaves_nothing_behind(way):
    async def main():
        async with victim(idle=0.5) as server:
            async with server.client(way) as mcp:  # all that is loaded on first use is loaded
                await mcp.call_tool("echo", {"text": "warm"})
            before = {**await server.holdings(), "calls": 0, "sessions": 0}
            async with caller(server.entry(way), WAYS[way][0], MANY) as client:
                busy = await server.holdings()
                assert busy["calls"] == MANY
                assert busy["descriptors"] > before["descriptors"]
                client.tell(signal.SIGKILL)
                assert await client.ends() == -signal.SIGKILL
                await server.settled(before)
            async with server.client(way) as mcp:
                assert (await mcp.call_tool("echo", {"text": "fine"})).text == "fine"

    run(main)


@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_client_over_pipes_takes_its_server_along(revision):
    async def main():
        command = stdio()
        async with caller([command.command, *command.args], revision, MANY) as client:
            server = int(client.output)
            assert not gone(server)
            client.tell(signal.SIGKILL)
            assert await client.ends() == -signal.SIGKILL
            await until(lambda: gone(server))

    run(main)


@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_worker_takes_its_own_calls_along_and_is_replaced(revision, tmp_path):
    async def main():
        async with victim(workers=2, stateless=True, probation=0) as server, AsyncExitStack() as stack:
            calls: dict[int, list[asyncio.Task[ToolResult]]] = {}

            while len(calls) < 2 or min(map(len, calls.values())) < MANY:
                # Each client has connections of its own, which either worker may have accepted.
                client = await stack.enter_async_context(
                    Client(server.entry(), revision=revision, timeout=None)
                )
                place: asyncio.Future[int] = asyncio.get_running_loop().create_future()

                async def hear(step, place=place):
                    place.set_result(int(step.message))

                work = client.call_tool("hold", {"path": str(tmp_path / "go")}, progress=hear)
                task = asyncio.create_task(work)
                await asyncio.wait([task, place], return_when=asyncio.FIRST_COMPLETED)
                calls.setdefault(place.result(), []).append(task)
            killed, other = calls
            before = descriptors(server.pid)
            os.kill(killed, signal.SIGKILL)
            for error in await failures(calls[killed]):
                assert isinstance(error, TransportError)
                assert (error.sent, error.retry_safe) == (True, False)
            assert not any(call.done() for call in calls[other])
            (tmp_path / "go").touch()
            for call in calls[other]:
                assert (await call).text == str(other)
            seen: set[int] = set()
            while len(seen | {killed, other}) < 3:
                seen.add(int(await server.ask("pid")))
            assert descriptors(server.pid) == before
            server.tell(signal.SIGTERM)
            await stack.aclose()
            assert await server.ends() == 0
            assert f"worker {killed} exited with code -9; starting a new one" in server.output

    run(main)
