"""Thousands of abandoned sessions and calls: their memory is released."""

import asyncio
import random

import pytest

from hosted import Site, legacy, message, opening
from raw_http import wired
from server_processes import NEW, OLD, WAYS, Victim, descriptors, memory, run, stdio, victim
from toolpost import Client, MCPError

# --------------------------------------------------------------------- sessions

CYCLES, CROWD = 10, 200
"""How often a crowd comes, and of how many sessions."""

MEGABYTE = 1024 * 1024


def bound(before: int) -> int:
    """The maximum size of a process without a leak, with some slack for the allocator."""
    return before + before // 10 + 5 * MEGABYTE


async def abandon(server: Victim, count: int) -> None:
    """Open sessions and vanish, some of them with a stream open."""
    site = Site(None, server.port)

    async def open_some(number: int) -> None:
        for each in range(number):
            answer = await site.post(legacy(revision=None), opening(OLD))
            session = answer.headers["mcp-session-id"]
            ready = await site.post(legacy(session), message("notifications/initialized"))
            assert ready.status in {202, 404}, ready  # on a busy machine it may have ended already
            if each % 10 == 0:
                async with wired(server.port) as wire:
                    await wire.ask("GET", "/mcp", {**legacy(session), "Accept": "text/event-stream"})
                    await wire.head()
                    await wire.abort()

    await asyncio.gather(*(open_some(count // 5) for _ in range(5)))


def test_two_thousand_sessions_that_were_abandoned_leave_nothing():
    async def main():
        async with victim(idle=0.3) as server:
            before = await server.holdings()
            used: list[int] = []
            for _ in range(CYCLES):
                await abandon(server, CROWD)
                await server.settled(before)
                used.append(memory(server.pid))
            assert used[-1] <= bound(used[0]), used

    run(main)


# --------------------------------------------------------------------- calls

CALLS = 1000
AT_ONCE = 50


async def cancel_at_random(mcp: Client, seed: int) -> None:
    """Make a thousand calls, and cancel each at a moment that the seed chooses."""
    dice = random.Random(seed)

    async def one(turns: int, pause: float) -> None:
        tool, arguments = dice.choice(
            [("echo", {"text": "x"}), ("steps", {"count": 5}), ("hang", {}), ("big", {"size": 100_000})]
        )
        call = asyncio.create_task(mcp.call_tool(tool, arguments, timeout=40))
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.sleep(pause)
        call.cancel()
        [end] = await asyncio.gather(call, return_exceptions=True)
        assert not isinstance(end, MCPError), end

    for _ in range(CALLS // AT_ONCE):
        moments = [(dice.randrange(20), dice.choice([0, 0, dice.random() / 50])) for _ in range(AT_ONCE)]
        await asyncio.gather(*(one(*moment) for moment in moments))


@pytest.mark.requirement("CANC-5", "CANC-6")
@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_calls_over_http_that_were_cancelled_leave_nothing(way):
    async def main():
        async with victim() as server:
            async with server.client(way) as mcp:
                await mcp.call_tool("steps", {"count": 3})
            before = {**await server.holdings(), "calls": 0}
            async with server.client(way) as mcp:
                await cancel_at_random(mcp, 8)
                assert not mcp.pending
                assert (await mcp.call_tool("echo", {"text": "after"})).text == "after"
                await server.settled({"calls": 0})
            await server.settled(before)

    run(main)


async def holdings(mcp: Client) -> dict[str, int]:
    return (await mcp.call_tool("holdings", result_type=dict[str, int])).data


@pytest.mark.requirement("CANC-5", "CANC-6", "STDIO-10")
@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_thousand_calls_over_pipes_that_were_cancelled_leave_nothing(revision):
    async def main():
        async with Client(stdio(), revision=revision) as mcp:
            pid = int((await mcp.call_tool("pid")).text)
            await mcp.call_tool("steps", {"count": 3})
            before = await holdings(mcp)
            held = descriptors(pid)
            await cancel_at_random(mcp, 8)
            assert not mcp.pending
            while (await holdings(mcp)) != before:
                pass
            assert descriptors(pid) == held

    run(main)
