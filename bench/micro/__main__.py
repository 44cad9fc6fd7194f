"""Nanoseconds of CPU for each step: `python -m bench.micro [WORD ...]`, the best of some rounds, interleaved.

The words choose steps that have one of them in their names. Bare msgspec is measured in any case, because the
others are told as multiples of it. A step that cannot be taken, because what it stands on has changed, says
so; the others go on.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from bench.command import exit_code
from bench.micro.steps import STEPS, Many, bare_msgspec

ROUNDS = 7
CALLS = 3000


def measured(
    steps: Sequence[Callable[[], Many]], rounds: int = ROUNDS, calls: int = CALLS
) -> dict[str, float | str]:
    """Measure the steps. Returns step → nanoseconds, or the reason of a failure."""
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


def named(step: Callable[[], Many]) -> str:
    """What a step is called, for a reader."""
    return step.__name__.replace("_", " ")


def chosen(word: str) -> list[Callable[[], Many]]:
    """The steps that have a word in their names, which may be written as in Python."""
    return [step for step in STEPS if word.replace("_", " ") in named(step)]


def main() -> int:
    """Print the table; 1 if a step could not be taken."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro",
        description="Nanoseconds of CPU that each step of a call takes, and as a multiple of bare msgspec.",
    )
    known = ", ".join(named(step) for step in STEPS)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help=f"steps that have it in their names: {known}"
    )
    words = parser.parse_args().words
    if unknown := [word for word in words if not chosen(word)]:
        parser.error(f"no step has {' or '.join(unknown)} in its name; available: {known}")
    wanted = {step for word in words or [""] for step in chosen(word)} | {bare_msgspec}
    steps = [step for step in STEPS if step in wanted]
    told = measured(steps)
    floor = told[bare_msgspec.__name__]
    print(f"{'step':20}{'ns':>9}{'× bare':>9}")
    for step in steps:
        figure = told[step.__name__]
        shown = f"  failed: {figure}"
        if isinstance(figure, float):
            share = f"{figure / floor:9.2f}" if isinstance(floor, float) else " " * 9
            shown = f"{figure:9,.0f}{share}"
        print(f"{named(step):20}{shown}   {(step.__doc__ or '').splitlines()[0]}")
    return 1 if any(isinstance(figure, str) for figure in told.values()) else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
