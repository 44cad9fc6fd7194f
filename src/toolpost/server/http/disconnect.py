"""What looks after a request that takes long: it ends with its client, and gives signs of life.

Owns how we hear that a client has gone: a server that can tell us does, and where none does, a task waits for
it. Knows neither the work nor what is answered.

PART patrol: The patrol: whoever has to be looked after is visited soon after that, and from then on every so
often.

Owns the time, with one timer for all who wait for the same: 5000 idle streams have one, where one each took
0.9 KiB. Knows nothing of what is done on a visit.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextvars import Context, copy_context
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

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


# --------------------------------------------------------------------- attention

KeepAliveCallback: TypeAlias = Callable[[], Awaitable[object]]


CONNECTION_MONITOR: Final = "toolpost.porter"
"""In a scope of ASGI: the `ConnectionMonitor` that reports a disconnect. Where a server has one, no task has
to wait for that, which takes 2.2 KiB of an idle stream with all that it waits in."""


class WatchedRequest(Protocol):
    """A request that takes long."""

    scope: MutableMapping[str, Any]
    is_disconnected: bool
    """Whether its client has gone."""

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has gone."""
        ...

    async def send_keep_alive(self) -> None:
        """Give a sign of life."""
        ...


class ConnectionMonitor(Protocol):
    """Who sees clients come and go: what a server can tell beyond ASGI."""

    def watch_disconnect(self, guest: "DisconnectWatcher", /) -> bool:
        """Call `on_disconnect` when the client of the current request has gone. Return whether we will."""
        ...

    def unwatch_disconnect(self, guest: "DisconnectWatcher", /) -> None:
        """Call it no more."""
        ...

    def take_body(self, receive: Any, /) -> bytes | None:
        """The body that this would bring, if it is ours and all of it is here: in half the time."""
        ...


class DisconnectWatcher:
    """What looks after work that goes on: it ends with its client, and gives signs of life."""

    __slots__ = (
        "_beating",
        "_context",
        "_exchange",
        "_pulse",
        "_task",
        "_timer",
        "_told",
        "_unwanted",
        "_watching",
        "is_aborted",
    )

    def __init__(
        self,
        exchange: WatchedRequest,
        task: "asyncio.Task[Any]",
        pulse: KeepAliveCallback | None,
        unwanted: Callable[[], object] | None,
    ) -> None:
        self._exchange = exchange
        self._task = task
        self._pulse = pulse
        self._unwanted = unwanted
        self._context = copy_context()  # the patrol has none of ours
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._told = self.is_aborted = False
        self._timer = DisconnectTimer.for_running_loop()
        self._timer.add(self)

    def abort(self) -> None:
        """Cancel the work, once."""
        if not self.is_aborted:
            self.is_aborted = True
            self._task.cancel()

    def on_disconnect(self) -> None:
        """Cancel the work: the client has gone."""
        self._told = False  # nobody goes twice
        if not self.is_aborted:
            self._exchange.is_disconnected = True
            try:
                if self._unwanted is not None:
                    self._unwanted()
            finally:
                self.abort()

    def on_first_check(self) -> None:
        """See to it that we hear when the client goes."""
        porter: ConnectionMonitor | None = self._exchange.scope.get(CONNECTION_MONITOR)
        self._told = porter is not None and porter.watch_disconnect(self)
        if not self._told:
            self._watching = self._start_task(self._wait_for_disconnect())

    def on_keep_alive(self) -> None:
        """Give a sign of life, unless the last one is still under way."""
        if self._beating is None or self._beating.done():
            self._beating = self._start_task(self._send_keep_alive())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work, context=self._context)

    async def _wait_for_disconnect(self) -> None:
        await self._exchange.wait_for_disconnect()
        self.on_disconnect()

    async def _send_keep_alive(self) -> None:
        try:
            await self._exchange.send_keep_alive()
            if self._pulse is not None:
                await self._pulse()
        except Exception:  # what is wrong shows where the stream is written
            logger.debug("a sign of life could not be given", exc_info=True)

    def end(self) -> None:
        """Look no more, and give no more signs of life."""
        self._timer.remove(self)
        porter: ConnectionMonitor | None = self._exchange.scope.get(CONNECTION_MONITOR)
        if self._told and porter is not None:  # there is none any more if the client has gone
            porter.unwatch_disconnect(self)
        for task in (self._watching, self._beating):
            if task is not None:
                task.cancel()
