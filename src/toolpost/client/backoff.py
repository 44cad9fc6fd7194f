"""How long to wait before something is tried again: longer each time, up to a bound, and never in step.

Owns the numbers. Does not wait itself, and knows nothing of what is tried.
"""

import random
from typing import Final

__all__ = ["FIRST", "LONGEST", "Backoff"]

FIRST: Final = 0.5
"""Seconds before the first new try: a server that restarts quickly is back by then."""

LONGEST: Final = 30.0
"""Seconds between two tries at most; what has stood for so long was a success."""


class Backoff:
    """The pauses between the tries of one thing."""

    __slots__ = ("_next", "_stood")

    def __init__(self) -> None:
        self._next = FIRST
        self._stood: float | None = None

    def stands(self, now: float) -> None:
        """A try has worked, at this time of the loop's clock."""
        self._stood = now

    def pause(self, now: float) -> float:
        """The seconds to wait from now on, between half of the pause and all of it."""
        if self._stood is not None and now - self._stood >= LONGEST:
            self._next = FIRST
        self._stood = None
        pause, self._next = self._next, min(self._next * 2, LONGEST)
        # Many clients lose the same server at the same time, and must not come back as one.
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - it hides nothing
