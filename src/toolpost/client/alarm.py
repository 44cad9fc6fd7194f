"""One timer for all requests of a link: it rings when the first of them is late.

Owns that timer. A timer for each request would cost more than all else that a link does for it. Knows nothing
of what a request is, nor of how far its deadline may be moved.
"""

import asyncio
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final, Protocol

__all__ = ["DeadlineTimer"]

CHECK_INTERVAL_PER_CALL: Final = 1e-5
"""Seconds between two looks at all requests, for each of them: looking takes 1 % of that, however many are
late one after the other, and no request hears of it later than anybody would notice."""


class HasDeadline(Protocol):
    """What may be late."""

    deadline: float

    def expire(self) -> None:
        """The deadline has passed. It is looked at once more only if there is another one."""
        ...


class DeadlineTimer:
    """The timer of one link.

    Args:
        loop: whose clock counts.
        watched: what may be late; those that are over are taken out of it by whoever owns it.
    """

    __slots__ = ("_loop", "_timer", "_watched", "next")

    def __init__(self, loop: asyncio.AbstractEventLoop, watched: Mapping[Any, HasDeadline]) -> None:
        self.next = inf
        """When it rings. Whoever has an earlier deadline calls `set`; it may well ring for nobody."""
        self._loop = loop
        self._watched = watched
        self._timer: asyncio.TimerHandle | None = None

    def set(self, when: float) -> None:
        """Ring at this time."""
        self.stop()
        self.next = when
        self._timer = self._loop.call_at(when, self._expire_overdue)

    def stop(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.next = None, inf

    def _expire_overdue(self) -> None:
        now = max(self._loop.time(), self.next)  # a loop may be early by the resolution of its clock
        self._timer, self.next = None, inf
        for each in [*self._watched.values()]:
            if each.deadline <= now:
                each.expire()
        first = _earliest_deadline(self._watched.values())
        if first < inf:
            self.set(max(first, now + CHECK_INTERVAL_PER_CALL * len(self._watched)))


def _earliest_deadline(watched: Iterable[HasDeadline]) -> float:
    return min((each.deadline for each in watched), default=inf)
