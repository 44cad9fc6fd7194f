"""Broadcasts changes of lists and resources to all subscribed conversations and streams.

Changes that come together are merged, so that a hundred registrations are a few notifications. The last ones
are kept, for clients that were away. How a notification is sent is the subscriber's business.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from typing import Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from toolpost.protocol.methods import (
    ELICITATION_COMPLETE,
    PROMPTS_LIST_CHANGED,
    RESOURCES_LIST_CHANGED,
    RESOURCES_UPDATED,
    TOOLS_LIST_CHANGED,
)
from toolpost.types.notifications import (
    ElicitationCompleteParams,
    NotificationParams,
    ResourceUpdatedParams,
    SubscriptionFilter,
)

LIST_CHANGED: Final = {
    "tools": TOOLS_LIST_CHANGED,
    "prompts": PROMPTS_LIST_CHANGED,
    "resources": RESOURCES_LIST_CHANGED,
}

BROADCAST_INTERVAL: Final = 0.05
"""Seconds between two broadcasts: short for people, long for a hundred registrations."""

MAX_KEPT_CHANGES: Final = 1024
"""Changes that are kept for clients that were away; the same change twice counts once."""

ChangeKey: TypeAlias = tuple[str, str]
"""A change: its method, and the URI of a resource or the id of an elicitation."""


class KeptChange(NamedTuple):
    """A change with its number."""

    number: int
    method: str
    params: NotificationParams


def make_change_key(method: str, params: NotificationParams) -> ChangeKey:
    """Return the key of a change."""
    if isinstance(params, ResourceUpdatedParams):
        return method, params.uri
    return method, params.elicitation_id if isinstance(params, ElicitationCompleteParams) else ""


class ChangeSubscriber(Protocol):
    """A receiver of changes."""

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Note a change, and send it if the client wants it. Never waits."""
        ...


class ChangeBroadcaster:
    """Calls subscribers with changes, each in its own loop. May be called from any thread."""

    def __init__(self) -> None:
        self._subscribers: dict[ChangeSubscriber, asyncio.AbstractEventLoop] = {}
        self._pending: dict[asyncio.AbstractEventLoop, dict[ChangeKey, NotificationParams]] = {}
        self._last_flush: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self.position = time.time_ns() >> 10  # a position of another process means nothing here
        """The number of the last change."""
        self._kept: OrderedDict[ChangeKey, KeptChange] = OrderedDict()
        self._forgotten = self.position
        """The number of the last change that is not kept any more."""

    def get_changes_after(self, position: int) -> list[KeptChange] | None:
        """Return the changes since a position, oldest first; None if some are gone, or it is unknown."""
        with self._lock:
            if not self._forgotten <= position <= self.position:
                return None
            return [change for change in self._kept.values() if change.number > position]

    def add_subscriber(self, listener: ChangeSubscriber) -> None:
        """Add a subscriber, in the running loop."""
        self._subscribers[listener] = asyncio.get_running_loop()

    def remove_subscriber(self, listener: ChangeSubscriber) -> None:
        """Remove a subscriber."""
        self._subscribers.pop(listener, None)

    def get_subscribers(self) -> tuple[ChangeSubscriber, ...]:
        """Return the current subscribers."""
        return tuple(self._subscribers.copy())

    def broadcast_list_changed(self, what: str) -> None:
        """Broadcast that a list has changed: "tools", "prompts" or "resources"."""
        self._enqueue((LIST_CHANGED[what], ""))

    def broadcast_resource_updated(self, uri: str) -> None:
        """Broadcast that a resource has changed."""
        self._enqueue((RESOURCES_UPDATED, uri))

    def broadcast_elicitation_complete(self, elicitation_id: str) -> None:
        """Broadcast that a user is done with the URL of an elicitation."""
        self._enqueue((ELICITATION_COMPLETE, elicitation_id))

    def repeat(self, key: ChangeKey, *, besides: ChangeSubscriber) -> None:
        """Broadcast a change that another worker has reported to the subscriber `besides`."""
        change = self._keep(key)
        for subscriber, loop in self._subscribers.copy().items():
            if subscriber is not besides and loop is asyncio.get_running_loop():
                subscriber.on_change(change.method, change.params)

    def _keep(self, key: ChangeKey) -> KeptChange:
        """Keep a change for clients that are away, and return it."""
        method, about = key
        params = NotificationParams()
        if method == RESOURCES_UPDATED:
            params = ResourceUpdatedParams(uri=about)
        elif method == ELICITATION_COMPLETE:
            params = ElicitationCompleteParams(elicitation_id=about)
        with self._lock:
            self.position += 1
            change = self._kept[key] = KeptChange(self.position, method, params)
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_KEPT_CHANGES:
                self._forgotten = self._kept.popitem(last=False)[1].number
        return change

    def _enqueue(self, key: ChangeKey) -> None:
        params = self._keep(key).params
        for loop in set(self._subscribers.copy().values()):
            with self._lock:
                pending = self._pending.setdefault(loop, {})
                first = not pending
                pending[key] = params
            if first and not loop.is_closed():
                loop.call_soon_threadsafe(self._schedule, loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send a single change at once, and many together, at most every `BROADCAST_INTERVAL`."""
        due = self._last_flush.get(loop, 0.0) + BROADCAST_INTERVAL
        if due <= loop.time():
            self._flush(loop)
        else:
            loop.call_at(due, self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last_flush[loop] = loop.time()
        with self._lock:
            pending = self._pending.pop(loop, {})
        for (method, _), params in pending.items():
            for listener, home in tuple(self._subscribers.items()):
                if home is loop:
                    listener.on_change(method, params)


class PendingChanges:
    """The changes that one subscriber has not sent yet. The same change twice counts once."""

    __slots__ = ("_available", "_changes", "_is_closed")

    def __init__(self) -> None:
        self._changes: dict[ChangeKey, tuple[str, NotificationParams]] = {}
        self._available: asyncio.Event | None = None  # made when it is needed: sessions have no use for it
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, method: str, params: NotificationParams) -> None:
        """Add a change."""
        self._changes[make_change_key(method, params)] = (method, params)
        self._wake()

    def end(self) -> None:
        """End `take`, once all changes are taken."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._available is not None:
            self._available.set()

    async def take(self) -> tuple[str, NotificationParams] | None:
        """Return the oldest change, waiting for one if need be; None after the last."""
        while not self._changes:
            if self._is_closed:
                return None
            self._available = asyncio.Event()
            await self._available.wait()
        return self.pop()

    def pop(self) -> tuple[str, NotificationParams]:
        """Return the oldest change; there has to be one."""
        return self._changes.pop(next(iter(self._changes)))


_FILTER_FIELDS: Final = {
    LIST_CHANGED["tools"]: "tools_list_changed",
    LIST_CHANGED["prompts"]: "prompts_list_changed",
    LIST_CHANGED["resources"]: "resources_list_changed",
}


def is_requested(wishes: SubscriptionFilter, method: str, params: NotificationParams) -> bool:
    """Return whether a filter asks for a change (SUB-1)."""
    if isinstance(params, ResourceUpdatedParams):
        return params.uri in (wishes.resource_subscriptions or ())
    return method in _FILTER_FIELDS and bool(getattr(wishes, _FILTER_FIELDS[method]))
