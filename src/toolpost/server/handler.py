"""`Handler`: the explicit form of a server. Subclass it, and override only what you serve.

Capabilities follow from the overridden methods. `routes` leads from a protocol method to the code that serves
it. Knows nothing of transports: `serving` has the methods that run a server.
"""

# ruff: noqa: ARG002 - methods to be overridden ignore their arguments

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from toolpost import types
from toolpost.errors import InternalError, InvalidRequest, MethodNotFound
from toolpost.protocol.connection import Connection
from toolpost.protocol.local_peer import LocalPeer, check_icons
from toolpost.protocol.methods import (
    COMPLETION_COMPLETE,
    INITIALIZE,
    LOGGING_SET_LEVEL,
    PING,
    PROMPTS_GET,
    PROMPTS_LIST,
    RESOURCES_LIST,
    RESOURCES_READ,
    RESOURCES_SUBSCRIBE,
    RESOURCES_TEMPLATES_LIST,
    RESOURCES_UNSUBSCRIBE,
    SERVER_DISCOVER,
    SUBSCRIPTIONS_LISTEN,
    TOOLS_CALL,
    TOOLS_LIST,
    Row,
)
from toolpost.server import options
from toolpost.server.context import Context
from toolpost.server.options import HTTP, IN_MEMORY, SERVER, Lifespan, ListName
from toolpost.server.registry.registry import Cache, apply_cache
from toolpost.server.request import decode_arguments
from toolpost.server.runtime.change_broadcast import ChangeBroadcaster
from toolpost.server.runtime.notifications import ServerSubscriptions
from toolpost.server.runtime.request import Middleware, Observer, Routes
from toolpost.server.runtime.worker_threads import WorkerThreads
from toolpost.server.serving import ServeMethods, SharedLifespan
from toolpost.types.base import JSON, Icon, Params, Result
from toolpost.types.content import ResourceContents
from toolpost.types.initialize import (
    Implementation,
    InitializeParams,
    ListCapability,
    LogLevel,
    PaginatedRequestParams,
    ResourcesCapability,
    ServerCapabilities,
    SetLevelParams,
)
from toolpost.types.notifications import ListenParams
from toolpost.types.tools import CallToolParams, CallToolResult, ListToolsResult, Tool

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.server.elicitation.input_required import InputRequired
    from toolpost.server.elicitation.request_state import RequestStates
    from toolpost.stores.store import Store


HANDSHAKE_TIMEOUT: Final = HTTP.handshake
"""Seconds that `init` may take."""

R = TypeVar("R")


class Handler(ServeMethods):
    """A server in its explicit form.

    Args:
        name: how it is called.
        version: of the server, not of the protocol.
        title: for people.
        description: for people.
        instructions: for the model, about the server as a whole.
        icons: for user interfaces.
        website_url: where to read more.
        lifespan: entered before the first client is served, left after the last; functions find its value in
            `ctx.lifespan`.
        middleware: wraps every request and notification, in both directions, the first one outermost.
        revisions: the protocol revisions to speak; all of them by default.
        declares: lists to declare although they are empty, such as ["tools"]: a client that connects before
            the first tool is registered is notified of it only if tools were declared.
        max_in_flight: how many requests of one client may be served at once.
        threads: how many functions that are not async may run at once.
        extra_methods: rows for methods that are in no revision; `routes` has to serve them.
        store: where data that outlasts a request is kept: a URL such as "memory://", or a store of your own.
        keys: they seal what clients bring back, such as request states. Random unless given, or shared by all
            servers that share a store. Workers that share clients share keys.
        answer_timeout: seconds that a stateless client has to come back with answers.
        answer_once: whether it may come back with the same state only once. The store remembers; a client
            whose response was lost cannot retry.
        observers: each is called with the context of a request when it begins, in its task, and may return a
            function that is called with its `Outcome`. Unlike middleware, they change nothing.
        auth: how clients are recognised over HTTP: each of their requests needs a token then.

    Raises:
        TypeError: an argument is of another type than it should be; the text names it.
        ValueError: an argument cannot work, or there is no store like this.

    Examples:
        >>> class Echo(Handler):
        ...     async def list_tools(self, cursor):
        ...         return [Tool("echo", {"type": "object"})]
        ...     async def call_tool(self, name, arguments, ctx):
        ...         return CallToolResult(content=[TextContent(str(arguments))])
        >>> with SyncClient(Echo("echo")) as mcp:
        ...     mcp.call_tool("echo", {"a": 1}).text
        "{'a': 1}"
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        version: str = SERVER.version,
        title: str | None = SERVER.title,
        description: str | None = SERVER.description,
        instructions: str | None = SERVER.instructions,
        icons: list[Icon] | None = SERVER.icons,
        website_url: str | None = SERVER.website_url,
        lifespan: Lifespan | None = SERVER.lifespan,
        middleware: Iterable[Middleware] = SERVER.middleware,
        revisions: Iterable[str] = SERVER.revisions,
        declares: Iterable[ListName] = SERVER.declares,
        max_in_flight: int = SERVER.max_in_flight,
        threads: int = SERVER.threads,
        extra_methods: Iterable[Row] = SERVER.extra_methods,
        store: "Store | str" = SERVER.store,
        keys: "KeyRing | None" = SERVER.keys,
        answer_timeout: float = SERVER.answer_timeout,
        answer_once: bool = SERVER.answer_once,
        observers: Iterable[Observer] = SERVER.observers,
        auth: "Auth | None" = SERVER.auth,
    ) -> None:
        options.check_strings(name=name, version=version, title=title, description=description)
        options.check_strings(instructions=instructions, website_url=website_url)
        options.check_counts(max_in_flight=max_in_flight, threads=threads)
        options.check_durations(answer_timeout=answer_timeout)
        check_icons(icons)
        name = name or type(self).__name__
        self.info = Implementation(
            name, version, title=title, description=description, website_url=website_url, icons=icons
        )
        self.instructions = instructions
        self.middleware = options.parse_middleware(middleware)
        self.broadcaster = ChangeBroadcaster()
        self.worker_threads = WorkerThreads(threads)
        self.revisions = options.parse_revisions(revisions)
        self._declared_lists = options.parse_declared_lists(declares)
        self.extra_methods: dict[str, Row] = {row.name: row for row in extra_methods}
        self.max_in_flight = max_in_flight
        self.observers = list(observers)
        self.running_steps: set[asyncio.Task[Any]] = set()
        """For contexts: the running steps."""
        self.auth = options.parse_auth(auth)
        self._store = store
        if store != IN_MEMORY:
            _ = self.store  # raise now if there is no such store
        self._lifespan = lifespan
        self._shared_lifespan = SharedLifespan(self.open_lifespan)
        self._subscriptions = ServerSubscriptions()
        self._state_keys = keys
        self._answer_timeout = answer_timeout
        self.answer_once = answer_once

    is_forwarding: bool = False
    """Whether requests are forwarded to other handlers."""

    has_header_parameters: bool = False
    """Whether HTTP headers mirror parameters of a tool (`find_header_parameters`)."""

    is_per_client: bool = False
    """Whether it chooses a server for each session, by the scopes of its principal."""

    # ----------------------------------------------------------------- to be overridden

    async def init(self, ctx: Context) -> None:
        """Called when a client opens a session. Raise to refuse it."""

    async def list_tools(self, cursor: str | None) -> ListToolsResult | Sequence[Tool]:
        """Return the tools, or one page of them."""
        return self._empty_if_declared("tools")

    async def call_tool(
        self, name: str, arguments: dict[str, JSON], ctx: Context
    ) -> "CallToolResult | InputRequired":
        """Call a tool."""
        raise self._make_method_not_found("call_tool")

    async def list_resources(
        self, cursor: str | None
    ) -> "types.ListResourcesResult | Sequence[types.Resource]":
        """Return the resources, or one page of them."""
        return self._empty_if_declared("resources")

    async def list_resource_templates(
        self, cursor: str | None
    ) -> "types.ListResourceTemplatesResult | Sequence[types.ResourceTemplate]":
        """Return the resource templates, or one page of them."""
        raise self._make_method_not_found("list_resource_templates")

    async def read_resource(
        self, uri: str, ctx: Context
    ) -> "types.ReadResourceResult | Sequence[ResourceContents] | InputRequired":
        """Read a resource."""
        raise self._make_method_not_found("read_resource")

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Called when a client subscribes to a resource; `notify_resource_updated` notifies it."""
        raise self._make_method_not_found("subscribe")

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        """Called when a client unsubscribes from a resource."""

    async def list_prompts(self, cursor: str | None) -> "types.ListPromptsResult | Sequence[types.Prompt]":
        """Return the prompts, or one page of them."""
        return self._empty_if_declared("prompts")

    async def get_prompt(
        self, name: str, arguments: dict[str, str], ctx: Context
    ) -> "types.GetPromptResult | InputRequired":
        """Return a prompt with its arguments filled in."""
        raise self._make_method_not_found("get_prompt")

    async def complete(self, params: "types.CompleteParams", ctx: Context) -> "types.CompleteResult":
        """Complete an argument."""
        raise self._make_method_not_found("complete")

    async def set_log_level(self, level: LogLevel, ctx: Context) -> None:
        """Called when a client of the session era sets its log level."""

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        """Called with a notification of a client. What it raises is logged.

        `params` is the struct of the method; for a method that is in no revision and no row, it is a dict.
        """

    def _make_method_not_found(self, name: str) -> MethodNotFound:
        return MethodNotFound(f"Method not found: {self.info.name} has no {name}")

    def _empty_if_declared(self, what: ListName) -> tuple[()]:
        """Return an empty list, if it was declared."""
        if what in self._declared_lists:
            return ()
        raise self._make_method_not_found(f"list_{what}")

    # ----------------------------------------------------------------- what follows from it, and shared state

    def is_overridden(self, *names: str) -> bool:
        """Return whether any of these methods is overridden."""
        return any(getattr(type(self), name) is not getattr(Handler, name) for name in names)

    def capabilities(self) -> ServerCapabilities:
        """Return what is declared to clients."""
        has, declares = self.is_overridden, self._declared_lists
        tools = "tools" in declares or has("list_tools", "call_tool")
        prompts = "prompts" in declares or has("list_prompts", "get_prompt")
        resources = "resources" in declares or has(
            "list_resources", "read_resource", "list_resource_templates"
        )
        subscribable = ResourcesCapability(list_changed=True, subscribe=has("subscribe") or None)
        return ServerCapabilities(
            tools=ListCapability(list_changed=True) if tools else None,
            resources=subscribable if resources else None,
            prompts=ListCapability(list_changed=True) if prompts else None,
            completions={} if has("complete") else None,
            logging={} if has("set_log_level") else None,
        )

    @cached_property
    def local_peer(self) -> LocalPeer:
        """For transports: how the server presents itself."""
        return LocalPeer(self.info, self.capabilities(), supported=self.revisions)

    @cached_property
    def routes(self) -> Routes:
        """The function that serves each method."""
        return {
            INITIALIZE: self._initialize,
            SERVER_DISCOVER: self._discover,
            PING: self._ping,
            LOGGING_SET_LEVEL: self._set_level,
            SUBSCRIPTIONS_LISTEN: self._listen,
            RESOURCES_SUBSCRIBE: self._subscribe,
            RESOURCES_UNSUBSCRIBE: self._unsubscribe,
            TOOLS_LIST: self._list_tools,
            TOOLS_CALL: self._call_tool,
            RESOURCES_LIST: self._list_resources,
            RESOURCES_TEMPLATES_LIST: self._list_templates,
            RESOURCES_READ: self._read_resource,
            PROMPTS_LIST: self._list_prompts,
            PROMPTS_GET: self._get_prompt,
            COMPLETION_COMPLETE: self._complete,
        }

    @cached_property
    def request_states(self) -> "RequestStates":
        """For contexts: the states that stateless clients bring back to continue a call."""
        from toolpost.server.elicitation.request_state import RequestStates  # noqa: PLC0415 - start-up time

        return RequestStates(self, self._state_keys, self._answer_timeout, once=self.answer_once)

    @cached_property
    def store(self) -> "Store":
        """The store, opened when it is first needed."""
        if not isinstance(self._store, str):
            return self._store
        from toolpost.stores import open_store  # noqa: PLC0415 - start-up time

        return open_store(self._store)

    @property
    def is_in_memory(self) -> bool:
        """For transports: whether the store is in the memory of this process."""
        return self._store == IN_MEMORY

    def create_connection(self) -> Connection:
        """For transports: return a fresh connection, to be run over a channel."""
        return Connection(self.local_peer, extra=self.extra_methods, limit=self.max_in_flight)

    def cache_for(self, method: str) -> Cache | None:
        """Return how long clients may keep the results of a method; None to keep nothing."""
        return None

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """For transports: return the parameters of a tool that HTTP mirrors, by header; None for none."""
        return None

    async def choose_server(self, ctx: Context) -> "Handler":
        """For transports: return the server of a client; this one, unless each client has its own."""
        return self

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """For transports: return the scopes that a request needs, as far as they are known beforehand."""
        return frozenset()

    def prepare(self) -> None:
        """For transports: make what all worker processes have to share, before they fork."""
        if self.is_in_memory and self._state_keys is None:
            from toolpost.protocol.seal import KeyRing  # noqa: PLC0415 - start-up time

            self._state_keys = KeyRing.random()

    def inherit_state_from(self, other: "Handler") -> None:
        """For reloading: take over subscribers, states, keys and store of another server.

        All lists are declared, since a later server may have them.
        """
        self.broadcaster = other.broadcaster
        self._state_keys = self._state_keys or other._state_keys  # noqa: SLF001 - the same class
        if self._store == other._store:  # noqa: SLF001 - as above
            self._store = self.store = other.store  # closed where it was opened
        self._declared_lists = get_args(ListName)
        self.__dict__.pop("local_peer", None)

    def notify_resource_updated(self, uri: str) -> None:
        """Notify all subscribers of a resource that it has changed."""
        self.broadcaster.broadcast_resource_updated(uri)

    def complete_elicitation(self, elicitation_id: str) -> None:
        """Notify the client whose user was sent to a URL that they are done there (2025-11-25).

        Other clients are not notified (ELIC-16), nor are those of other revisions: they ask again anyway.
        """
        self.broadcaster.broadcast_elicitation_complete(elicitation_id)

    def end_subscriptions(self) -> None:
        """For transports: end the subscriptions of stateless clients, each with its result."""
        self._subscriptions.end()

    async def read(self, uri: str, ctx: Context) -> list[ResourceContents]:
        """For contexts: read a resource of this server, for a function that serves another request."""
        result = await self._read_resource(ctx, types.ReadResourceParams(uri=uri))
        return result.contents

    # ----------------------------------------------------------------- routes

    async def _initialize(self, ctx: Context, params: InitializeParams) -> Result:
        limit = asyncio.timeout(HANDSHAKE_TIMEOUT)
        try:
            async with limit:
                await self.init(ctx)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise InternalError(f"the handshake was not answered within {HANDSHAKE_TIMEOUT:g} s") from error
        return ctx.introduce(self.instructions)

    def _discover(self, ctx: Context, params: Params) -> Result:
        return apply_cache(ctx.introduce(self.instructions), self.cache_for(SERVER_DISCOVER))

    def _ping(self, ctx: Context, params: Params) -> Result:
        return Result()

    async def _set_level(self, ctx: Context, params: SetLevelParams) -> Result:
        await ctx.set_log_level(params.level)
        await self.set_log_level(params.level, ctx)
        return Result()

    async def _listen(self, ctx: Context, params: ListenParams) -> Result:
        return await self._subscriptions.serve(ctx, params.notifications)

    async def _subscribe(self, ctx: Context, params: "types.SubscribeParams") -> Result:
        await self.subscribe(params.uri, ctx)
        try:
            await ctx.add_subscription(params.uri)
        except InvalidRequest:
            await self.unsubscribe(params.uri, ctx)
            raise
        return Result()

    async def _unsubscribe(self, ctx: Context, params: "types.SubscribeParams") -> Result:
        await ctx.remove_subscription(params.uri)
        await self.unsubscribe(params.uri, ctx)
        return Result()

    async def _list_tools(self, ctx: Context, params: PaginatedRequestParams) -> Result:
        page = await self.list_tools(params.cursor)
        return page if isinstance(page, Result) else ListToolsResult(tools=list(page))

    async def _call_tool(self, ctx: Context, params: CallToolParams) -> Result:
        arguments = decode_arguments(params.arguments)
        return await _resolve_input_required(ctx, lambda: self.call_tool(params.name, arguments, ctx))

    async def _list_resources(self, ctx: Context, params: PaginatedRequestParams) -> Result:
        page = await self.list_resources(params.cursor)
        return page if isinstance(page, Result) else types.ListResourcesResult(resources=list(page))

    async def _list_templates(self, ctx: Context, params: PaginatedRequestParams) -> Result:
        if not self.is_overridden("list_resource_templates"):
            return types.ListResourceTemplatesResult(resource_templates=[])
        page = await self.list_resource_templates(params.cursor)
        if isinstance(page, Result):
            return page
        return types.ListResourceTemplatesResult(resource_templates=list(page))

    async def _read_resource(
        self, ctx: Context, params: "types.ReadResourceParams"
    ) -> "types.ReadResourceResult":
        read = await _resolve_input_required(ctx, lambda: self.read_resource(params.uri, ctx))
        if isinstance(read, types.ReadResourceResult):
            return read
        return types.ReadResourceResult(contents=list(read))

    async def _list_prompts(self, ctx: Context, params: PaginatedRequestParams) -> Result:
        page = await self.list_prompts(params.cursor)
        return page if isinstance(page, Result) else types.ListPromptsResult(prompts=list(page))

    async def _get_prompt(self, ctx: Context, params: "types.GetPromptParams") -> Result:
        arguments = params.arguments or {}
        return await _resolve_input_required(ctx, lambda: self.get_prompt(params.name, arguments, ctx))

    async def _complete(self, ctx: Context, params: "types.CompleteParams") -> Result:
        return await self.complete(params, ctx)

    # ----------------------------------------------------------------- lifespan

    def hold_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """For transports: hold the lifespan open: entered for the first holder, left after the last."""
        return self._shared_lifespan.hold_open()

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lifespan, from the first client to the last."""
        try:
            async with nullcontext() if self._lifespan is None else self._lifespan(self) as value:
                yield value
        finally:
            if self.running_steps:
                from toolpost.server.elicitation.journal import finish_steps  # noqa: PLC0415 - start-up time

                await finish_steps(self.running_steps)
            self.worker_threads.close()
            if isinstance(self._store, str) and "store" in self.__dict__:
                await self.store.close()  # a store that was given is closed by its owner


async def _resolve_input_required(ctx: Context, serve: "Callable[[], Awaitable[R | InputRequired]]") -> R:
    """Call a method that may return `InputRequired`, until it has all answers."""
    from toolpost.server.elicitation.input_required import resolve_input_required  # noqa: PLC0415 - start-up time

    return await resolve_input_required(ctx, serve)
