"""`Client`: one server, its connection, and one method for each request that a client can send.

Holds the public methods, except those about tools, and the constructor with all options. Opening a channel is
left to `toolpost.connect`, requests to `client.connection.session`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, cast

from toolpost import types
from toolpost.client.callbacks import (
    PROTOCOL_METHODS,
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
from toolpost.client.listing import PROMPTS, RESOURCES, TEMPLATES
from toolpost.client.multi_round import MultiRoundCall
from toolpost.client.options import (
    ClientOptions,
    EventCallbacks,
    LogCallback,
    NotificationCallback,
    ProgressCallback,
    check_texts,
    make_reference,
)
from toolpost.client.skills import SkillMethods
from toolpost.client.tools import RequestResult, ToolMethods, decode_value
from toolpost.errors import CapabilityNotDeclared, RPCError, explain_keywords, name_methods
from toolpost.protocol.connection import LOG_LEVEL_RANKS
from toolpost.protocol.extension import Extension
from toolpost.protocol.forward import ForwardedResult, make_raw_row, read_members
from toolpost.protocol.jsonrpc import encode
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import (
    COMPLETION_COMPLETE,
    DATES,
    PROMPTS_GET,
    RESOURCES_READ,
    ROOTS_LIST_CHANGED,
    Row,
)
from toolpost.types.base import JSON, RequestId, Result, Unset, WireStruct
from toolpost.version import __version__

if TYPE_CHECKING:
    from toolpost.connect import Credentials, Target


MAX_PARTIES: Final = 64  # sets of capabilities that are kept for `forward`


def _add_tasks(extensions: Sequence[Extension]) -> Sequence[Extension]:
    from toolpost.tasks.wire import TASKS  # noqa: PLC0415 - start-up time

    return (TASKS, *extensions)


class ServerFacts:
    """Facts about the server and the connection, shared by `Client` and `SyncClient`."""

    _session: ClientSession

    @property
    def connected(self) -> bool:
        """Whether the client is connected."""
        return self._session.reconnector.is_connected

    @property
    def state(self) -> State:
        """The state of the connection: "connecting", "ready", "backoff" (lost, to be retried) or "closed"."""
        return self._session.connection_state.state

    @property
    def revision(self) -> str:
        """The protocol revision in use, or the last one used."""
        return self._session.last_connection.revision.date

    @property
    def era(self) -> Literal["session", "stateless"]:
        """The era of the revision: with a session, or stateless."""
        return self._session.last_connection.revision.era

    @property
    def capabilities(self) -> types.ServerCapabilities:
        """The capabilities of the server."""
        return self._session.last_connection.result.capabilities

    @property
    def server_info(self) -> types.Implementation | None:
        """The name and version of the server. Do not base decisions on them (META-17)."""
        opened = self._session.last_connection
        if isinstance(opened.result, types.InitializeResult):
            return opened.result.server_info
        peer = opened.dispatcher.connection.peer
        return None if peer is None else peer.info

    @property
    def instructions(self) -> str | None:
        """The server's instructions on how to use it."""
        return self._session.last_connection.result.instructions

    @property
    def discover_result(self) -> types.DiscoverResult | None:
        """The server's description of itself in the stateless era; None in a session."""
        result = self._session.last_connection.result
        return result if isinstance(result, types.DiscoverResult) else None

    @property
    def stats(self) -> Stats:
        """Statistics so far: requests, timeouts, notifications, discarded messages and more."""
        return self._session.stats


class Client(ServerFacts, ToolMethods, SkillMethods):
    """A client of one server.

    Use it as `async with Client(target) as client:`, or call `connect` and `close`. Every method may be
    called from any task. After `close` it can connect again, if its target can be opened again.

    Args:
        target: a command as a list, a `Stdio`, a server object, a path to an `mcp.json` or an entry of one, a
            URL, an `Http`, or a `Channel`. A string that starts like a URL is a URL, one that ends in `.json`
            is a path, and any other is a command line, which is split into words as a shell would do.
        server: the name of the server, if the `mcp.json` has several.
        headers: headers to send with each HTTP request, such as `{"Authorization": "Bearer …"}`.
        http: the HTTP library: "aiohttp" (the default) or "httpx2", an aiohttp session or an httpx2 async
            client that you configure and close, or an ASGI application.
        auth: the credentials for HTTP: a token, a function that returns one (sync or async; called again when
            the server rejects the token), `OAuth(…)` or another grant, or an object with the same methods.
        name: the name of this client.
        version: its version.
        title: its display name.
        revision: the protocol revision to use. By default it is negotiated.
        timeout: seconds to wait for a response; None means no limit. Progress restarts the timeout, and it
            pauses while a callback answers the server.
        max_timeout: seconds to wait in total, regardless of progress and rounds; 300 if there is a timeout.
        connect_timeout: seconds to reach the server and to negotiate with it.
        probe_timeout: seconds to wait for the response to the first request, which old servers may ignore.
        heartbeat: seconds between two pings. If no response arrives within that time, the connection counts
            as lost. By default no pings are sent.
        retries: how often to resend a lost request: one that was not sent, only reads, or calls an idempotent
            tool. Also how often to repeat a request that a busy server rejected.
        on_sampling: asks the model on behalf of the server. Declares `sampling`.
        on_elicitation: asks the user on behalf of the server. Declares `elicitation`, for forms. For scripts
            there is `toolpost.prompting.terminal`.
        on_roots: the folders that the user has opened, or a function that returns them. Declares `roots`.
        on_log: receives log messages. In a session the server chooses the level, in the stateless era it is
            "info". `set_log_level` changes it until the client is closed.
        on_state: receives each transition of the connection: ready, lost, retried, closed; see `events`.
        on_progress: receives the progress of requests that have no callback of their own.
        on_notification: receives all other notifications: method and params. In the stateless era it also
            makes the client subscribe to changes of lists.
        request_handlers: callbacks for methods that the protocol does not define, by name.
        capabilities: further capabilities to declare: elicitation by URL, sampling with tools.
        extensions: the protocol extensions that this client supports.
        tasks: let servers of 2026-07-28 turn calls into tasks. `call_tool` waits for their results as usual,
            even if the connection is lost meanwhile. Tools that demand a task are called as one anyway.
        strict: raise an error if a list or an output schema breaks a rule, instead of skipping it.
        cache: cache lists and resources for as long as a server of the stateless era allows, or until it
            reports a change.

    Callbacks can be sync or async. A sync callback runs in a thread. All of them may call the client.

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

    @explain_keywords
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
        capabilities: types.ClientCapabilities | None = None,
        extensions: Sequence[Extension] = (),
        tasks: bool = False,
        strict: bool = ClientOptions.strict,
        cache: bool = ClientOptions.cache,
    ) -> None:
        from toolpost.connect import TargetOptions, make_connector  # noqa: PLC0415 - it knows the transports, which this ring must not

        if revision is not None and revision not in DATES:
            raise ValueError(
                f"revision: {revision!r} is not a protocol revision; use one of {', '.join(DATES)}"
            )
        answers = RequestCallbacks(
            sampling=on_sampling,
            elicitation=on_elicitation,
            roots=on_roots,
            custom=request_handlers,
            declared=capabilities,
        )
        self._local_peer = LocalPeer(
            types.Implementation(name=name, version=version, title=title),
            answers.capabilities,
            supported=DATES if revision is None else (revision,),
            extensions=_add_tasks(extensions) if tasks else extensions,
            rows=answers.custom_rows,
        )
        self._session = ClientSession(
            make_connector(target, TargetOptions(server, headers, http, auth)),
            self._local_peer,
            answers,
            EventCallbacks(on_log, on_progress, on_notification, on_state),
            ClientOptions(
                timeout, max_timeout, connect_timeout, probe_timeout, heartbeat, retries, strict, cache
            ),
        )
        self._session.result_resolvers = {
            kind: partial(resolve, self) for each in extensions for kind, resolve in each.resolvers.items()
        }
        self._make_limits = self._session.make_limits
        self._parties: dict[bytes, LocalPeer] = {}  # by capabilities

    def __repr__(self) -> str:
        state = f"connected, {self.revision}" if self.connected else "not connected"
        return f"<Client for {self._session.name}: {state}>"

    # ----------------------------------------------------------------- the connection

    async def connect(self) -> Self:
        """Connect to the server unless already connected; return the client.

        Raises:
            ConnectFailed: the server cannot be reached, or there is no common revision.
            AuthError: the server rejects the credentials, or none could be obtained.
        """
        await self._session.open()
        return self

    async def close(self) -> None:
        """Close the connection. Requests in flight fail with `ChannelClosed`. Closing twice is fine.

        Notifications that have arrived are delivered first, if that does not take too long.
        """
        await self._session.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.connect()
        except BaseException:  # also a cancellation just after the connection was made
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def events(self) -> ConnectionEvents:
        """Iterate over the transitions of the connection from now on: `async for event in …:`.

        Each has its cause. The iteration ends when the client is closed.
        """
        return self._session.connection_state.watch()

    @property
    def pending(self) -> Mapping[RequestId, str]:
        """The requests in flight: id → method. `cancel` takes an id."""
        return {request_id: call.method for request_id, call in self._session.dispatcher.calls.items()}

    # ----------------------------------------------------------------- resources

    async def list_resources(self, *, timeout: float | None = None) -> list[types.Resource]:
        """Return all resources."""
        return await self._session.reader.read_list(RESOURCES, self._make_limits(timeout))

    def list_resources_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[types.ListResourcesResult]:
        """Iterate over the pages of the list of resources."""
        return self._session.reader.iter_pages(RESOURCES, self._make_limits(timeout))

    async def list_resource_templates(self, *, timeout: float | None = None) -> list[types.ResourceTemplate]:
        """Return all resource templates."""
        return await self._session.reader.read_list(TEMPLATES, self._make_limits(timeout))

    def list_resource_templates_pages(
        self, *, timeout: float | None = None
    ) -> AsyncIterator[types.ListResourceTemplatesResult]:
        """Iterate over the pages of the list of resource templates."""
        return self._session.reader.iter_pages(TEMPLATES, self._make_limits(timeout))

    async def read_resource(
        self,
        uri: str,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> types.ReadResourceResult:
        """Return the contents of a resource.

        Raises:
            ResourceNotFound: no resource has this URI (`InvalidParams` from a server of the stateless era).
        """
        limits = self._make_limits(timeout, progress)
        if progress is None and meta is None:
            return await self._session.reader.read_resource(uri, limits)
        params = types.ReadResourceParams(uri=uri)
        call = MultiRoundCall(self._session, RESOURCES_READ, params, limits, meta)
        return await call.finish(types.ReadResourceResult)

    async def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Subscribe to changes of a resource; `on_notification` receives them.

        Raises:
            CapabilityNotDeclared: the server does not support subscriptions.
        """
        session, limits = self._session, self._make_limits(timeout)
        await session.run_with_retry(lambda _, left: session.listener.watch(uri, left), limits, safe=True)

    async def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Unsubscribe from a resource."""
        session, limits = self._session, self._make_limits(timeout)
        await session.run_with_retry(lambda _, left: session.listener.unwatch(uri, left), limits, safe=True)

    # ----------------------------------------------------------------- prompts

    async def list_prompts(self, *, timeout: float | None = None) -> list[types.Prompt]:
        """Return all prompts."""
        return await self._session.reader.read_list(PROMPTS, self._make_limits(timeout))

    def list_prompts_pages(self, *, timeout: float | None = None) -> AsyncIterator[types.ListPromptsResult]:
        """Iterate over the pages of the list of prompts."""
        return self._session.reader.iter_pages(PROMPTS, self._make_limits(timeout))

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> types.GetPromptResult:
        """Return a prompt, filled in with its arguments."""
        params = types.GetPromptParams(name=name, arguments=check_texts("arguments", arguments) or None)
        limits = self._make_limits(timeout, progress)
        call = MultiRoundCall(self._session, PROMPTS_GET, params, limits, meta)
        return await call.finish(types.GetPromptResult)

    async def complete(
        self,
        ref: types.Reference | types.Prompt | types.ResourceTemplate | str,
        argument: str,
        value: str = "",
        *,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> types.Completion:
        """Return completions for the value of an argument.

        Args:
            ref: the prompt or the template that the argument belongs to. A string with `://` or `{` is the
                URI of a template; a string without a colon is the name of a prompt.
            argument: the name of the argument.
            value: the text typed so far.
            context: the other arguments that are already known.
            timeout: seconds to wait.

        Raises:
            ValueError: `ref` is a string that could be either.
        """
        known = check_texts("context", context)
        params = types.CompleteParams(
            ref=make_reference(ref),
            argument=types.CompletionArgument(name=argument, value=value),
            context=types.CompletionContext(known) if known else None,
        )
        call = MultiRoundCall(self._session, COMPLETION_COMPLETE, params, self._make_limits(timeout))
        return (await call.finish(types.CompleteResult)).completion

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
        """Iterate over changes on the server: `async for change in client.listen(tools=True):`.

        It ends when the client is closed or you leave the loop. After a lost connection or stream the client
        subscribes again, and reports everything that it watches as changed (`change.missed`). With
        `async with client.listen(…) as changes:` it subscribes before the block begins, so you miss no change
        of a list that you read inside.

        Args:
            tools: watch the list of tools.
            prompts: watch the list of prompts.
            resources: watch the lists of resources and of templates.
            uris: the resources to watch. Without any of these, every list for which the server reports
                changes.
            timeout: seconds to wait for the server's acknowledgement.
        """
        wanted = ChangeFilter.create(uris, tools=tools, prompts=prompts, resources=resources)
        return ChangeStream(self._session, wanted, self._make_limits(timeout))

    # ----------------------------------------------------------------- log, ping, roots

    async def set_log_level(self, level: types.LogLevel, *, timeout: float | None = None) -> None:
        """Request log messages of this level and above; `on_log` receives them.

        Raises:
            CapabilityNotDeclared: the server does not support logging.
        """
        if level not in LOG_LEVEL_RANKS:
            raise ValueError(f"level: {level!r} is not a log level; use one of {', '.join(LOG_LEVEL_RANKS)}")
        await self._session.set_log_level(level, self._make_limits(timeout))

    async def ping(self, *, timeout: float | None = None) -> None:
        """Check that the server responds; in the stateless era with `server/discover`.

        Raises:
            RequestTimeout: it did not respond in time.
        """
        await self._session.run_with_retry(self._session.ping, self._make_limits(timeout), safe=True)

    async def cancel(self, request_id: RequestId, reason: str | None = None) -> bool:
        """Cancel a request, which then fails with `MCPError`; return False if it is not in flight.

        Args:
            request_id: one of `pending`.
            reason: the reason to send to the server.
        """
        return self._session.dispatcher.cancel(request_id, reason)

    async def notify_roots_changed(self) -> None:
        """Notify the server that the roots have changed. A stateless server asks whenever it needs them.

        Raises:
            CapabilityNotDeclared: this client has no roots.
        """
        if not self._local_peer.has_capability("roots"):
            raise CapabilityNotDeclared("roots", "this client does not declare 'roots'")
        await self._session.wait_connected(NO_LIMITS)
        if not self._session.last_connection.revision.stateless:
            await self.notify(ROOTS_LIST_CHANGED)

    # ----------------------------------------------------------------- any method

    async def request(
        self,
        method: str,
        params: WireStruct | Mapping[str, JSON] | None = None,
        *,
        result_type: type[RequestResult] | None = None,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        meta: Mapping[str, JSON] | None = None,
        retry: bool | None = None,
    ) -> RequestResult:
        """Send any request, of the protocol or not, and return its result.

        Args:
            method: its name.
            params: its parameters.
            result_type: the type of the result, such as `dict`; by default a `Result`, `raw` included.
            timeout: seconds to wait.
            progress: receives the progress of the request.
            meta: members of `_meta`.
            retry: whether to resend it even if the server may have received it; by default only for methods
                of the protocol that only read.

        Raises:
            LocalProtocolError: the protocol does not allow the method in this revision.
        """
        known, own = method in PROTOCOL_METHODS, self._local_peer.extra_rows.get(method)
        row = method if known or own else Row(method, types.ClientRequestParams, Result)
        retry = True if retry is None and own is not None and own.repeatable else retry
        limits = self._make_limits(timeout, progress)
        result = await MultiRoundCall(self._session, row, params, limits, meta, None, retry).send()
        if result_type is None or type(result) is result_type:
            return cast("RequestResult", result)
        return decode_value(result.raw or b"{}", result_type, f"the result of {method}")

    async def forward(
        self,
        method: str,
        params: bytes | Mapping[str, JSON] = b"{}",
        *,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
        log: Callable[[types.LogParams], Awaitable[object]] | None = None,
        capabilities: types.ClientCapabilities | None = None,
        retry: bool | None = None,
    ) -> ForwardedResult:
        """Send a request with parameters that are already JSON, and return the undecoded result.

        For gateways: nothing is decoded, validated or cached. Members of `_meta` that describe the sender are
        replaced by those of this client. `Handler.forward_request` and `ProxyEntry` return the result to
        their own client.

        Args:
            method: its name.
            params: its parameters, a JSON object.
            timeout: seconds to wait.
            progress: receives the progress of the request.
            log: an async function that receives the log messages of the request. Where they cannot be
                distinguished from those of others, they go to `on_log`.
            capabilities: the capabilities that the request declares in the stateless era, instead of those of
                this client. The result may then be of the type "input_required".
            retry: whether to resend it if the connection is lost; by default only if it only reads.

        Raises:
            RPCError: the server responded with an error.
            LocalProtocolError: the parameters are not a JSON object.
        """
        row = make_raw_row(method, self._local_peer.extra_rows.get(method))
        limits = self._make_limits(timeout, progress)
        limits = limits if log is None else limits._replace(log=log)
        retry = row.repeatable or None if retry is None else retry
        members = read_members(params) if isinstance(params, bytes) else params
        party = None if capabilities is None else self._get_party(capabilities)
        call = MultiRoundCall(self._session, row, members, limits, None, party, retry)
        try:
            result = await call.send()
        except RPCError as error:
            error.is_forwarded = True
            raise
        return ForwardedResult(result.raw or b"{}", result.result_type or "complete", self.revision)

    def _get_party(self, capabilities: types.ClientCapabilities) -> LocalPeer:
        """Return our identity with other capabilities, of which a gateway needs only a few."""
        key = encode(capabilities)
        party = self._parties.get(key)
        if party is None:
            if len(self._parties) >= MAX_PARTIES:
                self._parties.clear()
            party = self._parties[key] = self._local_peer.with_capabilities(capabilities)
        return party

    async def notify(
        self, method: str, params: types.NotificationParams | Mapping[str, JSON] | None = None
    ) -> None:
        """Send any notification, of the protocol or not."""
        row = method if method in PROTOCOL_METHODS else Row(method, types.NotificationParams)
        await self._session.run_with_retry(lambda link, _: link.notify(row, params), NO_LIMITS)


name_methods(SkillMethods, Client.__name__)
name_methods(ToolMethods, Client.__name__)
