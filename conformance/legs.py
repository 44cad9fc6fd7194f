"""The legs: groups of scenarios that run together, and scenarios that may fail for now.

A scenario about authorization, or of an extension, may fail until its feature is implemented. `waiting.txt`
lists it, and it runs in a separate leg.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from owed import EXTENSION, SETS, SIDES, WIRES, Owed

__all__ = ["LATER", "LIST", "Leg", "Run", "Waiting", "plan"]

LIST: Final = Path(__file__).with_name("waiting.txt")

AUTH: Final = "auth/"

LATER: Final = ("auth", "extensions")
"""The legs of scenarios that may fail."""


class Run(NamedTuple):
    """One scenario of one side in one revision."""

    side: str
    wire: str
    scenario: str

    def __str__(self) -> str:
        return " ".join(self)


class Leg(NamedTuple):
    """Scenarios that are reported together.

    Args:
        name: the name of the leg.
        runs: its scenarios.
        arguments: arguments of the suite to run all at once; otherwise each runs alone.
    """

    name: str
    runs: list[Run]
    arguments: tuple[str, ...] = ()


class Waiting:
    """The list of runs that may fail. It may only get shorter.

    Args:
        text: one run per line; a comment after # gives the reason.

    Raises:
        ValueError: a line is not a run.
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
        """Read the file."""
        return cls(LIST.read_text())

    def faults(self, owed: Owed) -> list[str]:
        """Return the faults of the list itself."""
        found = [f"{run} is listed twice" for run in sorted(set(self.runs)) if self.runs.count(run) > 1]
        for run in self.runs:
            known = run.side in SIDES and run.wire in (*WIRES, EXTENSION)
            if not known or run.scenario not in owed.scenarios(run.side, run.wire):
                found.append(f"unknown run {run}")
            elif not run.scenario.startswith(AUTH) and run.wire != EXTENSION:
                found.append(f"{run} must not be listed: it is neither about authorization nor an extension")
        return found


def plan(owed: Owed, waiting: Iterable[Run]) -> list[Leg]:
    """Return all legs with scenarios."""
    later = list(waiting)
    legs: list[Leg] = []
    for side in SIDES:
        for wire in WIRES:
            runs = _runs(side, wire, owed.scenarios(side, wire), later)
            legs.append(Leg(f"{side}-{wire}", runs, _at_once(side, "--suite", "all", "--spec-version", wire)))
        for revision in SETS:
            runs = _runs(side, revision, owed.required(side, revision), later)
            arguments = _at_once(side, "--requirements", revision)
            legs.append(Leg(f"{side}-requirements-{revision}", runs, arguments))
        legs.append(Leg(f"{side}-extensions", _runs(side, EXTENSION, owed.scenarios(side, EXTENSION), later)))
    about_auth = [run for run in later if run.scenario.startswith(AUTH)]
    others = [run for run in later if not run.scenario.startswith(AUTH)]
    legs += [Leg(name, runs) for name, runs in zip(LATER, (about_auth, others), strict=True)]
    return [leg for leg in legs if leg.runs]


def _runs(side: str, wire: str, scenarios: list[str], later: list[Run]) -> list[Run]:
    """Return the runs that must pass. A waiting extension waits in every requirement set."""
    away = {run.scenario for run in later if (run.side, run.wire) in {(side, wire), (side, EXTENSION)}}
    return [Run(side, wire, scenario) for scenario in scenarios if scenario not in away]


def _at_once(side: str, *arguments: str) -> tuple[str, ...]:
    """Return the arguments for all scenarios of servers: for many clients, the suite ignores exit codes."""
    return arguments if side == "server" else ()
