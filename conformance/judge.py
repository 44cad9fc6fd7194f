"""Judges our server and our client with the official suite, with stricter rules.

Runs the legs and prints the tables. `make conformance` calls it; run it with
`PYTHONPATH=interop python conformance/judge.py [leg]`, where a prefix selects all legs that begin with it.
"""

import asyncio
import signal
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from environments import Broken
from legs import LATER, Leg, Run, Waiting, plan
from owed import EXTENSION, Owed
from suite import Ran, install, run_client, run_server
from verdict import faults

__all__ = ["Row", "format_leg", "judge", "judge_leg", "summary"]

PARALLEL: Final = 2
"""Concurrent programs of the suite: some checks have a timeout of 0.5 s, and there may be only two cores."""

NOT_RUN: Final = Ran([], "not run")


class Row(NamedTuple):
    """The result of one scenario: its faults, and whether they count."""

    name: str
    faults: list[str]
    counts: bool = True


def judge_leg(leg: Leg, ran: dict[Run, Ran], trouble: str, owed: Owed) -> list[Row]:
    """The result of a leg.

    Args:
        leg: the leg.
        ran: the results of its scenarios.
        trouble: a failure of the whole leg.
        owed: the required checks.
    """
    rows: list[Row] = []
    for run in leg.runs:
        checks, own = ran.get(run, NOT_RUN)
        found = faults(owed.checks(*run), checks, own)
        if leg.name not in LATER:
            rows.append(Row(str(run), found))
        elif found:
            rows.append(Row(str(run), found, counts=False))
        else:
            rows.append(Row(str(run), ["it passes: remove it from waiting.txt"]))
    strange = [run for run in ran if run not in leg.runs and not owed.checks(*run)]
    rows += [Row(str(run), ["unknown scenario: owed.json is older than the suite"]) for run in strange]
    if trouble:
        rows.append(Row(leg.name, [trouble]))
    return rows


async def _carried_out(leg: Leg, turn: asyncio.Semaphore, owed: Owed) -> list[Row]:
    """Run a leg and return its result."""
    if not leg.arguments:
        ran = await asyncio.gather(*(_alone(run, turn, owed) for run in leg.runs))
        return judge_leg(leg, dict(zip(leg.runs, ran, strict=True)), "", owed)
    async with turn:
        by_name, trouble = await run_server(*leg.arguments)
    side, wire, _ = leg.runs[0]
    return judge_leg(leg, {Run(side, wire, name): ran for name, ran in by_name.items()}, trouble, owed)


async def _alone(run: Run, turn: asyncio.Semaphore, owed: Owed) -> Ran:
    """Run one scenario and return its results."""
    arguments = ["--spec-version", run.wire] if run.wire != EXTENSION else []
    if arguments and owed.is_extension(run.side, run.scenario):
        arguments.append("--force")  # as it is run for a requirement set
    async with turn:
        if run.side == "client":
            return await run_client(run.scenario, *arguments)
        by_name, trouble = await run_server("--scenario", run.scenario, *arguments)
    ran = by_name.get(run.scenario, NOT_RUN)
    return ran._replace(trouble=trouble or ran.trouble)


def format_leg(name: str, rows: Iterable[Row]) -> str:
    """Format the table of a leg."""
    lines = [f"\n{name}"]
    for row in rows:
        word, most = ("ok", 0) if not row.faults else ("RED", 1000) if row.counts else ("waits", 100)
        lines.append(f"  {word:6}{row.name:66}{'; '.join(row.faults)[:most]}".rstrip())
    return "\n".join(lines)


def summary(results: dict[str, list[Row]]) -> str:
    """Format a line for each leg, and the total."""
    lines = [f"\n{'leg':34}{'passed':>8}{'failed':>8}{'waiting':>9}"]
    all_passed = all_failed = 0
    for name, rows in results.items():
        passed = sum(not row.faults for row in rows)
        failed = sum(bool(row.faults) and row.counts for row in rows)
        lines.append(f"{name:34}{passed:>8}{failed:>8}{len(rows) - passed - failed:>9}")
        all_passed, all_failed = all_passed + passed, all_failed + failed
    return "\n".join([*lines, f"\n{all_passed} passed, {all_failed} failed"])


async def judge(names: list[str], waiting: Waiting, owed: Owed) -> int:
    """Run the selected legs, print the results, and return the exit code."""
    us = asyncio.current_task()
    assert us is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, us.cancel)
    legs = plan(owed, waiting.runs)
    chosen = [leg for leg in legs if not names or leg.name.startswith(tuple(names))]
    unknown = [name for name in names if not any(leg.name.startswith(name) for leg in legs)]
    if unknown:
        print(f"unknown leg {unknown[0]!r}; available: {', '.join(leg.name for leg in legs)}")
        return 2
    results = {"waiting.txt": [Row(why, ["fix the list"]) for why in waiting.faults(owed)]}
    turn = asyncio.Semaphore(PARALLEL)
    async with asyncio.TaskGroup() as group:
        jobs = {leg.name: group.create_task(_carried_out(leg, turn, owed)) for leg in chosen}
        for name, job in jobs.items():
            results[name] = await job
            print(format_leg(name, results[name]), flush=True)
    if not results["waiting.txt"]:
        del results["waiting.txt"]
    print(summary(results))
    return int(any(row.faults and row.counts for rows in results.values() for row in rows))


async def main() -> int:
    """Install the suite if necessary, judge, and return the exit code."""
    try:
        await install()
    except Broken as error:
        print(f"could not install the suite: {error}")
        return 2
    return await judge(sys.argv[1:], Waiting.load(), Owed.load())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
