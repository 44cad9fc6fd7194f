"""The goals: what has to be reached, scenario by scenario, and whether it was.

A table. Each line reads one figure out of one row; a row that is not there, or has no such figure, misses.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from bench.figures import LIMIT, OFFICIAL, OURS, Row

__all__ = ["EMPTY", "GOALS", "Goal", "Verdict", "judge"]

EMPTY: Final = "toolpost, empty"
"""A toolpost server that has one tool and no sessions, beside one that is full."""

Measure = Literal["times the official SDK", "% of the limit per CPU second", "% of the empty server", "value"]


class Goal(NamedTuple):
    """Something to reach.

    Args:
        name: what it is, for a reader.
        key: the scenario.
        measure: what is read from its row.
        sense: at least, or at most.
        figure: how much.
        unit: of the figure.
    """

    name: str
    key: str
    measure: Measure
    sense: Literal["at least", "at most"]
    figure: float
    unit: str


def _times(name: str, key: str, figure: float, unit: str = "×") -> Goal:
    return Goal(name, key, "times the official SDK", "at least", figure, unit)


GOALS: Final = (
    _times("the ASGI app alone, stateless, CPU per call", "asgi-stateless", 25, "× less"),
    # Nothing comes before the answer to `add`, so toolpost sends JSON; mcp answers as SSE all the same.
    _times("the ASGI app alone, session, mcp as SSE, CPU per call", "asgi-session-default", 40, "× less"),
    _times("HTTP stateless `tools/call`, 16 connections", "http-stateless-16", 8),
    Goal(
        "the same, of the raw-ASGI limit per CPU second",
        "http-stateless-16",
        "% of the limit per CPU second",
        "at least",
        75,
        "%",
    ),
    _times("HTTP session `tools/call` as JSON, 16", "http-session-json-16", 8),
    _times("HTTP session `tools/call`, mcp as SSE, 16", "http-session-default-16", 15),
    _times("HTTP `tools/list`, 100 tools", "http-list-100", 60),
    _times("HTTP `resources/read` 1 MiB, stateless", "http-read-stateless", 5),
    _times("HTTP `resources/read` 1 MiB, session", "http-read-session", 2),
    _times("stdio, sequential", "stdio-sequential", 5),
    _times("stdio, 64 in flight", "stdio-64", 50),
    _times("client over stdio, 16 in flight", "clients-stdio-16", 15),
    _times("client over HTTP, 16 in flight", "clients-http-16", 8),
    _times("in-process `Client(server)` call", "clients-memory", 10),
    Goal("idle session", "memory-idle-many", "value", "at most", 2, "KiB"),
    Goal("idle session with an open stream", "memory-stream-many", "value", "at most", 16, "KiB"),
    _times("start to first `tools/list` on stdio", "start-server-list", 7, "× sooner"),
    Goal("memory after that", "start-server-rss", "value", "at most", 30, "MB"),
    Goal(
        "call rate with 5 000 idle sessions and 1 000 tools",
        "growth-full",
        "% of the empty server",
        "at least",
        90,
        "%",
    ),
)


class Verdict(NamedTuple):
    """Whether a goal was reached, and by what figure; None if there is none, and why."""

    goal: Goal
    figure: float | None
    why: str = ""

    @property
    def reached(self) -> bool:
        """Whether it was."""
        if self.figure is None:
            return False
        wanted = self.goal.figure
        return self.figure >= wanted if self.goal.sense == "at least" else self.figure <= wanted

    def __str__(self) -> str:
        goal = self.goal
        shown = f"{self.figure:.4g} {goal.unit}" if self.figure is not None else f"none: {self.why}"
        word = "reached" if self.reached else "MISSED "
        return f"{word}  {goal.name}: {shown} ({goal.sense} {goal.figure:g})"


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


_READ: Final[dict[Measure, Callable[[Row], float | None]]] = {
    "times the official SDK": lambda row: row.times(OFFICIAL),
    "% of the limit per CPU second": lambda row: _percent(row.times(LIMIT, field="per_cpu")),
    "% of the empty server": lambda row: _percent(row.times(EMPTY)),
    "value": lambda row: row.figures[OURS].median if OURS in row.figures else None,
}


def judge(goal: Goal, rows: Mapping[str, Row]) -> Verdict:
    """Whether a goal was reached."""
    row = rows.get(goal.key)
    if row is None:
        return Verdict(goal, None, "it was not measured")
    figure = _READ[goal.measure](row)
    why = "; ".join(f"{name}: {reason}" for name, reason in row.failed.items())
    return Verdict(goal, figure, "" if figure is not None else why or "there is nothing to compare with")
