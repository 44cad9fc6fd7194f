"""Who hears of a change: every conversation that may, each in the way of its era.

Changes are gathered and told once per turn of the loop, so that a hundred registrations are one notice. Owns
the set of listeners; what a notice looks like on a wire is theirs to know.
"""

import asyncio
from typing import Final, Protocol

from toolpost.types.notices import NoticeParams, ResourceUpdatedParams, SubscriptionFilter

__all__ = ["LIST_CHANGED", "Announcer", "Listener", "wants"]

LIST_CHANGED: Final = {
    "tools": "notifications/tools/list_changed",
    "prompts": "notifications/prompts/list_changed",
    "resources": "notifications/resources/list_changed",
}
_UPDATED: Final = "notifications/resources/updated"


class Listener(Protocol):
    """Somebody at the other end."""

    def hear(self, method: str, params: NoticeParams) -> None:
        """Take note of a notice, and send it if the peer wants it. Never waits."""
        ...


class Announcer:
    """Tells listeners what has changed. May be told from any thread."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: dict[tuple[str, str], NoticeParams] = {}

    def join(self, listener: Listener) -> None:
        """Tell this one too, from now on."""
        self._loop = asyncio.get_running_loop()
        self._listeners.add(listener)

    def leave(self, listener: Listener) -> None:
        """Tell this one no longer."""
        self._listeners.discard(listener)

    def list_changed(self, what: str) -> None:
        """A list has changed: "tools", "prompts" or "resources"."""
        self._note((LIST_CHANGED[what], ""), NoticeParams())

    def updated(self, uri: str) -> None:
        """A resource has changed."""
        self._note((_UPDATED, uri), ResourceUpdatedParams(uri=uri))

    def _note(self, key: tuple[str, str], params: NoticeParams) -> None:
        if not self._listeners or self._loop is None:
            return  # nobody is there to hear it, and who comes later reads the lists as they are then
        if key not in self._pending:
            self._pending[key] = params
            if len(self._pending) == 1:
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        pending, self._pending = self._pending, {}
        for (method, _), params in pending.items():
            for listener in tuple(self._listeners):
                listener.hear(method, params)


_WISHES: Final = {
    LIST_CHANGED["tools"]: "tools_list_changed",
    LIST_CHANGED["prompts"]: "prompts_list_changed",
    LIST_CHANGED["resources"]: "resources_list_changed",
}


def wants(wishes: SubscriptionFilter, method: str, params: NoticeParams) -> bool:
    """Whether a notice was asked for (SUB-1)."""
    if isinstance(params, ResourceUpdatedParams):
        return params.uri in (wishes.resource_subscriptions or ())
    return bool(getattr(wishes, _WISHES[method]))
