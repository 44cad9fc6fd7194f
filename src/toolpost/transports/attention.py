"""What looks after a request that takes long: it ends with its client, and gives signs of life.

Owns how we hear that a client has gone: a server that can tell us does, and where none does, a task waits for
it. Knows neither the work nor what is answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextvars import copy_context
from typing import Any, Final, Protocol, TypeAlias

from toolpost.transports.patrol import Patrol

__all__ = ["PORTER", "Attended", "Attention", "Porter", "Pulse"]

Pulse: TypeAlias = Callable[[], Awaitable[object]]

logger: Final = logging.getLogger("toolpost.http")

PORTER: Final = "toolpost.porter"
"""In a scope of ASGI: the `Porter` who tells when the client has gone. Where a server has one, no task has to
wait for that, which takes 2.2 KiB of an idle stream with all that it waits in."""


class Attended(Protocol):
    """A request that takes long."""

    scope: MutableMapping[str, Any]
    left: bool
    """Whether its client has gone."""

    async def gone(self) -> None:
        """Wait until the client has gone."""
        ...

    async def sign(self) -> None:
        """Give a sign of life."""
        ...


class Porter(Protocol):
    """Who sees clients come and go: what a server can tell beyond ASGI."""

    def await_departure(self, guest: "Attention", /) -> bool:
        """Call `depart` when the client of the request that is being served has gone. Whether we will."""
        ...

    def dismiss(self, guest: "Attention", /) -> None:
        """Call it no more."""
        ...

    def take_body(self, receive: Any, /) -> bytes | None:
        """The body that this would bring, if it is ours and all of it is here: in half the time."""
        ...


class Attention:
    """What looks after work that goes on: it ends with its client, and gives signs of life.

    Args:
        exchange: what the work is done for.
        task: where it is done.
        pulse: called every `KEEP_ALIVE` seconds.
        unwanted: called when the client has gone, before the work is cancelled.

    Attributes:
        cut: whether we have cancelled the work.
    """

    __slots__ = (
        "_beating",
        "_context",
        "_exchange",
        "_patrol",
        "_pulse",
        "_task",
        "_told",
        "_unwanted",
        "_watching",
        "cut",
    )

    def __init__(
        self,
        exchange: Attended,
        task: "asyncio.Task[Any]",
        pulse: Pulse | None,
        unwanted: Callable[[], object] | None,
    ) -> None:
        self._exchange = exchange
        self._task = task
        self._pulse = pulse
        self._unwanted = unwanted
        self._context = copy_context()  # the patrol has none of ours
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._told = self.cut = False
        self._patrol = Patrol.here()
        self._patrol.join(self)

    def hang_up(self) -> None:
        """Cancel the work, once."""
        if not self.cut:
            self.cut = True
            self._task.cancel()

    def depart(self) -> None:
        """Cancel the work: the client has gone."""
        self._told = False  # nobody goes twice
        if not self.cut:
            self._exchange.left = True
            try:
                if self._unwanted is not None:
                    self._unwanted()
            finally:
                self.hang_up()

    def look(self) -> None:
        """See to it that we hear when the client goes."""
        porter: Porter | None = self._exchange.scope.get(PORTER)
        self._told = porter is not None and porter.await_departure(self)
        if not self._told:
            self._watching = self._begin(self._watch())

    def beat(self) -> None:
        """Give a sign of life, unless the last one is still under way."""
        if self._beating is None or self._beating.done():
            self._beating = self._begin(self._live())

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work, context=self._context)

    async def _watch(self) -> None:
        await self._exchange.gone()
        self.depart()

    async def _live(self) -> None:
        try:
            await self._exchange.sign()
            if self._pulse is not None:
                await self._pulse()
        except Exception:  # what is wrong shows where the stream is written
            logger.debug("a sign of life could not be given", exc_info=True)

    def end(self) -> None:
        """Look no more, and give no more signs of life."""
        self._patrol.leave(self)
        porter: Porter | None = self._exchange.scope.get(PORTER)
        if self._told and porter is not None:  # there is none any more if the client has gone
            porter.dismiss(self)
        for task in (self._watching, self._beating):
            if task is not None:
                task.cancel()
