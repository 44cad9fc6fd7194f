"""Decides whether and when a request is retried, and when requests to a server are paused.

Owns the methods that are safe to repeat, the number of attempts, the delays between them, and the circuit
breaker. `session` makes the attempts, `reconnect` restores the connection.
"""

from math import inf
from typing import Any, Final, cast

from toolpost.client.connection.reconnect import MIN_BACKOFF, Backoff
from toolpost.errors import (
    ChannelClosed,
    MCPError,
    RateLimited,
    RequestFailed,
    RequestTimeout,
    TransportError,
)
from toolpost.protocol.methods import ROWS

RETRY_SAFE_METHODS: Final = frozenset(row.name for row in ROWS if row.repeatable)
"""Methods that change nothing, or nothing more the second time."""

TOO_MANY_REQUESTS: Final = 429  # proves that a request was not served; a 503 may come from anywhere
MAX_FAILURES: Final = 5  # requests in a row that cannot reach the server before the circuit breaker opens
MAX_PLAUSIBLE_RETRY_AFTER: Final = 1e9  # seconds; larger values are ignored
MAX_REQUEST_RETRY_AFTER: Final = 300.0  # seconds that a request waits at most because the server says so


class RetryPolicy:
    """Decides whether and when one request is retried; for `safe` see `run_with_retry`."""

    def __init__(self, retries: int, *, safe: bool | None, started: float, timeout: float | None) -> None:
        self._left = 0 if safe is False else retries
        self._safe = safe
        self._latest = inf if timeout is None else started + timeout / 2  # the rest is for the answer
        self._backoff: Backoff | None = None

    def next_delay(self, error: MCPError, now: float) -> float | None:
        """Return the seconds to wait before the next attempt; None if the error is final or time is short."""
        delay = self._choose_delay(error, now)
        return None if delay is None or now + delay > self._latest else delay

    def _choose_delay(self, error: MCPError, now: float) -> float | None:
        if not self._left or isinstance(error, RequestTimeout) or not (self._safe or _is_unserved(error)):
            return None
        retry_after = _parse_retry_after(error)
        if retry_after is not None:
            if retry_after > MAX_REQUEST_RETRY_AFTER:
                return None
            self._left -= 1
            return retry_after
        if isinstance(error, RateLimited):
            return None  # without a time from the server, the caller knows best when to retry
        status = error.status if isinstance(error, RequestFailed) else None
        if status is not None and status < 500 and status not in {408, 425, 429}:
            return None  # a later attempt would not succeed either
        self._left -= 1
        if isinstance(error, ChannelClosed):
            return 0.0  # the reconnect has a backoff of its own
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


class CircuitBreaker:
    """Stops requests to a server that cannot be reached, and lets one through after each pause."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._counted = 0.0
        self._until = 0.0
        self.failures = 0  # requests in a row that did not reach the server; concurrent ones count as one

    def record_success(self) -> None:
        """Record that the server can be reached."""
        self.failures = 0
        self._backoff.reset()

    def allow_next(self) -> None:
        """Let the next request through."""
        self._until = 0.0

    def record_failure(self, began: float, now: float) -> float | None:
        """Count a failure; return the seconds for which requests are paused, or None."""
        if self.failures and began <= self._counted:
            return None
        self.failures += 1
        self._counted = now
        if self.failures < MAX_FAILURES:
            return None
        pause = self._backoff.next_delay(now)
        self._until = now + pause
        return pause

    def check(self, now: float, peer: str) -> None:
        """Let one request through when the pause is over; raise `RequestFailed` for all others."""
        if self.failures < MAX_FAILURES:
            return
        left = self._until - now
        if left > 0:
            raise RequestFailed(
                f"could not reach the server {self.failures} times in a row",
                sent=False,
                hint=f"requests are paused for {left:.1f} s more",
                peer=peer,
            )
        self._until = now + MIN_BACKOFF
