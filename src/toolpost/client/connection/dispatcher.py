"""Drives one connection over one channel: the reader, the requests in flight, and their end.

Owns every task and future of a connection and ends them with it. The reader never sends and never runs a
callback, so that neither a peer nor a callback can block it; `incoming` routes what it reads. Opening a
channel is left to others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context, copy_context
from functools import partial
from math import inf
from typing import Any, Final

from toolpost.channel import Channel, mark_unattended
from toolpost.client.connection.incoming import CallbackQueue, IncomingRouter
from toolpost.client.connection.pending import NO_LIMITS, CallLimits, DeadlineTimer, PendingCall
from toolpost.client.connection.status import Stats
from toolpost.errors import ChannelClosed, MCPError, RequestTimeout, SessionLost
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import InboundRequest, NotificationReceived, OutboundRequest, ResponseReceived
from toolpost.protocol.jsonrpc import JSONRPCMessage
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import Row
from toolpost.types.base import JSON, Raw, RequestId, Result, WireStruct
from toolpost.types.initialize import LOG_LEVEL, LogLevel
from toolpost.types.notifications import NotificationParams

CALLBACK_CLOSE_TIMEOUT: Final = 5.0  # seconds for callbacks to finish on close, and again once cancelled
LOST_SESSION_TIMEOUT: Final = 1.0  # seconds for requests of a lost session to get their own error

logger: Final = logging.getLogger("toolpost.client")


class Dispatcher:
    """One connection to a server, from the first byte to the last. Must be created inside a running loop.

    It closes the channel. `on_notification` is called by the reader, so it must not wait. A channel may have
    more than `Channel` demands: `offer` takes a message, and `send_request` a request as a record, if that
    needs no waiting; `on_message`, `on_oversized`, `on_request_lost` and `on_login_pending` take a callback;
    `find_header_parameters` looks up the arguments that headers repeat; `related_request` is the request
    whose stream the current message came on; `stderr_hint` says where the stderr of a process goes.
    """

    def __init__(
        self,
        channel: Channel,
        connection: Connection,
        stats: Stats,
        *,
        on_client_request: Callable[[InboundRequest], Awaitable[Result | Raw]],
        on_notification: Callable[[NotificationReceived], None],
        find_header_parameters: Callable[[str], Mapping[str, tuple[str, ...]] | None] | None = None,
        on_login_pending: Callable[[bool], object] | None = None,
    ) -> None:
        self.connection = connection
        self.stats = stats
        self.end_reason: ChannelClosed | None = None
        self.ended_event = asyncio.Event()  # set when the connection has ended; `end_reason` says why
        self.callback_queue = CallbackQueue(self.spawn)  # for notifications; runs empty before the end
        self.calls: dict[RequestId, PendingCall] = {}
        self.on_end: Callable[[Dispatcher], object] = lambda _: None  # called once
        self.log_level: LogLevel | None = None  # of the stateless era: every request carries it
        self.has_response = False  # whether a request was answered; reset by `reconnect` after the handshake
        self._channel = channel
        self._features: Any = channel
        self._offer: Callable[[bytes], bool] | None = getattr(channel, "offer", None)
        self._send_request: Callable[[OutboundRequest], bool] = getattr(channel, "send_request", _refuse)
        self.loop = asyncio.get_running_loop()
        self._deadline_timer = DeadlineTimer(self.loop, self.calls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._send_queue = CallbackQueue(self.spawn)
        self._close_tasks: tuple[asyncio.Task[None], asyncio.Task[None]] | None = None
        self._router = IncomingRouter(
            self, on_client_request=on_client_request, on_notification=on_notification
        )
        self._can_lose_requests = hasattr(channel, "on_request_lost")
        self._paused_calls: list[PendingCall] | None = None  # while a login is pending
        self._on_login_pending = on_login_pending
        self.has_parameter_headers = hasattr(channel, "find_header_parameters")
        if self.has_parameter_headers and find_header_parameters is not None:
            self._features.find_header_parameters = find_header_parameters
        callbacks: dict[str, Callable[..., object]] = {
            "on_oversized": self._router.handle_oversized,
            "on_request_lost": self._router.handle_lost_request,
            "on_login_pending": self._set_login_pending,
            "on_message": self._on_message,
        }
        for name, callback in callbacks.items():
            if hasattr(channel, name):
                getattr(channel, name)(callback)
        with mark_unattended(False):  # callbacks run attended, even after a background reconnect
            self._context = copy_context()
            self._reader = self.loop.create_task(self._read_loop(), name="toolpost reader")

    # ----------------------------------------------------------------- requests

    def request(
        self,
        limits: CallLimits,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None = None,
        meta: Mapping[str, JSON] | None = None,
        party: LocalPeer | None = None,
    ) -> Coroutine[Any, Any, Result]:
        """Send a request; the result is awaited at once. Nothing was sent if this raises instead."""
        if self.end_reason is not None:
            self.check_open()
        if self.log_level is not None:
            meta = {LOG_LEVEL: self.log_level, **(meta or {})}
        progress = limits.extendable or limits.progress is not None
        outgoing = self.connection.request(method, params, meta=meta or None, progress=progress, party=party)
        return self.run(outgoing, limits)

    async def run(self, outgoing: OutboundRequest, limits: CallLimits = NO_LIMITS) -> Result:
        """Send a prepared request and return the server's answer."""
        call = self.register_call(outgoing, limits)
        try:
            if self._paused_calls is not None:
                self._pause_call(call)
            # Nearly every request is taken at once, and then needs neither a coroutine nor a timeout.
            offer = self._offer
            if not (self._send_request(outgoing) if offer is None else offer(outgoing.data)):
                async with call.timeout_scope():
                    await self._send(outgoing.data)
            call.sent = True
            result = await call.answer
            if call.progress_queue is None:
                # Nothing else is left of it, so `_discard_call` is not needed.
                del self.calls[call.id]
                return result
            async with call.timeout_scope():
                await call.progress_queue.wait_idle()
        except asyncio.CancelledError:
            self.abandon(call, "the caller stopped waiting")
            raise
        except TimeoutError:
            if call.answer.done() and not call.late:
                return call.answer.result()  # only a progress callback took too long
            self.abandon(call, "the request timed out")
            self.stats.timeouts += 1
            waited = self.loop.time() - call.started
            raise RequestTimeout(
                f"no response to {call.method} within {round(waited, 2):g} s",
                sent=call.sent,
                peer=self.peer_name,
            ) from None
        except RuntimeError as error:
            self._check_loop(error)
            raise
        else:
            return result
        finally:
            if call.id in self.calls:
                self._discard_call(call)

    def _check_loop(self, error: RuntimeError) -> None:
        """Explain an error that comes from using the client in another event loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError(
                "this client is connected in another event loop; use one client per loop, or a SyncClient, "
                "which threads can share"
            ) from error

    async def start_call(self, call: PendingCall) -> None:
        """Send a registered request that is ended by `cancel`, not by a timeout."""
        try:
            offer, outgoing = self._offer, call.outgoing
            if not (self._send_request(outgoing) if offer is None else offer(outgoing.data)):
                await self._send(outgoing.data)
        except BaseException:  # also a cancellation: it was not sent, so it is not in flight
            self._discard_call(call)
            raise
        call.sent = True
        call.answer.add_done_callback(lambda _: self._discard_call(call))

    def cancel(self, request_id: RequestId, reason: str | None = None) -> bool:
        """Cancel one of our requests and notify the server; False if no such request is in flight."""
        call = self.calls.get(request_id)
        if call is None or call.answer.done():
            return False
        self.abandon(call, reason)
        why = f": {reason}" if reason else ""
        call.fail(MCPError(f"{call.method} was cancelled{why}", peer=self.peer_name))
        return True

    async def notify(
        self, method: str | Row, params: NotificationParams | Mapping[str, JSON] | None = None
    ) -> None:
        """Send a notification."""
        self.check_open()
        await self._send(self.connection.notify(method, params))

    @property
    def peer_name(self) -> str | None:
        """The name of the server, for errors."""
        return self.connection.peer_name

    @property
    def stderr_hint(self) -> str | None:
        """Where to find the server's stderr, if it is not shown; added to the error of a tool that fails."""
        return getattr(self._channel, "stderr_hint", None)

    def check_open(self) -> None:
        """Raise `ChannelClosed`, with the reason, if the connection has ended."""
        if self.end_reason is not None:
            raise self._make_end_error(sent=False)

    def register_call(self, outgoing: OutboundRequest, limits: CallLimits = NO_LIMITS) -> PendingCall:
        """Expect the answer to a request that is about to be sent."""
        request_id, alarm, started = outgoing.id, self._deadline_timer, self.loop.time()
        deadline = inf if limits.timeout is None else started + limits.timeout
        if deadline < alarm.next:
            alarm.set(deadline)
        answer: asyncio.Future[Result] = self.loop.create_future()
        call = PendingCall(
            request_id, outgoing, limits, started, answer, alarm, deadline, deadline, context=copy_context()
        )
        if limits.progress is not None or limits.log is not None:
            call.progress_queue = CallbackQueue(self.spawn)
        self.calls[request_id] = call
        self.stats.requests += 1
        return call

    def abandon(self, call: PendingCall, reason: str | None) -> None:
        """Stop expecting an answer, and notify a server that has received the request (CANC-1)."""
        data = self.connection.cancel(call.id, reason)
        # If each request has its own connection, its cancellation cannot disturb others.
        quiet = call.limits.quiet and not self._can_lose_requests
        if data is not None and call.sent and not quiet and self.end_reason is None:
            if self._can_lose_requests:
                self.spawn(self.try_send(data, alone=True))  # messages do not wait for each other here
            else:
                self.queue_send(data, alone=True)

    def _discard_call(self, call: PendingCall) -> None:
        """Remove everything that is kept for a request."""
        self.calls.pop(call.id, None)
        if call.id in self.connection.outgoing:
            self.connection.cancel(call.id)
        if call.progress_queue is not None:
            call.progress_queue.stop()
        if not call.answer.cancel() and not call.answer.cancelled():
            call.answer.exception()  # marks it as retrieved: no caller may be left

    def _set_login_pending(self, waiting: bool) -> None:
        """Pause all deadlines during a login: whichever request it is for, the others need it too."""
        if waiting:
            self._paused_calls = []
            for call in self.calls.values():
                self._pause_call(call)
        else:
            detained, self._paused_calls = self._paused_calls or [], None
            for call in detained:
                if self.calls.get(call.id) is call:
                    call.resume_deadline(self.loop.time())
        if self._on_login_pending is not None:
            self._on_login_pending(waiting)

    def _pause_call(self, call: PendingCall) -> None:
        assert self._paused_calls is not None
        self._paused_calls.append(call)
        call.pause_deadline(self.loop.time())

    # ----------------------------------------------------------------- sending

    async def _send(self, data: bytes, related: RequestId | None = None) -> None:
        try:
            await self._channel.send(data, related)
        except MCPError:
            raise
        except Exception as error:  # a channel of the user may fail in any way
            raise ChannelClosed(f"the channel failed: {error}", peer=self.peer_name) from error

    def queue_send(self, data: bytes, *, alone: bool = False) -> None:
        """Queue a message that no caller waits for; see `try_send`."""
        if not self._send_queue.put(partial(self.try_send, data, alone=alone)):
            self.stats.record_discard("response that the peer does not read")

    async def try_send(self, data: bytes, related: RequestId | None = None, *, alone: bool = False) -> None:
        """Send a message that no caller waits for. `alone` if no call in flight depends on it."""
        try:
            with mark_unattended(alone or not self.calls):
                await self._send(data, related)
        except MCPError as error:
            logger.debug("could not send a message: %s", error)

    # ----------------------------------------------------------------- receiving

    async def _read_loop(self) -> None:
        try:
            while True:
                self._on_message(await self._receive())
        except ChannelClosed as error:
            self.end(error)
        except asyncio.CancelledError:
            self.on_end = lambda _: None  # we end it ourselves, or the loop ends with all that is in it
            raise
        except Exception as error:  # noqa: BLE001 - a channel of the user may fail in any way
            self._fail_channel(error)
        finally:
            self.end(ChannelClosed("the client was closed"))

    def _on_message(self, message: bytes | JSONRPCMessage) -> None:
        """Handle a message, decoded or not; a channel may push it."""
        if self._close_tasks is not None:
            return
        connection = self.connection
        try:
            if isinstance(message, bytes):
                events = connection.receive(message)
            else:
                events = (connection.receive_message(message),)
            for event in events:
                if type(event) is ResponseReceived:
                    self.has_response = True
                    call = self.calls.get(event.request.id)
                    if call is not None and not call.answer.done():  # its caller may be on the way out
                        call.answer.set_result(event.result)
                else:
                    # The channel may call from any context, but callbacks run in that of the connection.
                    self._context.run(self._router.route, event)
        except Exception as error:  # noqa: BLE001 - the channel cannot handle it
            self._fail_channel(error)

    async def _receive(self) -> bytes:
        data = await self._channel.receive()
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
            name = f"{type(self._channel).__name__}.receive()"
            raise TypeError(f"{name} must return bytes, not {type(data).__name__}")
        return data

    # ----------------------------------------------------------------- the end

    def _fail_channel(self, error: Exception) -> None:
        logger.error("the channel failed", exc_info=error)
        failure = ChannelClosed(f"the channel failed: {error}")
        failure.__cause__ = error
        self.end(failure)

    def find_related_call(self) -> PendingCall | None:
        """Return the call that the message being handled belongs to; None if that cannot be known.

        HTTP answers each call on a stream of its own. Elsewhere a message can only belong to the call in
        flight, if there is exactly one.
        """
        if hasattr(self._channel, "related_request"):
            return self.calls.get(self._features.related_request)
        return next(iter(self.calls.values())) if len(self.calls) == 1 else None

    def spawn(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> "asyncio.Task[None]":
        """Start a task that ends with the connection."""
        task = self.loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _make_end_error(self, *, sent: bool) -> ChannelClosed:
        """Return a new error for one of the callers that wait for this connection."""
        ended = self.end_reason or ChannelClosed("the client was closed")
        kind = SessionLost if isinstance(ended, SessionLost) else ChannelClosed
        error = kind(ended.message, sent=sent, hint=ended.hint, peer=ended.peer)
        error.__cause__ = ended.__cause__
        return error

    def end(self, reason: ChannelClosed) -> None:
        """Mark the connection as ended and fail the requests in flight."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        self.ended_event.set()
        self.connection.close()
        self._router.cancel_client_requests()
        if isinstance(reason, SessionLost):
            self.loop.call_later(LOST_SESSION_TIMEOUT, self._fail_calls)
        else:
            self._fail_calls()
        self.on_end(self)

    def _fail_calls(self) -> None:
        for call in self.calls.values():
            call.fail(self._make_end_error(sent=True))

    async def wait_calls_done(self) -> None:
        """Wait until every request of an ended connection has its outcome."""
        waiting = [call.answer for call in self.calls.values() if not call.answer.done()]
        if waiting:
            await asyncio.wait(waiting)

    async def close(self) -> None:
        """Close the connection and the channel. Closing twice is fine.

        Queued notifications are delivered first, unless one of their callbacks closes. Requests in flight
        fail with `ChannelClosed`. Cancelling the caller does not stop it.
        """
        if self._close_tasks is None:
            self.end(ChannelClosed("the client was closed"))
            self._fail_calls()
            self._deadline_timer.stop()
            telling = self.spawn(self.callback_queue.wait_idle())
            self._close_tasks = telling, self.loop.create_task(self._close_channel(telling))
        telling, closing = self._close_tasks
        if self.callback_queue.is_in_callback:
            telling.cancel()  # else the callback and `close` would wait for each other
        await asyncio.shield(closing)

    async def _close_channel(self, telling: "asyncio.Task[None]") -> None:
        try:
            await self._stop_tasks(telling)
        finally:  # a loop that ends cancels us; a server process must not outlive it
            try:
                await self._channel.close()
            except Exception:  # the connection has ended in any case
                logger.exception("failed to close the channel")

    async def _stop_tasks(self, telling: "asyncio.Task[None]") -> None:
        """Cancel every task, and report those that do not end in time."""
        self._reader.cancel()
        await asyncio.wait([telling], timeout=CALLBACK_CLOSE_TIMEOUT)
        self.callback_queue.stop()
        tasks = [self._reader, *self._tasks]
        for task in tasks:
            task.cancel()
        _, stuck = await asyncio.wait(tasks, timeout=CALLBACK_CLOSE_TIMEOUT)
        if stuck:
            logger.warning("%d callbacks are still running after the client was closed", len(stuck))


def _refuse(_: OutboundRequest) -> bool:
    return False
