"""A scripted HTTP server on a real socket."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
END = b"0\r\n\r\n"


def answer(
    status: int = 200, body: bytes = b"", kind: str | None = "application/json", **headers: str
) -> bytes:
    """Return a whole response. Underscores in header names become hyphens."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def stream(*parts: bytes, end: bool = True, **headers: str) -> bytes:
    """Return the beginning of a response with an event stream."""
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return STREAM + fields.encode() + b"\r\n" + b"".join(map(chunk, parts)) + (END if end else b"")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: bytes, **fields: object) -> bytes:
    return b"".join(f"{name}: {value}\n".encode() for name, value in fields.items()) + b"data: %b\n\n" % data


class Heard:
    """A received request, and its connection."""

    def __init__(self, line: str, headers: dict[str, str], body: bytes, reader, writer) -> None:
        self.method, self.path, _ = line.split(" ")
        self.headers = headers
        self.body = body
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection when all data is written."""
        self._writer.close()

    def cut(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Heard], Awaitable[object]]


class Server:
    """The server, and the requests of the client."""

    def __init__(self, script: Script) -> None:
        self.heard: list[Heard] = []
        self.connections = 0
        self.open = 0
        self.failures: list[BaseException] = []
        self.url = ""
        self.greeting = b""
        self._script = script
        self._tasks: set[asyncio.Task] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        writer.write(self.greeting)
        try:
            while (heard := await self._next(reader, writer)) is not None:
                self.heard.append(heard)
                await self._script(heard)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self.failures.append(error)
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def _next(self, reader, writer) -> Heard | None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        headers = {}
        for field in fields:
            name, _, value = field.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        return Heard(line, headers, body, reader, writer)

    async def stop(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@asynccontextmanager
async def scripted(script: Script, path: str = "/mcp") -> AsyncGenerator[Server]:
    """Run a server that passes each request to a script. The test raises what the script raises."""
    server = Server(script)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}"
    try:
        yield server
    finally:
        listening.close()
        await server.stop()
        await listening.wait_closed()
    assert not server.failures, server.failures
