"""Drives one connection over one channel: a reader, the requests in flight, the asks of the server.

Owns every task and future of a conversation and ends them with it. The reader never sends and never runs a
callback, so that no peer and no callback can make it wait. Knows nothing of tools or of how a channel is
opened.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from toolpost.channel import Channel
from toolpost.client.call import NO_LIMITS, Call, Limits
from toolpost.client.lane import Lane, ends_task
from toolpost.client.stats import Stats
from toolpost.errors import (
    ChannelClosed,
    InternalError,
    MCPError,
    RemoteProtocolError,
    RequestTimeout,
    RPCError,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import (
    CancelReceived,
    Dropped,
    Event,
    FailureReceived,
    Incoming,
    NoticeReceived,
    Outgoing,
    ProgressReceived,
    Refused,
    ReplyReceived,
)
from toolpost.protocol.framing import Oversize
from toolpost.protocol.methods import Row
from toolpost.types.base import JSON, Raw, RequestId, Result, Wire
from toolpost.types.notices import NoticeParams

__all__ = ["Link"]

CLOSE_PATIENCE: Final = 5.0
"""How long callbacks may take to hear what has arrived, and then to end when they are cancelled: closing must
not hang on one that refuses to."""

logger: Final = logging.getLogger("toolpost.client")


@runtime_checkable
class _Bounded(Protocol):
    """A channel that drops messages over a limit, and tells whoever wants to know."""

    def on_oversized(self, tell: Callable[[Oversize], object], /) -> None: ...


@runtime_checkable
class _Aside(Protocol):
    """A channel whose server says more than goes over it, and maybe nobody hears that."""

    @property
    def unheard(self) -> str | None: ...


class Link:
    """A conversation with a server, from the first byte to the last. Made where a loop runs.

    Args:
        channel: where the messages go. The link closes it.
        connection: what the messages mean.
        stats: where to count.
        on_ask: answers a request of the server's.
        on_notice: hears every notice; called by the reader, so it must not wait.
    """

    def __init__(
        self,
        channel: Channel,
        connection: Connection,
        stats: Stats,
        *,
        on_ask: Callable[[Incoming], Awaitable[Result | Raw]],
        on_notice: Callable[[NoticeReceived], None],
    ) -> None:
        self.connection = connection
        self.ended: ChannelClosed | None = None
        self.lane = Lane(self.spawn)
        """Where notices are told; what arrived before the end is told before the end."""
        self._channel = channel
        self._stats = stats
        self._on_ask = on_ask
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._calls: dict[RequestId, Call] = {}
        self._asks: dict[RequestId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox = Lane(self.spawn)
        self._closing: tuple[asyncio.Task[None], asyncio.Task[None]] | None = None
        self._on: dict[type, Callable[[Any], None]] = {
            ReplyReceived: self._replied,
            FailureReceived: self._failed,
            ProgressReceived: self._progressed,
            NoticeReceived: self._noticed,
            Incoming: self._asked,
            CancelReceived: self._cancelled,
            Refused: self._refused,
            Dropped: self._dropped,
        }
        if isinstance(channel, _Bounded):
            channel.on_oversized(self._oversized)
        self._reader = self._loop.create_task(self._read(), name="toolpost reader")

    # ----------------------------------------------------------------- asking

    @property
    def pending(self) -> dict[RequestId, str]:
        """The requests in flight: id → method."""
        return {request_id: call.method for request_id, call in self._calls.items()}

    async def request(
        self,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None = None,
        *,
        meta: Mapping[str, JSON] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> Result:
        """The server's answer to a request.

        Args:
            method: its name, or a row of one's own.
            params: its parameters.
            meta: what to put into `_meta`.
            limits: how long to wait, and whom to tell in the meantime.

        Raises:
            NotDeclared: the server does not offer what the request needs; nothing was sent.
            LocalProtocolError: this revision forbids the request; nothing was sent.
            ChannelClosed: the conversation is over.
        """
        self.check_open()
        progress = limits.extendable or limits.progress is not None
        return await self.run(self.connection.request(method, params, meta=meta, progress=progress), limits)

    async def run(self, outgoing: Outgoing, limits: Limits = NO_LIMITS) -> Result:
        """The server's answer to a request that was made before.

        Args:
            outgoing: the request.
            limits: how long to wait, and whom to tell in the meantime.

        Raises:
            RPCError: the server refused.
            RemoteProtocolError: the server answered with something that is no answer.
            RequestTimeout: no answer came in time. The server was told.
            ChannelClosed: the channel ended before the answer came.
        """
        call = self._begin(outgoing, limits)
        try:
            async with asyncio.timeout(limits.timeout) as call.scope:
                await self._send(outgoing.data)
                call.sent = True
                result = await call.answer
                await call.lane.idle()
                return result
        except asyncio.CancelledError:
            self._abandon(call, "the caller no longer waits")
            raise
        except TimeoutError:
            if call.answer.done() and not call.answer.cancelled():
                return call.answer.result()  # only a progress callback took too long
            self._abandon(call, "the time-out of the request has passed")
            self._stats.timeouts += 1
            waited = self._loop.time() - call.started
            raise RequestTimeout(
                f"{call.method} was not answered within {waited:.1f} s", sent=call.sent, peer=self.peer_name
            ) from None
        finally:
            self._forget(call)

    async def open(self, outgoing: Outgoing) -> Call:
        """Send a request whose answer is far away; end it with `cancel`."""
        call = self._begin(outgoing, NO_LIMITS)
        try:
            await self._send(outgoing.data)
        except BaseException:
            self._forget(call)
            raise
        call.sent = True
        call.answer.add_done_callback(lambda _: self._forget(call))
        return call

    def cancel(self, request_id: RequestId, reason: str | None = None) -> bool:
        """Give up a request of ours and tell the server; False if there is no such request in flight."""
        call = self._calls.get(request_id)
        if call is None or call.answer.done():
            return False
        self._abandon(call, reason)
        why = f": {reason}" if reason else ""
        _fail(call, MCPError(f"{call.method} was cancelled{why}", peer=self.peer_name))
        return True

    async def notify(
        self, method: str | Row, params: NoticeParams | Mapping[str, JSON] | None = None
    ) -> None:
        """Say something to the server.

        Raises:
            LocalProtocolError: this revision forbids it.
            NotDeclared: we did not declare what it needs.
            ChannelClosed: the conversation is over.
        """
        self.check_open()
        await self._send(self.connection.notify(method, params))

    @property
    def peer_name(self) -> str | None:
        """What the server calls itself, for errors."""
        peer = self.connection.peer
        return peer.info.name if peer is not None and peer.info is not None else None

    @property
    def unheard(self) -> str | None:
        """Where to find what the server says elsewhere, if nobody hears it there; for whom a tool fails."""
        return self._channel.unheard if isinstance(self._channel, _Aside) else None

    @property
    def stranded(self) -> bool:
        """Whether the event loop has ended before the conversation; nothing can be done with it any more."""
        return self._loop.is_closed()

    def check_open(self) -> None:
        """Return if the conversation goes on.

        Raises:
            ChannelClosed: it is over; the text says why.
        """
        if self.ended is not None:
            raise self._end_of_it(sent=False)

    def _begin(self, outgoing: Outgoing, limits: Limits) -> Call:
        call = Call(outgoing, limits, self._loop.time(), self._loop.create_future(), Lane(self.spawn))
        self._calls[call.id] = call
        self._stats.requests += 1
        return call

    def _abandon(self, call: Call, reason: str | None) -> None:
        """Expect no answer any more, and say so to a server that knows of the request (CANC-1)."""
        data = self.connection.cancel(call.id, reason)
        if data is not None and call.sent and not call.limits.quiet and self.ended is None:
            self._post(data)

    def _forget(self, call: Call) -> None:
        """Keep nothing of a request that is over, one way or the other."""
        self._calls.pop(call.id, None)
        self.connection.cancel(call.id)
        call.lane.stop()
        if not call.answer.cancel() and not call.answer.cancelled():
            call.answer.exception()  # nobody may be left to look at it, which is fine

    # ----------------------------------------------------------------- sending

    async def _send(self, data: bytes, related: RequestId | None = None) -> None:
        try:
            await self._channel.send(data, related)
        except ChannelClosed:
            raise
        except Exception as error:
            raise ChannelClosed(f"the channel failed: {error}", peer=self.peer_name) from error

    def _post(self, data: bytes) -> None:
        """Send what nobody waits for."""
        if not self._outbox.put(partial(self._deliver, data)):
            self._stats.discard("answer to a peer that does not read")

    async def _deliver(self, data: bytes, related: RequestId | None = None) -> None:
        try:
            await self._send(data, related)
        except ChannelClosed as error:
            logger.debug("a message could not be sent: %s", error)

    # ----------------------------------------------------------------- receiving

    async def _read(self) -> None:
        try:
            while True:
                for event in self.connection.receive(await self._receive()):
                    self._handle(event)
        except ChannelClosed as error:
            self._end(error)
        except Exception as error:
            logger.exception("the channel failed")
            failure = ChannelClosed(f"the channel failed: {error}")
            failure.__cause__ = error
            self._end(failure)
        finally:
            self._end(ChannelClosed("the client was closed"))

    async def _receive(self) -> bytes:
        data = await self._channel.receive()
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
            name = f"{type(self._channel).__name__}.receive()"
            raise TypeError(f"{name} returned a {type(data).__name__}; a message is bytes")
        return data

    def _handle(self, event: Event) -> None:
        try:
            self._on[type(event)](event)
        except Exception:
            # No message may cost the connection, whatever is wrong with it or with us.
            logger.exception("a message of the server could not be handled")
            self._stats.discard("message that could not be handled")

    def _replied(self, event: ReplyReceived) -> None:
        call = self._calls[event.request.id]
        if not call.answer.done():  # its caller may be on the way out
            call.answer.set_result(event.result)

    def _failed(self, event: FailureReceived) -> None:
        _fail(self._calls[event.request.id], event.error)

    def _progressed(self, event: ProgressReceived) -> None:
        call = self._calls[event.request.id]
        call.extend(self._loop.time())
        tell = call.limits.progress
        if tell is not None and not call.lane.put(partial(tell, event.params)):
            self._stats.discard("progress that nobody has time for")

    def _noticed(self, event: NoticeReceived) -> None:
        self._stats.notices += 1
        self._on_notice(event)

    def _asked(self, incoming: Incoming) -> None:
        self._stats.asks += 1
        task = self._asks[incoming.id] = self.spawn(self._answer(incoming))
        task.add_done_callback(partial(self._answered, incoming.id))

    def _answered(self, request_id: RequestId, task: "asyncio.Task[None]") -> None:
        if self._asks.get(request_id) is task:  # the id may be in use again
            del self._asks[request_id]

    async def _answer(self, incoming: Incoming) -> None:
        """Answer an ask, whatever the callback does."""
        method = incoming.row.name
        try:
            data = self.connection.reply(incoming.id, await self._on_ask(incoming))
        except RPCError as error:
            data = self.connection.fail(incoming.id, error)
        except BaseException as error:
            if ends_task(error):
                raise
            logger.exception("the answer to %s failed", method)
            failure = InternalError(f"Internal error: the client failed to answer {method}")
            data = self.connection.fail(incoming.id, failure)
        if data is not None:
            await self._deliver(data, incoming.id)

    def _cancelled(self, event: CancelReceived) -> None:
        task = self._asks.get(event.request.id)
        logger.debug("the server cancelled %s: %s", event.request.row.name, event.reason)
        if task is not None:
            task.cancel()

    def _refused(self, event: Refused) -> None:
        logger.info("refused a message of the server: %s", event.error)
        self._stats.discard("refused message")
        if event.data is not None:
            self._post(event.data)

    def _dropped(self, event: Dropped) -> None:
        logger.debug("discarded a message of the server: %s (%s)", event.why, event.error)
        self._stats.discard(event.why)

    def _oversized(self, line: Oversize) -> None:
        """A message was dropped because of its length: let nobody wait for it, here or there."""
        self._stats.discard("message over the limit")
        error = line.refusal()
        logger.warning("a message of the server was dropped: %s", error)
        call = self._awaiting(error)
        if call is not None:
            hint = "raise it where the server is described: `Stdio(…, max_line=…)`"
            why = f"the answer to {call.method} was dropped: {error.message}"
            _fail(call, RemoteProtocolError(why, hint=hint, peer=self.peer_name))
        elif error.id is not None and error.answer is not None and not self.connection.revision.stateless:
            self._post(jsonrpc.encode_failure(error.id, error.answer))

    def _awaiting(self, error: RemoteProtocolError) -> Call | None:
        """The request of ours that a dropped message was the answer to; the only one if it does not tell."""
        if error.id is not None:
            return self._calls.get(error.id) if error.reply else None
        # A subscription is in flight all the time, and its answer is short.
        calls = [call for call in self._calls.values() if call.sent and call.method != "subscriptions/listen"]
        told = error.reply or error.answer is not None  # else it was a notice
        return calls[0] if told and len(calls) == 1 else None

    # ----------------------------------------------------------------- the end

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that ends with the conversation."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _end_of_it(self, *, sent: bool) -> ChannelClosed:
        """The error for one of many who learn that it is over; each gets its own."""
        ended = self.ended or ChannelClosed("the client was closed")
        error = ChannelClosed(ended.message, sent=sent, hint=ended.hint, peer=ended.peer)
        error.__cause__ = ended.__cause__
        return error

    def _end(self, reason: ChannelClosed) -> None:
        """There will be no more messages: whoever waits for one learns why."""
        if self.ended is not None:
            return
        self.ended = reason
        self.connection.close()
        for call in self._calls.values():
            _fail(call, self._end_of_it(sent=True))
        for task in self._asks.values():
            task.cancel()

    async def close(self) -> None:
        """End the conversation and the channel; afterwards nothing of them is left. Closing twice is fine.

        Notices that have arrived are told first, unless it is a callback for them that closes. Whoever waits
        for an answer gets `ChannelClosed`. A caller that is cancelled does not stop it.
        """
        if self._closing is None:
            self._end(ChannelClosed("the client was closed"))
            telling = self.spawn(self.lane.idle())
            self._closing = telling, self._loop.create_task(self._shut(telling))
        telling, closing = self._closing
        if self.lane.busy_with_us:
            telling.cancel()  # two that wait for each other would wait long
        await asyncio.shield(closing)

    async def _shut(self, telling: "asyncio.Task[None]") -> None:
        try:
            await self._hush(telling)
        finally:  # a loop that ends cancels us; a server process must not outlive it
            try:
                await self._channel.close()
            except Exception:
                logger.exception("the channel could not be closed in order")

    async def _hush(self, telling: "asyncio.Task[None]") -> None:
        """End every task of ours, and what they do, as far as it lets itself be ended."""
        self._reader.cancel()
        await asyncio.wait([telling], timeout=CLOSE_PATIENCE)
        self.lane.stop()
        tasks = [self._reader, *self._tasks]
        for task in tasks:
            task.cancel()
        _, stuck = await asyncio.wait(tasks, timeout=CLOSE_PATIENCE)
        if stuck:
            logger.warning("%d callbacks go on although the client was closed", len(stuck))


def _fail(call: Call, error: Exception) -> None:
    """Let whoever waits for the answer have an error."""
    if not call.answer.done():
        call.answer.set_exception(error)
