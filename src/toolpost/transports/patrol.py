"""The patrol: whoever has to be looked after is visited soon after that, and from then on every so often.

Owns the time, with one timer for all who wait for the same: 5000 idle streams have one, where one each took
0.9 KiB. Knows nothing of what is done on a visit.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Context
from typing import Final, Protocol
from weakref import WeakKeyDictionary

__all__ = ["KEEP_ALIVE", "SOON", "Patrol", "Visited"]

logger: Final = logging.getLogger("toolpost.http")

KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a stream carries a comment: proxies close what is quiet for 30 or 60."""

SOON: Final = 0.05
"""Seconds of work after which we look whether the client is still there: most of it ends before, and a task
that looks takes as long as all the rest of a request."""

GRAIN: Final = 0.001
"""Seconds that one may be visited too early: some loops count in milliseconds."""


class Visited(Protocol):
    """One who is looked after."""

    def look(self) -> None:
        """Is called once, after `SOON` seconds."""
        ...

    def beat(self) -> None:
        """Is called every `KEEP_ALIVE` seconds."""
        ...


class Patrol:
    """All who are looked after in an event loop."""

    __slots__ = ("_later", "_soon")

    def __init__(self) -> None:
        self._soon = _Line(self._look)
        self._later = _Line(self._beat)

    @classmethod
    def here(cls) -> "Patrol":
        """Those of the loop that is running."""
        loop = asyncio.get_running_loop()
        try:
            return _PATROLS[loop]
        except KeyError:
            for known in _PATROLS.keyrefs():  # a copy: other threads have loops, too
                other = known()
                if other is not None and other.is_closed():
                    _PATROLS.pop(other, None)  # those who were left there may hold on to it
            patrol = _PATROLS[loop] = cls()
            return patrol

    def join(self, one: Visited) -> None:
        """Visit somebody from now on."""
        self._soon.join(one, SOON)

    def leave(self, one: Visited) -> None:
        """Visit somebody no more."""
        if not self._soon.leave(one):
            self._later.leave(one)

    def _look(self, one: Visited) -> None:
        self._later.join(one, KEEP_ALIVE)
        one.look()

    def _beat(self, one: Visited) -> None:
        self._later.join(one, KEEP_ALIVE)
        one.beat()


class _Line:
    """Those who wait for the same time: who comes first is visited first."""

    __slots__ = ("_ticking", "_visit", "_waiting")

    def __init__(self, visit: Callable[[Visited], None]) -> None:
        self._visit = visit
        self._waiting: OrderedDict[Visited, float] = OrderedDict()
        self._ticking = False

    def join(self, one: Visited, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[one] = due = loop.time() + seconds
        if not self._ticking:
            self._tick(loop, due)

    def leave(self, one: Visited) -> bool:
        """Whether somebody waited here. The timer stays: to set one for each request takes longer."""
        return self._waiting.pop(one, None) is not None

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._ticking = True
        loop.call_at(due, self._come, context=Context())  # it is nobody's own

    def _come(self) -> None:
        """Visit all whose time has come."""
        self._ticking = False
        loop = asyncio.get_running_loop()
        now = loop.time() + GRAIN
        while self._waiting:
            one, due = next(iter(self._waiting.items()))
            if due > now:
                self._tick(loop, due)
                return
            del self._waiting[one]
            try:
                self._visit(one)
            except Exception:  # the others have to be visited all the same
                logger.exception("somebody could not be looked after")


_PATROLS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Patrol]] = WeakKeyDictionary()
