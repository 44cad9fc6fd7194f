"""Runs one connection over one channel: a task for each request that has to wait, none for the others.

Owns the tasks of a conversation and ends them with it. A `Handler` serves the requests; the channel moves the
bytes.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import IO, TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from toolpost.channel import Channel
from toolpost.errors import CapabilityNotDeclared, ChannelClosed, MCPError, TransportError
from toolpost.principal import Principal
from toolpost.protocol.connection import Connection
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
from toolpost.protocol.methods import INITIALIZE, RESOURCES_UNSUBSCRIBE, SERVER
from toolpost.server.context import Context
from toolpost.server.requests_to_client import MAX_URL_ELICITATIONS
from toolpost.server.runtime.change_broadcast import PendingChanges
from toolpost.server.runtime.dispatch import serve_request, to_rpc_error
from toolpost.server.runtime.eager_tasks import start_task
from toolpost.server.runtime.notifications import dispatch_notification, is_notification_handled
from toolpost.server.runtime.pending_requests import PendingClientRequests
from toolpost.server.state import State
from toolpost.token_bucket import WarningThrottle
from toolpost.types.base import RequestId
from toolpost.types.initialize import LogLevel
from toolpost.types.notifications import ElicitationCompleteParams, NotificationParams, ResourceUpdatedParams

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

logger: Final = logging.getLogger("toolpost.server")

CANCEL_TIMEOUT: Final = 2.0
"""Seconds to wait for cancelled functions after a disconnect."""

MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of responses that may wait for a client in memory; beyond that, the server stops reading from it, and
responses to calls that have begun wait on disk."""

RESPONSE_OVERHEAD: Final = 2048
"""Memory that a waiting response takes in addition to its data, in bytes."""

MAX_NESTED: Final = 8
"""Conversations of one event loop that take a message inside each other: servers may call each other in a
process."""

_TAKING: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, list["ServerConversation"]]] = WeakKeyDictionary()
"""By event loop: the conversations that take a message at this moment, each inside the one before it."""


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
        self.connection = Connection(handler.local_peer, limit=handler.max_in_flight)
        # On a channel over HTTP (`sse`), each request has its own headers and principal.
        self._http_channel: Any = channel if hasattr(channel, "principal_of") else None
        # Some channels call `take_message` instead of returning a message from `receive`.
        self._serve: Callable[[Callable[[bytes], bool] | None], None] | None = getattr(channel, "serve", None)
        self.connection.is_unordered = self._http_channel is not None
        self.lifespan = lifespan
        self.is_remote = not getattr(channel, "local", False)
        self._principal = Principal.from_value(principal)
        self._state: State | None = None
        self.uris: tuple[str, ...] = ()
        self._url_elicitations: dict[str, None] = {}
        # By request, not by id: the client may reuse the id of a cancelled request that still runs.
        self._request_tasks: dict[InboundRequest, asyncio.Task[Any]] = {}
        self._is_handshaking = self._is_sending_changes = self._is_processing = False
        loop = asyncio.get_running_loop()
        self._taking = _TAKING.setdefault(loop, [])
        self.warnings = WarningThrottle()
        self._deferred: list[tuple[bytes, Principal | None]] = []
        self._pending_changes = PendingChanges()
        self._client_requests = PendingClientRequests(self, loop)
        self.ask = self._client_requests.send_request
        self._lifespans = AsyncExitStack()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._delivery = ResponseDelivery(channel, self.run_in_background)

    @property
    def identity(self) -> object:
        """The key for rate limits, if the principal is unknown."""
        return self

    endpoint = identity

    async def run(self) -> None:
        """Serve until the channel closes, then cancel everything that still runs."""
        web = self._http_channel
        self.handler.broadcaster.add_subscriber(self)
        try:
            if self._serve is not None:
                self._serve(self.take_message)
            while True:
                await self._delivery.wait_until_writable()
                data = await self.channel.receive()
                sender = None if web is None else web.principal_of(None)
                if not self._is_handshaking:
                    await self._process(data, sender)
                else:
                    self._defer(data, sender)
        except ChannelClosed as error:
            logger.debug("conversation ended: %s", error)
            await self._delivery.wait_until_sent()  # a client that has stopped sending may still read
        finally:
            self.handler.broadcaster.remove_subscriber(self)
            if self._serve is not None:
                self._serve(None)
            await self._end()

    def _defer(self, data: bytes, sender: Principal | None) -> None:
        if len(self._deferred) >= self.connection.limit:
            raise ChannelClosed("the client sent too many messages before the handshake was complete")
        self._deferred.append((data, sender))

    async def hand_over(self, handler: "Handler") -> None:
        """Let another handler serve all later messages, and hold its lifespan open until the end."""
        lifespan = await self._lifespans.enter_async_context(handler.hold_lifespan())
        self.handler.broadcaster.remove_subscriber(self)
        self.handler, self.lifespan = handler, lifespan
        self.connection.local_peer, self.connection.limit = handler.local_peer, handler.max_in_flight
        handler.broadcaster.add_subscriber(self)

    def get_request_task(self, incoming: InboundRequest) -> "asyncio.Task[Any] | None":
        """Return the task that serves a request, if there is one."""
        return self._request_tasks.get(incoming)

    def headers_of(self, incoming: InboundRequest | None) -> Mapping[str, str]:
        """Return the HTTP headers of a request; none on other transports."""
        web = self._http_channel
        return {} if incoming is None or web is None else web.headers_of(incoming.id)

    def principal_of(self, incoming: InboundRequest) -> Principal | None:
        """Return the principal of a request: over HTTP, each request has its own token."""
        found = None if self._http_channel is None else self._http_channel.principal_of(incoming.id)
        return found or self._principal

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Do nothing: a channel has no stream to resume."""

    def open_session_state(self) -> State:
        """Return the state of the session, which ends with the conversation."""
        if self._state is None:
            self._state = State.in_memory()
        return self._state

    async def set_subscription(self, uri: str, *, is_active: bool) -> None:
        """Subscribe the session to a resource, or unsubscribe it."""
        others = tuple(each for each in self.uris if each != uri)
        self.uris = (*others, uri) if is_active else others

    async def set_log_level(self, level: LogLevel) -> None:
        """Change the log level of the session."""
        self.connection.log_level = level

    def add_url_elicitation(self, elicitation_id: str) -> None:
        """Remember a URL elicitation, so that the client can be notified of its end."""
        self._url_elicitations[elicitation_id] = None
        if len(self._url_elicitations) > MAX_URL_ELICITATIONS:
            del self._url_elicitations[next(iter(self._url_elicitations))]

    async def drain(self) -> None:
        """End subscriptions, and wait until every running request has its answer."""
        self.handler.end_subscriptions(self)
        while self._request_tasks:
            await asyncio.wait(self._request_tasks.values())
        await self._delivery.wait_until_sent()

    async def _end(self) -> None:
        self._client_requests.fail_lost(self.connection.close())
        tasks = {*self._request_tasks.values(), *self._background_tasks}
        for task in tasks:
            task.cancel()
        try:
            try:
                await _wait_cancelled(tasks)
            except asyncio.CancelledError:
                await _wait_cancelled(tasks)  # nothing else waits for them
                raise
            for uri in self.uris:
                await self._run_logged(
                    self.handler.unsubscribe(uri, self._make_context(RESOURCES_UNSUBSCRIBE))
                )
        finally:
            self.handler.end_session(self.identity)
            await self.channel.close()
            await self._lifespans.aclose()

    # ----------------------------------------------------------------- receiving

    async def _process(self, data: bytes, sender: Principal | None) -> None:
        self._is_processing = True  # what comes meanwhile waits for its turn
        try:
            for event in self._receive(data):
                await self.process_event(event, sender)
        finally:
            self._is_processing = False

    def _receive(self, data: bytes) -> list[ConnectionEvent]:
        if self.connection.peer is None:  # once there is a session, its capabilities stay as declared
            self.connection.local_peer = self.handler.local_peer
        return self.connection.receive(data)

    async def process_event(self, event: ConnectionEvent, sender: Principal | None = None) -> None:
        """Act on an event; `sender` is the principal of its message, where each message has one."""
        data = self._handle(event, sender)
        if data is not None:
            await self._delivery.answer(data, _get_id(event))
        elif isinstance(event, CancellationReceived) and self._http_channel is not None:
            await self._http_channel.drop(event.request.id)

    def _handle(self, event: ConnectionEvent, sender: Principal | None) -> bytes | None:
        """Act on an event; return the response to send if there is one already."""
        if type(event) is InboundRequest:
            return self._begin_response(event)
        if isinstance(event, InvalidMessageReceived):
            logger.debug("rejected: %s", event.error)
            return event.data
        if isinstance(event, ResponseReceived | ErrorReceived):
            self._client_requests.resolve(event)
        elif isinstance(event, CancellationReceived):
            request = event.request
            task = self._request_tasks.get(request)
            logger.debug("%s (id %.100r) was cancelled: %.200s", request.row.name, request.id, event.reason)
            if task is not None:
                task.cancel()
        elif isinstance(event, NotificationReceived):
            self._on_notification(event, sender)
        elif isinstance(event, MessageDropped):
            logger.debug("dropped: %s %s", event.reason, event.error or "")
        return None

    def take_message(self, data: bytes) -> bool:
        """For channels: process the next message without a turn of the loop for it; False if it must wait."""
        delivery, taking = self._delivery, self._taking
        if self._is_processing or self._is_handshaking or delivery.queued or delivery.unsent_bytes:
            return False
        if len(taking) >= MAX_NESTED:
            return False
        self._is_processing = True  # within one process, the peer may reply before this returns
        taking.append(self)
        try:
            for event in self._receive(data):
                is_request = type(event) is InboundRequest
                response = self._begin_response(event) if is_request else self._handle(event, None)
                if response is not None and not delivery.offer(response):
                    delivery.send_later(response, _get_id(event))
        finally:
            taking.pop()
            self._is_processing = False
        return True

    def _begin_response(self, incoming: InboundRequest) -> bytes | None:
        """Return the response if it is ready at once; otherwise a task sends it."""
        principal = self._principal if self._http_channel is None else self.principal_of(incoming)
        context = Context(
            self.handler, self, incoming.row.name, incoming, lifespan=self.lifespan, principal=principal
        )
        outcome = start_task(self._run_request(context, incoming))
        if outcome is None or isinstance(outcome, bytes):
            return outcome
        self._request_tasks[incoming] = outcome
        return None

    async def _run_request(self, context: Context, incoming: InboundRequest) -> bytes | None:
        """Return the response to a request; if the request had to wait, send the response."""
        if incoming.row.name == INITIALIZE:
            self._is_handshaking = True
        try:
            try:
                data, _ = await serve_request(context)
            except asyncio.CancelledError as error:
                if self.connection.incoming.get(incoming.id) is not incoming:
                    raise
                # The function has cancelled its own task.
                data = self.connection.fail(incoming.id, to_rpc_error(incoming, error))
            if incoming not in self._request_tasks:
                self._is_handshaking = False
                return data  # it did not wait
            if data is not None and not self._delivery.offer(data):
                delivery = self._delivery.deliver(data, incoming.id)
                del data  # it may have to wait on disk
                await delivery
            if incoming.row.name == INITIALIZE:
                await self._end_handshake()
        finally:
            self._request_tasks.pop(incoming, None)
        return None

    async def _end_handshake(self) -> None:
        """Process the messages that came before the handshake was answered."""
        try:
            while self._deferred:
                await self._process(*self._deferred.pop(0))
        except ChannelClosed as error:
            logger.debug("the client disconnected during the handshake: %s", error)
        self._is_handshaking = False

    def _on_notification(self, event: NotificationReceived, sender: Principal | None) -> None:
        if not is_notification_handled(self.handler, event):
            return
        if len(self._background_tasks) >= self.connection.limit:
            text = "dropped %.100s: %d notifications are being handled"
            logger.log(self.warnings.choose_level(), text, event.method, len(self._background_tasks))
            return
        self.run_in_background(
            dispatch_notification(self.handler, self, self.lifespan, event, sender or self._principal)
        )

    # ----------------------------------------------------------------- sending

    def _make_context(self, method: str) -> Context:
        """Return a context that belongs to no request."""
        return Context(self.handler, self, method, lifespan=self.lifespan, principal=self._principal)

    async def send(self, data: bytes, related: RequestId | None = None, *, outlives: bool = False) -> None:
        """Send a message to the client."""
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
        if method not in connection.revision.notifications[SERVER]:
            return  # of an extension
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
            try:
                await self._make_context(method).send_notification(method, params)
            except CapabilityNotDeclared:
                logger.debug("%s was not sent: the server does not declare it", method)
        self._is_sending_changes = False

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[None]":
        """Run a coroutine in a task that ends with the conversation."""
        task = asyncio.create_task(self._run_logged(work))
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it starts
        return task

    async def _run_logged(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except TransportError as error:
            logger.debug("background task stopped: %s", error)
        except MCPError as error:
            level = self.warnings.choose_level()
            logger.log(level, "a notification could not be handled: %.1000s", error)
        except BaseException:  # an error of a function must not end the conversation or the process
            logger.exception("a notification could not be handled")


def _get_id(event: ConnectionEvent) -> RequestId | None:
    """Return the id of a request, or of an invalid message if it was readable."""
    return event.id if isinstance(event, InboundRequest | InvalidMessageReceived) else None


def _refuse(_: bytes) -> bool:
    return False


async def _wait_cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Wait until cancelled tasks have ended, `CANCEL_TIMEOUT` at most."""
    if tasks:
        _, stuck = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)
        for task in stuck:
            logger.error("task did not stop when it was cancelled: %r", task)


class ResponseDelivery:
    """Backpressure: counts the responses that wait for a client that reads slowly."""

    __slots__ = (
        "_answer", "_file", "_on_disk", "_send", "_spawn", "_turn", "_writable", "offer", "queued",
        "unsent_bytes",
    )  # fmt: skip

    def __init__(
        self, channel: Channel, spawn: Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[None]"]
    ) -> None:
        self._send = channel.send
        # Takes a response at once if it can: a channel with one stream, unless it is full.
        self.offer: Callable[[bytes], bool] = getattr(channel, "offer", _refuse)
        # A channel on which each request has a stream of its own ends it with the response.
        self._answer: Callable[[bytes, RequestId], Awaitable[None]] | None = getattr(channel, "answer", None)
        self._spawn = spawn
        self.queued: set[asyncio.Task[None]] = set()  # of the responses of `send_later`, until they are sent
        self.unsent_bytes = 0
        self._writable: asyncio.Event | None = None
        self._file: IO[bytes] | None = None  # has the responses that wait on disk
        self._on_disk = 0  # how many they are
        self._turn = asyncio.Lock()  # lets them go on, first come, first served

    def send_later(self, data: bytes, request_id: RequestId | None) -> None:
        """Send a response in the background."""
        task = self._spawn(self.deliver(data, request_id))
        self.queued.add(task)
        task.add_done_callback(self.queued.discard)

    async def deliver(self, data: bytes, request_id: RequestId | None) -> None:
        """Send a response that may have to wait until the client reads."""
        if self._is_full():
            waiting = self._wait_on_disk(data)
            del data
            data = await waiting
        size = len(data) + RESPONSE_OVERHEAD
        self.unsent_bytes += size
        try:
            await self.answer(data, request_id)
        except ChannelClosed:
            logger.debug("the client disconnected before the response to %r was sent", request_id)
        finally:
            self.unsent_bytes -= size
            if self.unsent_bytes <= MAX_UNSENT_BYTES and self._writable is not None:
                self._writable.set()

    async def _wait_on_disk(self, data: bytes) -> bytes:
        """Keep a response in a file until there is room: calls that have begun return any number of them."""
        from tempfile import TemporaryFile  # noqa: PLC0415 - start-up time; few servers need it

        file = self._file = self._file or TemporaryFile()  # noqa: SIM115 - closed below
        start, size = file.seek(0, os.SEEK_END), file.write(data)
        del data
        self._on_disk += 1
        try:
            async with self._turn:
                await self._wait_for_room()
            file.seek(start)
            return file.read(size)
        finally:
            self._on_disk -= 1
            if not self._on_disk:
                file.close()
                self._file = None

    async def answer(self, data: bytes, request_id: RequestId | None) -> None:
        """Send a response. Raises ChannelClosed if the client has disconnected."""
        if self._answer is None or request_id is None:
            await self._send(data, request_id)
        else:
            await self._answer(data, request_id)

    async def wait_until_writable(self) -> None:
        """Wait until at most `MAX_UNSENT_BYTES` of responses wait, and none of them on disk."""
        while self._is_full():
            async with self._turn:
                await self._wait_for_room()

    def _is_full(self) -> bool:
        return self.unsent_bytes > MAX_UNSENT_BYTES or self._turn.locked()

    async def _wait_for_room(self) -> None:
        while self.unsent_bytes > MAX_UNSENT_BYTES:
            self._writable = asyncio.Event()
            await self._writable.wait()

    async def wait_until_sent(self) -> None:
        """Wait until all responses of `send_later` are sent."""
        if self.queued:
            await asyncio.wait(self.queued)
