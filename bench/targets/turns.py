"""Runs measurements on command: `WAY AT_ONCE SECONDS` on stdin, the figures as JSON on stdout.

So programs that are not servers can take turns, too. Imports no other package, because programs in the
environments of other libraries import it.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["repeat", "take_turns"]

Turn = Callable[[int, float], Awaitable[dict[str, float]]]
"""Keeps a number of calls in flight for a number of seconds, and returns the figures."""


async def take_turns(ways: dict[str, Turn]) -> None:
    """Take turns until stdin ends. A turn raises if a response is wrong."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        way, at_once, seconds = line.split()
        try:
            figures = await ways[way](int(at_once), float(seconds))
        except Exception as error:  # noqa: BLE001 - the bench reports it
            figures = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(figures), flush=True)


async def repeat(call: Callable[[], Awaitable[Any]], at_once: int, seconds: float) -> dict[str, float]:
    """Repeat one call, and return the figures."""
    clock = time.perf_counter
    times: list[float] = []

    async def caller() -> None:
        while (start_of_call := clock()) < until:
            await call()
            times.append(clock() - start_of_call)

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
