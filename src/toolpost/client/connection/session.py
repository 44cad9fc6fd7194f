"""The session with a server as the methods of a client need it: limits, retries, notifications.

Runs each request over the connection, and again where `retry` allows it. Owns the state that is restored
after a reconnect: the listener and the log level. Leaves messages to `dispatcher`, the revision to
`negotiate`, reconnecting to `reconnect`, and lists and caches to `listing`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

from toolpost.channel import Channel, mark_unattended
from toolpost.client.callbacks import RequestCallbacks
from toolpost.client.changes import ChangeStream
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.negotiate import CachedRevision, Connector, Handshake, OpenedConnection
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.reconnect import Reconnector
from toolpost.client.connection.retry import CircuitBreaker, RetryPolicy
from toolpost.client.connection.status import ConnectionState, Stats, Transition
from toolpost.client.listing import ServerReader
from toolpost.client.options import ClientOptions, EventCallbacks, ProgressCallback
from toolpost.client.subscriptions import ChangeListener
from toolpost.errors import (
    AuthError,
    CapabilityNotDeclared,
    ChannelClosed,
    ConnectFailed,
    LocalProtocolError,
    MCPError,
    RateLimited,
    RequestFailed,
    RequestTimeout,
    RPCError,
    SessionLost,
    TransportError,
)
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.headers import UnsendableRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import LOGGING_SET_LEVEL, PING, SERVER_DISCOVER
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, Result
from toolpost.types.initialize import LogLevel, SetLevelParams
from toolpost.types.notifications import LogParams

DEFAULT_LOG_LEVEL: Final = "info"  # for `on_log`: a stateless server sends no log without a level
_OBJECT: Final = JSONReader(dict[str, JSON])

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger: Final = logging.getLogger("toolpost.client")


class ClientSession:
    """The session of one client, over all its connections."""

    def __init__(
        self,
        connector: Connector,
        party: LocalPeer,
        request_callbacks: RequestCallbacks,
        event_callbacks: EventCallbacks,
        options: ClientOptions,
    ) -> None:
        self.stats = Stats()
        self.reader = ServerReader(self, self.stats, strict=options.strict, cache=options.cache)
        self.listener: ChangeListener
        # Convert the results of extensions.
        self.result_resolvers: dict[type[Result], Callable[[Any], Awaitable[Result]]] = {}
        self.change_streams: set[ChangeStream] = set()  # the open `listen` loops
        self.name = connector.name  # the name of the server, whether it can be reached or not
        self._connector = connector
        self.local_peer = party
        self.request_callbacks = request_callbacks
        request_callbacks.describe_server = self._describe_server
        self._event_callbacks = event_callbacks
        self._options = options
        self._default_limits = tuple(
            options.make_limits(None, None, request_callbacks.threads, extendable=extendable)
            for extendable in (False, True)
        )
        self._requested_log_level: LogLevel | None = None
        self._state_to_restore: tuple[frozenset[str], LogLevel | None] | None = None
        on_state = event_callbacks.state
        self.connection_state = ConnectionState(
            None if on_state is None else partial(request_callbacks.threads.call_function, on_state)
        )
        self.reconnector = Reconnector(self._connect, self.connection_state, connector)
        self._breaker = CircuitBreaker()
        self._connect_scope: asyncio.Timeout | None = None

    # ----------------------------------------------------------------- the connection

    async def open(self) -> None:
        """Connect, unless connected."""
        self._breaker.allow_next()
        await self.reconnector.open()

    async def close(self) -> None:
        """Close the connection. Requests in flight fail with `ChannelClosed`."""
        try:
            for changes in list(self.change_streams):
                await changes.aclose(unsubscribe=False)
            await self.reconnector.close()
            self.reader.retry_safe_tools.clear()
            await self.connection_state.wait_callbacks()
        finally:
            self.request_callbacks.threads.close()

    @property
    def dispatcher(self) -> Dispatcher:
        """The connection. Raises `ChannelClosed` if there is none."""
        return self.reconnector.dispatcher

    @property
    def last_connection(self) -> OpenedConnection:
        """The current connection or the last one. Raises `LocalProtocolError` if there was none."""
        opened = self.reconnector.last_connection
        if opened is None:
            raise LocalProtocolError("the client has not connected yet")
        return opened

    async def _connect(self) -> OpenedConnection:
        wait, last = self._options.connect_timeout, self.reconnector.last_connection
        known = None if last is None else CachedRevision(last.revision, last.via_fallback)
        forgotten = last is not None and isinstance(last.dispatcher.end_reason, SessionLost)
        if self.reconnector.is_closed:
            self._state_to_restore = frozenset(), None
        elif self._state_to_restore is None:
            self._state_to_restore = self.listener.watched_uris, self._requested_log_level
        self._requested_log_level = None
        self.reader.reset()
        handshake = Handshake(
            self._connector,
            self.local_peer,
            self._start_dispatcher,
            known=known,
            ignore_cache=forgotten,
            probe_timeout=self._options.effective_probe_timeout,
        )
        try:
            async with asyncio.timeout(wait) as self._connect_scope:
                opened = await handshake.run()
        except TimeoutError:
            raise ConnectFailed(
                f"could not connect within {wait:g} s{handshake.process_report}",
                peer=self.name,
            ) from None
        try:
            await self._restore_state(opened, *self._state_to_restore)
        except BaseException:  # also a cancellation: no caller is left to close it
            await opened.dispatcher.close()
            raise
        self._state_to_restore = None
        self.stats.connections += 1
        self._breaker.record_success()
        if self._options.heartbeat is not None:
            with mark_unattended():
                opened.dispatcher.spawn(self._send_heartbeats(opened.dispatcher, self._options.heartbeat))
        return opened

    async def _send_heartbeats(self, dispatcher: Dispatcher, pause: float) -> None:
        """Ping the server, and end a connection that does not answer any more (PING-2)."""
        while True:
            await asyncio.sleep(pause)
            try:
                await self.ping(dispatcher, CallLimits(timeout=pause))
            except (RPCError, AuthError):
                pass  # that is an answer
            except MCPError as error:
                if isinstance(error, RequestFailed) and error.status is not None:
                    continue  # so is this
                dead = ChannelClosed(f"the server does not respond: {error.message}", peer=self.name)
                logger.warning("%s", dead)
                dispatcher.end(dead)
                return

    async def _restore_state(
        self, opened: OpenedConnection, uris: frozenset[str], level: LogLevel | None
    ) -> None:
        """Subscribe to changes and set the log level, as on the connection that was lost (SUB-9)."""
        limits = CallLimits(timeout=self._options.probe_timeout)
        try:
            await self.listener.start(limits, uris)
        except MCPError as error:
            logger.warning("could not subscribe to list changes: %.1000s", error)
        if not has_capability(opened.result.capabilities, "logging"):
            return
        self._requested_log_level = level
        if opened.revision.stateless:
            default = None if self._event_callbacks.log is None else DEFAULT_LOG_LEVEL
            opened.dispatcher.log_level = level or default
        elif level is not None:
            try:
                await opened.dispatcher.request(limits, LOGGING_SET_LEVEL, SetLevelParams(level=level))
            except MCPError as error:
                logger.warning("could not restore the log level %s: %.1000s", level, error)

    def _start_dispatcher(self, channel: Channel, revision: Revision) -> Dispatcher:
        connection = Connection(self.local_peer, revision=revision)
        dispatcher = Dispatcher(
            channel,
            connection,
            self.stats,
            on_client_request=self.request_callbacks.answer_request,
            on_notification=self._on_notification,
            find_header_parameters=self.reader.header_parameters.get,
            on_login_pending=self._on_login_pending,
        )
        self.listener = ChangeListener(
            dispatcher, lists=self._event_callbacks.notification is not None, on_gap=self.record_gap
        )
        return dispatcher

    def _on_login_pending(self, waiting: bool) -> None:
        """Suspend the connect timeout during a login."""
        scope, wait = self._connect_scope, self._options.connect_timeout
        if scope is None or wait is None:
            return
        left = None if waiting else asyncio.get_running_loop().time() + wait
        with contextlib.suppress(RuntimeError):  # the connection is there already, or was given up
            scope.reschedule(left)

    # ----------------------------------------------------------------- requests

    def make_limits(
        self, timeout: float | None, progress: ProgressCallback | None = None, *, extendable: bool = False
    ) -> CallLimits:
        """Return the limits of a request with this timeout and progress callback."""
        callback = progress or self._event_callbacks.progress
        if timeout is None and callback is None:
            return self._default_limits[extendable]
        return self._options.make_limits(
            timeout, callback, self.request_callbacks.threads, extendable=extendable
        )

    async def run_with_retry(
        self,
        work: Callable[[Dispatcher, CallLimits, *Ts], Awaitable[T]],
        limits: CallLimits,
        *arguments: *Ts,
        safe: bool | None = None,
        started: float | None = None,
    ) -> T:
        """Run some work over the connection, and again where `RetryPolicy` allows it, all within `limits`.

        `work` takes the connection, what is left of the limits, and the arguments.
        `safe` is whether it may be done again although the server may have got it. None means unknown: it is
        repeated only if it was certainly not served. False means never. `started` is the time of the loop.
        """
        policy, left, loop = None, limits, asyncio.get_running_loop()
        first = started = loop.time() if started is None else started
        while True:
            if self._breaker.failures:
                self._breaker.check(started, self.name)
            try:
                dispatcher = self.reconnector.current
                if dispatcher is None or dispatcher.end_reason is not None or dispatcher.loop is not loop:
                    left = await self.wait_connected(left)
                    dispatcher = self.dispatcher
                result = await work(dispatcher, left, *arguments)
            except UnsendableRequest:
                raise
            except (TransportError, RateLimited) as error:
                now = loop.time()
                self._record_failure(error, started, now)
                policy = policy or RetryPolicy(
                    self._options.retries, safe=safe, started=first, timeout=limits.timeout
                )
                pause = policy.next_delay(error, now)
                if pause is None or self.reconnector.is_closed:
                    raise
                left = limits.subtract(now - first + pause)
                logger.info("%s: retrying in %.1f s: %.1000s", self.name, pause, error)
                self.stats.retries += 1
                await asyncio.sleep(pause)
                started = loop.time()
            else:
                if self._breaker.failures:
                    self._breaker.record_success()
                    self.connection_state.enter(Transition("ready"))
                return result

    async def wait_connected(self, limits: CallLimits) -> CallLimits:
        """Wait for a connection; one that was lost is opened again. Return what is left of the limits."""
        if self.reconnector.is_connected:
            return limits
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(limits.timeout):
                await self.reconnector.ensure_connected()
        except TimeoutError:
            self.stats.timeouts += 1
            cause = self.reconnector.cause
            raise RequestTimeout(
                f"the connection was lost and not restored within {limits.timeout:g} s: {cause}",
                sent=False,
                peer=self.name,
            ) from cause
        return limits.subtract(loop.time() - started)

    def _record_failure(self, error: MCPError, started: float, now: float) -> None:
        """Count a request that has not reached the server although there is a connection."""
        if isinstance(error, RequestFailed) and not error.sent and self.reconnector.is_connected:
            pause = self._breaker.record_failure(started, now)
            if pause is not None:
                self.connection_state.enter(Transition("backoff", error, pause, self._breaker.failures))

    async def set_log_level(self, level: LogLevel, limits: CallLimits) -> None:
        """Request log messages of this level and above."""

        async def apply(dispatcher: Dispatcher, limits: CallLimits) -> None:
            if not dispatcher.connection.revision.stateless:
                await dispatcher.request(limits, LOGGING_SET_LEVEL, SetLevelParams(level=level))
            elif not has_capability(self.last_connection.result.capabilities, "logging"):
                raise CapabilityNotDeclared(
                    "logging", "the server does not offer 'logging'", peer=dispatcher.peer_name
                )
            else:
                dispatcher.log_level = level  # every request carries it from here on

        await self.run_with_retry(apply, limits, safe=True)
        self._requested_log_level = level

    async def ping(self, dispatcher: Dispatcher, limits: CallLimits) -> None:
        """Check that the server answers; in the stateless era by `server/discover`."""
        stateless = dispatcher.connection.revision.stateless
        await dispatcher.request(limits, SERVER_DISCOVER if stateless else PING)

    # ----------------------------------------------------------------- from the server

    def _describe_server(self) -> str:
        """Return the server's name for the user: ours, and the one it gives itself (ELIC-3)."""
        opened = self.reconnector.last_connection
        own = None if opened is None else opened.dispatcher.peer_name
        return self.name if own in {None, self.name} else f"{self.name} (it calls itself {own!r})"

    def _on_notification(self, event: NotificationReceived) -> None:
        self.reader.handle_notification(event)
        if not self.listener.dispatch_notification(event):
            return
        call = self.listener.dispatcher.find_related_call() if isinstance(event.params, LogParams) else None
        if call is not None and call.limits.log is not None and call.progress_queue is not None:
            if not call.progress_queue.put(partial(call.limits.log, event.params)):
                self.stats.record_discard("notification over the limit")
        elif self._event_callbacks.log is not None and isinstance(event.params, LogParams):
            self._queue_callback(self._event_callbacks.log, event.params)
        elif self._event_callbacks.notification is not None:
            try:
                params = _OBJECT(event.raw) if event.row is None else event.params
            except InvalidJSONValue:
                self.stats.record_discard("malformed notification")
            else:
                self._queue_callback(self._event_callbacks.notification, event.method, params)

    def _queue_callback(self, callback: Callable[..., object], *arguments: Any) -> None:
        work = partial(self.request_callbacks.threads.call_function, callback, *arguments)
        if not self.listener.dispatcher.callback_queue.put(work):
            self.stats.record_discard("notification over the limit")

    def record_gap(self) -> None:
        """Record that changes may have been missed."""
        self.stats.gaps += 1
        self.reader.cache.clear()
