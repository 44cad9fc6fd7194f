"""`subscriptions/listen`: what a stateless client wants to hear, and the long request that carries it.

Owns the subscriptions that are open. Who has something to tell is not known here: the announcer of the server
that serves the request.
"""

from collections.abc import Sequence

from toolpost.errors import InvalidParams, RPCError
from toolpost.server.context import MAX_WATCHED, MAX_WATCHED_SIZE, Context
from toolpost.server.notify import Bulletin, wants
from toolpost.types.notices import (
    AcknowledgedParams,
    ListenResult,
    NoticeParams,
    ResourceUpdatedParams,
    SubscriptionFilter,
)

__all__ = ["Listens"]


class Listens:
    """The open subscriptions of a server's stateless clients."""

    def __init__(self) -> None:
        self._open: set[_Listen] = set()

    async def serve(self, ctx: Context, wishes: SubscriptionFilter) -> ListenResult:
        """Tell a client what it wants to hear, until either side ends it.

        Raises:
            InvalidParams: it names more resources than it may.
        """
        server = ctx.server
        _check_size(wishes.resource_subscriptions or ())
        wishes = _honoured(ctx, wishes)
        watched: list[str] = []
        listen: _Listen | None = None
        try:
            for uri in dict.fromkeys(wishes.resource_subscriptions or ()):
                watched += [uri] if await _watches(ctx, uri) else []
            wishes.resource_subscriptions = watched or None
            listen = _Listen(ctx, wishes)
            server.announcer.join(listen)
            self._open.add(listen)
            return await listen.run()
        finally:
            if listen is not None:
                self._open.discard(listen)
                server.announcer.leave(listen)
            for uri in watched:
                await server.unsubscribe(uri, ctx)

    def end(self) -> None:
        """End all of them from our side, each with its result."""
        for listen in self._open:
            listen.end()


def _check_size(uris: Sequence[str]) -> None:
    if len(uris) > MAX_WATCHED:
        raise InvalidParams(f"Invalid params: resourceSubscriptions has more than {MAX_WATCHED} URIs")
    if sum(map(len, uris)) > MAX_WATCHED_SIZE:
        raise InvalidParams(
            f"Invalid params: resourceSubscriptions has more than {MAX_WATCHED_SIZE} characters"
        )


def _honoured(ctx: Context, wishes: SubscriptionFilter) -> SubscriptionFilter:
    """The part of a filter that the server can serve."""
    offered = ctx.server.party.declares
    return SubscriptionFilter(
        tools_list_changed=(wishes.tools_list_changed and offered("tools.list_changed")) or None,
        prompts_list_changed=(wishes.prompts_list_changed and offered("prompts.list_changed")) or None,
        resources_list_changed=(wishes.resources_list_changed and offered("resources.list_changed")) or None,
        resource_subscriptions=wishes.resource_subscriptions if offered("resources.subscribe") else None,
    )


async def _watches(ctx: Context, uri: str) -> bool:
    """Whether a resource can be watched; one that cannot is left out of what is acknowledged (SUB-5)."""
    try:
        await ctx.server.subscribe(uri, ctx)
    except RPCError:
        return False
    return True


class _Listen:
    """A subscription of a stateless client: what it wants to hear, until either side ends it."""

    def __init__(self, context: Context, wishes: SubscriptionFilter) -> None:
        self._context = context
        self._wishes = wishes
        self._watched = frozenset(wishes.resource_subscriptions or ())
        self._heard = Bulletin()
        self.end = self._heard.end

    def hear(self, method: str, params: NoticeParams) -> None:
        """Take note of a notice that was asked for."""
        if (
            params.uri in self._watched
            if isinstance(params, ResourceUpdatedParams)
            else wants(self._wishes, method, params)
        ):
            self._heard.note(method, params)

    async def run(self) -> ListenResult:
        """Acknowledge, then pass on what is heard."""
        await self._context.tell(
            "notifications/subscriptions/acknowledged", AcknowledgedParams(notifications=self._wishes)
        )
        while (notice := await self._heard.take()) is not None:
            await self._context.tell(*notice)
        return ListenResult()
