"""A request of ours in flight: how long it may take, and who hears of it in the meantime.

Owns its time-out, which progress starts anew. How it is sent and answered is the link's business.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, NamedTuple, TypeAlias

from toolpost.client.lane import Lane
from toolpost.protocol.events import Outgoing
from toolpost.types.base import RequestId, Result
from toolpost.types.notices import ProgressParams

__all__ = ["NO_LIMITS", "Call", "Limits", "Progress"]

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


NO_LIMITS: Final = Limits()


class Call:
    """A request in flight.

    Args:
        outgoing: the request.
        limits: how long it may take.
        started: when it was sent, by the loop's clock.
        answer: its answer, some day.
        lane: where its progress is told.
    """

    __slots__ = ("answer", "cap", "lane", "limits", "outgoing", "scope", "sent", "started")

    def __init__(
        self,
        outgoing: Outgoing,
        limits: Limits,
        started: float,
        answer: "asyncio.Future[Result]",
        lane: Lane,
    ) -> None:
        self.outgoing = outgoing
        self.limits = limits
        self.started = started
        self.answer = answer
        self.lane = lane
        self.cap = inf if limits.cap is None else started + limits.cap
        self.scope = asyncio.timeout(None)
        self.sent = False

    @property
    def id(self) -> RequestId:
        """Its id."""
        return self.outgoing.id

    @property
    def method(self) -> str:
        """Its method."""
        return self.outgoing.row.name

    def extend(self, now: float) -> None:
        """Start the time-out anew, up to the cap (TIME-4)."""
        if self.limits.timeout is not None and not self.scope.expired():
            self.scope.reschedule(min(now + self.limits.timeout, self.cap))

    def fail(self, error: Exception) -> None:
        """Let whoever waits for the answer have an error."""
        if not self.answer.done():
            self.answer.set_exception(error)
