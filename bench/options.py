"""The cost of options: an ordinary stateless call compared with the same call and one option.

The table of switches is in `targets/toolpost_server.py`, as a user would write them.
"""

import asyncio
from functools import partial
from typing import Final

from bench.arena import FEWER, Arena, Scenario, Turn
from bench.contenders import CONTENDERS
from bench.figures import OURS, Row
from bench.loader import Loader, ask
from bench.over_http import CONNECTIONS, SECONDS, WARM, check, requests_for
from bench.targets import wire

__all__ = ["SCENARIOS"]

SWITCHES: Final = (
    "middleware",
    "access log",
    "rate limit",
    "concurrency limit",
    "timeout",
    "token",
    "token, in a thread",
    "token, signed",
    "telemetry, off",
    "metrics",
    "metrics, OpenTelemetry",
    "spans and metrics",
)


def _prepare(arena: Arena, switch: str) -> Turn:
    target = arena.running(CONTENDERS[OURS].http("json", "0", switch), listens=True)
    token = target.output().splitlines()[0] if switch == "token, signed" else wire.TOKEN
    headers = {"authorization": f"Bearer {token}"} if switch.startswith("token") else {}
    requests = asyncio.run(requests_for(target, "wait", "stateless", CONNECTIONS, headers))
    check("wait", asyncio.run(ask(target.port, requests[0])), "application/json")
    Loader().run(target.port, target.pid, requests, CONNECTIONS, WARM)
    return partial(arena.load.run, target.port, target.pid, requests, CONNECTIONS, SECONDS)


def _run(arena: Arena) -> list[Row]:
    row = Row.of("options", "what it costs to switch on: HTTP, stateless, `tools/call` with context")
    plain = {OURS: partial(_prepare, arena, "")}
    return [
        arena.contest(
            row, plain | {f"with {name}": partial(_prepare, arena, name) for name in SWITCHES}, rounds=FEWER
        )
    ]


SCENARIOS: Final = (Scenario("options", True, _run),)
