"""The results: samples of one target in several rounds, and rows with several targets.

Computes medians, spreads and ratios. A ratio is computed per round, and the median of the ratios counts,
because a noisy machine disturbs all targets of a round alike.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any, Final, Literal, NamedTuple

__all__ = ["LIMIT", "OFFICIAL", "OURS", "Figure", "Row", "Sample", "percentile"]

OURS: Final = "toolpost"
OFFICIAL: Final = "mcp-2.3.0"
LIMIT: Final = "limit"
UNDISTURBED: Final = 0.9
"""Minimum share of its core that the official SDK gets on an idle machine: it never waits."""


class Sample(NamedTuple):
    """One round of one target.

    Args:
        value: the measured value, in the unit of the row.
        per_cpu: calls per second of the target's CPU; None if not measured.
        p50: the median latency, in milliseconds.
        p99: the 99th percentile of the latency.
    """

    value: float
    per_cpu: float | None = None
    p50: float | None = None
    p99: float | None = None


class Figure(NamedTuple):
    """All rounds of one target."""

    samples: tuple[Sample, ...]

    @property
    def median(self) -> float:
        """The median."""
        return median(sample.value for sample in self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The minimum and the maximum."""
        values = [sample.value for sample in self.samples]
        return min(values), max(values)

    def typical(self, field: Literal["per_cpu", "p50", "p99"]) -> float | None:
        """Return the median of another field, or None."""
        known = [value for value in (getattr(sample, field) for sample in self.samples) if value is not None]
        return median(known) if known else None

    def plain(self) -> dict[str, Any]:
        """Return the JSON form."""
        low, high = self.spread
        summary = {"median": self.median, "min": low, "max": high, "rounds": len(self.samples)}
        others = {field: self.typical(field) for field in ("per_cpu", "p50", "p99")}
        return summary | {field: value for field, value in others.items() if value is not None}


class Row(NamedTuple):
    """One scenario, by target.

    Args:
        key: its name in `--only` and in the goals.
        title: its description.
        unit: the unit of the values.
        more: whether higher values are better.
        figures: target → figure.
        failed: target → reason of its failure.
    """

    key: str
    title: str
    unit: str
    more: bool
    figures: dict[str, Figure]
    failed: dict[str, str]

    @classmethod
    def of(cls, key: str, title: str, unit: str = "calls/s", *, more: bool = True) -> "Row":
        """Create a row without figures."""
        return cls(key, title, unit, more, {}, {})

    def ratios(self, base: str, target: str = OURS, field: str = "value") -> list[float]:
        """Return how many times better than another a target is, per round; empty if one is missing."""
        ours, theirs = (self.figures.get(name) for name in (target, base))
        if ours is None or theirs is None:
            return []
        pairs = [
            (mine, other) if self.more or field != "value" else (other, mine)
            for mine, other in zip(_field(ours.samples, field), _field(theirs.samples, field), strict=False)
        ]
        return [mine / other for mine, other in pairs] if all(other for _, other in pairs) else []

    def times(self, base: str, target: str = OURS, field: str = "value") -> float | None:
        """Return how many times better than another a target is; None if one is missing."""
        ratios = self.ratios(base, target, field)
        return median(ratios) if ratios else None

    @property
    def disturbed(self) -> bool:
        """Whether other processes used the core during the measurement."""
        samples = self.figures.get(OFFICIAL, Figure(())).samples
        shares = [sample.value / sample.per_cpu for sample in samples if sample.per_cpu]
        return bool(shares) and median(shares) < UNDISTURBED

    def plain(self) -> dict[str, Any]:
        """Return the JSON form."""
        targets = {
            name: figure.plain()
            | _known(vs_official=self.times(OFFICIAL, name), vs_limit=self.times(LIMIT, name))
            for name, figure in self.figures.items()
        }
        summary = {
            "key": self.key,
            "title": self.title,
            "unit": self.unit,
            "more": self.more,
            "targets": targets,
        }
        if self.disturbed:
            summary["disturbed"] = True
        # The reason is not stored: it may contain paths of this machine.
        return summary | ({"failed": sorted(self.failed)} if self.failed else {})


def _field(samples: Sequence[Sample], field: str) -> list[float]:
    return [value for value in (getattr(sample, field) for sample in samples) if value is not None]


def _known(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the quantile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
