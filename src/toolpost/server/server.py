"""`Server`: decorate a function, and any MCP host can call it.

The decorators fill the registries of a `RegistryServer`, which serves them.
"""

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from toolpost import types
from toolpost.principal import parse_scopes
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.handler import Handler
from toolpost.server.options import SERVER, Lifespan, ListName, check_counts, check_timeouts
from toolpost.server.registry.registry import (
    Cache,
    CacheableMethod,
    Registry,
    check_cache,
    expand_cache_option,
)
from toolpost.server.registry.registry_server import LIST_KINDS, RegistryServer
from toolpost.server.registry.tools import RegisteredTool
from toolpost.server.runtime.request import Middleware, Observer
from toolpost.server.signature.function_schema import BoundFunction, bind
from toolpost.server.signature.results import ResultConverter
from toolpost.server.sync_context import SyncContext
from toolpost.types.base import Annotations, Icon, Meta
from toolpost.types.tools import Tool, ToolAnnotations

if TYPE_CHECKING:
    from toolpost.auth.server.auth import Auth
    from toolpost.protocol.seal import KeyRing
    from toolpost.protocol.uri_template import UriTemplate
    from toolpost.server.per_client import PerClientServer
    from toolpost.server.registry.prompts import RegisteredPrompt
    from toolpost.server.registry.resources import RegisteredResource, RegisteredTemplate
    from toolpost.server.runtime.notifications import NotificationReceiver
    from toolpost.server.signature.function_schema import RawSchemaFunction
    from toolpost.stores.store import Store

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_CONTEXT_TYPES: Final = (Context, SyncContext)


class _LazyPerClientServer:
    """`PerClientServer`, imported when it is used."""

    def __get__(self, _server: object, _kind: type | None = None) -> "type[PerClientServer]":
        from toolpost.server.per_client import PerClientServer  # noqa: PLC0415 - start-up time

        return PerClientServer


class Server(RegistryServer):
    """A server made of decorated functions.

    Args:
        name: how it is called.
        timeout: seconds that a tool may take, unless it says otherwise.
        page_size: entries on a page of a list.
        cache: how long clients may keep lists, resources and the description of the server: one for all,
            or some by method, such as {"tools/list": Cache(ttl=60), "*": Cache(ttl=5)}. Not at all unless
            given; the newest revision is the first that has it.
        debug: send clients the errors inside a tool; otherwise they are only logged.

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
    """`Server.factory(choose, …)` makes a server that decides for each client what it sees."""

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
        timeout: float | None = SERVER.timeout,
        page_size: int = SERVER.page_size,
        cache: Cache | Mapping[CacheableMethod, Cache] | None = SERVER.cache,
        debug: bool = SERVER.debug,
    ) -> None:
        super().__init__(
            name,
            version=version,
            title=title,
            description=description,
            instructions=instructions,
            icons=icons,
            website_url=website_url,
            lifespan=lifespan,
            middleware=middleware,
            revisions=revisions,
            declares=declares,
            max_in_flight=max_in_flight,
            threads=threads,
            extra_methods=extra_methods,
            store=store,
            keys=keys,
            answer_timeout=answer_timeout,
            answer_once=answer_once,
            observers=observers,
            auth=auth,
        )
        check_timeouts(timeout=timeout)
        check_counts(page_size=page_size)
        self._timeout = timeout
        self._debug = debug
        self._cursor_keys = self._state_keys
        self._cursor_keys_lock = Lock()
        self.caches = expand_cache_option(cache)
        self._notification_receivers: dict[str, NotificationReceiver] = {}
        for attribute, kind in LIST_KINDS.items():
            cached = self.cache_for(kind.method)
            registry = Registry[Any](kind, self._on_list_changed, self._ensure_cursor_keys, page_size, cached)
            setattr(self, attribute, registry)

    def _ensure_cursor_keys(self) -> "KeyRing":
        from toolpost.protocol.seal import KeyRing  # noqa: PLC0415 - start-up time

        with self._cursor_keys_lock:  # several loops may serve
            if self._cursor_keys is None:
                self._cursor_keys = KeyRing.random(encrypt=False)  # a cursor is no secret
            return self._cursor_keys

    def _on_list_changed(self, what: str) -> None:
        self.__dict__.pop("local_peer", None)  # its capabilities may have changed
        self.broadcaster.broadcast_list_changed(what)

    def prepare(self) -> None:
        """Make the keys that workers have to share."""
        super().prepare()
        self._ensure_cursor_keys()

    def inherit_state_from(self, other: Handler) -> None:
        """Take over the state of another server; its cursors are valid here, too."""
        super().inherit_state_from(other)
        self._cursor_keys = self._state_keys

    def __repr__(self) -> str:
        return f"<Server {self.info.name}: {len(self.tools)} tools>"

    # ----------------------------------------------------------------- decorators

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
    ) -> Callable[[Callable[P, R]], RegisteredTool[P, R]]: ...

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
    ) -> Any:
        """Offer a function as a tool.

        The signature becomes the input schema, the return annotation the output schema, the docstring the
        descriptions.

        Args:
            fn: the function, async or not.
            name: how the tool is called, if not like the function.
            title: for people.
            description: for the model, if not that of the docstring.
            annotations: hints about what a call does.
            icons: for user interfaces.
            meta: more for clients.
            timeout: seconds that a call may take.
            scopes: what the token of a call needs, besides what every request needs (`auth=`). The tool is
                listed without them; a call is answered with the scopes that it needs.

        Raises:
            TypeError: the signature cannot work; the text names the parameter.
            ValueError: the name is taken.
        """
        needed = parse_scopes(scopes)

        def register(fn: Callable[..., Any]) -> RegisteredTool[..., Any]:
            bound = bind(fn, context_types=_CONTEXT_TYPES, name=name)
            returns = ResultConverter.for_function(fn)
            tool = Tool(
                name=bound.name,
                input_schema=bound.input_schema,
                description=description or bound.summary,
                title=title,
                output_schema=returns.output_schema,
                annotations=annotations,
                icons=icons,
                meta=meta,
            )
            return self._register_tool(tool, bound, returns, timeout, needed)

        return register if fn is None else register(fn)

    def add_tool(
        self,
        tool: Tool,
        fn: Callable[..., Any],
        *,
        timeout: float | None = None,
        scopes: Iterable[str] = (),
    ) -> RegisteredTool[..., Any]:
        """Offer a function under a JSON Schema of your own.

        The function takes the arguments as a dict, and a context if it asks for one by annotation.

        Raises:
            TypeError: the schema is no dict, or the function does not take one.
            ValueError: the name is taken, or the schema is not valid.
            MCPError: schemas cannot be checked because jsonschema-rs is not installed.
        """
        if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance] - not every user has a type checker
            raise TypeError(f"add_tool takes a Tool and a function, not {tool!r}")
        from toolpost.server.signature.function_schema import RawSchemaFunction  # noqa: PLC0415 - few servers have their own schemas

        bound = RawSchemaFunction(fn, tool.input_schema, context_types=_CONTEXT_TYPES, name=tool.name)
        returns = ResultConverter.for_schema(tool.output_schema, tool.name)
        return self._register_tool(tool, bound, returns, timeout, parse_scopes(scopes))

    def _register_tool(
        self,
        tool: Tool,
        bound: "BoundFunction | RawSchemaFunction",
        returns: ResultConverter,
        timeout: float | None,
        scopes: frozenset[str],
    ) -> RegisteredTool[..., Any]:
        timeout = self._timeout if timeout is None else timeout
        served = RegisteredTool[..., Any](
            tool, bound, returns, self.tools, self.worker_threads, timeout=timeout, debug=self._debug
        )
        served.scopes = scopes
        self.tools.add(tool.name, served)
        return served

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
    ) -> "Callable[[Callable[P, R]], RegisteredResource[P, R] | RegisteredTemplate[P, R]]":
        """Offer a function as a resource, or as many of them.

        A `uri` with variables, such as "users://{id}/profile", is a template (RFC 6570); its variables are
        the arguments of the function. A `cache` says how long clients may keep what is read, if not as long
        as that of the server; `scopes` are what the token of a request needs to read it.

        Raises:
            TypeError: the signature cannot work; the text names the parameter.
            ValueError: the URI is taken, or is no URI and no template, or has no scheme.
        """
        from toolpost.server.registry.resources import (  # noqa: PLC0415 - start-up time
            RegisteredResource,
            RegisteredTemplate,
            parse_uri_template,
        )

        template = parse_uri_template(uri)
        check_cache(cache)
        needed = parse_scopes(scopes)

        def register(fn: Callable[..., Any]) -> Any:
            bound = bind(fn, context_types=_CONTEXT_TYPES, name=name)
            shown: dict[str, Any] = {
                "name": bound.name,
                "title": title,
                "description": description or bound.summary,
                "mime_type": mime_type,
                "annotations": annotations,
                "icons": icons,
                "meta": meta,
            }
            _check_variables(bound, template)
            served: Any
            home: Registry[Any]
            threads = self.worker_threads
            if template.variables:
                home, item = self.templates, types.ResourceTemplate(uri, **shown)
                served = RegisteredTemplate[..., Any](item, bound, home, threads, cache)
            else:
                home, resource = self.resources, types.Resource(uri, size=size, **shown)
                served = RegisteredResource[..., Any](resource, bound, home, threads, cache)
            served.scopes = needed
            home.add(uri, served)
            return served

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
    ) -> "Callable[[Callable[P, R]], RegisteredPrompt[P, R]]": ...

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
    ) -> Any:
        """Offer a function as a prompt. It returns text, content, or messages.

        `scopes` are what the token of a request needs to get it.

        Raises:
            TypeError: the signature cannot work; the text names the parameter.
            ValueError: the name is taken.
        """
        from toolpost.server.registry.prompts import RegisteredPrompt  # noqa: PLC0415 - start-up time

        needed = parse_scopes(scopes)

        def register(fn: Callable[..., Any]) -> "RegisteredPrompt[..., Any]":
            bound = bind(fn, context_types=_CONTEXT_TYPES, name=name)
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
            served = RegisteredPrompt[..., Any](prompt, bound, self.prompts, self.worker_threads)
            served.scopes = needed
            self.prompts.add(prompt.name, served)
            return served

        return register if fn is None else register(fn)

    def on_notification(self, method: str) -> Callable[[F], F]:
        """Receive notifications of clients: "notifications/roots/list_changed", or a method of their own.

        The function takes a context and, if it has a second parameter, the parameters of the notification.
        What it raises is logged.

        Raises:
            TypeError: it takes neither one argument nor two.
            ValueError: another function receives the method already, or it is reserved.
        """
        from toolpost.server.runtime.notifications import RESERVED_NOTIFICATIONS, NotificationReceiver  # noqa: PLC0415 - start-up time

        if method in RESERVED_NOTIFICATIONS:
            raise ValueError(f"{method} is served by the protocol itself; look at `ctx.cancelled`")
        if method in self._notification_receivers:
            raise ValueError(f"another function hears {method} already")

        def register(fn: F) -> F:
            self._notification_receivers[method] = NotificationReceiver(fn, self.worker_threads)
            return fn

        return register

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        """Call the function for this method, if there is one."""
        receiver = self._notification_receivers.get(method)
        if receiver is not None:
            await receiver(ctx, params)


def _check_variables(bound: BoundFunction, template: "UriTemplate") -> None:
    """Raise unless the variables of a template are the parameters of its function."""
    if template.unmatchable:
        raise ValueError(template.unmatchable)
    parameters = {parameter.name: parameter for parameter in bound.parameters}
    unknown = [name for name in template.variables if name not in parameters]
    if unknown:
        raise TypeError(f"{bound.name}() has no parameter for {', '.join(unknown)} in {template.text!r}")
    missing = [p.name for p in bound.parameters if p.required and p.name not in template.variables]
    if missing:
        raise TypeError(
            f"the parameters {', '.join(missing)} of {bound.name}() are not in {template.text!r}; "
            "put them there or give them defaults"
        )
