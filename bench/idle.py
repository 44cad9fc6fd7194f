"""Scenarios with many sessions and tools: memory per idle session, and the call rate.

Opens sessions over HTTP, which stay open as long as the server runs. The goal is a constant rate.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.arena import FEWER, Arena, Scenario, Turn
from bench.contenders import CONTENDERS
from bench.figures import OFFICIAL, OURS, Figure, Row, Sample
from bench.goals import EMPTY, FULL
from bench.loader import Loader, Opened, open_sessions
from bench.over_http import CONNECTIONS, SECONDS, WARM, requests_for
from bench.process import Target, rss

__all__ = ["SCENARIOS"]

FEW: Final = 1000
MANY: Final = 5000
WARMING: Final = 50
"""Sessions to open before the first measurement, so that shared memory is allocated."""

SETTLE: Final = 0.5
"""Seconds to wait before memory is measured."""

STEADY: Final = 7
"""Rounds if a difference of 10 % matters."""

KIB: Final = 1024


def _counts(arena: Arena) -> tuple[int, int]:
    return (FEW // 5, MANY // 5) if arena.quick else (FEW, MANY)


# --------------------------------------------------------------------- memory


def _memory(key: str, arena: Arena, *, streaming: bool) -> list[Row]:
    arena.clear()  # a used server has free memory to reuse
    what = "idle session with an open stream" if streaming else "idle session"
    few, many = _counts(arena)
    rows = {
        "few": Row.of(f"{key}-few", f"memory of an {what}, at {few}", "KiB", more=False),
        "many": Row.of(f"{key}-many", f"memory of an {what}, at {many}", "KiB", more=False),
        "rate": Row.of(f"{key}-rate", f"session `tools/call` beside {many} of these, 16 connections"),
    }
    for name in (OURS,) if arena.quick else (OURS, OFFICIAL):  # the goal is about ours alone

        def measure(name: str = name) -> dict[str, Sample]:
            target = arena.running(CONTENDERS[name].http("json"), listens=True)
            return asyncio.run(_filled(arena, target, streaming=streaming))

        samples = arena.attempt(rows["many"], name, measure)
        for part, sample in (samples or {}).items():
            rows[part].figures[name] = Figure((sample,))
    return [row for row in rows.values() if row.figures or row.failed]


async def _filled(arena: Arena, target: Target, *, streaming: bool) -> dict[str, Sample]:
    """Measure memory per session at growing numbers, and the call rate."""
    few, many = _counts(arena)
    streams = [(await open_sessions(target.port, WARMING, streaming=streaming)).streams]
    await asyncio.sleep(SETTLE)
    before = rss(target.pid)
    samples: dict[str, Sample] = {}
    for part, more, total in (("few", few, few), ("many", many - few, many)):
        opened: Opened = await open_sessions(target.port, more, streaming=streaming)
        streams.append(opened.streams)
        await asyncio.sleep(SETTLE)
        samples[part] = Sample((rss(target.pid) - before) / total / KIB)
    if not arena.quick:
        requests = await requests_for(target, "add", "session", CONNECTIONS)
        samples["rate"] = arena.load.run(target.port, target.pid, requests, CONNECTIONS, SECONDS)
    for writer in (writer for some in streams for writer in some):
        writer.close()
    return samples


# --------------------------------------------------------------------- growth


def _prepare(arena: Arena, tools: int, sessions: int) -> Turn:
    """Start a server with these numbers of tools and idle sessions."""
    # The last argument distinguishes servers that differ only in their sessions.
    target = arena.running([*CONTENDERS[OURS].http("json", str(tools)), "", str(sessions)], listens=True)
    asyncio.run(open_sessions(target.port, sessions))
    requests = asyncio.run(requests_for(target, "add", "session", CONNECTIONS))
    Loader().run(target.port, target.pid, requests, CONNECTIONS, WARM)
    return partial(arena.load.run, target.port, target.pid, requests, CONNECTIONS, SECONDS)


def _grown(key: str, title: str, sizes: dict[str, tuple[int, int]], arena: Arena) -> list[Row]:
    prepare: dict[str, Callable[[], Turn]] = {
        name: partial(_prepare, arena, tools, sessions) for name, (tools, sessions) in sizes.items()
    }
    return [arena.contest(Row.of(key, title), prepare, rounds=FEWER)]


def _full(arena: Arena) -> list[Row]:
    """Compare a full server with an empty one."""
    _, many = _counts(arena)
    row = Row.of(
        "growth-full", f"session `tools/call` with {many} idle sessions and 1000 tools, 16 connections"
    )
    prepare: dict[str, Callable[[], Turn]] = {
        EMPTY: partial(_prepare, arena, 1, 0),
        FULL: partial(_prepare, arena, 1000, many),
    }
    return [arena.contest(row, prepare, rounds=STEADY, least=3)]


SCENARIOS: Final = (
    *(
        Scenario(key, True, partial(_memory, key, streaming=streaming))
        for key, streaming in (("memory-idle", False), ("memory-stream", True))
    ),
    Scenario(
        "growth-tools",
        False,
        partial(
            _grown,
            "growth-tools",
            "session `tools/call` as tools grow, 16 connections",
            {f"{count} tool{'s' * (count > 1)}": (count, 0) for count in (1, 10, 100, 1000)},
        ),
    ),
    Scenario(
        "growth-sessions",
        False,
        partial(
            _grown,
            "growth-sessions",
            "session `tools/call` as idle sessions grow, 16 connections",
            {f"{count} session{'s' * (count > 1)}": (1, count) for count in (1, 1000, 10_000)},
        ),
    ),
    Scenario("growth-full", True, _full),
)
