"""`Client`: one server, its connection, and one method for each request that a client can send.

Holds the public methods, except those about tools, and the constructor with all options. Opening a channel is
left to `toolpost.connect`, requests to `client.connection.session`.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from toolpost.client.callbacks import (
    CustomRequestCallback,
    ElicitationCallback,
    RequestCallbacks,
    RootLike,
    RootsCallback,
    SamplingCallback,
)
from toolpost.client.changes import ChangeFilter, ChangeStream
from toolpost.client.connection.pending import NO_LIMITS
from toolpost.client.connection.session import ClientSession
from toolpost.client.connection.status import ConnectionEvents, State, StateCallback, Stats
from toolpost.client.listing import PROMPTS, RESOURCES, TEMPLATES, read_all_pages
from toolpost.client.options import (
    ClientOptions,
    EventCallbacks,
    LogCallback,
    NotificationCallback,
    ProgressCallback,
    check_mapping,
    make_reference,
)
from toolpost.client.tools import ToolMethods, decode_value
from toolpost.errors import CapabilityNotDeclared
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import (
    COMPLETION_COMPLETE,
    DATES,
    PROMPTS_GET,
    RESOURCES_READ,
    ROOTS_LIST_CHANGED,
    ROWS,
    Row,
)
from toolpost.protocol.send import LOG_LEVEL_RANKS
from toolpost.types.base import JSON, RequestId, Result, Unset, WireStruct
from toolpost.types.client_requests import ClientRequestParams
from toolpost.types.initialize import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    LogLevel,
    ServerCapabilities,
)
from toolpost.types.notifications import NotificationParams
from toolpost.types.prompts import (
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptParams,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    Reference,
)
from toolpost.types.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from toolpost.version import __version__

if TYPE_CHECKING:
    from toolpost.connect import Credentials, Target

T = TypeVar("T")

_PROTOCOL_METHODS: Final = frozenset(row.name for row in ROWS)


class ServerFacts:
    """What a client knows about its server and its connection; shared by `Client` and `SyncClient`."""

    _session: ClientSession

    @property
    def connected(self) -> bool:
        """Whether there is a conversation."""
        return self._session.is_connected

    @property
    def state(self) -> State:
        """Where the connection stands: "connecting", "ready", "backoff" (lost, tried again) or "closed"."""
        return self._session.connection_state.state

    @property
    def revision(self) -> str:
        """The protocol revision that is spoken, or was spoken last."""
        return self._session.last_connection.revision.date

    @property
    def era(self) -> Literal["session", "stateless"]:
        """How the conversation is held."""
        return self._session.last_connection.revision.era

    @property
    def capabilities(self) -> ServerCapabilities:
        """What the server can do."""
        return self._session.last_connection.result.capabilities

    @property
    def server_info(self) -> Implementation | None:
        """The name tag of the server. Nothing may depend on it (META-17)."""
        opened = self._session.last_connection
        if isinstance(opened.result, InitializeResult):
            return opened.result.server_info
        peer = opened.dispatcher.connection.peer
        return None if peer is None else peer.info

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used."""
        return self._session.last_connection.result.instructions

    @property
    def discover_result(self) -> DiscoverResult | None:
        """What the server said of itself in the stateless era; None in a session."""
        result = self._session.last_connection.result
        return result if isinstance(result, DiscoverResult) else None

    @property
    def stats(self) -> Stats:
        """What was seen so far, as numbers: requests, time-outs, notices, discarded messages and more."""
        return self._session.stats


class Client(ServerFacts, ToolMethods):
    """A client of one server.

    Use it as `async with Client(target) as client:`, or call `connect` and `close`. Every method may be
    called from any task. After `close` it may be connected again, if its target can be opened again.

    Args:
        target: a command as a list, a `Stdio`, a server object, a path to an `mcp.json` or an entry of one, a
            URL, an `Http`, or a `Channel`. A string is a URL if it starts like one, a path if it ends in
            `.json`, and else a command line, split into words as a shell would.
        server: which server of an `mcp.json` with several.
        headers: what to send with each HTTP request, such as `{"Authorization": "Bearer …"}`.
        http: what carries HTTP requests: "aiohttp" (the default) or "httpx2", a session of the one or an
            async client of the other that you have configured (and close), or an ASGI application.
        auth: who you are, over HTTP: a token, a function that gives one (sync or async; asked again when the
            server refuses the token), `OAuth(…)` or another grant, or an object that keeps their promise.
        name: what to call this client.
        version: its version.
        title: its name for people.
        revision: the protocol revision to speak. By default it is found out.
        timeout: seconds to wait for an answer, None for ever; progress starts it anew, and while a callback
            answers the server it stands still.
        max_timeout: seconds to wait in all, whatever the progress and in how many rounds; 300 if there is a
            time-out.
        connect_timeout: seconds to reach the server and agree with it.
        probe_timeout: seconds to wait for the answer to the first question, which old servers may not give.
        heartbeat: seconds between two questions whether the server still answers; if it does not within the
            same time, the connection counts as lost. By default none are asked.
        retries: how often a request is sent once more that was lost: one that was not sent, that only reads,
            or of a tool that is idempotent; and what a server that is busy wants to have later.
        on_sampling: asks the model when the server wants it asked. Declares `sampling`.
        on_elicitation: asks the user when the server wants them asked. Declares `elicitation`, for forms. For
            scripts there is `toolpost.prompting.terminal`.
        on_roots: the places that the user has opened, or a function that tells them. Declares `roots`.
        on_log: hears the server's log: what it chooses to tell in a session, from "info" on in the stateless
            era. `set_log_level` changes that, until the client is closed.
        on_state: hears when the connection is made, lost, tried again or closed; see `events`.
        on_progress: hears of the progress of requests that have no callback of their own.
        on_notification: hears all other notices: method and params. In the stateless era it is also what
            makes the client ask to hear of lists that change.
        request_handlers: answers to methods of the server's own, by name.
        capabilities: more about what is declared: elicitation by URL, sampling with tools, extensions.
        strict: raise where a list has an item that cannot be read, instead of leaving it out.
        cache: keep lists and resources as long as a server of the stateless era says that they are fresh, and
            until it says that they have changed.

    A callback is sync or async. A sync one runs in a thread; all of them may call the client.

    Examples:
        >>> import asyncio
        >>> server = Server("shop")
        >>> @server.tool
        ... def price(item: str) -> float:
        ...     return 2.5
        >>> async def main():
        ...     async with Client(server) as mcp:
        ...         return (await mcp.call_tool("price", {"item": "pen"})).data
        >>> asyncio.run(main())
        2.5
    """

    def __init__(
        self,
        target: "Target",
        *,
        server: str | None = None,
        headers: Mapping[str, str] | None = None,
        http: object = None,
        auth: "Credentials | None" = None,
        name: str = "toolpost",
        version: str = __version__,
        title: str | None = None,
        revision: str | None = None,
        timeout: float | None = ClientOptions.timeout,
        max_timeout: float | Unset | None = ClientOptions.max_timeout,
        connect_timeout: float | None = ClientOptions.connect_timeout,
        probe_timeout: float = ClientOptions.probe_timeout,
        heartbeat: float | None = ClientOptions.heartbeat,
        retries: int = ClientOptions.retries,
        on_sampling: SamplingCallback | None = None,
        on_elicitation: ElicitationCallback | None = None,
        on_roots: Iterable[RootLike] | RootsCallback | None = None,
        on_log: LogCallback | None = None,
        on_state: StateCallback | None = None,
        on_progress: ProgressCallback | None = None,
        on_notification: NotificationCallback | None = None,
        request_handlers: Mapping[str, CustomRequestCallback] | None = None,
        capabilities: ClientCapabilities | None = None,
        strict: bool = ClientOptions.strict,
        cache: bool = ClientOptions.cache,
    ) -> None:
        from toolpost.connect import make_connector  # noqa: PLC0415 - it knows the transports, which this ring may not

        if revision is not None and revision not in DATES:
            raise ValueError(
                f"revision: {revision!r} is not a protocol revision; there are {', '.join(DATES)}"
            )
        answers = RequestCallbacks(
            sampling=on_sampling,
            elicitation=on_elicitation,
            roots=on_roots,
            custom=request_handlers,
            declared=capabilities,
        )
        self._local_peer = LocalPeer(
            Implementation(name=name, version=version, title=title),
            answers.capabilities,
            supported=DATES if revision is None else (revision,),
        )
        self._session = ClientSession(
            make_connector(target, server, headers=headers, http=http, auth=auth),
            self._local_peer,
            answers,
            EventCallbacks(on_log, on_progress, on_notification, on_state),
            ClientOptions(
                timeout, max_timeout, connect_timeout, probe_timeout, heartbeat, retries, strict, cache
            ),
        )
        self._make_limits = self._session.make_limits

    def __repr__(self) -> str:
        state = f"connected, {self.revision}" if self.connected else "not connected"
        return f"<Client of {self._session.name}: {state}>"

    # ----------------------------------------------------------------- the connection

    async def connect(self) -> Self:
        """Connect to the server, unless that was done; the client itself.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no revision that both speak.
            AuthError: the server wants other credentials than we have or get.
        """
        await self._session.open()
        return self

    async def close(self) -> None:
        """Leave the server. Whoever waits for an answer gets `ChannelClosed`. Closing twice is fine.

        `on_log` and `on_notification` hear first what has arrived, if that does not take too long.
        """
        await self._session.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.connect()
        except BaseException:  # also when the caller no longer waits, and it has just come about
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ----------------------------------------------------------------- the server

    def events(self) -> ConnectionEvents:
        """The transitions of the connection from now on, each with its cause: `async for event in …:`.

        Watching costs nothing and changes nothing. It ends when the client is closed.
        """
        return self._session.connection_state.watch()

    @property
    def pending(self) -> Mapping[RequestId, str]:
        """The requests in flight: id → method. `cancel` takes an id."""
        return self._session.dispatcher.pending

    # ----------------------------------------------------------------- resources

    async def list_resources(self, *, timeout: float | None = None) -> list[Resource]:
        """The resources, all pages of them."""
        pages = await read_all_pages(lambda: self.list_resources_pages(timeout=timeout))
        return [item for page in pages for item in page.resources]

    async def list_resources_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[ListResourcesResult]:
        """The resources, page by page."""
        async for page in self._session.reader.iter_pages(RESOURCES, self._make_limits(timeout)):
            yield page

    async def list_resource_templates(self, *, timeout: float | None = None) -> list[ResourceTemplate]:
        """The resource templates, all pages of them."""
        pages = await read_all_pages(lambda: self.list_resource_templates_pages(timeout=timeout))
        return [item for page in pages for item in page.resource_templates]

    async def list_resource_templates_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[ListResourceTemplatesResult]:
        """The resource templates, page by page."""
        async for page in self._session.reader.iter_pages(TEMPLATES, self._make_limits(timeout)):
            yield page

    async def read_resource(
        self,
        uri: str,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> ReadResourceResult:
        """What a resource holds.

        Raises:
            ResourceNotFound: there is none of this URI (`InvalidParams` from a server of the stateless era).
        """
        limits = self._make_limits(timeout, progress)
        if progress is None and meta is None:
            return await self._session.reader.read_resource(uri, limits)
        params = ReadResourceParams(uri=uri)
        return await self._session.multi_round.request(
            ReadResourceResult, RESOURCES_READ, params, limits, meta
        )

    async def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Ask to hear when a resource changes; `on_notification` does.

        Raises:
            CapabilityNotDeclared: the server does not offer it.
        """
        await self._session.watch(uri, self._make_limits(timeout))

    async def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Ask to hear no more of a resource."""
        await self._session.unwatch(uri, self._make_limits(timeout))

    # ----------------------------------------------------------------- prompts

    async def list_prompts(self, *, timeout: float | None = None) -> list[Prompt]:
        """The prompts, all pages of them."""
        pages = await read_all_pages(lambda: self.list_prompts_pages(timeout=timeout))
        return [item for page in pages for item in page.prompts]

    async def list_prompts_pages(self, *, timeout: float | None = None) -> AsyncIterator[ListPromptsResult]:
        """The prompts, page by page."""
        async for page in self._session.reader.iter_pages(PROMPTS, self._make_limits(timeout)):
            yield page

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> GetPromptResult:
        """A prompt, filled in."""
        params = GetPromptParams(name=name, arguments=check_mapping("arguments", arguments) or None)
        limits = self._make_limits(timeout, progress)
        return await self._session.multi_round.request(GetPromptResult, PROMPTS_GET, params, limits, meta)

    async def complete(
        self,
        ref: Reference | Prompt | ResourceTemplate | str,
        argument: str,
        value: str = "",
        *,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """How an argument might go on.

        Args:
            ref: the prompt or the template that it belongs to. A string with `://` or `{` is the URI of a
                template, one without a colon the name of a prompt.
            argument: its name.
            value: what has been typed.
            context: the arguments that are known already.
            timeout: seconds to wait.

        Raises:
            ValueError: `ref` is a string that may be either.
        """
        known = check_mapping("context", context)
        params = CompleteParams(
            ref=make_reference(ref),
            argument=CompletionArgument(name=argument, value=value),
            context=CompletionContext(known) if known else None,
        )
        limits = self._make_limits(timeout)
        return (
            await self._session.multi_round.request(CompleteResult, COMPLETION_COMPLETE, params, limits)
        ).completion

    # ----------------------------------------------------------------- changes

    def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Iterable[str] = (),
        timeout: float | None = None,
    ) -> ChangeStream:
        """The changes on the server as they happen: `async for change in client.listen(tools=True):`.

        It ends when the client is closed; leaving the loop ends it as well. A connection or a stream that is
        lost is opened again, and then all that is listened to counts as changed (`change.missed`). As
        `async with client.listen(…) as changes:` it begins to listen before the block does, so that a list
        that is read first is followed without a gap.

        Args:
            tools: hear when the list of tools changes.
            prompts: hear when the list of prompts changes.
            resources: hear when the list of resources or of templates changes.
            uris: the resources to watch. Without any of these every list that the server tells of.
            timeout: seconds that the server may take to agree.
        """
        wanted = ChangeFilter.create(uris, tools=tools, prompts=prompts, resources=resources)
        return ChangeStream(self._session, wanted, self._make_limits(timeout))

    # ----------------------------------------------------------------- log, ping, roots

    async def set_log_level(self, level: LogLevel, *, timeout: float | None = None) -> None:
        """Ask for log messages of this level and graver ones; `on_log` hears them.

        Raises:
            CapabilityNotDeclared: the server does not offer a log.
        """
        if level not in LOG_LEVEL_RANKS:
            raise ValueError(f"level: {level!r} is not a log level; there are {', '.join(LOG_LEVEL_RANKS)}")
        await self._session.set_log_level(level, self._make_limits(timeout))

    async def ping(self, *, timeout: float | None = None) -> None:
        """Return if the server answers. In the stateless era it is asked what it is.

        Raises:
            RequestTimeout: it did not answer in time.
        """
        await self._session.ping(self._make_limits(timeout))

    async def cancel(self, request_id: RequestId, reason: str | None = None) -> bool:
        """Give up a request of ours; False if there is none of this id. Whoever waits for it gets `MCPError`.

        Args:
            request_id: one of `pending`.
            reason: what the server is told.
        """
        return self._session.dispatcher.cancel(request_id, reason)

    async def notify_roots_changed(self) -> None:
        """Tell the server that the roots have changed. In the stateless era it asks each time it needs them.

        Raises:
            CapabilityNotDeclared: this client has no roots.
        """
        if not self._local_peer.has_capability("roots"):
            raise CapabilityNotDeclared("roots", "this client does not declare 'roots'")
        await self._session.notify_if_session(ROOTS_LIST_CHANGED)

    # ----------------------------------------------------------------- any method

    @overload
    async def request(
        self,
        method: str,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        result_type: type[T],
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        retry: bool | None = None,
    ) -> T: ...

    @overload
    async def request(
        self,
        method: str,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        result_type: None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        retry: bool | None = None,
    ) -> Result: ...

    async def request(
        self,
        method: str,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        result_type: type[Any] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        retry: bool | None = None,
    ) -> Any:
        """The answer to any request, be it one of the protocol or not.

        Args:
            method: its name.
            params: its parameters.
            result_type: what to make of the result, such as `dict`; by default a `Result`, `raw` included.
            timeout: seconds to wait.
            progress: hears how far it has come.
            meta: what to put into `_meta`.
            retry: whether it may be sent once more although the server may have got it; by default if it is a
                method of the protocol that only reads.

        Raises:
            LocalProtocolError: the method is one of the protocol, and may not be sent in this revision.
        """
        row = method if method in _PROTOCOL_METHODS else Row(method, ClientRequestParams, Result)
        limits = self._make_limits(timeout, progress)
        result = await self._session.request(row, params, limits, meta, retry=retry)
        if result_type is None or type(result) is result_type:
            return result
        return decode_value(result.raw or b"{}", result_type, f"the result of {method}")

    async def notify(
        self, method: str, params: NotificationParams | Mapping[str, JSON] | None = None
    ) -> None:
        """Say anything to the server, be it a notice of the protocol or not."""
        row = method if method in _PROTOCOL_METHODS else Row(method, NotificationParams)
        await self._session.run_with_retry(lambda link, _: link.notify(row, params), NO_LIMITS)
