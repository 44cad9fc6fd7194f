"""Clients that send many calls and do not read the responses."""

import asyncio
import json
import tracemalloc

from toolpost import Server
from toolpost.errors import ChannelClosed

CALLS, SIZE, MAX_UNREAD = 100, 1024 * 1024, 16 * 1024 * 1024
MEMORY = 2 * MAX_UNREAD
"""Allowed memory: the documented limit, and the same again for the response that is being written."""
SESSION = "2025-11-25"


class UnreadChannel:
    """Delivers some messages, and accepts responses to calls only after `gate` is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.sizes: dict[int, int] = {}
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, method: str, params: object = None, **identity: int) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}, **identity}
        self._messages.put_nowait(json.dumps(message).encode())

    async def receive(self) -> bytes:
        message = await self._messages.get()
        if message is None:
            raise ChannelClosed("it ends")
        return message

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        if related != 0:
            await self.gate.wait()
        message = json.loads(data)
        self.sizes[message["id"]] = len(data)
        if len(self.sizes) > CALLS:
            await self.close()

    async def close(self) -> None:
        self._messages.put_nowait(None)


def test_responses_to_running_calls_count_too():
    server, go, begun, ended = Server("s"), asyncio.Event(), asyncio.Event(), asyncio.Event()

    @server.tool
    async def large(number: int) -> str:
        if number == CALLS:
            begun.set()
        await go.wait()
        if number == CALLS:
            ended.set()
        return "x" * SIZE

    async def main() -> None:
        channel = UnreadChannel()
        about = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        channel.put("initialize", about, id=0)
        channel.put("notifications/initialized")
        for number in range(1, CALLS + 1):
            channel.put("tools/call", {"name": "large", "arguments": {"number": number}}, id=number)
        serving = asyncio.create_task(server.serve(channel))
        await begun.wait()
        tracemalloc.start()
        go.set()
        await ended.wait()
        for _ in range(3):  # the last responses are being sent
            await asyncio.sleep(0)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < MEMORY
        channel.gate.set()
        await serving
        assert sorted(channel.sizes) == list(range(CALLS + 1))
        assert min(channel.sizes[number] for number in range(1, CALLS + 1)) > SIZE

    asyncio.run(main())
