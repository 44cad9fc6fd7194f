"""Notifications: subscriptions of stateless clients, functions that receive them, the way through middleware.

`subscriptions/listen` is a long request that carries changes to a stateless client. What a session is sent
is `conversation`'s business, and where changes come from is `change_broadcast`'s.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from toolpost.errors import InvalidParams, RPCError
from toolpost.principal import Principal
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import CANCELLED, INITIALIZED, PROGRESS, SUBSCRIPTIONS_ACKNOWLEDGED
from toolpost.server.context import MAX_SUBSCRIBED_URI_CHARS, MAX_SUBSCRIBED_URIS, Context
from toolpost.server.request import ClientConnection
from toolpost.server.runtime.change_broadcast import PendingChanges, is_requested
from toolpost.server.runtime.request import Call, run_middleware
from toolpost.server.runtime.worker_threads import WorkerThreads
from toolpost.server.signature.inspection import unwrap_layers
from toolpost.server.sync_context import SyncContext
from toolpost.types.base import JSON
from toolpost.types.notifications import (
    AcknowledgedParams,
    ListenResult,
    NotificationParams,
    ResourceUpdatedParams,
    SubscriptionFilter,
)

if TYPE_CHECKING:
    from toolpost.server.handler import Handler


class ServerSubscriptions:
    """The open subscriptions of a server's stateless clients."""

    def __init__(self) -> None:
        self._active: set[_ServerSubscription] = set()

    async def serve(self, ctx: Context, wishes: SubscriptionFilter) -> ListenResult:
        """Serve `subscriptions/listen`: send changes until either side ends it."""
        server = ctx.server
        _check_filter_size(wishes.resource_subscriptions or ())
        wishes = _limit_to_capabilities(ctx, wishes)
        watched: list[str] = []
        listen: _ServerSubscription | None = None
        try:
            for uri in dict.fromkeys(wishes.resource_subscriptions or ()):
                watched += [uri] if await _can_subscribe(ctx, uri) else []
            wishes.resource_subscriptions = watched or None
            listen = _ServerSubscription(ctx, wishes)
            server.broadcaster.add_subscriber(listen)
            self._active.add(listen)
            return await listen.run()
        finally:
            if listen is not None:
                self._active.discard(listen)
                server.broadcaster.remove_subscriber(listen)
            for uri in watched:
                await server.unsubscribe(uri, ctx)

    def end(self) -> None:
        """End all of them from our side, each with its result."""
        for listen in self._active:
            listen.end()


def _check_filter_size(uris: Sequence[str]) -> None:
    if len(uris) > MAX_SUBSCRIBED_URIS:
        raise InvalidParams(f"Invalid params: resourceSubscriptions has more than {MAX_SUBSCRIBED_URIS} URIs")
    if sum(map(len, uris)) > MAX_SUBSCRIBED_URI_CHARS:
        raise InvalidParams(
            f"Invalid params: resourceSubscriptions has more than {MAX_SUBSCRIBED_URI_CHARS} characters"
        )


def _limit_to_capabilities(ctx: Context, wishes: SubscriptionFilter) -> SubscriptionFilter:
    """Return the part of a filter that the server can serve."""
    offered = ctx.server.local_peer.has_capability
    return SubscriptionFilter(
        tools_list_changed=(wishes.tools_list_changed and offered("tools.list_changed")) or None,
        prompts_list_changed=(wishes.prompts_list_changed and offered("prompts.list_changed")) or None,
        resources_list_changed=(wishes.resources_list_changed and offered("resources.list_changed")) or None,
        resource_subscriptions=wishes.resource_subscriptions if offered("resources.subscribe") else None,
    )


async def _can_subscribe(ctx: Context, uri: str) -> bool:
    """Return whether the server accepts a subscription; others are not acknowledged (SUB-5)."""
    try:
        await ctx.server.subscribe(uri, ctx)
    except RPCError:
        return False
    return True


class _ServerSubscription:
    """A subscription of a stateless client."""

    def __init__(self, context: Context, wishes: SubscriptionFilter) -> None:
        self._context = context
        self._filter = wishes
        self._subscribed_uris = frozenset(wishes.resource_subscriptions or ())
        self._pending_changes = PendingChanges()
        self.end = self._pending_changes.end

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Note a change that the filter asks for."""
        if isinstance(params, ResourceUpdatedParams):
            wanted = params.uri in self._subscribed_uris
        else:
            wanted = is_requested(self._filter, method, params)
        if wanted:
            self._pending_changes.add(method, params)

    async def run(self) -> ListenResult:
        """Acknowledge, then send changes until the end."""
        await self._context.send_notification(
            SUBSCRIPTIONS_ACKNOWLEDGED, AcknowledgedParams(notifications=self._filter)
        )
        while (notice := await self._pending_changes.take()) is not None:
            await self._context.send_notification(*notice)
        return ListenResult()


# --------------------------------------------------------------------- functions that receive notifications

RESERVED_NOTIFICATIONS: Final = frozenset({CANCELLED, PROGRESS})
"""Handled by the protocol itself: a function sees the effect in `ctx.cancelled`, or in the result."""


class NotificationReceiver:
    """A function that receives notifications: `fn(context)` or `fn(context, params)`, async or not."""

    def __init__(self, fn: Callable[..., Any], work: WorkerThreads) -> None:
        self._fn = fn
        self._work = work
        self._argument_count = _count_receiver_arguments(fn)
        self._is_async = any(map(inspect.iscoroutinefunction, unwrap_layers(fn)))

    async def __call__(self, context: Context, params: Any) -> None:
        """Call the function."""
        if self._is_async:
            await self._fn(*(context, params)[: self._argument_count])
            return
        given = (SyncContext(context, asyncio.get_running_loop()), params)[: self._argument_count]
        await self._work.run_in_thread(lambda: self._fn(*given))


def _count_receiver_arguments(fn: Callable[..., Any]) -> int:
    """Return how many of (context, params) a function takes. Raises TypeError if neither one nor two."""
    signature = inspect.signature(fn)
    for given in ((None, None), (None,)):
        try:
            signature.bind(*given)
        except TypeError:
            continue
        return len(given)
    raise TypeError(
        f"`{getattr(fn, '__name__', fn)}{signature}` cannot hear a notice: "
        "it has to take a context, and may take the parameters after it"
    )


# --------------------------------------------------------------------- through middleware

logger: Final = logging.getLogger("toolpost.server")

_INITIALIZED: Final = INITIALIZED
"""The end of the handshake: for handlers, not for middleware."""

_PARAMS_READER: Final = JSONReader(dict[str, JSON])


def is_notification_handled(handler: "Handler", event: NotificationReceived) -> bool:
    """Return whether the handler or middleware wants a notification of a client."""
    return handler.is_overridden("handle_notification") or (
        bool(handler.middleware) and event.method != _INITIALIZED
    )


async def dispatch_notification(
    handler: "Handler",
    speaker: ClientConnection,
    lifespan: Any,
    event: NotificationReceived,
    principal: Principal | None = None,
) -> None:
    """Pass a notification of a client through middleware to the handler; `principal` sent it."""
    method = event.method
    try:
        params = _PARAMS_READER(event.raw) if event.row is None else event.params
    except InvalidJSONValue as error:
        logger.debug("dropped: %s cannot be read: %s", method, error)
        return
    context = Context(handler, speaker, method, lifespan=lifespan, principal=principal)
    if not handler.middleware or method == _INITIALIZED:
        await handler.handle_notification(method, params, context)
        return
    call = Call(method, params, context, is_notification=True)
    await run_middleware(
        handler.middleware, call, lambda context, params: handler.handle_notification(method, params, context)
    )
