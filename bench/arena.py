"""The place where targets meet: keeps them running while they are needed, and gives each its turns.

Owns rounds, and what happens to a target that fails: the others go on, and the row says why. What is measured
is the scenario's business.
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
"""Rounds of what no goal hangs on: other scenarios, and other targets in those with a goal."""

OTHERS: Final = frozenset(CONTENDERS) - {OURS, OFFICIAL, LIMIT}

Turn = Callable[[], Sample]
T = TypeVar("T")


class Arena:
    """Where targets run.

    Args:
        load: what loads servers.
        quick: whether one round has to do.
        missing: targets that could not be prepared, and why.
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
        """The process of a command; it is started if there is none yet, and runs until `clear`.

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
        """The row with a figure for each target; they take turns, round by round.

        Args:
            row: what is measured.
            prepare: by target, what makes it ready for its turns.
            rounds: how often.
            least: how often in a quick run.
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
        """What an act of a target comes to; None if it failed, and the row says why."""
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
    """Something that is measured.

    Args:
        key: what `--only` chooses it by; its first word is that of its group. The keys of its rows begin so.
        goal: whether a goal hangs on it.
        run: measures it.
    """

    key: str
    goal: bool
    run: Callable[[Arena], list[Row]]
