"""A token bucket, the algorithm behind rate limits, and the limit of warnings that a peer causes.

Other limits are elsewhere: of clients in `server.rate_limit`, of notifications in `server.context`.
"""

import logging
import time
from collections.abc import Callable


class TokenBucket:
    """Allows `burst` events at once, and `rate` more in each second of a clock."""

    __slots__ = ("_burst", "_clock", "_rate", "_tokens", "updated_at")

    def __init__(self, burst: float, rate: float, clock: Callable[[], float]) -> None:
        self._burst = self._tokens = float(burst)
        self._rate = rate
        self._clock = clock
        self.updated_at = clock()

    def take(self) -> bool:
        """Return whether one more event is allowed, and count it if so."""
        now = self._clock()
        tokens = self._tokens + (now - self.updated_at) * self._rate
        tokens = min(tokens, self._burst)
        self.updated_at = now
        is_allowed = tokens >= 1
        self._tokens = tokens - is_allowed
        return is_allowed

    @property
    def delay(self) -> float:
        """The seconds after the last `take` until the next one can succeed."""
        return max(0.0, 1 - self._tokens) / self._rate


class WarningThrottle:
    """Limits warnings that a peer can cause any number of times; the others are debug messages."""

    __slots__ = ("_bucket",)

    def __init__(self) -> None:
        self._bucket = TokenBucket(4, 1 / 60, time.monotonic)

    def choose_level(self) -> int:
        """Return the level of the next warning, and count it."""
        return logging.WARNING if self._bucket.take() else logging.DEBUG
