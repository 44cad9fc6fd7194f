"""A proxy in front of an HTTP server, at an address on this machine.

Rewrites only what it must: headers about one connection, and URLs that would lead past it. `http_messages`
finds the messages in what passes.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from http import HTTPStatus
from types import FrameType
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import click
import uvicorn
from multidict import CIMultiDict
from yarl import URL

from toolpost.cli.errors import INTERRUPTED, UNREACHABLE, CommandError
from toolpost.cli.output import CommandOutput
from toolpost.cli.tap.http_messages import ExchangeTracker, TrackedExchange
from toolpost.cli.tap.recorder import TapRecorder
from toolpost.protocol.allowed_hosts import AllowedHosts, explain_refused_host, parse_allowed_hosts
from toolpost.transports.backends.backend import describe_error
from toolpost.transports.targets import Http, display_url

DEFAULT_PORT: Final = 8900  # the default port, if it is free: a host is configured once
CONNECT_TIMEOUT: Final = 30.0  # seconds; there is no other limit: a stream may be quiet for hours
MAX_HEADER_SIZE: Final = 64 * 1024  # how long a header of the server may be

_HOP_BY_HOP_HEADERS: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection "
    b"te trailer transfer-encoding upgrade".split()
)
_ALL_INTERFACES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - it is recognised, and warned of

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


def serve_http_proxy(place: Http, recorder: TapRecorder, page: CommandOutput, listen: str | None) -> int:
    """Serve a proxy for `place` at an address of ours (`listen`) until Ctrl-C. Returns the exit code."""
    with _bind_socket(listen) as listening:
        host, port, *_ = listening.getsockname()
        named = f"[{host}]" if ":" in host else host
        origin = f"http://{named}:{port}"
        url = origin + (urlsplit(place.url).path or "/")
        target = display_url(place.url)
        if page.json:
            page.print_value({"url": url, "target": target})
        else:
            page.print_text(url)
            page.print_note(f"Give this URL to the host, instead of {target}. Ctrl-C ends it.")
            if host in _ALL_INTERFACES:
                page.print_note("Everybody on the network can use it.", style="yellow")
        allowed = parse_allowed_hosts(hosts=["*"] if host in _ALL_INTERFACES else [named])
        return asyncio.run(_run_uvicorn(_HttpProxy(place, recorder, origin, allowed), listening))


@contextmanager
def _bind_socket(listen: str | None) -> Generator[socket.socket]:
    host, _, port = (listen or f"127.0.0.1:{DEFAULT_PORT}").rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {listen} is no address; write it like 127.0.0.1:{DEFAULT_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        if listen is not None:
            text = f"cannot listen at {listen}: {error.strerror or error}"
            raise CommandError(text, UNREACHABLE) from error
        listening = socket.create_server((host, 0), family=family)
    with listening:
        yield listening


class _ProxyServer(uvicorn.Server):
    """Ends the exchanges before it waits for them, and remembers the signal."""

    received_signal = 0

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        proxy: Any = self.config.app
        proxy.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.received_signal, self.should_exit = sig, True  # uvicorn would raise the signal again


async def _run_uvicorn(proxy: "_HttpProxy", listening: socket.socket) -> int:
    config = uvicorn.Config(
        proxy,  # pyright: ignore[reportArgumentType] - its messages are dicts, which uvicorn types one by one
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # what fails is told by us
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = _ProxyServer(config)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        auto_decompress=False,
        skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
        max_line_size=MAX_HEADER_SIZE,
        max_field_size=MAX_HEADER_SIZE,
        trust_env=True,
    ) as proxy.session:
        await server.serve(sockets=[listening])
    return INTERRUPTED if server.received_signal == signal.SIGINT else 128 + server.received_signal


class _HttpProxy:
    """The ASGI application that passes every request on.

    It checks the Host header itself: the server is called by its own name, so that it cannot check.
    """

    session: aiohttp.ClientSession

    def __init__(self, place: Http, recorder: TapRecorder, origin: str, allowed: AllowedHosts) -> None:
        parts = urlsplit(place.url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path, self._query = parts.path or "/", parts.query
        self._own_origin = origin
        self._allowed = allowed
        self._headers = {name.encode(): value.encode() for name, value in (place.headers or {}).items()}
        self._tracker = ExchangeTracker(recorder.show, recorder.now, recorder.record)
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass one request on, until it is answered or the client has gone."""
        sent = [(name.lower(), value) for name, value in scope["headers"]]
        plain = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent}
        wrong = explain_refused_host(self._allowed, plain.get("host"))
        if wrong is not None:
            await _send_text(send, HTTPStatus.FORBIDDEN, wrong.partition(" If it should")[0])
            return
        place = scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        if not query and place == self._path:
            query = self._query
        place = f"{place}?{query}" if query else place
        body = _RequestBody(receive, self._tracker.begin(scope["method"], place, plain))
        exchange = asyncio.create_task(self._forward_request(scope["method"], place, sent, body, send))
        gone = asyncio.create_task(body.wait_for_disconnect())
        self._tasks |= {exchange, gone}
        try:
            await asyncio.wait({exchange, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (exchange, gone):
                task.cancel()
            await asyncio.wait({exchange, gone})
            self._tasks -= {exchange, gone}
        if not exchange.cancelled():
            exchange.result()

    async def _forward_request(
        self, verb: str, place: str, sent: list[tuple[bytes, bytes]], body: "_RequestBody", send: _Send
    ) -> None:
        dropped = _HOP_BY_HOP_HEADERS | {b"host", b"accept-encoding"} | self._headers.keys()
        passed = [(name, value) for name, value in sent if name not in dropped]
        passed += [*self._headers.items(), (b"accept-encoding", b"identity")]  # what is packed cannot be seen
        headers = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in passed)
        url = URL(self._origin + place, encoded=True)
        begun = False
        try:
            async with self.session.request(
                verb, url, headers=headers, data=await body.read(), allow_redirects=False
            ) as response:
                begun = True
                await self._forward_response(response, verb, body.exchange, send)
        except (aiohttp.ClientError, OSError) as error:
            why = f"the server cannot be reached: {describe_error(error)}"
            if isinstance(error, aiohttp.ClientResponseError):
                why = "the answer is no HTTP"
            elif begun:
                why = "the answer was cut off"
            body.exchange.abort(why)
            if not begun:
                await _send_text(send, HTTPStatus.BAD_GATEWAY, f"toolpost tap: {why}")

    async def _forward_response(
        self, response: aiohttp.ClientResponse, verb: str, exchange: TrackedExchange, send: _Send
    ) -> None:
        received = {key.lower(): each for key, each in response.headers.items()}
        exchange.start_response(response.status, received)
        headers = [
            (name, self._rewrite_origin(value) if name.lower() == b"location" else value)
            for name, value in response.raw_headers
            if name.lower() not in _HOP_BY_HOP_HEADERS
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        events = response.content_type == "text/event-stream"
        first, held = events and verb == "GET", b""
        async for piece in response.content.iter_any():
            exchange.feed_response(piece)
            due = piece
            if first:  # it may say where messages go
                due, first = self._rewrite_origin(piece), False
            elif not events:  # the last piece waits until all was looked at: what comes next may depend on it
                due, held = held, piece
            if due:
                await send({"type": "http.response.body", "body": due, "more_body": True})
        exchange.finish()
        await send({"type": "http.response.body", "body": held})

    def _rewrite_origin(self, value: bytes) -> bytes:
        return value.replace(f"{self._origin}/".encode(), f"{self._own_origin}/".encode())


class _RequestBody:
    """The body of a request as it comes, and whether the client is still there."""

    def __init__(self, receive: _Receive, exchange: TrackedExchange) -> None:
        self._receive = receive
        self._complete = asyncio.Event()
        self.exchange = exchange

    async def read(self) -> bytes | AsyncIterator[bytes] | None:
        """The body: whole if it has come, else piece by piece; None if there is none."""
        message = await self._receive()
        piece = message.get("body", b"")
        if message.get("more_body"):
            return self._iterate_chunks(piece)
        self.exchange.feed_request(piece, last=True)
        self._complete.set()
        return piece or None

    async def _iterate_chunks(self, piece: bytes) -> AsyncIterator[bytes]:
        more = True
        while more:
            self.exchange.feed_request(piece, last=False)
            yield piece
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client has left")
            piece, more = message.get("body", b""), message.get("more_body", False)
        self.exchange.feed_request(piece, last=True)
        self._complete.set()
        yield piece

    async def wait_for_disconnect(self) -> None:
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _send_text(send: _Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})
