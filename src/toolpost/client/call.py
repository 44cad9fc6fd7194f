"""A request of ours in flight: how long it may take, and who hears of it in the meantime.

Owns its time-out, which progress starts anew, and which stands still while the server waits for us. How it is
sent and answered is the link's business.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from toolpost.client.alarm import Alarm
from toolpost.client.lane import Lane
from toolpost.errors import MCPError
from toolpost.protocol.events import Outgoing
from toolpost.types.base import RequestId, Result, Struct
from toolpost.types.notices import ProgressParams

__all__ = ["NO_LIMITS", "Call", "Limits", "Progress", "Tried"]

T = TypeVar("T")

Progress: TypeAlias = Callable[[ProgressParams], Awaitable[object]]


class Limits(NamedTuple):
    """How long a request may take, and who hears of it in the meantime.

    Args:
        timeout: how long to wait; progress starts it anew. None waits for ever.
        cap: how long to wait in all, whatever the progress.
        progress: whom to tell about progress. What came before the answer is told before the answer.
        extendable: ask for progress even if nobody wants to be told, so that it extends the time-out.
        quiet: forget the request without telling the server, when it is given up.
    """

    timeout: float | None = None
    cap: float | None = None
    progress: Progress | None = None
    extendable: bool = False
    quiet: bool = False

    def less(self, spent: float) -> "Limits":
        """What is left of the time after so many seconds."""
        if self.timeout is None:
            return self
        cap = None if self.cap is None else max(self.cap - spent, 0.0)
        return self._replace(timeout=max(self.timeout - spent, 0.0), cap=cap)


NO_LIMITS: Final = Limits()


class Tried(NamedTuple, Generic[T]):
    """What has come of a first try, for those who know what to do next.

    Args:
        began: when it was made.
        outcome: what it came to.
        known: what was known of its headers then.
    """

    began: float
    outcome: T | MCPError
    known: object = None

    def tell(self) -> T:
        """What it came to.

        Raises:
            MCPError: what went wrong instead.
        """
        if isinstance(self.outcome, MCPError):
            raise self.outcome
        return self.outcome


class Call(Struct, eq=False):
    """A request in flight.

    A struct, because it is made for every request: 0.19 µs instead of 0.26 with an `__init__`.

    Args:
        id: of the request.
        outgoing: the request.
        limits: how long it may take.
        started: when it was sent, by the loop's clock.
        answer: its answer, some day.
        alarm: rings when it is late. Whoever makes a call sets it.
        deadline: when it is late; never, while its clock stands still.
        due: the same, whether it stands still or not.

    Attributes:
        lane: where its progress is told, if anybody wants to hear of it.
        late: whether it was not answered in time.
        scope: around a wait for anything else than the answer, while there is one.
    """

    id: RequestId
    outgoing: Outgoing
    limits: Limits
    started: float
    answer: "asyncio.Future[Result]"
    alarm: Alarm
    deadline: float
    due: float
    lane: Lane | None = None
    late: bool = False
    scope: asyncio.Timeout | None = None
    sent: bool = False
    holders: int = 0
    """How many let its clock stand still."""
    since: float = 0.0
    """When it stopped."""

    @property
    def method(self) -> str:
        """Its method."""
        return self.outgoing.row.name

    def extend(self, now: float) -> None:
        """Start the time-out anew, up to the cap (TIME-4)."""
        if self.limits.timeout is not None:
            now = self.since if self.holders else now
            cap = inf if self.limits.cap is None else self.started + self.limits.cap
            self.due = min(now + self.limits.timeout, cap)
            self._set()

    def hold(self, now: float) -> None:
        """Let the clock stand still: the server waits for us. Each call of this needs one of `go_on`."""
        self.holders += 1
        if self.holders == 1:
            self.since = now
            self._set()

    def go_on(self, now: float) -> None:
        """Let the clock go on where it stopped."""
        self.holders -= 1
        if not self.holders:
            stood = now - self.since
            self.started += stood
            self.due += stood
            self._set()

    def _set(self) -> None:
        if self.limits.timeout is None or self.late:
            return
        self.deadline = inf if self.holders else self.due
        if self.deadline < self.alarm.next:
            self.alarm.set(self.deadline)
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(self._when)

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """A wait for anything else than the answer.

        Raises:
            TimeoutError: it was too long for the request.
        """
        try:
            async with asyncio.timeout_at(self._when) as self.scope:
                yield
        finally:
            self.scope = None

    @property
    def _when(self) -> float | None:
        return None if self.holders or self.due == inf else self.due

    def expire(self) -> None:
        """Let whoever waits for the answer hear that it is late."""
        self.deadline = inf
        if not self.answer.done():
            self.late = True
            self.answer.set_exception(TimeoutError())

    def fail(self, error: Exception) -> None:
        """Let whoever waits for the answer have an error."""
        if not self.answer.done():
            self.answer.set_exception(error)
