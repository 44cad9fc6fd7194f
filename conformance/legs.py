"""The legs of a judgement: which scenarios are run together, and which of them may wait.

A scenario about authorization, or of an extension, may be red until what it needs is built. It is listed for
that in `waiting.txt`, and stands in a leg of its own. How a leg is run is not known here.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from owed import EXTENSION, SETS, SIDES, WIRES, Owed

__all__ = ["LATER", "LIST", "Leg", "Run", "Waiting", "plan"]

LIST: Final = Path(__file__).with_name("waiting.txt")

AUTH: Final = "auth/"

LATER: Final = ("auth", "extensions")
"""The legs of what may wait."""


class Run(NamedTuple):
    """One scenario of one side on one wire."""

    side: str
    wire: str
    scenario: str

    def __str__(self) -> str:
        return " ".join(self)


class Leg(NamedTuple):
    """Scenarios that are told together.

    Args:
        name: of the leg.
        runs: its scenarios.
        asked: what the suite is asked for, if it runs them all in one go; otherwise each is run alone.
    """

    name: str
    runs: list[Run]
    asked: tuple[str, ...] = ()


class Waiting:
    """The list of runs that may be red. It may only get shorter.

    Args:
        text: a run on each line; what follows a # says what it waits for.

    Raises:
        ValueError: a line is no run.
    """

    def __init__(self, text: str) -> None:
        self.runs: list[Run] = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if len(words) == len(Run._fields):
                self.runs.append(Run(*words))
            elif words:
                raise ValueError(
                    f"line {number} of the waiting list names no side, wire and scenario: {line!r}"
                )

    @classmethod
    def load(cls) -> "Waiting":
        """What is in the file."""
        return cls(LIST.read_text())

    def faults(self, owed: Owed) -> list[str]:
        """What is wrong with the list itself."""
        found = [f"{run} is listed twice" for run in sorted(set(self.runs)) if self.runs.count(run) > 1]
        for run in self.runs:
            known = run.side in SIDES and run.wire in (*WIRES, EXTENSION)
            if not known or run.scenario not in owed.scenarios(run.side, run.wire):
                found.append(f"there is no {run}")
            elif not run.scenario.startswith(AUTH) and run.wire != EXTENSION:
                found.append(f"{run} may not wait: it is neither about authorization nor an extension")
        return found


def plan(owed: Owed, waiting: Iterable[Run]) -> list[Leg]:
    """All legs that have something to run."""
    later = list(waiting)
    legs: list[Leg] = []
    for side in SIDES:
        for wire in WIRES:
            runs = _runs(side, wire, owed.scenarios(side, wire), later)
            legs.append(Leg(f"{side}-{wire}", runs, _at_once(side, "--suite", "all", "--spec-version", wire)))
        for revision in SETS:
            runs = _runs(side, revision, owed.required(side, revision), later)
            asked = _at_once(side, "--requirements", revision)
            legs.append(Leg(f"{side}-requirements-{revision}", runs, asked))
        legs.append(Leg(f"{side}-extensions", _runs(side, EXTENSION, owed.scenarios(side, EXTENSION), later)))
    about_auth = [run for run in later if run.scenario.startswith(AUTH)]
    others = [run for run in later if not run.scenario.startswith(AUTH)]
    legs += [Leg(name, runs) for name, runs in zip(LATER, (about_auth, others), strict=True)]
    return [leg for leg in legs if leg.runs]


def _runs(side: str, wire: str, scenarios: list[str], later: list[Run]) -> list[Run]:
    """The runs that have to pass. What waits as an extension waits on the wire of every requirement set."""
    away = {run.scenario for run in later if (run.side, run.wire) in {(side, wire), (side, EXTENSION)}}
    return [Run(side, wire, scenario) for scenario in scenarios if scenario not in away]


def _at_once(side: str, *asked: str) -> tuple[str, ...]:
    """Only servers: when the suite runs many clients, it does not look how they end."""
    return asked if side == "server" else ()
