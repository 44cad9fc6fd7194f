"""Runs all scenarios, or some: `python -m bench [--quick] [--only WORD ...]`.

Prints each row as it is measured, then every goal with its figure. A full run writes the results. The exit
code is 1 if a goal was missed, and 2 if there is no library to compare with.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench import by_turns, fleet, idle, options, over_http, over_stdio, start
from bench.arena import Arena, Scenario
from bench.command import exit_code
from bench.contenders import CONTENDERS, Missing, prepare
from bench.figures import LIMIT, OFFICIAL, OURS, Row
from bench.goals import GOALS, Goal, judge
from bench.process import Failed, cores, frozen_source, open_files
from bench.publish import PAGES, publish
from bench.report import format_row, write
from bench.wrk import best_load

SCENARIOS: tuple[Scenario, ...] = (
    *over_http.SCENARIOS,
    *options.SCENARIOS,
    *over_stdio.SCENARIOS,
    *by_turns.SCENARIOS,
    *idle.SCENARIOS,
    *fleet.SCENARIOS,
    *start.SCENARIOS,
)


QUICK: Final = [LIMIT, OURS, OFFICIAL]
"""The targets of a quick run."""

LEGEND: Final = (
    "Each line: the median of its rounds, their minimum and maximum in brackets, calls per second of the\n"
    "target's CPU, the latency of a call, and how many times better it is than others: the median of the\n"
    "ratios within the rounds, which is not the ratio of the medians."
)


def select(words: list[str], *, quick: bool) -> list[Scenario]:
    """Return the scenarios whose names begin with one of the words; in a quick run, those with a goal."""
    return [
        scenario
        for scenario in SCENARIOS
        if (any(scenario.key.startswith(word) for word in words) if words else scenario.goal or not quick)
    ]


def _unknown(words: list[str]) -> list[str]:
    """Return the words that match no scenario."""
    return [word for word in words if not select([word], quick=False)]


def _measure(scenario: Scenario, arena: Arena) -> list[Row]:
    """Return the rows of a scenario; one without figures if the scenario failed."""
    try:
        return scenario.run(arena)
    except (Failed, OSError) as error:
        row = Row.of(scenario.key, scenario.key)
        row.failed[OURS] = str(error)
        return [row]


def _concerns(goal: Goal, scenarios: list[Scenario]) -> bool:
    """Return whether a goal depends on one of the scenarios."""
    return any(goal.key == scenario.key or goal.key.startswith(f"{scenario.key}-") for scenario in scenarios)


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Benchmarks against other libraries and the limit."
    )
    parser.add_argument("--quick", action="store_true", help="one round of the scenarios with goals")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="only scenarios that begin with WORD"
    )
    given = parser.parse_args()
    scenarios = select(given.only, quick=given.quick)
    if unknown := _unknown(given.only):
        known = ", ".join(scenario.key for scenario in SCENARIOS)
        parser.error(f"no scenario begins with {' or '.join(unknown)}; available: {known}")
    open_files()
    begun = time.monotonic()
    try:
        missing = prepare(QUICK if given.quick else list(CONTENDERS))
    except Missing as error:
        print(f"bench: could not measure: {error}")
        return 2
    left_out = [name for name in CONTENDERS if name not in QUICK] if given.quick else []
    load = best_load()
    print(f"load: {load.name}\n\n{LEGEND}\n")
    if cores() < 2:
        print("Load and targets share a single core: rates are not meaningful.\n")
    if given.quick:
        print(
            "Quick run: one round of the scenarios with goals, and a fifth of the sessions, without "
            f"{', '.join(left_out)}. Only a full run is conclusive.\n"
        )
    rows: dict[str, Row] = {}
    away = missing | dict.fromkeys(left_out, "not part of a quick run")
    with frozen_source(), Arena(load, quick=given.quick, missing=away) as arena:
        group = ""
        for scenario in scenarios:
            if scenario.key.partition("-")[0] != group:
                arena.clear()
                group = scenario.key.partition("-")[0]
            for row in _measure(scenario, arena):
                rows[row.key] = row
                print(format_row(row), flush=True)
    for name, why in missing.items():
        print(f"missing: {name}: {why}")
    concerned = [goal for goal in GOALS if _concerns(goal, scenarios)]
    verdicts = [judge(goal, rows) for goal in concerned if not (given.quick and goal.whole)]
    if not given.quick and not given.only:
        undrawn = write(rows, verdicts, missing, load.name)
        publish()
        print(f"no chart: {undrawn}" if undrawn else "wrote bench/results.json, results.md, results.png")
        print(f"updated the figures in {', '.join(PAGES)}")
    print(f"\ntotal time: {time.monotonic() - begun:.0f} s\n")
    print(*verdicts, *_caveats(rows, concerned, quick=given.quick), sep="\n")
    missed = sum(not verdict.reached for verdict in verdicts)
    print(
        f"{len(verdicts) - missed} reached, {missed} missed" if verdicts else "no goals for these scenarios"
    )
    return 1 if missed else 0


def _caveats(rows: Mapping[str, Row], concerned: Sequence[Goal], *, quick: bool) -> Iterator[str]:
    """Yield notes about the verdicts."""
    unjudged = [goal.name for goal in concerned if quick and goal.whole]
    if unjudged:
        yield f"only a full run has enough sessions for: {'; '.join(unjudged)}"
    disturbed = [row.key for row in rows.values() if row.disturbed]
    if disturbed:
        yield f"disturbed by other processes, not conclusive: {', '.join(disturbed)}"


if __name__ == "__main__":
    sys.exit(exit_code(main))
