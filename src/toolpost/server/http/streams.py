"""Event streams of sessions: that of a POST, which a client may resume, and the general one, read by GET.

Every event of a POST goes to its client and to a log, so that any worker can continue the stream. The id of
an event names the worker, the stream, the request and the position (HTTPL-18 … HTTPL-21).
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

from toolpost.errors import CapabilityNotDeclared, InternalError, LocalProtocolError
from toolpost.protocol import headers, jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import RESOURCES_UPDATED
from toolpost.server.context import Context
from toolpost.server.http.reply import HttpReply
from toolpost.server.http.request import ClientDisconnected, HttpExchange
from toolpost.server.http.security import HTTPRefusal
from toolpost.server.http.sessions import Session
from toolpost.server.runtime.change_broadcast import LIST_CHANGED, KeptChange
from toolpost.stores.store import LogEntry, LogGap
from toolpost.types.base import RequestId
from toolpost.types.notifications import (
    ElicitationCompleteParams,
    NotificationParams,
    ResourceUpdatedParams,
)

if TYPE_CHECKING:
    from toolpost.server.handler import Handler
    from toolpost.server.http.worker import Worker

RETRY_MILLISECONDS: Final = 1000  # after which a client reconnects to a stream that we have interrupted
RUNNING_RETENTION: Final = 3600.0  # seconds to keep the log of a stream while its request is served
STREAM_RETENTION: Final = 300.0  # seconds for which a stream can be resumed after its last event
DELIVERED_RETENTION: Final = 10.0  # seconds to keep a stream after its answer: the last bytes may be lost
LEASE_TTL: Final = 45.0  # seconds until the lease of a silent reader ends: three times KEEP_ALIVE_INTERVAL
POLL_INTERVAL: Final = 2.0  # seconds after which a stream of another worker is read again without a nudge
MAX_NAMED_ID: Final = 64  # bytes of a request id that the name of its stream carries

GENERAL: Final = "0"
"""The name of the general stream, for messages that belong to no request."""

_MESSAGE, _LAST, _INTERRUPTED, _END = b"!", b".", b"~", b"-"
"""How an entry of a log begins: a message, the last message, the client has to come back, no answer comes."""

_REQUEST_ID: Final[JSONReader[RequestId]] = JSONReader(cast("type[RequestId]", RequestId))
_DEAD_WORKER_TEXT: Final = (
    "The worker that served this call has died; whether the call was carried out is not known."
)


class SessionStream:
    """The event stream of one POST in a session. It opens with its first event."""

    __slots__ = (
        "_exchange",
        "_log",
        "_number",
        "_request_id",
        "_session",
        "_worker",
        "answers",
        "has_left",
        "is_open",
        "name",
        "watchers",
    )

    def __init__(
        self, worker: "Worker", session: Session, exchange: HttpExchange, request_id: RequestId
    ) -> None:
        self._worker = worker
        self._exchange = exchange
        self._session = session
        self._request_id = request_id
        self.name = self._log = ""
        self._number = 0
        self.is_open = False
        self.has_left = False
        """Whether the client has gone, or was sent away; it may come back by GET."""
        self.answers: tuple[bytes, ...] = ()
        """The answers of a batch that are there before the stream opens."""
        self.watchers: frozenset[int] = frozenset()
        """The workers on which the client has come back."""

    async def send(self, data: bytes) -> None:
        """Send a message, which opens the stream."""
        await self._send(_MESSAGE, data)

    async def add_answer(self, data: bytes) -> None:
        """Send the answer to one request of a batch, or keep it until the stream opens."""
        if self.is_open:
            await self.send(data)
        else:
            self.answers += (data,)

    async def end(self, data: bytes | None) -> None:
        """Send the last answer, if there is one, and end the stream."""
        await self._send(_END if data is None else _LAST, data or b"")
        if not self.has_left:
            await self._exchange.end_stream()
        await self._worker.store.logs.touch(
            self._log, STREAM_RETENTION if self.has_left else DELIVERED_RETENTION
        )
        self._worker.streams.pop(self.name, None)

    async def interrupt(self) -> None:
        """Let the client come back for the rest, where its revision allows it."""
        if not self._session.peer.revision.priming:
            return
        await self._open()
        await self._append(_INTERRUPTED)
        if not self.has_left:
            self.has_left = True
            await self._exchange.end_stream()

    async def _open(self) -> None:
        if self.is_open or self._exchange.is_disconnected:
            return
        self.is_open = True
        worker, encoded = self._worker, jsonrpc.encode(self._request_id)
        named = encoded.hex() if len(encoded) <= MAX_NAMED_ID else ""
        self.name = f"{worker.number:x}-{worker.next_number():x}-{named}"
        self._log = _get_log_name(worker, self._session, self.name)
        worker.streams[self.name] = self
        await self._exchange.open_stream()
        if self._session.peer.revision.priming:
            await _send_priming_event(self._exchange, f"{self.name}.0")
        for answer in self.answers:
            await self.send(answer)

    async def _send(self, kind: bytes, data: bytes) -> None:
        await self._open()
        if not self.is_open:
            return  # the client has gone before it knew that there is a stream
        number = await self._append(kind + data)
        if self.has_left or kind == _END or self._exchange.is_disconnected:
            self.has_left = self.has_left or self._exchange.is_disconnected
            return
        try:
            await self._exchange.send_event(data, kind="message", id=f"{self.name}.{number}")
        except ClientDisconnected:
            self.has_left = True

    async def _append(self, entry: bytes) -> int:
        self._number = number = self._number + 1
        await self._worker.store.logs.append(self._log, entry, RUNNING_RETENTION, number=number)
        for worker in self.watchers:
            self._worker.nudge(worker, self.name)
        return number


def _get_log_name(worker: "Worker", session: Session, stream: str) -> str:
    return f"stream/{worker.sessions.get_key(session)}/{stream}"


async def _send_priming_event(exchange: HttpExchange, event_id: str) -> None:
    """Send an event with an id and a delay only, to resume from (HTTPL-3, HTTPL-5)."""
    await exchange.send_event(b"", id=event_id, retry=RETRY_MILLISECONDS)


# --------------------------------------------------------------------- resuming


async def resume_stream(worker: "Worker", exchange: HttpExchange, session: Session, event_id: str) -> None:
    """Send the rest of a stream after this event; an earlier connection that resumed it is ended."""
    resumed = _ResumedStream(worker, exchange, session, event_id)
    entries = await resumed.read()
    await exchange.open_stream()
    if session.peer.revision.priming:
        await _send_priming_event(exchange, event_id)
    before = worker.resumed.get(resumed.log)
    worker.resumed[resumed.log] = exchange
    if before is not None:
        before.abort()
    session.resumed_count += 1
    try:
        await exchange.run_while_connected(resumed.relay(entries), session.touch)
        await exchange.end_stream()
    finally:
        session.resumed_count -= 1
        if worker.resumed.get(resumed.log) is exchange:
            del worker.resumed[resumed.log]


class _ResumedStream:
    """A stream that a client continues by GET."""

    def __init__(self, worker: "Worker", exchange: HttpExchange, session: Session, event_id: str) -> None:
        self._worker = worker
        self._exchange = exchange
        self._event_id = event_id
        self._is_complete = False
        self._name, _, number = event_id.rpartition(".")
        parts = self._name.split("-")
        try:
            self._at = int(number)
            self._writer = int(parts[0], 16)
            self._request_id: RequestId | None = _REQUEST_ID(bytes.fromhex(parts[2])) if parts[2] else None
        except (ValueError, IndexError, InvalidJSONValue):
            raise self._refuse() from None
        self.log = _get_log_name(worker, session, self._name)

    async def read(self) -> list[LogEntry]:
        """Return what has come since. Raises HTTPRefusal if the stream cannot be resumed any more."""
        logs = self._worker.store.logs
        try:
            entries = await logs.read(self.log, max(0, self._at - 1))
        except LogGap:
            if self._at == 0 and (self._is_local or await self._watch_remote()):
                return []  # nothing was sent yet
            raise self._refuse() from None
        if entries and entries[-1].number == self._at and entries[-1].data[:1] in {_LAST, _END}:
            self._is_complete = True
        return [entry for entry in entries if entry.number > self._at]

    def _refuse(self) -> HTTPRefusal:
        shown = headers.quote_value(self._event_id)
        return HTTPRefusal(400, f"The stream of event {shown} cannot be resumed any more.")

    async def relay(self, entries: list[LogEntry]) -> None:
        """Send all events until the last one, as they come."""
        is_first = is_alive = True
        has_news = False  # whether it is known already that the writer is alive, and reports new events
        while not self._is_complete:
            for entry in entries:
                if await self._send(entry, can_interrupt=not is_first):
                    return
            is_first = False
            if not is_alive:
                await self._send_dead_worker()
                return
            nudge = self._worker.expect_nudge(self._name)
            try:
                is_alive = has_news or self._watch_local() or await self._watch_remote()
                entries = await self._read_more()
                if not entries and is_alive:
                    await asyncio.wait([nudge], timeout=POLL_INTERVAL)
                    entries = await self._read_more()
                has_news = is_alive and nudge.done()
            finally:
                self._worker.forget_nudge(self._name, nudge)

    async def _read_more(self) -> list[LogEntry]:
        try:
            return await self._worker.store.logs.read(self.log, self._at)
        except LogGap:
            return []

    async def _send(self, entry: LogEntry, *, can_interrupt: bool) -> bool:
        """Send one entry; return whether the response ends with it."""
        self._at = entry.number
        kind, data = entry.data[:1], entry.data[1:]
        if kind == _INTERRUPTED:
            return can_interrupt  # else the client has come back already
        if kind == _END:
            return True
        await self._exchange.send_event(data, kind="message", id=f"{self._name}.{entry.number}")
        if kind == _LAST:
            await self._worker.store.logs.touch(self.log, DELIVERED_RETENTION)
        return kind == _LAST

    @property
    def _is_local(self) -> bool:
        return self._name in self._worker.streams

    def _watch_local(self) -> bool:
        stream = self._worker.streams.get(self._name)
        if stream is not None:
            stream.watchers |= {self._worker.number}
        return stream is not None

    async def _watch_remote(self) -> bool:
        """Ask the worker that writes the stream to report new events; return whether it is alive."""
        if self._writer == self._worker.number:
            return False
        return await self._worker.send(self._writer, "watch", self._name)

    async def _send_dead_worker(self) -> None:
        if self._request_id is not None:
            error = jsonrpc.encode_error(self._request_id, InternalError(_DEAD_WORKER_TEXT))
            await self._exchange.send_event(error, kind="message")


# --------------------------------------------------------------------- the general stream


class GeneralStream:
    """The stream of a session for messages that belong to no request. A session has one reader at a time."""

    def __init__(
        self, worker: "Worker", exchange: HttpExchange, session: Session, server: "Handler", lifespan: Any
    ) -> None:
        self._worker = worker
        self._exchange = exchange
        self._session = session
        self._server = server
        self._lifespan = lifespan
        self._reply = HttpReply(worker, worker.connect(server, session), exchange, session, self)
        self._log = _get_log_name(worker, session, GENERAL)
        self._lease = b"%d.%d" % (worker.number, worker.next_number())
        self._broadcaster = server.broadcaster
        self._seen = self._broadcaster.position
        self._number = 0
        self._wakeup = asyncio.Event()

    async def run(self, last_event_id: str | None) -> None:
        """Send messages until the client goes, or another connection takes the stream over."""
        worker, session, exchange = self._worker, self._session, self._exchange
        records, key = worker.store.records, _get_reader_key(worker, session)
        missed: list[KeptChange] | None = []
        if last_event_id is None:
            if not await records.swap(key, None, self._lease, LEASE_TTL):
                raise HTTPRefusal(
                    409, "This session has a stream open already; a second one would hear nothing."
                )
            if session.changes_seen is not None:
                self._seen = session.changes_seen
            self._number = int(await records.get(f"{key}/position") or 0)
        else:
            await records.put(key, self._lease, LEASE_TTL)
            await worker.announce("taken", worker.sessions.get_key(session), self._lease)
            self._parse_event_id(last_event_id)
        missed = self._broadcaster.get_changes_after(self._seen)
        if session.reader is not None:
            session.reader.stop()
        session.reader = self
        self._broadcaster.add_subscriber(self)
        try:
            await exchange.open_stream()
            if session.peer.revision.priming:
                await _send_priming_event(exchange, self._event_id)
            exchange.release_headers()
            if missed is None:
                await self._resync()
            await exchange.run_while_connected(self._relay(), self._renew_lease)
            await exchange.end_stream()
        finally:
            self._broadcaster.remove_subscriber(self)
            if session.reader is self:
                session.reader = None
                session.changes_seen = self._seen
            await records.swap(key, self._lease, None, None)

    def stop(self, lease: bytes = b"") -> None:
        """End the response, unless it holds this lease: another connection reads the stream now."""
        if lease != self._lease:
            self._exchange.abort()

    @property
    def _event_id(self) -> str:
        if self._seen < 0:
            return f"{GENERAL}."  # the position is not known yet
        return f"{GENERAL}.{self._worker.number:x}-{self._seen}.{self._number}"

    def _parse_event_id(self, event_id: str) -> None:
        """Continue after an event; if its position is unknown here, all that may have changed is sent."""
        _, _, position = event_id.partition(".")
        changes, _, number = position.partition(".")
        writer, _, seen = changes.partition("-")
        is_ours = writer == f"{self._worker.number:x}" and seen.isdecimal() and len(seen) < 20
        self._seen = int(seen) if is_ours else -1
        self._number = int(number) if number.isdecimal() and len(number) < 20 else 0

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Wake the relay, which reads the change."""
        del method, params
        self._wakeup.set()

    def wake(self) -> None:
        """Look for a message for this client alone."""
        self._wakeup.set()

    async def _relay(self) -> None:
        while True:
            self._wakeup.clear()
            await self._worker.sessions.ensure_fresh(self._session)
            for change in self._broadcaster.get_changes_after(self._seen) or ():
                await self._send_change(change.method, change.params, change.number)
            entries = await self._read_own()
            for entry in entries:
                self._number = entry.number
                await self._exchange.send_event(entry.data, kind="message", id=self._event_id)
            if entries:
                key = f"{_get_reader_key(self._worker, self._session)}/position"
                await self._worker.store.records.put(key, b"%d" % self._number, STREAM_RETENTION)
            await self._wakeup.wait()

    async def _read_own(self) -> list[LogEntry]:
        logs = self._worker.store.logs
        try:
            return await logs.read(self._log, self._number)
        except LogGap:
            try:
                return await logs.read(self._log) if self._number else []
            except LogGap:
                return []

    async def _send_change(self, method: str, params: NotificationParams, number: int) -> None:
        """Send a change, if this client wants it."""
        self._seen = self._session.changes_seen = number
        settings = self._session.settings
        if isinstance(params, ResourceUpdatedParams) and params.uri not in settings.uris:
            return
        if isinstance(params, ElicitationCompleteParams):
            if params.elicitation_id not in settings.url_elicitations:
                return  # another client's (ELIC-16), or sent before
            await self._worker.sessions.remove_url_elicitation(self._session, params.elicitation_id)
        context = Context(
            self._server, self._reply, method, lifespan=self._lifespan, principal=self._exchange.principal
        )
        with contextlib.suppress(CapabilityNotDeclared):  # the client was not told that there is such a list
            await context.send_notification(method, params)

    async def _resync(self) -> None:
        """Report all that may have changed while the client was away."""
        self._seen = self._broadcaster.position
        for method in LIST_CHANGED.values():
            await self._send_change(method, NotificationParams(), self._seen)
        for uri in self._session.settings.uris:
            await self._send_change(RESOURCES_UPDATED, ResourceUpdatedParams(uri=uri), self._seen)

    async def _renew_lease(self) -> None:
        """Keep the session and the lease; stop if another reader has taken that."""
        await self._session.touch()
        key = _get_reader_key(self._worker, self._session)
        if not await self._worker.store.records.swap(key, self._lease, self._lease, LEASE_TTL):
            self._exchange.abort()

    async def send(self, data: bytes) -> None:
        """Send a message on this stream."""
        await self._exchange.send_event(data, kind="message", id=self._event_id)


def _get_reader_key(worker: "Worker", session: Session) -> str:
    """Return the key of the lease of a general stream."""
    return f"reader/{worker.sessions.get_key(session)}"


async def send_general(worker: "Worker", session: Session, data: bytes, *, is_request: bool = False) -> None:
    """Send a message on the general stream, or keep it there for a while.

    Raises LocalProtocolError if it is a request, and no client reads the stream.
    """
    lease = await worker.store.records.get(_get_reader_key(worker, session))
    if lease is None and is_request:
        raise LocalProtocolError(
            "the client cannot be asked: it does not listen, and no request of its own is being served",
            hint="ask while you serve a request, through its own context",
        )
    await worker.store.logs.append(_get_log_name(worker, session, GENERAL), data, STREAM_RETENTION)
    if session.reader is not None:
        session.reader.wake()
    elif lease is not None:
        await worker.send(int(lease.partition(b".")[0]), "general", worker.sessions.get_key(session))
