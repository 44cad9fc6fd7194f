"""`subscriptions/listen`: what a stateless client wants to hear, and the long request that carries it.

Owns the subscriptions that are open. Who has something to tell is not known here: the announcer of the server
that serves the request.
"""

from collections.abc import Sequence

from toolpost.errors import InvalidParams, RPCError
from toolpost.server.context import MAX_SUBSCRIBED_URI_CHARS, MAX_SUBSCRIBED_URIS, Context
from toolpost.server.notify import PendingChanges, is_requested
from toolpost.types.notices import (
    AcknowledgedParams,
    ListenResult,
    NotificationParams,
    ResourceUpdatedParams,
    SubscriptionFilter,
)

__all__ = ["ServerSubscriptions"]


class ServerSubscriptions:
    """The open subscriptions of a server's stateless clients."""

    def __init__(self) -> None:
        self._active: set[_ServerSubscription] = set()

    async def serve(self, ctx: Context, wishes: SubscriptionFilter) -> ListenResult:
        """Tell a client what it wants to hear, until either side ends it.

        Raises:
            InvalidParams: it names more resources than it may.
        """
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
    """The part of a filter that the server can serve."""
    offered = ctx.server.local_peer.has_capability
    return SubscriptionFilter(
        tools_list_changed=(wishes.tools_list_changed and offered("tools.list_changed")) or None,
        prompts_list_changed=(wishes.prompts_list_changed and offered("prompts.list_changed")) or None,
        resources_list_changed=(wishes.resources_list_changed and offered("resources.list_changed")) or None,
        resource_subscriptions=wishes.resource_subscriptions if offered("resources.subscribe") else None,
    )


async def _can_subscribe(ctx: Context, uri: str) -> bool:
    """Whether a resource can be watched; one that cannot is left out of what is acknowledged (SUB-5)."""
    try:
        await ctx.server.subscribe(uri, ctx)
    except RPCError:
        return False
    return True


class _ServerSubscription:
    """A subscription of a stateless client: what it wants to hear, until either side ends it."""

    def __init__(self, context: Context, wishes: SubscriptionFilter) -> None:
        self._context = context
        self._filter = wishes
        self._subscribed_uris = frozenset(wishes.resource_subscriptions or ())
        self._pending_changes = PendingChanges()
        self.end = self._pending_changes.end

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Take note of a notice that was asked for."""
        if (
            params.uri in self._subscribed_uris
            if isinstance(params, ResourceUpdatedParams)
            else is_requested(self._filter, method, params)
        ):
            self._pending_changes.add(method, params)

    async def run(self) -> ListenResult:
        """Acknowledge, then pass on what is heard."""
        await self._context.send_notification(
            "notifications/subscriptions/acknowledged", AcknowledgedParams(notifications=self._filter)
        )
        while (notice := await self._pending_changes.take()) is not None:
            await self._context.send_notification(*notice)
        return ListenResult()
