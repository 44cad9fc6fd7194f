"""Turns that a program takes when it is told to: `WAY AT_ONCE SECONDS` on stdin, the figures on stdout.

So programs that are no servers are measured round by round as well. Stands alone, because programs in the
environments of others import it.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["repeat", "take_turns"]

Turn = Callable[[int, float], Awaitable[dict[str, float]]]
"""Asks with so many calls in flight for so many seconds; what came of it."""


async def take_turns(ways: dict[str, Turn]) -> None:
    """Take turns until stdin ends; a turn raises if an answer is wrong."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        way, at_once, seconds = line.split()
        try:
            told = await ways[way](int(at_once), float(seconds))
        except Exception as error:  # noqa: BLE001 - whoever told us wants to know
            told = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


async def repeat(call: Callable[[], Awaitable[Any]], at_once: int, seconds: float) -> dict[str, float]:
    """A turn that consists of one call again and again."""
    clock = time.perf_counter
    times: list[float] = []

    async def caller() -> None:
        while (begun := clock()) < until:
            await call()
            times.append(clock() - begun)

    await call()
    used, start = time.process_time(), clock()
    until = start + seconds
    await asyncio.gather(*(caller() for _ in range(at_once)))
    burnt, taken = time.process_time() - used, clock() - start
    times.sort()
    return {
        "calls": len(times),
        "seconds": taken,
        "cpu": burnt,
        "p50": times[len(times) // 2] * 1000,
        "p99": times[len(times) * 99 // 100] * 1000,
    }
