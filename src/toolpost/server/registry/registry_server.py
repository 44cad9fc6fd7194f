"""`RegistryServer`: a handler that serves the registries of tools, resources, templates and prompts.

Capabilities follow from the entries. `Server` fills the registries, by its decorators.
"""

from collections.abc import Callable, Mapping
from copy import copy
from types import CoroutineType, MethodType
from typing import TYPE_CHECKING, Any, Final, Self

from toolpost import types
from toolpost.errors import InvalidParams, ResourceNotFound
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import (
    PROMPTS_GET,
    PROMPTS_LIST,
    RESOURCES_LIST,
    RESOURCES_READ,
    RESOURCES_SUBSCRIBE,
    RESOURCES_TEMPLATES_LIST,
    TOOLS_CALL,
    TOOLS_LIST,
)
from toolpost.server.context import Context
from toolpost.server.handler import Handler
from toolpost.server.registry.registry import Cache, ListKind, Registry, RegistryEntry, apply_cache
from toolpost.server.registry.tools import RegisteredTool
from toolpost.types.base import Raw
from toolpost.types.initialize import (
    ListCapability,
    PaginatedRequestParams,
    ResourcesCapability,
    ServerCapabilities,
)
from toolpost.types.tools import CallToolParams, CallToolResult

if TYPE_CHECKING:
    from toolpost.server.registry.prompts import RegisteredPrompt
    from toolpost.server.registry.resources import RegisteredResource, RegisteredTemplate

LIST_KINDS: Final = {
    "tools": ListKind("tools", TOOLS_LIST, "ListToolsResult", "tools", "tools"),
    "resources": ListKind("resources", RESOURCES_LIST, "ListResourcesResult", "resources", "resources"),
    "templates": ListKind(
        "resource templates",
        RESOURCES_TEMPLATES_LIST,
        "ListResourceTemplatesResult",
        "resource_templates",
        "resources",
    ),
    "prompts": ListKind("prompts", PROMPTS_LIST, "ListPromptsResult", "prompts", "prompts"),
}
"""The registries, by attribute."""


class RegistryServer(Handler):
    """A handler that serves registries; a subclass makes them."""

    tools: Registry[RegisteredTool[..., Any]]
    resources: "Registry[RegisteredResource[..., Any]]"
    templates: "Registry[RegisteredTemplate[..., Any]]"
    prompts: "Registry[RegisteredPrompt[..., Any]]"
    caches: Mapping[str, Cache]
    """How long clients may keep results, by method."""

    def select(self, keep: Callable[[RegistryEntry[..., Any]], bool]) -> Self:
        """Return the same server, listing and serving only some of its entries.

        Later changes of the whole appear there too, as far as they are kept, and its clients are notified.
        Everything else is shared: lifespan, middleware, threads, store. What clients of the whole server may
        keep as public is private here: others see another selection.

        Args:
            keep: whether to show an entry, such as `lambda entry: entry.name in allowed`. It is called for
                every entry again whenever a list has changed, and on every call.
        """
        part = copy(self)
        part.__dict__.pop("local_peer", None)
        part.store = self.store
        part.caches = {method: cache.as_private() for method, cache in self.caches.items()}
        part.routes = {
            method: MethodType(route.__func__, part)
            if isinstance(route, MethodType) and route.__self__ is self
            else route
            for method, route in self.routes.items()
        }
        for name in LIST_KINDS:
            whole: Registry[Any] = getattr(self, name)
            setattr(part, name, whole.select(keep, lambda _: part.__dict__.pop("local_peer", None)))
        return part

    # ----------------------------------------------------------------- what follows from the entries

    def cache_for(self, method: str) -> Cache | None:
        """Return how long clients may keep the results of a method; None to keep nothing."""
        return self.caches.get(method)

    @property
    def has_header_parameters(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from the tools
        """Whether HTTP headers mirror parameters of a tool."""
        return self.tools.has_header_parameters

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """Return the parameters of a tool that headers mirror, if any."""
        served = self.tools.get(tool)
        return None if served is None else served.header_parameters or None

    def capabilities(self) -> ServerCapabilities:
        """Return what is declared to clients: the lists that have been used, and those of `declares`."""
        used = {kind.changed_list for name, kind in LIST_KINDS.items() if getattr(self, name).has_been_used}
        there = {*used, *self._declared_lists}
        resources = ResourcesCapability(list_changed=True, subscribe=True)
        completes = any(entry.has_completers for entry in (*self.prompts, *self.templates))
        return ServerCapabilities(
            tools=ListCapability(list_changed=True) if "tools" in there else None,
            resources=resources if "resources" in there else None,
            prompts=ListCapability(list_changed=True) if "prompts" in there else None,
            completions={} if completes else None,
            logging={},
        )

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """Return the scopes of a tool, prompt or resource; none if it is unknown."""
        handle: RegistryEntry[..., Any] | None = None
        if method == TOOLS_CALL:
            handle = self.tools.get(about)
        elif method == PROMPTS_GET:
            handle = self.prompts.get(about)
        elif method in {RESOURCES_READ, RESOURCES_SUBSCRIBE}:
            found = self._match_template(about)
            handle = self.resources.get(about) or (found and found[0])
        return frozenset() if handle is None else handle.scopes

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Accept a subscription to a resource or a URI of a template. Raises ResourceNotFound."""
        resource = self.resources.get(uri)
        if resource is None:
            found = self._match_template(uri)
            if found is None:
                raise _make_not_found(uri)
            resource = found[0]
        ctx.require(*resource.scopes)

    def _list_tools(self, ctx: Context, params: PaginatedRequestParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.get_list_page(self.tools, params.cursor)

    def _list_resources(self, ctx: Context, params: PaginatedRequestParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.get_list_page(self.resources, params.cursor)

    def _list_templates(self, ctx: Context, params: PaginatedRequestParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.get_list_page(self.templates, params.cursor)

    def _list_prompts(self, ctx: Context, params: PaginatedRequestParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.get_list_page(self.prompts, params.cursor)

    def _call_tool(self, ctx: Context, params: CallToolParams) -> "CoroutineType[Any, Any, CallToolResult]":
        tool = self.tools.get(params.name)
        if tool is None:
            raise InvalidParams(f"Unknown tool: {shorten(params.name)}{self.tools.suggest(params.name)}")
        if tool.scopes:
            ctx.require(*tool.scopes)
        return tool.call(ctx, params)

    async def _read_resource(
        self, ctx: Context, params: "types.ReadResourceParams"
    ) -> "types.ReadResourceResult":
        uri = params.uri
        cache = self.cache_for(RESOURCES_READ)
        resource = self.resources.get(uri)
        if resource is not None:
            ctx.require(*resource.scopes)
            return apply_cache(await resource.read(ctx, uri), _choose_cache(resource, cache))
        found = self._match_template(uri)
        if found is None:
            raise _make_not_found(uri)
        template, values = found
        ctx.require(*template.scopes)
        return apply_cache(await template.read(ctx, uri, values), _choose_cache(template, cache))

    def _match_template(self, uri: str) -> "tuple[RegisteredTemplate[..., Any], Mapping[str, Any]] | None":
        for template in self.templates:
            values = template.match(uri) if template.enabled else None
            if values is not None:
                return template, values
        return None

    async def _get_prompt(self, ctx: Context, params: "types.GetPromptParams") -> "types.GetPromptResult":
        prompt = self.prompts.get(params.name)
        if prompt is None:
            raise InvalidParams(f"Unknown prompt: {shorten(params.name)}{self.prompts.suggest(params.name)}")
        ctx.require(*prompt.scopes)
        return await prompt.get(ctx, params.arguments or {})

    async def _complete(self, ctx: Context, params: "types.CompleteParams") -> "types.CompleteResult":
        ref = params.ref
        if isinstance(ref, types.PromptReference):
            handle, what = self.prompts.get(ref.name), f"prompt: {ref.name}"
        else:
            handle, what = self.templates.get(ref.uri), f"resource template: {ref.uri}"
            handle = handle or self.resources.get(ref.uri)
        if handle is None:
            raise InvalidParams(f"Unknown {what}")
        ctx.require(*handle.scopes)
        known = (params.context.arguments if params.context else None) or {}
        return await handle.complete_argument(
            params.argument.name, params.argument.value, known, self.worker_threads
        )


def _choose_cache(
    handle: "RegisteredResource[..., Any] | RegisteredTemplate[..., Any]", cache: Cache | None
) -> Cache | None:
    """Return how long clients may keep a resource; privately, if it needs scopes."""
    cache = handle.cache or cache
    return cache.as_private() if cache is not None and handle.scopes else cache


def _make_not_found(uri: str) -> ResourceNotFound:
    return ResourceNotFound(f"Resource not found: {uri}", {"uri": uri})
