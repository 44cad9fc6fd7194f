"""Servers in this process: their entries are called directly, in the task of the caller.

A mounted server keeps its middleware, observers, lifespan and threads. Mounts in mounts are resolved when
entries are registered, so that a call needs one look-up at any depth.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from toolpost.gateway.mount import Appearance, Mount, MountedEntry, MountOptions, MountState, Offer
from toolpost.protocol.extension import Extension
from toolpost.protocol.methods import (
    ELICITATION_COMPLETE,
    PROMPTS_LIST,
    RESOURCES_LIST,
    RESOURCES_TEMPLATES_LIST,
    RESOURCES_UPDATED,
    TOOLS_LIST,
)
from toolpost.protocol.revisions import LATEST
from toolpost.server.registry.registry import LIST_KINDS, ListKind
from toolpost.server.runtime.dispatch import RouteResult, serve_mounted
from toolpost.types.prompts import PromptReference

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from toolpost.server.context import Context
    from toolpost.server.mounting import MountingServer

_KEYS = {TOOLS_LIST: "name", PROMPTS_LIST: "name", RESOURCES_LIST: "uri", RESOURCES_TEMPLATES_LIST: "uri"}
"""List → the parameter that names an entry in a request."""


class LocalMount(Mount):
    """A server in this process as a part of another one."""

    def __init__(self, host: "MountingServer", server: "MountingServer", options: MountOptions) -> None:
        super().__init__(host, options.name or server.info.name, options)
        self.server = server
        self.lives: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        """The value of the server's lifespan, in each loop in which it is open."""
        _check_no_cycle(host, server)
        for kind in LIST_KINDS.values():
            self._compose(kind, strict=True)
        self._unwatch: list[Callable[[], None]] = [
            getattr(server, kind.attribute).watch(partial(self._compose, kind))
            for kind in LIST_KINDS.values()
        ]
        server.broadcaster.relays += (self._relay,)
        self._adopt_extensions()

    @property
    def state(self) -> MountState:
        """The state: "ready" or "removed"."""
        return "removed" if self.is_removed else "ready"

    @property
    def instructions(self) -> str | None:
        """The instructions of the server."""
        return self.server.compose_instructions()

    async def open(self, stack: AsyncExitStack) -> None:
        """Hold the lifespan of the server open."""
        loop = asyncio.get_running_loop()
        if loop not in self.lives:
            value = await stack.enter_async_context(self.server.hold_lifespan())
            self.lives[loop] = value
            stack.callback(self.lives.pop, loop, None)

    def remove(self) -> None:
        """Remove the server and all its entries. Its lifespan ends with that of the outer server."""
        for unwatch in self._unwatch:
            unwatch()
        broadcaster = self.server.broadcaster
        broadcaster.relays = tuple(each for each in broadcaster.relays if each != self._relay)
        super().remove()

    def _compose(self, kind: ListKind, *, strict: bool = False) -> None:
        """Register the entries of a list again."""
        inner: Any = getattr(self.server, kind.attribute)
        offers = [
            Offer(entry.name, entry.to_list_item(LATEST.structured), entry)
            for entry in inner
            if entry.enabled
        ]
        self.publish(kind, offers, partial(LocalEntry, self, kind), strict=strict)
        if self.server.has_tasks:
            self.host.add_task_support()

    def _relay(self, method: str, params: Any) -> None:
        """Pass a change of the mounted server on to the clients of the outer one."""
        if method == RESOURCES_UPDATED:
            self.host.notify_resource_updated(self.uris.to_outside(params.uri))
        elif method == ELICITATION_COMPLETE:
            self.host.broadcaster.broadcast(method, params)

    def _adopt_extensions(self) -> None:
        """Serve the methods of the server's extensions, by the server."""
        known = {each.name for each in self.host.extensions}
        for extension in self.server.extensions:
            if extension.name in known:
                continue
            adopted: Extension = copy(extension)
            adopted.lifespans = []  # the server runs them
            adopted.routes = {name: partial(self._serve_method, fn) for name, fn in extension.routes.items()}
            self.host.add_extension(adopted)

    async def _serve_method(self, serve: Callable[..., Any], context: "Context", params: Any) -> Any:
        lifespan = await self.host.open_mounts((self,))
        result = serve(context.enter_mounted(self.server, lifespan), params)
        return await result if asyncio.iscoroutine(result) else result


def _check_no_cycle(host: "MountingServer", server: "MountingServer") -> None:
    """Raise ValueError if a server would become a part of itself."""
    # A selection of a server has the same broadcaster.
    if server.broadcaster is host.broadcaster:
        raise ValueError(f"cannot mount {server.info.name}: it would be a part of itself")
    for mount in server.mounts:
        if isinstance(mount, LocalMount):
            _check_no_cycle(host, mount.server)


class LocalEntry(MountedEntry):
    """An entry of a server in this process."""

    def __init__(self, mount: LocalMount, kind: ListKind, offer: Offer, appearance: Appearance) -> None:
        super().__init__(mount, offer, appearance)
        self.target: Any = offer.entry
        self.fn = self.target.fn
        self.task = self.target.task
        self.cache = getattr(self.target, "cache", None)
        self.kind = kind
        self.levels = (mount,)  # from the outermost to that of the server which serves the entry
        self._key = _KEYS[next(method for method, each in LIST_KINDS.items() if each is kind)]
        while isinstance(self.target, LocalEntry) and self._can_skip(self.target):
            self.levels += self.target.levels
            self.target = self.target.target
        self._mount = self.levels[-1]

    def _can_skip(self, entry: "LocalEntry") -> bool:
        """Return whether a mount between this one and the server has nothing to do for a call."""
        server, around = self.levels[-1].server, self.levels[-1].options.around
        is_plain = not (server.middleware or server.observers or around)
        return is_plain and not entry.changes_results and entry.plan is None

    @property
    def has_completers(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from the target
        """Whether any argument can be completed."""
        return getattr(self.target, "has_completers", False)

    @property
    def result_converter(self) -> Any:
        """What converts the results of a tool."""
        return self.target.result_converter

    def to_list_item(self, structured: str | None) -> Any:
        """Return the list item, for peers that take structured output of this kind."""
        if self._item is not None:
            return self._item
        item = self.target.to_list_item(structured)
        if self.target.name == self.name:
            return item
        member = "uri_template" if self.kind.attribute == "templates" else self._key
        return replace(item, **{member: self.name})

    def serve(self, context: "Context", params: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - a method here
        """Serve a request with the entry of the mounted server."""
        loop = asyncio.get_running_loop()
        for mount in self.levels:
            if loop not in mount.lives:
                return self._serve_after_opening(context, params)
        return self._serve(context, params, self._mount.lives[loop])

    async def _serve_after_opening(self, context: "Context", params: Any) -> Any:
        """Serve a request of a server that was mounted while the outer one was serving."""
        lifespan = await self.levels[0].host.open_mounts(self.levels)
        return await self._serve(context, params, lifespan)

    def _serve(self, context: "Context", params: Any, lifespan: Any) -> Any:
        mount = self._mount
        inner = context.enter_mounted(mount.server, lifespan)
        result = serve_mounted(
            mount.server,
            mount.options.around,
            inner,
            self._translate(params),
            self.target.serve,
        )
        return self._finish(context, result) if self.changes_results else result

    def _translate(self, params: Any) -> Any:
        """Return the parameters as the mounted server knows them."""
        inside = self.target.name
        if self._key == "uri" and (self.kind.attribute == "templates" or params.uri != inside):
            inside = params.uri
            for mount in self.levels:
                inside = mount.uris.to_inside(inside)
        if getattr(params, self._key) == inside and self.plan is None:
            return params
        changed = copy(params)
        setattr(changed, self._key, inside)
        if self.plan is not None:
            changed.arguments = self.plan.translate(params.arguments)
        return changed

    async def _finish(self, context: "Context", result: "RouteResult | Awaitable[RouteResult]") -> Any:
        return self.translate_result(context, await result if asyncio.iscoroutine(result) else result)

    async def serve_completion(self, context: "Context", params: Any) -> Any:
        """Complete an argument."""
        lifespan = await self.levels[0].host.open_mounts(self.levels)
        named = replace(
            params.ref, **{"name" if isinstance(params.ref, PromptReference) else "uri": self.target.name}
        )
        inner = context.enter_mounted(self._mount.server, lifespan)
        return await self.target.serve_completion(inner, replace(params, ref=named))

    async def set_subscription(self, uri: str, context: "Context", *, is_active: bool) -> None:
        """Watch a resource for a client, or stop that."""
        lifespan = await self.levels[0].host.open_mounts(self.levels)
        for mount in self.levels:
            uri = mount.uris.to_inside(uri)
        server = self._mount.server
        inner = context.enter_mounted(server, lifespan)
        await (server.subscribe if is_active else server.unsubscribe)(uri, inner)
