"""`subscriptions/listen` in the stateless era: the long requests of one link, and which notice is whose.

Owns the time between sending and acknowledgement, and the tags of notices (SUB-7). What is wanted, and what
happens when one ends, is decided by whoever opens it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolpost.client.call import Call, Limits
from toolpost.errors import RemoteProtocolError, RequestTimeout
from toolpost.protocol.eras import STATELESS
from toolpost.protocol.events import NoticeReceived
from toolpost.types.base import JSON, RequestId
from toolpost.types.lifecycle import SUBSCRIPTION_ID
from toolpost.types.notices import AcknowledgedParams, SubscriptionFilter

if TYPE_CHECKING:
    from toolpost.client.link import Link

__all__ = ["Hear", "Subscription", "Subscriptions", "tag_of"]

Hear = Callable[[NoticeReceived], object]


class Subscription:
    """One listen in flight.

    Args:
        link: what it was sent over.
        call: the request.
        hear: hears what comes on it.
        stands: called by the reader the moment it is acknowledged.
    """

    def __init__(
        self, link: "Link", call: Call, hear: Hear, stands: "Callable[[Subscription], object] | None"
    ) -> None:
        self._link = link
        self.call = call
        self.hear = hear
        self.stands = stands
        self.honoured: asyncio.Future[SubscriptionFilter] = asyncio.get_running_loop().create_future()

    def cancel(self, why: str) -> None:
        """End it, if it has not ended."""
        self._link.cancel(self.call.id, why)


class Subscriptions:
    """The listens of one link."""

    def __init__(self, link: "Link") -> None:
        self._link = link
        self._open: dict[RequestId, Subscription] = {}

    async def open(
        self,
        wanted: SubscriptionFilter,
        hear: Hear,
        limits: Limits,
        stands: Callable[[Subscription], object] | None = None,
    ) -> Subscription:
        """A listen that stands; what the server honours of the filter is its `honoured`.

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
        (outgoing,) = STATELESS.listen(self._link.connection, wanted)
        begun: list[Subscription] = []

        def begin(call: Call) -> None:
            begun.append(Subscription(self._link, call, hear, stands))
            self._open[call.id] = begun[0]
            call.answer.add_done_callback(lambda _: self._open.pop(call.id, None))

        call = await self._link.open(outgoing, begin)
        (subscription,) = begun
        try:
            async with asyncio.timeout(limits.timeout):
                await asyncio.wait([subscription.honoured, call.answer], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            subscription.cancel("it was not acknowledged in time")
            raise RequestTimeout(
                f"{call.method} was not acknowledged in time (time-out: {limits.timeout:g} s)",
                peer=self._link.peer_name,
            ) from None
        except asyncio.CancelledError:
            subscription.cancel("the caller no longer waits")
            raise
        if not subscription.honoured.done():
            call.answer.result()  # the error, if there is one
            raise RemoteProtocolError("the server ended the subscription at once", peer=self._link.peer_name)
        return subscription

    def take(self, event: NoticeReceived) -> Subscription | None:
        """The listen that a notice belongs to; None if it is for nobody, or an acknowledgement."""
        subscription = self._open.get(tag_of(event))
        if not isinstance(event.params, AcknowledgedParams):
            return subscription
        if subscription is not None and not subscription.honoured.done():
            subscription.honoured.set_result(event.params.notifications)
            if subscription.stands is not None:
                subscription.stands(subscription)
        return None


def tag_of(event: NoticeReceived) -> JSON:
    """The id of the listen that a notice belongs to; None if it does not say."""
    meta: JSON = getattr(event.params, "meta", None)
    tag: JSON = None if meta is None else meta.get(SUBSCRIPTION_ID)
    return tag if isinstance(tag, int | str) else None
