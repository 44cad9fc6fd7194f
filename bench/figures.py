"""What was measured: samples of one target in several rounds, and rows of targets beside each other.

Owns medians, spreads and ratios. A ratio is taken round by round and the median of them counts, because a
noisy machine disturbs the targets of one round alike. Where nothing is measured is not known here.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any, Final, Literal, NamedTuple

__all__ = ["LIMIT", "OFFICIAL", "OURS", "Figure", "Row", "Sample", "percentile"]

OURS: Final = "toolpost"
OFFICIAL: Final = "mcp-2.3.0"
LIMIT: Final = "limit"
UNDISTURBED: Final = 0.9
"""The share of its core that the official SDK gets at least, if nobody else works there: it never waits."""


class Sample(NamedTuple):
    """One round of one target.

    Args:
        value: what the row is about, in its unit.
        per_cpu: calls per second of the target's CPU; None if nobody looked.
        p50: the median of the time that a call took, in milliseconds.
        p99: the time that all but one of a hundred calls took at most.
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
        """What counts."""
        return median(sample.value for sample in self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the most."""
        values = [sample.value for sample in self.samples]
        return min(values), max(values)

    def typical(self, field: Literal["per_cpu", "p50", "p99"]) -> float | None:
        """The median of another field, if there is any."""
        known = [value for value in (getattr(sample, field) for sample in self.samples) if value is not None]
        return median(known) if known else None

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        low, high = self.spread
        told = {"median": self.median, "min": low, "max": high, "rounds": len(self.samples)}
        others = {field: self.typical(field) for field in ("per_cpu", "p50", "p99")}
        return told | {field: value for field, value in others.items() if value is not None}


class Row(NamedTuple):
    """One scenario, by target.

    Args:
        key: what it is called in `--only` and in the goals.
        title: what it is, for a reader.
        unit: of the values.
        more: whether more is better.
        figures: by target.
        failed: why a target has no figure.
    """

    key: str
    title: str
    unit: str
    more: bool
    figures: dict[str, Figure]
    failed: dict[str, str]

    @classmethod
    def of(cls, key: str, title: str, unit: str = "calls/s", *, more: bool = True) -> "Row":
        """A row without figures."""
        return cls(key, title, unit, more, {}, {})

    def ratios(self, base: str, target: str = OURS, field: str = "value") -> list[float]:
        """How many times better than another one a target is, by round; none if one of them is missing."""
        ours, theirs = (self.figures.get(name) for name in (target, base))
        if ours is None or theirs is None:
            return []
        pairs = [
            (mine, other) if self.more or field != "value" else (other, mine)
            for mine, other in zip(_field(ours.samples, field), _field(theirs.samples, field), strict=False)
        ]
        return [mine / other for mine, other in pairs] if all(other for _, other in pairs) else []

    def times(self, base: str, target: str = OURS, field: str = "value") -> float | None:
        """How many times better than another one a target is; None if one of them is missing."""
        ratios = self.ratios(base, target, field)
        return median(ratios) if ratios else None

    @property
    def disturbed(self) -> bool:
        """Whether somebody else had the core for a part of the time."""
        samples = self.figures.get(OFFICIAL, Figure(())).samples
        shares = [sample.value / sample.per_cpu for sample in samples if sample.per_cpu]
        return bool(shares) and median(shares) < UNDISTURBED

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        targets = {
            name: figure.plain()
            | _known(vs_official=self.times(OFFICIAL, name), vs_limit=self.times(LIMIT, name))
            for name, figure in self.figures.items()
        }
        told = {
            "key": self.key,
            "title": self.title,
            "unit": self.unit,
            "more": self.more,
            "targets": targets,
        }
        if self.disturbed:
            told["disturbed"] = True
        # Why is for the terminal: the words of a program may hold paths of this machine.
        return told | ({"failed": sorted(self.failed)} if self.failed else {})


def _field(samples: Sequence[Sample], field: str) -> list[float]:
    return [value for value in (getattr(sample, field) for sample in samples) if value is not None]


def _known(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
