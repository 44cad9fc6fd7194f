"""`Server`: decorate a function, and any MCP host can call it.

The decorators fill the registries of a `RegistryServer`, which serves them; `mounting` adds other servers.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from toolpost import types
from toolpost.errors import explain_keywords, name_methods
from toolpost.principal import parse_scopes
from toolpost.protocol.extension import Extension
from toolpost.server import options
from toolpost.server.context import Context
from toolpost.server.extensions.methods import ExtensionMethods
from toolpost.server.mounting import MountingServer
from toolpost.server.options import SERVER, HandlerOptions, Lifespan, ListName
from toolpost.server.registry.registry import (
    LIST_KINDS,
    Cache,
    CacheableMethod,
    Registry,
    check_cache,
    expand_cache_option,
)
from toolpost.server.registry.tools import RegisteredTool
from toolpost.server.runtime.dispatch import Middleware, Observer
from toolpost.server.runtime.notifications import RESERVED_NOTIFICATIONS, NotificationReceiver
from toolpost.server.serving import ServeMethods
from toolpost.server.signature.function_schema import BoundFunction, RawSchemaFunction
from toolpost.server.signature.results import ResultConverter
from toolpost.server.signature.schema_parts import inline_definitions
from toolpost.server.sync_context import SyncContext
from toolpost.types.base import JSON, Annotations, Icon, Meta
from toolpost.types.tools import Tool, ToolAnnotations, ToolExecution

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.server.extensions.apps import App
    from toolpost.server.per_client import PerClientServer
    from toolpost.server.registry.prompts import RegisteredPrompt
    from toolpost.server.registry.resources import RegisteredResource, RegisteredTemplate
    from toolpost.stores.store import Store
    from toolpost.tasks.options import TaskOptions

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_CONTEXT_TYPES: Final = (Context, SyncContext)


class _LazyPerClientServer:
    """`PerClientServer`, imported when it is used."""

    def __get__(self, _server: object, _kind: type | None = None) -> "type[PerClientServer]":
        from toolpost.server.per_client import PerClientServer  # noqa: PLC0415 - start-up time

        return PerClientServer


class Server(ExtensionMethods, MountingServer):
    """A server made of decorated functions.

    Args:
        name: the name of the server.
        timeout: seconds that a tool call may take, unless the tool has its own timeout.
        page_size: entries per page of a list.
        cache: how long clients may cache lists, resources and the description of the server: one `Cache` for
            all, or one per method, such as {"tools/list": Cache(ttl=60), "*": Cache(ttl=5)}. By default they
            may not. Only the newest revision has caching.
        debug: send the errors of tools to clients; otherwise they are only logged.
        inline_refs: replace each `$ref` in the schemas of tools, because some clients cannot resolve them;
            recursive classes keep their `$defs`. Schemas of `add_tool` stay as they are.
        strict_arguments: reject calls with undeclared arguments. By default such arguments are dropped,
            because some hosts add their own, unless the name may be a typo.

    The other arguments are those of `Handler`.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... def price(item: str, pieces: int = 1) -> float:
        ...     return 2.5 * pieces
        >>> with SyncClient(server) as mcp:
        ...     mcp.call_tool("price", {"item": "pen", "pieces": 2}).data
        5.0
    """

    factory = _LazyPerClientServer()
    """`Server.factory(choose, …)` makes a server that chooses another server for each client."""

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
        timeout: float | None = SERVER.timeout,
        page_size: int = SERVER.page_size,
        cache: Cache | Mapping[CacheableMethod, Cache] | None = SERVER.cache,
        debug: bool = SERVER.debug,
        inline_refs: bool = SERVER.inline_refs,
        strict_arguments: bool = SERVER.strict_arguments,
    ) -> None:
        super().__init__(name, **options.collect_options(HandlerOptions, locals()))
        options.check_timeouts(timeout=timeout)
        options.check_counts(page_size=page_size)
        self._timeout = timeout
        self._debug = debug
        self._inline_refs = inline_refs
        self._strict_arguments = strict_arguments
        self.caches = expand_cache_option(cache)
        self.mounts = []
        self._open_stacks = WeakKeyDictionary()
        self._notification_receivers: dict[str, NotificationReceiver] = {}
        for method, kind in LIST_KINDS.items():
            cached = self.cache_for(method)
            registry = Registry[Any](kind, self._on_list_changed, page_size, cached)
            setattr(self, kind.attribute, registry)

    def _on_list_changed(self, name: str) -> None:
        self.__dict__.pop("local_peer", None)  # its capabilities may have changed
        self.broadcaster.broadcast_list_changed(name)

    def __repr__(self) -> str:
        return f"<Server {self.info.name}: {len(self.tools)} tools>"

    @overload
    def tool(self, fn: Callable[P, R], /) -> RegisteredTool[P, R]: ...

    @overload
    def tool(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
        timeout: float | None = None,
        scopes: Iterable[str] = (),
        tags: Iterable[str] = (),
        wrap_result: bool = True,
        task: "bool | TaskOptions" = False,
        app: "App | str | None" = None,
    ) -> Callable[[Callable[P, R]], RegisteredTool[P, R]]: ...

    @explain_keywords
    def tool(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
        timeout: float | None = None,
        scopes: Iterable[str] = (),
        tags: Iterable[str] = (),
        wrap_result: bool = True,
        task: "bool | TaskOptions" = False,
        app: "App | str | None" = None,
    ) -> Any:
        """Register a function as a tool.

        The signature becomes the input schema, the return annotation the output schema, the docstring the
        descriptions.

        Args:
            fn: the function, async or not.
            name: the name of the tool; by default the name of the function.
            title: the name to display.
            description: a description for the model; by default the docstring.
            annotations: hints about the effects of a call.
            icons: icons for user interfaces.
            meta: the `_meta` of the list item.
            timeout: seconds that a call may take.
            scopes: the scopes that a call needs, in addition to those of every request (`auth=`). The tool is
                listed without them, and the response to a call without them names them.
            tags: labels for `select`; clients do not see them.
            wrap_result: whether a list or a scalar is sent as `{"result": …}`. If False, clients of
                2026-07-28 get the bare value, which many of them reject.
            task: whether a call may go on as a task, whose result the client gets later: True, or a
                `TaskOptions`. With True, clients that support tasks get one after a second.
            app: the page that hosts show for the tool: one that `app` returned, or its URI.

        Raises:
            TypeError: the signature is not valid; the message names the parameter.
            ValueError: the name is taken.
        """
        needed, labels = parse_scopes(scopes), options.parse_tags(tags)
        task_options = self._parse_task(task)
        if app is not None:
            meta = self._apps.link(app, meta or {})

        def register(fn: Callable[..., Any]) -> RegisteredTool[..., Any]:
            bound = BoundFunction(fn, context_types=_CONTEXT_TYPES, name=name)
            bound.is_strict = self._strict_arguments
            finish = inline_definitions if self._inline_refs else None
            returns = ResultConverter.for_function(fn, finish, is_bare=not wrap_result)
            tool = Tool(
                name=bound.name,
                input_schema=finish(bound.input_schema) if finish else bound.input_schema,
                description=description or bound.summary,
                title=title,
                output_schema=returns.output_schema,
                annotations=annotations,
                icons=icons,
                meta=meta,
            )
            return self._register_tool(tool, bound, returns, timeout, needed, tags=labels, task=task_options)

        return register if fn is None else register(fn)

    def add_tool(
        self,
        tool: Tool,
        fn: Callable[..., Any],
        *,
        timeout: float | None = None,
        scopes: Iterable[str] = (),
        tags: Iterable[str] = (),
        task: "bool | TaskOptions" = False,
    ) -> RegisteredTool[..., Any]:
        """Register a function with your own JSON Schema.

        The function takes the arguments as a dict, and a context if a parameter is annotated with it. The
        other arguments are those of `tool`.

        Raises:
            TypeError: the schema is not a dict, or the function does not take one.
            ValueError: the name is taken, or the schema is not valid.
            MCPError: schemas cannot be checked because jsonschema-rs is not installed.
        """
        if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance] - not every user has a type checker
            raise TypeError(f"add_tool takes a Tool and a function, not {tool!r}")
        bound = RawSchemaFunction(fn, tool.input_schema, context_types=_CONTEXT_TYPES, name=tool.name)
        returns = ResultConverter.for_schema(tool.output_schema, tool.name)
        needed, labels = parse_scopes(scopes), options.parse_tags(tags)
        return self._register_tool(
            tool, bound, returns, timeout, needed, tags=labels, task=self._parse_task(task)
        )

    def _parse_task(self, given: Any) -> "TaskOptions | None":
        """Return the options of `task=`."""
        if given is False:
            return None
        from toolpost.tasks.options import parse_task_option  # noqa: PLC0415 - start-up time

        return parse_task_option(given)

    def _register_tool(
        self,
        tool: Tool,
        bound: BoundFunction,
        returns: ResultConverter,
        timeout: float | None,
        scopes: frozenset[str],
        *,
        tags: frozenset[str],
        task: "TaskOptions | None",
    ) -> RegisteredTool[..., Any]:
        timeout = self._timeout if timeout is None else timeout
        if task is not None:
            self.add_task_support()
            tool = replace(tool, execution=ToolExecution("required" if task.required else "optional"))
        common = (tool, bound, self.tools, self.worker_threads, scopes)
        entry = RegisteredTool[..., Any](*common, returns=returns, timeout=timeout, debug=self._debug)
        entry.task, entry.tags = task, tags
        self.tools.add(entry)
        return entry

    @explain_keywords
    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
        cache: Cache | None = None,
        scopes: Iterable[str] = (),
        tags: Iterable[str] = (),
    ) -> "Callable[[Callable[P, R]], RegisteredResource[P, R] | RegisteredTemplate[P, R]]":
        """Register a function as a resource or a resource template.

        A `uri` with variables, such as "users://{id}/profile", is a template (RFC 6570); its variables are
        the arguments of the function. `cache` sets how long clients may cache the contents; the default is
        that of the server. `scopes` are the scopes that a request needs, `tags` labels for `select`.

        Raises:
            TypeError: the signature is not valid; the message names the parameter.
            ValueError: the URI is taken, is neither a URI nor a template, or has no scheme.
        """
        from toolpost.server.registry import resources  # noqa: PLC0415 - start-up time

        template = resources.parse_uri_template(uri)
        check_cache(cache)
        needed, labels = parse_scopes(scopes), options.parse_tags(tags)

        def register(fn: Callable[..., Any]) -> Any:
            bound = BoundFunction(fn, context_types=_CONTEXT_TYPES, name=name)
            resources.check_variables(bound, template)
            shown: dict[str, Any] = {
                "name": bound.name,
                "title": title,
                "description": description or bound.summary,
                "mime_type": mime_type,
                "annotations": annotations,
                "icons": icons,
                "meta": meta,
            }
            kind: Any
            home: Registry[Any]
            if template.variables:
                kind, home = resources.RegisteredTemplate, self.templates
                item = types.ResourceTemplate(uri, **shown)
            else:
                kind, home = resources.RegisteredResource, self.resources
                item = types.Resource(uri, size=size, **shown)
            entry = kind(item, bound, home, self.worker_threads, needed)
            entry.cache, entry.tags = cache, labels
            home.add(entry)
            return entry

        return register

    @overload
    def prompt(self, fn: Callable[P, R], /) -> "RegisteredPrompt[P, R]": ...

    @overload
    def prompt(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
        scopes: Iterable[str] = (),
        tags: Iterable[str] = (),
    ) -> "Callable[[Callable[P, R]], RegisteredPrompt[P, R]]": ...

    @explain_keywords
    def prompt(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
        scopes: Iterable[str] = (),
        tags: Iterable[str] = (),
    ) -> Any:
        """Register a function as a prompt. It returns text, content or messages.

        `scopes` are the scopes that a request needs, `tags` labels for `select`.

        Raises:
            TypeError: the signature is not valid; the message names the parameter.
            ValueError: the name is taken.
        """
        from toolpost.server.registry.prompts import RegisteredPrompt  # noqa: PLC0415 - start-up time

        needed, labels = parse_scopes(scopes), options.parse_tags(tags)

        def register(fn: Callable[..., Any]) -> "RegisteredPrompt[..., Any]":
            bound = BoundFunction(fn, context_types=_CONTEXT_TYPES, name=name)
            arguments = [
                types.PromptArgument(p.name, description=p.description, required=p.required)
                for p in bound.parameters
            ]
            prompt = types.Prompt(
                name=bound.name,
                title=title,
                description=description or bound.summary,
                arguments=arguments or None,
                icons=icons,
                meta=meta,
            )
            entry = RegisteredPrompt[..., Any](prompt, bound, self.prompts, self.worker_threads, needed)
            entry.tags = labels
            self.prompts.add(entry)
            return entry

        return register if fn is None else register(fn)

    def on_notification(self, method: str) -> Callable[[F], F]:
        """Receive notifications of clients: "notifications/roots/list_changed", or a custom method.

        The function takes a context and, if it has a second parameter, the parameters of the notification.
        Its exceptions are logged.

        Raises:
            TypeError: the function takes neither one argument nor two.
            ValueError: a function for the method is already registered, or the method is reserved.
        """
        if method in RESERVED_NOTIFICATIONS:
            raise ValueError(f"{method} is handled by the protocol layer; use `ctx.cancelled`")
        if method in self._notification_receivers:
            raise ValueError(f"a function for {method} is already registered")

        def register(fn: F) -> F:
            self._notification_receivers[method] = NotificationReceiver(fn, self.worker_threads)
            return fn

        return register

    def on_broadcast(self, name: str) -> Callable[[F], F]:
        """Call a function with the data of each broadcast of this name, on every worker.

        Examples:
            >>> @server.on_broadcast("prices")
            ... async def load(data):
            ...     print("new prices of", data)
            >>> asyncio.run(server.broadcast("prices", "pens"))
            new prices of pens
        """

        def register(fn: F) -> F:
            self.broadcasts.add(name, fn)
            return fn

        return register

    async def broadcast(self, name: str, data: JSON = None) -> None:
        """Call the `on_broadcast` functions of this name on all workers that share the store.

        Returns when the broadcast is sent; the functions run later, each at most once per worker.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        await self.broadcasts.send(name, data)

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        """Call the function for this method, if there is one."""
        receiver = self._notification_receivers.get(method)
        if receiver is not None:
            await receiver(ctx, params)


name_methods(ExtensionMethods, Server.__name__)
name_methods(ServeMethods, Server.__name__)
