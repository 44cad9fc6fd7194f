"""Routes what arrives from a server besides results: errors, progress, notifications, requests.

The receiving half of `dispatcher`, which owns the calls and tasks that are touched here. Nothing here waits
or runs a callback itself: `CallbackQueue` runs callbacks one at a time, in order. No message can break the
connection.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from toolpost.errors import (
    AuthError,
    InternalError,
    MCPError,
    RemoteProtocolError,
    RequestFailed,
    RPCError,
    SessionLost,
    TransportError,
    UrlElicitationRequired,
)
from toolpost.protocol import events, jsonrpc
from toolpost.protocol.line_framing import OversizedLine
from toolpost.protocol.methods import PING, SUBSCRIPTIONS_LISTEN
from toolpost.token_bucket import WarningThrottle
from toolpost.types.base import UNSET, Raw, RequestId, Result
from toolpost.types.client_requests import ElicitParams, ElicitResult
from toolpost.types.notifications import ElicitationCompleteParams

if TYPE_CHECKING:
    from toolpost.client.connection.dispatcher import Dispatcher
    from toolpost.client.connection.pending import PendingCall

MAX_URL_ELICITATIONS: Final = 1000  # so that a server cannot fill the memory; the oldest is forgotten


class UrlElicitations:
    """The URL elicitations in progress on one connection; completions of any other are ignored (ELIC-17)."""

    def __init__(self) -> None:
        self._ids: dict[str | None, None] = {}

    def record_request(self, params: object) -> None:
        """Record a request; it may be completed before our answer is sent."""
        if isinstance(params, ElicitParams) and params.mode == "url":
            self._add(params.elicitation_id)

    def record_answer(self, params: object, result: object) -> None:
        """Forget an elicitation that the user did not accept."""
        if (
            isinstance(params, ElicitParams)
            and isinstance(result, ElicitResult)
            and result.action != "accept"
        ):
            self._ids.pop(params.elicitation_id, None)

    def record_error(self, error: MCPError) -> None:
        """Record the elicitations that a request was refused for (ELIC-18)."""
        if isinstance(error, UrlElicitationRequired):
            for elicitation in error.elicitations:
                self._add(elicitation.get("elicitationId"))

    def is_expected(self, params: object) -> bool:
        """Return whether a notification is to be delivered: not the completion of an unknown elicitation."""
        if not isinstance(params, ElicitationCompleteParams):
            return True
        return self._ids.pop(params.elicitation_id, UNSET) is not UNSET

    def _add(self, elicitation_id: str | None) -> None:
        if elicitation_id is None:
            return
        if len(self._ids) >= MAX_URL_ELICITATIONS:
            del self._ids[next(iter(self._ids))]
        self._ids[elicitation_id] = None


# --------------------------------------------------------------------- callbacks

MAX_QUEUED_CALLBACKS: Final = 1000  # so that a fast peer cannot fill the memory

logger: Final = logging.getLogger("toolpost.client")

# Reaches the threads and the tasks that a piece of work starts, where a look at the current task would not.
_RUNNING_QUEUE: Final[ContextVar["CallbackQueue | None"]] = ContextVar("_RUNNING_QUEUE", default=None)


class CallbackQueue:
    """Runs callbacks one at a time, in order, in a task that `spawn` starts whenever there is work."""

    __slots__ = ("_limit", "_spawn", "_task", "_waiting")

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        limit: int = MAX_QUEUED_CALLBACKS,
    ) -> None:
        self._spawn = spawn
        self._limit = limit
        self._waiting: deque[Callable[[], Awaitable[object]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Queue a callback; False if the queue is full. Its errors are logged."""
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(work)
        if self._task is None:
            self._task = self._spawn(self._run())
        return True

    @property
    def is_in_callback(self) -> bool:
        """Whether the caller is itself a callback of this queue, and would wait for itself."""
        return _RUNNING_QUEUE.get() is self

    async def wait_idle(self) -> None:
        """Wait until the queue is empty and no callback runs."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Drop the queued callbacks; the running one may finish."""
        self._waiting.clear()

    async def _run(self) -> None:
        _RUNNING_QUEUE.set(self)
        try:
            while self._waiting:
                try:
                    await self._waiting.popleft()()
                except BaseException as error:
                    if is_task_cancellation(error):
                        raise
                    logger.exception("a callback failed")
        finally:
            self._task = None


def is_task_cancellation(error: BaseException) -> bool:
    """Return whether an exception is aimed at the current task, and not raised by a callback.

    A callback may raise anything. `SystemExit` and `KeyboardInterrupt` would end the loop with the task, and
    callers would wait without end.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit)


# --------------------------------------------------------------------- routing


class IncomingRouter:
    """Routes the events of one connection."""

    def __init__(
        self,
        dispatcher: "Dispatcher",
        *,
        on_client_request: Callable[[events.InboundRequest], Awaitable[Result | Raw]],
        on_notification: Callable[[events.NotificationReceived], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._stats = dispatcher.stats
        self._warnings = WarningThrottle()
        self._on_client_request = on_client_request
        self._on_notification = on_notification
        self._client_request_tasks: dict[RequestId, asyncio.Task[None]] = {}
        self._answering_count = 0
        self._url_elicitations = UrlElicitations()
        self._event_routes: dict[type, Callable[[Any], None]] = {
            events.ErrorReceived: self._handle_failure,
            events.ProgressReceived: self._handle_progress,
            events.NotificationReceived: self._handle_notification,
            events.InboundRequest: self._handle_client_request,
            events.CancellationReceived: self._handle_cancel,
            events.InvalidMessageReceived: self._handle_refusal,
            events.MessageDropped: self._handle_drop,
        }

    def route(self, event: events.ConnectionEvent) -> None:
        """Handle one event."""
        try:
            self._event_routes[type(event)](event)
        except Exception:  # no message may break the connection, whatever is wrong with it or with our code
            logger.exception("failed to handle a message from the server")
            self._stats.record_discard("message that could not be handled")

    def cancel_client_requests(self) -> None:
        """Stop answering: the server no longer waits."""
        for task in self._client_request_tasks.values():
            task.cancel()

    # ----------------------------------------------------------------- our requests

    def _handle_failure(self, event: events.ErrorReceived) -> None:
        self._dispatcher.has_response = True
        self._url_elicitations.record_error(event.error)
        self._dispatcher.calls[event.request.id].fail(event.error)

    def _handle_progress(self, event: events.ProgressReceived) -> None:
        call = self._dispatcher.calls[event.request.id]
        call.extend(asyncio.get_running_loop().time())
        callback, queue = call.limits.progress, call.progress_queue
        if callback is not None and queue is not None and not queue.put(partial(callback, event.params)):
            self._stats.record_discard("progress over the limit")

    def handle_lost_request(self, request_id: RequestId, error: TransportError | AuthError) -> None:
        """Fail one request whose answer cannot come any more.

        If the session itself was lost, the connection ends, so that nothing more is sent over it.
        """
        error.peer = error.peer or self._dispatcher.peer_name
        call = self._dispatcher.calls.get(request_id)
        if call is None:
            logger.debug("lost an abandoned request: %s", error)
        else:
            if isinstance(error, RequestFailed) and error.sent and error.status is None:
                self._dispatcher.abandon(call, "the response was lost")  # the server may still be working
            call.fail(error)
        if isinstance(error, SessionLost):
            self._dispatcher.end(SessionLost(error.message, hint=error.hint, peer=error.peer))

    def handle_oversized(self, line: OversizedLine) -> None:
        """Fail the request whose answer was dropped for its length, or answer the server's request."""
        error = line.make_error()
        if not line.is_reported:
            self._stats.record_discard("message over the limit")
            logger.log(self._warnings.choose_level(), "dropped a message from the server: %.1000s", error)
        call = self._find_call(error)
        if call is not None:
            hint = "raise the limit: `Stdio(…, max_line=…)`"
            why = f"the response to {call.method} was dropped: {error.message}"
            call.fail(RemoteProtocolError(why, hint=hint, peer=self._dispatcher.peer_name))
        elif (
            error.id is not None
            and error.answer is not None
            and not self._dispatcher.connection.revision.stateless
        ):
            self._dispatcher.queue_send(jsonrpc.encode_error(error.id, error.answer))

    def _find_call(self, error: RemoteProtocolError) -> "PendingCall | None":
        """Find our request that a dropped message answered; without an id, the only one in flight."""
        calls = self._dispatcher.calls
        if error.id is not None:
            return calls.get(error.id) if error.reply else None
        # A subscription is in flight all the time, and its answer is short.
        waiting = [call for call in calls.values() if call.sent and call.method != SUBSCRIPTIONS_LISTEN]
        is_notification = not error.reply and error.answer is None
        return waiting[0] if len(waiting) == 1 and not is_notification else None

    # ----------------------------------------------------------------- from the server

    def _handle_notification(self, event: events.NotificationReceived) -> None:
        self._stats.notifications += 1
        if self._url_elicitations.is_expected(event.params):
            self._on_notification(event)
        else:
            self._stats.record_discard("completion of an unknown elicitation")

    def _handle_client_request(self, incoming: events.InboundRequest) -> None:
        if self._answering_count >= self._dispatcher.connection.limit:
            # A server that asks and does not read the answers; those that may wait are counted as well.
            busy = InternalError("Too many responses are waiting to be read")
            data = self._dispatcher.connection.fail(incoming.id, busy)
            if data is not None:
                self._dispatcher.queue_send(data)
            return
        self._stats.client_requests += 1
        self._url_elicitations.record_request(incoming.params)
        self._answering_count += 1
        call = self._dispatcher.find_related_call()
        task = self._client_request_tasks[incoming.id] = self._dispatcher.spawn(
            self._answer_client_request(incoming), None if call is None else call.context
        )
        task.add_done_callback(partial(self._remove_task, incoming.id))

    def _remove_task(self, request_id: RequestId, task: "asyncio.Task[None]") -> None:
        self._answering_count -= 1
        if self._client_request_tasks.get(request_id) is task:  # the id may be in use again
            del self._client_request_tasks[request_id]

    async def _answer_client_request(self, incoming: events.InboundRequest) -> None:
        """Answer a request of the server, even if the callback fails."""
        method, connection = incoming.row.name, self._dispatcher.connection
        try:
            data = connection.reply(incoming.id, await self._run_callback(incoming))
        except RPCError as error:
            data = connection.fail(incoming.id, error)
        except BaseException as error:  # a callback may raise anything, and the server waits
            if is_task_cancellation(error):
                raise
            logger.exception("failed to answer %s", method)
            failure = InternalError(f"Internal error: the client failed to answer {method}")
            data = connection.fail(incoming.id, failure)
        if data is not None:
            await self._dispatcher.try_send(data, incoming.id, alone=method == PING)

    async def _run_callback(self, incoming: events.InboundRequest) -> Result | Raw:
        """Run the callback for a request. The server waits for it, so all deadlines are paused.

        The channel may not know which of our calls the request belongs to.
        """
        loop = asyncio.get_running_loop()
        held = list(self._dispatcher.calls.values())
        for call in held:
            call.pause_deadline(loop.time())
        try:
            result = await self._on_client_request(incoming)
        finally:
            for call in held:
                if self._dispatcher.calls.get(call.id) is call:
                    call.resume_deadline(loop.time())
        self._url_elicitations.record_answer(incoming.params, result)
        return result

    def _handle_cancel(self, event: events.CancellationReceived) -> None:
        task = self._client_request_tasks.get(event.request.id)
        logger.debug("the server cancelled %s: %s", event.request.row.name, event.reason)
        if task is not None:
            task.cancel()

    def _handle_refusal(self, event: events.InvalidMessageReceived) -> None:
        logger.debug("rejected a message from the server: %s", event.error)
        self._stats.record_discard("rejected message")
        if event.data is not None:
            self._dispatcher.queue_send(event.data)

    def _handle_drop(self, event: events.MessageDropped) -> None:
        logger.debug("discarded a message from the server: %s (%s)", event.reason, event.error)
        self._stats.record_discard(event.reason)
