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

__all__ = ["FIRST_CHECK_DELAY", "KEEP_ALIVE_INTERVAL", "DisconnectTimer", "TimerListener"]

logger: Final = logging.getLogger("toolpost.http")

KEEP_ALIVE_INTERVAL: Final = 15.0
"""Seconds of silence after which a stream carries a comment: proxies close what is quiet for 30 or 60."""

FIRST_CHECK_DELAY: Final = 0.05
"""Seconds of work after which we look whether the client is still there: most of it ends before, and a task
that looks takes as long as all the rest of a request."""

TIMER_TOLERANCE: Final = 0.001
"""Seconds that one may be visited too early: some loops count in milliseconds."""


class TimerListener(Protocol):
    """One who is looked after."""

    def on_first_check(self) -> None:
        """Is called once, after `FIRST_CHECK_DELAY` seconds."""
        ...

    def on_keep_alive(self) -> None:
        """Is called every `KEEP_ALIVE_INTERVAL` seconds."""
        ...


class DisconnectTimer:
    """All who are looked after in an event loop."""

    __slots__ = ("_later", "_soon")

    def __init__(self) -> None:
        self._soon = _TimerQueue(self._run_first_check)
        self._later = _TimerQueue(self._run_keep_alive)

    @classmethod
    def for_running_loop(cls) -> "DisconnectTimer":
        """Those of the loop that is running."""
        loop = asyncio.get_running_loop()
        try:
            return _TIMERS[loop]
        except KeyError:
            for known in _TIMERS.keyrefs():  # a copy: other threads have loops, too
                other = known()
                if other is not None and other.is_closed():
                    _TIMERS.pop(other, None)  # those who were left there may hold on to it
            patrol = _TIMERS[loop] = cls()
            return patrol

    def add(self, one: TimerListener) -> None:
        """Visit somebody from now on."""
        self._soon.add(one, FIRST_CHECK_DELAY)

    def remove(self, one: TimerListener) -> None:
        """Visit somebody no more."""
        if not self._soon.remove(one):
            self._later.remove(one)

    def _run_first_check(self, one: TimerListener) -> None:
        self._later.add(one, KEEP_ALIVE_INTERVAL)
        one.on_first_check()

    def _run_keep_alive(self, one: TimerListener) -> None:
        self._later.add(one, KEEP_ALIVE_INTERVAL)
        one.on_keep_alive()


class _TimerQueue:
    """Those who wait for the same time: who comes first is visited first."""

    __slots__ = ("_ticking", "_visit", "_waiting")

    def __init__(self, visit: Callable[[TimerListener], None]) -> None:
        self._visit = visit
        self._waiting: OrderedDict[TimerListener, float] = OrderedDict()
        self._ticking = False

    def add(self, one: TimerListener, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[one] = due = loop.time() + seconds
        if not self._ticking:
            self._schedule(loop, due)

    def remove(self, one: TimerListener) -> bool:
        """Whether somebody waited here. The timer stays: to set one for each request takes longer."""
        return self._waiting.pop(one, None) is not None

    def _schedule(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._ticking = True
        loop.call_at(due, self._fire, context=Context())  # it is nobody's own

    def _fire(self) -> None:
        """Visit all whose time has come."""
        self._ticking = False
        loop = asyncio.get_running_loop()
        now = loop.time() + TIMER_TOLERANCE
        while self._waiting:
            one, due = next(iter(self._waiting.items()))
            if due > now:
                self._schedule(loop, due)
                return
            del self._waiting[one]
            try:
                self._visit(one)
            except Exception:  # the others have to be visited all the same
                logger.exception("somebody could not be looked after")


_TIMERS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, DisconnectTimer]] = WeakKeyDictionary()
