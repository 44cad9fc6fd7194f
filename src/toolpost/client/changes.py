"""`client.listen(…)`: the changes of a server as they happen, for as long as somebody wants to hear of them.

Owns the subscription behind one loop: opens it in either era, opens it anew when the stream or the connection
is lost, and says so then. Changes of one thing that nobody has looked at yet are one change, so that a slow
reader costs no memory. How a connection is opened is the conversation's business.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypeAlias

from toolpost.channel import unattended
from toolpost.client.backoff import Backoff
from toolpost.client.call import Limits
from toolpost.client.listen import FINAL, Listener
from toolpost.client.subscription import Hear, Subscription
from toolpost.errors import MCPError, NotDeclared
from toolpost.protocol.events import NoticeReceived
from toolpost.types.notices import ResourceUpdatedParams, SubscriptionFilter

if TYPE_CHECKING:
    from toolpost.client.conversation import Conversation
    from toolpost.client.link import Link

__all__ = ["Change", "Changes", "Kind", "Wanted"]

Kind: TypeAlias = Literal["tools", "prompts", "resources", "resource"]

MAX_PENDING: Final = 1000
"""How many different changes may wait to be looked at. Beyond that a part of a resource is the whole."""

LEAVE_PATIENCE: Final = 2.0
"""Seconds that a server may take to hear that nobody listens any more."""

_LISTS: Final[dict[str, Kind]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}

logger: Final = logging.getLogger("toolpost.client")


class Change(NamedTuple):
    """Something on the server that has changed, so that it is worth reading again.

    Attributes:
        kind: the list of "tools", "prompts" or "resources" (and templates), or a "resource".
        uri: which resource; None for a list.
        missed: whether it only may have changed: the connection or the stream was lost for a while, and
            nobody knows what happened meanwhile.

    Examples:
        >>> change = Change("resource", "config://shop")
        >>> change.kind, change.uri, change.missed
        ('resource', 'config://shop', False)
    """

    kind: Kind
    uri: str | None = None
    missed: bool = False


class Wanted(NamedTuple):
    """What to hear of: lists, and resources."""

    lists: frozenset[Kind]
    uris: tuple[str, ...]

    @classmethod
    def of(cls, uris: Iterable[str], *, tools: bool, prompts: bool, resources: bool) -> "Wanted":
        """What somebody wants to hear of.

        Raises:
            TypeError: the resources are one string.
        """
        if isinstance(uris, str):
            raise TypeError(f"uris: a list of URIs, such as [{uris!r}], not a string")
        given: dict[Kind, bool] = {"tools": tools, "prompts": prompts, "resources": resources}
        return cls(frozenset[Kind](k for k, wanted in given.items() if wanted), tuple(dict.fromkeys(uris)))

    def offered(self, listener: Listener) -> "Wanted":
        """What is wanted of this server: by default every list that it tells changes of.

        Raises:
            NotDeclared: it does not tell of something that is wanted, or of nothing at all.
        """
        if self.lists or self.uris:
            for kind in sorted(self.lists):
                listener.check_offered(f"{kind}.list_changed")
            if self.uris:
                listener.check_offered("resources.subscribe")
            return self
        lists = frozenset[Kind](k for k in _LISTS.values() if listener.offers(f"{k}.list_changed"))
        if not lists:
            raise NotDeclared("list_changed", "the server does not tell when one of its lists changes")
        return Wanted(lists, ())

    @property
    def filter(self) -> SubscriptionFilter:
        """The same, as the stateless era says it."""
        return SubscriptionFilter(
            tools_list_changed=True if "tools" in self.lists else None,
            prompts_list_changed=True if "prompts" in self.lists else None,
            resources_list_changed=True if "resources" in self.lists else None,
            resource_subscriptions=list(self.uris) or None,
        )

    def whole(self, uri: str) -> str | None:
        """The resource that is wanted and has changed if this one, maybe a part of it, has."""
        if uri in self.uris:
            return uri
        return next((each for each in self.uris if uri.startswith(each.rstrip("/") + "/")), None)


class _Stream:
    """What is listened to in the stateless era: a request of its own, whose stream carries the changes."""

    def __init__(self, listener: Listener, wanted: Wanted, hear: Hear) -> None:
        self._listener = listener
        self._wanted = wanted
        self._hear = hear
        self._subscription: Subscription

    async def open(self, limits: Limits) -> list[str]:
        """Ask to hear; the resources that the server does not want to watch (SUB-5)."""
        self._subscription = await self._listener.listen(self._wanted.filter, self._hear, limits)
        honoured = self._subscription.honoured.result().resource_subscriptions or ()
        return [uri for uri in self._wanted.uris if uri not in honoured]

    async def ended(self) -> None:
        """Return when nothing more will be heard."""
        await asyncio.wait([self._subscription.call.answer])

    async def leave(self) -> None:
        """Ask to hear no more."""
        self._subscription.cancel("nobody listens any more")


class _Session:
    """What is listened to in a session: each resource is asked for, and the rest comes unasked."""

    def __init__(self, listener: Listener, wanted: Wanted, hear: Hear) -> None:
        self._listener = listener
        self._wanted = wanted
        self._hear = hear
        self._taken: list[str] = []

    async def open(self, limits: Limits) -> list[str]:
        """Ask to hear; a server refuses with an error."""
        self._listener.ears.add(self._hear)
        try:
            for uri in self._wanted.uris:
                await self._listener.borrow(uri, limits)
                self._taken.append(uri)
        except BaseException:  # also when the caller no longer waits: nobody hears any more
            self._listener.ears.discard(self._hear)
            self._listener.link.spawn(self.leave())
            raise
        return []

    async def ended(self) -> None:
        """Return when nothing more will be heard."""
        await self._listener.link.over.wait()

    async def leave(self) -> None:
        """Ask to hear no more. A server that does not care is left alone."""
        self._listener.ears.discard(self._hear)
        limits = Limits(timeout=LEAVE_PATIENCE)
        leaving = [self._listener.give_back(uri, limits) for uri in self._taken]
        await asyncio.gather(*leaving, return_exceptions=True)


class Changes:
    """What has changed on a server, one change after the other: `async for change in client.listen(…):`.

    As a context manager it listens from the beginning of the block, so that nothing that is read inside of it
    can change unheard. It is for one loop: afterwards it is over.

    Args:
        talk: the conversation.
        wanted: what to hear of.
        limits: how long the server may take to agree.
    """

    def __init__(self, talk: "Conversation", wanted: Wanted, limits: Limits) -> None:
        self._talk = talk
        self._wanted = wanted
        self._limits = limits
        self._pending: dict[tuple[Kind, str | None], bool] = {}
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self._over = False
        self._held = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._standing: _Stream | _Session | None = None

    # ----------------------------------------------------------------- for the user

    async def __aenter__(self) -> Self:
        """Listen from now on.

        Raises:
            NotDeclared: the server does not tell of something that is wanted.
            MCPError: it does not want to watch a resource, or cannot be reached.
        """
        await self._start()
        self._held = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[Change]:
        """The changes, until the client is closed.

        Raises:
            NotDeclared: the server does not tell of something that is wanted.
            MCPError: it does not want to watch a resource, or cannot be reached (any more).
        """
        try:
            await self._start()
            while self._pending or not self._over:
                while self._pending:
                    (kind, uri), missed = next(iter(self._pending.items()))
                    del self._pending[kind, uri]
                    yield Change(kind, uri, missed)
                if not self._over:
                    self._news.clear()
                    await self._news.wait()
            if self._error is not None:
                raise self._error
        finally:
            if not self._held:
                await self.aclose()

    async def aclose(self, *, tell: bool = True) -> None:
        """Stop listening. Whoever iterates gets what has been heard, and then the end.

        Args:
            tell: whether to tell the server; the end of the connection tells it as well.
        """
        self._over = True
        self._talk.attending.discard(self)
        if self._loop is not asyncio.get_running_loop():
            return  # it never began, or its loop has ended, and all that was in it
        self._news.set()
        keeper, self._keeper = self._keeper, None
        standing, self._standing = self._standing, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if standing is not None and tell:
            with contextlib.suppress(MCPError):  # the server has gone, or does not care
                await standing.leave()

    # ----------------------------------------------------------------- listening

    async def _start(self) -> None:
        if self._loop is not None or self._over:
            return
        self._loop = asyncio.get_running_loop()
        try:
            await self._talk.heal(self._begin, self._limits, safe=True)
        except BaseException:  # also when the caller no longer waits: nobody listens
            await self.aclose()
            raise
        self._talk.attending.add(self)
        self._keeper = self._loop.create_task(self._keep(), name="toolpost changes")

    async def _begin(self, link: "Link", _limits: Limits) -> None:
        wanted, self._wanted = self._wanted, self._wanted.offered(self._talk.listener)
        try:
            self._talk.listener.check_watched(await self._attend(link))
        except BaseException:  # whatever it was: the next try may find a server that offers something else
            self._wanted = wanted
            raise

    async def _attend(self, link: "Link") -> list[str]:
        """Begin to hear over a connection; the resources that the server does not watch."""
        kind = _Stream if link.connection.revision.stateless else _Session
        standing = kind(self._talk.listener, self._wanted, self._hear)
        refused = await standing.open(self._limits)
        self._standing = standing
        return refused

    async def _keep(self) -> None:
        """Listen again whenever nothing is heard any more."""
        backoff = Backoff()
        try:
            while self._standing is not None:
                backoff.stands(self._time())
                await self._standing.ended()
                self._standing = None
                await self._attend_again(backoff)
                self._talk.gap()
                for kind in sorted(self._wanted.lists):
                    self._note(kind, None, missed=True)
                for uri in self._wanted.uris:
                    self._note("resource", uri, missed=True)
        except Exception as error:  # noqa: BLE001 - whoever iterates hears of it, or would wait for ever
            self._error = error
            self._over = True
            self._news.set()

    async def _attend_again(self, backoff: Backoff) -> None:
        while True:
            await asyncio.sleep(backoff.pause(self._time()))
            try:
                with unattended():
                    refused = await self._attend(await self._talk.hold(self._limits))
            except FINAL:
                raise
            except MCPError as error:
                if not self._talk.revivable:
                    raise
                logger.info("changes are not heard of at the moment: %s", error)
            else:
                if refused:
                    logger.warning("the server does not watch %s any more", ", ".join(refused))
                return

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _hear(self, event: NoticeReceived) -> None:
        if isinstance(event.params, ResourceUpdatedParams):
            whole = self._wanted.whole(event.params.uri)
            if whole is not None:
                full = len(self._pending) >= MAX_PENDING
                self._note("resource", whole if full else event.params.uri)
        else:
            kind = _LISTS.get(event.method)
            if kind in self._wanted.lists:
                self._note(kind, None)

    def _note(self, kind: Kind, uri: str | None, *, missed: bool = False) -> None:
        self._pending[kind, uri] = self._pending.get((kind, uri), missed) and missed
        self._news.set()
