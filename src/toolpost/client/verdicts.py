"""What was found out about servers, for the next client in this process: revision, and which of two ways.

Keeps one verdict for each key, the oldest goes first. Owns no clock: a verdict lasts until it proves wrong
(VER-7).
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from toolpost.protocol.revisions import Revision

__all__ = ["MAX_CACHED_REVISIONS", "REVISION_CACHE", "CachedRevision", "RevisionCache"]

MAX_CACHED_REVISIONS: Final = 256
"""How many servers are remembered; a forgotten one costs a probe."""


class CachedRevision(NamedTuple):
    """What a server speaks.

    Args:
        revision: the one that was spoken.
        via_fallback: whether it was reached by the fallback of the way only.
    """

    revision: Revision
    via_fallback: bool = False


class RevisionCache:
    """Verdicts by key, a bounded number of them. A key of None stands for nobody."""

    def __init__(self, limit: int = MAX_CACHED_REVISIONS) -> None:
        self._limit = limit
        self._entries: OrderedDict[str, CachedRevision] = OrderedDict()

    def find(self, key: str | None) -> CachedRevision | None:
        """What is known; None if nothing is."""
        return None if key is None else self._entries.get(key)

    def put(self, key: str | None, verdict: CachedRevision) -> None:
        """Remember a verdict."""
        if key is not None:
            self._entries[key] = verdict
            self._entries.move_to_end(key)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def drop(self, key: str | None) -> None:
        """Forget a verdict: it has proven wrong, or may be old."""
        if key is not None:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()


REVISION_CACHE: Final = RevisionCache()
"""Those of this process."""
