"""Connects to a remote server, keeps its lists up to date, and forwards requests to it.

A server that cannot be reached costs its own entries only, and these only after a while. `conversations` has
the connections, `bridge` and `parked` pass questions on; `remote` has the entries.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from toolpost.client.client import Client
from toolpost.client.connection.reconnect import Backoff
from toolpost.errors import (
    CapabilityNotDeclared,
    InternalError,
    MCPError,
    MethodNotFound,
    RPCError,
    TransportError,
)
from toolpost.gateway.bridge import (
    NO_CAPABILITIES,
    Relay,
    forward_stateless,
    select_capabilities,
)
from toolpost.gateway.conversations import Conversation, Conversations, Share
from toolpost.gateway.mount import MountState, Offer
from toolpost.gateway.parked import ParkedCalls
from toolpost.protocol.forward import ForwardedResult
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue, JSONReader
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import (
    ELICITATION_COMPLETE,
    PROMPTS_LIST,
    PROMPTS_LIST_CHANGED,
    RESOURCES_LIST,
    RESOURCES_LIST_CHANGED,
    RESOURCES_TEMPLATES_LIST,
    RESOURCES_UPDATED,
    TOOLS_LIST,
    TOOLS_LIST_CHANGED,
)
from toolpost.protocol.uri_template import UriTemplate
from toolpost.server.registry.registry import LIST_KINDS
from toolpost.types.base import JSON, Raw, Struct
from toolpost.types.initialize import LOG_LEVEL, LogLevel

if TYPE_CHECKING:
    from toolpost.gateway.remote import RemoteMount
    from toolpost.server.context import Context

logger: Final = logging.getLogger("toolpost.gateway")

LIST_WAIT: Final = 2.0
"""Seconds that a list waits for servers that are still connecting."""

REFRESH_DELAY: Final = 0.05
"""Seconds in which changes of lists are merged."""

DEFAULT_LOG_LEVEL: Final = "info"
"""For clients of a session that have not set a level: a stateless server sends no log without one."""

MAX_ITEMS: Final = 10_000
"""Items of one list of an upstream server."""

_CHANGED_LISTS: Final = {
    TOOLS_LIST_CHANGED: (TOOLS_LIST,),
    PROMPTS_LIST_CHANGED: (PROMPTS_LIST,),
    RESOURCES_LIST_CHANGED: (RESOURCES_LIST, RESOURCES_TEMPLATES_LIST),
}
_NEEDS: Final = {PROMPTS_LIST: "prompts", RESOURCES_LIST: "resources", RESOURCES_TEMPLATES_LIST: "resources"}
"""List → the capability without which it is not asked for; servers forget to declare their tools."""

_ITEM_KEYS: Final = {
    TOOLS_LIST: "name",
    PROMPTS_LIST: "name",
    RESOURCES_LIST: "uri",
    RESOURCES_TEMPLATES_LIST: "uriTemplate",
}
"""List → the member that names an item."""

_SNAKE_KEYS: Final = {**_ITEM_KEYS, RESOURCES_TEMPLATES_LIST: "uri_template"}
_ITEMS: Final = JSONReader(list[Raw])
_TEXT: Final = JSONReader(str)


class UpstreamOptions(Struct, frozen=True, kw_only=True):
    """The options of `Server.mount` that concern the connection."""

    start: Literal["eager", "lazy"]
    idle: float | None
    grace: float
    share: Share | None
    timeout: float | None
    headers: Any
    http: Any
    auth: Any
    forward: tuple[str, ...]


class Upstream:
    """The connections to a remote server in one event loop, and what is known about it."""

    def __init__(self, mount: "RemoteMount") -> None:
        options = mount.upstream_options
        self.mount = mount
        self.label = mount.label
        self.error: Exception | None = None
        self.state: MountState = "idle"
        self.listed = asyncio.Event()  # set when the lists were read, or could not be
        share = options.share or ("all" if mount.is_process else "session")
        self.conversations = Conversations(self._make_client, share, options.idle)
        self.parked = ParkedCalls(mount.label)
        common = self.conversations.common
        common.on_idle = self.stop
        self._ready = asyncio.Event()
        self._wanted = asyncio.Event()
        self._watched: Counter[str] = Counter()
        self._stale: set[str] = set()
        self._refresh_task: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._grace_timer: asyncio.TimerHandle | None = None

    def _make_client(self, callbacks: Mapping[str, Any]) -> Client:
        is_first = not hasattr(self, "conversations")  # the common one also hears of changes
        return self.make_client(
            {**callbacks, "on_notification": self._on_notification} if is_first else callbacks
        )

    def make_client(self, callbacks: Mapping[str, Any]) -> Client:
        """Return a client of the server."""
        return self.mount.make_client(callbacks)

    @property
    def client(self) -> Client:
        """The client of the common connection."""
        return self.conversations.common.client

    # ----------------------------------------------------------------- connecting

    def start(self) -> None:
        """Connect in the background, now or on first use."""
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())
        if self.mount.upstream_options.start == "eager":
            self.want()

    def want(self) -> None:
        """Connect, if that has not begun."""
        self._wanted.set()

    async def close(self) -> None:
        """Close all connections. Closing twice is fine."""
        if self._close_task is None:
            self._close_task = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        tasks = [task for task in (self._supervisor, self._refresh_task) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.parked.close()
        await self.conversations.close()

    async def _supervise(self) -> None:
        """Keep the common connection open while it is wanted."""
        backoff, loop = Backoff(), asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            self.state, events = "connecting", self.client.events()
            try:
                await self.client.connect()
                await self._read_everything()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever is wrong concerns this server only
                pause = backoff.next_delay(loop.time())
                self.lose(error, pause)
                await asyncio.sleep(pause)
                continue
            backoff.mark_working(loop.time())
            self.state, self.error = "ready", None
            if self._grace_timer is not None:
                self._grace_timer.cancel()
                self._grace_timer = None
            self._ready.set()
            cause: Exception | None = None
            async for event in events:
                if event.state in {"backoff", "closed"}:
                    cause = event.cause
                    break
            self._ready.clear()
            if self._wanted.is_set():
                self.lose(cause or MCPError("the connection was lost"), 0.0)
            else:
                self.state = "idle"

    def lose(self, error: Exception, pause: float) -> None:
        """Record that the server cannot be reached; its entries stay for a while."""
        self.error, self.state = error, "backoff"
        self.listed.set()
        level = logging.WARNING if pause <= 1 else logging.INFO
        logger.log(level, "%s cannot be reached: %.1000s", self.label, error)
        if self._grace_timer is None:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(self.mount.upstream_options.grace, self._forget_entries)

    def _forget_entries(self) -> None:
        for method in LIST_KINDS:
            self.publish_list(method, [])

    def stop(self) -> None:
        """Close the connection, which nothing has used for a while."""
        if not len(self.parked):
            self._wanted.clear()
            self._ready.clear()
            self._stop_task = asyncio.get_running_loop().create_task(self.client.close())

    async def _wait_ready(self) -> None:
        """Wait until the server can be reached. Raises InternalError if it cannot."""
        self.want()
        limits = [self.mount.upstream_options.grace, self.mount.upstream_options.timeout]
        try:
            async with asyncio.timeout(min(limit for limit in limits if limit is not None)):
                await self._ready.wait()
        except TimeoutError:
            raise self.explain(self.error or MCPError("it did not start in time"), sent=False) from None

    def explain(self, error: Exception, *, sent: bool) -> InternalError:
        """Return the error for a client whose call could not be served."""
        data = {"server": self.label, "sent": sent, "retry_after": 1}
        return InternalError(f"{self.label} cannot be reached: {error}", data)

    # ----------------------------------------------------------------- lists

    async def _read_everything(self) -> None:
        self.mount.learn(self.client)
        try:
            await self._read_lists(LIST_KINDS)
            self.mount.finish_listing()
        finally:
            self.listed.set()
        for uri in self._watched:  # a change may have been missed
            self.mount.host.notify_resource_updated(self.mount.uris.to_outside(uri))

    async def _read_lists(self, methods: "Mapping[str, Any] | set[str]") -> None:
        found: dict[str, list[Offer]] = {}
        for method in LIST_KINDS:
            if method in methods:
                found[method] = await self._read_list(method)
        for method, offers in found.items():
            self.publish_list(method, offers)

    def publish_list(self, method: str, offers: list[Offer]) -> None:
        """Replace the entries of a list."""
        self.mount.publish_list(method, offers)

    async def _read_list(self, method: str) -> list[Offer]:
        """Return the items of a list, as they came."""
        client, needs = self.client, _NEEDS.get(method)
        if needs is not None and not has_capability(client.capabilities, needs):
            return []
        pages: dict[str, Callable[[], Any]] = {
            TOOLS_LIST: client.list_tools_pages,
            PROMPTS_LIST: client.list_prompts_pages,
            RESOURCES_LIST: client.list_resources_pages,
            RESOURCES_TEMPLATES_LIST: client.list_resource_templates_pages,
        }
        kind, offers = LIST_KINDS[method], cast("list[Offer]", [])
        member = "resourceTemplates" if kind.attribute == "templates" else kind.attribute
        async for page in pages[method]():
            readable = {getattr(item, _SNAKE_KEYS[method]) for item in getattr(page, kind.field)}
            for item in _ITEMS(MEMBERS_READER(Raw(page.raw or b"{}")).get(member, Raw(b"[]"))):
                name = _read_key(item, _ITEM_KEYS[method])
                if name not in readable:
                    self.mount.report(f"{kind.label}: {name or 'an item'!r} cannot be read, and is left out")
                elif len(offers) < MAX_ITEMS and (kind.attribute != "templates" or _is_template(name)):
                    offers.append(Offer(name, item))
        return offers

    async def _on_notification(self, method: str, params: Any) -> None:
        if method in _CHANGED_LISTS:
            self._stale.update(_CHANGED_LISTS[method])
            if self._refresh_task is None or self._refresh_task.done():
                self._refresh_task = asyncio.get_running_loop().create_task(self._refresh())
        elif method == RESOURCES_UPDATED:
            self.mount.host.notify_resource_updated(self.mount.uris.to_outside(params.uri))
        elif method == ELICITATION_COMPLETE:
            self.mount.host.broadcaster.broadcast(method, params)

    async def _refresh(self) -> None:
        """Read the lists that have changed, then tell clients, so that none of them reads an old list."""
        while self._stale:
            await asyncio.sleep(REFRESH_DELAY)
            methods, self._stale = self._stale, set()
            try:
                await self._read_lists(methods)
            except (MCPError, ValueError) as error:
                self.mount.report(f"a list could not be read again: {error}")

    # ----------------------------------------------------------------- subscriptions and logs

    async def watch(self, uri: str) -> None:
        """Watch a resource for one more client."""
        await self._ensure_ready()
        self._watched[uri] += 1
        if self._watched[uri] > 1:
            return
        self.conversations.common.holds += 1
        try:
            await self.client.subscribe(uri)
        except (MCPError, asyncio.CancelledError) as error:
            self._drop_watch(uri)
            if isinstance(error, CapabilityNotDeclared):
                raise MethodNotFound(f"{self.label} has no subscriptions") from error
            if isinstance(error, RPCError):
                error.is_forwarded = True
            raise

    async def unwatch(self, uri: str) -> None:
        """Watch a resource for one client less."""
        if self._watched[uri] > 1:
            self._watched[uri] -= 1
        elif self._watched[uri]:
            self._drop_watch(uri)
            if self._ready.is_set():
                await self.client.unsubscribe(uri)

    def _drop_watch(self, uri: str) -> None:
        del self._watched[uri]
        self.conversations.common.holds -= 1
        self.conversations.common.release()

    # ----------------------------------------------------------------- requests

    async def _ensure_ready(self) -> None:
        if not self._ready.is_set():
            await self._wait_ready()

    async def forward(self, context: "Context", method: str, members: dict[str, JSON], *, retry: bool) -> Any:
        """Forward a request of a client; return the result, which may be a question."""
        if not self._ready.is_set():
            await self._wait_ready()
        conversation = self.conversations.common
        stateless = self.client.era == "stateless"
        if not stateless:
            conversation = self.conversations.find(context)
        await conversation.enter(self.label)
        try:
            if stateless:
                return await self._forward_stateless(context, conversation, method, members)
            return await self._forward_in_session(context, conversation, method, members, retry=retry)
        except RPCError:
            raise
        except TransportError as error:
            raise self.explain(error, sent=bool(getattr(error, "sent", True))) from error
        except MCPError as error:
            raise self.explain(error, sent=False) from error
        finally:
            conversation.leave()

    async def _forward_stateless(
        self, context: "Context", conversation: Conversation, method: str, members: dict[str, JSON]
    ) -> Any:
        relay = Relay(context)
        capabilities = select_capabilities(context)
        incoming = context.incoming
        assert incoming is not None, "only requests are forwarded"
        level = incoming.peer.log_level
        if not incoming.peer.revision.stateless:  # a stateless client sends it with each request
            level = context.connection.log_level or DEFAULT_LOG_LEVEL
            members["_meta"] = {**_read_meta(members), LOG_LEVEL: level}
        report = None if incoming.token is None else relay.report
        log = None if level is None else relay.log

        async def forward(members: Mapping[str, JSON]) -> ForwardedResult:
            client = conversation.client
            return await client.forward(method, members, progress=report, log=log, capabilities=capabilities)

        return await forward_stateless(context, members, forward)

    async def _forward_in_session(
        self,
        context: "Context",
        conversation: Conversation,
        method: str,
        members: dict[str, JSON],
        *,
        retry: bool,
    ) -> Any:
        client = conversation.client
        if not client.connected:
            await client.connect()
        for name in ("requestState", "inputResponses"):
            members.pop(name, None)

        async def forward(relay: Relay) -> ForwardedResult:
            conversation.relays.add(relay)
            try:
                return await client.forward(method, members, progress=relay.report, log=relay.log)
            finally:
                conversation.relays.discard(relay)

        incoming = context.incoming
        can_park = (
            incoming is not None and incoming.peer.revision.stateless and incoming.row.can_require_input
        )
        if can_park and select_capabilities(context) is not NO_CAPABILITIES:
            return await self.parked.serve(context, retry, forward)
        relay = Relay(context)
        with relay.accompany():
            return await forward(relay)

    async def set_log_level(self, level: LogLevel, context: "Context") -> None:
        """Ask the server for log messages of this level."""
        if self.state == "ready" and self.client.era == "session":
            conversation = self.conversations.find(context)
            with suppress(MCPError):
                if conversation.client.connected:
                    await conversation.client.set_log_level(level)


_META_READER: Final = JSONReader(cast("type[dict[str, JSON] | None]", dict[str, JSON] | None))


def _read_meta(members: Mapping[str, Any]) -> dict[str, JSON]:
    return (_META_READER(members["_meta"]) or {}) if "_meta" in members else {}


def _read_key(item: Raw, key: str) -> str:
    """Return the name of a list item; empty if there is none."""
    try:
        return _TEXT(MEMBERS_READER(item)[key])
    except (InvalidJSONValue, KeyError):
        return ""


def _is_template(text: str) -> bool:
    try:
        UriTemplate(text)
    except ValueError:
        return False
    return True
