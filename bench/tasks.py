"""Scenarios for tasks: the CPU of an empty task, and the wake-ups of an idle server whose tools have tasks.

Each round starts a new process of both libraries. No other one has tasks of 2026-07-28 on a server.
"""

import json
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.arena import FEWER, Arena, Scenario, Turn
from bench.contenders import TASKS, script
from bench.figures import OURS, Figure, Row, Sample
from bench.process import Failed, environment, keep_to

__all__ = ["SCENARIOS"]

COMMANDS: Final = {OURS: script("toolpost_tasks", None), TASKS: script("fastmcp_memory_tasks", TASKS)}
PATIENCE: Final = 120.0
"""Seconds for one process."""


def _tasks(arena: Arena) -> list[Row]:
    row = Row.of("tasks-empty", "an empty task: create, run and get, in memory", "µs of CPU", more=False)
    idle = Row.of("tasks-idle", "wake-ups of an idle server with a task tool", "per second", more=False)
    woken: dict[str, list[Sample]] = {}

    def turn(name: str) -> Sample:
        with keep_to("target"):
            ran = subprocess.run(
                COMMANDS[name],
                check=False,
                capture_output=True,
                text=True,
                env=environment(),
                timeout=PATIENCE,
            )
        if ran.returncode:
            raise Failed(ran.stderr.strip()[-300:])
        found = json.loads(ran.stdout.splitlines()[-1])
        woken.setdefault(name, []).append(Sample(found["idle"]))
        return Sample(found["cpu"])

    ready: dict[str, Callable[[], Turn]] = {name: lambda name=name: partial(turn, name) for name in COMMANDS}
    arena.contest(row, ready, rounds=FEWER)
    idle.figures.update({name: Figure(tuple(woken[name])) for name in row.figures})
    idle.failed.update(row.failed)
    return [row, idle]


SCENARIOS: Final = (Scenario("tasks", True, _tasks),)
