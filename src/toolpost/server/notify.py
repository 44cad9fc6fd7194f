"""Who hears of a change: every conversation that may, each in the way of its era.

Changes that come together are told together, so that a hundred registrations are a few notices. Owns the set
of listeners; what a notice looks like on a wire is theirs to know.
"""

import asyncio
import threading
from typing import Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from toolpost.types.notices import (
    ElicitationCompleteParams,
    NoticeParams,
    ResourceUpdatedParams,
    SubscriptionFilter,
)

__all__ = ["COMPLETE", "LIST_CHANGED", "Announcer", "Bulletin", "Listener", "wants"]

LIST_CHANGED: Final = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
_UPDATED: Final = "notifications/resources/updated"
COMPLETE: Final = "notifications/elicitation/complete"


PACE: Final = 0.05
"""Seconds between two rounds of news: nobody notices, and a hundred registrations are a few notices."""

Key: TypeAlias = tuple[str, str]
"""What a notice is about: its method, and the URI of a resource or the id of an elicitation."""


class Listener(Protocol):
    """Somebody at the other end."""

    def hear(self, method: str, params: NoticeParams) -> None:
        """Take note of a notice, and send it if the peer wants it. Never waits."""
        ...


class Announcer:
    """Tells listeners what has changed, each in its own loop. May be told from any thread."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, asyncio.AbstractEventLoop] = {}
        self._pending: dict[asyncio.AbstractEventLoop, dict[Key, NoticeParams]] = {}
        self._told: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
        self._gate = threading.Lock()

    def join(self, listener: Listener) -> None:
        """Tell this one too, from now on."""
        self._listeners[listener] = asyncio.get_running_loop()

    def leave(self, listener: Listener) -> None:
        """Tell this one no longer."""
        self._listeners.pop(listener, None)

    def everybody(self) -> tuple[Listener, ...]:
        """Those who are told at the moment."""
        return tuple(self._listeners.copy())

    def list_changed(self, what: str) -> None:
        """A list has changed: "tools", "prompts" or "resources"."""
        self._note((LIST_CHANGED[what], ""), NoticeParams())

    def updated(self, uri: str) -> None:
        """A resource has changed."""
        self._note((_UPDATED, uri), ResourceUpdatedParams(uri=uri))

    def completed(self, elicitation_id: str) -> None:
        """A user is done with the URL that they were sent to."""
        params = ElicitationCompleteParams(elicitation_id=elicitation_id)
        self._note((COMPLETE, elicitation_id), params)

    def _note(self, key: Key, params: NoticeParams) -> None:
        # Who comes later reads the lists as they are then.
        for loop in set(self._listeners.copy().values()):
            with self._gate:
                pending = self._pending.setdefault(loop, {})
                first = not pending
                pending[key] = params
            if first and not loop.is_closed():
                loop.call_soon_threadsafe(self._schedule, loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell at once what comes alone, and together what comes in a flurry, from a thread perhaps."""
        due = self._told.get(loop, 0.0) + PACE
        if due <= loop.time():
            self._tell(loop)
        else:
            loop.call_at(due, self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._told[loop] = loop.time()
        with self._gate:
            pending = self._pending.pop(loop, {})
        for (method, _), params in pending.items():
            # Of now: who is among them does not sleep before it was told, since it is held here.
            for listener, home in tuple(self._listeners.items()):
                if home is loop:
                    listener.hear(method, params)


class Bulletin:
    """What one listener has not been told yet. The same news twice is told once: it cannot grow for ever."""

    __slots__ = ("_any", "_ended", "_news")

    def __init__(self) -> None:
        self._news: dict[Key, tuple[str, NoticeParams]] = {}
        self._any: asyncio.Event | None = None  # 0.8 KiB, which a session has no use for
        self._ended = False

    def __len__(self) -> int:
        return len(self._news)

    def note(self, method: str, params: NoticeParams) -> None:
        """Put a notice up."""
        about = ""
        if isinstance(params, ResourceUpdatedParams):
            about = params.uri
        elif isinstance(params, ElicitationCompleteParams):
            about = params.elicitation_id
        self._news[method, about] = (method, params)
        self._wake()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._any is not None:
            self._any.set()

    async def take(self) -> tuple[str, NoticeParams] | None:
        """Take the oldest notice down, waiting for one if need be; None behind the last."""
        while not self._news:
            if self._ended:
                return None
            self._any = asyncio.Event()
            await self._any.wait()
        return self.pop()

    def pop(self) -> tuple[str, NoticeParams]:
        """Take the oldest notice down; there is one."""
        return self._news.pop(next(iter(self._news)))


_WISHES: Final = {
    LIST_CHANGED["tools"]: "tools_list_changed",
    LIST_CHANGED["prompts"]: "prompts_list_changed",
    LIST_CHANGED["resources"]: "resources_list_changed",
}


def wants(wishes: SubscriptionFilter, method: str, params: NoticeParams) -> bool:
    """Whether a notice was asked for (SUB-1)."""
    if isinstance(params, ResourceUpdatedParams):
        return params.uri in (wishes.resource_subscriptions or ())
    return method in _WISHES and bool(getattr(wishes, _WISHES[method]))
