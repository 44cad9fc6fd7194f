"""Event streams of sessions: that of a POST, which a client may resume by GET, and the general one.

Events of a POST go to a log, too, so that any worker can continue its stream. The id of an event names the
worker, the stream, the request and the position. A stream that is read by GET has one reader on all workers:
the latest (HTTPL-18 … HTTPL-21).
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, cast

from toolpost.errors import CapabilityNotDeclared, InternalError, LocalProtocolError, StoreUnavailable
from toolpost.protocol import headers, jsonrpc, sse
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import RESOURCES_UPDATED, SERVER
from toolpost.server.http.exchange import ClientDisconnected, HttpExchange, HTTPRefusal
from toolpost.server.http.sessions import Session
from toolpost.server.runtime.change_broadcast import LIST_CHANGED
from toolpost.stores.store import LogEntry, LogGap
from toolpost.types.base import RequestId
from toolpost.types.notifications import ElicitationCompleteParams, NotificationParams, ResourceUpdatedParams

if TYPE_CHECKING:
    from toolpost.server.http.worker import Worker

logger: Final = logging.getLogger("toolpost.http")

RETRY_MILLISECONDS: Final = 1000  # after which a client reconnects to a stream that we have interrupted
RUNNING_RETENTION: Final = 3600.0  # seconds to keep the log of a stream while its request is served
STREAM_RETENTION: Final = 300.0  # seconds for which a stream can be resumed after its last event
DELIVERED_RETENTION: Final = 10.0  # seconds to keep a stream after its answer: the last bytes may be lost
MIN_READ_RATE: Final = 16 * 1024  # bytes per second: a client may still read its answer in that time
MAX_NAMED_ID: Final = 64  # bytes of a request id that the name of its stream carries

MESSAGE_MARK, LAST_MARK, INTERRUPTED_MARK, END_MARK = b"!", b".", b"~", b"-"
"""First byte of a log entry: a message, the last message, the client must reconnect, no response follows."""
LEASE_TTL: Final = 45.0  # seconds until the lease of a silent reader ends: three times KEEP_ALIVE_INTERVAL
POLL_INTERVAL: Final = 2.0  # seconds after which a stream of another worker is read again without a message
GENERAL: Final = "0"  # the name of the general stream, for messages that belong to no request
REQUEST_ID: Final[JSONReader[RequestId]] = JSONReader(cast("type[RequestId]", RequestId))
_DEAD_WORKER_TEXT: Final = (
    "The worker that served this call died, or its store was emptied; the call may or may not have run."
)


def get_log_name(session: Session, stream: str = GENERAL) -> str:
    """Return the log of an event stream."""
    return f"stream/{session.key}/{stream}"


def encode_priming_event(session: Session, event_id: str) -> bytes:
    """Return an event with an id and a delay only, to resume from, if the revision has it (HTTPL-3)."""
    has_one = session.peer.revision.priming
    return sse.encode_event(b"", id=event_id, retry=RETRY_MILLISECONDS) if has_one else b""


# --------------------------------------------------------------------- written by a POST


class SessionStream:
    """The event stream of one POST in a session. It opens with its first event."""

    is_open = False
    has_left = False
    """Whether the client has disconnected, on its own or on our request; it may reconnect by GET."""
    answers: tuple[bytes, ...] = ()
    """The answers of a batch that are there before the stream opens."""
    watcher = 0
    """The worker to which the client has reconnected."""
    has_log = True
    """Whether the client can resume it."""
    _name = b""
    log = ""
    _number = 0
    _priming = b""  # the priming event, until it is sent with the first event

    def __init__(
        self, worker: "Worker", session: Session, exchange: HttpExchange, request_id: RequestId
    ) -> None:
        self.worker = worker
        self.exchange = exchange
        self.session = session
        self._request_id = request_id

    async def add_answer(self, data: bytes) -> None:
        """Send the answer to one request of a batch, or keep it until the stream opens."""
        if self.is_open:
            await self.send(data)
        else:
            self.answers += (data,)

    async def end(self, data: bytes | None) -> None:
        """Send the last answer, if there is one, and end the stream."""
        data, mark = (b"", END_MARK) if data is None else (data, LAST_MARK)
        await self.send(data, mark)
        self.worker.streams.pop(self.log, None)
        if self.has_log:
            retention = DELIVERED_RETENTION + len(data) / MIN_READ_RATE
            try:
                await self._logs.touch(self.log, STREAM_RETENTION if self.has_left else retention)
            except Exception as error:  # noqa: BLE001 - a store may fail in any way
                self.lose_log(error)

    async def interrupt(self) -> None:
        """Make the client reconnect for the rest, if its revision allows it."""
        if self.session.peer.revision.priming:
            await self.send(b"", INTERRUPTED_MARK)
            self.has_left = True

    async def _open(self) -> None:
        self.is_open = True
        worker, encoded = self.worker, jsonrpc.encode(self._request_id)
        named = encoded.hex() if len(encoded) <= MAX_NAMED_ID else ""
        name = f"{worker.number:x}-{worker.next_number():x}-{named}"
        self._name = name.encode()
        self.log = get_log_name(self.session, name)
        self._logs = worker.handler.store.logs
        worker.streams[self.log] = self
        await self.exchange.open_stream()
        self._priming = encode_priming_event(self.session, f"{name}.0")
        for answer in self.answers:
            await self.send(answer)

    async def send(self, data: bytes, mark: bytes = MESSAGE_MARK) -> None:
        """Write a message to the log, and send it: the first one opens the stream, some marks end it."""
        exchange = self.exchange
        if not self.is_open:
            if exchange.is_disconnected:
                return  # before the client knew of the stream
            await self._open()
        self._number = number = self._number + 1
        if self.has_log:
            try:
                await self._logs.append(self.log, mark + data, RUNNING_RETENTION, number=number)
            except Exception as error:  # noqa: BLE001 - a store may fail in any way
                self.lose_log(error)
        if self.watcher:
            self.worker.wake_reader(self.watcher, self.log)
        if self.has_left or exchange.is_disconnected:
            self.has_left = True
            return
        event = sse.encode_message(data, self._name, number) if data else b""
        if self._priming:
            event, self._priming = self._priming + event, b""
        try:
            await exchange.send_chunk(event, is_last=mark != MESSAGE_MARK)
        except ClientDisconnected:
            self.has_left = True

    @property
    def is_lost(self) -> bool:
        """Whether the client can read no further event."""
        return self.exchange.is_disconnected and not (self.is_open and self.has_log)

    async def check_log(self) -> None:
        """Find out whether the store has lost the log."""
        if self.has_log and not await self._logs.touch(self.log, RUNNING_RETENTION):
            self.lose_log(StoreUnavailable("the store has lost it"))

    def lose_log(self, error: Exception) -> None:
        """Continue without a log: the store failed, so the stream cannot be resumed."""
        self.has_log = False
        self.worker.end_reading(self)
        if not isinstance(error, StoreUnavailable):  # which the store has logged
            logger.error("an event stream can no longer be resumed: the store failed", exc_info=error)


# --------------------------------------------------------------------- read by GET


class StreamReader:
    """A client that reads a stream by GET. Subclasses send the events, in `_relay`."""

    def __init__(self, worker: "Worker", exchange: HttpExchange, session: Session, name: str) -> None:
        self._worker = worker
        self._exchange = exchange
        self._session = session
        self._log = get_log_name(session, name)
        self._lease = b"%d.%d" % (worker.number, worker.next_number())
        self._has_taken = False  # whether our own message has arrived; the next is from a later reader
        self._is_over = False  # whether the worker that wrote the stream has stopped writing
        self.wakeup = asyncio.Event()  # set when there may be new events

    async def _send_all(self, event_id: str) -> None:
        """Send events, the first one with this id, until a disconnect or a new reader ends it."""
        worker, session, exchange = self._worker, self._session, self._exchange
        await exchange.open_stream()
        if session.peer.revision.priming:
            await exchange.send_chunk(encode_priming_event(session, event_id))
        exchange.release_headers()
        before = worker.readers.get(self._log)
        worker.readers[self._log] = self
        session.reader_count += 1
        if before is not None:
            before.stop()
        try:
            exchange.pulse = self._keep_alive
            with exchange:
                await self._relay()
            await exchange.end_stream()
        finally:
            session.reader_count -= 1
            if worker.readers.get(self._log) is self:
                del worker.readers[self._log]

    async def _relay(self) -> None:
        """Relay events until the response ends. Each kind of stream implements it."""
        raise NotImplementedError

    async def _keep_alive(self) -> None:
        await self._session.touch()

    def on_taken(self, lease: bytes) -> None:
        """Stop for a later reader: one whose message arrives after ours. The order is the same everywhere."""
        if lease == self._lease:
            self._has_taken = True
        elif self._has_taken:
            self.stop()

    def stop(self) -> None:
        """End the response."""
        self._exchange.abort()

    def on_over(self) -> None:
        """Look for the last events: the worker that wrote the stream has stopped writing."""
        self._is_over = True
        self.wakeup.set()


class ResumedStream(StreamReader):
    """The rest of the stream of a POST, after an event that the client has."""

    def __init__(self, worker: "Worker", exchange: HttpExchange, session: Session, event_id: str) -> None:
        self._event_id = event_id
        self._is_complete = False
        self._entries: list[LogEntry] = []
        self._name, _, number = event_id.rpartition(".")
        parts = self._name.split("-")
        try:
            self._at = int(number)
            self._writer = int(parts[0], 16)
            self._request_id: RequestId | None = REQUEST_ID(bytes.fromhex(parts[2])) if parts[2] else None
        except (ValueError, IndexError, InvalidJSONValue):
            raise self._refuse() from None
        super().__init__(worker, exchange, session, self._name)

    def _refuse(self) -> HTTPRefusal:
        shown = headers.quote_value(self._event_id)
        return HTTPRefusal(400, f"The stream of event {shown} can no longer be resumed.")

    async def run(self) -> None:
        """Send the events. Raises HTTPRefusal if the stream can no longer be resumed."""
        try:
            entries = await self._worker.handler.store.logs.read(self._log, max(0, self._at - 1))
        except LogGap:
            if self._at or not await self._watch():
                raise self._refuse() from None
            entries = []  # nothing was sent yet
        if entries and entries[0].number == self._at and entries[0].data[:1] in {LAST_MARK, END_MARK}:
            self._is_complete = True
        self._entries = [entry for entry in entries if entry.number > self._at]
        await self._send_all(self._event_id)

    async def _relay(self) -> None:
        """Send all events as they arrive, up to the last one."""
        await self._worker.announce("taken", self._log, self._lease)  # ends an earlier reader
        entries, is_first, is_alive = self._entries, True, True
        has_news = False  # whether the writer is known to be alive and to report new events
        while not self._is_complete:
            for entry in entries:
                if await self._send(entry, can_interrupt=not is_first):
                    return
            is_first = False
            if not is_alive:
                await self._end_for_writer()
                return
            self.wakeup.clear()
            is_alive = not self._is_over and (has_news or await self._watch())
            entries = await self._read_more()
            if not entries and is_alive:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL):
                        await self.wakeup.wait()
                entries = await self._read_more()
            has_news = is_alive and self.wakeup.is_set()

    async def _end_for_writer(self) -> None:
        """End the stream of a dead worker. If the worker was only paused, its later events are ignored."""
        data, mark = b"", END_MARK
        if self._request_id is not None:
            error = InternalError(_DEAD_WORKER_TEXT)
            data, mark = jsonrpc.encode_error(self._request_id, error), LAST_MARK
        logs = self._worker.handler.store.logs
        number = await logs.append(self._log, mark + data, STREAM_RETENTION)
        number = max(number, self._at + 1)  # the log may lack the last events that the client has
        await self._send(LogEntry(number, mark + data), can_interrupt=False)

    async def _watch(self) -> bool:
        """Let the worker that writes the stream report new events; return whether it still writes."""
        worker = self._worker
        if self._writer == worker.number:
            return worker.watch_stream(self._log, worker.number)
        return await worker.send(self._writer, "watch", self._log)

    async def _read_more(self) -> list[LogEntry]:
        """Return new entries. A client that reads slowly loses the oldest, but gets its answer."""
        logs = self._worker.handler.store.logs
        try:
            return await logs.read(self._log, self._at)
        except LogGap as gap:
            return [] if gap.kept_after is None else await logs.read(self._log, gap.kept_after)

    async def _send(self, entry: LogEntry, *, can_interrupt: bool) -> bool:
        """Send one entry; return whether the response ends with it."""
        self._at = entry.number
        kind, data = entry.data[:1], entry.data[1:]
        if kind == INTERRUPTED_MARK:
            return can_interrupt  # else the client has already reconnected
        if kind == END_MARK:
            return True
        await self._exchange.send_event(data, kind="message", id=f"{self._name}.{entry.number}")
        if kind == LAST_MARK:
            await self._worker.handler.store.logs.touch(self._log, DELIVERED_RETENTION)
        return kind == LAST_MARK


class GeneralStream(StreamReader):
    """The stream of a session for messages that belong to no request."""

    def __init__(self, worker: "Worker", exchange: HttpExchange, session: Session) -> None:
        super().__init__(worker, exchange, session, GENERAL)
        self._broadcaster = worker.get_server(session)[0].broadcaster
        self._seen = self._broadcaster.position
        self._number = 0
        self._records = worker.handler.store.records
        self._key = f"reader/{session.key}"

    async def run(self, last_event_id: str | None) -> None:
        """Send messages until the client disconnects, or another connection takes the stream over."""
        if last_event_id is not None:
            await self._records.put(self._key, self._lease, LEASE_TTL)
            self._parse_event_id(last_event_id)
        elif await self._take_lease():
            self._has_taken = True
            if self._session.changes_seen is not None:
                self._seen = self._session.changes_seen
            self._number = int(await self._records.get(f"{self._key}/position") or 0)
        else:
            raise HTTPRefusal(409, "This session already has an open stream.")
        self._broadcaster.add_subscriber(self)
        try:
            await self._send_all(self._event_id)
        finally:
            self._broadcaster.remove_subscriber(self)
            await self._records.swap(self._key, self._lease, None, None)

    async def _take_lease(self) -> bool:
        """Take the lease, unless a reader on a live worker holds it."""
        if await self._records.swap(self._key, None, self._lease, LEASE_TTL):
            return True
        found, worker = await self._records.get(self._key), self._worker
        if found is not None and await worker.send(int(found.partition(b".")[0]), "wake", self._log):
            return False
        return await self._records.swap(self._key, found, self._lease, LEASE_TTL)

    @property
    def _event_id(self) -> str:
        if self._seen < 0:
            return f"{GENERAL}."  # the position is not known yet
        return f"{GENERAL}.{self._worker.number:x}-{self._seen}.{self._number}"

    def _parse_event_id(self, event_id: str) -> None:
        """Continue after an event; if its position is unknown here, send everything that may have changed."""
        _, _, position = event_id.partition(".")
        changes, _, number = position.partition(".")
        writer, _, seen = changes.partition("-")
        is_ours = writer == f"{self._worker.number:x}" and seen.isdecimal() and len(seen) < 20
        self._seen = int(seen) if is_ours else -1
        self._number = int(number) if number.isdecimal() and len(number) < 20 else 0

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Wake the relay, which reads the change."""
        del method, params
        self.wakeup.set()

    async def _relay(self) -> None:
        if not self._has_taken:
            await self._worker.announce("taken", self._log, self._lease)  # ends an earlier reader
        if self._broadcaster.get_changes_after(self._seen) is None:
            await self._resync()
        self._session.changes_seen = self._seen
        while True:
            self.wakeup.clear()
            await self._worker.sessions.ensure_fresh(self._session)
            for change in self._broadcaster.get_changes_after(self._seen) or ():
                await self._send_change(change.method, change.params, change.number)
            try:
                await self._send_own()
            except StoreUnavailable:
                self._worker.loop.call_later(POLL_INTERVAL, self.wakeup.set)
            await self.wakeup.wait()

    async def _send_own(self) -> None:
        """Send the messages for this client alone."""
        entries = await self._read_own()
        for entry in entries:
            self._number = entry.number
            await self.send(entry.data)
        if entries:
            await self._records.put(f"{self._key}/position", b"%d" % self._number, STREAM_RETENTION)

    async def _read_own(self) -> list[LogEntry]:
        logs = self._worker.handler.store.logs
        try:
            return await logs.read(self._log, self._number)
        except LogGap as gap:
            if gap.kept_after is None and not self._number:
                return []  # nothing was sent yet
            try:
                return await logs.read(self._log, gap.kept_after or 0)
            except LogGap:
                return []

    async def _send_change(self, method: str, params: NotificationParams, number: int) -> None:
        """Send a change, if this client wants it."""
        self._seen = self._session.changes_seen = number
        settings = self._session.settings
        if method not in self._session.peer.revision.notifications[SERVER]:
            return  # of an extension
        if isinstance(params, ResourceUpdatedParams) and params.uri not in settings.uris:
            return
        if isinstance(params, ElicitationCompleteParams):
            if params.elicitation_id not in settings.url_elicitations:
                return  # another client's (ELIC-16), or sent before
            sessions, elicitation_id = self._worker.sessions, params.elicitation_id
            await sessions.set_url_elicitation(self._session, elicitation_id, is_pending=False)
        context = self._worker.make_context(self._session, method, self._exchange, self)
        with contextlib.suppress(CapabilityNotDeclared):  # we did not declare the list to the client
            await context.send_notification(method, params)

    async def _resync(self) -> None:
        """Report everything that may have changed while the client was disconnected."""
        self._seen = self._broadcaster.position
        for method in LIST_CHANGED.values():
            await self._send_change(method, NotificationParams(), self._seen)
        for uri in self._session.settings.uris:
            await self._send_change(RESOURCES_UPDATED, ResourceUpdatedParams(uri=uri), self._seen)

    async def _keep_alive(self) -> None:
        """Keep the session and the lease alive; stop if another reader has taken the lease."""
        await super()._keep_alive()
        if not await self._records.swap(self._key, self._lease, self._lease, LEASE_TTL):
            self.stop()

    async def send(self, data: bytes) -> None:
        """Send a message on this stream."""
        await self._exchange.send_event(data, kind="message", id=self._event_id)


async def send_general(worker: "Worker", session: Session, data: bytes, *, is_request: bool = False) -> None:
    """Send a message on the general stream, or keep it there for a while.

    Raises LocalProtocolError if it is a request, and no client reads the stream.
    """
    lease = await worker.handler.store.records.get(f"reader/{session.key}")
    if lease is None and is_request:
        raise LocalProtocolError(
            "cannot send a request to the client: it has no open stream and no request in progress",
            hint="send it while handling a request, through the context of that request",
        )
    log = get_log_name(session)
    await worker.handler.store.logs.append(log, data, STREAM_RETENTION)
    if lease is not None:
        worker.wake_reader(int(lease.partition(b".")[0]), log)
