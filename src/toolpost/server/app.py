"""`Server`: decorate a function, and any MCP host can call it.

Owns the catalogues of tools, resources, templates and prompts, and the decorators that fill them. It is a
`Handler` whose routes read the catalogues; what happens to a request is told there and in `dispatch`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, ParamSpec, TypeVar, overload

from toolpost.errors import InvalidParams, ResourceNotFound
from toolpost.protocol.connection import MAX_IN_FLIGHT
from toolpost.protocol.methods import DATES, Row
from toolpost.protocol.seal import KeyRing
from toolpost.protocol.uri import Template
from toolpost.server.bind import Bound, bind
from toolpost.server.catalogue import PAGE_SIZE, Catalogue
from toolpost.server.context import Context
from toolpost.server.dispatch import Middleware
from toolpost.server.handler import Handler, Lifespan
from toolpost.server.prompts import ServedPrompt
from toolpost.server.resources import ServedResource, ServedTemplate
from toolpost.server.returns import Returns
from toolpost.server.sync import SyncContext
from toolpost.server.tools import ServedTool
from toolpost.server.verbatim import Verbatim
from toolpost.types.base import Annotations, Icon, Meta, Raw
from toolpost.types.lifecycle import (
    ListCapability,
    PageParams,
    ResourcesCapability,
    ServerCapabilities,
)
from toolpost.types.prompts import (
    CompleteParams,
    CompleteResult,
    GetPromptParams,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptReference,
)
from toolpost.types.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from toolpost.types.tools import CallToolParams, CallToolResult, ListToolsResult, Tool, ToolAnnotations

__all__ = ["Server"]

P = ParamSpec("P")
R = TypeVar("R")

_CONTEXTS: Final = (Context, SyncContext)


class Server(Handler):
    """A server made of decorated functions.

    Args:
        name: how it is called.
        timeout: seconds that a tool may take, unless it says otherwise.
        page_size: entries on a page of a list.
        keys: what cursors are sealed with; made at the start unless given. Workers that share clients share
            keys.
        debug: tell clients what went wrong inside a tool; otherwise that is only logged.

    The other arguments are those of `Handler`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        icons: list[Icon] | None = None,
        website_url: str | None = None,
        lifespan: Lifespan | None = None,
        middleware: Iterable[Middleware] = (),
        revisions: Iterable[str] = DATES,
        limit: int = MAX_IN_FLIGHT,
        threads: int = 40,
        extra: Iterable[Row] = (),
        timeout: float | None = None,
        page_size: int = PAGE_SIZE,
        keys: KeyRing | None = None,
        debug: bool = False,
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
            limit=limit,
            threads=threads,
            extra=extra,
        )
        self._timeout = timeout
        self._debug = debug
        self._keys = keys
        self.tools: Catalogue[ServedTool[..., Any]] = Catalogue(
            "tools",
            lambda items, cursor: ListToolsResult(tools=items, next_cursor=cursor),
            lambda: self._changed("tools"),
            self._ring,
            page_size,
        )
        self.resources: Catalogue[ServedResource[..., Any]] = Catalogue(
            "resources",
            lambda items, cursor: ListResourcesResult(resources=items, next_cursor=cursor),
            lambda: self._changed("resources"),
            self._ring,
            page_size,
        )
        self.templates: Catalogue[ServedTemplate[..., Any]] = Catalogue(
            "resource templates",
            lambda items, cursor: ListResourceTemplatesResult(resource_templates=items, next_cursor=cursor),
            lambda: self._changed("resources"),
            self._ring,
            page_size,
        )
        self.prompts: Catalogue[ServedPrompt[..., Any]] = Catalogue(
            "prompts",
            lambda items, cursor: ListPromptsResult(prompts=items, next_cursor=cursor),
            lambda: self._changed("prompts"),
            self._ring,
            page_size,
        )

    def _ring(self) -> KeyRing:
        if self._keys is None:
            self._keys = KeyRing.random(encrypt=False)  # a cursor is no secret
        return self._keys

    def _changed(self, what: str) -> None:
        self.__dict__.pop("party", None)  # what is declared may have changed with it
        self.announcer.list_changed(what)

    def __repr__(self) -> str:
        return f"<Server {self.info.name}: {len(self.tools)} tools>"

    # ----------------------------------------------------------------- decorators

    @overload
    def tool(self, fn: Callable[P, R], /) -> ServedTool[P, R]: ...

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
    ) -> Callable[[Callable[P, R]], ServedTool[P, R]]: ...

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
    ) -> Any:
        """Offer a function as a tool.

        The signature becomes the input schema, the return annotation the output schema, the docstring the
        descriptions.

        Args:
            fn: the function, async or not.
            name: how the tool is called, if not like the function.
            title: for people.
            description: for the model, if not what the docstring says.
            annotations: hints about what a call does.
            icons: for user interfaces.
            meta: what else to tell clients.
            timeout: seconds that a call may take.

        Raises:
            TypeError: the signature cannot work; the text names the parameter.
            ValueError: the name is taken.
        """

        def register(fn: Callable[..., Any]) -> ServedTool[..., Any]:
            bound = bind(fn, context_types=_CONTEXTS, name=name)
            returns = Returns.of(fn)
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
            served = ServedTool[..., Any](
                tool,
                bound,
                returns,
                self.tools,
                self.work,
                timeout=self._timeout if timeout is None else timeout,
                debug=self._debug,
            )
            self.tools.add(tool.name, served)
            return served

        return register if fn is None else register(fn)

    def add_tool(
        self, tool: Tool, fn: Callable[..., Any], *, timeout: float | None = None
    ) -> ServedTool[..., Any]:
        """Offer a function under a JSON Schema of your own.

        The function takes the arguments as a dict, and a context if it asks for one by annotation.

        Raises:
            ValueError: the name is taken, or the schema is not valid.
            MCPError: schemas cannot be checked because jsonschema-rs is not installed.
        """
        bound = Verbatim(fn, tool.input_schema, context_types=_CONTEXTS, name=tool.name)
        served = ServedTool[..., Any](
            tool,
            bound,
            Returns.raw(tool.output_schema),
            self.tools,
            self.work,
            timeout=self._timeout if timeout is None else timeout,
            debug=self._debug,
        )
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
    ) -> Callable[[Callable[P, R]], ServedResource[P, R] | ServedTemplate[P, R]]:
        """Offer a function as a resource, or as many of them.

        A `uri` with variables, such as "users://{id}/profile", is a template (RFC 6570); its variables are
        the arguments of the function.

        Raises:
            TypeError: the signature cannot work; the text names the parameter.
            ValueError: the URI is taken, or is no URI and no template.
        """
        template = Template(uri)

        def register(fn: Callable[..., Any]) -> Any:
            bound = bind(fn, context_types=_CONTEXTS, name=name)
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
            if template.variables:
                served = ServedTemplate[..., Any](
                    ResourceTemplate(uri, **shown), bound, self.templates, self.work
                )
                self.templates.add(uri, served)
                return served
            resource = ServedResource[..., Any](
                Resource(uri, size=size, **shown), bound, self.resources, self.work
            )
            self.resources.add(uri, resource)
            return resource

        return register

    @overload
    def prompt(self, fn: Callable[P, R], /) -> ServedPrompt[P, R]: ...

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
    ) -> Callable[[Callable[P, R]], ServedPrompt[P, R]]: ...

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
    ) -> Any:
        """Offer a function as a prompt. It returns text, content, or messages.

        Raises:
            TypeError: the signature cannot work; the text names the parameter.
            ValueError: the name is taken.
        """

        def register(fn: Callable[..., Any]) -> ServedPrompt[..., Any]:
            bound = bind(fn, context_types=_CONTEXTS, name=name)
            prompt = Prompt(
                name=bound.name,
                title=title,
                description=description or bound.summary,
                arguments=[
                    PromptArgument(p.name, description=p.description, required=p.required)
                    for p in bound.parameters
                ]
                or None,
                icons=icons,
                meta=meta,
            )
            served = ServedPrompt[..., Any](prompt, bound, self.prompts, self.work)
            self.prompts.add(prompt.name, served)
            return served

        return register if fn is None else register(fn)

    # ----------------------------------------------------------------- what follows from the catalogues

    def capabilities(self) -> ServerCapabilities:
        """What is declared to clients: what is registered."""
        completes = any(handle.completes for handle in (*self.prompts, *self.templates))
        return ServerCapabilities(
            tools=ListCapability(list_changed=True) if self.tools.used else None,
            resources=ResourcesCapability(list_changed=True, subscribe=True)
            if self.resources.used or self.templates.used
            else None,
            prompts=ListCapability(list_changed=True) if self.prompts.used else None,
            completions={} if completes else None,
            logging={},
        )

    async def subscribe(self, uri: str, ctx: Context) -> None:  # noqa: ARG002 - the same for all
        """Accept a watch on a resource that exists, or could.

        Raises:
            ResourceNotFound: there is no such resource.
        """
        if self.resources.get(uri) is None and self._templated(uri) is None:
            raise _not_found(uri)

    def _list_tools(self, ctx: Context, params: PageParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.page(self.tools, params.cursor)

    def _list_resources(self, ctx: Context, params: PageParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.page(self.resources, params.cursor)

    def _list_templates(self, ctx: Context, params: PageParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.page(self.templates, params.cursor)

    def _list_prompts(self, ctx: Context, params: PageParams) -> Raw:  # pyright: ignore[reportIncompatibleMethodOverride] - answered at once
        return ctx.page(self.prompts, params.cursor)

    async def _call_tool(self, ctx: Context, params: CallToolParams) -> CallToolResult:
        tool = self.tools.get(params.name)
        if tool is None:
            raise InvalidParams(f"Unknown tool: {params.name}")
        return await tool.call(ctx, params)

    async def _read_resource(self, ctx: Context, params: ReadResourceParams) -> ReadResourceResult:
        uri = params.uri
        resource = self.resources.get(uri)
        if resource is not None:
            return await resource.read(ctx, uri)
        found = self._templated(uri)
        if found is None:
            raise _not_found(uri)
        template, values = found
        return await template.read(ctx, uri, values)

    def _templated(self, uri: str) -> tuple[ServedTemplate[..., Any], Mapping[str, Any]] | None:
        for template in self.templates:
            values = template.match(uri) if template.enabled else None
            if values is not None:
                return template, values
        return None

    async def _get_prompt(self, ctx: Context, params: GetPromptParams) -> GetPromptResult:
        prompt = self.prompts.get(params.name)
        if prompt is None:
            raise InvalidParams(f"Unknown prompt: {params.name}")
        return await prompt.get(ctx, params.arguments or {})

    async def _complete(self, ctx: Context, params: CompleteParams) -> CompleteResult:  # noqa: ARG002 - the same for all
        ref = params.ref
        if isinstance(ref, PromptReference):
            handle, what = self.prompts.get(ref.name), f"prompt: {ref.name}"
        else:
            handle, what = self.templates.get(ref.uri), f"resource template: {ref.uri}"
            handle = handle or self.resources.get(ref.uri)
        if handle is None:
            raise InvalidParams(f"Unknown {what}")
        known = (params.context.arguments if params.context else None) or {}
        return await handle.completed(params.argument.name, params.argument.value, known, self.work)


def _not_found(uri: str) -> ResourceNotFound:
    return ResourceNotFound(f"Resource not found: {uri}", {"uri": uri})


def _check_variables(bound: Bound, template: Template) -> None:
    """The variables of a template and the parameters of its function are the same."""
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
