"""`MountingServer`: a server of registries in which other servers are mounted.

Holds the mounts, their lifespans and their instructions. `toolpost.gateway`, which is loaded on demand, makes
the entries.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from toolpost import types
from toolpost.errors import ResourceNotFound, explain_keywords
from toolpost.server.context import Context
from toolpost.server.registry.registry_server import RegistryServer
from toolpost.server.runtime.dispatch import Middleware
from toolpost.types.base import Raw

if TYPE_CHECKING:
    from toolpost.gateway.edit import Edit
    from toolpost.gateway.local import LocalMount
    from toolpost.gateway.mount import Mount, Selection
    from toolpost.server.registry.resources import RegisteredResource, RegisteredTemplate

MAX_INSTRUCTIONS: Final = 8192
"""Characters of the instructions of all mounted servers together."""


class MountingServer(RegistryServer):
    """A server that has parts."""

    mounts: "list[Mount]"
    """The mounted servers."""
    _open_stacks: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncExitStack, asyncio.Lock]]

    @explain_keywords
    def mount(
        self,
        target: Any,
        name: str | None = None,
        *,
        only: "Selection | None" = None,
        hide: "Selection | None" = None,
        tools: "Mapping[str, Edit] | None" = None,
        around: Iterable[Middleware] = (),
        max_name: int = 64,
        start: Literal["eager", "lazy"] = "eager",
        idle: float | None = None,
        grace: float = 60.0,
        share: Literal["all", "principal", "session"] | None = None,
        timeout: float | None = 300.0,
        headers: Mapping[str, str] | None = None,
        http: object = None,
        auth: Any = None,
        forward: Iterable[str] = (),
    ) -> "Mount":
        """Serve another server as a part of this one: its tools, resources and prompts.

        Args:
            target: a `Server`, or whatever `Client` takes: a command, a URL, an entry of an `mcp.json`.
            name: a prefix for tools and prompts: `search` becomes `shop_search`. By default names stay.
            only: the names of the items to serve, such as ["search_*"], or a function; by default all.
            hide: the names of items not to serve.
            tools: changes of tools, by the server's name of the tool.
            around: middleware for the requests of this part.
            max_name: characters of a name with its prefix; a longer one ends in a hash.
            start: whether to connect when this server starts to serve, or on first use ("lazy").
            idle: seconds after which an unused connection is closed, or a process stopped; None for never.
            grace: seconds for which the items of a server that is lost stay listed.
            share: which clients share a connection in the session era: "all", those of one "principal", or
                those of one "session". By default "all" for a process, and "session" over HTTP.
            timeout: seconds to wait for a response of the server; progress restarts it.
            headers: headers for each HTTP request to it.
            http: the HTTP library, as for `Client`.
            auth: the credentials for it, as for `Client`.
            forward: must be empty: headers of the client's requests are not sent on.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: a name is taken, or the server would be a part of itself.
        """
        from toolpost.gateway.mounts import make_mount  # noqa: PLC0415 - start-up time

        given = {key: value for key, value in locals().items() if key not in {"self", "target", "make_mount"}}
        return make_mount(self, target, **given)

    def compose_instructions(self) -> str | None:
        """Return the instructions: those of this server, then those of its parts."""
        parts = [self.instructions] if self.instructions else []
        left = MAX_INSTRUCTIONS
        for mount in self.mounts:
            text = mount.instructions
            if text:
                section = f"## {mount.label}\n\n{text}"[:left]
                left -= len(section)
                parts += [section] if section else []
        return "\n\n".join(parts) or None

    def capabilities(self) -> types.ServerCapabilities:
        """Return the capabilities to declare: as long as a list may still come, all of them."""
        declared = super().capabilities()
        if self._is_pending:
            listed = types.ListCapability(list_changed=True)
            declared.tools, declared.prompts = declared.tools or listed, declared.prompts or listed
            resources = types.ResourcesCapability(list_changed=True, subscribe=True)
            declared.resources = declared.resources or resources
            declared.completions = {}
        return declared

    # ----------------------------------------------------------------- lifespan

    @asynccontextmanager
    async def open_lifespan(self) -> AsyncGenerator[Any]:
        """The lifespan; those of the mounted servers lie within it."""
        loop = asyncio.get_running_loop()
        async with super().open_lifespan() as value, AsyncExitStack() as stack:
            self._open_stacks[loop] = stack, asyncio.Lock()
            try:
                for mount in list(self.mounts):
                    await mount.open(stack)
                yield value
            finally:
                del self._open_stacks[loop]

    async def open_mounts(self, mounts: "Sequence[LocalMount]") -> Any:
        """For mounts: open the lifespans of mounts within mounts; return the value of the last one."""
        loop, host = asyncio.get_running_loop(), self
        for mount in mounts:
            if loop not in mount.lives:
                await host.open_mount(mount)
            host = mount.server
        return mounts[-1].lives[loop]

    async def open_mount(self, mount: "Mount") -> None:
        """For mounts: open one in the running loop, unless it is open."""
        stack, lock = self._open_stacks[asyncio.get_running_loop()]
        async with lock:
            await mount.open(stack)

    def open_later(self, mount: "Mount") -> None:
        """For mounts: open one that was added while this server serves."""
        for loop in list(self._open_stacks):
            asyncio.run_coroutine_threadsafe(self.open_mount(mount), loop)

    # ----------------------------------------------------------------- requests

    def _list(self, ctx: Context, params: types.PaginatedRequestParams) -> Raw | Coroutine[Any, Any, Raw]:  # pyright: ignore[reportIncompatibleMethodOverride] - it may have to wait
        if self.mounts and self._is_pending:
            return self._list_later(ctx, params)
        return super()._list(ctx, params)

    async def _list_later(self, ctx: Context, params: types.PaginatedRequestParams) -> Raw:
        await self.wait_listed(ctx)
        return super()._list(ctx, params)

    async def wait_listed(self, ctx: Context) -> None:
        """For middleware: wait a moment for parts whose lists were never read."""
        if self._is_pending:
            await asyncio.gather(*(mount.wait_listed(ctx) for mount in self.mounts))

    @property
    def _is_pending(self) -> bool:
        return any(mount.is_pending for mount in self.mounts)

    def _call_tool(
        self, ctx: Context, params: types.CallToolParams
    ) -> "CoroutineType[Any, Any, types.Result]":
        if self.mounts and self._is_pending and params.name not in self.tools:
            return self._call_later(ctx, params)
        return super()._call_tool(ctx, params)

    async def _call_later(self, ctx: Context, params: types.CallToolParams) -> types.Result:
        await self.wait_listed(ctx)
        return await super()._call_tool(ctx, params)

    async def _read_resource(
        self, ctx: Context, params: types.ReadResourceParams
    ) -> types.ReadResourceResult:
        if self._is_pending and params.uri not in self.resources:
            await self.wait_listed(ctx)
        return await super()._read_resource(ctx, params)

    async def _get_prompt(self, ctx: Context, params: types.GetPromptParams) -> types.GetPromptResult:
        if self._is_pending and params.name not in self.prompts:
            await self.wait_listed(ctx)
        return await super()._get_prompt(ctx, params)

    def _find_resource(self, uri: str) -> "RegisteredResource[..., Any] | RegisteredTemplate[..., Any]":
        try:
            return super()._find_resource(uri)
        except ResourceNotFound:
            unlisted = [entry for mount in self.mounts if (entry := mount.find_unlisted(uri)) is not None]
            if len(unlisted) != 1:  # a resource in no list is never asked of all
                raise
            return unlisted[0]

    def end_session(self, identity: object) -> None:
        """For transports: forget what belongs to a session that has ended here."""
        for mount in self.mounts:
            mount.end_session(identity)

    async def set_log_level(self, level: types.LogLevel, ctx: Context) -> None:
        """Called when a client of the session era sets its log level."""
        for mount in self.mounts:
            await mount.set_log_level(level, ctx)

    async def subscribe(self, uri: str, ctx: Context) -> None:
        """Accept a subscription to a resource or a URI of a template. Raises ResourceNotFound."""
        await super().subscribe(uri, ctx)
        entry: Any = self._find_resource(uri)
        if entry.owner is not None:
            await entry.set_subscription(uri, ctx, is_active=True)

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        """Called when a client unsubscribes from a resource, or ends its session."""
        try:
            entry: Any = self._find_resource(uri)
        except ResourceNotFound:
            return
        if entry.owner is not None:
            await entry.set_subscription(uri, ctx, is_active=False)
