"""A request in flight: its limits, its deadline and its answer.

Progress restarts the timeout, and it is paused while the server waits for us. One timer serves all requests
of a connection. Sending is left to the dispatcher.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from math import inf
from typing import Final, NamedTuple

from toolpost.client.connection.incoming import CallbackQueue
from toolpost.protocol.events import OutboundRequest
from toolpost.types.base import RequestId, Result, Struct
from toolpost.types.notifications import LogParams, ProgressParams

CHECK_INTERVAL_PER_CALL: Final = 1e-5  # seconds between two checks, per request in flight: keeps them cheap


class DeadlineTimer:
    """One timer for all requests of a connection: a timer for each would dominate the cost of a request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watched: Mapping[RequestId, "PendingCall"]) -> None:
        self.next = inf  # when it fires; an earlier deadline has to be `set`
        self._loop = loop
        self._watched = watched
        self._timer: asyncio.TimerHandle | None = None

    def set(self, when: float) -> None:
        """Fire at this time."""
        self.stop()
        self.next = when
        self._timer = self._loop.call_at(when, self._expire_overdue)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.next = None, inf

    def _expire_overdue(self) -> None:
        now = max(self._loop.time(), self.next)  # a loop may be early by the resolution of its clock
        self._timer, self.next = None, inf
        for each in [*self._watched.values()]:
            if each.deadline <= now:
                each.expire()
        first = min((each.deadline for each in self._watched.values()), default=inf)
        if first < inf:
            self.set(max(first, now + CHECK_INTERVAL_PER_CALL * len(self._watched)))


class CallLimits(NamedTuple):
    """How long a request may take, and where its progress goes. All times are in seconds."""

    timeout: float | None = None  # restarted by progress; None waits without limit
    cap: float | None = None  # in total, regardless of progress
    # Gets all progress that came before the answer.
    progress: Callable[[ProgressParams], Awaitable[object]] | None = None
    extendable: bool = False  # requests progress even without a callback, to extend the timeout
    # Gets all log messages of the request that came before the answer.
    log: Callable[[LogParams], Awaitable[object]] | None = None
    quiet: bool = False  # sends no cancellation when the request is given up

    def subtract(self, spent: float) -> "CallLimits":
        """Return the limits after some seconds have passed."""
        if self.timeout is None:
            return self
        cap = None if self.cap is None else max(self.cap - spent, 0.0)
        return self._replace(timeout=max(self.timeout - spent, 0.0), cap=cap)


NO_LIMITS: Final = CallLimits()


class PendingCall(Struct, eq=False):
    """A request in flight. A struct, because one is made for every request."""

    id: RequestId
    outgoing: OutboundRequest
    limits: CallLimits
    started: float
    answer: "asyncio.Future[Result]"
    timer: DeadlineTimer
    deadline: float  # when it times out; infinite while it is paused
    due: float  # the same, paused or not
    progress_queue: CallbackQueue | None = None
    late: bool = False
    scope: asyncio.Timeout | None = None  # around a wait for anything other than the answer
    sent: bool = False
    context: Context | None = None  # the caller's context variables, for callbacks about the call
    pause_count: int = 0
    paused_at: float = 0.0

    @property
    def method(self) -> str:
        """The method."""
        return self.outgoing.row.name

    def extend(self, now: float) -> None:
        """Restart the timeout, up to the cap (TIME-4)."""
        if self.limits.timeout is not None:
            now = self.paused_at if self.pause_count else now
            cap = inf if self.limits.cap is None else self.started + self.limits.cap
            self.due = min(now + self.limits.timeout, cap)
            self._update_deadline()

    def pause_deadline(self, now: float) -> None:
        """Pause the deadline while the server waits for us; `resume_deadline` has to be called as often."""
        self.pause_count += 1
        if self.pause_count == 1:
            self.paused_at = now
            self._update_deadline()

    def resume_deadline(self, now: float) -> None:
        """Continue the deadline where it was paused."""
        self.pause_count -= 1
        if not self.pause_count:
            stood = now - self.paused_at
            self.started += stood
            self.due += stood
            self._update_deadline()

    def _update_deadline(self) -> None:
        if self.limits.timeout is None or self.late:
            return
        self.deadline = inf if self.pause_count else self.due
        if self.deadline < self.timer.next:
            self.timer.set(self.deadline)
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(self._timeout_at)

    @asynccontextmanager
    async def timeout_scope(self) -> AsyncGenerator[None]:
        """Limit a wait for anything other than the answer by the deadline."""
        try:
            async with asyncio.timeout_at(self._timeout_at) as self.scope:
                yield
        finally:
            self.scope = None

    @property
    def _timeout_at(self) -> float | None:
        return None if self.pause_count or self.due == inf else self.due

    def expire(self) -> None:
        """Fail with a timeout."""
        self.deadline = inf
        if not self.answer.done():
            self.late = True
            self.answer.set_exception(TimeoutError())

    def fail(self, error: Exception) -> None:
        """Fail with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)
