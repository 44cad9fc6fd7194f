"""Scenarios over stdio: calls of a child process, sequential and with many in flight.

Reads and writes the pipes with minimal overhead, so that it is faster than even the limit.
"""

import json
import os
import select
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from bench.arena import Arena, Scenario, Turn
from bench.contenders import CONTENDERS
from bench.figures import Row, Sample, percentile
from bench.process import Failed, Target, cpu, keep_to
from bench.targets import wire

__all__ = ["SCENARIOS", "Pipe"]

SECONDS: Final = 0.5
WARM: Final = 0.2
CHUNK: Final = 1 << 16
SILENCE: Final = 30.0
"""Seconds without output after which a target is considered dead."""


class Pipe:
    """Both pipes of a child."""

    def __init__(self, target: Target) -> None:
        stdin, stdout = target.process.stdin, target.process.stdout
        assert stdin is not None
        assert stdout is not None
        self._target = target
        self._in, self._out = stdin.fileno(), stdout.fileno()
        self._rest = b""
        self._number = 100

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._out], [], [], SILENCE)
        data = os.read(self._out, CHUNK) if ready else b""
        if not data:
            raise Failed(f"no more output: {self._target.complaint()}")
        return data

    def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        os.write(self._in, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result, with no other in flight."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        while True:
            while b"\n" not in self._rest:
                self._rest += self._read()
            line, _, self._rest = self._rest.partition(b"\n")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                if "result" not in answer:
                    raise Failed(f"wrong response: {answer}")
                return answer["result"]

    def greet(self) -> None:
        """Initialize the session."""
        self.ask("initialize", wire.HELLO)
        self.send({"method": "notifications/initialized"})

    def load(self, at_once: int, seconds: float) -> Sample:
        """Call as fast as possible with this number of calls in flight."""
        used, start = cpu(self._target.pid), time.perf_counter()
        times = self._flow(at_once, lambda _sent, now: now < start + seconds)
        taken, burnt = time.perf_counter() - start, cpu(self._target.pid) - used
        return Sample(
            len(times) / taken,
            len(times) / burnt if burnt else None,
            percentile(times, 0.5) * 1000,
            percentile(times, 0.99) * 1000,
        )

    def calls(self, count: int, at_once: int) -> int:
        """Make at least this number of calls. Returns the actual number."""
        return len(self._flow(at_once, lambda sent, _now: sent < count))

    def _flow(self, at_once: int, goes_on: Callable[[int, float], bool]) -> list[float]:
        """Keep this number of calls in flight. Returns their durations in seconds."""
        lines = [
            wire.body("add", number, stateless=False) + b"\n" for number in range(1000, 1000 + 4 * at_once)
        ]
        waiting: deque[float] = deque()
        times: list[float] = []
        clock, sent, free = time.perf_counter, 0, at_once
        while True:
            now = clock()
            if free and goes_on(sent, now):
                os.write(self._in, b"".join(lines[(sent + one) % len(lines)] for one in range(free)))
                sent += free
                waiting.extend([now] * free)
            elif not waiting:
                return times
            free = self._read().count(b"\n")
            now = clock()
            # Responses arrive almost in order of the calls: matching their ids would take longer.
            times.extend(now - waiting.popleft() for _ in range(free))


def _prepare(arena: Arena, name: str, at_once: int) -> Turn:
    target = arena.running(CONTENDERS[name].stdio())
    pipe = _pipes.get(target)
    if pipe is None:
        pipe = _pipes[target] = Pipe(target)
        pipe.greet()
    result = pipe.ask("tools/call", wire.ASKS["add"].params)
    if result["structuredContent"] not in (3, {"result": 3}):
        raise Failed(f"wrong response: {result}")
    with keep_to("load"):
        pipe.load(at_once, WARM)
    return partial(_turn, pipe, at_once)


_pipes: Final[WeakKeyDictionary[Target, Pipe]] = WeakKeyDictionary()


def _turn(pipe: Pipe, at_once: int) -> Sample:
    with keep_to("load"):
        return pipe.load(at_once, SECONDS)


def _run(key: str, title: str, at_once: int, arena: Arena) -> list[Row]:
    row = Row.of(key, title)
    return [arena.contest(row, {name: partial(_prepare, arena, name, at_once) for name in CONTENDERS})]


SCENARIOS: Final = (
    Scenario(
        "stdio-sequential", True, partial(_run, "stdio-sequential", "stdio, one call after the other", 1)
    ),
    Scenario("stdio-64", True, partial(_run, "stdio-64", "stdio, 64 calls in flight", 64)),
)
