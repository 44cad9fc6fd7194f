"""A small HTTP client: sends single requests, opens sessions and streams, and generates load without wrk.

Parses only as much of a response as needed to find its end.
"""

import asyncio
import json
import time
from contextlib import suppress
from itertools import count, cycle
from typing import Any, Final, NamedTuple

from bench.figures import Sample, percentile
from bench.process import Failed, cpu
from bench.targets import wire

__all__ = ["Answer", "Loader", "Opened", "ask", "open_sessions", "post"]

WIDTH: Final = 8
"""Sessions to open concurrently."""


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Opened(NamedTuple):
    """Sessions, and the streams that are open in them."""

    ids: list[str]
    streams: list[asyncio.StreamWriter]


def post(port: int, data: bytes, headers: dict[str, str]) -> bytes:
    """Return the bytes of a POST."""
    sent = {"host": f"127.0.0.1:{port}", "content-length": str(len(data)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + data


async def read_response(reader: asyncio.StreamReader) -> Answer:
    """Read one response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    pieces: list[bytes] = []
    if headers.get("transfer-encoding") == "chunked":
        while (size := int(await reader.readline(), 16)) > 0:
            pieces.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
    else:
        pieces.append(await reader.readexactly(int(headers.get("content-length", "0"))))
    return Answer(int(head[0].split()[1]), headers, b"".join(pieces))


def _fine(answer: Answer) -> Answer:
    if answer.status not in {200, 202}:
        raise Failed(
            f"the server responded with {answer.status}: {answer.body.decode(errors='replace')[:300]}"
        )
    return answer


async def ask(port: int, request: bytes) -> Answer:
    """Send one request and return its response.

    Raises:
        Failed: the server rejected it.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(request)
        return _fine(await read_response(reader))
    finally:
        writer.close()


# --------------------------------------------------------------------- sessions


async def open_sessions(
    port: int, amount: int, *, streaming: bool = False, headers: dict[str, str] | None = None
) -> Opened:
    """Open sessions; with `streaming`, each with an open event stream. `headers` are sent with each request.

    Raises:
        Failed: the server rejected one.
    """
    opened = Opened([], [])
    numbers = iter(range(amount))

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for number in numbers:
                session = await _open(port, reader, writer, number, headers or {})
                opened.ids.append(session)
                if streaming:
                    opened.streams.append(await _stream(port, session))
        finally:
            writer.close()

    await asyncio.gather(*(work() for _ in range(min(WIDTH, amount))))
    return opened


async def _open(
    port: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    number: int,
    headers: dict[str, str],
) -> str:
    async def send(session: str, **message: Any) -> Answer:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        writer.write(post(port, data, wire.headers("", stateless=False, session=session) | headers))
        return _fine(await read_response(reader))

    hello = await send("", id=number, method="initialize", params=wire.HELLO)
    session = hello.headers.get("mcp-session-id", "")
    await send(session, method="notifications/initialized")
    return session


async def _stream(port: int, session: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = {
        "host": f"127.0.0.1:{port}",
        "accept": "text/event-stream",
        "mcp-session-id": session,
        "mcp-protocol-version": wire.SESSION,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"GET /mcp HTTP/1.1\r\n{lines}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise Failed(f"the server rejected a stream: {head.decode('latin-1')[:200]}")
    return writer


# --------------------------------------------------------------------- load


class Loader:
    """Generates load with asyncio, in this process."""

    name = "a built-in asyncio loader"

    def run(self, port: int, pid: int, requests: list[bytes], connections: int, seconds: float) -> Sample:
        """Send requests as fast as possible over these connections, one at a time on each."""
        return asyncio.run(self._run(port, pid, requests, connections, seconds))

    async def _run(
        self, port: int, pid: int, requests: list[bytes], connections: int, seconds: float
    ) -> Sample:
        times: list[float] = []
        numbers = count(wire.first_number())
        until = time.perf_counter() + seconds

        async def caller(mine: list[bytes]) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
            try:
                for template in cycle(mine):
                    request = wire.numbered(template, next(numbers))
                    start = time.perf_counter()
                    if times and start >= until:  # at least one: the machine may be busy
                        return
                    writer.write(request)
                    _fine(await read_response(reader))
                    times.append(time.perf_counter() - start)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        used, start = cpu(pid), time.perf_counter()
        await asyncio.gather(
            *(caller(requests[number::connections] or requests) for number in range(connections))
        )
        taken, burnt = time.perf_counter() - start, cpu(pid) - used
        return Sample(
            len(times) / taken,
            len(times) / burnt if burnt else None,
            percentile(times, 0.5) * 1000,
            percentile(times, 0.99) * 1000,
        )
