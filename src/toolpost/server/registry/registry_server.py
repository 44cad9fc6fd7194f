"""`RegistryServer`: a handler that serves the registries of tools, resources, templates and prompts.

Capabilities follow from the entries. `Server` fills the registries, by its decorators.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import cached_property
from types import CoroutineType, MethodType
from typing import TYPE_CHECKING, Any, Self

from toolpost import types
from toolpost.errors import InvalidParams, ResourceNotFound
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import PROMPTS_GET, RESOURCES_READ, RESOURCES_SUBSCRIBE, TOOLS_CALL
from toolpost.server.context import Context
from toolpost.server.handler import Handler, declare_capabilities
from toolpost.server.registry.registry import LIST_KINDS, Cache, Registry, RegistryEntry, apply_cache
from toolpost.server.registry.tools import RegisteredTool
from toolpost.types.base import Raw

if TYPE_CHECKING:
    from toolpost.server.registry.prompts import RegisteredPrompt
    from toolpost.server.registry.resources import RegisteredResource, RegisteredTemplate
    from toolpost.tasks.service import Tasks


class RegistryServer(Handler):
    """A handler that serves registries; a subclass makes them."""

    tools: Registry[RegisteredTool[..., Any]]
    resources: "Registry[RegisteredResource[..., Any]]"
    templates: "Registry[RegisteredTemplate[..., Any]]"
    prompts: "Registry[RegisteredPrompt[..., Any]]"
    caches: Mapping[str, Cache]  # by method
    has_tasks = False
    """Whether a tool has ever had `task=`."""

    def select(self, keep: Callable[[RegistryEntry[..., Any]], bool]) -> Self:
        """Return a view of the server that lists and serves only some of its entries.

        The view follows later changes of the server, and its clients are notified. It shares everything else:
        lifespan, middleware, threads, store. Caches must not share its results, because other clients see
        another selection.

        Args:
            keep: returns whether to show an entry, such as `lambda entry: entry.name in allowed`. It is
                called for every entry whenever a list has changed, and on every call.
        """
        part = copy(self)
        part.__dict__.pop("local_peer", None)
        part.store = self.store
        if self.has_tasks:
            part.tasks = self.tasks
        part.caches = {method: cache.as_private() for method, cache in self.caches.items()}
        part.routes = {
            method: MethodType(route.__func__, part)
            if isinstance(route, MethodType) and route.__self__ is self
            else route
            for method, route in self.routes.items()
        }
        for kind in LIST_KINDS.values():
            whole: Registry[Any] = getattr(self, kind.attribute)
            setattr(part, kind.attribute, whole.select(keep, lambda _: part.__dict__.pop("local_peer", None)))
        return part

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

    def capabilities(self) -> types.ServerCapabilities:
        """Return the capabilities to declare: the lists that have been used, and those of `declares`."""
        completes = any(entry.has_completers for entry in (*self.prompts, *self.templates))
        declared = declare_capabilities({*self.used_lists, *self._declared_lists}, complete=completes)
        if self.has_tasks:  # those of 2025-11-25; a list only where clients are known (TASK-33)
            declared.tasks = types.ServerTasksCapability(
                list=None if self.auth is None else {},
                cancel={},
                requests=types.ServerTasksRequests(types.ToolsTasks(call={})),
            )
        return declared

    @cached_property
    def tasks(self) -> "Tasks":
        """The tasks of this server: complete those that are finished elsewhere."""
        from toolpost.tasks.service import Tasks  # noqa: PLC0415 - start-up time

        return Tasks(self)

    @property
    def shares_tasks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from the tools
        """Whether tasks of other workers may run here."""
        return self.has_tasks and not self.is_in_memory

    def start_tasks(self, lifespan: Any) -> None:
        """Run tasks of other workers in this event loop."""
        if self.shares_tasks:
            self.tasks.get_runner(lifespan).attend()

    async def end_tasks(self) -> None:
        """End the tasks that run in this event loop."""
        if "tasks" in self.__dict__:
            await self.tasks.close()

    def add_task_support(self) -> None:
        """Offer tasks, of both kinds."""
        if not self.has_tasks:
            from toolpost.tasks.wire import TASKS  # noqa: PLC0415 - start-up time

            self.has_tasks = True
            self.add_extension(TASKS)

    @property
    def used_lists(self) -> set[str]:
        """The lists that have, or had, entries."""
        kinds = LIST_KINDS.values()
        return {kind.changed_list for kind in kinds if getattr(self, kind.attribute).has_been_used}

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """Return the scopes of a tool, prompt or resource; none if it is unknown."""
        handle: RegistryEntry[..., Any] | None = None
        if method == TOOLS_CALL:
            handle = self.tools.get(about)
        elif method == PROMPTS_GET:
            handle = self.prompts.get(about)
        elif method in {RESOURCES_READ, RESOURCES_SUBSCRIBE}:
            with suppress(ResourceNotFound):
                handle = self._find_resource(about)
        return frozenset() if handle is None else handle.scopes

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Accept a subscription to a resource or a URI of a template. Raises ResourceNotFound."""
        ctx.require(*self._find_resource(uri).scopes)

    def _list(self, ctx: Context, params: types.PaginatedRequestParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        assert ctx.incoming is not None, "only requests have routes"
        registry: Registry[Any] = getattr(self, LIST_KINDS[ctx.method].attribute)
        return registry.get_page(self.local_peer, ctx.incoming, params.cursor)

    def _call_tool(
        self, ctx: Context, params: types.CallToolParams
    ) -> "CoroutineType[Any, Any, types.Result]":
        tool = self.tools.get(params.name)
        if tool is None:
            raise InvalidParams(f"Unknown tool: {shorten(params.name)}{self.tools.suggest(params.name)}")
        if tool.scopes:
            ctx.require(*tool.scopes)
        if tool.task is not None or (self.has_tasks and params.task is not None):
            return self.tasks.serve_call(ctx, tool, params)
        return tool.serve(ctx, params)

    async def _read_resource(
        self, ctx: Context, params: types.ReadResourceParams
    ) -> types.ReadResourceResult:
        resource = self._find_resource(params.uri)
        ctx.require(*resource.scopes)
        cache = resource.cache or self.cache_for(RESOURCES_READ)
        if cache is not None and resource.scopes:
            cache = cache.as_private()
        return apply_cache(await resource.serve(ctx, params), cache)

    def _find_resource(self, uri: str) -> "RegisteredResource[..., Any] | RegisteredTemplate[..., Any]":
        """Return the resource of a URI, or the first template that matches it. Raises ResourceNotFound."""
        resource = self.resources.get(uri)
        if resource is not None:
            return resource
        for template in self.templates:
            if template.enabled and template.match(uri) is not None:
                return template
        raise ResourceNotFound(f"Resource not found: {uri}", {"uri": uri})

    async def _get_prompt(self, ctx: Context, params: types.GetPromptParams) -> types.GetPromptResult:
        prompt = self.prompts.get(params.name)
        if prompt is None:
            raise InvalidParams(f"Unknown prompt: {shorten(params.name)}{self.prompts.suggest(params.name)}")
        ctx.require(*prompt.scopes)
        return await prompt.serve(ctx, params)

    async def _complete(self, ctx: Context, params: types.CompleteParams) -> types.CompleteResult:
        ref = params.ref
        if isinstance(ref, types.PromptReference):
            handle, shown = self.prompts.get(ref.name), f"prompt: {ref.name}"
        else:
            handle, shown = self.templates.get(ref.uri), f"resource template: {ref.uri}"
            handle = handle or self.resources.get(ref.uri)
        if handle is None:
            raise InvalidParams(f"Unknown {shown}")
        ctx.require(*handle.scopes)
        return await handle.serve_completion(ctx, params)
