"""`Context`: the interface of a function to the request or notification that it serves.

A `ClientConnection` sends its messages. Requests to the client, and steps, are in `requests_to_client`.
"""

import logging
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from toolpost.errors import InvalidRequest, MissingScopes
from toolpost.principal import Principal, explain_no_scopes, parse_scopes
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import LOG_MESSAGE, PROGRESS, Row
from toolpost.server.context_request import ClientConnection, ClientInfo, ContextRequest
from toolpost.server.requests_to_client import ClientRequests
from toolpost.server.runtime.dispatch import Call, run_middleware
from toolpost.server.state import State
from toolpost.token_bucket import TokenBucket
from toolpost.types.base import JSON, Number, RequestId, Result
from toolpost.types.content import ResourceContents
from toolpost.types.initialize import ClientCapabilities, DiscoverResult, InitializeResult, LogLevel
from toolpost.types.notifications import LogParams, NotificationParams, ProgressParams

if TYPE_CHECKING:
    from toolpost.server.elicitation.input_required import CallReplay
    from toolpost.server.handler import Handler
    from toolpost.tasks.run import TaskRun

server_logger: Final = logging.getLogger("toolpost.server")

MAX_SUBSCRIBED_URIS: Final = 1000
"""Resources that one session, or one `subscriptions/listen`, may subscribe to."""

MAX_SUBSCRIBED_URI_CHARS: Final = 1024 * 1024
"""Characters of the URIs of these resources together."""

NOTIFICATION_BURST: Final = 5
"""Seconds of `notification_rate` that one request may send at once."""


def _make_limiter(rate: float) -> TokenBucket:
    return TokenBucket(max(1.0, NOTIFICATION_BURST * rate), rate, get_running_loop().time)


class Context(ClientRequests):
    """The context of one request: progress, logging, state, and requests to the client.

    Annotate a parameter to receive it, under any name: `async def forecast(city: str, ctx: Context)`.
    Notifications in both directions have a context, too; it does not belong to a request.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... async def count(ctx: Context) -> str:
        ...     await ctx.progress(1, 2, "half")
        ...     return ctx.revision
        >>> with SyncClient(server) as mcp:
        ...     mcp.call_tool("count", progress=lambda step: print(step.message)).text
        half
        '2026-07-28'
    """

    __slots__ = (
        "_has_dropped_logs",
        "_log_limiter",
        "_peer",
        "_progress_limiter",
        "_request",
        "_state",
        "client_connection",
        "connection",
        "incoming",
        "lifespan",
        "loaded_replay",
        "method",
        "middleware",
        "outer",
        "principal",
        "server",
        "task_run",
    )

    def __init__(
        self,
        server: "Handler",
        client_connection: ClientConnection,
        method: str,
        incoming: InboundRequest | None = None,
        *,
        lifespan: Any = None,
        principal: Principal | None = None,
    ) -> None:
        self.server = server
        self.middleware = server.middleware  # for what the function sends
        self.outer: Context | None = None
        self.lifespan = lifespan
        self.method = method
        self.incoming = incoming
        self.connection = connection = client_connection.connection
        self.client_connection = client_connection
        self.principal = principal
        """The principal of the request, if it is known."""
        self._peer = incoming.peer if incoming else connection.peer or Peer(connection.revision)
        self._request: ContextRequest[Coroutine[Any, Any, Result]] | None = None
        self._state: State | None = None
        self.loaded_replay: CallReplay | None = None
        self.task_run: TaskRun | None = None
        self._log_limiter: TokenBucket | None = None
        self._has_dropped_logs = False
        self._progress_limiter: TokenBucket | None = None

    def __repr__(self) -> str:
        return f"<Context of {self.method}, id {self.related!r}>"

    # ----------------------------------------------------------------- the request

    @property
    def request(self) -> ContextRequest[Coroutine[Any, Any, Result]]:
        """The request itself; call it to send a request with a custom method to the client."""
        if self._request is None:
            self._request = ContextRequest(self, lambda sending: sending)
        return self._request

    @property
    def client(self) -> ClientInfo:
        """The client that sent the request."""
        declared = self._peer.capabilities
        capabilities = declared if isinstance(declared, ClientCapabilities) else ClientCapabilities()
        return ClientInfo(self._peer.info, capabilities)

    @property
    def revision(self) -> str:
        """The protocol revision of the client."""
        return self._peer.revision.date

    @property
    def state(self) -> State:
        """Values of the session, which outlast this request.

        Without a session, they belong to the principal and all its requests share them; without a principal,
        they last as long as the request.
        """
        if self._state is None:
            if not self._peer.revision.stateless:
                self._state = self.client_connection.open_session_state()
            elif self.principal is None:
                self._state = State.in_memory()
            else:
                self._state = State.of_principal(self.host.store.records, self.principal)
        return self._state

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled, or has ended."""
        incoming, in_flight = self.incoming, self.connection.incoming
        return incoming is not None and in_flight.get(incoming.id) is not incoming

    # ----------------------------------------------------------------- notifications

    async def progress(
        self, progress: Number, total: Number | None = None, message: str | None = None
    ) -> None:
        """Report progress, if the client wants it.

        Frequent updates are throttled; the last one, with `progress` equal to `total`, is always sent. In a
        task, it is the status of the task.
        """
        incoming, limiter, run = self.incoming, self._progress_limiter, self.task_run
        if run is not None:
            run.report(progress, total, message)
        if incoming is None or incoming.token is None:  # as in a task
            return
        if limiter is None:
            limiter = self._progress_limiter = _make_limiter(self.server.notification_rate)
        if not limiter.take() and progress != total:
            return
        report, request_id = self.connection.report_progress, incoming.id
        if not self.middleware:
            data = report(request_id, progress, total, message)
            if data is not None:
                await self.client_connection.send(data, request_id)
            return
        await self._send_through_middleware(
            PROGRESS,
            ProgressParams(progress_token=incoming.token, progress=progress, total=total, message=message),
            lambda sent: report(request_id, sent.progress, sent.total, sent.message),
        )

    async def log(self, level: LogLevel, data: JSON, *, logger: str | None = None) -> None:
        """Send a log message, if the client wants this level; see `notification_rate` of the server."""
        if self.cancelled or not self.server.local_peer.has_capability("logging"):
            return
        connection, incoming = self.connection, self.incoming
        line = connection.log(level, data, logger=logger, to=incoming)
        if line is None:
            return
        rate = self.server.notification_rate
        self._log_limiter = self._log_limiter or _make_limiter(rate)
        if not self._log_limiter.take():
            if self._has_dropped_logs:
                return
            self._has_dropped_logs = True
            data = f"log messages are dropped: {self.method} sends more than {rate:g} per second"
            line = connection.log(level, data, logger=logger, to=incoming)
        if not self.middleware:
            await self._send(line)
            return
        await self._send_through_middleware(
            LOG_MESSAGE,
            LogParams(level=level, data=data, logger=logger),
            lambda sent: connection.log(sent.level, sent.data, logger=sent.logger, to=incoming),
        )

    async def debug(self, data: JSON) -> None:
        """Log at level "debug"."""
        await self.log("debug", data)

    async def info(self, data: JSON) -> None:
        """Log at level "info"."""
        await self.log("info", data)

    async def warning(self, data: JSON) -> None:
        """Log at level "warning"."""
        await self.log("warning", data)

    async def error(self, data: JSON) -> None:
        """Log at level "error"."""
        await self.log("error", data)

    async def notify(self, method: str, params: Mapping[str, JSON] | None = None) -> None:
        """Send a notification with a custom method, on the stream of this request."""
        row = self.connection.local_peer.extra_rows.get(method) or Row(method, NotificationParams)
        await self.send_notification(row, params)

    async def notify_resource_updated(self, uri: str) -> None:
        """Notify all subscribers of a resource that it has changed."""
        self.server.notify_resource_updated(uri)

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read a resource of this server."""
        return await self.server.read(uri, self)

    async def close_stream(self) -> None:
        """Close the HTTP stream of this request, so that the client resumes it later (2025-11-25).

        The server keeps later messages for the client. Nothing happens for other clients.
        """
        if self.incoming is not None:
            await self.client_connection.interrupt(self.incoming)

    async def send_notification(
        self, method: str | Row, params: NotificationParams | Mapping[str, JSON] | None
    ) -> None:
        """Send a notification of the protocol, or of a custom row, on the stream of this request."""
        connection, incoming = self.connection, self.incoming
        if not self.middleware:
            await self._send(connection.notify(method, params, to=incoming))
            return
        await self._send_through_middleware(
            method.name if isinstance(method, Row) else method,
            copy(params),  # other clients may get the same
            lambda sent: connection.notify(method, sent, to=incoming),
        )

    async def _send(self, data: bytes | None) -> None:
        """Send a notification on the stream of this request; None if the client does not want it."""
        if data is not None:
            await self.client_connection.send(data, self.related)

    async def _send_through_middleware(
        self, method: str, params: Any, build: Callable[[Any], bytes | None]
    ) -> None:
        """Send a notification through middleware. Exceptions of middleware are only logged."""
        failures: list[Exception] = []

        async def send(context: Context, params: Any) -> None:
            try:
                await context._send(build(params))
            except Exception as error:  # not raised by middleware: the caller gets it
                failures.append(error)
                raise

        call = Call(method, params, self, incoming=False, is_notification=True)
        try:
            await run_middleware(self.middleware, call, send)
        except Exception as error:
            if error in failures:
                raise
            server_logger.exception("middleware failed; %s was not sent", method)

    # ----------------------------------------------------------------- for the handler and middleware

    @property
    def related(self) -> RequestId | None:
        """For middleware: the id of the request; None if there is none."""
        return None if self.incoming is None else self.incoming.id

    @property
    def conversation(self) -> object:
        """For middleware: a key of the client: its principal, else its session, else its address."""
        return self.client_connection.identity if self.principal is None else self.principal.key

    def require(self, *scopes: str | Iterable[str]) -> None:
        """Raise `MissingScopes` unless the token of the request has all these scopes, or lists of scopes.

        Over HTTP the response names the scopes, so that the client can get them. That works only before
        anything else was sent, so call this first. Clients over stdio and in memory have all scopes.

        Raises:
            MissingScopes: a scope is missing.
            TypeError: a scope is not a string.
            ValueError: a scope has characters that are not allowed.
        """
        if not scopes:
            return
        given = (parse_scopes([each] if isinstance(each, str) else each) for each in scopes)
        needed = frozenset[str]().union(*given)
        principal = self.principal
        if principal is None and not self.client_connection.is_remote:
            return
        if needed and not (principal and needed <= principal.scopes):
            raise MissingScopes.for_scopes(needed, explain_no_scopes(principal))

    def copy_for_server(self, server: "Handler", lifespan: Any) -> "Context":
        """For handlers: return a context of the same request, for another server."""
        return Context(
            server,
            self.client_connection,
            self.method,
            self.incoming,
            lifespan=lifespan,
            principal=self.principal,
        )

    def enter_mounted(self, server: "Handler", lifespan: Any) -> "Context":
        """For handlers: return the context of a server that is mounted in this one.

        Journal, state, task and client are those of this context.
        """
        inner = self.copy_for_server(server, lifespan)
        inner.outer, inner.task_run = self, self.task_run
        if self.middleware:
            inner.middleware = (*self.middleware, *server.middleware)
        return inner

    @property
    def host(self) -> "Handler":
        """For handlers: the server that the client is connected to; another one may be mounted in it."""
        return self.server if self.outer is None else self.outer.host

    def introduce(self, instructions: str | None) -> InitializeResult | DiscoverResult:
        """For handlers: return the description of this server."""
        connection = self.connection
        if connection.peer is None:  # once there is a session, its capabilities stay as declared
            connection.local_peer = self.server.local_peer
        return connection.local_peer.introduce(self._peer.revision, instructions)

    async def add_subscription(self, uri: str) -> None:
        """For handlers: subscribe this session to a resource. Raises InvalidRequest if it has too many."""
        uris = self.client_connection.uris
        if uri not in uris and len(uris) >= MAX_SUBSCRIBED_URIS:
            raise InvalidRequest(
                f"Too many subscriptions: the limit is {MAX_SUBSCRIBED_URIS} resources per session"
            )
        if uri not in uris and sum(map(len, uris)) + len(uri) > MAX_SUBSCRIBED_URI_CHARS:
            raise InvalidRequest(
                f"Too many subscriptions: the URIs exceed {MAX_SUBSCRIBED_URI_CHARS} characters in total"
            )
        await self.client_connection.set_subscription(uri, is_active=True)
