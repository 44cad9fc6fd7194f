"""HTTP without a socket: requests go straight into an ASGI application in this process.

Owns one task for each request, in which the application runs, and one for its lifespan. Knows nothing of MCP.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote, unquote, urlsplit

from toolpost.errors import ConnectFailed, RequestFailed
from toolpost.protocol.urls import DEFAULT_PORTS
from toolpost.transports.backends.backend import IteratedResponse, Response

CLOSE_TIMEOUT: Final = (
    2.0  # seconds for requests and the lifespan to end, before and after they are cancelled
)
BODY_HIGH_WATER: Final = 64 * 1024  # bytes of a body that may wait before the application has to
AsgiMessage: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[..., Awaitable[None]]

logger: Final = logging.getLogger("toolpost.http")


class AsgiLifespan:
    """The lifespan of an application, in one task: some contexts must be closed where they were opened."""

    def __init__(self, app: AsgiApp) -> None:
        loop = asyncio.get_running_loop()
        self._state: dict[str, Any] = {}
        self._startup: asyncio.Future[str | None] = loop.create_future()
        self._stop = asyncio.Event()
        self._is_startup_sent = False
        self._task = loop.create_task(self._run(app))

    async def wait_for_startup(self) -> dict[str, Any]:
        """Wait until the application has started; return the state that each of its requests gets."""
        failure = await asyncio.shield(self._startup)
        if failure is not None:
            raise ConnectFailed(f"the application failed to start: {failure or 'no reason given'}")
        return self._state

    async def stop(self) -> None:
        """End the lifespan; cancel it if it does not end in time."""
        self._stop.set()
        if await _end_tasks([self._task]):
            logger.warning("the application did not finish its lifespan; cancelling it")

    async def _run(self, app: AsgiApp) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - an application without a lifespan raises what it likes
            logger.debug("the application has no lifespan: %r", error)
        finally:
            self._report_startup(None)

    async def _receive(self) -> AsgiMessage:
        if not self._is_startup_sent:
            self._is_startup_sent = True
            return {"type": "lifespan.startup"}
        await self._stop.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: AsgiMessage) -> None:
        if message["type"] == "lifespan.startup.failed":
            self._report_startup(message.get("message", ""))
        elif message["type"] == "lifespan.shutdown.failed":
            logger.warning("the application failed to shut down: %s", message.get("message", ""))
        else:
            self._report_startup(None)

    def _report_startup(self, failure: str | None) -> None:
        if not self._startup.done():
            self._startup.set_result(failure)


class AsgiBackend:
    """Sends requests to an ASGI application.

    The lifespan of the application begins with the first request and ends with `close`; it may have none.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self.local = True  # requests do not leave this process
        self._app = cast("AsgiApp", app)
        self._lifespan: AsgiLifespan | None = None
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
            self._lifespan = AsgiLifespan(self._app)
        state = await self._lifespan.wait_for_startup()
        exchange = _AsgiExchange(body or b"")
        scope = _build_scope(method, url, headers, len(exchange.body)) | {"state": dict(state)}
        task = asyncio.get_running_loop().create_task(exchange.run(self._app, scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await exchange.wait_for_response()
            yield exchange
        finally:
            exchange.disconnect()

    async def close(self) -> None:
        """End the requests that the application still serves, and its lifespan."""
        self._closed = True
        await _end_tasks([*self._tasks])
        if self._lifespan is not None:
            await self._lifespan.stop()


async def _end_tasks(tasks: list[asyncio.Task[None]]) -> bool:
    """Wait for tasks, and cancel those that do not end in time. Return whether there were any."""
    left = set(tasks)
    if left:
        _, left = await asyncio.wait(left, timeout=CLOSE_TIMEOUT)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CLOSE_TIMEOUT)
    return bool(left)


def _build_scope(method: str, url: str, headers: Mapping[str, str], size: int) -> dict[str, Any]:
    parts = urlsplit(url)
    raw_path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    if "host" not in headers:
        sent.insert(0, (b"host", parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii")))
    if method in {"POST", "PUT", "PATCH"}:
        sent.append((b"content-length", b"%d" % size))
    return {
        "type": "http",
        # Below 2.4 an application learns of a disconnect by receiving it, also while it has nothing to send.
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
        "server": (parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]),
    }


class _AsgiExchange(IteratedResponse):
    """One request, its response, and the iterator over its body."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._is_body_sent = False
        self._disconnected = asyncio.Event()
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._is_complete = False
        self._ended = False
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()  # something came, was taken, or ended

    # ----------------------------------------------------------------- the side of the application

    async def run(self, app: AsgiApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except asyncio.CancelledError as error:
            self._failure = error
            raise
        except Exception as error:
            self._failure = error
            if self._disconnected.is_set():  # no reader is left to raise it
                logger.info("the application failed after its response was abandoned", exc_info=error)
        finally:
            self._ended = True
            self._changed.set()

    async def _receive(self) -> AsgiMessage:
        if not self._is_body_sent:
            self._is_body_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        if self._disconnected.is_set():
            return
        if message["type"] == "http.response.start":
            self.headers = _join_headers(message.get("headers", ()))
            self.status = message["status"]
        elif message["type"] == "http.response.body" and not self._is_complete:
            if chunk := message.get("body", b""):
                self._chunks.append(bytes(chunk))
                self._size += len(chunk)
            self._is_complete = not message.get("more_body", False)
            if self._is_complete:
                self._disconnected.set()
        self._changed.set()
        while self._size > BODY_HIGH_WATER and not self._disconnected.is_set():
            await self._wait()

    # ----------------------------------------------------------------- our side

    async def wait_for_response(self) -> None:
        """Wait for the status and the headers."""
        while not self.status:
            if self._ended:
                raise self._make_error("the application sent no response")
            await self._wait()

    def disconnect(self) -> None:
        """Signal the application that the client has disconnected."""
        self._disconnected.set()
        self._changed.set()

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._is_complete:
                raise StopAsyncIteration
            if self._ended:
                raise self._make_error("the application returned before its response was complete")
            await self._wait()
        chunk = self._chunks.popleft()
        self._size -= len(chunk)
        self._changed.set()
        return chunk

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _make_error(self, text: str) -> RequestFailed:
        error = RequestFailed(text if self._failure is None else f"{text}: {type(self._failure).__name__}")
        error.__cause__ = self._failure
        return error


def _join_headers(pairs: Any) -> dict[str, str]:
    """Return the headers by their names in lower case; repeated ones are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = bytes(name).decode("latin-1").lower(), bytes(value).decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
