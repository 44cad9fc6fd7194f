"""Subscriptions of one connection: watched resources and lists that change.

In a session each resource is a request, and lists announce themselves. In the stateless era one
`subscriptions/listen` carries everything; it is sent again when the filter changes or the stream is lost.
Handling notifications is left to others.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal, TypeAlias

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
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import RESOURCES_SUBSCRIBE, RESOURCES_UNSUBSCRIBE, SUBSCRIPTIONS_LISTEN
from toolpost.types.base import JSON, RequestId, Struct
from toolpost.types.initialize import SUBSCRIPTION_ID
from toolpost.types.notifications import AcknowledgedParams, ListenParams, SubscriptionFilter
from toolpost.types.resources import SubscribeParams

ChangeKind: TypeAlias = Literal["tools", "prompts", "resources", "resource"]
NotificationObserver: TypeAlias = Callable[[NotificationReceived], object]

LISTS: Final[tuple[ChangeKind, ...]] = ("tools", "prompts", "resources")
FINAL_ERRORS: Final = (LocalProtocolError, MethodNotFound, InvalidParams)  # retrying is pointless
RELISTEN_TIMEOUT: Final = 30.0  # seconds to wait for an acknowledgement in the background

logger: Final = logging.getLogger("toolpost.client")


def make_filter(lists: Iterable[ChangeKind], uris: Iterable[str]) -> SubscriptionFilter:
    """Return the filter of the stateless era for some lists and resources."""
    members = {f"{kind}_list_changed": True for kind in lists}
    return SubscriptionFilter(resource_subscriptions=[*uris] or None, **members)


class Subscription(Struct, eq=False):
    """One `subscriptions/listen` in flight."""

    dispatcher: Dispatcher
    call: PendingCall
    acknowledgement: "asyncio.Future[SubscriptionFilter]"
    observer: NotificationObserver
    on_acknowledged: "Callable[[Subscription], object]"

    async def wait_ended(self) -> None:
        """Wait until the subscription has ended."""
        await asyncio.wait([self.call.answer])

    async def close(self) -> None:
        """Cancel the subscription of a change stream."""
        self.cancel("the subscription was closed")

    def cancel(self, reason: str) -> None:
        """Cancel it, unless it has ended."""
        self.dispatcher.cancel(self.call.id, reason)


class ChangeListener:
    """The subscriptions of one connection. `lists`: subscribe to lists too, where that needs a request."""

    def __init__(
        self, dispatcher: Dispatcher, *, lists: bool, on_gap: Callable[[], object] = lambda: None
    ) -> None:
        self.dispatcher = dispatcher
        self._wants_lists = lists
        self._on_gap = on_gap
        self._backoff = Backoff()
        self.watched_uris: frozenset[str] = frozenset()  # for the client's callbacks
        self._uri_refcounts: Counter[str] = Counter()
        self._subscriptions: dict[RequestId, Subscription] = {}
        self._current: Subscription | None = None
        self._relisten_task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self.observers: set[NotificationObserver] = set()
        """Called for notifications without a subscription id."""

    async def start(self, limits: CallLimits, uris: Iterable[str] = ()) -> None:
        """Subscribe to lists, and to the resources that were watched before the connection was lost."""
        if not self.dispatcher.connection.revision.stateless:
            for uri in uris:
                try:
                    await self.watch(uri, limits)
                except MCPError as error:
                    logger.warning("stopped watching %s: %.1000s", uri, error)
            return
        wanted = frozenset(uris if self.has_capability("resources.subscribe") else ())
        if wanted or self._wanted_lists():
            async with self._lock:
                await self._listen(wanted, limits)

    async def watch(self, uri: str, limits: CallLimits) -> None:
        """Subscribe to a resource. Raises `MCPError` if the server refuses it (SUB-5)."""
        if not self.dispatcher.connection.revision.stateless:
            await self._subscribe(uri, limits)
            self.watched_uris |= {uri}
            return
        self.check_offered("resources.subscribe")
        async with self._lock:
            honoured = await self._listen(self.watched_uris | {uri}, limits)
            watched = frozenset(honoured.resource_subscriptions or ())
            self.watched_uris -= {uri} - watched
        self.check_none_refused({uri} - watched)

    async def unwatch(self, uri: str, limits: CallLimits) -> None:
        """Unsubscribe from a resource."""
        if not self.dispatcher.connection.revision.stateless:
            self.watched_uris -= {uri}
            if not self._uri_refcounts[uri]:
                await self._unsubscribe(uri, limits)
            return
        self.check_offered("resources.subscribe")
        async with self._lock:
            if uri in self.watched_uris:
                await self._listen(self.watched_uris - {uri}, limits)

    async def acquire_uri(self, uri: str, limits: CallLimits) -> None:
        """Watch a resource of a session for a change stream, until `release_uri`."""
        if not self._uri_refcounts[uri] and uri not in self.watched_uris:
            await self._subscribe(uri, limits)
        self._uri_refcounts[uri] += 1

    async def release_uri(self, uri: str, limits: CallLimits) -> None:
        """Stop watching a resource, unless it is still in use."""
        self._uri_refcounts[uri] -= 1
        if self._uri_refcounts[uri] <= 0:
            del self._uri_refcounts[uri]
            if uri not in self.watched_uris:
                await self._unsubscribe(uri, limits)

    def dispatch_notification(self, event: NotificationReceived) -> bool:
        """Route a notification; return whether the client's callbacks get it (SUB-7)."""
        meta: JSON = getattr(event.params, "meta", None)
        tag: JSON = None if meta is None else meta.get(SUBSCRIPTION_ID)
        tag = tag if isinstance(tag, int | str) else None
        subscription = self._subscriptions.get(tag)
        if isinstance(event.params, AcknowledgedParams):
            if subscription is not None and not subscription.acknowledgement.done():
                subscription.acknowledgement.set_result(event.params.notifications)
                subscription.on_acknowledged(subscription)
            return False
        if tag is None:
            for observer in list(self.observers):
                observer(event)
            return True
        if subscription is None or subscription is self._current:
            return subscription is not None
        subscription.observer(event)
        return False

    async def open(
        self,
        wanted: SubscriptionFilter,
        limits: CallLimits,
        observer: NotificationObserver = lambda _: None,
        on_acknowledged: Callable[[Subscription], object] = lambda _: None,
        party: LocalPeer | None = None,
    ) -> Subscription:
        """Subscribe in the stateless era, and wait until the server has acknowledged it.

        The reader calls `on_acknowledged` before anything else arrives, and `observer` for notifications.
        """
        dispatcher = self.dispatcher
        params = ListenParams(notifications=wanted)
        call = dispatcher.register_call(
            dispatcher.connection.request(SUBSCRIPTIONS_LISTEN, params, party=party)
        )
        acknowledged: asyncio.Future[SubscriptionFilter] = dispatcher.loop.create_future()
        subscription = Subscription(dispatcher, call, acknowledged, observer, on_acknowledged)
        self._subscriptions[call.id] = subscription
        call.answer.add_done_callback(lambda _: self._subscriptions.pop(call.id, None))
        await dispatcher.start_call(call)
        try:
            async with asyncio.timeout(limits.timeout):
                await asyncio.wait([acknowledged, call.answer], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            subscription.cancel("not acknowledged in time")
            raise RequestTimeout(
                f"{call.method} was not acknowledged within {limits.timeout:g} s",
                peer=dispatcher.peer_name,
            ) from None
        except asyncio.CancelledError:
            subscription.cancel("the caller stopped waiting")
            raise
        if not acknowledged.done():
            call.answer.result()  # the error, if there is one
            raise RemoteProtocolError(
                "the server ended the subscription immediately", peer=dispatcher.peer_name
            )
        return subscription

    def check_offered(self, capability: str) -> None:
        """Raise `CapabilityNotDeclared` if the server does not offer a capability."""
        if not self.has_capability(capability):
            why = f"the server does not offer {capability!r}, which change notifications require"
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
            raise MCPError(
                f"the server refused to watch {', '.join(refused)}", peer=self.dispatcher.peer_name
            )

    async def _subscribe(self, uri: str, limits: CallLimits) -> None:
        await self.dispatcher.request(limits, RESOURCES_SUBSCRIBE, SubscribeParams(uri=uri))

    async def _unsubscribe(self, uri: str, limits: CallLimits) -> None:
        await self.dispatcher.request(limits, RESOURCES_UNSUBSCRIBE, SubscribeParams(uri=uri))

    def _wanted_lists(self) -> list[ChangeKind]:
        """Return the lists to subscribe to."""
        return [kind for kind in LISTS if self._wants_lists and self.has_capability(f"{kind}.list_changed")]

    async def _listen(self, uris: frozenset[str], limits: CallLimits) -> SubscriptionFilter:
        """Subscribe to everything in one request; return the part that the server accepts."""
        wanted = make_filter(self._wanted_lists(), sorted(uris))
        if wanted == SubscriptionFilter():
            dropped, self._current = self._current, None
            if dropped is not None:
                dropped.cancel("no subscriptions are left")
            self.watched_uris = uris
            return wanted
        subscription = await self.open(wanted, limits, on_acknowledged=self._on_acknowledged)
        self.watched_uris = uris
        return subscription.acknowledgement.result()

    def _on_acknowledged(self, subscription: Subscription) -> None:
        """Switch over on acknowledgement, so that no change is delivered twice or missed."""
        replaced, self._current = self._current, subscription
        subscription.call.answer.add_done_callback(lambda _: self._on_ended(subscription))
        self._backoff.mark_working(asyncio.get_running_loop().time())
        if replaced is not None:
            replaced.cancel("replaced by a new subscription")

    def _on_ended(self, subscription: Subscription) -> None:
        if subscription is not self._current:
            return
        self._current = None
        if self.dispatcher.end_reason is None:
            logger.warning("%s ended; subscribing again", subscription.call.method)
            if self._relisten_task is None or self._relisten_task.done():
                self._relisten_task = self.dispatcher.spawn(self._listen_again())

    async def _listen_again(self) -> None:
        """Subscribe again as soon as the server allows it."""
        limits = CallLimits(timeout=RELISTEN_TIMEOUT)
        while self.dispatcher.end_reason is None:
            await asyncio.sleep(self._backoff.next_delay(asyncio.get_running_loop().time()))
            try:
                async with self._lock:
                    if self._current is not None:  # `watch` or `unwatch` was called meanwhile
                        break
                    with mark_unattended():
                        await self._listen(self.watched_uris, limits)
            except FINAL_ERRORS as error:
                logger.warning("change notifications have stopped: %.1000s", error)
                return
            except MCPError as error:
                logger.info("could not subscribe to changes yet: %.1000s", error)
            else:
                break
        self._on_gap()
