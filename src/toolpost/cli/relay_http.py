"""A relay in front of an HTTP server: an address on this machine that leads to it, and sees what goes by.

Owns the socket, the way of each request and the little that has to be changed on it: headers that belong to
one connection, names that would lead past us. What was said is found out by `posts`.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from http import HTTPStatus
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import click

from toolpost.cli.exits import INTERRUPTED, UNREACHABLE, Quit
from toolpost.cli.page import Page
from toolpost.cli.posts import Post, Posts
from toolpost.cli.teller import Teller
from toolpost.protocol.sites import Allowed, allow, refuse_host
from toolpost.transports.address import Http, shown

if TYPE_CHECKING:
    import aiohttp

__all__ = ["serve"]

PORT: Final = 8900
"""Where we listen if nobody says where, and nobody else does: a host is configured once."""

CONNECT_TIMEOUT: Final = 30.0
"""Seconds to get a connection to the server. There is no other limit: a stream may be quiet for hours."""

MAX_HEADER: Final = 64 * 1024
"""How long a header of the server may be."""

_ONE_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that are about one connection, of which there are two here."""

_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - it is recognised, and warned of

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


def serve(place: Http, teller: Teller, page: Page, listen: str | None = None) -> int:
    """Relay what comes to an address of ours, until somebody presses Ctrl-C.

    Args:
        place: the server.
        teller: tells what goes by.
        page: where the address is printed.
        listen: host and port to listen at.

    Returns:
        How to end.

    Raises:
        Quit: the address cannot be had, or what this needs is not installed.
    """
    if find_spec("aiohttp") is None or find_spec("uvicorn") is None:
        raise Quit("a tap on a URL needs aiohttp and uvicorn", hint="pip install 'toolpost[http]'")
    with _bound(listen) as listening:
        host, port, *_ = listening.getsockname()
        named = f"[{host}]" if ":" in host else host
        origin = f"http://{named}:{port}"
        url = origin + (urlsplit(place.url).path or "/")
        if page.json:
            page.data({"url": url, "target": shown(place.url)})
        else:
            page.say(url)
            page.note(f"Give this URL to the host, instead of {shown(place.url)}. Ctrl-C ends it.")
            if host in _EVERYWHERE:
                page.note("Everybody on the network can use it.", style="yellow")
        allowed = allow(hosts=["*"] if host in _EVERYWHERE else [named])
        return asyncio.run(_serve(_Relay(place, teller, origin, allowed), listening))


@contextmanager
def _bound(listen: str | None) -> Generator[socket.socket]:
    host, _, port = (listen or f"127.0.0.1:{PORT}").rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {listen} is no address; write it like 127.0.0.1:{PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        if listen is not None:
            raise Quit(f"cannot listen at {listen}: {error.strerror or error}", UNREACHABLE) from error
        listening = socket.create_server((host, 0), family=family)
    with listening:
        yield listening


async def _serve(relay: "_Relay", listening: socket.socket) -> int:
    import aiohttp  # noqa: PLC0415 - as above
    import uvicorn  # noqa: PLC0415 - as above

    class Server(uvicorn.Server):
        """Ends the exchanges before it waits for them, and remembers by which signal it was told to."""

        told = 0

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            relay.stop()
            await super().shutdown(sockets)

        @contextmanager
        def capture_signals(self) -> Generator[None]:
            before = {each: signal.signal(each, self.hear) for each in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)

        def hear(self, number: int, frame: FrameType | None) -> None:
            self.told = number
            self.handle_exit(number, frame)

    server = Server(
        uvicorn.Config(
            relay,  # pyright: ignore[reportArgumentType] - its messages are dicts, which uvicorn types one by one
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
    )
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        auto_decompress=False,
        skip_auto_headers=("user-agent", "accept", "accept-encoding", "content-type"),
        max_line_size=MAX_HEADER,
        max_field_size=MAX_HEADER,
        trust_env=True,
    ) as session:
        relay.session = session
        await server.serve(sockets=[listening])
    return INTERRUPTED if server.told == signal.SIGINT else 128 + server.told


class _Relay:
    """The ASGI application that hands every request on.

    Args:
        place: the server.
        teller: tells what goes by.
        origin: our own.
        allowed: the names that we answer to. We call the server by its own name, so that it cannot check.
    """

    session: "aiohttp.ClientSession"

    def __init__(self, place: Http, teller: Teller, origin: str, allowed: Allowed) -> None:
        parts = urlsplit(place.url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path, self._query = parts.path or "/", parts.query
        self._own = origin
        self._allowed = allowed
        self._headers = {name.encode(): value.encode() for name, value in (place.headers or {}).items()}
        self._posts = Posts(teller.tell, teller.note, teller.keep, teller.now)
        self._running: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """End every exchange."""
        for task in self._running:
            task.cancel()

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Hand one request on, until it is answered or nobody waits for the answer."""
        sent = [(name.lower(), value) for name, value in scope["headers"]]
        plain = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent}
        wrong = refuse_host(self._allowed, plain.get("host"))
        if wrong is not None:
            await _say(send, HTTPStatus.FORBIDDEN, wrong.partition(" If it should")[0])
            return
        place = scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        if not query and place == self._path:
            query = self._query
        place = f"{place}?{query}" if query else place
        body = _Body(receive, self._posts.begin(scope["method"], place, plain))
        exchange = asyncio.create_task(self._exchange(scope["method"], place, sent, body, send))
        gone = asyncio.create_task(body.gone())
        self._running |= {exchange, gone}
        try:
            await asyncio.wait({exchange, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (exchange, gone):
                task.cancel()
            await asyncio.wait({exchange, gone})
            self._running -= {exchange, gone}
        if not exchange.cancelled():
            exchange.result()

    async def _exchange(
        self, verb: str, place: str, sent: list[tuple[bytes, bytes]], body: "_Body", send: _Send
    ) -> None:
        import aiohttp  # noqa: PLC0415 - as above
        from multidict import CIMultiDict  # noqa: PLC0415 - aiohttp's own
        from yarl import URL  # noqa: PLC0415 - as above

        from toolpost.transports.http_backend import reason  # noqa: PLC0415 - as above

        dropped = _ONE_HOP | {b"host", b"accept-encoding"} | self._headers.keys()
        passed = [(name, value) for name, value in sent if name not in dropped]
        passed += [*self._headers.items(), (b"accept-encoding", b"identity")]  # what is packed cannot be seen
        headers = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in passed)
        begun = False
        try:
            async with self.session.request(
                verb,
                URL(self._origin + place, encoded=True),
                headers=headers,
                data=await body.data(),
                allow_redirects=False,
            ) as response:
                begun = True
                await self._answer(response, verb, body.post, send)
        except (aiohttp.ClientError, OSError) as error:
            why = "the answer was cut off" if begun else f"the server cannot be reached: {reason(error)}"
            if isinstance(error, aiohttp.ClientResponseError):
                why = "the answer is no HTTP"
            body.post.cut(why)
            if not begun:
                await _say(send, HTTPStatus.BAD_GATEWAY, f"toolpost tap: {why}")

    async def _answer(self, response: "aiohttp.ClientResponse", verb: str, post: Post, send: _Send) -> None:
        post.head(response.status, {name.lower(): value for name, value in response.headers.items()})
        headers = [
            (name, self._led_here(value) if name.lower() == b"location" else value)
            for name, value in response.raw_headers
            if name.lower() not in _ONE_HOP
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        events = response.content_type == "text/event-stream"
        first, held = events and verb == "GET", b""
        async for piece in response.content.iter_any():
            post.answered(piece)
            due = piece
            if first:  # it may say where messages go
                due, first = self._led_here(piece), False
            elif not events:  # the last piece waits until all was looked at: what comes next may depend on it
                due, held = held, piece
            if due:
                await send({"type": "http.response.body", "body": due, "more_body": True})
        post.end()
        await send({"type": "http.response.body", "body": held})

    def _led_here(self, value: bytes) -> bytes:
        """What leads to the server, led to us instead."""
        return value.replace(f"{self._origin}/".encode(), f"{self._own}/".encode())


class _Body:
    """The body of a request as it comes, and whether somebody still waits for the answer."""

    def __init__(self, receive: _Receive, post: Post) -> None:
        self._receive = receive
        self._over = asyncio.Event()
        self.post = post

    async def data(self) -> bytes | AsyncIterator[bytes] | None:
        """The body: whole if it has come, else piece by piece; None if there is none."""
        message = await self._receive()
        piece = message.get("body", b"")
        if message.get("more_body"):
            return self._pieces(piece)
        self.post.asked(piece, last=True)
        self._over.set()
        return piece or None

    async def _pieces(self, piece: bytes) -> AsyncIterator[bytes]:
        more = True
        while more:
            self.post.asked(piece, last=False)
            yield piece
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client has left")
            piece, more = message.get("body", b""), message.get("more_body", False)
        self.post.asked(piece, last=True)
        self._over.set()
        yield piece

    async def gone(self) -> None:
        """Return when nobody waits any more."""
        await self._over.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _say(send: _Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})
