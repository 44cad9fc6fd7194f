"""Runs one connection over one channel: a task for each request that has to wait, none for the others.

Owns the tasks of a conversation and ends them with it. Requests are served by a `Handler`; bytes are the
channel's business.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable
from weakref import getweakrefcount

from toolpost.channel import Channel
from toolpost.errors import CapabilityNotDeclared, ChannelClosed, InternalError, MCPError, TransportError
from toolpost.principal import Principal
from toolpost.protocol import receive
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    NotificationReceived,
    ResponseReceived,
)
from toolpost.protocol.jsonrpc import JSONRPCRequest
from toolpost.protocol.methods import INITIALIZE, RESOURCES_UNSUBSCRIBE
from toolpost.server.context import Context
from toolpost.server.options import HTTP
from toolpost.server.runtime.change_broadcast import PendingChanges
from toolpost.server.runtime.delivery import ResponseDelivery
from toolpost.server.runtime.eager import StartedTask, is_pending, start_eagerly, start_eagerly_in
from toolpost.server.runtime.fast_path import StartedCall, call_bare
from toolpost.server.runtime.hibernation import Rested
from toolpost.server.runtime.notifications import dispatch_notification, is_notification_handled
from toolpost.server.runtime.pending_requests import PendingClientRequests
from toolpost.server.runtime.request import RouteResult, build_error_response, build_response, start_request
from toolpost.types.base import RequestId
from toolpost.types.notifications import ElicitationCompleteParams, NotificationParams, ResourceUpdatedParams

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

logger: Final = logging.getLogger("toolpost.server")

HANDSHAKE_TIMEOUT: Final = HTTP.handshake
"""Seconds that a server may take to answer `initialize`."""

_HAS_REFCOUNTS: Final = hasattr(sys, "getrefcount")

CANCEL_TIMEOUT: Final = 2.0
"""Seconds that cancelled functions get to end when their client has gone."""


@runtime_checkable
class _SupportsHttpRequests(Protocol):
    """A channel over HTTP: each request has headers and a stream of its own."""

    def headers_of(self, request_id: RequestId, /) -> Mapping[str, str]: ...

    def principal_of(self, request_id: RequestId | None, /) -> Principal | None: ...

    async def interrupt(self, request_id: RequestId, /) -> None: ...

    async def drop(self, request_id: RequestId, /) -> None: ...

    def settle(self, data: bytes, request_id: RequestId, /) -> bool: ...


@runtime_checkable
class _SupportsPush(Protocol):
    """A channel that hands messages over by a call, while the conversation waits for one."""

    def serve(self, taker: "ServerConversation | None", /) -> None: ...


class ServerConversation:
    """The server side of one client connection, for as long as its channel is open."""

    def __init__(
        self,
        handler: "Handler",
        channel: Channel,
        lifespan: Any = None,
        *,
        principal: Principal | str | None = None,
    ) -> None:
        self.handler = handler
        self.channel = channel
        self.connection = handler.create_connection()
        self._rested: Rested | None = getattr(channel, "rested", None)
        if self._rested is not None:
            self._rested.connect(self.connection)
        self._holders = (0, 0, 0)
        self._http_channel = channel if isinstance(channel, _SupportsHttpRequests) else None
        # Over HTTP this loop is always the running one. In memory another one may be.
        self._start: Callable[[Coroutine[Any, Any, Any]], Any] = (
            start_eagerly
            if self._http_channel is None
            else partial(start_eagerly_in, asyncio.get_running_loop())
        )
        self._push_channel = channel if isinstance(channel, _SupportsPush) else None
        self.connection.is_unordered = self._http_channel is not None
        self.lifespan = lifespan
        self.is_remote = not getattr(channel, "local", False)
        self._principal = Principal.from_value(principal)
        self.state: dict[str, Any] = {}
        self.subscribed_uris: set[str] = set()
        self.url_elicitations: dict[str, None] = {}
        self._request_tasks: dict[RequestId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_handshaking = self._is_sending_changes = self._is_processing = False
        # Lists and None instead of a deque and a stack: an idle session should be small.
        self._deferred: list[tuple[bytes, Principal | None]] = []
        self._pending_changes = PendingChanges()
        self._client_requests = PendingClientRequests(self)
        self.ask = self._client_requests.send_request
        self._lifespans: AsyncExitStack | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._delivery = ResponseDelivery(channel, self.run_in_background)

    async def run(self) -> None:
        """Serve until the channel closes, then cancel everything that still runs."""
        web = self._http_channel
        self.handler.broadcaster.add_subscriber(self)
        try:
            if self._push_channel is not None:
                self._push_channel.serve(self)
            if self._rested is not None:
                self._rested.end()
                for method, params in self._rested.news:
                    self.on_change(method, params)
                self._rested = None
            while True:
                await self._delivery.wait_until_writable()
                data = await self.channel.receive()
                sender = None if web is None else web.principal_of(None)
                if not self._is_handshaking:
                    await self._process(data, sender)
                else:
                    self._defer(data, sender)
        except ChannelClosed as error:
            logger.debug("conversation over: %s", error)
            await self._delivery.wait_until_sent()  # a client that sends no more may still read
        finally:
            self.handler.broadcaster.remove_subscriber(self)
            if self._push_channel is not None:
                self._push_channel.serve(None)
            await self._end()

    async def hand_over(self, handler: "Handler") -> None:
        """Let another handler serve all later messages; its lifespan is held open until the end."""
        if self._lifespans is None:
            self._lifespans = AsyncExitStack()
        lifespan = await self._lifespans.enter_async_context(handler.hold_lifespan())
        self.handler.broadcaster.remove_subscriber(self)
        self.handler, self.lifespan = handler, lifespan
        self.connection.extra, self.connection.limit = handler.extra_methods, handler.max_in_flight
        handler.broadcaster.add_subscriber(self)

    def _defer(self, data: bytes, sender: Principal | None) -> None:
        """Keep a message that came before the handshake is answered."""
        if len(self._deferred) >= self.connection.limit:
            raise ChannelClosed("the client said too much before its handshake was answered")
        self._deferred.append((data, sender))

    async def _process(self, data: bytes, sender: Principal | None) -> None:
        if self.connection.peer is None:  # once there is a session, its capabilities stay as declared
            self.connection.local_peer = self.handler.local_peer
        for event in self.connection.receive(data):
            await self.process_event(event, sender)

    def get_request_task(self, incoming: InboundRequest) -> "asyncio.Task[None] | None":
        """Return the task that serves a request, if there is one."""
        return self._request_tasks.get(incoming.id)

    def headers_of(self, incoming: InboundRequest | None) -> Mapping[str, str]:
        """Return the HTTP headers of a request; none on other transports."""
        if incoming is None or self._http_channel is None:
            return {}
        return self._http_channel.headers_of(incoming.id)

    def principal_of(self, incoming: InboundRequest | None) -> Principal | None:
        """Return the principal of a request: over HTTP, each has a token of its own."""
        if incoming is not None and self._http_channel is not None:
            return self._http_channel.principal_of(incoming.id) or self._principal
        return self._principal

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Let the client of a request come back for the rest of its stream, where that is possible."""
        if self._http_channel is not None:
            await self._http_channel.interrupt(incoming.id)

    async def drain(self) -> None:
        """Wait until every running request has its answer."""
        while self._request_tasks:
            await asyncio.wait(self._request_tasks.values())
        await self._delivery.wait_until_sent()

    async def _end(self) -> None:
        self._client_requests.fail_lost(self.connection.close())
        tasks = self._tasks | self._background_tasks
        for task in tasks:
            task.cancel()
        try:
            try:
                await _wait_cancelled(tasks)
            except asyncio.CancelledError:
                await _wait_cancelled(tasks)  # they are ending, and nothing else waits for them
                raise
            for uri in self.subscribed_uris:
                context = Context(self.handler, self, RESOURCES_UNSUBSCRIBE, lifespan=self.lifespan)
                await self._run_logged(self.handler.unsubscribe(uri, context))
        finally:
            await self.channel.close()
            if self._lifespans is not None:
                await self._lifespans.aclose()

    # ----------------------------------------------------------------- receiving

    async def process_event(self, event: ConnectionEvent, sender: Principal | None = None) -> None:
        """Act on an event; `sender` is the principal of its message, where each message has one."""
        if isinstance(event, InboundRequest):
            await self._serve(event)
        elif isinstance(event, InvalidMessageReceived):
            logger.debug("refused: %s", event.error)
            if event.data is not None:
                await self._delivery.answer(event.data, event.id)
        else:
            self._process_silent_event(event, sender)
            if isinstance(event, CancellationReceived) and self._http_channel is not None:
                await self._http_channel.drop(event.request.id)

    def _process_silent_event(self, event: ConnectionEvent, sender: Principal | None) -> None:
        """Act on an event that has no answer."""
        if isinstance(event, ResponseReceived | ErrorReceived):
            self._client_requests.resolve(event)
        elif isinstance(event, CancellationReceived):
            task = self._request_tasks.get(event.request.id)
            request = event.request
            logger.debug("%s (id %r) is cancelled: %s", request.row.name, request.id, event.reason)
            if task is not None:
                task.cancel()
        elif isinstance(event, NotificationReceived):
            self._on_notification(event, sender)
        elif isinstance(event, MessageDropped):
            logger.debug("dropped: %s %s", event.reason, event.error or "")

    def settle_in(self) -> None:
        """For channels: count the references to this conversation before any function could keep it."""
        if _HAS_REFCOUNTS:
            self._holders = sys.getrefcount(self), sys.getrefcount(self.state), getweakrefcount(self)

    def rest(self, key: str, wake: Callable[[str], object]) -> Rested | None:
        """For channels: return a snapshot for hibernation, or None while the session is in use."""
        kept = self.state or self.subscribed_uris or self.url_elicitations or self._lifespans is not None
        busy = self._tasks or self._background_tasks or self._deferred or self._pending_changes
        if kept or busy or not self.is_free() or not _HAS_REFCOUNTS:
            return None
        if (sys.getrefcount(self), sys.getrefcount(self.state), getweakrefcount(self)) != self._holders:
            return None
        announcer = self.handler.broadcaster
        rested = Rested.from_connection(self.connection, announcer, key, wake, known=self.handler.peers)
        if rested is None:
            return None
        announcer.remove_subscriber(self)
        announcer.add_subscriber(rested)
        return rested

    def is_free(self) -> bool:
        """For channels: return whether the next message may go to `take_data`."""
        return not (self._is_handshaking or self._is_processing) and self._delivery.is_free

    def take_data(self, data: bytes) -> None:
        """For channels: process the next message without a turn of the loop for it."""
        self._is_processing = True  # in one process, the peer may reply before this is done
        try:
            if self.connection.peer is None:
                self.connection.local_peer = self.handler.local_peer
            for event in self.connection.receive(data):
                if isinstance(event, InboundRequest):
                    said = self._begin_request(event)
                elif isinstance(event, InvalidMessageReceived):
                    logger.debug("refused: %s", event.error)
                    said = event.data
                else:
                    self._process_silent_event(event, None)
                    continue
                if said is not None:
                    self._delivery.send_soon(said, event.id)
        finally:
            self._is_processing = False

    def begin(self, request: JSONRPCRequest) -> "bytes | tuple[InboundRequest, StartedCall | None]":
        """For channels: return the answer to the next request, or what to call `go_on` with at once."""
        connection = self.connection
        if connection.peer is None:
            connection.local_peer = self.handler.local_peer
        event = receive.handle_request(connection, request, None, None)
        if not isinstance(event, InboundRequest):
            assert isinstance(event, InvalidMessageReceived), "a request is taken or refused"
            logger.debug("refused: %s", event.error)
            return event.data or b""
        tool = self.handler.find_fast_path_tool(event)
        started = None if tool is None else call_bare(tool, connection.local_peer, event, self._start)
        if isinstance(started, bytes):
            return started if connection.mark_answered(event.id) else b""
        return event, started

    def go_on(self, incoming: InboundRequest, started: StartedCall | None) -> None:
        """For channels: serve a request that `begin` has started, and whose answer they settle."""
        assert self._http_channel is not None, "only HTTP calls this"
        data = self._continue_request(incoming, started)
        if data is None and incoming.id not in self._request_tasks:
            data = b""  # it was cancelled
        if data is not None and not self._http_channel.settle(data, incoming.id):
            self.run_in_background(self._delivery.answer(data, incoming.id))  # behind what was sent before

    async def _serve(self, incoming: InboundRequest) -> None:
        data = self._begin_request(incoming)
        if data is not None:
            await self._delivery.answer(data, incoming.id)

    def _begin_request(self, incoming: InboundRequest) -> bytes | None:
        """Return the answer if there is one at once; else serve the request in a task."""
        tool = self.handler.find_fast_path_tool(incoming)
        if tool is None:
            return self._continue_request(incoming, None)
        started = call_bare(tool, self.connection.local_peer, incoming, self._start)
        if isinstance(started, bytes):
            return started if self.connection.mark_answered(incoming.id) else None
        return self._continue_request(incoming, started)

    def _continue_request(self, incoming: InboundRequest, started: StartedCall | None) -> bytes | None:
        """Return the answer if there is one at once; else serve the request in a task."""
        handler, connection = self.handler, self.connection
        try:
            context = Context(handler, self, incoming.row.name, incoming, lifespan=self.lifespan)
            begun = (
                start_request(handler.routes, handler.middleware, context, incoming)
                if started is None
                else started.go_on(context)
            )
            if not is_pending(begun):
                return connection.reply(incoming.id, begun)
            if incoming.row.name == INITIALIZE:
                self._is_handshaking = True
                task = asyncio.create_task(self._finish_handshake(incoming, begun))
                self._track_task(incoming.id, task, begun)
                return None
            answering = build_response(connection, incoming, begun)
            rest = None if started is None else started.rest
            going: StartedTask[bytes | None] | bytes | None = (
                cast("StartedTask[bytes | None]", rest)
                if isinstance(rest, StartedTask)
                else self._start(answering)
            )
        except BaseException as error:  # noqa: BLE001 - nothing is awaited here: it belongs to this request
            return build_error_response(connection, incoming, error)
        if not isinstance(going, StartedTask):
            return going
        finishing = self._finish(incoming, answering if going is rest else going)
        self._track_task(incoming.id, going.resume_with(finishing))
        return None

    def _track_task(
        self, request_id: RequestId, task: asyncio.Task[None], begun: Awaitable[Any] | None = None
    ) -> None:
        """Remember the task that serves a request, and awaits `begun` unless it is cancelled before."""
        self._request_tasks[request_id] = task
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, request_id, begun))

    def _on_task_done(
        self, request_id: RequestId, begun: Awaitable[Any] | None, task: asyncio.Task[None]
    ) -> None:
        if iscoroutine(begun):
            begun.close()  # if its task was cancelled before it started, it was never awaited
        self._tasks.discard(task)
        if self._request_tasks.get(request_id) is task:
            del self._request_tasks[request_id]

    async def _finish_handshake(self, incoming: InboundRequest, pending: Awaitable[RouteResult]) -> None:
        """Answer the handshake, then process what the client has sent in the meantime."""

        async def await_handshake() -> RouteResult:
            limit = asyncio.timeout(HANDSHAKE_TIMEOUT)
            try:
                async with limit:
                    return await pending
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise InternalError(
                    f"the handshake was not answered within {HANDSHAKE_TIMEOUT:g} s"
                ) from error

        await self._finish(incoming, build_response(self.connection, incoming, await_handshake()))
        try:
            while self._deferred:
                await self._process(*self._deferred.pop(0))
        except ChannelClosed as error:
            logger.debug("the client has gone before what it said could be answered: %s", error)
        self._is_handshaking = False

    async def _finish(self, incoming: InboundRequest, answering: Awaitable[bytes | None]) -> None:
        try:
            data = await answering
        except asyncio.CancelledError as error:
            data = build_error_response(self.connection, incoming, error)
            if data is None:  # otherwise the function has cancelled itself
                raise
        if data is not None and not self._delivery.offer(data):
            await self._delivery.deliver(data, incoming.id)

    def _on_notification(self, event: NotificationReceived, sender: Principal | None) -> None:
        if not is_notification_handled(self.handler, event):
            return
        if len(self._background_tasks) >= self.connection.limit:
            logger.warning(
                "dropped: %s, because %d notices are being served", event.method, len(self._background_tasks)
            )
            return
        self.run_in_background(dispatch_notification(self.handler, self, self.lifespan, event, sender))

    # ----------------------------------------------------------------- sending

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Hand a message over to the peer."""
        await self.channel.send(data, related)

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Send a change to a client of the session era, if it wants it."""
        connection = self.connection
        if connection.peer is None or connection.lifecycle.state != "ready":
            return
        if isinstance(params, ResourceUpdatedParams) and params.uri not in self.subscribed_uris:
            return
        if isinstance(params, ElicitationCompleteParams):
            if params.elicitation_id not in self.url_elicitations:
                return  # another client's (ELIC-16), or sent before
            del self.url_elicitations[params.elicitation_id]
        self._pending_changes.add(method, params)
        if not self._is_sending_changes:
            self._is_sending_changes = True
            self.run_in_background(self._send_changes())

    async def _send_changes(self) -> None:
        """Send the pending changes, as fast as the client reads."""
        while self._pending_changes:
            method, params = self._pending_changes.pop()
            context = Context(self.handler, self, method, lifespan=self.lifespan)
            try:
                await context.send_notification(method, params)
            except CapabilityNotDeclared:
                logger.debug("not told: %s was declared neither then nor now", method)
        self._is_sending_changes = False

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in a task that ends with the conversation."""
        task = asyncio.create_task(self._run_logged(work))
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        task.add_done_callback(lambda _: work.close())  # as above

    async def _run_logged(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except TransportError as error:
            logger.debug("left undone: %s", error)
        except MCPError as error:
            logger.warning("a notice could not be served: %s", error)
        except BaseException:  # what a function raises ends neither the conversation nor the process
            logger.exception("a notice could not be served")


async def _wait_cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Wait until cancelled tasks have ended, `CANCEL_TIMEOUT` at most."""
    if tasks:
        _, stuck = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)
        for task in stuck:
            logger.error("left behind, because it does not end when it is cancelled: %r", task)
