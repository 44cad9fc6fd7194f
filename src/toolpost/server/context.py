"""What a function may know and do while it serves a request or a notice.

A context belongs to one of them. It speaks through a `Speaker`, which is all it knows of the conversation; it
knows nothing of registries and transports. What it can ask the client is told in `asking`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from toolpost.errors import InvalidRequest, MissingScopes
from toolpost.principal import Principal, scopeless, scopes_of
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import Incoming
from toolpost.protocol.methods import Row
from toolpost.server.asking import Asking
from toolpost.server.request import Client, Request, Speaker
from toolpost.types.base import JSON, Number, Raw, RequestId, Result, Wire
from toolpost.types.content import ResourceContents
from toolpost.types.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    InitializeResult,
    LogLevel,
)
from toolpost.types.notices import LogParams, NoticeParams, ProgressParams

if TYPE_CHECKING:
    from toolpost.server.catalogue import Catalogue
    from toolpost.server.handler import Handler
    from toolpost.server.measure import Measure
    from toolpost.server.recall import Recall

__all__ = ["Context"]

MAX_KEY: Final = 128
"""Characters of a question's name: it travels with every round."""

MAX_WATCHED: Final = 1000
"""Resources that one session may watch, and one subscription: more is better told by a change of the list."""

MAX_WATCHED_SIZE: Final = 1024 * 1024
"""Characters of their URIs together: a thousand of a usual length, ten times over."""

P = ParamSpec("P")
T = TypeVar("T")


class Context(Asking):
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
        "_handed",
        "_logged",
        "_peer",
        "_principal",
        "_progressed",
        "_recall",
        "_request",
        "_speaker",
        "_state",
        "begun",
        "incoming",
        "lifespan",
        "method",
        "server",
    )

    def __init__(
        self,
        server: "Handler",
        speaker: Speaker,
        method: str,
        incoming: Incoming | None = None,
        *,
        lifespan: Any = None,
        sender: Principal | None = None,
    ) -> None:
        self.server = server
        self.lifespan = lifespan
        self.method = method
        self.incoming = incoming
        self.begun: Awaitable[Any] | None = None
        self._speaker = speaker
        # Of now: a request that has ended has none. A notice has no id to be known by, but may have a sender.
        self._principal = sender or speaker.principal_of(incoming)
        self._peer = _peer_of(speaker) if incoming is None else incoming.peer
        self._request: Request | None = None
        self._state: dict[str, Any] | None = None
        self._recall: Recall | None = None
        self._handed: tuple[Mapping[str, Result], JSON] | None = None
        self._logged: Measure | None = None
        self._progressed: Measure | None = None

    def __repr__(self) -> str:
        return f"<Context of {self.method}, id {self.related!r}>"

    # ----------------------------------------------------------------- what is known

    @property
    def request(self) -> Request:
        """The request itself; call it to send one of a method of your own to the client."""
        if self._request is None:
            self._request = Request(self, self._speaker, self.method, self.incoming)
        return self._request

    @property
    def client(self) -> Client:
        """Who is asking."""
        peer = self._peer
        capabilities = peer.capabilities
        return Client(
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
            speaker = self._speaker
            if not self._peer.revision.stateless:
                self._state = speaker.state
            elif (principal := self.principal) is not None:
                self._state = self.server.state_of(principal.key)
            else:
                self._state = {}
        return self._state

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        incoming = self.incoming
        return incoming is not None and self._speaker.connection.incoming.get(incoming.id) is not incoming

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
        if self._progressed is None:
            from toolpost.server.measure import Measure  # noqa: PLC0415 - 0.1 ms of a start

            self._progressed = Measure()
        if not self._progressed.take() and progress != total:
            return
        connection, request_id = self._speaker.connection, incoming.id
        if self.server.middleware:
            params = ProgressParams(
                progress_token=incoming.token, progress=progress, total=total, message=message
            )
            await self._speaker.tell(
                self,
                "notifications/progress",
                params,
                lambda said: connection.progress(request_id, said.progress, said.total, said.message),
            )
            return
        data = connection.progress(request_id, progress, total, message)
        if data is not None:
            await self._speaker.send(data, request_id)

    async def log(self, level: LogLevel, data: JSON, *, logger: str | None = None) -> None:
        """Write to the client's log, if it wants lines of this level. A flood of lines is thinned out."""
        if self.cancelled or not self.server.party.declares("logging"):
            return
        connection, incoming = self._speaker.connection, self.incoming
        line = connection.log(level, data, logger=logger, to=incoming)
        if line is None:
            return
        if self._logged is None:
            from toolpost.server.measure import Measure  # noqa: PLC0415 - as in `progress`

            self._logged = Measure()
        if not self._logged.take():
            return
        if self.server.middleware:
            await self._speaker.tell(
                self,
                "notifications/message",
                LogParams(level=level, data=data, logger=logger),
                lambda said: connection.log(said.level, said.data, logger=said.logger, to=incoming),
            )
            return
        await self._speaker.send(line, self.related)

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
        row = self._speaker.connection.extra.get(method) or Row(method, NoticeParams)
        await self.tell(row, params)

    async def notify_resource_updated(self, uri: str) -> None:
        """Tell everybody who watches this resource that it has changed."""
        self.server.announce_update(uri)

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """What a resource of this server holds."""
        return await self.server.read(uri, self)

    async def close_stream(self) -> None:
        """Let the client come back for the rest of this request, instead of holding its connection open.

        A client of 2025-11-25 on HTTP is told when to come back; others notice nothing, and neither does the
        function: what it says from here on is kept for the client.
        """
        if self.incoming is not None:
            await self._speaker.interrupt(self.incoming)

    async def tell(self, method: str | Row, params: NoticeParams | Mapping[str, JSON] | None) -> None:
        """Send a notice of the protocol's, or of a row of your own, on the stream of this request."""
        connection, incoming = self._speaker.connection, self.incoming
        if self.server.middleware:
            await self._speaker.tell(
                self,
                method.name if isinstance(method, Row) else method,
                copy(params),  # others may be told the same
                lambda said: connection.notify(method, said, to=incoming),
            )
            return
        await self._speaker.send(connection.notify(method, params, to=incoming), self.related)

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
        address: str | None = getattr(self._speaker, "address", None)
        return self._speaker if address is None else address

    @property
    def wraps(self) -> bool:
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
        given = (scopes_of([each] if isinstance(each, str) else each) for each in scopes)
        needed = frozenset[str]().union(*given)
        principal = self.principal
        if principal is None and not self._speaker.remote:
            return
        if needed and not (principal and needed <= principal.scopes):
            raise MissingScopes.of(needed, scopeless(principal))

    def passed_on(self, server: "Handler", lifespan: Any) -> "Context":
        """For handlers: the same request, as another server sees it that serves it."""
        return Context(
            server, self._speaker, self.method, self.incoming, lifespan=lifespan, sender=self._principal
        )

    async def hand_over(self, server: "Handler") -> None:
        """For handlers: let another server serve all that this client says from here on."""
        await self._speaker.hand_over(server)

    def introduce(self, instructions: str | None) -> InitializeResult | DiscoverResult:
        """For handlers: who this server is, as the request asks."""
        connection = self._speaker.connection
        if connection.peer is None:
            connection.party = self.server.party  # what a session is told now is a promise from here on
        return connection.party.introduce(self._peer.revision, instructions)

    def page(self, catalogue: "Catalogue[Any]", cursor: str | None) -> Raw:
        """For handlers: a page of a list, for this client."""
        assert self.incoming is not None, "a list is asked for by a request"
        return catalogue.page(self.server.party, self.incoming, cursor)

    @property
    def recall(self) -> "Recall":
        """For handlers: what this request has asked and done before it ran again."""
        if self._recall is None:
            from toolpost.server.recall import Recall  # noqa: PLC0415 - 1.3 ms of a start, with all it needs

            principal = self.principal
            self._recall = Recall(self.server, self.incoming, None if principal is None else principal.key)
        return self._recall

    @property
    def has_asked(self) -> bool:
        """For handlers: whether it has asked something that has no answer yet, where there is no session."""
        recall = self._recall
        return recall is not None and recall.opened is not None and bool(recall.opened.asked)

    async def recall_answer(self, method: str, params: Wire, key: str | None) -> Result:
        """For handlers: what the client has answered to a question, where there is no session."""
        return await self.recall.answer(self._speaker.connection, method, params, key)

    def hand_back(self, responses: Mapping[str, Result], state: JSON) -> None:
        """For handlers: let the next run find these answers, and this state, to what was asked by hand."""
        self._handed = responses, state

    def set_log_level(self, level: LogLevel) -> None:
        """For handlers: from which level on the session wants log messages."""
        self._speaker.connection.log_level = level

    def watch(self, uri: str) -> None:
        """For handlers: tell this session when a resource changes.

        Raises:
            InvalidRequest: it watches as many as it may.
        """
        watched = self._speaker.watched
        if uri in watched:
            return
        if len(watched) >= MAX_WATCHED:
            raise InvalidRequest(f"Too many subscriptions: a session may watch {MAX_WATCHED} resources")
        if sum(map(len, watched)) + len(uri) > MAX_WATCHED_SIZE:
            raise InvalidRequest(
                f"Too many subscriptions: the URIs have more than {MAX_WATCHED_SIZE} characters together"
            )
        watched.add(uri)

    def unwatch(self, uri: str) -> None:
        """For handlers: tell this session no longer."""
        self._speaker.watched.discard(uri)

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
        return await self.recall.step(name, fn, lambda: fn(*args, **kwargs))

    async def ask(
        self, method: str, params: Wire, *, key: str | None = None, timeout: float | None = None
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
            NotDeclared: the client cannot be asked this.
        """
        if key is not None and not 0 < len(key) <= MAX_KEY:
            raise ValueError(f"key: it has 1 to {MAX_KEY} characters, not {len(key)}")
        self.recall.check_outside()
        return await self._speaker.ask(self, method, params, timeout, key)

    @property
    def input_responses(self) -> Mapping[str, Result]:
        """What the client has answered to an `InputRequired` of this request's, by key.

        What was not answered, or not in a way that can be read, is missing: ask again.
        """
        return self._brought[0]

    @property
    def request_state(self) -> JSON:
        """What the `InputRequired` that was returned last wanted back; None if there was none."""
        return self._brought[1]

    @property
    def _brought(self) -> tuple[Mapping[str, Result], JSON]:
        journal = self.recall.opened
        if self._handed is None:
            from toolpost.server.inputs import responses, state_of  # noqa: PLC0415 - as in `recall`

            given = {} if journal is None else dict(responses(journal, self._peer.revision))
            self._handed = given, None if journal is None else state_of(journal)
        return self._handed


def _peer_of(speaker: Speaker) -> Peer:
    """Who is at the other end when no request says so."""
    return speaker.connection.peer or Peer(speaker.connection.revision)
