"""Scenarios of programs that run on command: ASGI applications without a socket, and clients.

Implements the protocol with such a program.
"""

import json
from functools import partial
from typing import Final, NamedTuple

from bench.arena import FEWER, ROUNDS, Arena, Scenario, Turn
from bench.contenders import CONTENDERS, script
from bench.figures import LIMIT, OFFICIAL, OURS, Row, Sample
from bench.process import Failed, Target, core
from bench.targets.ways import WAYS

__all__ = ["SCENARIOS", "run_turn"]

SECONDS: Final = 0.5


def run_turn(target: Target, way: str, at_once: int = 1, seconds: float = SECONDS) -> dict[str, float]:
    """Run one turn and return its result.

    Raises:
        Failed: the program ended, or a call failed.
    """
    stdin, stdout = target.process.stdin, target.process.stdout
    assert stdin is not None
    assert stdout is not None
    try:
        stdin.write(f"{way} {at_once} {seconds}\n".encode())
        stdin.flush()
    except BrokenPipeError:
        pass  # its last output has the reason
    line = stdout.readline()
    if not line:
        raise Failed(f"the program ended: {target.complaint()}")
    figures = json.loads(line)
    if "failed" in figures:
        raise Failed(figures["failed"])
    return figures


# --------------------------------------------------------------------- the application alone

UNJUDGED: Final = {"stateless-middleware", "stateless-progress-1", "session", "session-middleware"}
"""Ways without a goal."""


def _application(way: str, arena: Arena) -> list[Row]:
    def prepare(name: str) -> Turn:
        contender = CONTENDERS[name]
        target = arena.running(script(f"{contender.stem}_asgi", contender.environment))
        run_turn(target, way, seconds=0.2)
        return partial(_cpu_per_call, target, way)

    row = Row.of(f"asgi-{way}", WAYS[way].title, "µs of CPU per call", more=False)
    rounds = FEWER if way in UNJUDGED else ROUNDS
    return [arena.contest(row, {name: partial(prepare, name) for name in (OURS, OFFICIAL)}, rounds=rounds)]


def _cpu_per_call(target: Target, way: str) -> Sample:
    figures = run_turn(target, way)
    return Sample(figures["cpu"] / figures["calls"] * 1e6)


# --------------------------------------------------------------------- clients


class Visit(NamedTuple):
    """A scenario for clients: transport, calls in flight, and whether it has a goal."""

    key: str
    title: str
    way: str
    at_once: int
    goal: bool


VISITS: Final = (
    Visit("clients-stdio-1", "client over stdio, one call after the other", "stdio", 1, False),
    Visit("clients-stdio-16", "client over stdio, 16 calls in flight", "stdio", 16, True),
    Visit("clients-http-1", "client over HTTP, one call after the other", "http", 1, False),
    Visit("clients-http-16", "client over HTTP, 16 calls in flight", "http", 16, True),
    Visit("clients-memory", "client and server in one process, one call after the other", "memory", 1, True),
)


def _visit(visit: Visit, arena: Arena) -> list[Row]:
    """Clients against the limit servers, which are the fastest."""
    limit = CONTENDERS[LIMIT]

    def place() -> list[str]:
        if visit.way == "stdio":
            return [*limit.stdio(), str(core("load"))]
        if visit.way == "http":
            port = arena.running(limit.http("json"), listens=True, place="load").port
            return [f"http://127.0.0.1:{port}/mcp"]
        return []

    def prepare(name: str) -> Turn:
        contender = CONTENDERS[name]
        command = script(f"{contender.stem}_client", contender.environment, visit.way, *place())
        target = arena.running(command)
        run_turn(target, "call", visit.at_once, seconds=0.2)
        return partial(_rate, target, visit.at_once)

    row = Row.of(visit.key, visit.title)
    prepared = {name: partial(prepare, name) for name in (OURS, OFFICIAL)}
    return [arena.contest(row, prepared, rounds=ROUNDS if visit.goal else FEWER)]


def _rate(target: Target, at_once: int) -> Sample:
    figures = run_turn(target, "call", at_once)
    calls = figures["calls"]
    return Sample(calls / figures["seconds"], calls / figures["cpu"], figures["p50"], figures["p99"])


SCENARIOS: Final = (
    *(Scenario(f"asgi-{way}", way not in UNJUDGED, partial(_application, way)) for way in WAYS),
    *(Scenario(visit.key, visit.goal, partial(_visit, visit)) for visit in VISITS),
)
