"""How much a function may say while it works: a few hundred words at once, and then so many in a second.

Owns the numbers, and what one request has left of them. What is said beyond is not sent, and costs its caller
nothing. Knows nothing of what it is.
"""

import asyncio
from typing import Final

__all__ = ["BURST", "RATE", "Measure"]

BURST: Final = 500
"""How much may be said at once, of each kind: more than anybody reads."""

RATE: Final = 100.0
"""How much more in each second: faster than any display shows it."""


class Measure:
    """What one request may still say, of one kind."""

    __slots__ = ("_left", "_then")

    def __init__(self) -> None:
        self._left = float(BURST)
        self._then = asyncio.get_running_loop().time()

    def take(self) -> bool:
        """Whether one more thing may be said; it counts."""
        if self._left < 1:
            now = asyncio.get_running_loop().time()
            self._left = min(float(BURST), self._left + (now - self._then) * RATE)
            self._then = now
            if self._left < 1:
                return False
        self._left -= 1
        return True
