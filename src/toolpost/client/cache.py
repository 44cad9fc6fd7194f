"""Answers that a stateless server allows to be kept for a while, so that they need not be asked for again.

Owns how long each is fresh and what makes it stale earlier (CACHE-7 … CACHE-17). It belongs to one client,
and so to one authorization context. Has no clock of its own: it is told the time.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from toolpost.protocol.events import NoticeReceived
from toolpost.types.lifecycle import Cacheable
from toolpost.types.notices import ResourceUpdatedParams

__all__ = ["MAX_ENTRIES", "MAX_FRESH", "ResponseCache"]

MAX_ENTRIES: Final = 512
"""How many answers are kept: all lists of a large server and the resources that are in use."""

MAX_FRESH: Final = 24 * 60 * 60.0
"""Seconds that an answer is fresh at most, whatever the server says: a slip of digits must not last."""

_STALE: Final = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
"""What a notice makes stale."""


class _Entry(NamedTuple):
    raw: bytes
    until: float


class ResponseCache:
    """The answers of one connection.

    Args:
        limit: how many to keep; the one that was used longest ago goes first.
    """

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str, str | None], _Entry] = OrderedDict()
        self.turn = 0
        """Moves on when something becomes stale: an answer that was asked for before that is not kept."""

    def find(self, method: str, which: str | None, now: float) -> bytes | None:
        """The bytes of a result that is fresh; None if there is none.

        Args:
            method: what was asked.
            which: the parameter that the result depends on: a cursor or a URI.
            now: the time, by the loop's clock.
        """
        key = (method, which)
        entry = self._kept.get(key)
        if entry is None:
            return None
        if now >= entry.until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return entry.raw

    def keep(self, method: str, which: str | None, result: Cacheable, now: float, turn: int) -> None:
        """Keep a result as long as it says, unless something has become stale since `turn`."""
        ttl = min(result.ttl_ms or 0, MAX_FRESH * 1000) / 1000
        if ttl <= 0 or turn != self.turn:
            return
        self._kept[method, which] = _Entry(result.raw or b"{}", now + ttl)
        self._kept.move_to_end((method, which))
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def hear(self, event: NoticeReceived) -> None:
        """Forget what a notice makes stale (CACHE-17)."""
        if isinstance(event.params, ResourceUpdatedParams):
            self.turn += 1
            changed = event.params.uri  # maybe only a part of what was read
            for method, uri in list(self._kept):
                if method == "resources/read" and uri is not None and _holds(uri, changed):
                    del self._kept[method, uri]
        else:
            self.drop(*_STALE.get(event.method, ()))

    def drop(self, *methods: str) -> None:
        """Forget all answers to some methods."""
        if methods:
            self.turn += 1
            for key in [key for key in self._kept if key[0] in methods]:
                del self._kept[key]

    def clear(self) -> None:
        """Forget everything: changes may have been missed, or it may be another server."""
        self.turn += 1
        self._kept.clear()


def _holds(whole: str, uri: str) -> bool:
    """Whether a resource is another one or has it as a part."""
    return uri == whole or uri.startswith(whole.rstrip("/") + "/")
