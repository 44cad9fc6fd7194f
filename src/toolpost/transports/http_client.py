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
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader, JSONRPCNotification, JSONRPCRequest
from toolpost.protocol.methods import CANCELLED, INITIALIZE, INITIALIZED, TOOLS_CALL, Row
from toolpost.protocol.urls import get_origin, split_http_url
from toolpost.transports.http_request import SESSION_LOST_REASON, HttpCall, ResumableStream, SessionHeaders
from toolpost.transports.http_sender import EVENTS, JSON, HttpSender, check_accepted, is_event_stream
from toolpost.transports.memory import MessageQueue, QueueChannel
from toolpost.transports.targets import Http
from toolpost.types.base import UNSET, Raw, RequestId
from toolpost.types.notifications import CancelledParams
from toolpost.types.tools import CallToolParams

CLOSE_TIMEOUT: Final = 2.0  # seconds for our tasks to close their connections
DELETE_TIMEOUT: Final = 2.0  # seconds for the DELETE that ends a session; it ends without one, too
ACCEPT_TIMEOUT: Final = 60.0  # seconds for the server to accept a message that has no answer
MAX_CONCURRENT_ANSWERS: Final = 64  # how many answers are posted at once: each needs a connection
MAX_CACHED_NAME: Final = 256  # characters of a name whose headers are cached: others may choose it
MAX_CACHED_HEADERS: Final = 256  # for how many tools and methods headers are cached: more than a server has
_POST_HEADERS: Final = {"content-type": JSON, "accept": f"{JSON}, {EVENTS}"}
_TOOL_CALL: Final = JSONReader(CallToolParams)
_CANCELLED_PARAMS: Final = JSONReader(CancelledParams)

logger: Final = logging.getLogger("toolpost.http")


class HttpClientChannel(QueueChannel):
    """Base of this channel and the one over HTTP+SSE: a sender, tasks, and the report of lost requests."""

    def __init__(self, http: Http) -> None:
        super().__init__(MessageQueue(http.label))
        self._http = http
        self._sender = HttpSender(http)
        self._on_lost: Callable[[RequestId, TransportError | AuthError], object] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def related_request(self) -> RequestId | None:
        """The request on whose stream the message came that is being handed over."""
        return self._queue.related_request

    @property
    def network(self) -> Mapping[str, str | int]:
        """How the server is connected, by the names of OpenTelemetry."""
        parts = split_http_url(self._http.url)
        assert parts is not None, "checked when it was described"
        _, host, port = get_origin(parts)
        facts = {"network.transport": "tcp", "network.protocol.name": "http"}
        return {**facts, "server.address": host or "", "server.port": port}

    def on_request_lost(self, callback: Callable[[RequestId, TransportError | AuthError], object]) -> None:
        """Report each request whose answer cannot come any more to `callback`."""
        self._on_lost = callback

    def on_login_pending(self, callback: Callable[[bool], object]) -> None:
        """Call back when requests begin to wait for a login, and when none does any more."""
        self._sender.on_login_pending(callback)

    def _report_lost(self, request_id: RequestId, error: Exception) -> None:
        if not isinstance(error, TransportError | AuthError):
            logger.error("%s: a request failed", self._http.label, exc_info=error)
            failure = RequestFailed(f"the request failed: {type(error).__name__}", peer=self._http.label)
            failure.__cause__ = error
            error = failure
        if self._on_lost is None:
            logger.warning("request %s was lost: %.1000s", request_id, error)
        else:
            self._on_lost(request_id, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._track_task(task)
        return task

    def _track_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shut_down(self) -> None:
        """End every stream, and the session."""
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
            await self._end_session()
        finally:
            await self._sender.close()

    async def _end_session(self) -> None:
        """End the session at the server, where its end needs a request."""


class HttpChannel(HttpClientChannel):
    """The channel to an HTTP server. Made where an event loop runs; it connects with the first message.

    `find_header_parameters` returns the annotated parameters of a tool; by default none are known.
    """

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self.find_header_parameters: Callable[[str], Mapping[str, tuple[str, ...]] | None] = lambda _: None
        self._session: SessionHeaders | None = None
        self._listener: asyncio.Task[None] | None = None
        self._calls: dict[RequestId, HttpCall] = {}
        self._header_cache: dict[tuple[str, object, str], Mapping[str, str]] = {}
        self._answer_slots = asyncio.Semaphore(MAX_CONCURRENT_ANSWERS)

    @property
    def network(self) -> Mapping[str, str | int]:
        """How the server is connected. The session is named by a digest, which does not reveal the id."""
        session_id = None if self._session is None else self._session.id
        found = super().network
        return (
            found if session_id is None else {**found, "mcp.session.id": headers.hide_session_id(session_id)}
        )

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - the message itself decides
        """Post one message. A request is posted by a task, and this returns at once."""
        self._queue.check_open()
        try:
            message = jsonrpc.decode(data)
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"this message cannot be sent: {error.message}") from error
        if isinstance(message, JSONRPCRequest):
            is_stateless = message.method != INITIALIZE and has_protocol_version(message.params)
            fields = self._mirror_headers(message) if is_stateless else None
            self._start_call(message.id, message.method, data, fields)
        elif isinstance(message, JSONRPCNotification):
            await self._post_notification(message, data)
        elif self._session is None:
            raise LocalProtocolError("a response can only be sent in a session")  # HTTPM-4
        else:
            session = self._session
            async with self._answer_slots:
                await self._post(data, session.fields, session)

    def send_request(self, outgoing: OutboundRequest) -> bool:
        """Post a request, by a task. Returns True: it never has to wait."""
        if self._queue.reason is not None:
            self._queue.check_open()
        fields = self._find_headers(outgoing) if outgoing.revision.stateless else None
        self._start_call(outgoing.id, outgoing.row.name, outgoing.data, fields)
        return True

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
            fields = {} if session is None else session.fields
        call = HttpCall(request_id, method, session, self._sender, self._queue, self._http.max_answer)
        if request_id in self._calls:
            self._track_task(self._calls[request_id].task)
        # Kept in `_calls` until it ends: unlike `_tasks`, that needs no callback.
        work = self._run_call(call, data, {**_POST_HEADERS, **fields})
        call.task = asyncio.get_running_loop().create_task(work)
        self._calls[request_id] = call

    async def _run_call(self, call: HttpCall, data: bytes, fields: Mapping[str, str]) -> None:
        """Post a request; hand on messages up to the answer."""
        cut = None
        try:
            try:
                async with self._sender.send("POST", fields, data) as response:
                    if response.headers.get("content-type") == JSON or not is_event_stream(response):
                        await call.read_whole(response)
                        return
                    await call.read_stream(response)
            except RequestFailed as error:
                if call.stream is None:
                    raise
                cut = error
            await call.resume_stream(cut)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._report_lost(call.id, error)
            if isinstance(error, SessionLost):
                self._mark_session_lost(call.session)
        finally:
            if self._calls.get(call.id) is call:
                del self._calls[call.id]

    async def _post_notification(self, notice: JSONRPCNotification, data: bytes) -> None:
        if notice.method == CANCELLED and not self._cancel_call(notice):
            return
        session = self._session
        if session is None or has_protocol_version(notice.params):
            await self._post(data, self._mirror_headers(notice), None)
            return
        if notice.method != INITIALIZED:
            await self._post(data, session.fields, session)
            return
        try:
            await self._post(data, session.fields, None)  # a 404 means that the server does not know it
        finally:
            if self._session is session:
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
        sender = self._sender
        try:
            async with (
                sender.limit_time(ACCEPT_TIMEOUT),
                sender.send("POST", {**_POST_HEADERS, **fields}, data) as response,
            ):
                if session is not None and session.is_lost(response):
                    self._mark_session_lost(session)
                    raise SessionLost(SESSION_LOST_REASON, sent=False, peer=self._http.label)
                await check_accepted(response)
        except TimeoutError:
            raise RequestFailed(
                f"the server did not accept a message within {ACCEPT_TIMEOUT:g} s",
                peer=self._http.label,
            ) from None

    def _find_headers(self, outgoing: OutboundRequest) -> Mapping[str, str]:
        """Return the headers of a stateless request; those that repeat only a name are cached."""
        row, params = outgoing.row, outgoing.params
        name: object = None if row.named is None else getattr(params, row.named, None)
        annotated = isinstance(name, str) and row.name == TOOLS_CALL and self.find_header_parameters(name)
        is_cacheable = not annotated and len(row.name) <= MAX_CACHED_NAME
        if row.named is not None:
            is_cacheable = is_cacheable and isinstance(name, str) and len(name) <= MAX_CACHED_NAME
        key = row.name, name, outgoing.revision.date
        fields = self._header_cache.get(key) if is_cacheable else None
        if fields is None:
            raw = UNSET if params is None else Raw(jsonrpc.encode(params))
            mirrored = self._mirror_headers(JSONRPCRequest(outgoing.id, row.name, raw), row)
            fields = {**mirrored, headers.VERSION: outgoing.revision.date}
            if is_cacheable:
                if len(self._header_cache) >= MAX_CACHED_HEADERS:
                    self._header_cache.clear()
                self._header_cache[key] = fields
        return fields

    def _mirror_headers(
        self, message: JSONRPCRequest | JSONRPCNotification, row: Row | None = None
    ) -> dict[str, str]:
        try:
            annotated = None
            if message.method == TOOLS_CALL:
                annotated = self.find_header_parameters(_TOOL_CALL(message.params).name)
            return mirror_headers(message, annotated, row)
        except ValueError as error:
            raise headers.UnsendableRequest(str(error), sent=False, peer=self._http.label) from error

    # ----------------------------------------------------------------- the stream for other messages

    async def _listen(self, session: SessionHeaders) -> None:
        """Keep the stream open for messages that belong to no request, if the server offers it."""
        stream = ResumableStream(self._queue.put_when_room, self._http.max_answer)
        try:
            with mark_unattended():
                refused = await stream.keep_open(self._sender, session.fields)
        except AuthError as error:
            logger.warning("%s: cannot receive unsolicited messages: %.1000s", self._http.label, error)
            return
        except Exception:  # calls go on without it
            logger.exception("%s: the stream for unsolicited messages failed", self._http.label)
            return
        # Before the first connection, a 404 may only mean that the server has no such stream.
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
            self._session = None
            self._stop_listening()
            self._queue.end(SESSION_LOST_REASON, SessionLost)

    async def _shut_down(self) -> None:
        for call in self._calls.values():
            self._track_task(call.task)
        await super()._shut_down()

    async def _end_session(self) -> None:
        """End the session at the server (HTTPL-29)."""
        session, self._session = self._session, None
        if session is None or session.id is None:
            return
        try:
            with mark_unattended():
                async with asyncio.timeout(DELETE_TIMEOUT), self._sender.send("DELETE", session.fields):
                    pass
        except Exception as error:  # noqa: BLE001 - the channel closes anyway
            logger.debug("%s: could not end the session: %r", self._http.label, error)
