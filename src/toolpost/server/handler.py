"""`Handler`: the low-level server. Subclass it, and override only the methods that you serve.

Capabilities follow from the overridden methods. `routes` maps a protocol method to the function that serves
it. Transports are in `serving`, which has the methods that run a server.
"""

# ruff: noqa: ARG002 - methods to be overridden ignore their arguments

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, get_args

from toolpost import types
from toolpost.errors import InvalidRequest, MethodNotFound, explain_keywords
from toolpost.protocol import jsonrpc, methods
from toolpost.protocol.extension import Extension
from toolpost.protocol.forward import ForwardedResult, drop_server_info, read_forwarded
from toolpost.protocol.local_peer import LocalPeer, collect_rows, declare_capabilities
from toolpost.server import options
from toolpost.server.broadcasts import Broadcasts
from toolpost.server.context import Context
from toolpost.server.context_request import decode_arguments
from toolpost.server.options import IN_MEMORY, SERVER, Lifespan, ListName
from toolpost.server.registry.registry import LIST_KINDS, Cache, apply_cache
from toolpost.server.runtime.change_broadcast import ChangeBroadcaster
from toolpost.server.runtime.dispatch import Middleware, Observer, Route, Routes
from toolpost.server.runtime.notifications import ServerSubscriptions
from toolpost.server.runtime.worker_threads import WorkerThreads
from toolpost.server.serving import ServeMethods, SharedLifespan
from toolpost.server.telemetry_methods import TelemetryMethods
from toolpost.types.base import JSON, Icon, Params, Result

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.server.elicitation.input_required import InputRequired
    from toolpost.server.elicitation.journal import RequestStates
    from toolpost.stores.store import Store
    from toolpost.telemetry.options import TelemetryOption


_OVERRIDABLE: Final = {
    methods.TOOLS_LIST: "list_tools",
    methods.TOOLS_CALL: "call_tool",
    methods.RESOURCES_LIST: "list_resources",
    methods.RESOURCES_TEMPLATES_LIST: "list_resource_templates",
    methods.RESOURCES_READ: "read_resource",
    methods.PROMPTS_LIST: "list_prompts",
    methods.PROMPTS_GET: "get_prompt",
    methods.COMPLETION_COMPLETE: "complete",
}
"""Protocol method → method of a handler that may be overridden."""

R = TypeVar("R")


class Handler(ServeMethods, TelemetryMethods):
    """A low-level server: subclass it, and override the methods that you serve.

    Args:
        name: the name of the server; by default the name of the class.
        version: the version of the server, not of the protocol.
        title: the name to display.
        description: a description for people.
        instructions: instructions for the model: how to use the server as a whole.
        icons: icons for user interfaces.
        website_url: a page about the server.
        lifespan: an async context manager, entered before the first client is served and left after the last;
            functions find its value in `ctx.lifespan`.
        middleware: functions that wrap every request and notification, in both directions, the first one
            outermost.
        revisions: the supported protocol revisions; all of them by default.
        declares: lists to declare even while they are empty, such as ["tools"]. A client that connects before
            the first tool is registered is notified of it only if tools were declared.
        max_in_flight: the maximum number of concurrent requests of one client.
        threads: the maximum number of plain functions (not async) that run at once.
        notification_rate: the maximum number of log messages, and of progress notifications, that one request
            sends per second. Bursts may be five times as large. Further ones are dropped, and one log message
            says so.
        extensions: the protocol extensions that the server supports.
        store: where data that outlasts a request is kept: a URL such as "memory://", or a custom store.
        keys: the keys that seal data which clients carry, such as request states. By default they are random,
            or those of the shared store. Workers that serve the same clients need the same keys.
        answer_timeout: seconds that a stateless client has to send its answers.
        answer_once: whether each request state is accepted only once. The store records it; a client that
            lost a response has to start again.
        observers: functions that are called with the context when a request begins, in its task. Each may
            return a function that is called with the `Outcome`. Unlike middleware, they change nothing.
        auth: how to authenticate clients over HTTP. Every request then needs a token.
        telemetry: whether to record spans and metrics with OpenTelemetry: a bool, or `Telemetry(…)`. "auto"
            records if the program has set a provider of OpenTelemetry.

    Raises:
        TypeError: an argument has the wrong type; the message names it.
        ValueError: an argument is not valid, or the store is unknown.

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

    @explain_keywords
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
        notification_rate: float = SERVER.notification_rate,
        extensions: Iterable[Extension] = SERVER.extensions,
        store: "Store | str" = SERVER.store,
        keys: "KeyRing | None" = SERVER.keys,
        answer_timeout: float = SERVER.answer_timeout,
        answer_once: bool = SERVER.answer_once,
        observers: Iterable[Observer] = SERVER.observers,
        auth: "Auth | None" = SERVER.auth,
        telemetry: "TelemetryOption" = SERVER.telemetry,
    ) -> None:
        options.check_strings(name=name, version=version, title=title, description=description)
        options.check_strings(instructions=instructions, website_url=website_url)
        options.check_counts(max_in_flight=max_in_flight, threads=threads)
        options.check_durations(answer_timeout=answer_timeout)
        options.check_rates(notification_rate=notification_rate)
        icons = options.parse_icons(icons)
        name = name or type(self).__name__
        self.info = types.Implementation(
            name, version, title=title, description=description, website_url=website_url, icons=icons
        )
        self.instructions = instructions
        self.middleware = options.parse_middleware(middleware)
        self.worker_threads = WorkerThreads(threads)
        self.broadcasts = Broadcasts(self.worker_threads)
        self.revisions = options.parse_revisions(revisions)
        self._declared_lists = options.parse_choices(get_args(ListName), "declares", declares)
        self.extensions: tuple[Extension, ...] = options.parse_items(
            "extensions", extensions, lambda each: isinstance(each, Extension), "an Extension"
        )
        collect_rows(self.extensions, {})  # raise now if they contradict each other
        self.broadcaster = ChangeBroadcaster(self.extensions)
        if self.is_overridden("forward_request"):
            self.fallback_route = self._forward_request
        self.max_in_flight = max_in_flight
        self.notification_rate = notification_rate
        self.observers = options.parse_items(
            "observers", observers, callable, "a function that takes a context"
        )
        self.running_steps: set[asyncio.Task[Any]] = set()  # of contexts
        self.auth = options.parse_auth(auth)
        self._telemetry_option = options.parse_telemetry(telemetry)
        self._store = store
        if store != IN_MEMORY:
            _ = self.store  # raise now if there is no such store
        self._lifespan = lifespan
        self._shared_lifespan = SharedLifespan(self.open_lifespan)
        self._subscriptions = ServerSubscriptions()
        self._list_argument_counts: dict[str, int] = {}
        self._state_keys = options.parse_keys(keys)
        self._answer_timeout = answer_timeout
        self.answer_once = answer_once

    fallback_route: Route | None = None
    """Forwards the requests that have no route, to another handler or to another server."""

    has_header_parameters: bool = False
    """Whether HTTP headers mirror parameters of a tool (`find_header_parameters`)."""

    runs_extensions: bool = True
    """Whether it serves the methods of its extensions, and not other servers in its place."""

    health: Callable[[], tuple[bool, Mapping[str, JSON]]] | None = None
    """Returns whether the server is ready, and more about its health; for the health checks over HTTP."""

    # ----------------------------------------------------------------- to be overridden

    async def init(self, ctx: Context) -> None:
        """Called when a client opens a session. Raise an error to reject it."""

    async def list_tools(self, cursor: str | None) -> types.ListToolsResult | Sequence[types.Tool]:
        """Return the tools, or one page of them.

        This and the other methods that list may take a context as second argument.
        """
        return self._empty_if_declared("tools")

    async def call_tool(
        self, name: str, arguments: dict[str, JSON], ctx: Context
    ) -> "types.CallToolResult | ReceivedResult | InputRequired":
        """Call a tool."""
        raise self._make_method_not_found("call_tool")

    async def list_resources(
        self, cursor: str | None
    ) -> types.ListResourcesResult | Sequence[types.Resource]:
        """Return the resources, or one page of them."""
        return self._empty_if_declared("resources")

    async def list_resource_templates(
        self, cursor: str | None
    ) -> types.ListResourceTemplatesResult | Sequence[types.ResourceTemplate]:
        """Return the resource templates, or one page of them."""
        raise self._make_method_not_found("list_resource_templates")

    async def read_resource(
        self, uri: str, ctx: Context
    ) -> "types.ReadResourceResult | Sequence[types.ResourceContents] | InputRequired":
        """Read a resource."""
        raise self._make_method_not_found("read_resource")

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Called when a client subscribes to a resource; `notify_resource_updated` notifies it."""
        if not self.is_overridden("forward_request"):
            raise self._make_method_not_found("subscribe")
        await self._forward_hook(methods.RESOURCES_SUBSCRIBE, {"uri": uri}, ctx)

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        """Called when a client unsubscribes from a resource, or ends its session."""
        with suppress(MethodNotFound):  # as in `set_log_level`
            await self._forward_hook(methods.RESOURCES_UNSUBSCRIBE, {"uri": uri}, ctx)

    async def list_prompts(self, cursor: str | None) -> types.ListPromptsResult | Sequence[types.Prompt]:
        """Return the prompts, or one page of them."""
        return self._empty_if_declared("prompts")

    async def get_prompt(
        self, name: str, arguments: dict[str, str], ctx: Context
    ) -> "types.GetPromptResult | InputRequired":
        """Return a prompt with its arguments filled in."""
        raise self._make_method_not_found("get_prompt")

    async def complete(
        self, params: types.CompleteParams, ctx: Context
    ) -> types.CompleteResult | types.Completion:
        """Complete an argument."""
        raise self._make_method_not_found("complete")

    async def set_log_level(self, level: types.LogLevel, ctx: Context) -> None:
        """Called when a client of the session era sets its log level."""
        with suppress(MethodNotFound):  # it forwards nothing, or to a server without sessions
            await self._forward_hook(methods.LOGGING_SET_LEVEL, {"level": level}, ctx)

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        """Called with a notification of a client. Exceptions are logged.

        `params` is the struct of the method, or a dict if the protocol does not define the method.
        """

    async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
        """Forward a request to another server: `return await client.forward(method, params)`.

        If overridden, it serves every request for which the handler has no method, including unknown methods.
        Parameters and result are forwarded unchanged.
        """
        raise self._make_method_not_found(method)

    def _list_arguments(self, name: str) -> int:
        """Return the number of arguments of a method that lists: the cursor and, optionally, a context."""
        if name not in self._list_argument_counts:
            parameters = inspect.signature(getattr(self, name)).parameters.values()
            positional = [each for each in parameters if each.kind <= inspect.Parameter.VAR_POSITIONAL]
            takes_all = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in positional)
            self._list_argument_counts[name] = 2 if takes_all else min(len(positional), 2)
        return self._list_argument_counts[name]

    async def _forward_hook(self, method: str, params: dict[str, JSON], ctx: Context) -> None:
        """Forward the request behind a hook, which may be part of another request or end a session."""
        is_own = ctx.incoming is not None and ctx.method == method
        await self.forward_request(method, ctx.request.params if is_own else jsonrpc.encode(params), ctx)

    def _make_method_not_found(self, name: str) -> MethodNotFound:
        return MethodNotFound(f"Method not found: {self.info.name} has no {name}")

    def _empty_if_declared(self, name: ListName) -> tuple[()]:
        if name in self._declared_lists:
            return ()
        raise self._make_method_not_found(f"list_{name}")

    # ----------------------------------------------------------------- capabilities, routes and shared state

    def is_overridden(self, *names: str) -> bool:
        """Return whether any of these methods is overridden."""
        return any(getattr(type(self), name) is not getattr(Handler, name) for name in names)

    def capabilities(self) -> types.ServerCapabilities:
        """Return the capabilities to declare to clients."""
        has = self.is_overridden
        lists = {method.partition("/")[0] for method, name in _OVERRIDABLE.items() if has(name)}
        lists.update(self._declared_lists)
        return declare_capabilities(
            lists, subscribe=has("subscribe"), complete=has("complete"), log=has("set_log_level")
        )

    def end_session(self, identity: object) -> None:
        """For transports: forget what belongs to a session that has ended here."""

    def compose_instructions(self) -> str | None:
        """Return the instructions for clients."""
        return self.instructions

    def add_extension(self, extension: Extension) -> None:
        """Support one more protocol extension, for clients that connect from now on.

        Raises:
            ValueError: it contradicts another one, or has its name.
        """
        if any(each.name == extension.name for each in self.extensions):
            raise ValueError(f"{self.info.name} has an extension {extension.name} already")
        collect_rows((*self.extensions, extension), {})
        self.extensions = (*self.extensions, extension)
        self.broadcaster.add_extension(extension)
        for derived in ("local_peer", "routes"):
            self.__dict__.pop(derived, None)

    @cached_property
    def local_peer(self) -> LocalPeer:
        """For transports: how the server presents itself."""
        return LocalPeer(
            self.info,
            self.capabilities(),
            supported=self.revisions,
            extensions=self.extensions,
            forwards=self.is_overridden("forward_request"),
        )

    @cached_property
    def routes(self) -> Routes:
        """The function that serves each method; `fallback_route` serves the others."""
        extensions = {name: route for each in self.extensions for name, route in each.routes.items()}
        own: dict[str, Route] = {
            methods.INITIALIZE: self._initialize,
            methods.SERVER_DISCOVER: self._discover,
            methods.PING: self._ping,
            methods.LOGGING_SET_LEVEL: self._set_level,
            methods.SUBSCRIPTIONS_LISTEN: self._listen,
            methods.RESOURCES_SUBSCRIBE: self._subscribe,
            methods.RESOURCES_UNSUBSCRIBE: self._unsubscribe,
            **dict.fromkeys(LIST_KINDS, self._list),
            methods.TOOLS_CALL: self._call_tool,
            methods.RESOURCES_READ: self._read_resource,
            methods.PROMPTS_GET: self._get_prompt,
            methods.COMPLETION_COMPLETE: self._complete,
        }
        if self.fallback_route is not None:
            for method, name in _OVERRIDABLE.items():
                if not self.is_overridden(name):
                    del own[method]
        return {**own, **extensions}

    @cached_property
    def request_states(self) -> "RequestStates":
        """For contexts: seals and opens the states with which stateless clients continue a call."""
        from toolpost.server.elicitation.journal import RequestStates  # noqa: PLC0415 - start-up time

        return RequestStates(self, self._state_keys, self._answer_timeout, once=self.answer_once)

    @cached_property
    def store(self) -> "Store":
        """The store, opened when it is first needed."""
        if not isinstance(self._store, str):
            return self._store
        from toolpost.stores import open_store  # noqa: PLC0415 - start-up time

        return open_store(self._store, self.info.name)

    @property
    def is_in_memory(self) -> bool:
        """For transports: whether the store is in the memory of this process, which workers cannot share."""
        from toolpost.stores.memory import MemoryStore  # noqa: PLC0415 - start-up time

        return isinstance(self.store, MemoryStore)

    def cache_for(self, method: str) -> Cache | None:
        """Return how long clients may cache the results of a method; None for no caching."""
        return None

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """For transports: return the parameters of a tool that HTTP mirrors, by header; None for none."""
        return None

    def has_entry(self, method: str, name: str) -> bool:
        """For telemetry: return whether the tool or prompt of a request exists, as far as that is known."""
        return True

    async def choose_server(self, ctx: Context) -> "Handler":
        """For transports: return the server of a client; this one, unless each client has its own."""
        return self

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """For transports: return the scopes that a request needs, as far as they are known beforehand."""
        return frozenset()

    def prepare(self) -> None:
        """For transports: make the keys and files that all worker processes share, before they fork."""
        if self.is_in_memory and self._state_keys is None:
            from toolpost.protocol.seal import KeyRing  # noqa: PLC0415 - start-up time

            self._state_keys = KeyRing.random()
        if self.metrics is not None:
            self.metrics.prepare()

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
        self.broadcaster.broadcast(methods.RESOURCES_UPDATED, types.ResourceUpdatedParams(uri=uri))

    def notify_subscribers(self, method: str, params: types.NotificationParams) -> None:
        """Send a notification of an extension to the clients whose listen filter asks for it."""
        self.broadcaster.broadcast_notification(method, params)

    def complete_elicitation(self, elicitation_id: str) -> None:
        """Notify the client whose user was sent to a URL that the user is done there (2025-11-25).

        Other clients are not notified (ELIC-16), nor are those of other revisions: they ask again anyway.
        """
        params = types.ElicitationCompleteParams(elicitation_id=elicitation_id)
        self.broadcaster.broadcast(methods.ELICITATION_COMPLETE, params)

    def end_subscriptions(self, endpoint: object = None) -> None:
        """For transports: end subscriptions of stateless clients, all or those of one endpoint."""
        self._subscriptions.end(endpoint)

    async def read(self, uri: str, ctx: Context) -> list[types.ResourceContents]:
        """For contexts: read a resource of this server, for a function that serves another request."""
        result: Any = await self._read_resource(ctx, types.ReadResourceParams(uri=uri))
        if isinstance(result, ForwardedResult):
            result = read_forwarded(methods.RESOURCES_READ, result)
        return result.contents

    # ----------------------------------------------------------------- routes

    async def _initialize(self, ctx: Context, params: types.InitializeParams) -> Result:
        await self.init(ctx)
        return ctx.introduce(self.compose_instructions())

    def _discover(self, ctx: Context, params: Params) -> Result:
        return apply_cache(
            ctx.introduce(self.compose_instructions()), self.cache_for(methods.SERVER_DISCOVER)
        )

    def _ping(self, ctx: Context, params: Params) -> Result:
        return Result()

    async def _set_level(self, ctx: Context, params: types.SetLevelParams) -> Result:
        await ctx.client_connection.set_log_level(params.level)
        await self.set_log_level(params.level, ctx)
        return Result()

    async def _listen(self, ctx: Context, params: types.ListenParams) -> Result:
        return await self._subscriptions.serve(ctx, params.notifications)

    async def _subscribe(self, ctx: Context, params: types.SubscribeParams) -> Result:
        await self.subscribe(params.uri, ctx)
        try:
            await ctx.add_subscription(params.uri)
        except InvalidRequest:
            await self.unsubscribe(params.uri, ctx)
            raise
        return Result()

    async def _unsubscribe(self, ctx: Context, params: types.SubscribeParams) -> Result:
        await ctx.client_connection.set_subscription(params.uri, is_active=False)
        await self.unsubscribe(params.uri, ctx)
        return Result()

    async def _list(self, ctx: Context, params: types.PaginatedRequestParams) -> Result:
        name, kind = _OVERRIDABLE[ctx.method], LIST_KINDS[ctx.method]
        has_no_templates = ctx.method == methods.RESOURCES_TEMPLATES_LIST and not self.is_overridden(name)
        given = (params.cursor or None, ctx)[: self._list_arguments(name)]
        page = () if has_no_templates else await getattr(self, name)(*given)
        return page if isinstance(page, Result) else kind.result(**{kind.field: list(page)})

    async def _call_tool(self, ctx: Context, params: types.CallToolParams) -> Result:
        arguments = decode_arguments(params.arguments)
        value = await _resolve_input_required(ctx, lambda: self.call_tool(params.name, arguments, ctx))
        return _to_call_result(value)

    async def _read_resource(
        self, ctx: Context, params: types.ReadResourceParams
    ) -> types.ReadResourceResult:
        read = await _resolve_input_required(ctx, lambda: self.read_resource(params.uri, ctx))
        if isinstance(read, types.ReadResourceResult):
            return read
        return types.ReadResourceResult(contents=list(read))

    async def _get_prompt(self, ctx: Context, params: types.GetPromptParams) -> Result:
        arguments = params.arguments or {}
        return await _resolve_input_required(ctx, lambda: self.get_prompt(params.name, arguments, ctx))

    async def _forward_request(self, ctx: Context, params: Any) -> ForwardedResult:
        return await self.forward_request(ctx.request.method, ctx.request.params, ctx)

    async def _complete(self, ctx: Context, params: types.CompleteParams) -> Result:
        value: Any = await self.complete(params, ctx)
        return types.CompleteResult(completion=value) if isinstance(value, types.Completion) else value

    # ----------------------------------------------------------------- lifespan

    def hold_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """For transports: return a context manager that holds the lifespan open."""
        if self._telemetry_option is not False:
            self.start_telemetry()
        return self._shared_lifespan

    shares_tasks = False
    """Whether tasks of other workers may run here."""

    def start_tasks(self, lifespan: Any) -> None:
        """For transports: run tasks of other workers in this event loop, from now on."""

    async def end_tasks(self) -> None:
        """End the tasks that run in this event loop, while the lifespan lasts."""

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lifespan, from the first client to the last."""
        try:
            async with AsyncExitStack() as stack:
                start = stack.enter_async_context
                value = None if self._lifespan is None else await start(self._lifespan(self))
                for extension in self.extensions if self.runs_extensions else ():
                    for lifespan in extension.lifespans:
                        await start(lifespan(self))
                stack.push_async_callback(self.end_tasks)
                yield value
        finally:
            steps = {step for step in self.running_steps if step.get_loop() is asyncio.get_running_loop()}
            if steps:
                from toolpost.server.elicitation.input_required import finish_steps  # noqa: PLC0415 - start-up time

                await finish_steps(steps)
            if not self._shared_lifespan.is_held:  # other threads may still serve
                self.worker_threads.close()
                if isinstance(self._store, str) and "store" in self.__dict__:
                    await self.store.close()  # the owner closes a store that was passed in


class ReceivedResult(Protocol):
    """The result of a tool as a client returns it: a `ToolResult`."""

    @property
    def content(self) -> list[types.Content]: ...  # noqa: D102 - as in `CallToolResult`
    @property
    def structured_content(self) -> Any: ...  # noqa: D102 - as above
    @property
    def is_error(self) -> bool: ...  # noqa: D102 - as above


def _to_call_result(value: Any) -> Any:
    """Return the result of a tool; the one that a client has returned is converted."""
    if isinstance(value, Result | ForwardedResult) or not hasattr(value, "structured_content"):
        return value
    return types.CallToolResult(
        value.content, value.structured_content, value.is_error or None, meta=drop_server_info(value.meta)
    )


async def _resolve_input_required(ctx: Context, serve: "Callable[[], Awaitable[R | InputRequired]]") -> R:
    """Call a method that may return `InputRequired`, until it has all answers."""
    from toolpost.server.elicitation.input_required import resolve_input_required  # noqa: PLC0415 - start-up time

    return await resolve_input_required(ctx, serve)
