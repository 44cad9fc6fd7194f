"""What arrives from a server, and whom it concerns: answers, progress, notices, asks, and all the rest.

The receiving half of `link`, which owns the calls and the tasks that are touched here. Nothing here waits or
runs a callback, and no message can break the connection. Knows nothing of how a message has come.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from toolpost.client.lane import is_task_cancellation
from toolpost.client.visits import UrlElicitations
from toolpost.errors import (
    AuthError,
    InternalError,
    RemoteProtocolError,
    RequestFailed,
    RPCError,
    SessionLost,
    TransportError,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.framing import OversizedLine
from toolpost.types.base import Raw, RequestId, Result

if TYPE_CHECKING:
    from toolpost.client.call import PendingCall
    from toolpost.client.link import Dispatcher

__all__ = ["IncomingRouter"]

logger: Final = logging.getLogger("toolpost.client")


class IncomingRouter:
    """Hands on what arrives over one link.

    Args:
        link: whose calls and tasks it is about.
        on_ask: answers a request of the server's.
        on_notice: hears every notice; called by the reader, so it must not wait.
    """

    def __init__(
        self,
        link: "Dispatcher",
        *,
        on_ask: Callable[[InboundRequest], Awaitable[Result | Raw]],
        on_notice: Callable[[NotificationReceived], None],
    ) -> None:
        self._dispatcher = link
        self._stats = link.stats
        self._on_client_request = on_ask
        self._on_notification = on_notice
        self._client_request_tasks: dict[RequestId, asyncio.Task[None]] = {}
        self._answering_count = 0
        self._url_elicitations = UrlElicitations()
        self._event_routes: dict[type, Callable[[Any], None]] = {
            ResponseReceived: self.handle_reply,
            ErrorReceived: self._handle_failure,
            ProgressReceived: self._handle_progress,
            NotificationReceived: self._handle_notification,
            InboundRequest: self._handle_client_request,
            CancellationReceived: self._handle_cancel,
            InvalidMessageReceived: self._handle_refusal,
            MessageDropped: self._handle_drop,
        }

    def route(self, event: ConnectionEvent) -> None:
        """Hand on what a message means."""
        try:
            self._event_routes[type(event)](event)
        except Exception:  # no message may cost the connection, whatever is wrong with it or with us
            logger.exception("a message of the server could not be handled")
            self._stats.record_discard("message that could not be handled")

    def cancel_client_requests(self) -> None:
        """Stop answering: nobody waits for the answers any more."""
        for task in self._client_request_tasks.values():
            task.cancel()

    # ----------------------------------------------------------------- about requests of ours

    def handle_reply(self, event: ResponseReceived) -> None:
        """Hand on an answer, if anybody waits for it."""
        link = self._dispatcher
        call = link.calls.get(event.request.id)
        link.has_response = True
        if call is not None and not call.answer.done():  # its caller may be on the way out
            call.answer.set_result(event.result)

    def _handle_failure(self, event: ErrorReceived) -> None:
        self._dispatcher.has_response = True
        self._url_elicitations.record_error(event.error)
        self._dispatcher.calls[event.request.id].fail(event.error)

    def _handle_progress(self, event: ProgressReceived) -> None:
        call = self._dispatcher.calls[event.request.id]
        call.extend(asyncio.get_running_loop().time())
        tell, lane = call.limits.progress, call.progress_queue
        if tell is not None and lane is not None and not lane.put(partial(tell, event.params)):
            self._stats.record_discard("progress that nobody has time for")

    def handle_lost_request(self, request_id: RequestId, error: TransportError | AuthError) -> None:
        """The answer to one request cannot come any more; the others are as well as before.

        Unless it is the session that was lost: then nothing may be sent over this link any more, and whoever
        hears of it has to find it so.
        """
        error.peer = error.peer or self._dispatcher.peer_name
        call = self._dispatcher.calls.get(request_id)
        if call is None:
            logger.debug("a request that nobody waits for was lost: %s", error)
        else:
            if isinstance(error, RequestFailed) and error.sent and error.status is None:
                self._dispatcher.abandon(call, "its answer was lost")  # the server may still be busy with it
            call.fail(error)
        if isinstance(error, SessionLost):
            self._dispatcher.end(SessionLost(error.message, hint=error.hint, peer=error.peer))

    def handle_oversized(self, line: OversizedLine) -> None:
        """A message was dropped because of its length: let nobody wait for it, here or there."""
        self._stats.record_discard("message over the limit")
        error = line.make_error()
        logger.warning("a message of the server was dropped: %s", error)
        call = self._find_call(error)
        if call is not None:
            hint = "raise it where the server is described: `Stdio(…, max_line=…)`"
            why = f"the answer to {call.method} was dropped: {error.message}"
            call.fail(RemoteProtocolError(why, hint=hint, peer=self._dispatcher.peer_name))
        elif (
            error.id is not None
            and error.answer is not None
            and not self._dispatcher.connection.revision.stateless
        ):
            self._dispatcher.queue_send(jsonrpc.encode_error(error.id, error.answer))

    def _find_call(self, error: RemoteProtocolError) -> "PendingCall | None":
        """The request of ours that a dropped message was the answer to; the only one if it does not tell."""
        calls = self._dispatcher.calls
        if error.id is not None:
            return calls.get(error.id) if error.reply else None
        # A subscription is in flight all the time, and its answer is short.
        waiting = [call for call in calls.values() if call.sent and call.method != "subscriptions/listen"]
        told = error.reply or error.answer is not None  # else it was a notice
        return waiting[0] if told and len(waiting) == 1 else None

    # ----------------------------------------------------------------- about what the server wants

    def _handle_notification(self, event: NotificationReceived) -> None:
        self._stats.notifications += 1
        if self._url_elicitations.is_expected(event.params):
            self._on_notification(event)
        else:
            self._stats.record_discard("end of no elicitation under way")

    def _handle_client_request(self, incoming: InboundRequest) -> None:
        if self._answering_count >= self._dispatcher.connection.limit:
            # A server that asks and does not read the answers; those that may wait are counted as well.
            busy = InternalError("Too many requests wait for their answers to be read")
            data = self._dispatcher.connection.fail(incoming.id, busy)
            if data is not None:
                self._dispatcher.queue_send(data)
            return
        self._stats.client_requests += 1
        self._url_elicitations.record_request(incoming.params)
        self._answering_count += 1
        task = self._client_request_tasks[incoming.id] = self._dispatcher.spawn(
            self._answer_client_request(incoming)
        )
        task.add_done_callback(partial(self._remove_task, incoming.id))

    def _remove_task(self, request_id: RequestId, task: "asyncio.Task[None]") -> None:
        self._answering_count -= 1
        if self._client_request_tasks.get(request_id) is task:  # the id may be in use again
            del self._client_request_tasks[request_id]

    async def _answer_client_request(self, incoming: InboundRequest) -> None:
        """Answer an ask, whatever the callback does."""
        method, connection = incoming.row.name, self._dispatcher.connection
        try:
            data = connection.reply(incoming.id, await self._run_callback(incoming))
        except RPCError as error:
            data = connection.fail(incoming.id, error)
        except BaseException as error:  # a callback may raise anything, and the server waits
            if is_task_cancellation(error):
                raise
            logger.exception("the answer to %s failed", method)
            failure = InternalError(f"Internal error: the client failed to answer {method}")
            data = connection.fail(incoming.id, failure)
        if data is not None:
            await self._dispatcher.try_send(data, incoming.id, alone=method == "ping")

    async def _run_callback(self, incoming: InboundRequest) -> Result | Raw:
        """The result of an ask. Meanwhile the server waits for us, and no request in flight can be late.

        Which of them it asks for is not told by a channel. What a callback asks itself has its own time.
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

    def _handle_cancel(self, event: CancellationReceived) -> None:
        task = self._client_request_tasks.get(event.request.id)
        logger.debug("the server cancelled %s: %s", event.request.row.name, event.reason)
        if task is not None:
            task.cancel()

    def _handle_refusal(self, event: InvalidMessageReceived) -> None:
        logger.info("refused a message of the server: %s", event.error)
        self._stats.record_discard("refused message")
        if event.data is not None:
            self._dispatcher.queue_send(event.data)

    def _handle_drop(self, event: MessageDropped) -> None:
        logger.debug("discarded a message of the server: %s (%s)", event.reason, event.error)
        self._stats.record_discard(event.reason)
