"""One HTTP request and its response, as ASGI hands them to us: headers, body, plain answers, event streams.

Reads a body within its limits and time, and reports a disconnect. Which requests are allowed is the business
of `security`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from contextvars import copy_context
from inspect import isawaitable
from itertools import chain
from types import CoroutineType
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

from toolpost.errors import ChannelClosed
from toolpost.principal import Principal
from toolpost.protocol import sse
from toolpost.server.http.disconnect import (
    CONNECTION_MONITOR,
    DisconnectTimer,
    DisconnectWatcher,
    KeepAliveCallback,
)
from toolpost.server.runtime.eager import StartedCoroutine

MAX_DIGITS: Final = 18
"""Digits of a length that are read: as many as no body has, and to read thousands would take long."""


def _strip_root(path: str, root: str) -> str:
    """The path below the place where the application is mounted."""
    if not root:
        return path
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


def _join_headers(given: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name: a list that was split over several lines is one list (RFC 9110 §5.3)."""
    headers: dict[str, str] = {}
    for name, value in given:
        key, text = str(name, "latin-1"), str(value, "latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


# --------------------------------------------------------------------- request

ASGIScope: TypeAlias = MutableMapping[str, Any]
ASGIEvent: TypeAlias = MutableMapping[str, Any]
ASGIReceive: TypeAlias = Callable[[], Awaitable[ASGIEvent]]
ASGISend: TypeAlias = Callable[[ASGIEvent], Awaitable[None]]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

T = TypeVar("T")

DISCARD_TIMEOUT: Final = 2.0  # seconds for which an unwanted body is read
BODY_CHUNK_TIMEOUT: Final = 30.0  # seconds that a client may take for the next piece of a body
MIN_BODY_RATE: Final = 16 * 1024  # bytes per second after the first `BODY_CHUNK_TIMEOUT` seconds
_JSON_HEADER: Final = (b"content-type", b"application/json")
_EVENT_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # HTTPM-7
)


class BodyTooLarge(Exception):
    """The body is too large; `more` says whether a part of it was not read."""

    def __init__(self, *, more: bool) -> None:
        super().__init__()
        self.more = more


class BodyTooSlow(Exception):
    """The body does not come in time."""


class ClientDisconnected(ChannelClosed):
    """The client has gone before its answer."""

    def __init__(self) -> None:
        super().__init__("the client has gone")


class ResponseAborted(Exception):
    """We have ended a response ourselves, because the server stops."""


class HttpExchange:
    """One request and its response.

    `extra` are more headers of the response; `principal` is set by authentication; `is_disconnected` says
    that the client has gone while work went on.
    """

    __slots__ = (
        "_body_wait_since",
        "_context",
        "_ended",
        "_is_aborted",
        "_is_detached",
        "_pulse",
        "_receive",
        "_send",
        "_task",
        "_unwanted",
        "_watcher",
        "extra",
        "headers",
        "headers_size",
        "is_disconnected",
        "method",
        "path",
        "principal",
        "scope",
        "streaming",
    )

    def __init__(self, scope: ASGIScope, receive: ASGIReceive, send: ASGISend) -> None:
        self.scope: ASGIScope = scope
        self.method: str = scope["method"]
        root: str = scope.get("root_path") or ""
        self.path: str = _strip_root(scope["path"], root.rstrip("/")) if root else scope["path"]
        given: list[tuple[bytes, bytes]] = scope["headers"]
        whole = b"\0".join(chain.from_iterable(given))  # all at once: name by name takes twice as long
        parts = str(whole, "latin-1").split("\0")
        read = dict(zip(parts[::2], parts[1::2], strict=False))
        is_split = len(parts) != 2 * len(given) or len(read) < len(given)
        self.headers: Mapping[str, str] = _join_headers(given) if is_split else read
        self.headers_size = len(whole)
        self.extra: tuple[tuple[bytes, bytes], ...] = ()
        self.principal: Principal | None = None
        self.streaming = self.is_disconnected = self._ended = self._is_aborted = self._is_detached = False
        self._receive = receive
        self._send = send
        self._body_wait_since: float | None = None  # when we first had to wait for the body
        self._task: asyncio.Task[Any] | None = None
        self._pulse: KeepAliveCallback | None = None
        self._unwanted: Callable[[], object] | None = None
        self._watcher: DisconnectWatcher | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the response has ended, or the client has gone."""
        return self._ended or self.is_disconnected

    @property
    def root(self) -> str:
        """The path where the application is mounted; empty if it has the server for itself."""
        root: str = self.scope.get("root_path", "").rstrip("/")
        # Some frameworks remove what they have matched from the path, and do not say so.
        whole = unquote((self.scope.get("raw_path") or b"").decode("latin-1")).rstrip("/")
        local = self.path.rstrip("/")
        before = whole[: len(whole) - len(local)]
        return before if whole.endswith(local) and len(before) > len(root) else root

    @property
    def query(self) -> bytes:
        """The query string."""
        return self.scope.get("query_string", b"")

    @property
    def address(self) -> str:
        """The address of the client, as the ASGI server reports it."""
        client = self.scope.get("client")
        return "" if client is None else client[0]

    # ----------------------------------------------------------------- reading

    def receive_body(self, limit: int) -> bytes | Coroutine[Any, Any, bytes]:
        """Return the whole body if it has come, as it nearly always has, else a coroutine that returns it.

        Both may raise BodyTooLarge; the coroutine also ClientDisconnected and BodyTooSlow.
        """
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length[:MAX_DIGITS]) > limit:
            raise BodyTooLarge(more=True)
        event: Any = self._receive()
        if event.__class__ is CoroutineType:
            try:
                event = StartedCoroutine(event, event.send(None))
            except StopIteration as done:
                event = done.value
                if event["type"] == "http.request" and not event.get("more_body"):
                    data: Any = event.get("body", b"")
                    if len(data) > limit:
                        raise BodyTooLarge(more=False) from None
                    return data if type(data) is bytes else bytes(data)  # some servers give a bytearray
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
                raise BodyTooLarge(more=more)
            if not more:
                return b"".join(parts)
            event = self._receive()

    async def _receive_in_time(self, begun: Awaitable[ASGIEvent], size: int) -> ASGIEvent:
        """Return the next event of a body of which `size` bytes have come, or raise BodyTooSlow."""
        now = asyncio.get_running_loop().time()
        self._body_wait_since = now if self._body_wait_since is None else self._body_wait_since
        deadline = min(now, self._body_wait_since + size / MIN_BODY_RATE) + BODY_CHUNK_TIMEOUT
        try:
            async with asyncio.timeout_at(deadline):
                return await begun
        except TimeoutError:
            raise BodyTooSlow from None

    async def discard_body(self, limit: int) -> None:
        """Read on for so many bytes: a client that still sends would not read our answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_TIMEOUT):
                while limit > 0 and "expect" not in self.headers:  # with it, the client waits for us
                    event = await self._receive()
                    if event["type"] != "http.request":
                        raise ClientDisconnected
                    if not event.get("more_body"):
                        return
                    limit -= len(event.get("body", b""))

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # ----------------------------------------------------------------- answering

    async def send_json(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Answer with one JSON body."""
        self._ended = True
        sent = [(b"content-length", b"%d" % len(body)), _JSON_HEADER, *headers, *self.extra]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})

    async def send_empty(self, status: int, headers: Headers = ()) -> None:
        """Answer without a body."""
        self._ended = True
        sent = [(b"content-length", b"0"), *headers, *self.extra]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": b""})

    async def finish_disconnected(self) -> None:
        """Answer a client that has gone: a middleware may insist on an answer."""
        if not (self.streaming or self._ended):
            with contextlib.suppress(Exception):  # other ones insist on none
                await self.send_empty(400)

    async def open_stream(self) -> None:
        """Begin an event stream, unless it has begun."""
        if not self.streaming:
            self.streaming = True
            sent = [*_EVENT_STREAM_HEADERS, *self.extra]
            await self._send({"type": "http.response.start", "status": 200, "headers": sent})

    def release_headers(self) -> None:
        """Drop the headers, to save memory: an open stream does not need them."""
        self.headers, self.scope = {}, {CONNECTION_MONITOR: self.scope.get(CONNECTION_MONITOR)}

    async def send_event(
        self,
        data: bytes,
        *,
        kind: str | None = None,
        id: str | None = None,  # noqa: A002 - the format's word
        retry: int | None = None,
    ) -> None:
        """Send an event, which begins the stream."""
        await self.open_stream()
        await self._send_chunk(sse.encode_event(data, event=kind, id=id, retry=retry))

    async def send_comment(self) -> None:
        """Send a comment on the stream, which clients skip."""
        await self._send_chunk(sse.encode_comment())

    async def end_stream(self) -> None:
        """End the event stream, unless it has ended."""
        if self._ended:
            return
        self._ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_chunk(self, body: bytes) -> None:
        if self.is_disconnected:
            raise ClientDisconnected
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    # ----------------------------------------------------------------- working while the client waits

    async def run_while_connected(
        self,
        work: Awaitable[T],
        pulse: KeepAliveCallback | None = None,
        unwanted: Callable[[], object] | None = None,
        *,
        is_detached: bool = False,
    ) -> T:
        """Run work in this task, and return its result; cancel it if the client disconnects.

        `pulse` is called every `KEEP_ALIVE_INTERVAL` seconds meanwhile; `unwanted` is called before the work
        is cancelled because the client has gone. Detached work goes on when the client has gone.

        Raises:
            ClientDisconnected: the client has gone.
            ResponseAborted: `abort` was called.
        """
        task = self._task = asyncio.current_task()
        assert task is not None, "a request is served in a task"
        others = task.cancelling()
        self._pulse, self._unwanted, self._is_detached = pulse, unwanted, is_detached
        self._context = copy_context()
        try:
            result = await work
        except asyncio.CancelledError:
            if not self._is_aborted or task.cancelling() > others + 1:  # cancelled from elsewhere
                raise
            raise (ClientDisconnected if self.is_disconnected else ResponseAborted) from None
        finally:
            self._task = None
            if self._watcher is not None:
                self._watcher.end()
                self._watcher = None
            if self._is_aborted:
                self._is_aborted = False
                task.uncancel()
        if self.is_disconnected and not is_detached:
            raise ClientDisconnected  # the work has ignored the cancellation
        return result

    def start_watching(self, timer: DisconnectTimer) -> bool:
        """Watch for a disconnect; return False if no work is running yet."""
        if self._task is not None and self._watcher is None:
            self._watcher = DisconnectWatcher(self, timer, self._pulse, self._context)
        return self._watcher is not None

    def on_disconnect(self) -> None:
        """Note that the client has gone, and cancel the work unless it is detached."""
        self.is_disconnected = True
        if self._is_detached or self._is_aborted:
            return
        try:
            if self._unwanted is not None:
                self._unwanted()
        finally:
            self.abort()

    def abort(self) -> None:
        """Cancel the work of `run_while_connected`, if any."""
        if self._task is not None and not self._is_aborted:
            self._is_aborted = True
            self._task.cancel()

    async def send_keep_alive(self) -> None:
        """Send a comment if a stream is open."""
        if self.streaming and not (self.is_disconnected or self._ended):
            await self.send_comment()
