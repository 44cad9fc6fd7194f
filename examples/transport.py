import asyncio

from toolpost import Client, Server
from toolpost.errors import ChannelClosed

LIMIT = 16 * 1024 * 1024  # bytes of one message: a peer must not fill our memory


class LineChannel:
    """A channel over a stream of bytes: one message, one line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise ChannelClosed(f"the peer closed the connection: {error}") from error

    async def send(self, data: bytes, related: int | str | None = None) -> None:
        try:
            self._writer.write(data + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise ChannelClosed(f"the peer closed the connection: {error}") from error

    async def close(self) -> None:
        self._writer.close()


server = Server("adder")


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await server.serve(LineChannel(reader, writer))


async def main() -> None:
    async with await asyncio.start_server(accept, "127.0.0.1", 0, limit=LIMIT) as listener:
        host, port = listener.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port, limit=LIMIT)
        async with Client(LineChannel(reader, writer)) as mcp:
            result = await mcp.call_tool("add", {"a": 1, "b": 2})
            print("1 + 2 =", result.data)


if __name__ == "__main__":
    asyncio.run(main())
