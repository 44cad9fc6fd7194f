"""A remote server to which each caller has a connection of their own, with their own credentials.

Nothing connects before the first caller does. Lists have the items of all callers; a server that needs a
login of each user has a tool for it besides.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from toolpost.client import mcp_json
from toolpost.client.client import Client
from toolpost.errors import AuthError, ConnectFailed, InternalError, RPCError
from toolpost.gateway.conversations import IDLE_TIMEOUT
from toolpost.gateway.credentials import CallerCredentials, UserLogins
from toolpost.gateway.mount import Mount, MountOptions, MountState, Offer
from toolpost.gateway.names import make_name
from toolpost.gateway.remote import RemoteMount
from toolpost.gateway.upstream import LIST_WAIT, Upstream, UpstreamOptions
from toolpost.server.registry.proxy import ProxyEntry
from toolpost.transports.credentials import Authorizer
from toolpost.transports.targets import Http
from toolpost.types.base import JSON
from toolpost.types.content import TextContent
from toolpost.types.tools import CallToolResult, Tool

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.mounting import MountingServer

MAX_CALLERS: Final = 1000
"""Callers with a connection to one server; the one that was idle longest loses it first."""

SIGN_IN: Final = "sign_in"
"""The name of the tool with which a user logs in."""


_BEST_STATES: Final[tuple[MountState, ...]] = ("ready", "connecting", "backoff")


class CallerUpstream(Upstream):
    """The connection of one caller."""

    def __init__(self, mount: "CallerMount", authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self.lists: dict[str, list[Offer]] = {}
        super().__init__(mount)

    def make_client(self, callbacks: Mapping[str, Any]) -> Client:
        """Return a client with the credentials of the caller."""
        return self.mount.make_client(callbacks, auth=self._authorizer)

    def publish_list(self, method: str, offers: list[Offer]) -> None:
        """Show the items of this caller, besides those of the others."""
        self.lists[method] = offers
        cast("CallerMount", self.mount).publish_all(method)

    def lose(self, error: Exception, pause: float) -> None:
        """Record that the server cannot be reached; credentials that are refused are not tried again."""
        super().lose(error, pause)
        if isinstance(error, AuthError):
            self.stop()


class CallerMount(RemoteMount):
    """A remote server as a part of another one, with credentials of each caller."""

    def __init__(
        self, host: "MountingServer", target: Any, options: MountOptions, upstream: UpstreamOptions
    ) -> None:
        self.url = _find_url(target)
        self.credentials: CallerCredentials = upstream.auth
        self._callers: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[str, CallerUpstream]] = (
            WeakKeyDictionary()
        )
        idle = IDLE_TIMEOUT if upstream.idle is None else upstream.idle
        super().__init__(host, target, options, replace(upstream, start="eager", auth=None, idle=idle))
        if isinstance(self.credentials, UserLogins):
            self._offer_login()

    @property
    def state(self) -> MountState:
        """The state: "ready" if any caller is connected."""
        if self.is_removed:
            return "removed"
        states = {each.state for callers in self._callers.values() for each in callers.values()}
        for state in _BEST_STATES:
            if state in states:
                return state
        return "idle"

    @property
    def error(self) -> Exception | None:
        """Why no caller is connected; None if one is."""
        if self.state == "ready":
            return None
        every = (each.error for callers in self._callers.values() for each in callers.values())
        return next((error for error in every if error), None)

    async def open(self, stack: AsyncExitStack) -> None:
        """Connect when there is a caller, until the stack ends."""
        loop = asyncio.get_running_loop()
        if loop not in self._callers and not self.is_removed:
            self._callers[loop] = OrderedDict()
            stack.push_async_callback(self._close_callers, loop)

    async def _close_callers(self, loop: asyncio.AbstractEventLoop) -> None:
        callers = self._callers.pop(loop, None)
        for upstream in callers.values() if callers else ():
            await upstream.close()

    def remove(self) -> None:
        """Remove the server and all its entries, and close its connections."""
        super().remove()
        self.host.tools.replace((self, SIGN_IN), ())
        for loop in list(self._callers):
            if not loop.is_closed():
                asyncio.run_coroutine_threadsafe(self._close_callers(loop), loop)

    def end_session(self, identity: object) -> None:
        """Close the connections of a session that has ended."""
        callers = self._callers.get(asyncio.get_running_loop())
        for upstream in callers.values() if callers else ():
            upstream.conversations.end_session(identity)

    # ----------------------------------------------------------------- callers

    async def find_upstream(self, context: "Context") -> Upstream:
        """Return the connection of a caller. Raises RPCError if they have no credentials."""
        key, authorizer = await self.credentials.authorize(context, self.url)
        callers = self._callers.get(asyncio.get_running_loop())
        if callers is None:
            raise InternalError(f"{self.label} was removed", {"server": self.label, "sent": False})
        upstream = callers.get(key)
        if upstream is None:
            while len(callers) >= MAX_CALLERS:
                _, oldest = callers.popitem(last=False)
                await oldest.close()
            upstream = callers[key] = CallerUpstream(self, authorizer)
            upstream.start()
        callers.move_to_end(key)
        upstream.want()
        return upstream

    async def wait_listed(self, context: "Context | None" = None) -> None:
        """Wait a moment for the lists of a caller, unless they would have to log in first."""
        if context is not None and not self.credentials.asks_user:
            with suppress(RPCError):
                await self._wait_for_lists(await self.find_upstream(context))

    async def _wait_for_lists(self, upstream: Upstream) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LIST_WAIT):
                await upstream.listed.wait()

    def publish_all(self, method: str) -> None:
        """Show the items of all callers, each once."""
        offers: dict[str, Offer] = {}
        for callers in self._callers.values():
            for upstream in callers.values():
                for offer in upstream.lists.get(method, ()):
                    offers.setdefault(offer.name, offer)
        self.publish_list(method, list(offers.values()))

    def _offer_login(self) -> None:
        """Offer a tool with which a user logs in, since nothing else is listed before that."""
        name = make_name(self.options.name or self.label, SIGN_IN, self.options.max_name)
        text = f"Sign in to {self.label}. Call it when the tools of {self.label} are missing or fail."
        tool = Tool(name, {"type": "object", "properties": {}}, description=text)
        self.host.tools.replace((self, SIGN_IN), [_SignIn(self, name, tool)])

    async def sign_in(self, context: "Context", _params: JSON) -> CallToolResult:
        """Let the user log in, and wait for the lists."""
        await self._wait_for_lists(await self.find_upstream(context))
        return CallToolResult(content=[TextContent(f"You are signed in to {self.label}.")])


class _SignIn(ProxyEntry):
    """The tool with which a user logs in."""

    def __init__(self, mount: CallerMount, name: str, tool: Tool) -> None:
        super().__init__(name, tool, mount.sign_in)
        self.mount: Mount = mount


def _find_url(target: Any) -> str:
    """Return the URL of a target. Raises ConnectFailed if it has none."""
    if isinstance(target, Mapping):
        target = mcp_json.expand_variables(cast("Mapping[str, JSON]", target)).get("url")
    if not isinstance(target, str | Http):
        raise ConnectFailed("credentials of callers require a URL")
    return Http.from_target(target).url
