"""Nanoseconds of CPU for each step: `python -m bench.micro [WORD ...]`, the best of some rounds, interleaved.

The words select the steps whose names contain one of them. Bare msgspec is always measure, because the other
steps are reported as multiples of it. If a step fails, because the code that it calls has changed, its line
shows the error, and the other steps continue.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from bench.command import exit_code
from bench.micro.steps import STEPS, Many, bare_msgspec

ROUNDS = 7
CALLS = 3000


def measure(
    steps: Sequence[Callable[[], Many]], rounds: int = ROUNDS, calls: int = CALLS
) -> dict[str, float | str]:
    """Measure the steps. Returns step → nanoseconds, or the reason of a failure."""
    ready: dict[str, Many] = {}
    figures: dict[str, float | str] = {}
    for step in steps:
        try:
            many = step()
            many(calls // 10)
        except Exception as error:  # noqa: BLE001 - a step that has changed must not hide the others
            figures[step.__name__] = f"{type(error).__name__}: {error}"
        else:
            ready[step.__name__] = many
            figures[step.__name__] = float("inf")
    for _ in range(rounds):
        for name, many in ready.items():
            start = time.process_time_ns()
            many(calls)
            figures[name] = min(float(figures[name]), (time.process_time_ns() - start) / calls)
    return figures


def display_name(step: Callable[[], Many]) -> str:
    """Return the display name of a step."""
    return step.__name__.replace("_", " ")


def select_steps(word: str) -> list[Callable[[], Many]]:
    """Return the steps whose names contain a word, written with spaces or underscores."""
    return [step for step in STEPS if word.replace("_", " ") in display_name(step)]


def main() -> int:
    """Print the table. Returns 1 if a step failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro",
        description="Nanoseconds of CPU that each step of a call takes, and as a multiple of bare msgspec.",
    )
    known = ", ".join(display_name(step) for step in STEPS)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help=f"steps that have it in their names: {known}"
    )
    words = parser.parse_args().words
    if unknown := [word for word in words if not select_steps(word)]:
        parser.error(f"no step has {' or '.join(unknown)} in its name; available: {known}")
    selected = {step for word in words or [""] for step in select_steps(word)} | {bare_msgspec}
    steps = [step for step in STEPS if step in selected]
    figures = measure(steps)
    floor = figures[bare_msgspec.__name__]
    print(f"{'step':20}{'ns':>9}{'× bare':>9}")
    for step in steps:
        figure = figures[step.__name__]
        shown = f"  failed: {figure}"
        if isinstance(figure, float):
            share = f"{figure / floor:9.2f}" if isinstance(floor, float) else " " * 9
            shown = f"{figure:9,.0f}{share}"
        print(f"{display_name(step):20}{shown}   {(step.__doc__ or '').splitlines()[0]}")
    return 1 if any(isinstance(figure, str) for figure in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
