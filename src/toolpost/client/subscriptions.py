"""Subscriptions of one connection: watched resources and lists that change.

In a session each resource is a request, and lists announce themselves. In the stateless era one
`subscriptions/listen` carries everything; it is sent again when the filter changes or the stream is lost.
Handling notifications is left to others.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from toolpost.channel import mark_unattended
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import CallLimits, PendingCall
from toolpost.client.connection.reconnect import Backoff
from toolpost.errors import (
    CapabilityNotDeclared,
    InvalidParams,
    LocalProtocolError,
    MCPError,
    MethodNotFound,
    RemoteProtocolError,
    RequestTimeout,
)
from toolpost.protocol.eras import SESSION_ERA, STATELESS_ERA
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import RESOURCES_UNSUBSCRIBE
from toolpost.types.base import JSON, RequestId
from toolpost.types.initialize import SUBSCRIPTION_ID
from toolpost.types.notifications import AcknowledgedParams, SubscriptionFilter
from toolpost.types.resources import SubscribeParams

NotificationObserver = Callable[[NotificationReceived], object]


class Subscription:
    """One `subscriptions/listen` in flight."""

    def __init__(
        self,
        dispatcher: "Dispatcher",
        call: PendingCall,
        hear: NotificationObserver,
        stands: "Callable[[Subscription], object] | None",
    ) -> None:
        self._dispatcher = dispatcher
        self.call = call
        self.observer = hear
        self.on_acknowledged = stands
        self.acknowledgement: asyncio.Future[SubscriptionFilter] = asyncio.get_running_loop().create_future()

    def cancel(self, why: str) -> None:
        """Cancel it, unless it has ended."""
        self._dispatcher.cancel(self.call.id, why)


class OpenSubscriptions:
    """The `subscriptions/listen` requests of one connection."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self._by_id: dict[RequestId, Subscription] = {}

    async def open(
        self,
        wanted: SubscriptionFilter,
        hear: NotificationObserver,
        limits: CallLimits,
        stands: Callable[[Subscription], object] | None = None,
    ) -> Subscription:
        """Subscribe and wait for the acknowledgement, the part of the filter that the server accepts.

        The reader calls `stands` on acknowledgement, before anything else arrives, and `hear` for
        notifications.
        """
        (outgoing,) = STATELESS_ERA.listen(self._dispatcher.connection, wanted)
        begun: list[Subscription] = []

        def begin(call: PendingCall) -> None:
            begun.append(Subscription(self._dispatcher, call, hear, stands))
            self._by_id[call.id] = begun[0]
            call.answer.add_done_callback(lambda _: self._by_id.pop(call.id, None))

        call = await self._dispatcher.open_request(outgoing, begin)
        (subscription,) = begun
        try:
            async with asyncio.timeout(limits.timeout):
                await asyncio.wait(
                    [subscription.acknowledgement, call.answer], return_when=asyncio.FIRST_COMPLETED
                )
        except TimeoutError:
            subscription.cancel("it was not acknowledged in time")
            raise RequestTimeout(
                f"{call.method} was not acknowledged in time (time-out: {limits.timeout:g} s)",
                peer=self._dispatcher.peer_name,
            ) from None
        except asyncio.CancelledError:
            subscription.cancel("the caller no longer waits")
            raise
        if not subscription.acknowledgement.done():
            call.answer.result()  # the error, if there is one
            raise RemoteProtocolError(
                "the server ended the subscription at once", peer=self._dispatcher.peer_name
            )
        return subscription

    def route(self, event: NotificationReceived) -> Subscription | None:
        """Return the subscription of a notification; None for an acknowledgement or an unknown one."""
        subscription = self._by_id.get(get_subscription_id(event))
        if not isinstance(event.params, AcknowledgedParams):
            return subscription
        if subscription is not None and not subscription.acknowledgement.done():
            subscription.acknowledgement.set_result(event.params.notifications)
            if subscription.on_acknowledged is not None:
                subscription.on_acknowledged(subscription)
        return None


def get_subscription_id(event: NotificationReceived) -> JSON:
    """Return the subscription id of a notification; None if it has none."""
    meta: JSON = getattr(event.params, "meta", None)
    tag: JSON = None if meta is None else meta.get(SUBSCRIPTION_ID)
    return tag if isinstance(tag, int | str) else None


# --------------------------------------------------------------------- wanted changes

LIST_CAPABILITIES: Final = {
    "tools_list_changed": "tools.list_changed",
    "prompts_list_changed": "prompts.list_changed",
    "resources_list_changed": "resources.list_changed",
}
"""The members of a filter, and the capability that each needs."""

FINAL_ERRORS: Final = (LocalProtocolError, MethodNotFound, InvalidParams)
"""Errors after which subscribing again is useless; others may come from a server that shuts down."""

RELISTEN_TIMEOUT: Final = 30.0
"""Seconds to wait for an acknowledgement in the background."""

logger: Final = logging.getLogger("toolpost.client")


class ChangeListener:
    """The subscriptions of one connection. `lists`: subscribe to lists too, where that needs a request."""

    def __init__(
        self, dispatcher: Dispatcher, *, lists: bool, on_gap: Callable[[], object] = lambda: None
    ) -> None:
        self.dispatcher = dispatcher
        self._wants_lists = lists
        self._on_gap = on_gap
        self._backoff = Backoff()
        self._uris: frozenset[str] = frozenset()
        self._uri_refcounts: Counter[str] = Counter()
        self.subscriptions = OpenSubscriptions(dispatcher)
        self._current: Subscription | None = None
        self._relisten_task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self.observers: set[NotificationObserver] = set()
        """Called for notifications without a subscription id."""

    @property
    def watched_uris(self) -> frozenset[str]:
        """The resources that are watched for the client's callbacks."""
        return self._uris

    async def start(self, limits: CallLimits, uris: Iterable[str] = ()) -> None:
        """Subscribe to lists, and to the resources that were watched before the connection was lost."""
        if not self.dispatcher.connection.revision.stateless:
            for uri in uris:
                try:
                    await self.watch(uri, limits)
                except MCPError as error:
                    logger.warning("%s is not watched any more: %s", uri, error)
            return
        wanted = frozenset(uris if self.has_capability("resources.subscribe") else ())
        if wanted or self._list_filter():
            async with self._lock:
                await self._listen(wanted, limits)

    async def watch(self, uri: str, limits: CallLimits) -> None:
        """Subscribe to a resource. Raises `MCPError` if the server refuses it (SUB-5)."""
        if not self.dispatcher.connection.revision.stateless:
            await self._subscribe(uri, limits)
            self._uris |= {uri}
            return
        self.check_offered("resources.subscribe")
        async with self._lock:
            honoured = await self._listen(self._uris | {uri}, limits)
            watched = frozenset(honoured.resource_subscriptions or ())
            self._uris -= {uri} - watched
        self.check_none_refused({uri} - watched)

    async def unwatch(self, uri: str, limits: CallLimits) -> None:
        """Unsubscribe from a resource."""
        if not self.dispatcher.connection.revision.stateless:
            self._uris -= {uri}
            if not self._uri_refcounts[uri]:
                await self._unsubscribe(uri, limits)
            return
        self.check_offered("resources.subscribe")
        async with self._lock:
            if uri in self._uris:
                await self._listen(self._uris - {uri}, limits)

    async def acquire_uri(self, uri: str, limits: CallLimits) -> None:
        """Watch a resource of a session for a change stream, until `release_uri`."""
        if not self._uri_refcounts[uri] and uri not in self._uris:
            await self._subscribe(uri, limits)
        self._uri_refcounts[uri] += 1

    async def release_uri(self, uri: str, limits: CallLimits) -> None:
        """Stop watching a resource, unless it is still in use."""
        self._uri_refcounts[uri] -= 1
        if self._uri_refcounts[uri] <= 0:
            del self._uri_refcounts[uri]
            if uri not in self._uris:
                await self._unsubscribe(uri, limits)

    def dispatch_notification(self, event: NotificationReceived) -> bool:
        """Route a notification; return whether the client's callbacks get it (SUB-7)."""
        if get_subscription_id(event) is None and not isinstance(event.params, AcknowledgedParams):
            for hear in list(self.observers):
                hear(event)
            return True
        subscription = self.subscriptions.route(event)
        if subscription is None or subscription is self._current:
            return subscription is not None
        subscription.observer(event)
        return False

    def check_offered(self, capability: str) -> None:
        """Raise `CapabilityNotDeclared` if the server does not offer a capability."""
        if not self.has_capability(capability):
            why = f"the server does not offer {capability!r}, which hearing of changes needs"
            raise CapabilityNotDeclared(capability, why, peer=self.dispatcher.peer_name)

    def has_capability(self, capability: str) -> bool:
        """Return whether the server offers a capability."""
        peer = self.dispatcher.connection.peer
        return (
            peer is not None
            and peer.capabilities is not None
            and has_capability(peer.capabilities, capability)
        )

    def check_none_refused(self, refused: Collection[str]) -> None:
        """Raise `MCPError` if the server refused to watch a resource (SUB-5)."""
        if refused:
            raise MCPError(f"the server does not watch {', '.join(refused)}", peer=self.dispatcher.peer_name)

    async def _subscribe(self, uri: str, limits: CallLimits) -> None:
        self.dispatcher.check_open()
        for outgoing in SESSION_ERA.listen(
            self.dispatcher.connection, SubscriptionFilter(resource_subscriptions=[uri])
        ):
            await self.dispatcher.run(outgoing, limits)

    async def _unsubscribe(self, uri: str, limits: CallLimits) -> None:
        await self.dispatcher.request(RESOURCES_UNSUBSCRIBE, SubscribeParams(uri=uri), limits=limits)

    def _list_filter(self) -> dict[str, bool]:
        """Return the filter members of the lists to subscribe to."""
        return {
            member: True
            for member, capability in LIST_CAPABILITIES.items()
            if self._wants_lists and self.has_capability(capability)
        }

    async def _listen(self, uris: frozenset[str], limits: CallLimits) -> SubscriptionFilter:
        """Subscribe to everything at once; return what the server accepts."""
        wanted = SubscriptionFilter(resource_subscriptions=sorted(uris) or None, **self._list_filter())
        if wanted == SubscriptionFilter():
            dropped, self._current = self._current, None
            if dropped is not None:
                dropped.cancel("nothing is wanted any more")
            self._uris = uris
            return wanted
        subscription = await self.subscriptions.open(wanted, lambda _: None, limits, self._on_acknowledged)
        self._uris = uris
        return subscription.acknowledgement.result()

    def _on_acknowledged(self, subscription: Subscription) -> None:
        """Switch over on acknowledgement, so that no change is delivered twice or missed."""
        replaced, self._current = self._current, subscription
        subscription.call.answer.add_done_callback(lambda _: self._on_ended(subscription))
        self._backoff.mark_working(asyncio.get_running_loop().time())
        if replaced is not None:
            replaced.cancel("another one replaces it")

    def _on_ended(self, subscription: Subscription) -> None:
        if subscription is not self._current:
            return
        self._current = None
        if self.dispatcher.end_reason is None:
            logger.warning("%s has ended: it is asked for again", subscription.call.method)
            if self._relisten_task is None or self._relisten_task.done():
                self._relisten_task = self.dispatcher.spawn(self._listen_again())

    async def _listen_again(self) -> None:
        """Subscribe again as soon as the server allows it."""
        limits = CallLimits(timeout=RELISTEN_TIMEOUT)
        while self.dispatcher.end_reason is None:
            await asyncio.sleep(self._backoff.next_delay(asyncio.get_running_loop().time()))
            try:
                async with self._lock:
                    if self._current is not None:  # somebody has watched or dropped a resource meanwhile
                        break
                    with mark_unattended():
                        await self._listen(self._uris, limits)
            except FINAL_ERRORS as error:
                logger.warning("no more changes are heard of: %s", error)
                return
            except MCPError as error:
                logger.info("changes are still not heard of: %s", error)
            else:
                break
        self._on_gap()
