"""How long to wait before something is tried again: longer each time, up to a bound, and never in step.

Owns the numbers. Does not wait itself, and knows nothing of what is tried.
"""

import random
from typing import Final

__all__ = ["MAX_BACKOFF", "MIN_BACKOFF", "Backoff"]

MIN_BACKOFF: Final = 0.5
"""Seconds before the first new try at least: a server that restarts quickly is back by then."""

MAX_BACKOFF: Final = 30.0
"""Seconds to which the pause grows; what has stood for so long was a success."""

BACKOFF_JITTER: Final = 0.5
"""How much of a pause is added by chance. Many clients lose the same server at the same time, and must not
come back as one."""


class Backoff:
    """The pauses between the tries of one thing.

    Attributes:
        tries: how often it has failed in a row.
    """

    __slots__ = ("_next", "_stood", "tries")

    def __init__(self) -> None:
        self._stood: float | None = None
        self.reset()

    def reset(self) -> None:
        """A try was a success."""
        self._next = MIN_BACKOFF
        self.tries = 0

    def mark_working(self, now: float) -> None:
        """A try has worked, at this time of the loop's clock. It is a success if it goes on so for long."""
        self._stood = now

    def next_delay(self, now: float) -> float:
        """The seconds to wait from now on: the pause, and up to half of it more."""
        if self._stood is not None and now - self._stood >= MAX_BACKOFF:
            self.reset()
        self._stood = None
        self.tries += 1
        pause, self._next = self._next, min(self._next * 2, MAX_BACKOFF)
        return pause * (1 + random.uniform(0, BACKOFF_JITTER))  # noqa: S311 - it hides nothing
