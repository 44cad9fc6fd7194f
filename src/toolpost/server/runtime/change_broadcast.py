"""Broadcasts changes of lists and resources to all subscribed conversations and streams.

Merges changes that come together, so that a hundred registrations are a few notifications. Keeps the last
ones for clients that were away. The subscribers send the notifications.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from toolpost.protocol import jsonrpc, methods
from toolpost.protocol.extension import Extension
from toolpost.types.notifications import NotificationParams

LIST_CHANGED: Final = {
    "tools": methods.TOOLS_LIST_CHANGED,
    "prompts": methods.PROMPTS_LIST_CHANGED,
    "resources": methods.RESOURCES_LIST_CHANGED,
}

BROADCAST_INTERVAL: Final = 0.05
"""Seconds between two broadcasts: too short to notice, but enough to merge a hundred registrations."""

MAX_KEPT_CHANGES: Final = 1024
"""Changes that are kept for clients that were away; the same change twice counts once."""

ChangeKey: TypeAlias = tuple[str, str]
"""A change: its method, and its parameters as JSON."""


class KeptChange(NamedTuple):
    """A change with its number."""

    number: int
    method: str
    params: NotificationParams


def make_change_key(method: str, params: NotificationParams) -> ChangeKey:
    """Return the key of a change."""
    return method, jsonrpc.encode(params).decode()


class ChangeSubscriber(Protocol):
    """A receiver of changes."""

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Send a change later, if the client wants it. Never waits."""
        ...


class ChangeBroadcaster:
    """Calls subscribers with changes, each in its own loop. May be called from any thread."""

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        self._extension_rows: dict[str, methods.Row] = {}
        self._rows = {row.name: row for row in methods.ROWS}
        for extension in extensions:
            self.add_extension(extension)
        self._subscribers: dict[ChangeSubscriber, asyncio.AbstractEventLoop] = {}
        self.relays: tuple[Callable[[str, NotificationParams], object], ...] = ()
        """Called with every change, in its thread: the servers that this one is mounted in."""
        self._pending: dict[asyncio.AbstractEventLoop, dict[ChangeKey, NotificationParams]] = {}
        self._last_flush: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self.position = time.time_ns() >> 10  # the last change; no other process has the same numbers
        self._kept: OrderedDict[ChangeKey, KeptChange] = OrderedDict()
        self._forgotten = self.position  # the last change that is not kept any more

    def add_extension(self, extension: Extension) -> None:
        """Accept the notifications of an extension."""
        self._extension_rows.update(extension.rows)
        self._rows.update(extension.rows)

    def get_changes_after(self, position: int) -> list[KeptChange] | None:
        """Return the changes since a position, oldest first; None if some are lost, or it is unknown."""
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

    def broadcast_list_changed(self, name: str) -> None:
        """Broadcast that a list has changed: "tools", "prompts" or "resources"."""
        self.broadcast(LIST_CHANGED[name], NotificationParams())

    def broadcast_notification(self, method: str, params: NotificationParams) -> None:
        """Broadcast a notification of an extension."""
        if method not in self._extension_rows:
            raise ValueError(f"no extension of this server defines the notification {method}")
        self.broadcast(method, params)

    def repeat(self, key: ChangeKey, *, exclude: ChangeSubscriber) -> None:
        """Broadcast a change that another worker reported, to all subscribers here but `exclude`."""
        method, encoded = key
        params = self._rows[method].read_params.decode(encoded.encode())
        self._keep(key, params)
        for subscriber, loop in self._subscribers.copy().items():
            if subscriber is not exclude and loop is asyncio.get_running_loop():
                subscriber.on_change(method, params)

    def _keep(self, key: ChangeKey, params: NotificationParams) -> None:
        """Keep a change for clients that are away."""
        with self._lock:
            self.position += 1
            self._kept[key] = KeptChange(self.position, key[0], params)
            self._kept.move_to_end(key)
            if len(self._kept) > MAX_KEPT_CHANGES:
                self._forgotten = self._kept.popitem(last=False)[1].number

    def broadcast(self, method: str, params: NotificationParams) -> None:
        """Broadcast a change."""
        key = make_change_key(method, params)
        self._keep(key, params)
        for relay in self.relays:
            relay(method, params)
        for loop in set(self._subscribers.copy().values()):
            with self._lock:
                pending = self._pending.setdefault(loop, {})
                first = not pending
                pending[key] = params
            if first and not loop.is_closed():
                loop.call_soon_threadsafe(self._schedule, loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send a single change at once, and many together: one broadcast per `BROADCAST_INTERVAL`."""
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
    """The changes that one subscriber has not sent yet; the same change twice counts once."""

    __slots__ = ("_available", "_changes", "_is_closed")

    def __init__(self) -> None:
        self._changes: dict[ChangeKey, tuple[str, NotificationParams]] = {}
        self._available: asyncio.Event | None = None  # made on first use: sessions do not need it
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
        """Wait for the oldest change and return it; None after the last."""
        while not self._changes:
            if self._is_closed:
                return None
            self._available = asyncio.Event()
            await self._available.wait()
        return self.pop()

    def pop(self) -> tuple[str, NotificationParams]:
        """Return the oldest change; there has to be one."""
        return self._changes.pop(next(iter(self._changes)))
