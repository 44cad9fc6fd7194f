"""Notifications: subscriptions of stateless clients, functions that receive them, the way through middleware.

`subscriptions/listen` is a long request that carries changes to a stateless client. `conversation` sends the
notifications of a session, and `change_broadcast` reports the changes.
"""

import contextlib
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from toolpost import types
from toolpost.errors import InvalidParams, MCPError, RPCError
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.extension import ListenFilter
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import CANCELLED, INITIALIZED, PROGRESS, SUBSCRIPTIONS_ACKNOWLEDGED
from toolpost.server.context import MAX_SUBSCRIBED_URI_CHARS, MAX_SUBSCRIBED_URIS, Context
from toolpost.server.context_request import ClientConnection
from toolpost.server.runtime.change_broadcast import LIST_CHANGED, PendingChanges
from toolpost.server.runtime.dispatch import Call, run_middleware
from toolpost.server.runtime.worker_threads import WorkerThreads
from toolpost.server.signature.inspection import unwrap_layers
from toolpost.types.base import JSON, Raw, Struct

if TYPE_CHECKING:
    from toolpost.server.handler import Handler


class _ListenWithFilter(Struct):
    notifications: dict[str, Raw]


_FILTER_READER: Final = JSONReader(_ListenWithFilter)
_MEMBERS_READER: Final = JSONReader(dict[str, JSON])


class ServerSubscriptions:
    """The open subscriptions of a server's stateless clients."""

    def __init__(self) -> None:
        self._active: set[_ServerSubscription] = set()

    async def serve(self, ctx: Context, requested: types.SubscriptionFilter) -> types.ListenResult:
        """Serve `subscriptions/listen`: send changes until either side ends it."""
        server = ctx.server
        _check_filter_size(requested.resource_subscriptions or ())
        accepted = _limit_to_capabilities(ctx, requested)
        uris: list[str] = []
        subscription: _ServerSubscription | None = None
        try:
            for uri in dict.fromkeys(accepted.resource_subscriptions or ()):
                with contextlib.suppress(RPCError):  # others are not acknowledged (SUB-5)
                    await server.subscribe(uri, ctx)
                    uris.append(uri)
            accepted.resource_subscriptions = uris or None
            subscription = _ServerSubscription(ctx, accepted, await _accept_extension_filters(ctx))
            server.broadcaster.add_subscriber(subscription)
            self._active.add(subscription)
            return await subscription.run()
        finally:
            if subscription is not None:
                self._active.discard(subscription)
                server.broadcaster.remove_subscriber(subscription)
            for uri in uris:
                with contextlib.suppress(MCPError):  # the server to which it is forwarded may have gone
                    await server.unsubscribe(uri, ctx)

    def end(self, endpoint: object = None) -> None:
        """End all subscriptions, or those of one endpoint, each with its result."""
        for subscription in self._active:
            if endpoint in (None, subscription.endpoint):
                subscription.end()


def _check_filter_size(uris: Sequence[str]) -> None:
    if len(uris) > MAX_SUBSCRIBED_URIS:
        raise InvalidParams(f"Invalid params: resourceSubscriptions has more than {MAX_SUBSCRIBED_URIS} URIs")
    if sum(map(len, uris)) > MAX_SUBSCRIBED_URI_CHARS:
        raise InvalidParams(
            f"Invalid params: resourceSubscriptions has more than {MAX_SUBSCRIBED_URI_CHARS} characters"
        )


def _limit_to_capabilities(ctx: Context, requested: types.SubscriptionFilter) -> types.SubscriptionFilter:
    """Return the part of a filter that the server can serve."""
    is_offered, limited = ctx.server.local_peer.has_capability, types.SubscriptionFilter()
    for name in LIST_CHANGED:
        if getattr(requested, f"{name}_list_changed") and is_offered(f"{name}.list_changed"):
            setattr(limited, f"{name}_list_changed", True)
    if is_offered("resources.subscribe"):
        limited.resource_subscriptions = requested.resource_subscriptions
    return limited


async def _accept_extension_filters(ctx: Context) -> "list[tuple[ListenFilter, Any]]":
    """Return the filters of extensions that the client has set, with the accepted values."""
    accepted: list[tuple[ListenFilter, Any]] = []
    for extension in ctx.server.extensions:
        given = _FILTER_READER(ctx.incoming.raw).notifications if ctx.incoming is not None else {}
        for each in extension.listen_filters:
            if each.member in given:
                extension.require(ctx.client.capabilities)
                try:
                    requested = each.read(given[each.member])
                except InvalidJSONValue as error:
                    raise InvalidParams(f"Invalid params: {each.member}: {error}") from error
                value = await each.accept(ctx, requested)
                accepted += [] if value is None else [(each, value)]
    return accepted


def _is_match(listen_filter: ListenFilter, value: Any, params: types.NotificationParams) -> bool:
    try:
        return listen_filter.matches(value, params)
    except Exception:  # other filters and other subscribers go on
        logger.exception("%s was not sent: its filter failed", listen_filter.notification)
        return False


class _ServerSubscription:
    """A subscription of a stateless client."""

    def __init__(
        self,
        context: Context,
        accepted: types.SubscriptionFilter,
        extensions: "list[tuple[ListenFilter, Any]]",
    ) -> None:
        self._context = context
        self._filter = accepted
        self._extension_filters = extensions
        self._subscribed_uris = frozenset(accepted.resource_subscriptions or ())
        self._lists = {
            method for name, method in LIST_CHANGED.items() if getattr(accepted, f"{name}_list_changed")
        }
        self._pending_changes = PendingChanges()
        self.end, self.endpoint = self._pending_changes.end, context.client_connection.endpoint

    def on_change(self, method: str, params: types.NotificationParams) -> None:
        """Queue a change that the filter asks for (SUB-1)."""
        if isinstance(params, types.ResourceUpdatedParams):
            wanted = params.uri in self._subscribed_uris
        else:
            wanted = method in self._lists or any(
                each.notification == method and _is_match(each, value, params)
                for each, value in self._extension_filters
            )
        if wanted:
            self._pending_changes.add(method, params)

    async def run(self) -> types.ListenResult:
        """Acknowledge, then send changes until the end."""
        accepted = dict(_MEMBERS_READER(jsonrpc.encode(self._filter)))
        accepted |= {each.member: value for each, value in self._extension_filters}
        await self._context.send_notification(SUBSCRIPTIONS_ACKNOWLEDGED, {"notifications": accepted})
        while (change := await self._pending_changes.take()) is not None:
            method, params = change
            for fill in {each.fill for each, _ in self._extension_filters if each.notification == method}:
                params = params if fill is None else await fill(self._context, params)
            if params is not None:
                await self._context.send_notification(method, params)
        return types.ListenResult()


RESERVED_NOTIFICATIONS: Final = frozenset({CANCELLED, PROGRESS})
"""Handled by the protocol itself: a function sees the effect in `ctx.cancelled`, or in the result."""


class NotificationReceiver:
    """A function that receives notifications: `fn(context)` or `fn(context, params)`, async or not.

    Raises TypeError if the function takes neither one argument nor two.
    """

    def __init__(self, fn: Callable[..., Any], threads: WorkerThreads) -> None:
        self._fn = fn
        self._threads = threads
        self._is_async = any(map(inspect.iscoroutinefunction, unwrap_layers(fn)))
        signature = inspect.signature(fn)
        for self._argument_count in (2, 1):
            with contextlib.suppress(TypeError):
                signature.bind(*(None,) * self._argument_count)
                return
        raise TypeError(
            f"`{getattr(fn, '__name__', fn)}{signature}` cannot handle a notification: "
            "it must take a context and, optionally, the parameters"
        )

    async def __call__(self, context: Context, params: Any) -> None:
        """Call the function."""
        count = self._argument_count
        await self._threads.call(lambda given: self._fn(*(given, params)[:count]), context, self._is_async)


logger: Final = logging.getLogger("toolpost.server")


def is_notification_handled(handler: "Handler", event: NotificationReceived) -> bool:
    """Return whether the handler or middleware wants a notification of a client."""
    return handler.is_overridden("handle_notification") or (
        bool(handler.middleware) and event.method != INITIALIZED  # for handlers only
    )


async def dispatch_notification(
    handler: "Handler",
    client_connection: ClientConnection,
    lifespan: Any,
    event: NotificationReceived,
    principal: Principal | None = None,
) -> None:
    """Pass a notification of a client through middleware to the handler; `principal` sent it."""
    method = event.method
    try:
        params = _MEMBERS_READER(event.raw) if event.row is None else event.params
    except InvalidJSONValue as error:
        logger.debug("dropped %s: invalid parameters: %s", method, error)
        return
    context = Context(handler, client_connection, method, lifespan=lifespan, principal=principal)
    if not handler.middleware or method == INITIALIZED:
        await handler.handle_notification(method, params, context)
        return
    call = Call(method, params, context, is_notification=True)
    await run_middleware(
        handler.middleware, call, lambda context, params: handler.handle_notification(method, params, context)
    )
