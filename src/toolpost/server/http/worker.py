"""`Worker`: an endpoint in one event loop, from its first request to its last.

Knows what is being served, receives messages of other workers, and ends everything in order. How a request is
served is left to `post` and `streams`.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from math import inf
from typing import Any, Final, cast

import msgspec

from toolpost.errors import InternalError, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.jsonrpc import JSONReader, JSONRPCErrorResponse, JSONRPCResponse
from toolpost.protocol.methods import INITIALIZE, RESOURCES_UNSUBSCRIBE
from toolpost.server.context import Context
from toolpost.server.handler import Handler
from toolpost.server.http.authorization import Authenticator
from toolpost.server.http.capacity import RequestCounts
from toolpost.server.http.disconnect import DisconnectTimer
from toolpost.server.http.reply import HttpReply
from toolpost.server.http.request import HttpExchange
from toolpost.server.http.security import HTTPRefusal
from toolpost.server.http.sessions import Session, Sessions
from toolpost.server.http.sse import SseServerChannel, receive_post
from toolpost.server.http.streams import SessionStream, send_general
from toolpost.server.options import HttpOptions
from toolpost.server.runtime.change_broadcast import ChangeKey, make_change_key
from toolpost.stores.store import Store
from toolpost.types.base import RequestId, Struct
from toolpost.types.notifications import NotificationParams

logger: Final = logging.getLogger("toolpost.http")

ABORT_TIMEOUT: Final = 1.0  # seconds for an aborted request to end before it is cancelled
CANCEL_TIMEOUT: Final = 2.0  # seconds for cancelled calls to end
MIN_STREAM_LIFETIME: Final = 30.0  # seconds for which a stream stays open, however soon its token expires
SWEEP_INTERVAL: Final = 5.0  # seconds between two looks for idle sessions that hold something


class _WorkerMessage(Struct, array_like=True, omit_defaults=True):
    """A message between workers; `about` is the key of a session or the name of a stream."""

    kind: str
    about: str
    sender: int = 0
    data: bytes = b""


_MESSAGE_DECODER: Final = msgspec.msgpack.Decoder(_WorkerMessage)
_MESSAGE_ENCODER: Final = msgspec.msgpack.Encoder()
_CHANGE_KEY: Final = JSONReader(ChangeKey)
_REQUEST_ID: Final[JSONReader[RequestId]] = JSONReader(cast("type[RequestId]", RequestId))


class Worker:
    """What an endpoint holds in one loop.

    `running` are requests with their tasks, `listening` streams for notifications, `conversations` those of
    HTTP+SSE. While it `is_draining`, it serves on and closes connections; when it `is_over`, it refuses all.
    One task enters and leaves the lifespan of the server, as some contexts require.
    """

    def __init__(self, handler: Handler, options: HttpOptions, authenticator: Authenticator | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.options = options
        self.authenticator = authenticator
        self.needs_scopes = authenticator is not None or options.principal is not None
        self.has_sessions = not options.stateless and handler.local_peer.has_sessions
        self.lifespan: Any = None
        self.number = 0
        self.timer = DisconnectTimer(self.loop)
        self.counts = RequestCounts(handler.max_in_flight, options.max_calls, options.max_streams)
        self.sessions = Sessions(handler, options, self.announce, self._release_session)
        self.running: dict[HttpExchange, asyncio.Task[Any]] = {}
        self.listening: set[HttpExchange] = set()
        self.conversations: dict[str, SseServerChannel] = {}
        self.streams: dict[str, SessionStream] = {}
        self.resumed: dict[str, HttpExchange] = {}
        self.is_draining = self.is_over = self.is_open = False
        self._questions: dict[int, HttpReply] = {}
        self._nudges: dict[str, set[asyncio.Future[None]]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._next = secrets.randbits(24)  # at random: a number of an earlier worker is not reused
        self._receivers: dict[str, Callable[[_WorkerMessage], object]] = {
            "answer": self._on_answer,
            "cancel": self._on_cancel,
            "change": self._on_change_elsewhere,
            "changed": self._on_changed,
            "ended": self._on_ended,
            "general": self._on_general,
            "ready": self._on_ready,
            "post": lambda message: receive_post(self, message.about, message.data),
            "nudge": lambda message: self._on_nudge(message.about),
            "taken": self._on_taken,
            "watch": self._on_watch,
        }
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._stop_requested = asyncio.Event()
        self._task = self.loop.create_task(self._run())

    @property
    def store(self) -> Store:
        """Where data lives that outlasts a request."""
        return self.handler.store

    def next_number(self) -> int:
        """Return a number that this worker has not used before."""
        self._next += 1
        return self._next

    def connect(self, server: Handler, session: Session) -> Connection:
        """Return a connection to the client of a session, for one of its requests."""
        connection = Connection(
            server.local_peer,
            peer=session.peer,
            extra=server.extra_methods,
            limit=server.max_in_flight,
        )
        connection.log_level = session.settings.log_level
        return connection

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
        """Run a coroutine in a task that ends with the worker; what it raises is logged."""
        task = self.loop.create_task(_run_logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda _: work.close())  # if it was cancelled before it started
        return task

    # ----------------------------------------------------------------- lifetime

    async def wait_until_ready(self) -> None:
        """Wait until the lifespan of the server has started."""
        if not self._ready.done():
            await asyncio.shield(self._ready)
        self._ready.result()

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self.lifespan = await stack.enter_async_context(self.handler.hold_lifespan())
                if self.has_sessions:
                    self.number = await stack.enter_async_context(self.store.join(self._receive))
                    self.handler.broadcaster.add_subscriber(self)
                    stack.callback(self.handler.broadcaster.remove_subscriber, self)
                    sweep = self.loop.create_task(self._sweep())
                    stack.callback(sweep.cancel)
                self._ready.set_result(None)
                self.is_open = True
                try:
                    await self._stop_requested.wait()
                finally:
                    await self._close()
        except BaseException as error:
            if self._ready.done():
                raise
            cancelled = isinstance(error, asyncio.CancelledError)
            self._ready.set_exception(InternalError("the lifespan was cancelled") if cancelled else error)
            self._ready.exception()  # marks it as retrieved, if no request waits
            if not isinstance(error, Exception):
                raise

    async def _close(self) -> None:
        """End what still runs, and release what sessions hold here."""
        for task in self._background:
            task.cancel()
        if self._background:
            _, stuck = await asyncio.wait(self._background, timeout=CANCEL_TIMEOUT)
            for task in stuck:
                logger.error("left behind, because it does not end when it is cancelled: %r", task)
        await self.sessions.close()

    async def drain(self, seconds: float) -> None:
        """End streams, and let running requests finish for so many seconds. New ones are served meanwhile."""
        self.is_draining = True
        for exchange in tuple(self.listening):
            exchange.abort()
        until = self.loop.time() + seconds
        await asyncio.gather(
            *(_drain_conversation(channel, until) for channel in self.conversations.values())
        )
        await self._wait(until - self.loop.time())

    async def end(self) -> None:
        """Abort and cancel what is left."""
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
        counts = self.counts
        if self.is_draining:
            raise HTTPRefusal(503, "The server stops, and opens no new streams.")
        if counts.streams >= counts.max_streams:
            raise make_stream_limit_refusal(counts.max_streams)
        counts.streams += 1
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

    async def get_server(self, session: Session, exchange: HttpExchange) -> Handler:
        """Return the server of a session; where each client has its own, choose it from the same facts."""
        if session.server is None and self.handler.is_per_client:
            reply = HttpReply(self, self.connect(self.handler, session), exchange, session)
            context = Context(
                self.handler, reply, INITIALIZE, lifespan=self.lifespan, principal=exchange.principal
            )
            chosen = await self.handler.choose_server(context)
            if session.server is None:  # another request may have been faster
                await self.hand_over(session, chosen)
        return self.handler if session.server is None else session.server[0]

    def take_in_background(self, peer: str, work: Coroutine[Any, Any, None], method: str) -> None:
        """Serve a notification of a peer, unless too many are being served."""
        if self.counts.begin(peer) is not None:
            work.close()
            logger.warning("dropped: %s, because too many messages of its client are being served", method)
            return
        self.run_in_background(work).add_done_callback(lambda _: self.counts.end(peer))

    async def hand_over(self, session: Session, handler: Handler) -> None:
        """Let another server serve the later requests of a session on this worker."""
        stack = AsyncExitStack()
        lifespan = await stack.enter_async_context(handler.hold_lifespan())
        session.server = handler, lifespan, stack
        session.changes_seen = handler.broadcaster.position

    async def _release_session(self, session: Session) -> None:
        """Cancel the calls of a session and end its stream; release its subscriptions and its server."""
        for reply in tuple((session.calls or {}).values()):
            self.cancel_call(session, reply)
        if session.reader is not None:
            session.reader.stop()
        handler, lifespan = (self.handler, self.lifespan) if session.server is None else session.server[:2]
        uris, session.subscribed = session.subscribed, ()
        for uri in uris:
            reply = HttpReply(self, self.connect(handler, session), None, session)
            context = Context(handler, reply, RESOURCES_UNSUBSCRIBE, lifespan=lifespan)
            await _run_logged(handler.unsubscribe(uri, context))
        if session.server is not None:
            stack, session.server = session.server[2], None
            await stack.aclose()

    def cancel_call(self, session: Session, reply: HttpReply) -> None:
        """Cancel a call that this worker serves."""
        calls = session.calls or {}
        for request_id in tuple(reply.connection.incoming):
            calls.pop(request_id, None)
        reply.connection.incoming.clear()
        if reply.cancel is not None:
            reply.cancel()

    async def send_general(self, session: Session, data: bytes, *, is_request: bool = False) -> None:
        """Send a message on the general stream of a session."""
        await send_general(self, session, data, is_request=is_request)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_INTERVAL, self.options.idle / 4))
            try:
                await self.sessions.end_idle()
            except Exception:  # a store may fail for a while
                logger.exception("idle sessions could not be ended; trying again")

    # ----------------------------------------------------------------- questions

    def add_question(self, reply: HttpReply) -> int:
        """Return the id of a request to a client. It names this worker, so that its answer finds the way."""
        request_id = self.number << 32 | (self.next_number() & 0xFFFFFFFF)
        self._questions[request_id] = reply
        return request_id

    def remove_question(self, request_id: int) -> None:
        """Forget a request to a client."""
        self._questions.pop(request_id, None)

    async def take_answer(self, session: Session, message: JSONRPCResponse | JSONRPCErrorResponse) -> None:
        """Bring a client's answer to the worker that has asked."""
        worker = message.id >> 32 if isinstance(message.id, int) and 0 <= message.id < 2**53 else 0
        key = self.sessions.get_key(session)
        if worker == self.number:
            self._resolve(key, message)
            return
        if isinstance(message, JSONRPCResponse):
            data = jsonrpc.encode_response(message.id, message.result)
        else:
            error = RPCError(message.message, message.data, code=message.code)
            data = jsonrpc.encode_error(message.id, error)
        if not worker or not await self.send(worker, "answer", key, data):
            logger.debug("an answer came too late: what has asked is gone")

    def _resolve(self, key: str, message: JSONRPCResponse | JSONRPCErrorResponse) -> None:
        reply = self._questions.get(message.id) if isinstance(message.id, int) else None
        if reply is not None and reply.session is not None and reply.session.key == key:
            reply.resolve(message)

    # ----------------------------------------------------------------- messages between workers

    async def send(self, worker: int, kind: str, about: str, data: bytes = b"") -> bool:
        """Send a message to one worker; return whether it is alive."""
        message = _WorkerMessage(kind, about, self.number, data)
        return await self.store.send(worker, _MESSAGE_ENCODER.encode(message))

    async def announce(self, kind: str, about: str, data: bytes = b"") -> None:
        """Send a message to all other workers."""
        await self.store.publish(_MESSAGE_ENCODER.encode(_WorkerMessage(kind, about, self.number, data)))

    def _receive(self, data: bytes) -> None:
        message = _MESSAGE_DECODER.decode(data)
        receiver = self._receivers.get(message.kind)
        if receiver is not None and (message.sender != self.number or message.kind in {"watch", "nudge"}):
            receiver(message)

    def _on_answer(self, message: _WorkerMessage) -> None:
        answer = jsonrpc.decode(message.data)
        if isinstance(answer, JSONRPCResponse | JSONRPCErrorResponse):
            self._resolve(message.about, answer)

    def _on_cancel(self, message: _WorkerMessage) -> None:
        session = self.sessions.find_by_key(message.about)
        if session is not None:
            self.cancel_request(session, _REQUEST_ID(message.data))

    def cancel_request(self, session: Session, request_id: RequestId) -> bool:
        """Cancel a request, if this worker serves it; return whether it does."""
        reply = (session.calls or {}).get(request_id)
        if reply is not None:
            self.cancel_call(session, reply)
        return reply is not None

    def _on_changed(self, message: _WorkerMessage) -> None:
        """Read the settings of a session again: now if requests are being served, else on its next use."""
        session = self.sessions.find_by_key(message.about)
        if session is not None:
            session.checked_at = -inf
            if session.calls:
                self.run_in_background(self.sessions.ensure_fresh(session))

    def _on_ended(self, message: _WorkerMessage) -> None:
        session = self.sessions.find_by_key(message.about)
        if session is not None:
            self.run_in_background(self.sessions.forget_ended(session))

    def _on_ready(self, message: _WorkerMessage) -> None:
        session = self.sessions.find_by_key(message.about)
        if session is not None:
            session.is_ready = True

    def _on_general(self, message: _WorkerMessage) -> None:
        session = self.sessions.find_by_key(message.about)
        if session is not None and session.reader is not None:
            session.reader.wake()

    def _on_taken(self, message: _WorkerMessage) -> None:
        session = self.sessions.find_by_key(message.about)
        if session is not None and session.reader is not None:
            session.reader.stop(message.data)

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Report a change of a list or a resource to the other workers."""
        data = jsonrpc.encode(make_change_key(method, params))
        self.run_in_background(self.announce("change", self.handler.info.name, data))

    def _on_change_elsewhere(self, message: _WorkerMessage) -> None:
        if message.about == self.handler.info.name:
            self.handler.broadcaster.repeat(_CHANGE_KEY(message.data), besides=self)

    # ----------------------------------------------------------------- resumed streams

    def nudge(self, worker: int, stream: str) -> None:
        """Report a new event of a stream to a worker that sends it on."""
        if worker == self.number:
            self._on_nudge(stream)
        else:
            self.run_in_background(self.send(worker, "nudge", stream))

    def expect_nudge(self, stream: str) -> "asyncio.Future[None]":
        """Return a future for the next event of a stream."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._nudges.setdefault(stream, set()).add(future)
        return future

    def forget_nudge(self, stream: str, future: "asyncio.Future[None]") -> None:
        """Wait for it no longer."""
        waiting = self._nudges.get(stream, set())
        waiting.discard(future)
        if not waiting:
            self._nudges.pop(stream, None)

    def _on_nudge(self, stream: str) -> None:
        for future in self._nudges.get(stream, ()):
            if not future.done():
                future.set_result(None)

    def _on_watch(self, message: _WorkerMessage) -> None:
        stream = self.streams.get(message.about)
        if stream is not None:
            stream.watchers |= {message.sender}
        self.nudge(message.sender, message.about)


async def _drain_conversation(channel: SseServerChannel, until: float) -> None:
    """End a conversation once its requests have their answers, or at this time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await channel.conversation.drain()
    channel.end("the server stops")


async def _run_logged(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except asyncio.CancelledError:
        raise
    except BaseException:  # what a function raises ends neither the worker nor the process
        logger.exception("work in the background failed")


def make_stream_limit_refusal(most: int) -> HTTPRefusal:
    """Return the refusal of a stream if as many are open as there may be."""
    return HTTPRefusal(
        503, f"There are {most} streams open, and no more are allowed: come back later (max_streams=)."
    )
