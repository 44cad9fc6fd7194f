"""Connections that send or read nothing, or byte by byte: each is closed in time, and no other client waits.

The loop has a simulated clock, which advances only when the loop is idle.
"""

import asyncio
import resource
import selectors
import socket
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosted import Stage, call, hosted, kitchen, modern, serving
from raw_http import Wire, wired
from raw_server import run as run_in
from toolpost import Context, Server
from toolpost.server.http import serve
from toolpost.server.http.exchange import BODY_CHUNK_TIMEOUT, MIN_BODY_RATE
from toolpost.server.http.uvicorn import HEAD_TIMEOUT, STALL_TIMEOUT, make_bounded_protocol
from waiting import until

LARGE = 12_000_000  # more than the kernel holds of a connection
LIST = modern("tools/list")
HEADERS, BODY = LIST


QUIET = 0.01
"""Seconds after which all data in transit on this machine has arrived, so that the loop is really idle."""


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None):
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None and timeout > 0:
            ready = super().select(QUIET)
            if not ready:
                self.now += timeout
        return ready


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time passes only when there is nothing else to do, and nothing comes over the network."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(main) -> None:
    run_in(main(), Clock)


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def guarded(server: Server | None = None, **config: Any):
    """A server behind the protocol that `run` and `serve_http` use."""
    app = (server or kitchen()).asgi()
    settings: dict[str, Any] = {
        "http": make_bounded_protocol(),
        "timeout_keep_alive": serve.KEEP_ALIVE_TIMEOUT,
        **config,
    }
    async with serving(app, **settings) as site:
        yield site


# --------------------------------------------------------------------- heads


@pytest.mark.parametrize("said", [b"", b"POST /mcp HT", b"POST /mcp HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(said):
    async def main():
        async with guarded() as site, wired(site.port) as wire:
            await wire.send(said)
            if said:
                answer = await wire.answer()
                assert (answer.status, answer.headers["connection"]) == (408, "close")
                assert "30 s" in answer.text
            assert await wire.ended()
            assert HEAD_TIMEOUT <= now() < HEAD_TIMEOUT + 1

    run(main)


def test_a_head_byte_by_byte_gets_no_more_time():
    async def main():
        async with guarded() as site, wired(site.port) as wire:
            answering = asyncio.ensure_future(wire.answer())
            for byte in b"POST /mcp HTTP/1.1":
                await wire.send(bytes([byte]))
                await asyncio.wait([answering], timeout=5)
                if answering.done():
                    break
            assert (await answering).status == 408
            assert HEAD_TIMEOUT <= now() < HEAD_TIMEOUT + 1

    run(main)


def test_a_head_behind_a_response_has_its_time_from_its_first_byte():
    async def main():
        async with guarded() as site, wired(site.port) as wire:
            for _ in range(2):
                await wire.ask("POST", "/mcp", *LIST)
                assert (await wire.answer()).status == 200
                await asyncio.sleep(serve.KEEP_ALIVE_TIMEOUT - 1)
            begun = now()
            await wire.send(b"P")
            assert (await wire.answer()).status == 408
            assert await wire.ended()
            assert HEAD_TIMEOUT <= now() - begun < HEAD_TIMEOUT + 1

    run(main)


def test_a_connection_without_a_request_is_kept_for_a_while():
    async def main():
        async with guarded() as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", *LIST)
            await wire.answer()
            assert await wire.ended()
            assert serve.KEEP_ALIVE_TIMEOUT <= now() < serve.KEEP_ALIVE_TIMEOUT + 1

    run(main)


@pytest.mark.parametrize("rest", [b"x", b"x" * 100])
def test_an_unread_body_does_not_keep_a_connection_open(rest):
    """uvicorn stops its timer at each byte, and restarts it only after a response."""

    async def main():
        async with guarded() as site, wired(site.port) as wire:
            headers = {**HEADERS, "Content-Length": "100"}
            await wire.ask("POST", "/mcp", headers, b"", host="evil.example.com", length=False)
            assert (await wire.answer()).status == 403
            await wire.send(rest)
            assert await wire.ended()
            assert now() < HEAD_TIMEOUT + 1

    run(main)


def test_a_client_that_waits_for_a_response_is_not_disconnected():
    async def main():
        stage = Stage()
        async with guarded(kitchen(stage)) as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", *modern("tools/call", call("quiet")))
            await stage.begun.wait()
            await wire.send(b"\r\n")  # some clients send one too many
            await asyncio.sleep(10 * HEAD_TIMEOUT)
            stage.go.set()
            assert (await wire.answer()).status == 200

    run(main)


def test_thousands_of_idle_sockets_delay_no_client_and_are_closed():
    async def main():
        loop = asyncio.get_running_loop()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        many = min(2000, (soft - 200) // 2)  # both ends are ours
        assert many >= 1000 or soft < 2200
        async with guarded() as site, wired(site.port) as wire:
            idle: list[socket.socket] = []
            try:
                for number in range(many):
                    idle.append(socket.socket())
                    idle[-1].setblocking(False)
                    await loop.sock_connect(idle[-1], ("127.0.0.1", site.port))
                    if number % 2:
                        await loop.sock_sendall(idle[-1], b"POST /mcp HTTP/1.1\r\n")
                    if number % 50 == 0:  # the queue for accepting is not endless
                        await wire.ask("POST", "/mcp", *LIST)
                        assert (await wire.answer()).status == 200
                await asyncio.sleep(HEAD_TIMEOUT + 1)
                for each in idle[::2]:
                    assert await loop.sock_recv(each, 1) == b""
                for each in idle[1::2]:
                    assert await loop.sock_recv(each, 12) == b"HTTP/1.1 408"
            finally:
                for each in idle:
                    each.close()
            await wire.ask("POST", "/mcp", *LIST)
            assert (await wire.answer()).status == 200

    run(main)


# --------------------------------------------------------------------- bodies


@pytest.mark.parametrize("length", [True, False], ids=["length", "chunked"])
def test_a_body_has_a_least_rate(length):
    async def main():
        size, piece = 1024 * 1024, b" " * 1024
        how = {"Content-Length": str(size)} if length else {"Transfer-Encoding": "chunked"}
        async with hosted(kitchen()) as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", {**HEADERS, **how})
            answering = asyncio.ensure_future(wire.answer())
            while not answering.done():
                await wire.send(piece if length else b"400\r\n" + piece + b"\r\n")
                await asyncio.wait([answering], timeout=BODY_CHUNK_TIMEOUT / 2 - 1)
            assert (await answering).status == 408
            assert BODY_CHUNK_TIMEOUT <= now() < BODY_CHUNK_TIMEOUT + 1

    run(main)


def test_a_body_that_comes_slowly_but_fast_enough_is_read():
    async def main():
        server = Server("long")

        @server.tool
        async def long(text: str) -> int:
            return len(text)

        headers, body = modern("tools/call", call("long", text="x" * 60 * MIN_BODY_RATE))
        async with hosted(server) as site, wired(site.port) as wire:
            await wire.ask("POST", "/mcp", {**headers, "Content-Length": str(len(body))})
            for start in range(0, len(body), MIN_BODY_RATE):
                await asyncio.sleep(1.2)
                await wire.send(body[start : start + MIN_BODY_RATE])
            assert (await wire.answer()).json["result"]["content"][0]["text"] == str(60 * MIN_BODY_RATE)
            assert now() > 2 * BODY_CHUNK_TIMEOUT

    run(main)


# --------------------------------------------------------------------- responses


def flood(stage: Stage) -> Server:
    server = Server("flood")

    @server.tool
    async def big() -> str:
        stage.begun.set()
        return "x" * LARGE

    @server.tool
    async def events(ctx: Context) -> str:
        try:
            while True:
                await ctx.progress(len(stage.log), message="x" * 1_000_000)
                stage.log.append(1)
        except asyncio.CancelledError:
            stage.ended.set()
            raise

    return server


@asynccontextmanager
async def deaf(site: Any, name: str, **headers: str):
    """A client that asks and does not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", site.port))
    wire = Wire(*await asyncio.open_connection(sock=raw, limit=1024), f"127.0.0.1:{site.port}")
    asked, body = modern("tools/call", call(name), meta={"progressToken": 1})
    await wire.ask("POST", "/mcp", {**asked, **headers}, body)
    try:
        yield wire
    finally:
        await wire.close()


async def length(wire: Wire) -> int:
    """Return the number of bytes of a response until the connection ends."""
    size = 0
    try:
        while data := await wire.reader.read(65536):
            size += len(data)
    except ConnectionResetError:
        pass
    return size


def state(site: Any) -> Any:
    return site.app._worker


def test_a_client_that_does_not_read_an_event_stream_is_cut_off_and_its_call_cancelled():
    async def main():
        stage = Stage()
        async with guarded(flood(stage)) as site, deaf(site, "events") as wire:
            await stage.ended.wait()
            assert STALL_TIMEOUT <= now() <= 2 * STALL_TIMEOUT  # it may have taken a little at first
            await until(lambda: not state(site).counts.calls)
            assert await length(wire)

    run(main)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_client_that_does_not_read_an_answer_is_cut_off(connection):
    async def main():
        stage = Stage()
        async with guarded(flood(stage)) as site, deaf(site, "big", Connection=connection) as wire:
            await stage.begun.wait()
            await asyncio.sleep(2 * STALL_TIMEOUT + 1)
            assert await length(wire) < LARGE

    run(main)


def test_a_slow_reader_is_served_to_the_end():
    async def main():
        stage = Stage()
        async with guarded(flood(stage)) as site, deaf(site, "big") as wire:
            head = await wire.head()
            left = int(head.headers["content-length"])
            while left:
                left -= len(await wire.reader.readexactly(min(left, 1_000_000)))
                await asyncio.sleep(STALL_TIMEOUT - 1)
            assert now() > 2 * STALL_TIMEOUT

    run(main)


@pytest.mark.parametrize(
    ("connection", "ends"),
    [("keep-alive", serve.KEEP_ALIVE_TIMEOUT + STALL_TIMEOUT), ("close", STALL_TIMEOUT)],
)
def test_a_little_that_is_not_read_holds_no_connection_either(connection, ends):
    """Less than makes uvicorn wait: it closes when its time has come, but waits for the last bytes."""
    lost: list[float] = []
    protocol: Any = make_bounded_protocol()

    class Small(protocol):
        """Has little room in the kernel."""

        def connection_made(self, transport: Any) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.append(now())

    async def main():
        server = Server("little")

        @server.tool
        async def little() -> str:
            return "x" * 25_000  # twice, as text and as structured content

        async with guarded(server, http=Small) as site, deaf(site, "little", Connection=connection):
            await asyncio.sleep(ends - 1)
            assert lost == []
            await asyncio.sleep(STALL_TIMEOUT + 2)
            assert len(lost) == 1

    run(main)
