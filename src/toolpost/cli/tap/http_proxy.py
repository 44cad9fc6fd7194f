"""A local reverse proxy for an HTTP server.

Rewrites only hop-by-hop headers, and URLs that would bypass the proxy. `http_messages` finds the messages.
"""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from types import FrameType
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import click
import uvicorn
from multidict import CIMultiDict

from toolpost.cli.errors import UNREACHABLE, CommandError
from toolpost.cli.output import CommandOutput
from toolpost.cli.tap.http_messages import ExchangeTracker, explain_failure, get_media_type
from toolpost.cli.tap.recorder import TapRecorder
from toolpost.errors import RequestFailed
from toolpost.protocol.allowed_hosts import AllowedHosts, explain_refused_host, parse_allowed_hosts
from toolpost.server.http.exchange import ASGIEvent, ASGIReceive, ASGISend
from toolpost.transports.backends.aiohttp import AiohttpBackend
from toolpost.transports.backends.backend import Response
from toolpost.transports.http_sender import EVENTS
from toolpost.transports.targets import Http, display_url

DEFAULT_PORT: Final = 8900  # fixed if it is free: a host is configured once
CONNECT_TIMEOUT: Final = 30.0  # seconds; no other limit: a stream may be silent for hours
MAX_HEADER_SIZE: Final = 64 * 1024  # bytes of a header of the server

_HOP_BY_HOP_HEADERS: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection "
    b"te trailer transfer-encoding upgrade".split()
)
_ALL_INTERFACES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - for a warning


def serve_http_proxy(place: Http, recorder: TapRecorder, output: CommandOutput, listen: str | None) -> int:
    """Serve a proxy for `place` at the address `listen` until Ctrl-C. Returns the exit code."""
    with _bind_socket(listen) as listening:
        host, port, *_ = listening.getsockname()
        named = f"[{host}]" if ":" in host else host
        origin = f"http://{named}:{port}"
        url = origin + (urlsplit(place.url).path or "/")
        target = display_url(place.url)
        if output.json:
            output.print_value({"url": url, "target": target})
        else:
            output.print_text(url)
            output.print_note(f"Use this URL in the host instead of {target}. Press Ctrl-C to stop.")
            if host in _ALL_INTERFACES:
                output.print_note("Warning: everyone on the network can use it.", style="yellow")
        allowed = parse_allowed_hosts(hosts=["*"] if host in _ALL_INTERFACES else [named])
        return asyncio.run(_run_uvicorn(_HttpProxy(place, recorder, origin, allowed), listening))


@contextmanager
def _bind_socket(listen: str | None) -> Generator[socket.socket]:
    host, _, port = (listen or f"127.0.0.1:{DEFAULT_PORT}").rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        text = f"--listen: invalid address {listen}; use HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}"
        raise click.UsageError(text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        if listen is not None:
            text = f"could not listen on {listen}: {error.strerror or error}"
            raise CommandError(text, UNREACHABLE) from error
        listening = socket.create_server((host, 0), family=family)
    with listening:
        yield listening


class _ProxyServer(uvicorn.Server):
    """Stops at the first signal without waiting for streams, and stores the signal."""

    received_signal = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self.received_signal = sig  # uvicorn would raise it again
        self.should_exit = self.force_exit = True


async def _run_uvicorn(proxy: "_HttpProxy", listening: socket.socket) -> int:
    config = uvicorn.Config(
        proxy,  # pyright: ignore[reportArgumentType] - its messages are dicts, which uvicorn types one by one
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # we report failures ourselves
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
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
    ) as session:
        proxy.tracker.backend = AiohttpBackend(session)
        await server.serve(sockets=[listening])
    return 128 + server.received_signal


class _HttpProxy:
    """The ASGI application that forwards every request.

    Checks the Host header: the server sees only its own name there and cannot check it.
    """

    def __init__(self, place: Http, recorder: TapRecorder, origin: str, allowed: AllowedHosts) -> None:
        parts = urlsplit(place.url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path, self._query = parts.path or "/", parts.query
        self._own_origin = origin
        self._allowed = allowed
        self._headers = {name.encode(): value.encode() for name, value in (place.headers or {}).items()}
        self.tracker = ExchangeTracker(recorder.show, recorder.now, recorder.record)

    async def __call__(self, scope: ASGIEvent, receive: ASGIReceive, send: ASGISend) -> None:
        """Forward one request until its response ends or the client disconnects."""
        sent = [(name.lower(), value) for name, value in scope["headers"]]
        plain = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent}
        wrong = explain_refused_host(self._allowed, plain.get("host"))
        if wrong is not None:
            await _send_text(send, HTTPStatus.FORBIDDEN, f"{wrong.partition('. ')[0]}.")
            return
        place = scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        if not query and place == self._path:
            query = self._query
        place = f"{place}?{query}" if query else place
        body = await _read_body(receive)
        if body is None:
            return
        forwarding = asyncio.create_task(self._forward_request(scope["method"], place, sent, body, send))
        leaving = asyncio.ensure_future(receive())  # after the body, only a disconnect can follow
        try:
            await asyncio.wait({forwarding, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (forwarding, leaving):
                task.cancel()
            await asyncio.wait({forwarding, leaving})
        if not forwarding.cancelled():
            forwarding.result()

    async def _forward_request(
        self, method: str, place: str, sent: list[tuple[bytes, bytes]], body: bytes, send: ASGISend
    ) -> None:
        dropped = _HOP_BY_HOP_HEADERS | {b"host", b"accept-encoding"} | self._headers.keys()
        passed = [(name, value) for name, value in sent if name not in dropped]
        passed += [*self._headers.items(), (b"accept-encoding", b"identity")]  # for the inspector
        headers = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in passed)
        begun = False
        try:
            async with self.tracker.send(method, self._origin + place, headers, body or None) as response:
                begun = True
                await self._forward_response(response, method, send)
        except RequestFailed as error:
            if not begun:
                await _send_text(send, HTTPStatus.BAD_GATEWAY, f"toolpost tap: {explain_failure(error)}")

    async def _forward_response(self, response: Response, method: str, send: ASGISend) -> None:
        encoded = [
            (name.encode(), value.encode("utf-8", "surrogateescape"))  # as aiohttp has decoded it
            for name, value in response.headers.items()
        ]
        headers = [
            (name, self._rewrite_origin(value) if name.lower() == b"location" else value)
            for name, value in encoded
            if name.lower() not in _HOP_BY_HOP_HEADERS
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        events = get_media_type(response.headers) == EVENTS
        first, held = events and method == "GET", b""
        async for piece in response.chunks():
            due = piece
            if first:  # it may contain the path for messages
                due, first = self._rewrite_origin(piece), False
            elif not events:  # send the last chunk after inspection: the next request may depend on it
                due, held = held, piece
            if due:
                await send({"type": "http.response.body", "body": due, "more_body": True})
        await send({"type": "http.response.body", "body": held})

    def _rewrite_origin(self, value: bytes) -> bytes:
        return value.replace(f"{self._origin}/".encode(), f"{self._own_origin}/".encode())


async def _read_body(receive: ASGIReceive) -> bytes | None:
    """Read the whole body before it is forwarded. Returns None after a disconnect."""
    pieces: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


async def _send_text(send: ASGISend, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})
