"""What arrives from a server, and whom it concerns: answers, progress, notices, asks, and all the rest.

The receiving half of `link`, which owns the calls and the tasks that are touched here. Nothing here waits or
runs a callback, and no message can break the connection. Knows nothing of how a message has come.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from toolpost.client.lane import ends_task
from toolpost.client.visits import Visits
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
    CancelReceived,
    Dropped,
    Event,
    FailureReceived,
    Incoming,
    NoticeReceived,
    ProgressReceived,
    Refused,
    ReplyReceived,
)
from toolpost.protocol.framing import Oversize
from toolpost.types.base import Raw, RequestId, Result

if TYPE_CHECKING:
    from toolpost.client.call import Call
    from toolpost.client.link import Link

__all__ = ["Arrivals"]

logger: Final = logging.getLogger("toolpost.client")


class Arrivals:
    """Hands on what arrives over one link.

    Args:
        link: whose calls and tasks it is about.
        on_ask: answers a request of the server's.
        on_notice: hears every notice; called by the reader, so it must not wait.
    """

    def __init__(
        self,
        link: "Link",
        *,
        on_ask: Callable[[Incoming], Awaitable[Result | Raw]],
        on_notice: Callable[[NoticeReceived], None],
    ) -> None:
        self._link = link
        self._stats = link.stats
        self._on_ask = on_ask
        self._on_notice = on_notice
        self._asks: dict[RequestId, asyncio.Task[None]] = {}
        self._answering = 0
        self._visits = Visits()
        self._on: dict[type, Callable[[Any], None]] = {
            ReplyReceived: self.replied,
            FailureReceived: self._failed,
            ProgressReceived: self._progressed,
            NoticeReceived: self._noticed,
            Incoming: self._asked,
            CancelReceived: self._cancelled,
            Refused: self._refused,
            Dropped: self._dropped,
        }

    def take(self, event: Event) -> None:
        """Hand on what a message means."""
        try:
            self._on[type(event)](event)
        except Exception:  # no message may cost the connection, whatever is wrong with it or with us
            logger.exception("a message of the server could not be handled")
            self._stats.discard("message that could not be handled")

    def cancel_asks(self) -> None:
        """Stop answering: nobody waits for the answers any more."""
        for task in self._asks.values():
            task.cancel()

    # ----------------------------------------------------------------- about requests of ours

    def replied(self, event: ReplyReceived) -> None:
        """Hand on an answer, if anybody waits for it."""
        link = self._link
        call = link.calls.get(event.request.id)
        link.useful = True
        if call is not None and not call.answer.done():  # its caller may be on the way out
            call.answer.set_result(event.result)

    def _failed(self, event: FailureReceived) -> None:
        self._link.useful = True
        self._visits.needed(event.error)
        self._link.calls[event.request.id].fail(event.error)

    def _progressed(self, event: ProgressReceived) -> None:
        call = self._link.calls[event.request.id]
        call.extend(asyncio.get_running_loop().time())
        tell, lane = call.limits.progress, call.lane
        if tell is not None and lane is not None and not lane.put(partial(tell, event.params)):
            self._stats.discard("progress that nobody has time for")

    def lost(self, request_id: RequestId, error: TransportError | AuthError) -> None:
        """The answer to one request cannot come any more; the others are as well as before.

        Unless it is the session that was lost: then nothing may be sent over this link any more, and whoever
        hears of it has to find it so.
        """
        error.peer = error.peer or self._link.peer_name
        call = self._link.calls.get(request_id)
        if call is None:
            logger.debug("a request that nobody waits for was lost: %s", error)
        else:
            if isinstance(error, RequestFailed) and error.sent and error.status is None:
                self._link.abandon(call, "its answer was lost")  # the server may still be busy with it
            call.fail(error)
        if isinstance(error, SessionLost):
            self._link.end(SessionLost(error.message, hint=error.hint, peer=error.peer))

    def oversized(self, line: Oversize) -> None:
        """A message was dropped because of its length: let nobody wait for it, here or there."""
        self._stats.discard("message over the limit")
        error = line.refusal()
        logger.warning("a message of the server was dropped: %s", error)
        call = self._awaiting(error)
        if call is not None:
            hint = "raise it where the server is described: `Stdio(…, max_line=…)`"
            why = f"the answer to {call.method} was dropped: {error.message}"
            call.fail(RemoteProtocolError(why, hint=hint, peer=self._link.peer_name))
        elif (
            error.id is not None and error.answer is not None and not self._link.connection.revision.stateless
        ):
            self._link.post(jsonrpc.encode_failure(error.id, error.answer))

    def _awaiting(self, error: RemoteProtocolError) -> "Call | None":
        """The request of ours that a dropped message was the answer to; the only one if it does not tell."""
        calls = self._link.calls
        if error.id is not None:
            return calls.get(error.id) if error.reply else None
        # A subscription is in flight all the time, and its answer is short.
        waiting = [call for call in calls.values() if call.sent and call.method != "subscriptions/listen"]
        told = error.reply or error.answer is not None  # else it was a notice
        return waiting[0] if told and len(waiting) == 1 else None

    # ----------------------------------------------------------------- about what the server wants

    def _noticed(self, event: NoticeReceived) -> None:
        self._stats.notices += 1
        if self._visits.awaits(event.params):
            self._on_notice(event)
        else:
            self._stats.discard("end of no elicitation under way")

    def _asked(self, incoming: Incoming) -> None:
        if self._answering >= self._link.connection.limit:
            # A server that asks and does not read the answers; those that may wait are counted as well.
            busy = InternalError("Too many requests wait for their answers to be read")
            data = self._link.connection.fail(incoming.id, busy)
            if data is not None:
                self._link.post(data)
            return
        self._stats.asks += 1
        self._visits.asked(incoming.params)
        self._answering += 1
        task = self._asks[incoming.id] = self._link.spawn(self._answer(incoming))
        task.add_done_callback(partial(self._answered, incoming.id))

    def _answered(self, request_id: RequestId, task: "asyncio.Task[None]") -> None:
        self._answering -= 1
        if self._asks.get(request_id) is task:  # the id may be in use again
            del self._asks[request_id]

    async def _answer(self, incoming: Incoming) -> None:
        """Answer an ask, whatever the callback does."""
        method, connection = incoming.row.name, self._link.connection
        try:
            data = connection.reply(incoming.id, await self._result(incoming))
        except RPCError as error:
            data = connection.fail(incoming.id, error)
        except BaseException as error:  # a callback may raise anything, and the server waits
            if ends_task(error):
                raise
            logger.exception("the answer to %s failed", method)
            failure = InternalError(f"Internal error: the client failed to answer {method}")
            data = connection.fail(incoming.id, failure)
        if data is not None:
            await self._link.deliver(data, incoming.id, alone=method == "ping")

    async def _result(self, incoming: Incoming) -> Result | Raw:
        """The result of an ask. Meanwhile the server waits for us, and no request in flight can be late.

        Which of them it asks for is not told by a channel. What a callback asks itself has its own time.
        """
        loop = asyncio.get_running_loop()
        held = list(self._link.calls.values())
        for call in held:
            call.hold(loop.time())
        try:
            result = await self._on_ask(incoming)
        finally:
            for call in held:
                if self._link.calls.get(call.id) is call:
                    call.go_on(loop.time())
        self._visits.answered(incoming.params, result)
        return result

    def _cancelled(self, event: CancelReceived) -> None:
        task = self._asks.get(event.request.id)
        logger.debug("the server cancelled %s: %s", event.request.row.name, event.reason)
        if task is not None:
            task.cancel()

    def _refused(self, event: Refused) -> None:
        logger.info("refused a message of the server: %s", event.error)
        self._stats.discard("refused message")
        if event.data is not None:
            self._link.post(event.data)

    def _dropped(self, event: Dropped) -> None:
        logger.debug("discarded a message of the server: %s (%s)", event.why, event.error)
        self._stats.discard(event.why)
