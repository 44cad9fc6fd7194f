"""Calls in one process: sequential calls let other tasks of the loop run."""

import asyncio

import pytest

from toolpost import Client, Server


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_other_tasks_get_their_turns_while_calls_in_memory_never_wait(revision: str):
    server = Server("shop")

    @server.tool
    async def price() -> int:
        return 3

    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with Client(server, revision=revision) as client:
            counting = asyncio.create_task(count())
            for _ in range(1000):
                await client.call_tool("price")
            counting.cancel()
        assert turns >= 10

    asyncio.run(main())
