"""Watches requests that take long: they end when their client disconnects, and send keep-alive comments.

One timer serves all requests that wait for the same, so that idle streams take little memory. An ASGI server
that can report a disconnect does; for others, a task waits for it. Knows nothing of the work.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from toolpost.server.http.request import HttpExchange

logger: Final = logging.getLogger("toolpost.http")

KEEP_ALIVE_INTERVAL: Final = 15.0  # seconds between two comments: proxies close streams after 30 silent ones
FIRST_CHECK_DELAY: Final = 0.05  # seconds after which we watch for a disconnect: most requests end before
TIMER_TOLERANCE: Final = 0.001  # seconds that a callback may be early: some loops count in milliseconds


class DisconnectTimer:
    """Calls `on_first_check` of each watcher once, and then `on_keep_alive` again and again."""

    __slots__ = ("_later", "soon")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.soon = _TimerQueue(loop, FIRST_CHECK_DELAY, self._run_first_check)
        self._later = _TimerQueue(loop, KEEP_ALIVE_INTERVAL, self._run_keep_alive)

    def remove(self, watcher: "DisconnectWatcher") -> None:
        """Stop calling a watcher."""
        if self.soon.waiting.pop(watcher, None) is None:
            self._later.waiting.pop(watcher, None)

    def _run_first_check(self, watcher: "DisconnectWatcher") -> None:
        self._later.add(watcher)
        watcher.on_first_check()

    def _run_keep_alive(self, watcher: "DisconnectWatcher") -> None:
        self._later.add(watcher)
        watcher.on_keep_alive()


class _TimerQueue:
    """Watchers that wait for the same number of seconds, so that the first one is always due first.

    One that is taken out of `waiting` is not called; the timer runs on, because to reset it costs more.
    """

    __slots__ = ("_call", "_loop", "_seconds", "_ticking", "waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, call: "Callable[[DisconnectWatcher], None]"
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._call = call
        self.waiting: OrderedDict[DisconnectWatcher, float] = OrderedDict()
        self._ticking = False

    def add(self, watcher: "DisconnectWatcher") -> None:
        self.waiting[watcher] = due = self._loop.time() + self._seconds
        if not self._ticking:
            self._schedule(due)

    def _schedule(self, due: float) -> None:
        self._ticking = True
        self._loop.call_at(due, self._fire, context=Context())  # not the context of the first request

    def _fire(self) -> None:
        """Call all watchers that are due."""
        self._ticking = False
        now = self._loop.time() + TIMER_TOLERANCE
        while self.waiting:
            watcher, due = next(iter(self.waiting.items()))
            if due > now:
                self._schedule(due)
                return
            del self.waiting[watcher]
            try:
                self._call(watcher)
            except Exception:  # the others have to be called all the same
                logger.exception("somebody could not be looked after")


KeepAliveCallback: TypeAlias = Callable[[], Awaitable[object]]

CONNECTION_MONITOR: Final = "toolpost.porter"
"""The key of the `ConnectionMonitor` in an ASGI scope. With one, no task has to wait for a disconnect."""


class ConnectionMonitor(Protocol):
    """What an ASGI server can report beyond ASGI; implemented by the protocol for uvicorn."""

    def watch_disconnect(self, guest: "DisconnectWatcher", /) -> bool:
        """Call `on_disconnect` when the client of the current request has gone. Return whether we will."""
        ...

    def unwatch_disconnect(self, guest: "DisconnectWatcher", /) -> None:
        """Stop calling it."""


class DisconnectWatcher:
    """Watches work that goes on for a request: cancels it with its client, and sends keep-alive comments.

    `pulse` is called with each of these; `unwanted` is called when the client has gone. `is_aborted` says
    that the work was cancelled here.
    """

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
        exchange: "HttpExchange",
        timer: DisconnectTimer,
        task: "asyncio.Task[Any]",
        pulse: KeepAliveCallback | None,
        unwanted: Callable[[], object] | None,
    ) -> None:
        self._exchange = exchange
        self._task = task
        self._pulse = pulse
        self._unwanted = unwanted
        self._context = copy_context()  # the timer has another one
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._told = self.is_aborted = False
        self._timer = timer
        timer.soon.add(self)

    def abort(self) -> None:
        """Cancel the work, once."""
        if not self.is_aborted:
            self.is_aborted = True
            self._task.cancel()

    def on_disconnect(self) -> None:
        """Note that the client has gone, and cancel the work if nothing else wants it."""
        self._told = False
        if not self.is_aborted:
            self._exchange.is_disconnected = True
            if self._unwanted is not None:
                try:
                    self._unwanted()
                finally:
                    self.abort()

    def on_first_check(self) -> None:
        """Start to watch for a disconnect."""
        monitor: ConnectionMonitor | None = self._exchange.scope.get(CONNECTION_MONITOR)
        self._told = monitor is not None and monitor.watch_disconnect(self)
        if not self._told:
            self._watching = self._start_task(self._wait_for_disconnect())

    def on_keep_alive(self) -> None:
        """Send a comment, unless the last one is still being sent."""
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
        except Exception:  # the writer of the stream will report it
            logger.debug("a sign of life could not be given", exc_info=True)

    def end(self) -> None:
        """Stop watching."""
        self._timer.remove(self)
        monitor: ConnectionMonitor | None = self._exchange.scope.get(CONNECTION_MONITOR)
        if self._told and monitor is not None:  # it is removed when the client has gone
            monitor.unwatch_disconnect(self)
        for task in (self._watching, self._beating):
            if task is not None:
                task.cancel()
