"""`subscriptions/listen` in the stateless era: the long requests of one link, and which notice is whose.

Owns the time between sending and acknowledgement, and the tags of notices (SUB-7). What is wanted, and what
happens when one ends, is decided by whoever opens it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolpost.client.call import CallLimits, PendingCall
from toolpost.errors import RemoteProtocolError, RequestTimeout
from toolpost.protocol.eras import STATELESS_ERA
from toolpost.protocol.events import NotificationReceived
from toolpost.types.base import JSON, RequestId
from toolpost.types.lifecycle import SUBSCRIPTION_ID
from toolpost.types.notices import AcknowledgedParams, SubscriptionFilter

if TYPE_CHECKING:
    from toolpost.client.link import Dispatcher

__all__ = ["NotificationObserver", "OpenSubscriptions", "Subscription", "get_subscription_id"]

NotificationObserver = Callable[[NotificationReceived], object]


class Subscription:
    """One listen in flight.

    Args:
        link: what it was sent over.
        call: the request.
        observer: hears what comes on it.
        on_acknowledged: called by the reader the moment it is acknowledged.
    """

    def __init__(
        self,
        link: "Dispatcher",
        call: PendingCall,
        hear: NotificationObserver,
        stands: "Callable[[Subscription], object] | None",
    ) -> None:
        self._dispatcher = link
        self.call = call
        self.observer = hear
        self.on_acknowledged = stands
        self.acknowledgement: asyncio.Future[SubscriptionFilter] = asyncio.get_running_loop().create_future()

    def cancel(self, why: str) -> None:
        """End it, if it has not ended."""
        self._dispatcher.cancel(self.call.id, why)


class OpenSubscriptions:
    """The listens of one link."""

    def __init__(self, link: "Dispatcher") -> None:
        self._dispatcher = link
        self._by_id: dict[RequestId, Subscription] = {}

    async def open(
        self,
        wanted: SubscriptionFilter,
        hear: NotificationObserver,
        limits: CallLimits,
        stands: Callable[[Subscription], object] | None = None,
    ) -> Subscription:
        """A listen that stands; what the server honours of the filter is its `acknowledgement`.

        Args:
            wanted: what to hear of.
            hear: hears what comes on it; called by the reader.
            limits: how long to wait for the acknowledgement.
            stands: called by the reader the moment it is acknowledged, before anything comes on it.

        Raises:
            RequestTimeout: it was not acknowledged in time.
            RemoteProtocolError: it ended at once.
            MCPError: the server refused it, or it was lost.
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
        """The listen that a notice belongs to; None if it is for nobody, or an acknowledgement."""
        subscription = self._by_id.get(get_subscription_id(event))
        if not isinstance(event.params, AcknowledgedParams):
            return subscription
        if subscription is not None and not subscription.acknowledgement.done():
            subscription.acknowledgement.set_result(event.params.notifications)
            if subscription.on_acknowledged is not None:
                subscription.on_acknowledged(subscription)
        return None


def get_subscription_id(event: NotificationReceived) -> JSON:
    """The id of the listen that a notice belongs to; None if it does not say."""
    meta: JSON = getattr(event.params, "meta", None)
    tag: JSON = None if meta is None else meta.get(SUBSCRIPTION_ID)
    return tag if isinstance(tag, int | str) else None
