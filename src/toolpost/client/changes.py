"""`client.listen(…)`: the changes of a server as they happen.

Owns the subscription behind one loop: opens it in either era, opens it again when the stream or the
connection is lost, and reports the gap. Unread changes of one thing are merged, so that a slow reader costs
no memory. Opening connections is left to the session.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from toolpost.channel import mark_unattended
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.reconnect import Backoff
from toolpost.client.subscriptions import (
    FINAL_ERRORS,
    LISTS,
    ChangeKind,
    ChangeListener,
    NotificationObserver,
    Subscription,
    make_filter,
)
from toolpost.errors import CapabilityNotDeclared, MCPError
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.methods import PROMPTS_LIST_CHANGED, RESOURCES_LIST_CHANGED, TOOLS_LIST_CHANGED
from toolpost.types.notifications import ResourceUpdatedParams

if TYPE_CHECKING:
    from toolpost.client.connection.dispatcher import Dispatcher
    from toolpost.client.connection.session import ClientSession

MAX_PENDING_CHANGES: Final = 1000  # beyond that, a change of a part of a resource is merged into the whole
UNSUBSCRIBE_TIMEOUT: Final = 2.0  # seconds that unsubscribing may take

_LIST_NOTIFICATIONS: Final[dict[str, ChangeKind]] = {
    TOOLS_LIST_CHANGED: "tools",
    PROMPTS_LIST_CHANGED: "prompts",
    RESOURCES_LIST_CHANGED: "resources",
}

logger: Final = logging.getLogger("toolpost.client")


class Change(NamedTuple):
    """A change on the server: a list or a resource may have new contents.

    Attributes:
        kind: the list of "tools", "prompts" or "resources" (and templates), or a "resource".
        uri: which resource; None for a list.
        missed: True if it may have changed while the connection or the stream was lost.

    Examples:
        >>> change = Change("resource", "config://shop")
        >>> change.kind, change.uri, change.missed
        ('resource', 'config://shop', False)
    """

    kind: ChangeKind
    uri: str | None = None
    missed: bool = False


class ChangeFilter(NamedTuple):
    """Which lists and resources to watch."""

    lists: frozenset[ChangeKind]
    uris: tuple[str, ...]

    @classmethod
    def create(cls, uris: Iterable[str], *, tools: bool, prompts: bool, resources: bool) -> "ChangeFilter":
        """Build a filter from the arguments of `listen`."""
        if isinstance(uris, str):
            raise TypeError(f"uris must be a list of URIs, such as [{uris!r}], not a string")
        wanted = zip(LISTS, (tools, prompts, resources), strict=True)
        return cls(
            frozenset[ChangeKind](k for k, is_wanted in wanted if is_wanted), tuple(dict.fromkeys(uris))
        )

    def resolve(self, listener: ChangeListener) -> "ChangeFilter":
        """Check the filter against the server's capabilities; an empty one means every list it announces."""
        if self.lists or self.uris:
            for kind in sorted(self.lists):
                listener.check_offered(f"{kind}.list_changed")
            if self.uris:
                listener.check_offered("resources.subscribe")
            return self
        lists = frozenset[ChangeKind](k for k in LISTS if listener.has_capability(f"{k}.list_changed"))
        if not lists:
            raise CapabilityNotDeclared("list_changed", "the server does not report list changes")
        return ChangeFilter(lists, ())

    def find_subscribed_uri(self, uri: str) -> str | None:
        """Return the watched resource that this one is, or is a part of."""
        if uri in self.uris:
            return uri
        return next((each for each in self.uris if uri.startswith(each.rstrip("/") + "/")), None)


class _SessionSubscription:
    """A subscription in a session: one request per resource; changes of lists come without one."""

    def __init__(self, listener: ChangeListener, observer: NotificationObserver) -> None:
        self._listener = listener
        self._observer = observer
        self._acquired_uris: list[str] = []

    async def open(self, uris: Iterable[str], limits: CallLimits) -> None:
        """Subscribe; a server refuses with an error."""
        self._listener.observers.add(self._observer)
        try:
            for uri in uris:
                await self._listener.acquire_uri(uri, limits)
                self._acquired_uris.append(uri)
        except BaseException:  # also a cancellation: no reader is left
            self._listener.observers.discard(self._observer)
            self._listener.dispatcher.spawn(self.close())
            raise

    async def wait_ended(self) -> None:
        """Wait until the connection has ended."""
        await self._listener.dispatcher.ended_event.wait()

    async def close(self) -> None:
        """Unsubscribe, ignoring errors."""
        self._listener.observers.discard(self._observer)
        limits = CallLimits(timeout=UNSUBSCRIBE_TIMEOUT)
        leaving = [self._listener.release_uri(uri, limits) for uri in self._acquired_uris]
        await asyncio.gather(*leaving, return_exceptions=True)


class ChangeStream:
    """The changes on a server, in order: `async for change in client.listen(…):`.

    As a context manager it subscribes at the beginning of the block, so that it misses no change of a list
    that the block reads. It serves one loop.
    """

    def __init__(self, session: "ClientSession", wanted: ChangeFilter, limits: CallLimits) -> None:
        self._session = session
        self._requested_filter = self._filter = wanted
        self._limits = limits
        self._pending: dict[tuple[ChangeKind, str | None], bool] = {}
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._is_over = False
        self._is_entered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listen_task: asyncio.Task[None] | None = None
        self._subscription: Subscription | _SessionSubscription | None = None

    async def __aenter__(self) -> Self:
        """Listen from now on."""
        await self.start()
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[Change]:
        """The changes, until the client is closed."""
        try:
            await self.start()
            while self._pending or not self._is_over:
                while self._pending:
                    (kind, uri), missed = next(iter(self._pending.items()))
                    del self._pending[kind, uri]
                    yield Change(kind, uri, missed)
                if not self._is_over:
                    self._changed.clear()
                    await self._changed.wait()
            if self._error is not None:
                raise self._error
        finally:
            if not self._is_entered:
                await self.aclose()

    async def aclose(self, *, unsubscribe: bool = True) -> None:
        """Stop listening. The loop gets the changes that have arrived, and then ends.

        `unsubscribe` is not needed if the connection is about to be closed.
        """
        self._is_over = True
        self._session.change_streams.discard(self)
        if self._loop is not asyncio.get_running_loop():
            return  # it never began, or its event loop has ended
        self._changed.set()
        task, self._listen_task = self._listen_task, None
        subscription, self._subscription = self._subscription, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if subscription is not None and unsubscribe:
            with contextlib.suppress(MCPError):  # the server is gone, or has no such subscription
                await subscription.close()

    # ----------------------------------------------------------------- listening

    async def start(self) -> None:
        """Subscribe, unless already subscribed."""
        if self._loop is not None or self._is_over:
            return
        self._loop = asyncio.get_running_loop()
        try:
            await self._session.run_with_retry(self._subscribe_first, self._limits, safe=True)
        except BaseException:  # also a cancellation: no reader is left
            await self.aclose()
            raise
        self._session.change_streams.add(self)
        self._listen_task = self._loop.create_task(self._keep_subscribed(), name="toolpost changes")

    async def _subscribe_first(self, dispatcher: "Dispatcher", _limits: CallLimits) -> None:
        # Each try resolves it again: the next server may offer something else.
        self._filter = self._requested_filter.resolve(self._session.listener)
        self._session.listener.check_none_refused(await self._subscribe(dispatcher))

    async def _subscribe(self, dispatcher: "Dispatcher") -> list[str]:
        """Subscribe over a connection; return the resources that the server does not watch."""
        listener, wanted = self._session.listener, self._filter
        if not dispatcher.connection.revision.stateless:
            subscription = _SessionSubscription(listener, self._on_notification)
            await subscription.open(wanted.uris, self._limits)
            self._subscription = subscription
            return []
        self._subscription = subscription = await listener.open(
            make_filter(wanted.lists, wanted.uris), self._limits, self._on_notification
        )
        watched = subscription.acknowledgement.result().resource_subscriptions or ()
        return [uri for uri in wanted.uris if uri not in watched]

    async def _keep_subscribed(self) -> None:
        """Subscribe again whenever the subscription ends."""
        backoff = Backoff()
        try:
            while self._subscription is not None:
                backoff.mark_working(asyncio.get_running_loop().time())
                await self._subscription.wait_ended()
                self._subscription = None
                await self._resubscribe(backoff)
                self._session.record_gap()
                for kind in sorted(self._filter.lists):
                    self._record_change(kind, None, missed=True)
                for uri in self._filter.uris:
                    self._record_change("resource", uri, missed=True)
        except Exception as error:  # noqa: BLE001 - the loop raises it instead of waiting without end
            self._error = error
            self._is_over = True
            self._changed.set()

    async def _resubscribe(self, backoff: Backoff) -> None:
        while True:
            await asyncio.sleep(backoff.next_delay(asyncio.get_running_loop().time()))
            try:
                with mark_unattended():
                    await self._session.wait_connected(self._limits)
                    refused = await self._subscribe(self._session.dispatcher)
            except FINAL_ERRORS:
                raise
            except MCPError as error:
                if not self._session.reconnector.can_reconnect:
                    raise
                logger.info("not receiving change notifications at the moment: %.1000s", error)
            else:
                if refused:
                    logger.warning("the server no longer watches %.1000s", ", ".join(refused))
                return

    def _on_notification(self, event: NotificationReceived) -> None:
        if isinstance(event.params, ResourceUpdatedParams):
            whole = self._filter.find_subscribed_uri(event.params.uri)
            if whole is not None:
                full = len(self._pending) >= MAX_PENDING_CHANGES
                self._record_change("resource", whole if full else event.params.uri)
        else:
            kind = _LIST_NOTIFICATIONS.get(event.method)
            if kind in self._filter.lists:
                self._record_change(kind, None)

    def _record_change(self, kind: ChangeKind, uri: str | None, *, missed: bool = False) -> None:
        self._pending[kind, uri] = self._pending.get((kind, uri), missed) and missed
        self._changed.set()
