"""Decides which requests are sent again, after how long, and when a server is left alone for a while.

Owns the methods that are safe to repeat, the number of tries, the backoff, and the circuit breaker. Neither
waits nor sends.
"""

import random
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from toolpost.errors import (
    ChannelClosed,
    MCPError,
    RateLimited,
    RequestFailed,
    RequestTimeout,
    TransportError,
)
from toolpost.protocol.methods import ROWS

T = TypeVar("T")

MIN_BACKOFF: Final = 0.5
"""Seconds before the first new try at least: a server that restarts quickly is back by then."""

MAX_BACKOFF: Final = 30.0
"""Seconds to which the pause grows; what has stood for so long was a success."""

BACKOFF_JITTER: Final = 0.5
"""How much of a pause is added by chance. Many clients lose the same server at the same time, and must not
come back as one."""


class Backoff:
    """The growing, randomised pauses between the tries of one thing; `tries` counts failures in a row."""

    __slots__ = ("_next", "_stood", "tries")

    def __init__(self) -> None:
        self._stood: float | None = None
        self.reset()

    def reset(self) -> None:
        """Start over after a success."""
        self._next = MIN_BACKOFF
        self.tries = 0

    def mark_working(self, now: float) -> None:
        """Record that a try has worked so far; it counts as a success once that has lasted."""
        self._stood = now

    def next_delay(self, now: float) -> float:
        """Return the seconds to wait from now on: the pause, and up to half of it more."""
        if self._stood is not None and now - self._stood >= MAX_BACKOFF:
            self.reset()
        self._stood = None
        self.tries += 1
        pause, self._next = self._next, min(self._next * 2, MAX_BACKOFF)
        return pause * (1 + random.uniform(0, BACKOFF_JITTER))  # noqa: S311 - it hides nothing


RETRY_SAFE_METHODS: Final = frozenset(row.name for row in ROWS if row.repeatable)
"""What may be asked twice as well as once: it changes nothing, or nothing more the second time."""

TOO_MANY_REQUESTS: Final = 429
"""The status that turns a request away before it was looked at. A 503 may come from anywhere, at any time."""

MAX_FAILURES: Final = 5
"""How many requests in a row may find that the server cannot be reached, before it is left alone."""


MAX_PLAUSIBLE_RETRY_AFTER: Final = 1e9
"""Seconds beyond which a wait is no wait."""

MAX_REQUEST_RETRY_AFTER: Final = 300.0
"""Seconds that a request waits at most because a server says so: others have to come back later."""


class FirstAttempt(NamedTuple, Generic[T]):
    """The outcome of a first try that was made before retries were considered; `started` is when."""

    started: float
    outcome: T | MCPError
    header_parameters: object = None
    """The header parameters of the tool that were known when the try was made."""

    def get_result(self) -> T:
        """Return the result, or raise the error."""
        if isinstance(self.outcome, MCPError):
            raise self.outcome
        return self.outcome


def is_retry_safe(method: object, requested: bool | None, *, is_safe_tool: bool = False) -> bool | None:
    """Return whether a request may be sent again although the server may have received it.

    The caller's wish counts first, then what the method or the tool promises. None means unknown: the request
    is repeated only if it was certainly not served. False means never.
    """
    if requested is None and (is_safe_tool or method in RETRY_SAFE_METHODS):
        return True
    return requested


class RetryPolicy:
    """Decides for one request whether and when it is sent again; `safe` is what `is_retry_safe` returned."""

    __slots__ = ("_backoff", "_latest", "_left", "_safe")

    def __init__(self, retries: int, *, safe: bool | None, started: float, timeout: float | None) -> None:
        self._left = 0 if safe is False else retries
        self._safe = safe
        self._latest = inf if timeout is None else started + timeout / 2  # the rest is for the answer
        self._backoff: Backoff | None = None

    def next_delay(self, error: MCPError, now: float) -> float | None:
        """Return the seconds to wait before the next try; None if the error is final or time is short."""
        delay = self._choose_delay(error, now)
        return None if delay is None or now + delay > self._latest else delay

    def _choose_delay(self, error: MCPError, now: float) -> float | None:
        if not self._left or isinstance(error, RequestTimeout) or not (self._safe or _is_unserved(error)):
            return None
        wish = _parse_retry_after(error)
        if wish is not None:
            if wish > MAX_REQUEST_RETRY_AFTER:
                return None
            self._left -= 1
            return wish
        if isinstance(error, RateLimited):
            return None  # who does not say when is asked by whoever knows better
        status = error.status if isinstance(error, RequestFailed) else None
        if status is not None and not _is_temporary(status):
            return None
        self._left -= 1
        if isinstance(error, ChannelClosed):
            return 0.0  # whoever opens it anew waits as long as that needs
        if self._backoff is None:
            self._backoff = Backoff()
        return self._backoff.next_delay(now)


def _parse_retry_after(error: MCPError) -> float | None:
    """Return the seconds after which a server that refused wants the request again; None if not given."""
    if isinstance(error, RequestFailed):
        return error.retry_after
    data: Any = error.data if isinstance(error, RateLimited) else None
    wait: Any = cast("dict[str, Any]", data).get("retryAfter") if isinstance(data, dict) else None
    return float(wait) if isinstance(wait, int | float) and 0 <= wait <= MAX_PLAUSIBLE_RETRY_AFTER else None


def _is_unserved(error: MCPError) -> bool:
    """Return whether an error proves that the request was not served."""
    if isinstance(error, RequestFailed) and error.status == TOO_MANY_REQUESTS:
        return True
    return isinstance(error, RateLimited) or (isinstance(error, TransportError) and not error.sent)


def _is_temporary(status: int) -> bool:
    """Return whether a status means that a later try may succeed."""
    return status >= 500 or status in {408, 425, 429}


class CircuitBreaker:
    """Keeps requests from a server that cannot be reached, and lets one through from time to time."""

    __slots__ = ("_backoff", "_counted", "_until", "failures")

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._counted = 0.0
        self._until = 0.0
        self.failures = 0
        """How many requests in a row have not reached the server; those at the same time are one."""

    def record_success(self) -> None:
        """Record that the server can be reached."""
        self.failures = 0
        self._backoff.reset()

    def allow_next(self) -> None:
        """Let the next request through."""
        self._until = 0.0

    def record_failure(self, began: float, now: float) -> float | None:
        """Count a failure; return the seconds for which the server is left alone, or None."""
        if self.failures and began <= self._counted:
            return None
        self.failures += 1
        self._counted = now
        if self.failures < MAX_FAILURES:
            return None
        pause = self._backoff.next_delay(now)
        self._until = now + pause
        return pause

    def seconds_until_allowed(self, now: float) -> float:
        """Return how long requests are still held back; a caller that gets 0 is the one to try."""
        if self.failures < MAX_FAILURES:
            return 0.0
        left = self._until - now
        if left > 0:
            return left
        self._until = now + MIN_BACKOFF
        return 0.0
