"""A TCP proxy between workers and Redis that cuts connections, or lets them hang as if the host were gone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

__all__ = ["RedisLink", "redis_link"]


class RedisLink:
    """A proxy on 127.0.0.1. `url` is the address of the server as seen through it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._works = asyncio.Event()
        self._works.set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        back: asyncio.StreamWriter | None = None
        self._writers.add(writer)
        try:
            await self._works.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.add(back)
            await asyncio.gather(self._relay(reader, back), self._relay(there, writer))
        except OSError:
            pass  # the server is away
        finally:
            for each in (writer, back):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()
            self._tasks.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay small pieces, so that a cut comes in the middle of a command."""
        with suppress(OSError):
            while data := await reader.read(64):
                await self._works.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Stop forwarding in both directions, and keep all connections open."""
        self._works.clear()

    def thaw(self) -> None:
        """Let everything through again."""
        self._works.set()

    async def end(self) -> None:
        """Close all connections."""
        self.thaw()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def redis_link(port: int) -> AsyncGenerator[RedisLink]:
    """Run a proxy in front of a server."""
    link = RedisLink(port)
    server = await asyncio.start_server(link.connect, "127.0.0.1", 0)
    async with server:
        link.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        yield link
        await link.end()
