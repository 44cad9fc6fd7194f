"""What looks after a request that takes long: it ends with its client, and gives signs of life.

Owns how we hear that a client has gone: a server that can tell us does, and where none does, a task waits for
it. Knows neither the work nor what is answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextvars import copy_context
from typing import Any, Final, Protocol, TypeAlias

from toolpost.transports.patrol import DisconnectTimer

__all__ = [
    "CONNECTION_MONITOR",
    "ConnectionMonitor",
    "DisconnectWatcher",
    "KeepAliveCallback",
    "WatchedRequest",
]

KeepAliveCallback: TypeAlias = Callable[[], Awaitable[object]]

logger: Final = logging.getLogger("toolpost.http")

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
    """What looks after work that goes on: it ends with its client, and gives signs of life.

    Args:
        exchange: what the work is done for.
        task: where it is done.
        pulse: called every `KEEP_ALIVE` seconds.
        unwanted: called when the client has gone, before the work is cancelled.

    Attributes:
        is_aborted: whether we have cancelled the work.
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
