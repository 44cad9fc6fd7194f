"""Runs one connection over one channel: a task for each request that has to wait, none for the others.

Owns the tasks of a conversation and ends them with it. Requests are served by a `Handler`; bytes are the
channel's business.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from toolpost.channel import Channel
from toolpost.errors import CapabilityNotDeclared, ChannelClosed, MCPError, TransportError
from toolpost.principal import Principal
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
from toolpost.protocol.methods import INITIALIZE, RESOURCES_UNSUBSCRIBE
from toolpost.server.client_requests import MAX_URL_ELICITATIONS
from toolpost.server.context import Context
from toolpost.server.runtime.change_broadcast import PendingChanges
from toolpost.server.runtime.delivery import ResponseDelivery
from toolpost.server.runtime.eager import start_task
from toolpost.server.runtime.notifications import dispatch_notification, is_notification_handled
from toolpost.server.runtime.pending_requests import PendingClientRequests
from toolpost.server.runtime.request import serve_request, to_rpc_error
from toolpost.types.base import RequestId
from toolpost.types.initialize import LogLevel
from toolpost.types.notifications import ElicitationCompleteParams, NotificationParams, ResourceUpdatedParams

if TYPE_CHECKING:
    from toolpost.server.handler import Handler
    from toolpost.server.state import State

logger: Final = logging.getLogger("toolpost.server")

CANCEL_TIMEOUT: Final = 2.0
"""Seconds that cancelled functions get to end when their client has gone."""


@runtime_checkable
class _SupportsHttpRequests(Protocol):
    """A channel over HTTP: each request has headers and a stream of its own."""

    def headers_of(self, request_id: RequestId, /) -> Mapping[str, str]: ...

    def principal_of(self, request_id: RequestId | None, /) -> Principal | None: ...

    async def interrupt(self, request_id: RequestId, /) -> None: ...

    async def drop(self, request_id: RequestId, /) -> None: ...


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
        self._http_channel = channel if isinstance(channel, _SupportsHttpRequests) else None
        self._push_channel = channel if isinstance(channel, _SupportsPush) else None
        self.connection.is_unordered = self._http_channel is not None
        self.lifespan = lifespan
        self.is_remote = not getattr(channel, "local", False)
        self._principal = Principal.from_value(principal)
        self._state: State | None = None
        self.uris: tuple[str, ...] = ()
        self._url_elicitations: dict[str, None] = {}
        self._request_tasks: dict[RequestId, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        """The requests that wait, those too whose id the client has used again."""
        self._is_handshaking = self._is_sending_changes = self._is_processing = False
        self._deferred: list[tuple[bytes, Principal | None]] = []
        self._pending_changes = PendingChanges()
        self._client_requests = PendingClientRequests(self, asyncio.get_running_loop())
        self.ask = self._client_requests.send_request
        self._lifespans = AsyncExitStack()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._delivery = ResponseDelivery(channel, self.run_in_background)

    @property
    def identity(self) -> object:
        """What a rate is limited by, if the principal is not known."""
        return self

    async def run(self) -> None:
        """Serve until the channel closes, then cancel everything that still runs."""
        web = self._http_channel
        self.handler.broadcaster.add_subscriber(self)
        try:
            if self._push_channel is not None:
                self._push_channel.serve(self)
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

    def get_request_task(self, incoming: InboundRequest) -> "asyncio.Task[Any] | None":
        """Return the task that serves a request, if there is one."""
        return self._request_tasks.get(incoming.id)

    def headers_of(self, incoming: InboundRequest | None) -> Mapping[str, str]:
        """Return the HTTP headers of a request; none on other transports."""
        if incoming is None or self._http_channel is None:
            return {}
        return self._http_channel.headers_of(incoming.id)

    def principal_of(self, incoming: InboundRequest) -> Principal | None:
        """Return the principal of a request: over HTTP, each has a token of its own."""
        found = None if self._http_channel is None else self._http_channel.principal_of(incoming.id)
        return found or self._principal

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Let the client of a request come back for the rest of its stream, where that is possible."""
        if self._http_channel is not None:
            await self._http_channel.interrupt(incoming.id)

    def open_session_state(self) -> "State":
        """Return the state of the session, which ends with the conversation."""
        if self._state is None:
            from toolpost.server.state import State  # noqa: PLC0415 - start-up time

            self._state = State.in_memory()
        return self._state

    async def set_uris(self, uris: tuple[str, ...]) -> None:
        """Change the resources that the session subscribes to."""
        self.uris = uris

    async def set_log_level(self, level: LogLevel) -> None:
        """Change the log level of the session."""
        self.connection.log_level = level

    def add_url_elicitation(self, elicitation_id: str) -> None:
        """Remember an elicitation by URL: the client may be notified of its end."""
        self._url_elicitations[elicitation_id] = None
        if len(self._url_elicitations) > MAX_URL_ELICITATIONS:
            del self._url_elicitations[next(iter(self._url_elicitations))]

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
            for uri in self.uris:
                context = Context(
                    self.handler,
                    self,
                    RESOURCES_UNSUBSCRIBE,
                    lifespan=self.lifespan,
                    principal=self._principal,
                )
                await self._run_logged(self.handler.unsubscribe(uri, context))
        finally:
            await self.channel.close()
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

    async def _serve(self, incoming: InboundRequest) -> None:
        data = self._begin_request(incoming)
        if data is not None:
            await self._delivery.answer(data, incoming.id)

    def _begin_request(self, incoming: InboundRequest) -> bytes | None:
        """Return the response if there is one at once; else a task sends it."""
        principal = self._principal if self._http_channel is None else self.principal_of(incoming)
        context = Context(
            self.handler, self, incoming.row.name, incoming, lifespan=self.lifespan, principal=principal
        )
        outcome = start_task(self._run_request(context, incoming))
        if isinstance(outcome, asyncio.Task):
            self._request_tasks[incoming.id] = outcome
            self._tasks.add(outcome)
            return None
        return outcome

    async def _run_request(self, context: Context, incoming: InboundRequest) -> bytes | None:
        """Return the response to a request; if that had to wait, send it."""
        task = asyncio.current_task()
        if incoming.row.name == INITIALIZE:
            self._is_handshaking = True
        try:
            try:
                data, _ = await serve_request(context)
            except asyncio.CancelledError as error:
                data = self._fail_if_waiting(incoming, error)
            if task not in self._tasks:
                self._is_handshaking = False
                return data  # it did not wait
            if data is not None and not self._delivery.offer(data):
                await self._delivery.deliver(data, incoming.id)
            if incoming.row.name == INITIALIZE:
                await self._end_handshake()
        finally:
            if task is not None:
                self._tasks.discard(task)
            if self._request_tasks.get(incoming.id) is task:
                del self._request_tasks[incoming.id]
        return None

    def _fail_if_waiting(self, incoming: InboundRequest, error: asyncio.CancelledError) -> bytes | None:
        """Return the response to a request whose function has cancelled itself; else raise again."""
        if self.connection.incoming.get(incoming.id) is not incoming:
            raise error
        return self.connection.fail(incoming.id, to_rpc_error(incoming, error))

    async def _end_handshake(self) -> None:
        """Process what the client has sent before its handshake was answered."""
        try:
            while self._deferred:
                await self._process(*self._deferred.pop(0))
        except ChannelClosed as error:
            logger.debug("the client has gone before what it said could be answered: %s", error)
        self._is_handshaking = False

    def _on_notification(self, event: NotificationReceived, sender: Principal | None) -> None:
        if not is_notification_handled(self.handler, event):
            return
        if len(self._background_tasks) >= self.connection.limit:
            logger.warning(
                "dropped: %s, because %d notices are being served", event.method, len(self._background_tasks)
            )
            return
        self.run_in_background(
            dispatch_notification(self.handler, self, self.lifespan, event, sender or self._principal)
        )

    # ----------------------------------------------------------------- sending

    async def send(self, data: bytes, related: RequestId | None = None, *, outlives: bool = False) -> None:
        """Hand a message over to the peer."""
        del outlives
        await self.channel.send(data, related)

    async def send_client_request(self, data: bytes, related: RequestId | None) -> None:
        """Send a request to the client."""
        await self.channel.send(data, related)

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Send a change to a client of the session era, if it wants it."""
        connection = self.connection
        if connection.peer is None or connection.lifecycle.state != "ready":
            return
        if isinstance(params, ResourceUpdatedParams) and params.uri not in self.uris:
            return
        if isinstance(params, ElicitationCompleteParams):
            if params.elicitation_id not in self._url_elicitations:
                return  # another client's (ELIC-16), or sent before
            del self._url_elicitations[params.elicitation_id]
        self._pending_changes.add(method, params)
        if not self._is_sending_changes:
            self._is_sending_changes = True
            self.run_in_background(self._send_changes())

    async def _send_changes(self) -> None:
        """Send the pending changes, as fast as the client reads."""
        while self._pending_changes:
            method, params = self._pending_changes.pop()
            context = Context(self.handler, self, method, lifespan=self.lifespan, principal=self._principal)
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
