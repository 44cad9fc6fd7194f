"""A proxy that distributes connections in turn, like a load balancer without sticky sessions."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

__all__ = ["RoundRobin", "round_robin"]


class RoundRobin:
    """A proxy on 127.0.0.1. Each connection goes to the next server, and its bytes are not changed."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        """The ports of the servers; a test may change them at any time."""
        self.port = 0
        self.taken: dict[int, int] = {}
        """Port → number of its connections."""
        self._turn = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection, until either end has closed it."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        port = self.ports[self._turn % len(self.ports)]
        self._turn += 1
        self.taken[port] = self.taken.get(port, 0) + 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(_relay(reader, back), _relay(there, writer))
            finally:
                await _close(back)
        finally:
            await _close(writer)
            self._connections.discard(task)

    async def end(self) -> None:
        """Wait until the clients have closed all connections."""
        while self._connections:
            await asyncio.wait(self._connections)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:  # either end has gone
        writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def round_robin(*ports: int) -> AsyncGenerator[RoundRobin]:
    """Run a proxy in front of these servers."""
    proxy = RoundRobin(list(ports))
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    async with server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy
    await proxy.end()
