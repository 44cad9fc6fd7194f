"""Remote servers as parts of another one.

Their entries show the items of the server as they came, and forward requests through `upstream`.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from toolpost.client.client import Client
from toolpost.errors import InternalError, MethodNotFound
from toolpost.gateway.mount import Appearance, Mount, MountedEntry, MountOptions, MountState, Offer
from toolpost.gateway.upstream import LIST_WAIT, Upstream, UpstreamOptions
from toolpost.protocol.forward import read_members
from toolpost.protocol.methods import (
    COMPLETION_COMPLETE,
    PROMPTS_LIST,
    RESOURCES_LIST,
    RESOURCES_TEMPLATES_LIST,
    TOOLS_LIST,
)
from toolpost.server.registry.registry import LIST_KINDS
from toolpost.server.runtime.dispatch import Call, run_middleware
from toolpost.types.base import Raw
from toolpost.types.initialize import LogLevel

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.mounting import MountingServer

_KEYS: Final = {
    TOOLS_LIST: "name",
    PROMPTS_LIST: "name",
    RESOURCES_LIST: "uri",
    RESOURCES_TEMPLATES_LIST: "uri",
}
"""List → the parameter that names an entry in a request."""


class RemoteMount(Mount):
    """A remote server as a part of another one."""

    def __init__(
        self, host: "MountingServer", target: Any, options: MountOptions, upstream: UpstreamOptions
    ) -> None:
        self.target = target
        self.upstream_options = upstream
        self.upstreams: WeakKeyDictionary[asyncio.AbstractEventLoop, Upstream] = WeakKeyDictionary()
        self.capabilities: Any = None  # of the server, once it is known
        self.is_pending = True
        self._instructions: str | None = None
        probe = self.make_client({})
        super().__init__(host, options.name or _make_label(repr(probe)), options)

    def make_client(self, callbacks: Mapping[str, Any], auth: Any = None) -> Client:
        """Return a client of the server. Raises TypeError or ValueError for a wrong target."""
        options = self.upstream_options
        return Client(
            self.target,
            headers=options.headers,
            http=options.http,
            auth=options.auth if auth is None else auth,
            timeout=options.timeout,
            max_timeout=None,
            cache=False,
            **callbacks,
        )

    @property
    def is_process(self) -> bool:
        """Whether the server is a child process, and not a URL or an object in this process."""
        target = self.target
        if isinstance(target, Mapping):
            return "url" not in target
        if isinstance(target, str):
            return "://" not in target
        return isinstance(target, list | tuple) or hasattr(target, "command")

    @property
    def state(self) -> MountState:
        """The state of the connection."""
        if self.is_removed:
            return "removed"
        for upstream in self.upstreams.values():
            return upstream.state
        return "idle"

    @property
    def error(self) -> Exception | None:
        """Why the server cannot be reached; None if it can."""
        return next((upstream.error for upstream in self.upstreams.values() if upstream.error), None)

    @property
    def instructions(self) -> str | None:
        """The instructions of the server, once they are known."""
        return self._instructions

    async def open(self, stack: AsyncExitStack) -> None:
        """Connect in the background, unless that has to wait for the first use."""
        loop = asyncio.get_running_loop()
        if loop not in self.upstreams and not self.is_removed:
            upstream = self.upstreams[loop] = Upstream(self)
            stack.push_async_callback(upstream.close)
            stack.callback(self.upstreams.pop, loop, None)
            upstream.start()

    def remove(self) -> None:
        """Remove the server and all its entries, and close its connections."""
        super().remove()
        for loop, upstream in list(self.upstreams.items()):
            del self.upstreams[loop]
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(upstream.close(), loop)

    async def wait_listed(self, context: "Context | None" = None) -> None:  # noqa: ARG002 - those of callers need it
        """Wait a moment for lists that were never read."""
        if not self.is_pending:
            return
        await self.host.open_mount(self)
        upstream = self.upstreams.get(asyncio.get_running_loop())
        if upstream is not None:
            upstream.want()
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_WAIT):
                    await upstream.listed.wait()

    def end_session(self, identity: object) -> None:
        """Close the connections of a session that has ended."""
        upstream = self.upstreams.get(asyncio.get_running_loop())
        if upstream is not None:
            upstream.conversations.end_session(identity)

    def find_unlisted(self, uri: str) -> Any:
        """Return an entry for a resource that is in no list; None if the server has no resources."""
        if self.capabilities is None or self.capabilities.resources is None:
            return None
        selects = self.options.only is not None or self.options.hide is not None
        return None if selects else RemoteEntry(self, RESOURCES_LIST, Offer(uri, Raw(b"{}")), _PLAIN)

    def learn(self, client: Client) -> None:
        """Record what the server says about itself."""
        self.capabilities, self._instructions = client.capabilities, client.instructions

    def finish_listing(self) -> None:
        """Record that the lists were read, so that the capabilities are known."""
        self.is_pending = False
        self.host.__dict__.pop("local_peer", None)

    def publish_list(self, method: str, offers: list[Offer]) -> None:
        """Replace the entries of a list."""
        self.publish(LIST_KINDS[method], offers, partial(RemoteEntry, self, method))

    async def set_log_level(self, level: LogLevel, context: "Context") -> None:
        """Ask the server for log messages of this level."""
        upstream = self.upstreams.get(asyncio.get_running_loop())
        if upstream is not None:
            await upstream.set_log_level(level, context)

    async def find_upstream(self, context: "Context") -> Upstream:  # noqa: ARG002 - those of callers need it
        """Return the connections in the running loop."""
        upstream = self.upstreams.get(asyncio.get_running_loop())
        if upstream is None:
            raise InternalError(f"{self.label} was removed", {"server": self.label, "sent": False})
        return upstream


_PLAIN: Final = Appearance("", None, None, None)


def _make_label(shown: str) -> str:
    """Return a short name of a target, from the name that its client has for it."""
    name = shown.removeprefix("<Client for ").partition(": not connected")[0]
    name = name.partition("://")[2].partition("/")[0].partition(":")[0] or name
    return name.rpartition("/")[2].split(" ")[0] or "server"


class RemoteEntry(MountedEntry):
    """An entry of a remote server."""

    def __init__(self, mount: RemoteMount, method: str, offer: Offer, appearance: Appearance) -> None:
        super().__init__(mount, offer, appearance)
        self._mount = mount
        self._key = _KEYS[method]
        self._is_template = method == RESOURCES_TEMPLATES_LIST
        self.fn = self.serve

    @property
    def has_completers(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from the server
        """Whether any argument can be completed."""
        capabilities = self._mount.capabilities
        return capabilities is not None and capabilities.completions is not None

    def to_list_item(self, structured: str | None) -> Any:  # noqa: ARG002 - as it came
        """Return the list item."""
        return self.shown

    async def serve(self, context: "Context", params: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - a method here
        """Forward a request for the entry."""
        around = self._mount.options.around
        if around:
            return await run_middleware(around, Call(context.method, params, context), self._forward)
        return await self._forward(context, params)

    async def _forward(self, context: "Context", params: Any) -> Any:
        members: dict[str, Any] = read_members(context.request.params)
        members[self._key] = self._find_inside(params)
        if self.plan is not None:
            members["arguments"] = self.plan.translate(params.arguments)
        elif self._mount.options.around and hasattr(params, "arguments"):
            members["arguments"] = params.arguments  # middleware may have changed them
        members.pop("task", None)
        upstream = await self._mount.find_upstream(context)
        is_retry = getattr(params, "request_state", None) is not None
        result = await upstream.forward(context, context.method, members, retry=is_retry)
        return self.translate_result(context, result) if self.changes_results else result

    def _find_inside(self, params: Any) -> str:
        """Return the name or URI of the entry as its server knows it."""
        return self._mount.uris.to_inside(params.uri) if self._key == "uri" else self.inside

    async def serve_completion(self, context: "Context", params: Any) -> Any:
        """Complete an argument."""
        del params
        if not self.has_completers:
            raise MethodNotFound(f"{self._mount.label} has no completions")
        members: dict[str, Any] = read_members(context.request.params)
        reference: dict[str, Any] = {**read_members(members["ref"]), self._key: self.inside}
        members["ref"] = reference
        upstream = await self._mount.find_upstream(context)
        return await upstream.forward(context, COMPLETION_COMPLETE, members, retry=False)

    async def set_subscription(self, uri: str, context: "Context", *, is_active: bool) -> None:
        """Watch a resource for a client, or stop that."""
        upstream, inside = await self._mount.find_upstream(context), self._mount.uris.to_inside(uri)
        await (upstream.watch(inside) if is_active else upstream.unwatch(inside))
