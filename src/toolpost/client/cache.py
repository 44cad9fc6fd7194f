"""Answers that a stateless server allows to be kept for a while, so that they need not be asked for again.

Owns how long each is fresh and what makes it stale earlier (CACHE-7 … CACHE-17). It belongs to one client,
and so to one authorization context. Has no clock of its own: it is told the time.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from toolpost.protocol.events import NotificationReceived
from toolpost.types.lifecycle import CacheableResult
from toolpost.types.notices import ResourceUpdatedParams

__all__ = ["MAX_CACHE_ENTRIES", "MAX_CACHE_TTL", "ResponseCache"]

MAX_CACHE_ENTRIES: Final = 512
"""How many answers are kept: all lists of a large server and the resources that are in use."""

MAX_CACHE_TTL: Final = 24 * 60 * 60.0
"""Seconds that an answer is fresh at most, whatever the server says: a slip of digits must not last."""

_STALE_METHODS: Final = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
"""What a notice makes stale."""


class _CachedResponse(NamedTuple):
    raw: bytes
    until: float


class ResponseCache:
    """The answers of one connection.

    Args:
        limit: how many to keep; the one that was used longest ago goes first.
    """

    def __init__(self, limit: int = MAX_CACHE_ENTRIES) -> None:
        self._limit = limit
        self._entries: OrderedDict[tuple[str, str | None], _CachedResponse] = OrderedDict()
        self.version = 0
        """Moves on when something becomes stale: an answer that was asked for before that is not kept."""

    def find(self, method: str, which: str | None, now: float) -> bytes | None:
        """The bytes of a result that is fresh; None if there is none.

        Args:
            method: what was asked.
            which: the parameter that the result depends on: a cursor or a URI.
            now: the time, by the loop's clock.
        """
        key = (method, which)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.until:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry.raw

    def store(self, method: str, which: str | None, result: CacheableResult, now: float, turn: int) -> None:
        """Keep a result as long as it says, unless something has become stale since `turn`."""
        ttl = min(result.ttl_ms or 0, MAX_CACHE_TTL * 1000) / 1000
        if ttl <= 0 or turn != self.version:
            return
        self._entries[method, which] = _CachedResponse(result.raw or b"{}", now + ttl)
        self._entries.move_to_end((method, which))
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def invalidate(self, event: NotificationReceived) -> None:
        """Forget what a notice makes stale (CACHE-17)."""
        if isinstance(event.params, ResourceUpdatedParams):
            self.version += 1
            changed = event.params.uri  # maybe only a part of what was read
            for method, uri in list(self._entries):
                if method == "resources/read" and uri is not None and _contains_uri(uri, changed):
                    del self._entries[method, uri]
        else:
            self.drop(*_STALE_METHODS.get(event.method, ()))

    def drop(self, *methods: str) -> None:
        """Forget all answers to some methods."""
        if methods:
            self.version += 1
            for key in [key for key in self._entries if key[0] in methods]:
                del self._entries[key]

    def clear(self) -> None:
        """Forget everything: changes may have been missed, or it may be another server."""
        self.version += 1
        self._entries.clear()


def _contains_uri(whole: str, uri: str) -> bool:
    """Whether a resource is another one or has it as a part."""
    return uri == whole or uri.startswith(whole.rstrip("/") + "/")
