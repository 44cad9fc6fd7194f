"""HTTP without a socket: requests go straight into an ASGI application in this process.

Owns one task for each request, in which the application runs. Knows no HTTP on the wire, and nothing of MCP.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import quote, unquote, urlsplit

from toolpost.errors import RequestFailed
from toolpost.transports.asgi_lifespan import App, Lifespan, Message
from toolpost.transports.http_backend import Response

__all__ = ["AsgiBackend"]

CLOSE_PATIENCE: Final = 2.0
"""Seconds that what the application still runs has to end: first by itself, then when it is cancelled."""

HIGH_WATER: Final = 64 * 1024
"""How many bytes of a body may wait before the application does, as with the buffer of a socket."""

_PORTS: Final = {"http": 80, "https": 443}

logger: Final = logging.getLogger("toolpost.http")


class AsgiBackend:
    """Sends requests to an ASGI application.

    The lifespan of the application begins with the first request and ends with `close`. An application that
    knows no lifespan does without.

    Args:
        app: the application.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self.local = True
        """What is sent leaves this process nowhere."""
        self._app = cast("App", app)
        self._lifespan: Lifespan | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Response]:
        """Send a request, as `Backend` promises."""
        if self._closed:
            raise RequestFailed("the connection to the application was closed", sent=False)
        if self._lifespan is None:
            self._lifespan = Lifespan(self._app)
        state = await self._lifespan.started()
        exchange = _Exchange(body or b"")
        scope = _scope(method, url, headers, len(exchange.body)) | {"state": dict(state)}
        task = asyncio.get_running_loop().create_task(exchange.run(self._app, scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await exchange.begun()
            yield exchange
        finally:
            exchange.leave()

    async def close(self) -> None:
        """End what the application still runs, and its lifespan."""
        self._closed = True
        tasks = [*self._tasks]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=CLOSE_PATIENCE)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=CLOSE_PATIENCE)
        if self._lifespan is not None:
            await self._lifespan.stop()


def _scope(method: str, url: str, headers: Mapping[str, str], size: int) -> dict[str, Any]:
    parts = urlsplit(url)
    raw_path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    if "host" not in headers:
        sent.insert(0, (b"host", parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii")))
    if method in {"POST", "PUT", "PATCH"}:
        sent.append((b"content-length", b"%d" % size))
    return {
        "type": "http",
        # Below 2.4 an application hears of a disconnect by asking for it, also while it has nothing to send.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": parts.scheme,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": quote(parts.query, safe="/%:@!$&'()*+,;=?~").encode(),
        "root_path": "",
        "headers": sent,
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname, parts.port or _PORTS[parts.scheme]),
    }


class _Exchange(Response):
    """One request, and the response to it; the iterator over its body."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._asked = False
        self._left = asyncio.Event()
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._whole = False
        self._ended = False
        self._failure: BaseException | None = None
        self._news = asyncio.Event()  # for us: something came
        self._room = asyncio.Event()  # for the application: something was taken
        self._room.set()

    # ----------------------------------------------------------------- the side of the application

    async def run(self, app: App, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except asyncio.CancelledError as error:
            self._failure = error
            raise
        except Exception as error:
            self._failure = error
            if self._left.is_set():  # nobody else hears of it
                logger.info("the application failed when its answer was no longer read", exc_info=error)
        finally:
            self._ended = True
            self._news.set()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.headers = _joined(message.get("headers", ()))
            self.status = message["status"]
        elif message["type"] == "http.response.body" and not self._whole:
            if chunk := message.get("body", b""):
                self._chunks.append(bytes(chunk))
                self._size += len(chunk)
            self._whole = not message.get("more_body", False)
            if self._whole:
                self._left.set()
        self._news.set()
        if self._size > HIGH_WATER and not self._whole:
            self._room.clear()
            await self._room.wait()

    # ----------------------------------------------------------------- our side

    async def begun(self) -> None:
        """Wait for the status and the headers.

        Raises:
            RequestFailed: the application ended without an answer.
        """
        while not self.status:
            if self._ended:
                raise self._broken("the application did not answer")
            await self._wait()

    def leave(self) -> None:
        """Let the application know that nobody reads any more."""
        self._left.set()
        self._room.set()

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._whole:
                raise StopAsyncIteration
            if self._ended:
                raise self._broken("the application ended before its answer did")
            await self._wait()
        chunk = self._chunks.popleft()
        self._size -= len(chunk)
        if self._size <= HIGH_WATER:
            self._room.set()
        return chunk

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _broken(self, text: str) -> RequestFailed:
        error = RequestFailed(text if self._failure is None else f"{text}: {type(self._failure).__name__}")
        error.__cause__ = self._failure
        return error


def _joined(pairs: Any) -> dict[str, str]:
    """The headers by their names in lower case; those that stand there twice are joined as HTTP says."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = bytes(name).decode("latin-1").lower(), bytes(value).decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
