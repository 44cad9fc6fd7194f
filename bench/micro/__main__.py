"""Nanoseconds of CPU for each step: `python -m bench.micro [WORD ...]`, the best of some rounds, interleaved.

A step that cannot be taken, because what it stands on has changed, says so; the others go on.
"""

import sys
import time
from collections.abc import Callable, Sequence

from bench.micro.steps import STEPS, Many

ROUNDS = 7
CALLS = 3000


def measured(
    steps: Sequence[Callable[[], Many]], rounds: int = ROUNDS, calls: int = CALLS
) -> dict[str, float | str]:
    """By step, nanoseconds of one; or why there are none."""
    ready: dict[str, Many] = {}
    told: dict[str, float | str] = {}
    for step in steps:
        try:
            many = step()
            many(calls // 10)
        except Exception as error:  # noqa: BLE001 - a step that has changed must not hide the others
            told[step.__name__] = f"{type(error).__name__}: {error}"
        else:
            ready[step.__name__] = many
            told[step.__name__] = float("inf")
    for _ in range(rounds):
        for name, many in ready.items():
            start = time.process_time_ns()
            many(calls)
            told[name] = min(float(told[name]), (time.process_time_ns() - start) / calls)
    return told


def main() -> int:
    """Print the table; 1 if a step could not be taken."""
    words = sys.argv[1:]
    steps = [step for step in STEPS if not words or any(word in step.__name__ for word in words)]
    told = measured(steps)
    floor = told.get("bare_msgspec")
    print(f"{'step':20}{'ns':>9}{'× bare':>9}")
    for step in steps:
        figure = told[step.__name__]
        shown = f"  failed: {figure}"
        if isinstance(figure, float):
            share = f"{figure / floor:9.2f}" if isinstance(floor, float) else " " * 9
            shown = f"{figure:9,.0f}{share}"
        print(f"{step.__name__.replace('_', ' '):20}{shown}   {(step.__doc__ or '').splitlines()[0]}")
    return 1 if any(isinstance(figure, str) for figure in told.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
