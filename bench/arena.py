"""Keeps targets running while they are needed, and measures them in turns.

Runs the rounds. If a target fails, the others continue, and the row shows the reason. The scenario defines
the measurement.
"""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from bench.contenders import CONTENDERS
from bench.figures import LIMIT, OFFICIAL, OURS, Figure, Row, Sample
from bench.process import Failed, Place, Target, started
from bench.wrk import Load

__all__ = ["Arena", "Scenario"]

ROUNDS: Final = 5
FEWER: Final = 3
"""Rounds of scenarios without a goal, and of other targets in scenarios with one."""

OTHERS: Final = frozenset(CONTENDERS) - {OURS, OFFICIAL, LIMIT}

Turn = Callable[[], Sample]
T = TypeVar("T")


class Arena:
    """Runs targets.

    Args:
        load: the load generator.
        quick: whether to run one round only.
        missing: target that could not be prepared → reason.
    """

    def __init__(self, load: Load, *, quick: bool, missing: Mapping[str, str]) -> None:
        self.load = load
        self.quick = quick
        self.missing = missing
        self._running: dict[tuple[str, ...], Target] = {}
        self._stack = ExitStack()
        self.logs = Path()

    def __enter__(self) -> Self:
        self.logs = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self._targets = self._stack.enter_context(ExitStack())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def running(self, command: list[str], *, listens: bool = False, place: Place = "target") -> Target:
        """Return the process of a command. Starts it if necessary; it runs until `clear`.

        Raises:
            Failed: it does not start.
        """
        known = self._running.get(tuple(command))
        if known is None or known.process.poll() is not None:
            log = self.logs / f"{len(list(self.logs.iterdir()))}.log"
            known = self._targets.enter_context(started(command, listens=listens, place=place, log=log))
            self._running[tuple(command)] = known
        return known

    def clear(self) -> None:
        """End all targets."""
        self._running.clear()
        self._targets.close()

    def contest(
        self, row: Row, prepare: Mapping[str, Callable[[], Turn]], *, rounds: int = ROUNDS, least: int = 1
    ) -> Row:
        """Measure a figure for each target in turns, round by round, and return the row.

        Args:
            row: the row to fill.
            prepare: target → function that prepares it.
            rounds: number of rounds.
            least: number of rounds in a quick run.
        """
        turns = {
            name: turn for name in prepare if (turn := self.attempt(row, name, prepare[name])) is not None
        }
        seen: dict[str, list[Sample]] = {name: [] for name in turns}
        for number in range(least if self.quick else rounds):
            for name, turn in turns.items():
                if name in row.failed or (number >= FEWER and name in OTHERS):
                    continue
                if (sample := self.attempt(row, name, turn)) is not None:
                    seen[name].append(sample)
        row.figures.update(
            {name: Figure(tuple(samples)) for name, samples in seen.items() if name not in row.failed}
        )
        return row

    def attempt(self, row: Row, name: str, act: Callable[[], T]) -> T | None:
        """Return the result of a step of a target; None if it failed, with the reason in the row."""
        if name in self.missing:
            return None
        try:
            return act()
        except (Failed, OSError, EOFError, ValueError, KeyError) as error:
            row.failed[name] = (
                f"{type(error).__name__}: {error}" if not isinstance(error, Failed) else str(error)
            )
            return None


class Scenario(NamedTuple):
    """A scenario to measure.

    Args:
        key: its name for `--only`, which begins with its group. The keys of its rows begin with it.
        goal: whether it has a goal.
        run: the measurement.
    """

    key: str
    goal: bool
    run: Callable[[Arena], list[Row]]
