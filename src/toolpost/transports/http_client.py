"""The channel to a server over Streamable HTTP, for both eras; each message decides which one it belongs to.

A task posts each request, and its messages go to a queue. In a session, its id and revision go with each,
and one more stream is open for messages that belong to no request. Without one, headers mirror the message,
and closing the response cancels. Owns the session and all tasks. When to try again is decided elsewhere.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from toolpost.channel import mark_unattended
from toolpost.errors import (
    AuthError,
    ChannelClosed,
    LocalProtocolError,
    RemoteProtocolError,
    RequestFailed,
    SessionLost,
    TransportError,
)
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.eras import has_protocol_version
from toolpost.protocol.events import OutboundRequest
from toolpost.protocol.http_routing import mirror_headers
from toolpost.protocol.jsonrpc import (
    InvalidJSONValue,
    JSONReader,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
)
from toolpost.protocol.methods import CANCELLED, INITIALIZE, INITIALIZED, TOOLS_CALL
from toolpost.transports.event_stream import BoundedMessageQueue, ResumableStream
from toolpost.transports.http_request import HttpCall, SessionHeaders
from toolpost.transports.http_sender import EVENTS, JSON, HttpSender, check_accepted, is_event_stream
from toolpost.transports.targets import Http
from toolpost.types.base import UNSET, Raw, RequestId, WireStruct
from toolpost.types.notifications import CancelledParams

DELETE_TIMEOUT: Final = 2.0  # seconds for the DELETE that ends a session; it ends without one, too
ACCEPT_TIMEOUT: Final = 60.0  # seconds for the server to accept a message that has no answer
MAX_CONCURRENT_ANSWERS: Final = 64  # how many answers are posted at once: each needs a connection
CLOSE_TIMEOUT: Final = 2.0  # seconds for our tasks to close their connections
MAX_CACHED_HEADERS: Final = 256  # for how many tools and methods headers are cached: more than a server has
HeaderParameterLookup = Callable[[str], Mapping[str, tuple[str, ...]] | None]
"""Returns the annotated parameters of a tool, if they are known."""

_CLOSED_REASON: Final = "the channel was closed"
_POST_HEADERS: Final = {"content-type": JSON, "accept": f"{JSON}, {EVENTS}"}

logger: Final = logging.getLogger("toolpost.http")


class _CalledTool(WireStruct):
    name: str


_CALLED_TOOL: Final = JSONReader(_CalledTool)
_CANCELLED_PARAMS: Final = JSONReader(CancelledParams)


class HttpChannel:
    """The channel to an HTTP server. Made where an event loop runs; it connects with the first message.

    `find_header_parameters` returns the annotated parameters of a tool; by default none are known.
    """

    def __init__(self, http: Http) -> None:
        self.find_header_parameters: HeaderParameterLookup = _find_no_parameters
        self._http = http
        self._sender = HttpSender(http)
        self._queue = BoundedMessageQueue(http.label)
        self._on_lost: Callable[[RequestId, TransportError | AuthError], object] = _log_lost
        self._sender.on_login_pending(self._pause_timeouts)
        self._post_timeouts: set[asyncio.Timeout] = set()
        self._session: SessionHeaders | None = None
        self._is_session_lost = False
        self._listener: asyncio.Task[None] | None = None
        self._calls: dict[RequestId, HttpCall] = {}
        self._header_cache: dict[tuple[str, object, str], Mapping[str, str]] = {}
        self._answer_slots = asyncio.Semaphore(MAX_CONCURRENT_ANSWERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Future[None] | None = None

    def on_message(self, tell: Callable[[bytes | JSONRPCMessage], object]) -> None:
        """Pass each message to `tell` as it comes, instead of keeping it for `receive`."""
        self._queue.set_listener(tell)

    def on_request_lost(self, tell: Callable[[RequestId, TransportError | AuthError], object]) -> None:
        """Report each request whose answer cannot come any more to `tell` instead of the log."""
        self._on_lost = tell

    def on_login_pending(self, tell: Callable[[bool], object]) -> None:
        """Call `tell` when requests begin to wait for a login, and when none does any more."""
        self._sender.on_login_pending(tell)

    def _pause_timeouts(self, waiting: bool) -> None:
        """Pause the time-outs of posts while a person logs in."""
        until = None if waiting else asyncio.get_running_loop().time() + ACCEPT_TIMEOUT
        for scope in self._post_timeouts:
            if not scope.expired():
                scope.reschedule(until)

    async def receive(self) -> bytes:
        """Return the next message of the server, from any stream. Cancelling it loses no message."""
        try:
            return await self._queue.receive()
        except ChannelClosed as error:
            raise self._make_closed_error(error.message, sent=error.sent) from None

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - HTTP tells
        """Post one message. A request is posted by a task, and this returns at once.

        Raises:
            ChannelClosed: the channel was closed, or the server has forgotten the session.
            RequestFailed: a notification or an answer was not accepted, or no header can carry what a request
                has to repeat there.
            LocalProtocolError: this is no message, or one that may not be posted now.
        """
        self._check_open()
        try:
            message = jsonrpc.decode(data)
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"this cannot be posted: {error.message}") from error
        if isinstance(message, JSONRPCRequest):
            is_stateless = message.method != INITIALIZE and has_protocol_version(message.params)
            fields = self._prepare_headers(self._mirror_headers(message)) if is_stateless else None
            self._start_call(message.id, message.method, data, fields)
        elif isinstance(message, JSONRPCNotification):
            await self._post_notification(message, data)
        elif self._session is None:
            raise LocalProtocolError("outside of a session no answer may be posted")  # HTTPM-4
        else:
            session = self._session
            async with self._answer_slots:
                await self._post(data, session.fields, session)

    def send_request(self, outgoing: OutboundRequest) -> bool:
        """Post a request, by a task; raise as `send` does. Returns True: it never has to wait."""
        if self._queue.reason is not None:
            self._check_open()
        fields = self._find_headers(outgoing) if outgoing.revision.stateless else None
        self._start_call(outgoing.id, outgoing.row.name, outgoing.data, fields)
        return True

    async def close(self) -> None:
        """End every stream, and the session. Closing twice is fine, and nothing is raised."""
        if self._closing is not None:
            await asyncio.wait({self._closing})
            return
        self._closing = asyncio.get_running_loop().create_future()
        self._queue.close(_CLOSED_REASON)
        try:
            await self._cancel_tasks()
            await self._delete_session()
        finally:
            try:
                await self._sender.close()
            finally:
                self._closing.set_result(None)

    # ----------------------------------------------------------------- sending

    def _start_call(
        self, request_id: RequestId, method: str, data: bytes, stateless_headers: Mapping[str, str] | None
    ) -> None:
        """Start the task that posts a request; without headers of its own, with those of the session."""
        session, fields = None, stateless_headers
        if fields is None:
            session = self._session
            if method == INITIALIZE:
                session = self._session = SessionHeaders()
                self._stop_listening()
            fields = None if session is None else session.prepared
            if fields is None:
                fields = self._prepare_headers({} if session is None else session.fields)
                if session is not None:
                    session.prepared = fields
        call = HttpCall(request_id, method, session, self._sender, self._queue, self._http.max_answer)
        if request_id in self._calls:
            self._track_task(self._calls[request_id].task)
        # Kept in `_calls` until it ends: unlike `_tasks`, that needs no callback.
        call.task = asyncio.get_running_loop().create_task(self._run_call(call, data, fields))
        self._calls[request_id] = call

    async def _run_call(self, call: HttpCall, data: bytes, fields: Mapping[str, str]) -> None:
        """Post a request with headers that the sender has prepared; hand on messages up to the answer."""
        cut = None
        try:
            try:
                async with self._sender.send("POST", fields, data, prepared=True) as response:
                    if response.headers.get("content-type") == JSON or not is_event_stream(response):
                        await call.read_whole(response)
                        return
                    await call.read_stream(response)
            except RequestFailed as error:
                if call.stream is None:
                    raise
                cut = error
            await call.resume_stream(cut)
        except (TransportError, AuthError) as error:
            self._report_lost(call, error)
        except Exception as error:
            logger.exception("%s: a request failed", self._http.label)
            failure = RequestFailed(f"the request failed: {type(error).__name__}", peer=self._http.label)
            failure.__cause__ = error
            self._report_lost(call, failure)
        finally:
            if self._calls.get(call.id) is call:
                del self._calls[call.id]

    def _report_lost(self, call: HttpCall, error: TransportError | AuthError) -> None:
        self._on_lost(call.id, error)
        if isinstance(error, SessionLost):
            self._mark_session_lost(call.session)

    async def _post_notification(self, notice: JSONRPCNotification, data: bytes) -> None:
        if notice.method == CANCELLED and not self._cancel_call(notice):
            return
        session = self._session
        if session is None or has_protocol_version(notice.params):
            await self._post(data, self._mirror_headers(notice), None)
            return
        await self._post(data, session.fields, session)
        if notice.method == INITIALIZED and self._session is session:
            self._stop_listening()
            self._listener = self._spawn(self._listen(session))

    def _cancel_call(self, notice: JSONRPCNotification) -> bool:
        """Close the response of a cancelled request. Return whether the notification has to be posted."""
        try:
            request_id = _CANCELLED_PARAMS(notice.params).request_id
        except InvalidJSONValue:
            request_id = None
        if request_id is None or request_id not in self._calls:
            return self._session is not None
        call = self._calls.pop(request_id)
        self._track_task(call.task)
        call.task.cancel()
        return call.session is not None

    async def _post(self, data: bytes, fields: Mapping[str, str], session: SessionHeaders | None) -> None:
        """Post a message that has no answer."""
        scope = asyncio.timeout(None if self._sender.is_login_pending else ACCEPT_TIMEOUT)
        self._post_timeouts.add(scope)
        try:
            async with scope, self._sender.send("POST", {**_POST_HEADERS, **fields}, data) as response:
                if session is not None and session.is_lost(response):
                    self._mark_session_lost(session)
                    raise session.make_lost_error(self._http.label, sent=False)
                await check_accepted(response)
        except TimeoutError:
            raise RequestFailed(
                f"the server did not say within {ACCEPT_TIMEOUT:g} s that it has taken a message",
                peer=self._http.label,
            ) from None
        finally:
            self._post_timeouts.discard(scope)

    def _prepare_headers(self, fields: Mapping[str, str]) -> Mapping[str, str]:
        return self._sender.prepare_headers({**_POST_HEADERS, **fields})

    def _find_headers(self, outgoing: OutboundRequest) -> Mapping[str, str]:
        """Return the headers of a stateless request; those that repeat only a name are cached."""
        row, params = outgoing.row, outgoing.params
        name: object = None if row.named is None else getattr(params, row.named, None)
        annotated = isinstance(name, str) and row.name == TOOLS_CALL and self.find_header_parameters(name)
        is_cacheable = not annotated and (row.named is None or isinstance(name, str))
        key = row.name, name, outgoing.revision.date
        fields = self._header_cache.get(key) if is_cacheable else None
        if fields is None:
            raw = UNSET if params is None else Raw(jsonrpc.encode(params))
            mirrored = self._mirror_headers(JSONRPCRequest(outgoing.id, row.name, raw))
            fields = self._prepare_headers({**mirrored, headers.VERSION: outgoing.revision.date})
            if is_cacheable:
                if len(self._header_cache) >= MAX_CACHED_HEADERS:
                    self._header_cache.clear()
                self._header_cache[key] = fields
        return fields

    def _mirror_headers(self, message: JSONRPCRequest | JSONRPCNotification) -> dict[str, str]:
        try:
            annotated = None
            if message.method == TOOLS_CALL and self.find_header_parameters is not _find_no_parameters:
                annotated = self.find_header_parameters(_CALLED_TOOL(message.params).name)
            return mirror_headers(message, annotated)
        except ValueError as error:
            raise RequestFailed(str(error), sent=False, peer=self._http.label) from error

    # ----------------------------------------------------------------- the stream for other messages

    async def _listen(self, session: SessionHeaders) -> None:
        """Keep the stream open for messages that belong to no request, if the server offers it."""
        stream = ResumableStream(self._queue.put_when_room, self._http.max_answer)
        try:
            with mark_unattended():
                refused = await stream.keep_open(self._sender, session.fields)
        except AuthError as error:
            logger.warning("%s: what the server says unasked is not heard: %s", self._http.label, error)
            return
        except Exception:  # calls go on without it
            logger.exception("%s: the stream for what the server says unasked failed", self._http.label)
            return
        # Before the first connection, a 404 may only mean that there is no such stream.
        if session.is_lost(refused) and stream.has_opened:
            self._mark_session_lost(session)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None

    # ----------------------------------------------------------------- the end

    def _mark_session_lost(self, session: SessionHeaders | None) -> None:
        """End the channel if this is its session, which the server has forgotten."""
        if session is not None and session is self._session:
            self._session, self._is_session_lost = None, True
            self._stop_listening()
            self._queue.end("the server does not know the session any more")

    def _check_open(self) -> None:
        if self._queue.reason is not None:
            raise self._make_closed_error(self._queue.reason, sent=False)

    def _make_closed_error(self, reason: str, *, sent: bool) -> ChannelClosed:
        kind = SessionLost if self._is_session_lost else ChannelClosed
        return kind(reason, sent=sent, peer=self._http.label)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._track_task(task)
        return task

    def _track_task(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel_tasks(self) -> None:
        tasks = [*self._tasks, *(call.task for call in self._calls.values())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)

    async def _delete_session(self) -> None:
        """End the session at the server (HTTPL-29)."""
        session, self._session = self._session, None
        if session is None or session.id is None:
            return
        try:
            with mark_unattended():
                async with asyncio.timeout(DELETE_TIMEOUT), self._sender.send("DELETE", session.fields):
                    pass
        except Exception as error:  # noqa: BLE001 - the channel closes anyway
            logger.debug("%s: the session could not be ended: %r", self._http.label, error)


def _find_no_parameters(_tool: str) -> None:
    return None


def _log_lost(request_id: RequestId, error: TransportError | AuthError) -> None:
    logger.warning("request %s was lost: %s", request_id, error)
