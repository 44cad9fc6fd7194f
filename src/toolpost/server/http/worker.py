"""`Worker`: an endpoint in one event loop, from its first request to its last.

Holds the requests and streams in flight and counts them, exchanges messages with other workers, and ends
everything in order. `post` and `streams` serve the requests.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from itertools import count
from math import inf
from typing import Any, Final, TypeVar, cast

import msgspec

from toolpost.errors import InternalError, RPCError, StoreUnavailable
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.jsonrpc import JSONReader, JSONRPCErrorResponse, JSONRPCMessage, JSONRPCResponse
from toolpost.protocol.methods import INITIALIZE, RESOURCES_UNSUBSCRIBE
from toolpost.server.context import Context
from toolpost.server.handler import Handler
from toolpost.server.http.authorization import Authenticator
from toolpost.server.http.disconnect_timer import DisconnectTimer
from toolpost.server.http.exchange import HttpExchange, HTTPRefusal
from toolpost.server.http.reply import HttpReply
from toolpost.server.http.sessions import Session, Sessions, has_sessions
from toolpost.server.http.sse_transport import SseServerChannel, receive_post
from toolpost.server.http.streams import REQUEST_ID, GeneralStream, SessionStream, StreamReader, get_log_name
from toolpost.server.options import HttpOptions
from toolpost.server.runtime.change_broadcast import LIST_CHANGED, ChangeKey, make_change_key
from toolpost.token_bucket import WarningThrottle
from toolpost.types.base import JSON, RequestId, Struct
from toolpost.types.notifications import NotificationParams

T = TypeVar("T")

logger: Final = logging.getLogger("toolpost.http")

ABORT_TIMEOUT: Final = 1.0  # seconds for an aborted request to end before it is cancelled
CANCEL_TIMEOUT: Final = 2.0  # seconds for cancelled calls to end
MIN_STREAM_LIFETIME: Final = 30.0  # seconds for which a stream stays open, however soon its token expires
MESSAGE_TIMEOUT: Final = 10.0  # seconds for which a message waits for a store that is unavailable
MESSAGE_RETRY_INTERVAL: Final = 0.25  # seconds between two attempts
SWEEP_INTERVAL: Final = 5.0  # seconds between two checks for idle sessions that hold resources
EARLY_CANCELLATION_TTL: Final = 5.0  # seconds for which a request may arrive after its cancellation
MAX_SUBSCRIPTIONS: Final = 64  # subscriptions of one principal, which may have many clients
MAX_EARLY_CANCELLATIONS: Final = 1024  # cancellations of all sessions whose requests may be on their way
MAX_RECENT_MESSAGES: Final = 1024  # messages from workers that are remembered, to ignore repeated ones


class _WorkerMessage(Struct, array_like=True, omit_defaults=True):
    """A message between workers; `about` is the key of a session or the log of a stream."""

    kind: str
    about: str
    sender: int = 0
    data: bytes = b""
    number: int = 0
    """Unique among those of its sender: a message may arrive twice."""


_FOR_ALL: Final = frozenset({"broadcast", "taken"})  # messages that their sender receives, too
_MESSAGE_DECODER: Final = msgspec.msgpack.Decoder(_WorkerMessage)
_MESSAGE_ENCODER: Final = msgspec.msgpack.Encoder()
_BROADCAST: Final[JSONReader[tuple[str, JSON]]] = JSONReader(cast("Any", tuple[str, Any]))
_CHANGE_KEY: Final = JSONReader(ChangeKey)


class RequestCounts:
    """Counts the `calls` and the open `streams` in flight.

    `limit` is how many calls one peer may have. A peer is a principal, an address or a session.
    """

    def __init__(self, limit: int, max_calls: int, max_streams: int) -> None:
        self.limit = limit
        self.max_calls = max_calls
        self.max_streams = max_streams
        self.calls = self.streams = 0
        self._peers: dict[str, int] = {}
        self._listens: dict[str, int] = {}

    def begin(self, peer: str) -> str | None:
        """Count a call; return the reason if its peer has too many. Raises HTTPRefusal if the server has."""
        running = self._peers.get(peer, 0)
        if running >= self.limit:
            return f"Too many requests in flight: the limit is {self.limit} per client (max_in_flight=)"
        if self.calls >= self.max_calls:
            text = f"Server busy: the limit is {self.max_calls} concurrent requests (max_calls=)."
            raise HTTPRefusal(503, text)
        self._peers[peer] = running + 1
        self.calls += 1
        return None

    def end(self, peer: str) -> None:
        """Note that a call of a peer has ended."""
        self.calls -= 1
        left = self._peers[peer] - 1
        if left:
            self._peers[peer] = left
        else:
            del self._peers[peer]

    def open_stream(self) -> None:
        """Count a stream. Raises HTTPRefusal if too many are open."""
        if self.streams >= self.max_streams:
            text = f"Too many open streams: the limit is {self.max_streams} (max_streams=). Try again later."
            raise HTTPRefusal(503, text)
        self.streams += 1

    def open_subscription(self, peer: str, most: int) -> str | None:
        """Count a subscription of a peer, which is a stream; return the reason if it has too many."""
        running = self._listens.get(peer, 0)
        if running >= most and self.streams < self.max_streams:
            return f"Too many subscriptions: the limit is {most}"
        self.open_stream()
        self._listens[peer] = running + 1
        return None

    def close_subscription(self, peer: str) -> None:
        """Note that a subscription of a peer has ended."""
        self.streams -= 1
        self._listens[peer] -= 1
        if not self._listens[peer]:
            del self._listens[peer]


class Worker:
    """The state of an endpoint in one event loop.

    `running` are requests with their tasks, `listening` streams for notifications, `conversations` those of
    HTTP+SSE. It `is_open` once the lifespan has started; then it `is_draining`: it serves on and closes
    connections; at last it `is_over`, and refuses all. One task enters and leaves the lifespan, as some
    contexts require.
    """

    def __init__(self, handler: Handler, options: HttpOptions, authenticator: Authenticator | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.options = options
        self.authenticator = authenticator
        self.needs_scopes = authenticator is not None or options.principal is not None
        self.has_sessions = has_sessions(handler, options)
        self.lifespan: Any = None
        self.number = 0
        self.timer = DisconnectTimer(self.loop)
        self.counts = RequestCounts(handler.max_in_flight, options.max_calls, options.max_streams)
        self.sessions = Sessions(handler, options, self.announce, self._release_session)
        self.running: dict[HttpExchange, asyncio.Task[Any]] = {}
        self.listening: set[HttpExchange] = set()
        self.conversations: dict[str, SseServerChannel] = {}
        self.streams: dict[str, SessionStream] = {}
        self.readers: dict[str, StreamReader] = {}
        self.is_draining = self.is_over = self.is_open = False
        self.start_count = 0
        self.warnings = WarningThrottle()
        self.questions: dict[int, HttpReply] = {}
        """The requests to clients that wait for an answer, by id. The id names this worker."""
        self.receipts: dict[str, Callable[[bytes], object]] = {}
        """Called with another worker's report on whether it took an HTTP+SSE message; empty means no."""
        self._early_cancellations: dict[tuple[str, RequestId], float] = {}
        self._recent_messages: dict[tuple[int, int], None] = {}
        self._background: set[asyncio.Task[Any]] = set()
        # At random, so that no number of an earlier worker is reused.
        self.next_number = count(secrets.randbits(24)).__next__
        self._receivers: dict[str, Callable[[_WorkerMessage], object]] = {
            "broadcast": self._on_broadcast,
            "answer": lambda message: self._resolve(message.about, jsonrpc.decode(message.data)),
            "cancel": lambda message: self.cancel_request(message.about, REQUEST_ID(message.data)),
            "change": self._on_change_elsewhere,
            "changed": self._on_changed,
            "over": self._on_over,
            "post": lambda message: receive_post(self, message.sender, message.about, message.data),
            "posted": lambda message: self.receipts.get(message.about, bool)(message.data),
            "taken": self._on_taken,
            "wake": lambda message: self.wake_reader(self.number, message.about),
            "watch": self._on_watch,
        }
        self.ready: asyncio.Future[None] = self.loop.create_future()
        """Done when the lifespan of the server has started."""
        self._stop_requested = asyncio.Event()
        self._task = self.loop.create_task(self._run())

    def connect(self, session: Session | None = None, peer: Peer | None = None) -> Connection:
        """Return a connection for one message, to the client of a session if it belongs to one."""
        server = self.handler if session is None or session.server is None else session.server[0]
        peer = peer if session is None else session.peer
        connection = Connection(server.local_peer, peer=peer, limit=server.max_in_flight)
        if session is not None:
            connection.log_level = session.settings.log_level
        return connection

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
        """Run a coroutine in a task that ends with the worker, and log its exceptions."""
        task = self.loop.create_task(run_logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda _: work.close())  # if it was cancelled before it started
        return task

    # ----------------------------------------------------------------- lifetime

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self.lifespan = await stack.enter_async_context(self.handler.hold_lifespan())
                if self.has_sessions or self.handler.shares_tasks:
                    if not (self.handler.is_in_memory or self.handler.request_states.has_given_keys):
                        logger.info("the keys of sessions are in the store: without keys=, it must keep them")
                    self.number = await stack.enter_async_context(self.handler.store.join(self._receive))
                    self.handler.broadcasts.endpoints.append(self)
                    stack.callback(self.handler.broadcasts.endpoints.remove, self)
                    self.handler.broadcaster.add_subscriber(self)
                    stack.callback(self.handler.broadcaster.remove_subscriber, self)
                    sweep = self.loop.create_task(self._sweep())
                    stack.callback(sweep.cancel)
                    self.handler.start_tasks(self.lifespan)
                self.ready.set_result(None)
                self.is_open = True
                try:
                    await self._stop_requested.wait()
                finally:
                    await self._close()
        except BaseException as error:
            if self.ready.done():
                raise
            cancelled = isinstance(error, asyncio.CancelledError)
            self.ready.set_exception(InternalError("the lifespan was cancelled") if cancelled else error)
            self.ready.exception()  # marks it as retrieved, if no request waits
            if not isinstance(error, Exception):
                raise

    async def _close(self) -> None:
        """End running work, and release the resources of sessions."""
        for task in self._background:
            task.cancel()
        if self._background:
            _, stuck = await asyncio.wait(self._background, timeout=CANCEL_TIMEOUT)
            for task in stuck:
                logger.error("task did not stop when it was cancelled: %r", task)
        await self.sessions.close()

    async def drain(self, seconds: float) -> None:
        """End streams, and wait this long for running requests. New requests are served meanwhile."""
        self.is_draining, self.is_open = True, False
        self.handler.end_subscriptions(self)
        for exchange in tuple(self.listening):
            exchange.abort()
        until = self.loop.time() + seconds
        channels = self.conversations.values()
        await asyncio.gather(*(_drain_conversation(channel, until) for channel in channels))
        await self._wait(until - self.loop.time())

    async def end(self) -> None:
        """Abort the remaining requests, then cancel them."""
        self.is_draining, self.is_over, self.is_open = True, True, False
        for exchange in (*self.running, *self.listening):
            exchange.abort()
        await self._wait(ABORT_TIMEOUT)
        for task in self.running.values():
            task.cancel()
        self._stop_requested.set()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _wait(self, seconds: float) -> None:
        others = {*self.running.values()} - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=max(0.0, seconds))

    def add_stream(self, exchange: HttpExchange) -> None:
        """Count a stream as open until `remove_stream`. A context manager would take more memory."""
        if self.is_draining:
            raise HTTPRefusal(503, "The server is shutting down and opens no new streams.")
        self.counts.open_stream()
        self.listening.add(exchange)
        self.timer.fresh[exchange] = False
        if not self.timer.is_checking:
            self.timer.start()

    def remove_stream(self, exchange: HttpExchange) -> None:
        """Remove a stream."""
        self.counts.streams -= 1
        self.listening.discard(exchange)
        self.timer.fresh.pop(exchange, None)

    def end_with_token(self, exchange: HttpExchange) -> asyncio.TimerHandle | None:
        """Start the timer that ends a long stream with its token; the client reconnects with another one."""
        principal = exchange.principal
        ends = None if self.authenticator is None or principal is None else principal.claims.get("exp")
        if not isinstance(ends, int | float):
            return None
        return self.loop.call_later(max(ends - time.time(), MIN_STREAM_LIFETIME), exchange.abort)

    # ----------------------------------------------------------------- sessions

    def get_server(self, session: Session | None) -> tuple[Handler, Any]:
        """Return the server of a session, and its lifespan."""
        if session is None or session.server is None:
            return self.handler, self.lifespan
        return session.server[:2]

    async def choose_server(self, session: Session, exchange: HttpExchange) -> None:
        """Where each client has its own server, choose that of a session from the same facts."""
        if session.server is None and self.handler.is_per_client:
            context = self.make_context(session, INITIALIZE, exchange)
            await self.hand_over(session, await self.handler.choose_server(context))

    def make_context(
        self,
        session: Session,
        method: str,
        exchange: HttpExchange | None,
        stream: GeneralStream | None = None,
    ) -> Context:
        """Return the context of a hook or of a notification, which belong to no request."""
        handler, lifespan = self.get_server(session)
        reply = HttpReply(self, self.connect(session), exchange, session, stream)
        principal = None if exchange is None else exchange.principal
        return Context(handler, reply, method, lifespan=lifespan, principal=principal)

    async def hand_over(self, session: Session, handler: Handler) -> None:
        """Let another server serve the later requests of a session on this worker."""
        stack = AsyncExitStack()
        lifespan = await stack.enter_async_context(handler.hold_lifespan())
        if session.server is not None or session.settings.is_ended:  # another request was faster
            await stack.aclose()
            return
        session.server = handler, lifespan, stack
        session.changes_seen = handler.broadcaster.position

    async def _release_session(self, session: Session) -> None:
        """Cancel the calls of a session and end its stream; release its subscriptions and its server."""
        for reply in tuple((session.calls or {}).values()):
            reply.cancel_request()
        reader = self.readers.get(get_log_name(session))
        if reader is not None:
            reader.stop()
        await self._unsubscribe(session, session.subscribed)
        (self.handler if session.server is None else session.server[0]).end_session(session.id)
        if session.server is not None:
            stack, session.server = session.server[2], None
            await stack.aclose()

    async def _unsubscribe(self, session: Session, uris: tuple[str, ...]) -> None:
        """Call the hook for resources that a session subscribed to on this worker, and no longer does."""
        session.subscribed = tuple(uri for uri in session.subscribed if uri not in uris)
        for uri in uris:
            context = self.make_context(session, RESOURCES_UNSUBSCRIBE, None)
            await run_logged(context.server.unsubscribe(uri, context))

    def cancel_request(self, key: str, request_id: RequestId) -> bool:
        """Cancel a request of a session, and return whether this worker serves it.

        Otherwise remember the cancellation for a while: it may have overtaken its request.
        """
        session = self.sessions.by_key.get(key)
        reply = None if session is None else (session.calls or {}).get(request_id)
        if reply is not None:
            reply.cancel_request()
            return True
        early = self._early_cancellations
        early.pop((key, request_id), None)
        early[key, request_id] = self.loop.time() + EARLY_CANCELLATION_TTL
        if len(early) > MAX_EARLY_CANCELLATIONS:
            del early[next(iter(early))]
        return False

    def is_cancelled_early(self, session: Session, request_id: RequestId) -> bool:
        """Return whether the cancellation of a request arrived before it."""
        if not self._early_cancellations:
            return False
        return self._early_cancellations.pop((session.key, request_id), 0.0) > self.loop.time()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_INTERVAL, self.options.idle / 4))
            # A store may fail for a while.
            await run_logged(self.sessions.end_idle(), "could not end idle sessions; will try again")

    # ----------------------------------------------------------------- questions

    async def take_answer(self, session: Session, message: JSONRPCResponse | JSONRPCErrorResponse) -> None:
        """Pass a client's response to the worker that sent the request."""
        worker = message.id >> 32 if isinstance(message.id, int) and 0 <= message.id < 2**53 else 0
        if worker == self.number:
            self._resolve(session.key, message)
            return
        if isinstance(message, JSONRPCResponse):
            data = jsonrpc.encode(message)
        else:
            error = RPCError(message.message, message.data, code=message.code)
            data = jsonrpc.encode_error(message.id, error)
        if not worker or not await self.send(worker, "answer", session.key, data):
            logger.debug("dropped a late response: its request has ended")

    def _resolve(self, key: str, message: JSONRPCMessage) -> None:
        if not isinstance(message, JSONRPCResponse | JSONRPCErrorResponse) or not isinstance(message.id, int):
            return
        reply = self.questions.get(message.id)
        if reply is not None and reply.session is not None and reply.session.key == key:
            reply.resolve(message)

    # ----------------------------------------------------------------- messages between workers

    async def send(self, worker: int, kind: str, about: str, data: bytes = b"") -> bool:
        """Send a message to one worker; return whether it is alive."""
        message = self._encode(kind, about, data)
        return await self._retry(lambda: self.handler.store.send(worker, message))

    async def announce(self, kind: str, about: str, data: bytes = b"") -> None:
        """Send a message to all other workers."""
        message = self._encode(kind, about, data)
        await self._retry(lambda: self.handler.store.publish(message))

    def _encode(self, kind: str, about: str, data: bytes) -> bytes:
        return _MESSAGE_ENCODER.encode(_WorkerMessage(kind, about, self.number, data, self.next_number()))

    async def _retry(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send a message, also if the store is unavailable for a while."""
        until = self.loop.time() + MESSAGE_TIMEOUT
        while True:
            try:
                return await send()
            except StoreUnavailable:
                if self.loop.time() >= until:
                    raise
            await asyncio.sleep(MESSAGE_RETRY_INTERVAL)

    def _receive(self, data: bytes) -> None:
        if not data:
            self._on_messages_lost()
            return
        message = _MESSAGE_DECODER.decode(data)
        receiver, recent = self._receivers.get(message.kind), self._recent_messages
        if receiver is None:
            text = "dropped a message of another worker, which may have another version: %.100r"
            logger.log(self.warnings.choose_level(), text, message.kind)
        elif message.sender != self.number or message.kind in _FOR_ALL:
            key = message.sender, message.number
            if key not in recent:
                recent[key] = None
                if len(recent) > MAX_RECENT_MESSAGES:
                    del recent[next(iter(recent))]
                receiver(message)

    def _on_messages_lost(self) -> None:
        """Read all settings again, and let clients list everything again: any message may be lost."""
        self.run_in_background(self.handler.request_states.restore_keys())
        for stream in self.streams.values():
            self.run_in_background(stream.check_log())
        for session in self.sessions.by_key.values():
            session.checked_at = -inf
        for method in LIST_CHANGED.values():
            self.handler.broadcaster.repeat(make_change_key(method, NotificationParams()), exclude=self)

    def _on_changed(self, message: _WorkerMessage) -> None:
        session = self.sessions.by_key.get(message.about)
        if session is not None:
            session.checked_at = -inf
            self.run_in_background(self._refresh(session))

    async def _refresh(self, session: Session) -> None:
        """Read the settings of a session, and end here the subscriptions that ended elsewhere."""
        await self.sessions.ensure_fresh(session)
        uris = session.settings.uris
        await self._unsubscribe(session, tuple(uri for uri in session.subscribed if uri not in uris))

    async def send_broadcast(self, name: str, data: JSON) -> None:
        """Send a broadcast of the server's author to all workers, this one included."""
        await self.announce("broadcast", self.handler.info.name, jsonrpc.encode([name, data]))

    def _on_broadcast(self, message: _WorkerMessage) -> None:
        broadcasts = self.handler.broadcasts
        if message.about == self.handler.info.name and broadcasts.endpoints[0] is self:
            name, data = _BROADCAST(message.data)
            self.run_in_background(broadcasts.receive(name, data))

    def _on_taken(self, message: _WorkerMessage) -> None:
        reader = self.readers.get(message.about)
        if reader is not None:
            reader.on_taken(message.data)

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Report a change of a list or a resource to the other workers."""
        data = jsonrpc.encode(make_change_key(method, params))
        self.run_in_background(self.announce("change", self.handler.info.name, data))

    def _on_change_elsewhere(self, message: _WorkerMessage) -> None:
        if message.about == self.handler.info.name:
            self.handler.broadcaster.repeat(_CHANGE_KEY(message.data), exclude=self)

    # ----------------------------------------------------------------- streams

    def wake_reader(self, worker: int, log: str) -> None:
        """Report a new event of a stream to the worker where its client reads it."""
        if worker != self.number:
            self.run_in_background(self.send(worker, "wake", log))
        elif log in self.readers:
            self.readers[log].wakeup.set()

    def watch_stream(self, log: str, worker: int) -> bool:
        """Report new events of a stream that is written here to a worker; return whether there is one."""
        stream = self.streams.get(log)
        if stream is None or not stream.has_log:
            return False
        stream.watcher = worker
        return True

    def end_reading(self, stream: SessionStream) -> None:
        """Tell the reader of a stream without a log that it ends; a client that has left answers nothing."""
        if stream.watcher not in {0, self.number}:
            self.run_in_background(self.send(stream.watcher, "over", stream.log))
        for reply in tuple(self.questions.values()):
            if reply.stream is stream and stream.is_lost:
                reply.fail_questions()

    def _on_watch(self, message: _WorkerMessage) -> None:
        is_written = self.watch_stream(message.about, message.sender)
        self.run_in_background(self.send(message.sender, "wake" if is_written else "over", message.about))

    def _on_over(self, message: _WorkerMessage) -> None:
        reader = self.readers.get(message.about)
        if reader is not None:
            reader.on_over()


async def _drain_conversation(channel: SseServerChannel, until: float) -> None:
    """End a conversation once its requests have their answers, or at this time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await channel.conversation.drain()
    channel.end("the server is shutting down")


async def run_logged(work: Coroutine[Any, Any, Any], failure: str = "background task failed") -> None:
    """Wait for work, and log its exceptions: they must end neither the worker nor the process."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except StoreUnavailable as error:  # which the store has logged
        logger.debug("%s: %s", failure, error)
    except BaseException:  # an error of a hook, SystemExit included, stays with its work
        logger.exception(failure)
