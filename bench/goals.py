"""The goals of the scenarios, and whether they were reached.

A table. Each goal reads one figure from one row; it is missed if the row or the figure is missing.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Final, Literal, NamedTuple

from bench.contenders import TASKS
from bench.figures import LIMIT, OFFICIAL, OURS, Figure, Row
from bench.targets.ways import WAYS

__all__ = ["EMPTY", "FULL", "GOALS", "ONE_WORKER", "Goal", "Verdict", "judge"]

EMPTY: Final = "the empty server"
FULL: Final = "the full server"
"""Two servers of toolpost: one tool and no sessions, or the numbers in the title of the row."""

ONE_WORKER: Final = "one worker in memory"
"""The fleet of toolpost, compared with this."""

Measure = Literal[
    "times the official SDK",
    "times fastmcp-tasks",
    "% of the limit per CPU second",
    "% of the empty server",
    "times the CPU of one worker",
    "% without",
    "value",
]


class Goal(NamedTuple):
    """A goal.

    Args:
        name: its description.
        key: the scenario.
        measure: the figure to read from its row.
        sense: at least, or at most.
        figure: the threshold.
        unit: the unit of the figure.
        whole: whether only a full run can judge it.
        option: the option whose server is measured, next to the server without it.
    """

    name: str
    key: str
    measure: Measure
    sense: Literal["at least", "at most"]
    figure: float
    unit: str
    whole: bool = False
    option: str = ""


def _times(name: str, key: str, figure: float, unit: str = "×") -> Goal:
    return Goal(name, key, "times the official SDK", "at least", figure, unit)


def _cpu(way: str, figure: float) -> Goal:
    """Create a goal for the CPU per call of the ASGI application alone."""
    return _times(f"ASGI app alone: {WAYS[way].title}", f"asgi-{way}", figure, "× less CPU")


def _costs(option: str, percent: float) -> Goal:
    """Create a goal for the rate of calls with an option, in percent of the rate without it."""
    return Goal(f"calls with {option}", "options", "% without", "at least", percent, "%", option=option)


GOALS: Final = (
    _cpu("stateless-constant", 14),
    _cpu("stateless", 14),
    _cpu("stateless-context", 12),
    _cpu("stateless-token", 10),
    _cpu("session-context", 12),
    _cpu("session-token", 10),
    _cpu("session-progress-1", 18),
    _cpu("session-progress-10", 12),
    _cpu("stateless-progress-10", 15),
    _times("HTTP stateless `tools/call` with context, 16 connections", "http-stateless-context", 7),
    Goal(
        "the same, of the raw-ASGI limit per CPU second",
        "http-stateless-context",
        "% of the limit per CPU second",
        "at least",
        65,
        "%",
    ),
    _times("HTTP session `tools/call` with context, 16 connections", "http-session-context", 7),
    _times("HTTP session, one progress notification (SSE), 16 connections", "http-session-progress-1", 10),
    _times("HTTP `tools/list`, 100 tools", "http-list-100", 60),
    _times("HTTP `resources/read` 1 MiB, stateless", "http-read-stateless", 5),
    _times("HTTP `resources/read` 1 MiB, session", "http-read-session", 2),
    _times("stdio, sequential", "stdio-sequential", 5),
    _times("stdio, 64 in flight", "stdio-64", 50),
    _times("client over stdio, 16 in flight", "clients-stdio-16", 15),
    _times("client over HTTP, 16 in flight", "clients-http-16", 8),
    _times("in-process `Client(server)` call", "clients-memory", 10),
    Goal("idle session", "memory-idle-many", "value", "at most", 1, "KiB", whole=True),
    Goal("idle session with an open stream", "memory-stream-many", "value", "at most", 16, "KiB", whole=True),
    _times("start to first `tools/list` on stdio", "start-server-list", 7, "× sooner"),
    Goal("memory after that", "start-server-rss", "value", "at most", 30, "MB"),
    Goal("modules of telemetry, loaded while it is off", "start-telemetry", "value", "at most", 0, "modules"),
    _costs("telemetry, off", 99),
    _costs("metrics", 97),
    _costs("spans and metrics", 85),
    _costs("access log", 85),
    Goal(
        "call rate with 5 000 idle sessions and 1 000 tools",
        "growth-full",
        "% of the empty server",
        "at least",
        90,
        "%",
        whole=True,
    ),
    Goal(
        "CPU of a session call on two workers on Redis, compared with one worker in memory",
        "fleet-calls",
        "times the CPU of one worker",
        "at most",
        1.1,
        "×",
    ),
    Goal("commands to Redis per session call", "fleet-calls-commands", "value", "at most", 0.1, "commands"),
    Goal("answer at another worker to result", "fleet-question", "value", "at most", 5, "ms"),
    Goal("change of a list to 1500 streams", "fleet-change", "value", "at most", 200, "ms", whole=True),
    Goal("idle session in Redis", "fleet-bytes", "value", "at most", 0, "bytes"),
    Goal("an empty task in memory", "tasks-empty", "times fastmcp-tasks", "at least", 20, "× less CPU"),
    Goal("idle server with a task tool", "tasks-idle", "value", "at most", 0, "wake-ups/s"),
)


class Verdict(NamedTuple):
    """The result of a goal: its figures, or the reason why there are none."""

    goal: Goal
    figures: tuple[float, ...] = ()
    why: str = ""

    @property
    def figure(self) -> float | None:
        """The median of the rounds, which counts."""
        return median(self.figures) if self.figures else None

    @property
    def reached(self) -> bool:
        """Whether the goal was reached."""
        if self.figure is None:
            return False
        threshold = self.goal.figure
        return self.figure >= threshold if self.goal.sense == "at least" else self.figure <= threshold

    def __str__(self) -> str:
        goal, shown = self.goal, f"none: {self.why}"
        if self.figure is not None:
            rounds = f", {self.spread} by round" if self.spread else ""
            shown = f"{self.figure:.4g} {goal.unit} ({goal.sense} {goal.figure:g}{rounds})"
        return f"{'reached' if self.reached else 'MISSED '}  {goal.name}: {shown}"

    @property
    def spread(self) -> str:
        """The minimum and maximum of the rounds, if there were several."""
        return f"{min(self.figures):.3g} .. {max(self.figures):.3g}" if len(self.figures) > 1 else ""


def _percent(shares: list[float]) -> list[float]:
    return [share * 100 for share in shares]


_READ: Final[dict[Measure, Callable[[Row, Goal], list[float]]]] = {
    "times the official SDK": lambda row, _: row.ratios(OFFICIAL),
    "times fastmcp-tasks": lambda row, _: row.ratios(TASKS),
    "% of the limit per CPU second": lambda row, _: _percent(row.ratios(LIMIT, field="per_cpu")),
    "% of the empty server": lambda row, _: _percent(row.ratios(EMPTY, FULL)),
    "% without": lambda row, goal: _percent(row.ratios(OURS, f"with {goal.option}", field="per_cpu")),
    "times the CPU of one worker": lambda row, _: row.ratios(OURS, ONE_WORKER, field="per_cpu"),
    "value": lambda row, _: [sample.value for sample in row.figures.get(OURS, Figure(())).samples],
}


def judge(goal: Goal, rows: Mapping[str, Row]) -> Verdict:
    """Judge a goal."""
    row = rows.get(goal.key)
    if row is None:
        return Verdict(goal, why="not measured")
    figures = tuple(_READ[goal.measure](row, goal))
    why = "; ".join(f"{name}: {reason}" for name, reason in row.failed.items())
    return Verdict(goal, figures, "" if figures else why or "no target to compare with")
