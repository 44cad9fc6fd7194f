"""What was found out about servers, for the next client in this process: revision, and which of two ways.

Keeps one verdict for each key, the oldest goes first. Owns no clock: a verdict lasts until it proves wrong
(VER-7).
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from toolpost.protocol.revisions import Revision

__all__ = ["MAX_VERDICTS", "VERDICTS", "Verdict", "Verdicts"]

MAX_VERDICTS: Final = 256
"""How many servers are remembered; a forgotten one costs a probe."""


class Verdict(NamedTuple):
    """What a server speaks.

    Args:
        revision: the one that was spoken.
        detour: whether it was reached by the fallback of the way only.
    """

    revision: Revision
    detour: bool = False


class Verdicts:
    """Verdicts by key, a bounded number of them. A key of None stands for nobody."""

    def __init__(self, limit: int = MAX_VERDICTS) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Verdict] = OrderedDict()

    def find(self, key: str | None) -> Verdict | None:
        """What is known; None if nothing is."""
        return None if key is None else self._known.get(key)

    def keep(self, key: str | None, verdict: Verdict) -> None:
        """Remember a verdict."""
        if key is not None:
            self._known[key] = verdict
            self._known.move_to_end(key)
            if len(self._known) > self._limit:
                self._known.popitem(last=False)

    def drop(self, key: str | None) -> None:
        """Forget a verdict: it has proven wrong, or may be old."""
        if key is not None:
            self._known.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


VERDICTS: Final = Verdicts()
"""Those of this process."""
