"""What a client wants to hear of without asking again: resources that it watches, lists that change.

In a session each resource is a request and lists announce themselves. In the stateless era one
`subscriptions/listen` carries all wishes; it is issued anew when they change, and when it was lost. Knows
nothing of what is done with a notice.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from toolpost.channel import unattended
from toolpost.client.backoff import Backoff
from toolpost.client.call import Limits
from toolpost.client.link import Link
from toolpost.client.subscription import Hear, Subscription, Subscriptions, tag_of
from toolpost.errors import (
    InvalidParams,
    LocalProtocolError,
    MCPError,
    MethodNotFound,
    NotDeclared,
)
from toolpost.protocol.eras import SESSION
from toolpost.protocol.events import NoticeReceived
from toolpost.protocol.party import declares
from toolpost.types.notices import AcknowledgedParams, SubscriptionFilter
from toolpost.types.resources import SubscribeParams

__all__ = ["FINAL", "LISTS", "Listener"]

LISTS: Final = {
    "tools_list_changed": "tools.list_changed",
    "prompts_list_changed": "prompts.list_changed",
    "resources_list_changed": "resources.list_changed",
}
"""The members of a filter, and the capability that each of them stands behind."""

FINAL: Final = (LocalProtocolError, MethodNotFound, InvalidParams)
"""What is no use to try again: it would be refused again. Other errors are also those of one that stops."""

AGAIN_TIMEOUT: Final = 30.0
"""Seconds that a listen may take to be acknowledged when nobody waits for it."""

logger: Final = logging.getLogger("toolpost.client")


class Listener:
    """The wishes of one conversation.

    Args:
        link: the conversation.
        lists: whether to hear when a list changes, in the stateless era, where it has to be asked for.
        on_gap: called when something may have been missed.
    """

    def __init__(self, link: Link, *, lists: bool, on_gap: Callable[[], object] = lambda: None) -> None:
        self.link = link
        self._lists = lists
        self._on_gap = on_gap
        self._backoff = Backoff()
        self._uris: frozenset[str] = frozenset()
        self._borrowed: Counter[str] = Counter()
        self._all = Subscriptions(link)
        self._current: Subscription | None = None
        self._again: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self.ears: set[Hear] = set()
        """Who hears what belongs to no listen."""

    @property
    def watched(self) -> frozenset[str]:
        """The resources that are watched for the callbacks."""
        return self._uris

    async def start(self, limits: Limits, uris: Iterable[str] = ()) -> None:
        """Ask to hear of what has to be asked for and the server offers.

        Args:
            limits: how long to wait for each request.
            uris: resources that were watched before the connection was lost.
        """
        if not self.link.connection.revision.stateless:
            for uri in uris:
                try:
                    await self.watch(uri, limits)
                except MCPError as error:
                    logger.warning("%s is not watched any more: %s", uri, error)
            return
        wanted = frozenset(uris if self.offers("resources.subscribe") else ())
        if wanted or self._changes():
            async with self._turn:
                await self._listen(wanted, limits)

    async def watch(self, uri: str, limits: Limits) -> None:
        """Ask to hear when a resource changes.

        Raises:
            NotDeclared: the server does not offer it.
            MCPError: the server does not want to watch this one (SUB-5).
        """
        if not self.link.connection.revision.stateless:
            await self._subscribe(uri, limits)
            self._uris |= {uri}
            return
        self.check_offered("resources.subscribe")
        async with self._turn:
            honoured = await self._listen(self._uris | {uri}, limits)
            watched = frozenset(honoured.resource_subscriptions or ())
            self._uris -= {uri} - watched
        self.check_watched({uri} - watched)

    async def unwatch(self, uri: str, limits: Limits) -> None:
        """Ask to hear no more of a resource.

        Raises:
            NotDeclared: the server does not offer it.
        """
        if not self.link.connection.revision.stateless:
            self._uris -= {uri}
            if not self._borrowed[uri]:
                await self._unsubscribe(uri, limits)
            return
        self.check_offered("resources.subscribe")
        async with self._turn:
            if uri in self._uris:
                await self._listen(self._uris - {uri}, limits)

    async def borrow(self, uri: str, limits: Limits) -> None:
        """Watch a resource of a session for somebody else than the callbacks; `give_back` ends it."""
        if not self._borrowed[uri] and uri not in self._uris:
            await self._subscribe(uri, limits)
        self._borrowed[uri] += 1

    async def give_back(self, uri: str, limits: Limits) -> None:
        """Watch a resource no more, unless others want that."""
        self._borrowed[uri] -= 1
        if self._borrowed[uri] <= 0:
            del self._borrowed[uri]
            if uri not in self._uris:
                await self._unsubscribe(uri, limits)

    async def listen(self, wanted: SubscriptionFilter, hear: Hear, limits: Limits) -> Subscription:
        """A listen of somebody else's, in the stateless era; see `Subscriptions.open`."""
        return await self._all.open(wanted, hear, limits)

    def hears(self, event: NoticeReceived) -> bool:
        """Whether a notice is for the callbacks: not an acknowledgement, nor of another listen (SUB-7)."""
        if tag_of(event) is None and not isinstance(event.params, AcknowledgedParams):
            for hear in list(self.ears):
                hear(event)
            return True
        subscription = self._all.take(event)
        if subscription is None or subscription is self._current:
            return subscription is not None
        subscription.hear(event)
        return False

    def check_offered(self, capability: str) -> None:
        """Return if the server offers something.

        Raises:
            NotDeclared: it does not.
        """
        if not self.offers(capability):
            why = f"the server does not offer {capability!r}, which hearing of changes needs"
            raise NotDeclared(capability, why, peer=self.link.peer_name)

    def offers(self, capability: str) -> bool:
        """Whether the server offers something."""
        peer = self.link.connection.peer
        return peer is not None and peer.capabilities is not None and declares(peer.capabilities, capability)

    def check_watched(self, refused: Collection[str]) -> None:
        """Return if the server refused to watch nothing (SUB-5).

        Raises:
            MCPError: it did.
        """
        if refused:
            raise MCPError(f"the server does not watch {', '.join(refused)}", peer=self.link.peer_name)

    # ----------------------------------------------------------------- requests

    async def _subscribe(self, uri: str, limits: Limits) -> None:
        self.link.check_open()
        for outgoing in SESSION.listen(
            self.link.connection, SubscriptionFilter(resource_subscriptions=[uri])
        ):
            await self.link.run(outgoing, limits)

    async def _unsubscribe(self, uri: str, limits: Limits) -> None:
        await self.link.request("resources/unsubscribe", SubscribeParams(uri=uri), limits=limits)

    def _changes(self) -> dict[str, bool]:
        """The lists to hear of."""
        return {
            member: True for member, capability in LISTS.items() if self._lists and self.offers(capability)
        }

    async def _listen(self, uris: frozenset[str], limits: Limits) -> SubscriptionFilter:
        """Ask for all wishes at once; what the server honours."""
        wanted = SubscriptionFilter(resource_subscriptions=sorted(uris) or None, **self._changes())
        if wanted == SubscriptionFilter():
            dropped, self._current = self._current, None
            if dropped is not None:
                dropped.cancel("nothing is wanted any more")
            self._uris = uris
            return wanted
        subscription = await self._all.open(wanted, lambda _: None, limits, self._stands)
        self._uris = uris
        return subscription.honoured.result()

    def _stands(self, subscription: Subscription) -> None:
        """Switch over the moment the new listen stands: nothing is heard twice, and nothing is missed."""
        replaced, self._current = self._current, subscription
        subscription.call.answer.add_done_callback(lambda _: self._ended(subscription))
        self._backoff.stands(asyncio.get_running_loop().time())
        if replaced is not None:
            replaced.cancel("another one replaces it")

    def _ended(self, subscription: Subscription) -> None:
        if subscription is not self._current:
            return
        self._current = None
        if self.link.ended is None:
            logger.warning("%s has ended: it is asked for again", subscription.call.method)
            if self._again is None or self._again.done():
                self._again = self.link.spawn(self._listen_again())

    async def _listen_again(self) -> None:
        """Listen once more, as soon as the server lets us."""
        limits = Limits(timeout=AGAIN_TIMEOUT)
        while self.link.ended is None:
            await asyncio.sleep(self._backoff.pause(asyncio.get_running_loop().time()))
            try:
                async with self._turn:
                    if self._current is not None:  # somebody has watched or dropped a resource meanwhile
                        break
                    with unattended():
                        await self._listen(self._uris, limits)
            except FINAL as error:
                logger.warning("no more changes are heard of: %s", error)
                return
            except MCPError as error:
                logger.info("changes are still not heard of: %s", error)
            else:
                break
        self._on_gap()
