"""The session with a server as the methods of a client need it: limits, retries, notifications.

Owns what belongs to the current connection and is restored after a reconnect: the listener and the log level.
Moving messages is left to `dispatcher`, finding the revision to `negotiate`, reconnecting to `reconnect`,
lists and caches to `listing`, and rounds of input to `multi_round`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from toolpost.channel import Channel, mark_unattended
from toolpost.client.callbacks import RequestCallbacks
from toolpost.client.changes import ChangeStream
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.incoming import CallbackQueue
from toolpost.client.connection.negotiate import CachedRevision, Connector, Handshake, OpenedConnection
from toolpost.client.connection.pending import NO_LIMITS, CallLimits
from toolpost.client.connection.reconnect import Reconnector
from toolpost.client.connection.retry import RETRY_SAFE_METHODS, Retrier
from toolpost.client.connection.status import ConnectionState, Stats
from toolpost.client.listing import ServerReader
from toolpost.client.multi_round import MultiRoundRunner
from toolpost.client.options import ClientOptions, EventCallbacks, ProgressCallback, check_mapping
from toolpost.client.subscriptions import ChangeListener
from toolpost.errors import (
    AuthError,
    CapabilityNotDeclared,
    ChannelClosed,
    ConnectFailed,
    LocalProtocolError,
    MCPError,
    RequestFailed,
    RPCError,
    SessionLost,
)
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import InboundRequest, NotificationReceived
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import LOGGING_SET_LEVEL, PING, SERVER_DISCOVER, Row
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, Raw, Result, WireStruct
from toolpost.types.initialize import LOG_LEVEL, LogLevel, SetLevelParams
from toolpost.types.notifications import LogParams

DEFAULT_LOG_LEVEL: Final = "info"
"""The level that a client with `on_log` requests from a stateless server, which else would send nothing."""

STATE_CALLBACK_TIMEOUT: Final = 5.0
"""Seconds to wait for `on_state` callbacks when the client is closed."""

_OBJECT: Final = JSONReader(dict[str, JSON])

logger: Final = logging.getLogger("toolpost.client")


class _DesiredState(NamedTuple):
    """What the user has requested on a connection, to be restored on the next one."""

    uris: frozenset[str] = frozenset()
    level: LogLevel | None = None


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
        self.multi_round = MultiRoundRunner(self, request_callbacks)
        self.log_level: LogLevel | None = None
        """The level that every request of the stateless era carries."""
        self.listener: ChangeListener
        self.change_streams: set[ChangeStream] = set()
        """The open `listen` loops."""
        self._connector = connector
        self._local_peer = party
        self._request_callbacks = request_callbacks
        request_callbacks.describe_server = self._describe_server
        self._event_callbacks = event_callbacks
        self._options = options
        self._default_limits = tuple(
            options.make_limits(None, None, request_callbacks.threads, extendable=extendable)
            for extendable in (False, True)
        )
        self._requested_log_level: LogLevel | None = None
        self._state_to_restore: _DesiredState | None = None
        tell = event_callbacks.state
        self.connection_state = ConnectionState(
            None if tell is None else partial(request_callbacks.threads.run, tell)
        )
        self._reconnector = Reconnector(
            self._connect,
            self.connection_state,
            can_reopen=connector.can_reopen,
            may_need_login=connector.may_need_login,
        )
        self.retrier = Retrier(
            self._reconnector, self.connection_state, self.stats, connector.name, options.retries
        )
        self.run_with_retry = self.retrier.run
        self.ensure_connected = self.retrier.ensure_connected
        self.wait_connected = self.retrier.wait_connected
        self._callback_queue: CallbackQueue
        self._connect_scope: asyncio.Timeout | None = None

    # ----------------------------------------------------------------- the connection

    async def open(self) -> None:
        """Connect, unless connected."""
        self.retrier.breaker.allow_next()
        await self._reconnector.open()

    async def close(self) -> None:
        """Close the connection. Requests in flight fail with `ChannelClosed`."""
        try:
            for changes in list(self.change_streams):
                await changes.aclose(tell=False)
            await self._reconnector.close()
            self.reader.retry_safe_tools.clear()
            await self.connection_state.wait_callbacks(STATE_CALLBACK_TIMEOUT)
        finally:
            self._request_callbacks.threads.close()

    @property
    def name(self) -> str:
        """The name of the server, whether it can be reached or not."""
        return self._connector.name

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._reconnector.active_dispatcher is not None

    @property
    def dispatcher(self) -> Dispatcher:
        """The connection. Raises `ChannelClosed` if there is none."""
        return self._reconnector.dispatcher

    @property
    def can_reconnect(self) -> bool:
        """Whether there is a connection, or another one can be opened."""
        return self._reconnector.can_reconnect

    @property
    def last_connection(self) -> OpenedConnection:
        """The current connection or the last one. Raises `LocalProtocolError` if there was none."""
        opened = self._reconnector.last_connection
        if opened is None:
            raise LocalProtocolError("nothing is known about the server before the client has connected")
        return opened

    async def _connect(self) -> OpenedConnection:
        wait, last = self._options.connect_timeout, self._reconnector.last_connection
        known = None if last is None else CachedRevision(last.revision, last.via_fallback)
        forgotten = last is not None and isinstance(last.dispatcher.end_reason, SessionLost)
        if self._reconnector.is_closed:
            self._state_to_restore = _DesiredState()
        elif self._state_to_restore is None:
            self._state_to_restore = _DesiredState(self.listener.watched_uris, self._requested_log_level)
        self.log_level = self._requested_log_level = None
        self.reader.reset()
        handshake = Handshake(
            self._connector,
            self._local_peer,
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
                f"no conversation came about within {wait:g} s{handshake.process_report}",
                peer=self._connector.name,
            ) from None
        try:
            await self._restore_state(opened, self._state_to_restore)
        except BaseException:  # the caller no longer waits: nobody would close it
            await opened.dispatcher.close()
            raise
        self._state_to_restore = None
        self.stats.connections += 1
        self.retrier.breaker.record_success()
        if self._options.heartbeat is not None:
            with mark_unattended():
                opened.dispatcher.spawn(self._send_heartbeats(opened.dispatcher, self._options.heartbeat))
        return opened

    async def _send_heartbeats(self, dispatcher: Dispatcher, pause: float) -> None:
        """Ping the server, and end a connection that does not answer any more (PING-2)."""
        while True:
            await asyncio.sleep(pause)
            try:
                await self._ping(dispatcher, CallLimits(timeout=pause))
            except (RPCError, AuthError):
                pass  # that is an answer
            except MCPError as error:
                if isinstance(error, RequestFailed) and error.status is not None:
                    continue  # so is this
                dead = ChannelClosed(f"the server gives no sign of life: {error.message}", peer=self.name)
                logger.warning("%s", dead)
                dispatcher.end(dead)
                return

    async def _restore_state(self, opened: OpenedConnection, desired: "_DesiredState") -> None:
        """Subscribe to changes and set the log level, as on the connection that was lost (SUB-9)."""
        limits = CallLimits(timeout=self._options.probe_timeout)
        try:
            await self.listener.start(limits, desired.uris)
        except MCPError as error:
            logger.warning("changes of lists are not heard of: %s", error)
        if not has_capability(opened.result.capabilities, "logging"):
            return
        level = self._requested_log_level = desired.level
        if opened.revision.stateless:
            self.log_level = level or (DEFAULT_LOG_LEVEL if self._event_callbacks.log is not None else None)
        elif level is not None:
            try:
                await opened.dispatcher.request(LOGGING_SET_LEVEL, SetLevelParams(level=level), limits=limits)
            except MCPError as error:
                logger.warning("the log level is not %s any more: %s", level, error)

    def _start_dispatcher(self, channel: Channel, revision: Revision) -> Dispatcher:
        connection = Connection(
            self._local_peer, revision=revision, extra=self._request_callbacks.custom_rows
        )
        dispatcher = Dispatcher(
            channel,
            connection,
            self.stats,
            on_client_request=self._answer_client_request,
            on_notification=self._on_notification,
            find_header_parameters=self.reader.header_parameters.find,
            on_login_pending=self._on_login_pending,
        )
        self.listener = ChangeListener(
            dispatcher, lists=self._event_callbacks.notification is not None, on_gap=self.record_gap
        )
        self._callback_queue = dispatcher.callback_queue
        return dispatcher

    def _on_login_pending(self, waiting: bool) -> None:
        """Suspend the connect time-out during a login."""
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
        """Return the limits of a request with this time-out and progress callback."""
        tell = progress or self._event_callbacks.progress
        if timeout is None and tell is None:
            return self._default_limits[extendable]
        return self._options.make_limits(
            timeout, tell, self._request_callbacks.threads, extendable=extendable
        )

    def request(
        self,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        limits: CallLimits,
        meta: Mapping[str, JSON] | None = None,
        party: LocalPeer | None = None,
        *,
        retry: bool | None = None,
    ) -> Awaitable[Result]:
        """Send a request, with retries; return a result or an input-required result. See `Retrier.run`."""
        checked = None if meta is None else check_mapping("meta", meta)
        safe = True if retry is None and method in RETRY_SAFE_METHODS else retry
        return self.run_with_retry(
            partial(self.send, method, params, meta=checked, party=party), limits, safe=safe
        )

    def send(
        self,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        dispatcher: Dispatcher,
        limits: CallLimits,
        *,
        meta: Mapping[str, JSON] | None = None,
        party: LocalPeer | None = None,
    ) -> Awaitable[Result]:
        """Send a request over this connection only, with the log level where it applies."""
        if self.log_level is not None:
            meta = {LOG_LEVEL: self.log_level, **(meta or {})}
        return dispatcher.request(method, params, meta=meta or None, limits=limits, party=party)

    async def watch(self, uri: str, limits: CallLimits) -> None:
        """Subscribe to a resource."""
        await self.run_with_retry(lambda _, limits: self.listener.watch(uri, limits), limits, safe=True)

    async def unwatch(self, uri: str, limits: CallLimits) -> None:
        """Unsubscribe from a resource."""
        await self.run_with_retry(lambda _, limits: self.listener.unwatch(uri, limits), limits, safe=True)

    async def set_log_level(self, level: LogLevel, limits: CallLimits) -> None:
        """Request log messages of this level and above."""

        async def tell(dispatcher: Dispatcher, limits: CallLimits) -> None:
            if not dispatcher.connection.revision.stateless:
                await self.send(LOGGING_SET_LEVEL, SetLevelParams(level=level), dispatcher, limits)
            elif not has_capability(self.last_connection.result.capabilities, "logging"):
                raise CapabilityNotDeclared(
                    "logging", "the server does not offer 'logging'", peer=dispatcher.peer_name
                )
            else:
                self.log_level = level  # every request carries it from here on

        await self.run_with_retry(tell, limits, safe=True)
        self._requested_log_level = level

    async def ping(self, limits: CallLimits) -> None:
        """Check that the server answers; in the stateless era by `server/discover`."""
        await self.run_with_retry(self._ping, limits, safe=True)

    async def _ping(self, dispatcher: Dispatcher, limits: CallLimits) -> None:
        stateless = dispatcher.connection.revision.stateless
        await self.send(SERVER_DISCOVER if stateless else PING, None, dispatcher, limits)

    async def notify_if_session(self, method: str) -> None:
        """Send a notification that the stateless era does not have, in a session only."""

        async def tell(dispatcher: Dispatcher, _limits: CallLimits) -> None:
            if not dispatcher.connection.revision.stateless:
                await dispatcher.notify(method)

        await self.run_with_retry(tell, NO_LIMITS)

    # ----------------------------------------------------------------- from the server

    def _describe_server(self) -> str:
        """Return the server's name for the user: ours, and the one it gives itself (ELIC-3)."""
        opened = self._reconnector.last_connection
        own = None if opened is None else opened.dispatcher.peer_name
        return self.name if own in {None, self.name} else f"{self.name} (it calls itself {own!r})"

    async def _answer_client_request(self, incoming: InboundRequest) -> Result | Raw:
        return await self._request_callbacks.answer_request(incoming.row.name, incoming.params, incoming.raw)

    def _on_notification(self, event: NotificationReceived) -> None:
        self.reader.handle_notification(event)
        if not self.listener.dispatch_notification(event):
            return
        if self._event_callbacks.log is not None and isinstance(event.params, LogParams):
            self._queue_callback(self._event_callbacks.log, event.params)
        elif self._event_callbacks.notification is not None:
            try:
                params = _OBJECT(event.raw) if event.row is None else event.params
            except InvalidJSONValue:
                self.stats.record_discard("malformed notice")
            else:
                self._queue_callback(self._event_callbacks.notification, event.method, params)

    def _queue_callback(self, callback: Callable[..., object], *arguments: Any) -> None:
        if not self._callback_queue.put(partial(self._request_callbacks.threads.run, callback, *arguments)):
            self.stats.record_discard("notice that nobody has time for")

    def record_gap(self) -> None:
        """Record that changes may have been missed."""
        self.stats.gaps += 1
        self.reader.clear_cache()
