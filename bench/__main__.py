"""All scenarios, or some: `python -m bench [--quick] [--only WORD ...]`.

Prints each row when it is there, then every goal with its figure. A whole run writes the results; ends with 1
if a goal was missed, and with 2 if there is nobody to compare with.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench import by_turns, idle, options, over_http, over_stdio, start
from bench.arena import Arena, Scenario
from bench.command import exit_code
from bench.contenders import CONTENDERS, Missing, prepare
from bench.figures import LIMIT, OFFICIAL, OURS, Row
from bench.goals import GOALS, Goal, judge
from bench.process import Failed, cores, frozen_source, open_files
from bench.publish import PAGES, publish
from bench.report import shown, write
from bench.wrk import best_load

SCENARIOS: tuple[Scenario, ...] = (
    *over_http.SCENARIOS,
    *options.SCENARIOS,
    *over_stdio.SCENARIOS,
    *by_turns.SCENARIOS,
    *idle.SCENARIOS,
    *start.SCENARIOS,
)


QUICK: Final = [LIMIT, OURS, OFFICIAL]
"""Who is measured in a quick run."""

LEGEND: Final = (
    "Each line: the median of its rounds, the least and the most of them in brackets, calls per second of\n"
    "the target's CPU, how long a call took, and how many times better it is than others: the median of the\n"
    "ratios within the rounds, which is not the ratio of the medians."
)


def chosen(words: list[str], *, quick: bool) -> list[Scenario]:
    """The scenarios whose names begin with one of the words; of a quick run, those that goals hang on."""
    return [
        scenario
        for scenario in SCENARIOS
        if (any(scenario.key.startswith(word) for word in words) if words else scenario.goal or not quick)
    ]


def _unknown(words: list[str]) -> list[str]:
    """The words that choose nothing."""
    return [word for word in words if not chosen([word], quick=False)]


def _measured(scenario: Scenario, arena: Arena) -> list[Row]:
    """Its rows; one without figures if the scenario as such has failed."""
    try:
        return scenario.run(arena)
    except (Failed, OSError) as error:
        row = Row.of(scenario.key, scenario.key)
        row.failed[OURS] = str(error)
        return [row]


def _concerns(goal: Goal, scenarios: list[Scenario]) -> bool:
    """Whether a goal hangs on one of the scenarios."""
    return any(goal.key == scenario.key or goal.key.startswith(f"{scenario.key}-") for scenario in scenarios)


def main() -> int:
    """Measure, tell, and write what was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Speed beside the peers and the limit."
    )
    parser.add_argument("--quick", action="store_true", help="one round of what goals hang on")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="scenarios that begin with it")
    given = parser.parse_args()
    scenarios = chosen(given.only, quick=given.quick)
    if unknown := _unknown(given.only):
        known = ", ".join(scenario.key for scenario in SCENARIOS)
        parser.error(f"no scenario begins with {' or '.join(unknown)}; there are {known}")
    open_files()
    begun = time.monotonic()
    try:
        missing = prepare(QUICK if given.quick else list(CONTENDERS))
    except Missing as error:
        print(f"bench: not measured, because {error}")
        return 2
    left_out = [name for name in CONTENDERS if name not in QUICK] if given.quick else []
    load = best_load()
    print(f"load: {load.name}\n\n{LEGEND}\n")
    if cores() < 2:
        print("There is one core only, which load and targets share: rates are no verdict.\n")
    if given.quick:
        print(
            "A quick run: one round of what goals hang on, and a fifth of the sessions, without "
            f"{', '.join(left_out)}. It shows the way; a whole run judges.\n"
        )
    rows: dict[str, Row] = {}
    away = missing | dict.fromkeys(left_out, "left out of a quick run")
    with frozen_source(), Arena(load, quick=given.quick, missing=away) as arena:
        group = ""
        for scenario in scenarios:
            if scenario.key.partition("-")[0] != group:
                arena.clear()
                group = scenario.key.partition("-")[0]
            for row in _measured(scenario, arena):
                rows[row.key] = row
                print(shown(row), flush=True)
    for name, why in missing.items():
        print(f"missing: {name}: {why}")
    concerned = [goal for goal in GOALS if _concerns(goal, scenarios)]
    verdicts = [judge(goal, rows) for goal in concerned if not (given.quick and goal.whole)]
    if not given.quick and not given.only:
        undrawn = write(rows, verdicts, missing, load.name)
        publish()
        print(f"no chart: {undrawn}" if undrawn else "written: bench/results.json, results.md, results.png")
        print(f"and what these have, into {', '.join(PAGES)}")
    print(f"\nall of it took {time.monotonic() - begun:.0f} s\n")
    print(*verdicts, *_caveats(rows, concerned, quick=given.quick), sep="\n")
    missed = sum(not verdict.reached for verdict in verdicts)
    print(f"{len(verdicts) - missed} reached, {missed} missed" if verdicts else "no goal hangs on these")
    return 1 if missed else 0


def _caveats(rows: Mapping[str, Row], concerned: Sequence[Goal], *, quick: bool) -> Iterator[str]:
    """What a reader of the verdicts has to know."""
    unjudged = [goal.name for goal in concerned if quick and goal.whole]
    if unjudged:
        yield f"left to a whole run, which has as many sessions as the goal: {'; '.join(unjudged)}"
    disturbed = [row.key for row in rows.values() if row.disturbed]
    if disturbed:
        yield f"disturbed, because somebody else had the core, and no verdict: {', '.join(disturbed)}"


if __name__ == "__main__":
    sys.exit(exit_code(main))
