"""Many durations in little memory: counts by size, percentiles, and the picture of them.

Owns the arithmetic and the bars. Who measures what is not known here.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

__all__ = ["DurationHistogram", "draw_bar", "format_duration"]

BUCKET_STEP: Final = math.log(1.005)
"""Durations that differ by less than half a percent count as the same: a few thousand counts at most."""

MIN_DURATION: Final = 1e-9
"""Seconds below which no clock tells anything apart; zero has no logarithm."""

_EIGHTH_BLOCKS: Final = " ▏▎▍▌▋▊▉"


@dataclass
class DurationHistogram:
    """Durations in seconds, as many as there are."""

    count: int = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = 0.0
    _counts: Counter[int] = field(default_factory=Counter[int])

    def add(self, seconds: float) -> None:
        """Count one more."""
        seconds = max(seconds, MIN_DURATION)
        self.count += 1
        self.total += seconds
        self.minimum = min(self.minimum, seconds)
        self.maximum = max(self.maximum, seconds)
        self._counts[math.floor(math.log(seconds) / BUCKET_STEP)] += 1

    @property
    def mean(self) -> float:
        """The mean; 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, part: float) -> float:
        """What this part of them does not exceed, within half a percent; 0 if there are none."""
        wanted, seen = math.ceil(part * self.count), 0
        for size, count in sorted(self._counts.items()):
            seen += count
            if seen >= wanted:
                return self._bucket_midpoint(size)
        return 0.0

    def bins(self, rows: int) -> list[tuple[float, int]]:
        """How many there are up to each of some sizes: even steps to the 99th percentile, then the rest."""
        if not self.count:
            return []
        if (
            math.log(self.maximum / self.minimum) < BUCKET_STEP * rows
        ):  # they are the same, as far as is known
            return [(self.maximum, self.count)]
        high = self.quantile(0.99)
        step = (high / self.minimum) ** (1 / (rows - 1))
        ends = [self.minimum * step**row for row in range(1, rows - 1)] if step > 1 else []
        found = dict.fromkeys([*ends, high, self.maximum], 0)
        for size, count in self._counts.items():
            seconds = self._bucket_midpoint(size)
            found[next(end for end in found if seconds <= end)] += count
        return list(found.items())

    def _bucket_midpoint(self, size: int) -> float:
        """The duration that all of a size count as."""
        return min(max(math.exp((size + 0.5) * BUCKET_STEP), self.minimum), self.maximum)


def draw_bar(part: float, width: int, *, blocks: bool) -> str:
    """A bar of this part of the width: of blocks, to an eighth of a character, or of ASCII."""
    if not blocks:
        return "#" * max(round(part * width), int(part > 0))
    eighths = max(round(part * width * 8), int(part > 0))
    return ("█" * (eighths // 8) + _EIGHTH_BLOCKS[eighths % 8]).rstrip()


def format_duration(seconds: float) -> str:
    """A duration with three digits that matter."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            value = seconds / size
            return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {unit}"
    return f"{seconds * 1e6:.0f} us"
