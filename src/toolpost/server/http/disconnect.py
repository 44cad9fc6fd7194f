"""Watches requests that take long: they end when their client disconnects, and send keep-alive comments.

One timer looks after all requests of a worker; most end before it looks at them for the first time. An ASGI
server that can report a disconnect does; for others, a task waits for it. Knows nothing of the work.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from toolpost.server.http.request import HttpExchange

logger: Final = logging.getLogger("toolpost.http")

KEEP_ALIVE_INTERVAL: Final = 15.0  # seconds between two comments: proxies close streams after 30 silent ones
CHECK_INTERVAL: Final = 0.05  # seconds; a request that is there at two checks is watched for a disconnect
TIMER_TOLERANCE: Final = 0.001  # seconds that a callback may be early: some loops count in milliseconds

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


class DisconnectTimer:
    """Starts to watch each request that takes long, and calls its watcher from then on.

    `fresh` has the requests that are not watched yet, and whether a check has seen them. Whoever serves one
    puts it there, takes it out, and calls `start` unless it `is_checking`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.fresh: dict[HttpExchange, bool] = {}
        self._keep_alive_due: OrderedDict[DisconnectWatcher, float] = OrderedDict()
        self.is_checking = self._is_keeping_alive = False

    def start(self) -> None:
        """Look at the requests from now on, until none is left."""
        self.is_checking = True
        self._schedule(self._loop.time() + CHECK_INTERVAL, self._check)

    def _schedule(self, due: float, call: Callable[[], None]) -> None:
        self._loop.call_at(due, call, context=Context())  # not the context of the first request

    def _check(self) -> None:
        for exchange, is_seen in tuple(self.fresh.items()):
            if not is_seen:
                self.fresh[exchange] = True
                continue
            try:
                is_watched = exchange.start_watching(self)
            except Exception:  # the others have to be watched all the same
                logger.exception("a request could not be watched")
                is_watched = True
            if is_watched:
                del self.fresh[exchange]
        self.is_checking = False
        if self.fresh:
            self.start()

    def keep_alive(self, watcher: "DisconnectWatcher") -> None:
        """Call `on_keep_alive` of a watcher, every `KEEP_ALIVE_INTERVAL` seconds until `forget`."""
        self._keep_alive_due[watcher] = due = self._loop.time() + KEEP_ALIVE_INTERVAL
        if not self._is_keeping_alive:
            self._is_keeping_alive = True
            self._schedule(due, self._send_keep_alives)

    def forget(self, watcher: "DisconnectWatcher") -> None:
        """Stop calling a watcher."""
        self._keep_alive_due.pop(watcher, None)

    def _send_keep_alives(self) -> None:
        """Call all watchers that are due. All wait equally long, so that the first one is due first."""
        self._is_keeping_alive = False
        now = self._loop.time() + TIMER_TOLERANCE
        while self._keep_alive_due:
            watcher, due = next(iter(self._keep_alive_due.items()))
            if due > now:
                self._is_keeping_alive = True
                self._schedule(due, self._send_keep_alives)
                return
            del self._keep_alive_due[watcher]
            self.keep_alive(watcher)
            watcher.on_keep_alive()


class DisconnectWatcher:
    """Watches one request for a disconnect of its client, and sends keep-alive comments meanwhile."""

    __slots__ = ("_beating", "_context", "_exchange", "_pulse", "_timer", "_told", "_watching")

    def __init__(
        self,
        exchange: "HttpExchange",
        timer: DisconnectTimer,
        pulse: KeepAliveCallback | None,
        context: Context,
    ) -> None:
        self._exchange = exchange
        self._timer = timer
        self._pulse = pulse
        self._context = context  # the timer has another one
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        monitor: ConnectionMonitor | None = exchange.scope.get(CONNECTION_MONITOR)
        self._told = monitor is not None and monitor.watch_disconnect(self)
        if not self._told:
            self._watching = self._start_task(self._wait_for_disconnect())
        timer.keep_alive(self)

    def on_disconnect(self) -> None:
        """Report to the request that its client has gone."""
        self._told = False
        self._timer.forget(self)
        self._exchange.on_disconnect()

    def on_keep_alive(self) -> None:
        """Send a comment, unless the last one is still being sent."""
        if self._beating is None or self._beating.done():
            self._beating = self._start_task(self._send_keep_alive())

    def _start_task(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
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
        self._timer.forget(self)
        monitor: ConnectionMonitor | None = self._exchange.scope.get(CONNECTION_MONITOR)
        if self._told and monitor is not None:  # it is removed when the client has gone
            monitor.unwatch_disconnect(self)
        for task in (self._watching, self._beating):
            if task is not None:
                task.cancel()
