"""How much a function may say while it works: a few hundred words at once, and then so many in a second.

Owns the numbers, and what one request has left of them. What is said beyond is not sent, and costs its caller
nothing. Knows nothing of what it is.
"""

import asyncio
from typing import Final

BURST: Final = 500
"""How much may be said at once, of each kind: more than anybody reads."""

RATE: Final = 100.0
"""How much more in each second: faster than any display shows it."""


class TokenBucket:
    """What one request may still say, of one kind."""

    __slots__ = ("_tokens", "_updated_at")

    def __init__(self) -> None:
        self._tokens = float(BURST)
        self._updated_at = asyncio.get_running_loop().time()

    def take(self) -> bool:
        """Whether one more thing may be said; it counts."""
        if self._tokens < 1:
            now = asyncio.get_running_loop().time()
            self._tokens = min(float(BURST), self._tokens + (now - self._updated_at) * RATE)
            self._updated_at = now
            if self._tokens < 1:
                return False
        self._tokens -= 1
        return True
