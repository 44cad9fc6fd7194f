"""Messages are handled in order, at the speed of their reader, however they are nested."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolpost import Server
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.transports.memory import memory_pair

WHO = {"name": "c", "version": "1"}
HELLO: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": "i",
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": WHO},
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


def run(main: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


@asynccontextmanager
async def opened(server: Server, limit: int = 1024):
    """A conversation after its handshake, and the client's end of it."""
    ours, theirs = memory_pair(limit)
    async with server.hold_lifespan() as lifespan:
        conversation = ServerConversation(server, theirs, lifespan)
        serving = asyncio.create_task(conversation.run())
        for each in HELLO:
            await ours.send(json.dumps(each).encode())
        await ours.receive()
        yield conversation, ours
        await ours.close()
        await serving


@pytest.mark.parametrize("method", ["ping", "nonsense"])
def test_a_client_that_does_not_read_is_not_read_from(method: str):
    """Its pending responses take a bounded number of tasks, however many requests it sends."""
    flood = 3000

    async def main():
        async with opened(Server("s"), limit=8) as (conversation, ours):

            async def ask():
                for number in range(flood):
                    await ours.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method}).encode())

            asking = asyncio.create_task(ask())
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(conversation._background_tasks) < 20
            ids = [json.loads(await ours.receive())["id"] for _ in range(flood)]
            assert sorted(ids) == [*range(flood)]
            await asking

    run(main)


def test_a_cancellation_is_for_the_request_before_it():
    server = Server("s")

    @server.tool
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    async def main():
        async with opened(server) as (_, ours):
            arguments = {"name": "nap", "arguments": {"seconds": 0.02}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}
            stop = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
            for each in (call, stop, call):
                await ours.send(json.dumps(each).encode())
            assert b"rested" in await ours.receive()

    run(main)
