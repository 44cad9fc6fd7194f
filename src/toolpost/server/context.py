"""`Context`: what a function may know and do while it serves a request or a notification.

It reaches the client by a `ClientConnection`, and knows nothing of transports. The requests that it can send
to the client are in `client_requests`.
"""

import logging
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from toolpost.errors import InvalidRequest, LocalProtocolError, MissingScopes
from toolpost.principal import Principal, explain_no_scopes, parse_scopes
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import LOG_MESSAGE, PROGRESS, Row
from toolpost.server.client_requests import ClientRequests
from toolpost.server.request import ClientConnection, ClientInfo, ContextRequest
from toolpost.server.runtime.request import Call, run_middleware
from toolpost.types.base import JSON, Number, Raw, RequestId, Result, WireStruct
from toolpost.types.content import ResourceContents
from toolpost.types.initialize import ClientCapabilities, DiscoverResult, InitializeResult, LogLevel
from toolpost.types.notifications import LogParams, NotificationParams, ProgressParams

if TYPE_CHECKING:
    from toolpost.rate_limit import TokenBucket
    from toolpost.server.elicitation.journal import CallReplay
    from toolpost.server.handler import Handler
    from toolpost.server.registry.registry import Registry
    from toolpost.server.state import State


server_logger: Final = logging.getLogger("toolpost.server")

MAX_QUESTION_KEY_LENGTH: Final = 128
"""Characters of a question's key: it travels with every round."""

MAX_SUBSCRIBED_URIS: Final = 1000
"""Resources that one session, or one `subscriptions/listen`, may subscribe to."""

MAX_SUBSCRIBED_URI_CHARS: Final = 1024 * 1024
"""Characters of their URIs together."""

NOTIFICATION_BURST: Final = 500
"""Notices of progress that one request may send at once, and log lines."""

NOTIFICATION_RATE: Final = 100.0
"""How many more of each in a second: faster than any display shows them."""

P = ParamSpec("P")
T = TypeVar("T")


def _make_limiter() -> "TokenBucket":
    from toolpost.rate_limit import TokenBucket  # noqa: PLC0415 - for those that send notices

    return TokenBucket(NOTIFICATION_BURST, NOTIFICATION_RATE, get_running_loop().time)


class Context(ClientRequests):
    """One request, as the function that serves it sees it.

    Ask for it by annotation, under any name: `async def forecast(city: str, ctx: Context)`. Notifications, in
    both directions, have a context too; it belongs to no request.

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
        "_client_connection",
        "_loaded_input",
        "_log_limiter",
        "_peer",
        "_principal",
        "_progress_limiter",
        "_request",
        "_state",
        "connection",
        "incoming",
        "lifespan",
        "loaded_replay",
        "method",
        "server",
    )

    def __init__(
        self,
        server: "Handler",
        speaker: ClientConnection,
        method: str,
        incoming: InboundRequest | None = None,
        *,
        lifespan: Any = None,
        principal: Principal | None = None,
    ) -> None:
        self.server = server
        self.lifespan = lifespan
        self.method = method
        self.incoming = incoming
        self.connection = speaker.connection
        self._client_connection = speaker
        self._principal = principal
        self._peer = _get_peer(speaker) if incoming is None else incoming.peer
        self._request: ContextRequest | None = None
        self._state: State | None = None
        self.loaded_replay: CallReplay | None = None
        self._loaded_input: tuple[Mapping[str, Result], JSON] | None = None
        self._log_limiter: TokenBucket | None = None
        self._progress_limiter: TokenBucket | None = None

    def __repr__(self) -> str:
        return f"<Context of {self.method}, id {self.related!r}>"

    # ----------------------------------------------------------------- the request

    @property
    def request(self) -> ContextRequest:
        """The request itself; call it to send one of a method of your own to the client."""
        if self._request is None:
            self._request = ContextRequest(self, self._client_connection, self.method, self.incoming)
        return self._request

    @property
    def client(self) -> ClientInfo:
        """The client that sent the request."""
        peer = self._peer
        capabilities = peer.capabilities
        return ClientInfo(
            peer.info, capabilities if isinstance(capabilities, ClientCapabilities) else ClientCapabilities()
        )

    @property
    def revision(self) -> str:
        """The protocol revision that the client speaks."""
        return self._peer.revision.date

    @property
    def state(self) -> "State":
        """Values that outlast this request: those of the session.

        Where there is no session, they are the principal's, the same in all of their requests; without a
        principal, they live as long as the request.
        """
        if self._state is None:
            self._state = self._open_state()
        return self._state

    def _open_state(self) -> "State":
        from toolpost.server.state import State  # noqa: PLC0415 - start-up time

        if not self._peer.revision.stateless:
            return self._client_connection.open_session_state()
        if self._principal is None:
            return State.in_memory()
        return State.of_principal(self.server.store.records, self._principal)

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

        Frequent updates are throttled; the last one, with `progress` equal to `total`, is always sent.
        """
        incoming = self.incoming
        if incoming is None or incoming.token is None:
            return
        if self._progress_limiter is None:
            self._progress_limiter = _make_limiter()
        if not self._progress_limiter.take() and progress != total:
            return
        connection, request_id = self.connection, incoming.id
        if self.server.middleware:
            params = ProgressParams(
                progress_token=incoming.token, progress=progress, total=total, message=message
            )
            await self._send_through_middleware(
                PROGRESS,
                params,
                lambda said: connection.report_progress(request_id, said.progress, said.total, said.message),
            )
            return
        data = connection.report_progress(request_id, progress, total, message)
        if data is not None:
            await self._client_connection.send(data, request_id)

    async def log(self, level: LogLevel, data: JSON, *, logger: str | None = None) -> None:
        """Send a log message, if the client wants this level. A flood of messages is throttled."""
        if self.cancelled or not self.server.local_peer.has_capability("logging"):
            return
        connection, incoming = self.connection, self.incoming
        line = connection.log(level, data, logger=logger, to=incoming)
        if line is None:
            return
        if self._log_limiter is None:
            self._log_limiter = _make_limiter()
        if not self._log_limiter.take():
            return
        if self.server.middleware:
            await self._send_through_middleware(
                LOG_MESSAGE,
                LogParams(level=level, data=data, logger=logger),
                lambda said: connection.log(said.level, said.data, logger=said.logger, to=incoming),
            )
            return
        await self._client_connection.send(line, self.related)

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
        """Send a notification of a method of your own, on the stream of this request."""
        row = self.connection.extra.get(method) or Row(method, NotificationParams)
        await self.send_notification(row, params)

    async def notify_resource_updated(self, uri: str) -> None:
        """Notify all subscribers of a resource that it has changed."""
        self.server.notify_resource_updated(uri)

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read a resource of this server."""
        return await self.server.read(uri, self)

    async def close_stream(self) -> None:
        """Close the HTTP stream of this request, so that the client resumes it later (2025-11-25).

        Other clients notice nothing, and neither does the function: later messages are kept for the client.
        """
        if self.incoming is not None:
            await self._client_connection.interrupt(self.incoming)

    async def send_notification(
        self, method: str | Row, params: NotificationParams | Mapping[str, JSON] | None
    ) -> None:
        """Send a notification of the protocol, or of a row of your own, on the stream of this request."""
        connection, incoming = self.connection, self.incoming
        if self.server.middleware:
            await self._send_through_middleware(
                method.name if isinstance(method, Row) else method,
                copy(params),  # other clients may get the same
                lambda said: connection.notify(method, said, to=incoming),
            )
            return
        await self._client_connection.send(connection.notify(method, params, to=incoming), self.related)

    async def _send_through_middleware(
        self, method: str, params: Any, build: Callable[[Any], bytes | None]
    ) -> None:
        """Send a notification through middleware. What middleware raises is only logged."""
        failures: list[Exception] = []

        async def send(context: Context, params: Any) -> None:
            try:
                data = build(params)
                if data is not None:
                    await self._client_connection.send(data, context.related)
            except Exception as error:  # not the fault of middleware: the caller gets it
                failures.append(error)
                raise

        call = Call(method, params, self, incoming=False, is_notification=True)
        try:
            await run_middleware(self.server.middleware, call, send)
        except Exception as error:  # middleware may raise anything
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
        """For middleware: a key of the client, to compare or to count by.

        It is the key of the principal; without one, the session, or the address where there is none.
        """
        if self._principal is not None:
            return self._principal.key
        return self._client_connection.identity

    @property
    def principal(self) -> Principal | None:
        """The principal of the request, if it is known."""
        return self._principal

    def require(self, *scopes: str | Iterable[str]) -> None:
        """Raise unless the request has these scopes, or lists of scopes.

        Over HTTP the client is sent the scopes that it needs, and can get them if nothing was sent before: so
        call this first. Clients over stdin and in memory have all scopes.

        Raises:
            MissingScopes: the request does not have them.
            TypeError: a scope is not a string.
            ValueError: a scope has characters that are not allowed.
        """
        if not scopes:
            return
        given = (parse_scopes([each] if isinstance(each, str) else each) for each in scopes)
        needed = frozenset[str]().union(*given)
        principal = self.principal
        if principal is None and not self._client_connection.is_remote:
            return
        if needed and not (principal and needed <= principal.scopes):
            raise MissingScopes.for_scopes(needed, explain_no_scopes(principal))

    def copy_for_server(self, server: "Handler", lifespan: Any) -> "Context":
        """For handlers: return a context of the same request, for another server."""
        return Context(
            server,
            self._client_connection,
            self.method,
            self.incoming,
            lifespan=lifespan,
            principal=self._principal,
        )

    async def hand_over(self, server: "Handler") -> None:
        """For handlers: let another server serve all later messages of this client."""
        await self._client_connection.hand_over(server)

    def introduce(self, instructions: str | None) -> InitializeResult | DiscoverResult:
        """For handlers: return the description of this server."""
        connection = self.connection
        if connection.peer is None:  # once there is a session, its capabilities stay as declared
            connection.local_peer = self.server.local_peer
        return connection.local_peer.introduce(self._peer.revision, instructions)

    def get_list_page(self, catalogue: "Registry[Any]", cursor: str | None) -> Raw:
        """For handlers: return a page of a list, for this client."""
        assert self.incoming is not None, "a list is asked for by a request"
        return catalogue.get_page(self.server.local_peer, self.incoming, cursor)

    @property
    def replay(self) -> "CallReplay":
        """For handlers: the questions and steps of this request, from before it ran again."""
        if self.loaded_replay is None:
            from toolpost.server.elicitation.journal import CallReplay  # noqa: PLC0415 - start-up time

            key = None if self._principal is None else self._principal.key
            self.loaded_replay = CallReplay(self.server, self.incoming, key)
        return self.loaded_replay

    @property
    def has_asked(self) -> bool:
        """For handlers: whether a question has no answer yet, where there is no session."""
        journal = None if self.loaded_replay is None else self.loaded_replay.loaded_journal
        return journal is not None and bool(journal.open_questions)

    async def replay_answer(self, method: str, params: WireStruct, key: str | None) -> Result:
        """For handlers: return the answer to a question, where there is no session."""
        return await self.replay.get_answer(self.connection, method, params, key)

    def set_input_responses(self, responses: Mapping[str, Result], state: JSON) -> None:
        """For handlers: set the answers and the state of an `InputRequired` for the next call."""
        self._loaded_input = responses, state

    async def set_log_level(self, level: LogLevel) -> None:
        """For handlers: set the log level of the session."""
        await self._client_connection.set_log_level(level)

    async def add_subscription(self, uri: str) -> None:
        """For handlers: subscribe this session to a resource. Raises InvalidRequest if it has too many."""
        uris = self._client_connection.uris
        if uri in uris:
            return
        if len(uris) >= MAX_SUBSCRIBED_URIS:
            raise InvalidRequest(
                f"Too many subscriptions: a session may watch {MAX_SUBSCRIBED_URIS} resources"
            )
        if sum(map(len, uris)) + len(uri) > MAX_SUBSCRIBED_URI_CHARS:
            raise InvalidRequest(
                f"Too many subscriptions: the URIs have more than {MAX_SUBSCRIBED_URI_CHARS} "
                "characters together"
            )
        await self._client_connection.set_uris((*uris, uri))

    async def remove_subscription(self, uri: str) -> None:
        """For handlers: unsubscribe this session from a resource."""
        uris = self._client_connection.uris
        if uri in uris:
            await self._client_connection.set_uris(tuple(each for each in uris if each != uri))

    # ----------------------------------------------------------------- questions and steps

    @overload
    async def step(
        self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def step(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(
        self, name: str, fn: Callable[P, Awaitable[T] | T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function once for each call, though the call may run again, and return its value.

        For side effects that must not happen twice, such as a payment before a question. JSON has to be able
        to hold the value, which comes back as the declared return type of the function.

        Args:
            name: of the step. The same name again is another step.
            fn: async, or not: then it runs in a thread.
            args: its arguments.
            kwargs: its arguments by name.
        """
        if not callable(fn):
            raise TypeError(
                f"step {name!r}: give the function and its arguments, not what it returned: {fn!r}"
            )
        return await self.replay.step(name, fn, lambda: fn(*args, **kwargs))

    async def ask(
        self, method: str, params: WireStruct, *, key: str | None = None, timeout: float | None = None
    ) -> Result:
        """Send one of the protocol's client requests.

        In a session this waits for the result. Where there is none, the function ends here unless the answer
        is known, and runs again from the top when the client has brought it.

        Args:
            method: of the question.
            params: the question.
            key: its key for stateless clients; by default derived from its words.
            timeout: seconds to wait.

        Raises:
            ValueError: the key is too long, or empty.
            CapabilityNotDeclared: the client cannot be asked this.
        """
        if key is not None and not 0 < len(key) <= MAX_QUESTION_KEY_LENGTH:
            raise ValueError(f"key: it has 1 to {MAX_QUESTION_KEY_LENGTH} characters, not {len(key)}")
        self.replay.check_not_in_step()
        return await self.send_request(method, params, timeout, key)

    async def send_request(
        self,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
        key: str | None = None,
    ) -> Result:
        """For handlers: send a request to the client through middleware; without a session, by replay."""

        async def ask(context: Context, params: Any) -> Result:
            return await self._client_connection.ask(context, method, params, timeout)

        async def replay(context: Context, params: Any) -> Result:
            if context.cancelled:
                raise make_abandoned_error(context)
            return await context.replay_answer(str(method), params, key)

        stateless = self.incoming is not None and self.incoming.peer.revision.stateless
        inner = replay if stateless and isinstance(method, str) else ask
        if not self.server.middleware:
            return await inner(self, params)
        name = method if isinstance(method, str) else method.name
        return await run_middleware(self.server.middleware, Call(name, params, self, incoming=False), inner)

    @property
    def input_responses(self) -> Mapping[str, Result]:
        """The client's answers to an `InputRequired` of this request, by key.

        Those that are missing or invalid are left out: ask again.
        """
        return self._input[0]

    @property
    def request_state(self) -> JSON:
        """The state of the last `InputRequired`; None if there was none."""
        return self._input[1]

    @property
    def _input(self) -> tuple[Mapping[str, Result], JSON]:
        journal = self.replay.loaded_journal
        if self._loaded_input is None:
            from toolpost.server.elicitation.input_required import read_responses, read_state  # noqa: PLC0415 - start-up time

            given = {} if journal is None else dict(read_responses(journal, self._peer.revision))
            self._loaded_input = given, None if journal is None else read_state(journal)
        return self._loaded_input


def _get_peer(speaker: ClientConnection) -> Peer:
    """Return the peer of a notification."""
    return speaker.connection.peer or Peer(speaker.connection.revision)


def make_abandoned_error(context: Context) -> LocalProtocolError:
    """Return the error for a function that asks after its request has ended."""
    return LocalProtocolError(
        f"{context.method} (id {context.related!r}) has ended or was cancelled: nobody waits for its answer"
    )
