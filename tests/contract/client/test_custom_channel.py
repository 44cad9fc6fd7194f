"""A class that implements `Channel` is a transport: an example, and a client that uses it."""

import asyncio
import socket

from raw_server import RawServer, run
from toolpost import Channel, Client
from toolpost.errors import ChannelClosed


class LineChannel:
    """A channel over any byte stream: one message, one line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        line = await self._reader.readline()
        if not line:
            raise ChannelClosed("the other side has hung up")
        return line.rstrip(b"\r\n")

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        try:
            self._writer.write(data + b"\n")
            await self._writer.drain()
        except ConnectionError as error:
            raise ChannelClosed(f"the other side has hung up: {error}") from error

    async def close(self) -> None:
        self._writer.close()


def test_a_client_talks_over_a_custom_transport():
    async def main() -> None:
        left, right = socket.socketpair()
        ours = LineChannel(*await asyncio.open_connection(sock=left))
        theirs = LineChannel(*await asyncio.open_connection(sock=right))
        assert isinstance(ours, Channel)
        server = RawServer()
        serving = asyncio.create_task(server.serve(theirs))
        async with Client(ours) as client:
            await client.ping()
            await asyncio.gather(*(client.ping() for _ in range(100)))
        await serving
        await theirs.close()

    run(main())
