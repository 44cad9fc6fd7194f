"""`HttpExchange`: one HTTP request and its response, as ASGI hands them over.

Reads a body within its limits and time, writes plain responses and event streams, and watches requests that
take long for a disconnect. `security` decides which requests are allowed.
"""

import asyncio
import contextlib
import logging
from asyncio import current_task
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from inspect import isawaitable
from types import CoroutineType, TracebackType
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from toolpost.errors import ChannelClosed, InvalidRequest
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc, sse
from toolpost.server.http.disconnect_timer import CONNECTION_MONITOR, ConnectionMonitor
from toolpost.server.runtime.eager_tasks import resume

ASGIScope: TypeAlias = MutableMapping[str, Any]
ASGIEvent: TypeAlias = MutableMapping[str, Any]
ASGIReceive: TypeAlias = Callable[[], Awaitable[ASGIEvent]]
ASGISend: TypeAlias = Callable[[ASGIEvent], Awaitable[None]]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

logger: Final = logging.getLogger("toolpost.http")

KEEP_ALIVE_INTERVAL: Final = 15.0  # seconds between two comments: proxies close streams after 30 silent ones
RETRY_AFTER: Final = {429: b"5", 503: b"1"}  # the default of `Retry-After` in seconds, by status
CLOSE_CONNECTION: Final = (b"connection", b"close")
MAX_DIGITS: Final = 18  # digits of a length that are read: no body needs more
DISCARD_TIMEOUT: Final = 2.0  # seconds to drain a rejected body, so that the client can read the response
BODY_CHUNK_TIMEOUT: Final = 30.0  # seconds that a client may take for the next piece of a body
MIN_BODY_RATE: Final = 16 * 1024  # bytes per second after the first `BODY_CHUNK_TIMEOUT` seconds
_JSON_HEADER: Final = (b"content-type", b"application/json")
_EVENT_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # HTTPM-7
)


class HTTPRefusal(Exception):
    """Refuses a request with a status, a text with the remedy, and more headers if they are given.

    `body` is a JSON-RPC error with that text, for no request in particular, unless another one is given.
    """

    def __init__(
        self, status: int, message: str = "", headers: Headers = (), *, body: bytes | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = tuple(headers)
        self.body = jsonrpc.encode_error(None, InvalidRequest(message)) if body is None else body
        if status in RETRY_AFTER and all(name != b"retry-after" for name, _ in self.headers):
            self.headers += ((b"retry-after", RETRY_AFTER[status]),)


class ClientDisconnected(ChannelClosed):
    """The client disconnected before its response."""

    def __init__(self) -> None:
        super().__init__("the client disconnected")


class ResponseAborted(Exception):
    """We ended a response, because the server is shutting down."""


class HttpExchange:
    """One request and its response.

    `extra` are more headers of the response; `principal` is set by authentication; `is_disconnected` means
    that the client disconnected during the work; `unwanted` is called before work is cancelled for that,
    `pulse` every `KEEP_ALIVE_INTERVAL` seconds during the work.
    """

    extra: tuple[tuple[bytes, bytes], ...] = ()
    principal: Principal | None = None
    streaming = is_disconnected = False
    unwanted: Callable[[], object] | None = None
    pulse: Callable[[], Awaitable[object]] | None = None
    is_detached = False  # whether work continues after a disconnect
    _ended = _is_aborted = False
    _body_wait_since: float | None = None  # when we first had to wait for the body
    _working_task: "asyncio.Task[Any] | None" = None  # the task of the work that may be cancelled
    _cancellations = 0  # of that task, from elsewhere
    _keep_alive_timer: asyncio.TimerHandle | None = None  # while the client is watched
    _keep_alive_task: "asyncio.Task[None] | None" = None
    _disconnect_task: "asyncio.Task[None] | None" = None

    def __init__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        self.scope: ASGIScope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        if root := scope.get("root_path"):
            self.path = _strip_root(self.path, root.rstrip("/"))
        given: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(given)
        self.raw_headers = headers if len(headers) == len(given) else _join_headers(given)
        self.task: asyncio.Task[Any] = current_task()  # pyright: ignore[reportAttributeAccessIssue] - runs in one
        self._receive = receive
        self._send = send

    @property
    def address(self) -> str:
        """The IP address of the client; empty if the ASGI server does not pass it on."""
        client: tuple[str, int] | None = self.scope.get("client")
        return "" if client is None else client[0]

    @property
    def headers(self) -> dict[str, str]:
        """The headers as strings, by their names in lower case."""
        return {str(name, "latin-1"): str(value, "latin-1") for name, value in self.raw_headers.items()}

    @property
    def has_ended(self) -> bool:
        """Whether the response has ended, or the client has disconnected."""
        return self._ended or self.is_disconnected

    @property
    def root(self) -> str:
        """The path where the application is mounted; empty if it has the server for itself."""
        raw_path: bytes = self.scope.get("raw_path") or b""
        root: str = self.scope.get("root_path", "")
        if not root and raw_path == self.path.encode():
            return ""
        root = root.rstrip("/")
        # Some frameworks remove the prefix that they matched from the path, but do not set `root_path`.
        whole = unquote(raw_path.decode("latin-1")).rstrip("/")
        local = self.path.rstrip("/")
        before = whole[: len(whole) - len(local)]
        return before if whole.endswith(local) and len(before) > len(root) else root

    # ----------------------------------------------------------------- reading

    def receive_body(self, limit: int) -> bytes | Coroutine[Any, Any, bytes]:
        """Return the whole body if it was received, as nearly always, else a coroutine that returns it.

        It may raise ClientDisconnected, and HTTPRefusal if the body is too large or too slow.
        """
        length = self.raw_headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:MAX_DIGITS]) > limit:
            return self._refuse_large_body(limit, has_more=True)
        event: Any = self._receive()
        if event.__class__ is CoroutineType:
            try:
                event = resume(event, event.send(None))
            except StopIteration as done:
                event = done.value
                if not event.get("more_body") and event["type"] == "http.request":
                    data: Any = event.get("body", b"")
                    if len(data) <= limit:
                        return data if type(data) is bytes else bytes(data)  # some servers pass a bytearray
        return self._receive_parts(event, limit)

    async def _receive_parts(self, first: ASGIEvent | Awaitable[ASGIEvent], limit: int) -> bytes:
        """Return the whole body, of which this is the first event."""
        parts: list[bytes] = []
        size, event = 0, first
        while True:
            if isawaitable(event):
                event = await self._receive_in_time(event, size)
            if event["type"] != "http.request":
                raise ClientDisconnected
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            more = bool(event.get("more_body"))
            if size > limit:
                await self._refuse_large_body(limit, has_more=more)
            if not more:
                return b"".join(parts)
            event = self._receive()

    async def _receive_in_time(self, begun: Awaitable[ASGIEvent], size: int) -> ASGIEvent:
        """Return the next event of a body, if it arrives in time; `size` bytes were received so far."""
        now = asyncio.get_running_loop().time()
        self._body_wait_since = now if self._body_wait_since is None else self._body_wait_since
        deadline = min(now, self._body_wait_since + size / MIN_BODY_RATE) + BODY_CHUNK_TIMEOUT
        try:
            async with asyncio.timeout_at(deadline):
                return await begun
        except TimeoutError:
            raise HTTPRefusal(408, "The request body was not received in time.", [CLOSE_CONNECTION]) from None

    async def _refuse_large_body(self, limit: int, *, has_more: bool) -> bytes:
        """Refuse a body. Read on for a while: a client that still sends would not read our answer."""
        # A client that sends `expect` waits for us.
        rest = 2 * limit if has_more and b"expect" not in self.raw_headers else 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_TIMEOUT):
                while rest > 0:
                    event = await self._receive()
                    if event["type"] != "http.request":
                        raise ClientDisconnected
                    rest = rest - len(event.get("body", b"")) if event.get("more_body") else 0
        text = f"The request body exceeds {limit} bytes (max_body=)."
        raise HTTPRefusal(413, text, [CLOSE_CONNECTION])

    # ----------------------------------------------------------------- answering

    async def respond(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Send a whole response, with a JSON body or without one."""
        self._ended = True
        sent = [(b"content-length", b"%d" % len(body)), _JSON_HEADER]
        if headers or self.extra or not body:
            sent[1:] = [*((_JSON_HEADER,) if body else ()), *headers, *self.extra]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})

    async def finish_disconnected(self) -> None:
        """Send an empty 400 after a disconnect: some ASGI middleware requires a response."""
        if not (self.streaming or self._ended):
            with contextlib.suppress(Exception):  # other middleware refuses one
                await self.respond(400)

    async def open_stream(self) -> None:
        """Begin an event stream, unless it has begun."""
        if not self.streaming:
            self.streaming = True
            sent = [*_EVENT_STREAM_HEADERS, *self.extra]
            await self._send({"type": "http.response.start", "status": 200, "headers": sent})

    def release_headers(self) -> None:
        """Drop the headers, to save memory: an open stream does not need them."""
        self.scope = {key: self.scope.get(key) for key in ("client", CONNECTION_MONITOR)}
        self.raw_headers = {}

    async def send_event(
        self,
        data: bytes,
        *,
        kind: str | None = None,
        id: str | None = None,  # noqa: A002 - the format's word
        is_last: bool = False,
    ) -> None:
        """Send an event, which begins the stream; the last one also ends it."""
        if not self.streaming:
            await self.open_stream()
        await self.send_chunk(sse.encode_event(data, event=kind, id=id), is_last=is_last)

    def send_chunk(self, body: bytes, *, is_last: bool = False) -> Awaitable[None]:
        """Send a part of the event stream; the last one also ends it."""
        if self.is_disconnected:
            raise ClientDisconnected
        if is_last:
            self._ended = True
        return self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def end_stream(self) -> None:
        """End the event stream, unless it has ended."""
        if self._ended:
            return
        self._ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    # ----------------------------------------------------------------- working while the client waits

    def __enter__(self) -> None:
        """Start work in this task. It is cancelled if the client disconnects, unless it `is_detached`.

        The end raises ClientDisconnected after a disconnect, ResponseAborted if `abort` was called.
        """
        task = self._working_task = self.task
        self._cancellations = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._working_task = self._working_task, None
        if self._keep_alive_timer is not None:
            self._stop_watching(self._keep_alive_timer)
        if self._is_aborted:
            self._is_aborted = False
            assert task is not None, "it was cancelled"
            is_ours = task.uncancel() <= self._cancellations
            if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise (ClientDisconnected if self.is_disconnected else ResponseAborted) from None
        if self.is_disconnected and not self.is_detached and error is None:
            raise ClientDisconnected  # the work has ignored the cancellation

    def start_watching(self) -> bool:
        """Watch for a disconnect, and send keep-alive comments; return False if no work is running yet."""
        if self._working_task is not None and self._keep_alive_timer is None:
            self._schedule_keep_alive()
            monitor: ConnectionMonitor | None = self.scope.get(CONNECTION_MONITOR)
            if monitor is None or not monitor.watch_disconnect(self):
                loop = asyncio.get_running_loop()
                self._disconnect_task = loop.create_task(self._wait_for_disconnect())
        return self._keep_alive_timer is not None

    def _stop_watching(self, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._keep_alive_timer = None
        monitor: ConnectionMonitor | None = self.scope.get(CONNECTION_MONITOR)
        if monitor is not None:  # it is removed after a disconnect
            monitor.unwatch_disconnect(self)
        for task in (self._disconnect_task, self._keep_alive_task):
            if task is not None:
                task.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.on_disconnect()

    def on_disconnect(self) -> None:
        """Note the disconnect, and cancel the work unless it is detached."""
        self.is_disconnected = True
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        if self.is_detached or self._is_aborted:
            return
        try:
            if self.unwanted is not None:
                self.unwanted()
        finally:
            self.abort()

    def abort(self) -> None:
        """Cancel the work, if any."""
        if self._working_task is not None and not self._is_aborted:
            self._is_aborted = True
            self._working_task.cancel()

    def _schedule_keep_alive(self) -> None:
        self._keep_alive_timer = asyncio.get_running_loop().call_later(
            KEEP_ALIVE_INTERVAL, self._on_keep_alive
        )

    def _on_keep_alive(self) -> None:
        self._schedule_keep_alive()
        if self._keep_alive_task is None or self._keep_alive_task.done():  # else the last is still being sent
            self._keep_alive_task = asyncio.get_running_loop().create_task(self._send_keep_alive())

    async def _send_keep_alive(self) -> None:
        try:
            if self.streaming and not self.has_ended:
                await self.send_chunk(sse.KEEP_ALIVE)
            if self.pulse is not None:
                await self.pulse()
        except Exception:  # the writer of the stream will report it
            logger.debug("could not send a keep-alive", exc_info=True)


def _strip_root(path: str, root: str) -> str:
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def _join_headers(given: Headers) -> dict[bytes, bytes]:
    """Return headers by name: a list that was split over several lines is one list (RFC 9110 §5.3)."""
    headers: dict[bytes, bytes] = {}
    for name, value in given:
        headers[name] = b"%b, %b" % (headers[name], value) if name in headers else value
    return headers
