"""What a function may know and do while it serves a request or a notice.

A context belongs to one of them. It speaks through a `ClientConnection`, which is all it knows of the
conversation; it knows nothing of registries and transports. What it can ask the client is told in `asking`.
"""

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from toolpost.errors import InvalidRequest, MissingScopes
from toolpost.principal import Principal, explain_no_scopes, parse_scopes
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import Row
from toolpost.server.client_requests import ClientRequests
from toolpost.server.request import ClientConnection, ClientInfo, ContextRequest
from toolpost.types.base import JSON, Number, Raw, RequestId, Result, WireStruct
from toolpost.types.content import ResourceContents
from toolpost.types.initialize import ClientCapabilities, DiscoverResult, InitializeResult, LogLevel
from toolpost.types.notifications import LogParams, NotificationParams, ProgressParams

if TYPE_CHECKING:
    from toolpost.server.elicitation.journal import CallReplay
    from toolpost.server.handler import Handler
    from toolpost.server.registry.registry import Registry
    from toolpost.token_bucket import TokenBucket


MAX_QUESTION_KEY_LENGTH: Final = 128
"""Characters of a question's name: it travels with every round."""

MAX_SUBSCRIBED_URIS: Final = 1000
"""Resources that one session may watch, and one subscription: more is better told by a change of the list."""

MAX_SUBSCRIBED_URI_CHARS: Final = 1024 * 1024
"""Characters of their URIs together: a thousand of a usual length, ten times over."""

NOTIFICATION_BURST: Final = 500
"""Notices of progress that one request may send at once, and log lines."""

NOTIFICATION_RATE: Final = 100.0
"""How many more of each in a second: faster than any display shows them."""

P = ParamSpec("P")
T = TypeVar("T")


def _make_limiter() -> "TokenBucket":
    from toolpost.token_bucket import TokenBucket  # noqa: PLC0415 - for those that send notices

    return TokenBucket(NOTIFICATION_BURST, NOTIFICATION_RATE, get_running_loop().time)


class Context(ClientRequests):
    """One request, as the function that serves it sees it.

    Ask for it by annotation, under any name: `async def forecast(city: str, ctx: Context)`. A notice that the
    client sends, and one that we send to all, have a context too; it belongs to no request.

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
        "_replay",
        "_request",
        "_state",
        "incoming",
        "lifespan",
        "method",
        "server",
        "started_call",
    )

    def __init__(
        self,
        server: "Handler",
        speaker: ClientConnection,
        method: str,
        incoming: InboundRequest | None = None,
        *,
        lifespan: Any = None,
        sender: Principal | None = None,
    ) -> None:
        self.server = server
        self.lifespan = lifespan
        self.method = method
        self.incoming = incoming
        self.started_call: Awaitable[Any] | None = None
        self._client_connection = speaker
        # Of now: a request that has ended has none. A notice has no id to be known by, but may have a sender.
        self._principal = sender or speaker.principal_of(incoming)
        self._peer = _get_peer(speaker) if incoming is None else incoming.peer
        self._request: ContextRequest | None = None
        self._state: dict[str, Any] | None = None
        self._replay: CallReplay | None = None
        self._loaded_input: tuple[Mapping[str, Result], JSON] | None = None
        self._log_limiter: TokenBucket | None = None
        self._progress_limiter: TokenBucket | None = None

    def __repr__(self) -> str:
        return f"<Context of {self.method}, id {self.related!r}>"

    # ----------------------------------------------------------------- what is known

    @property
    def request(self) -> ContextRequest:
        """The request itself; call it to send one of a method of your own to the client."""
        if self._request is None:
            self._request = ContextRequest(self, self._client_connection, self.method, self.incoming)
        return self._request

    @property
    def client(self) -> ClientInfo:
        """Who is asking."""
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
    def state(self) -> dict[str, Any]:
        """A place to keep things: the session's own.

        Where there is no session, it is the principal's, the same in all of their requests until others have
        pushed it out; and of a client that nobody knows, it lives as long as the request.
        """
        if self._state is None:
            speaker = self._client_connection
            if not self._peer.revision.stateless:
                self._state = speaker.state
            elif (principal := self.principal) is not None:
                self._state = self.server.get_principal_state(principal.key)
            else:
                self._state = {}
        return self._state

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        incoming = self.incoming
        return (
            incoming is not None
            and self._client_connection.connection.incoming.get(incoming.id) is not incoming
        )

    # ----------------------------------------------------------------- what can be said

    async def progress(
        self, progress: Number, total: Number | None = None, message: str | None = None
    ) -> None:
        """Tell how far the work has come. Costs nothing if the client does not want to know.

        What is told faster than anybody could see is left out, except the end: `progress` equal to `total`.
        """
        incoming = self.incoming
        if incoming is None or incoming.token is None:
            return
        if self._progress_limiter is None:
            self._progress_limiter = _make_limiter()
        if not self._progress_limiter.take() and progress != total:
            return
        connection, request_id = self._client_connection.connection, incoming.id
        if self.server.middleware:
            params = ProgressParams(
                progress_token=incoming.token, progress=progress, total=total, message=message
            )
            await self._client_connection.send_notification(
                self,
                "notifications/progress",
                params,
                lambda said: connection.report_progress(request_id, said.progress, said.total, said.message),
            )
            return
        data = connection.report_progress(request_id, progress, total, message)
        if data is not None:
            await self._client_connection.send(data, request_id)

    async def log(self, level: LogLevel, data: JSON, *, logger: str | None = None) -> None:
        """Write to the client's log, if it wants lines of this level. A flood of lines is thinned out."""
        if self.cancelled or not self.server.local_peer.has_capability("logging"):
            return
        connection, incoming = self._client_connection.connection, self.incoming
        line = connection.log(level, data, logger=logger, to=incoming)
        if line is None:
            return
        if self._log_limiter is None:
            self._log_limiter = _make_limiter()
        if not self._log_limiter.take():
            return
        if self.server.middleware:
            await self._client_connection.send_notification(
                self,
                "notifications/message",
                LogParams(level=level, data=data, logger=logger),
                lambda said: connection.log(said.level, said.data, logger=said.logger, to=incoming),
            )
            return
        await self._client_connection.send(line, self.related)

    async def debug(self, data: JSON) -> None:
        """Write a line that helps to find faults."""
        await self.log("debug", data)

    async def info(self, data: JSON) -> None:
        """Write a line about what goes on."""
        await self.log("info", data)

    async def warning(self, data: JSON) -> None:
        """Write a line about what might go wrong."""
        await self.log("warning", data)

    async def error(self, data: JSON) -> None:
        """Write a line about what went wrong."""
        await self.log("error", data)

    async def notify(self, method: str, params: Mapping[str, JSON] | None = None) -> None:
        """Send a notice of a method of your own, on the stream of this request."""
        row = self._client_connection.connection.extra.get(method) or Row(method, NotificationParams)
        await self.send_notification(row, params)

    async def notify_resource_updated(self, uri: str) -> None:
        """Tell everybody who watches this resource that it has changed."""
        self.server.notify_resource_updated(uri)

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """What a resource of this server holds."""
        return await self.server.read(uri, self)

    async def close_stream(self) -> None:
        """Let the client come back for the rest of this request, instead of holding its connection open.

        A client of 2025-11-25 on HTTP is told when to come back; others notice nothing, and neither does the
        function: what it says from here on is kept for the client.
        """
        if self.incoming is not None:
            await self._client_connection.interrupt(self.incoming)

    async def send_notification(
        self, method: str | Row, params: NotificationParams | Mapping[str, JSON] | None
    ) -> None:
        """Send a notice of the protocol's, or of a row of your own, on the stream of this request."""
        connection, incoming = self._client_connection.connection, self.incoming
        if self.server.middleware:
            await self._client_connection.send_notification(
                self,
                method.name if isinstance(method, Row) else method,
                copy(params),  # others may be told the same
                lambda said: connection.notify(method, said, to=incoming),
            )
            return
        await self._client_connection.send(connection.notify(method, params, to=incoming), self.related)

    # ----------------------------------------------------------------- for the handler and middleware

    @property
    def related(self) -> RequestId | None:
        """For middleware: the id of the request on whose stream we speak; None if there is no request."""
        return None if self.incoming is None else self.incoming.id

    @property
    def conversation(self) -> object:
        """For middleware: what all requests of one client have in common; compare it, or count by it.

        It is the key of the principal; if nobody knows one, the session, or the address where there is none.
        """
        if self._principal is not None:
            return self._principal.key
        address: str | None = getattr(self._client_connection, "address", None)
        return self._client_connection if address is None else address

    @property
    def requires_object_output(self) -> bool:
        """For handlers: whether structured output has to be an object for this client."""
        return self._peer.revision.structured != "any"

    @property
    def principal(self) -> Principal | None:
        """On whose behalf the request speaks, where that is known."""
        return self._principal

    def require(self, *scopes: str | Iterable[str]) -> None:
        """Return if the request may do what needs these scopes, or lists of scopes.

        Over HTTP the client is told which scopes it needs, and can get them if nothing was said to it before:
        so ask first. A process on this machine, spoken to over stdin, and a client in memory may do all.

        Raises:
            MissingScopes: it may not.
            TypeError: a scope is no text.
            ValueError: a scope has letters in it that it cannot have.
        """
        if not scopes:
            return
        # A text is one scope here: who names several names them one by one.
        given = (parse_scopes([each] if isinstance(each, str) else each) for each in scopes)
        needed = frozenset[str]().union(*given)
        principal = self.principal
        if principal is None and not self._client_connection.is_remote:
            return
        if needed and not (principal and needed <= principal.scopes):
            raise MissingScopes.for_scopes(needed, explain_no_scopes(principal))

    def copy_for_server(self, server: "Handler", lifespan: Any) -> "Context":
        """For handlers: the same request, as another server sees it that serves it."""
        return Context(
            server,
            self._client_connection,
            self.method,
            self.incoming,
            lifespan=lifespan,
            sender=self._principal,
        )

    async def hand_over(self, server: "Handler") -> None:
        """For handlers: let another server serve all that this client says from here on."""
        await self._client_connection.hand_over(server)

    def introduce(self, instructions: str | None) -> InitializeResult | DiscoverResult:
        """For handlers: who this server is, as the request asks."""
        connection = self._client_connection.connection
        if connection.peer is None:
            connection.local_peer = (
                self.server.local_peer
            )  # what a session is told now is a promise from here on
        return connection.local_peer.introduce(self._peer.revision, instructions)

    def get_list_page(self, catalogue: "Registry[Any]", cursor: str | None) -> Raw:
        """For handlers: a page of a list, for this client."""
        assert self.incoming is not None, "a list is asked for by a request"
        return catalogue.get_page(self.server.local_peer, self.incoming, cursor)

    @property
    def replay(self) -> "CallReplay":
        """For handlers: what this request has asked and done before it ran again."""
        if self._replay is None:
            from toolpost.server.elicitation.journal import CallReplay  # noqa: PLC0415 - 1.3 ms of a start, with all it needs

            principal = self.principal
            self._replay = CallReplay(
                self.server, self.incoming, None if principal is None else principal.key
            )
        return self._replay

    @property
    def has_asked(self) -> bool:
        """For handlers: whether it has asked something that has no answer yet, where there is no session."""
        recall = self._replay
        return (
            recall is not None
            and recall.loaded_journal is not None
            and bool(recall.loaded_journal.open_questions)
        )

    async def replay_answer(self, method: str, params: WireStruct, key: str | None) -> Result:
        """For handlers: what the client has answered to a question, where there is no session."""
        return await self.replay.get_answer(self._client_connection.connection, method, params, key)

    def set_input_responses(self, responses: Mapping[str, Result], state: JSON) -> None:
        """For handlers: let the next run find these answers, and this state, to what was asked by hand."""
        self._loaded_input = responses, state

    def set_log_level(self, level: LogLevel) -> None:
        """For handlers: from which level on the session wants log messages."""
        self._client_connection.connection.log_level = level

    def add_subscription(self, uri: str) -> None:
        """For handlers: tell this session when a resource changes.

        Raises:
            InvalidRequest: it watches as many as it may.
        """
        watched = self._client_connection.subscribed_uris
        if uri in watched:
            return
        if len(watched) >= MAX_SUBSCRIBED_URIS:
            raise InvalidRequest(
                f"Too many subscriptions: a session may watch {MAX_SUBSCRIBED_URIS} resources"
            )
        if sum(map(len, watched)) + len(uri) > MAX_SUBSCRIBED_URI_CHARS:
            raise InvalidRequest(
                f"Too many subscriptions: the URIs have more than {MAX_SUBSCRIBED_URI_CHARS} "
                "characters together"
            )
        watched.add(uri)

    def remove_subscription(self, uri: str) -> None:
        """For handlers: tell this session no longer."""
        self._client_connection.subscribed_uris.discard(uri)

    # ----------------------------------------------------------------- what can be asked

    @overload
    async def step(
        self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def step(self, name: str, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(
        self, name: str, fn: Callable[P, Awaitable[T] | T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What a function gives, which runs once for each call, though the call may run again.

        For what must not happen twice, such as a payment before a question. What it gives has to be something
        that JSON can hold, and comes back as the type that the function says it returns.

        Args:
            name: of the step. The same name again is another step.
            fn: async, or not: then it runs in a thread.
            args: what it gets.
            kwargs: what it gets by name.
        """
        if not callable(fn):
            raise TypeError(
                f"step {name!r}: give the function and its arguments, not what it returned: {fn!r}"
            )
        return await self.replay.step(name, fn, lambda: fn(*args, **kwargs))

    async def ask(
        self, method: str, params: WireStruct, *, key: str | None = None, timeout: float | None = None
    ) -> Result:
        """Ask the client, by one of the methods that the protocol has for it.

        In a session it is asked at once, and this waits. Where there is none, the function ends here unless
        the answer is known, and runs again from the top when the client has brought it.

        Args:
            method: of the question.
            params: the question.
            key: what a stateless client is to call it; without, it is told by its words.
            timeout: seconds to wait.

        Raises:
            ValueError: the key is none.
            CapabilityNotDeclared: the client cannot be asked this.
        """
        if key is not None and not 0 < len(key) <= MAX_QUESTION_KEY_LENGTH:
            raise ValueError(f"key: it has 1 to {MAX_QUESTION_KEY_LENGTH} characters, not {len(key)}")
        self.replay.check_not_in_step()
        return await self._client_connection.send_request(self, method, params, timeout, key)

    @property
    def input_responses(self) -> Mapping[str, Result]:
        """What the client has answered to an `InputRequired` of this request's, by key.

        What was not answered, or not in a way that can be read, is missing: ask again.
        """
        return self._input[0]

    @property
    def request_state(self) -> JSON:
        """What the `InputRequired` that was returned last wanted back; None if there was none."""
        return self._input[1]

    @property
    def _input(self) -> tuple[Mapping[str, Result], JSON]:
        journal = self.replay.loaded_journal
        if self._loaded_input is None:
            from toolpost.server.elicitation.input_required import read_responses, read_state  # noqa: PLC0415 - as in `recall`

            given = {} if journal is None else dict(read_responses(journal, self._peer.revision))
            self._loaded_input = given, None if journal is None else read_state(journal)
        return self._loaded_input


def _get_peer(speaker: ClientConnection) -> Peer:
    """Who is at the other end when no request says so."""
    return speaker.connection.peer or Peer(speaker.connection.revision)
