"""What a client wants to hear of without asking again: resources that it watches, lists that change.

In a session each resource is a request and lists announce themselves. In the stateless era one
`subscriptions/listen` carries all wishes and is issued anew when they change. Knows nothing of what is done
with a notice.
"""

import asyncio
import logging
from typing import Final

from toolpost.client.call import Call, Limits
from toolpost.client.link import Link
from toolpost.errors import MCPError, NotDeclared, RemoteProtocolError, RequestTimeout
from toolpost.protocol.eras import SESSION, STATELESS
from toolpost.protocol.events import NoticeReceived
from toolpost.protocol.party import declares
from toolpost.types.base import JSON
from toolpost.types.lifecycle import SUBSCRIPTION_ID
from toolpost.types.notices import AcknowledgedParams, SubscriptionFilter
from toolpost.types.resources import SubscribeParams

__all__ = ["Listener"]

_LISTS: Final = {
    "tools_list_changed": "tools.list_changed",
    "prompts_list_changed": "prompts.list_changed",
    "resources_list_changed": "resources.list_changed",
}
"""The members of a filter, and the capability that each of them stands behind."""

logger: Final = logging.getLogger("toolpost.client")


class Listener:
    """The wishes of one conversation.

    Args:
        link: the conversation.
        lists: whether to hear when a list changes, in the stateless era, where it has to be asked for.
    """

    def __init__(self, link: Link, *, lists: bool) -> None:
        self._link = link
        self._lists = lists
        self._uris: frozenset[str] = frozenset()
        self._current: Call | None = None
        self._next: tuple[Call, asyncio.Future[SubscriptionFilter]] | None = None
        self._turn = asyncio.Lock()

    async def start(self, limits: Limits) -> None:
        """Ask to hear of lists that change, where that has to be asked for and the server offers it."""
        if self._link.connection.revision.stateless and self._changes():
            async with self._turn:
                await self._listen(frozenset(), limits)

    async def watch(self, uri: str, limits: Limits) -> None:
        """Ask to hear when a resource changes.

        Raises:
            NotDeclared: the server does not offer it.
            MCPError: the server does not want to watch this one (SUB-5).
        """
        connection = self._link.connection
        if not connection.revision.stateless:
            wanted = SubscriptionFilter(resource_subscriptions=[uri])
            for outgoing in SESSION.listen(connection, wanted):
                await self._link.run(outgoing, limits)
            return
        self._check_offered("resources.subscribe")
        async with self._turn:
            honoured = await self._listen(self._uris | {uri}, limits)
            watched = frozenset(honoured.resource_subscriptions or ())
            self._uris -= {uri} - watched
        if uri not in watched:
            raise MCPError(f"the server does not watch {uri}", peer=self._link.peer_name)

    async def unwatch(self, uri: str, limits: Limits) -> None:
        """Ask to hear no more of a resource.

        Raises:
            NotDeclared: the server does not offer it.
        """
        if not self._link.connection.revision.stateless:
            await self._link.request("resources/unsubscribe", SubscribeParams(uri=uri), limits=limits)
            return
        self._check_offered("resources.subscribe")
        async with self._turn:
            if uri in self._uris:
                await self._listen(self._uris - {uri}, limits)

    def hears(self, event: NoticeReceived) -> bool:
        """Whether a notice is for others to hear: not an acknowledgement, nor of an old listen (SUB-7)."""
        meta: JSON = getattr(event.params, "meta", None)
        tag: JSON = None if meta is None else meta.get(SUBSCRIPTION_ID)
        if isinstance(event.params, AcknowledgedParams):
            self._acknowledged(tag, event.params.notifications)
            return False
        return tag is None or (self._current is not None and tag == self._current.id)

    def _check_offered(self, capability: str) -> None:
        if not self._offers(capability):
            raise NotDeclared(
                capability,
                f"the server does not offer {capability!r}, which watching a resource needs",
                peer=self._link.peer_name,
            )

    def _offers(self, capability: str) -> bool:
        peer = self._link.connection.peer
        return peer is not None and peer.capabilities is not None and declares(peer.capabilities, capability)

    def _changes(self) -> dict[str, bool]:
        """The lists to hear of."""
        return {
            member: True for member, capability in _LISTS.items() if self._lists and self._offers(capability)
        }

    async def _listen(self, uris: frozenset[str], limits: Limits) -> SubscriptionFilter:
        """Ask for all wishes at once; what the server honours."""
        wanted = SubscriptionFilter(resource_subscriptions=sorted(uris) or None, **self._changes())
        if wanted == SubscriptionFilter():
            if self._current is not None:
                self._link.cancel(self._current.id, "nothing is wanted any more")
            self._uris = uris
            return wanted
        (outgoing,) = STATELESS.listen(self._link.connection, wanted)
        call = await self._link.open(outgoing)
        acknowledged: asyncio.Future[SubscriptionFilter] = asyncio.get_running_loop().create_future()
        self._next = (call, acknowledged)
        call.answer.add_done_callback(lambda _: self._ended(call))
        try:
            async with asyncio.timeout(limits.timeout):
                await asyncio.wait([acknowledged, call.answer], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self._link.cancel(call.id, "it was not acknowledged in time")
            raise RequestTimeout(
                f"{call.method} was not acknowledged in time (time-out: {limits.timeout:g} s)",
                peer=self._link.peer_name,
            ) from None
        except asyncio.CancelledError:
            self._link.cancel(call.id, "the caller no longer waits")
            raise
        finally:
            self._next = None
        if not acknowledged.done():
            call.answer.result()  # the error, if there is one
            raise RemoteProtocolError("the server ended the subscription at once", peer=self._link.peer_name)
        self._uris = uris
        return acknowledged.result()

    def _acknowledged(self, tag: JSON, honoured: SubscriptionFilter) -> None:
        """Switch over the moment the new listen stands: nothing is heard twice, and nothing is missed."""
        if self._next is None or self._next[0].id != tag:
            return
        call, acknowledged = self._next
        replaced, self._current = self._current, call
        if replaced is not None:
            self._link.cancel(replaced.id, "another one replaces it")
        if not acknowledged.done():
            acknowledged.set_result(honoured)

    def _ended(self, call: Call) -> None:
        if call is self._current:
            self._current = None
            if self._link.ended is None:
                logger.warning("%s has ended: no more changes are heard of", call.method)
