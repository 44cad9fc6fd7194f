"""A TCP relay that can cut some or all of its connections at any time.

Forwards bytes without looking at them.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

PIECE: Final = 64 * 1024
"""Bytes to forward at once."""


class Relay:
    """Forwards bytes in both directions between clients and a local port."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self._open: set[asyncio.Task[None]] = set()

    def cut(self, dice: random.Random, part: float = 1.0) -> int:
        """Cut a share of the connections. Returns their number."""
        chosen = [task for task in self._open if dice.random() < part]
        for task in chosen:
            task.cancel()
        return len(chosen)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._between(reader, writer)
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, forth))
                both.create_task(_pump(back, writer))
        except* OSError:
            pass
        finally:
            forth.transport.abort()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["Relay"]:
        """Relay connections inside this context, then cut all of them."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            tasks = list(self._open)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    raise ConnectionError("one end closed the connection")
