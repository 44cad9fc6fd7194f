"""The results of the soak test: calls, expected and unexpected errors, resources of processes.

Computes the verdict and formats the report as Markdown. Independent of clients and servers.
"""

import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

MEGABYTE: Final = 1024 * 1024

GROWTH: Final = 0.1
"""Allowed relative growth of a process's memory between the second and the last fifth of the run."""

MORE_BYTES: Final = 5 * MEGABYTE
"""Allowed additional growth in bytes: the allocator dominates small processes."""

MORE_DESCRIPTORS: Final = 20
"""Allowed growth in descriptors: connections come and go."""

MAX_DETAILS: Final = 20
"""Unexpected errors to print in full; the others are counted."""


MAX_WORDS: Final = 500
"""Characters of one error to print, from the end of its traceback."""


class Sample(NamedTuple):
    """The resources of a process at one moment."""

    when: float
    memory: int
    descriptors: int


def held(pid: int) -> Sample | None:
    """Return the current resources of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only the number matters
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return Sample(time.monotonic(), int(found[1]) * 1024, descriptors) if found else None


class Ledger:
    """All counters."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.expected: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.unexpected: Counter[str] = Counter()
        self.details: list[str] = []
        self.faults: Counter[str] = Counter()
        self.samples: defaultdict[str, list[Sample]] = defaultdict(list)

    def expect(self, lane: tuple[str, str], error: str) -> None:
        """Record an expected error."""
        self.expected[lane][error] += 1

    def blame(self, what: str, words: str) -> None:
        """Record an unexpected error."""
        self.unexpected[what] += 1
        if len(self.details) < MAX_DETAILS:
            short = " ".join(words.split())[-MAX_WORDS:]
            self.details.append(f"{time.monotonic() - self.began:.1f} s: {what}: {short}")

    def sample(self, role: str, pids: Iterable[int]) -> None:
        """Record the average resources of the processes of a role."""
        found = [each for pid in pids if (each := held(pid)) is not None]
        if found:
            count = len(found)
            memory = sum(each.memory for each in found) // count
            descriptors = sum(each.descriptors for each in found) // count
            self.samples[role].append(Sample(found[-1].when, memory, descriptors))

    # ----------------------------------------------------------------- the verdict

    def grown(self) -> list[str]:
        """Return a line for each resource that has grown too much."""
        lines: list[str] = []
        for role, samples in self.samples.items():
            early, late = _fifth(samples, 1), _fifth(samples, 4)
            if late.memory > early.memory * (1 + GROWTH) + MORE_BYTES:
                lines.append(f"memory of {role}: {_mb(early.memory)} → {_mb(late.memory)}")
            if late.descriptors > early.descriptors * (1 + GROWTH) + MORE_DESCRIPTORS:
                lines.append(f"descriptors of {role}: {early.descriptors} → {late.descriptors}")
        return lines

    @property
    def good(self) -> bool:
        """Whether there were no unexpected errors and no growth."""
        return not self.unexpected and not self.grown() and self.calls.total() > 0

    def report(self) -> str:
        """Return the report as Markdown."""
        seconds = time.monotonic() - self.began
        errors, blamed = sum(each.total() for each in self.expected.values()), self.unexpected.total()
        lines = [
            f"## Soak: {seconds:.0f} s, {self.calls.total()} calls; errors: {errors} expected, {blamed} not",
            "",
            "| transport | revision | calls | expected errors |",
            "|---|---|---:|---|",
        ]
        lines += [
            f"| {lane[0]} | {lane[1]} | {self.calls[lane]} | {_counted(self.expected[lane])} |"
            for lane in sorted(self.calls)
        ]
        lines += ["", f"Faults: {_counted(self.faults)}", ""]
        lines += [
            "| process | RSS at start | warmed up | at end | descriptors at start | warmed up | at end |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for role, samples in self.samples.items():
            moments = samples[0], _fifth(samples, 1), _fifth(samples, 4)
            memory = " | ".join(_mb(each.memory) for each in moments)
            descriptors = " | ".join(str(each.descriptors) for each in moments)
            lines.append(f"| {role} | {memory} | {descriptors} |")
        lines += ["", f"Unexpected errors: {_counted(self.unexpected)}"]
        lines += [f"- {each}" for each in self.details]
        lines += [f"Grown: {'; '.join(self.grown()) or 'nothing'}"]
        return "\n".join(lines)


def _fifth(samples: list[Sample], number: int) -> Sample:
    """Return the medians of one fifth of the samples; the first is 0."""
    size = max(1, len(samples) // 5)
    part = samples[number * size :][: size if number < 4 else None] or samples[-1:]
    return Sample(
        part[-1].when,
        int(median(each.memory for each in part)),
        int(median(each.descriptors for each in part)),
    )


def _mb(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB"


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"
