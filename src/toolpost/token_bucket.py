"""A token bucket: how much may happen at once, and how much more in each second.

Owns the arithmetic for one thing that is limited. The limits, and what happens beyond them, are the caller's.
"""

from collections.abc import Callable


class TokenBucket:
    """Lets `burst` things through at once, and `rate` more in each second of a clock."""

    __slots__ = ("_burst", "_clock", "_rate", "_tokens", "_updated_at")

    def __init__(self, burst: float, rate: float, clock: Callable[[], float]) -> None:
        self._burst = self._tokens = float(burst)
        self._rate = rate
        self._clock = clock
        self._updated_at = clock()

    def take(self) -> bool:
        """Return whether one more thing may happen, and count it if so."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._updated_at) * self._rate)
        self._updated_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
