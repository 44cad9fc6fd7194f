"""Scenarios for start-up time, memory, import time and size of an installation.

Each round starts a new process of every target, over stdio.
"""

import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from bench.arena import Arena, Scenario, Turn
from bench.contenders import BARE, CONTENDERS, HOME, Contender, python_of, script
from bench.figures import OFFICIAL, OURS, Figure, Row, Sample
from bench.over_stdio import Pipe
from bench.process import ROOT, Failed, environment, keep_to, rss, started

__all__ = ["SCENARIOS"]

ROUNDS: Final = 7
WARM: Final = 2
"""Warm-up starts: they write the bytecode and fill the caches of the file system."""

MB: Final = 1_000_000
"""Bytes per megabyte, for memory and installations."""

# --------------------------------------------------------------------- start


def _start(arena: Arena) -> list[Row]:
    soon = Row.of("start-server-list", "process start to the first `tools/list` over stdio", "ms", more=False)
    light = Row.of("start-server-rss", "memory after that", "MB", more=False)
    held: dict[str, list[Sample]] = {}

    def turn(contender: Contender) -> Sample:
        taken, bytes_held = _first_list(contender.stdio(), arena.logs / "start.log")
        held.setdefault(contender.name, []).append(Sample(bytes_held / MB))
        return Sample(taken * 1000)

    def prepare(contender: Contender) -> Turn:
        for _ in range(WARM):
            turn(contender)
        held.pop(contender.name)
        return partial(turn, contender)

    ready: dict[str, Callable[[], Turn]] = {
        name: partial(prepare, contender) for name, contender in CONTENDERS.items()
    }
    arena.contest(soon, ready, rounds=ROUNDS, least=2)
    light.figures.update({name: Figure(tuple(held[name])) for name in soon.figures})
    light.failed.update(soon.failed)
    return [soon, light]


def _first_list(command: list[str], log: Path) -> tuple[float, int]:
    """Return the seconds until a server has listed its tools, and its memory then."""
    with keep_to("load"):
        start = time.perf_counter()
        with started(command, log=log) as target:
            pipe = Pipe(target)
            pipe.greet()
            tools = pipe.ask("tools/list", {})["tools"]
            taken, held = time.perf_counter() - start, rss(target.pid)
    if "add" not in {tool["name"] for tool in tools}:
        raise Failed(f"unexpected tools: {tools}")
    return taken, held


# --------------------------------------------------------------------- import

IMPORTS: Final = {
    "start-import": (
        "import of the package",
        {OURS: "import toolpost", OFFICIAL: "import mcp", "fastmcp-4.1.0": "import fastmcp"},
    ),
    "start-import-server": (
        "importing the server module",
        {
            OURS: "from toolpost import Server; Server('bench')",
            OFFICIAL: "from mcp.server.mcpserver import MCPServer; MCPServer('bench')",
            "fastmcp-4.1.0": "from fastmcp import FastMCP; FastMCP('bench')",
        },
    ),
}


def _import(key: str, arena: Arena) -> list[Row]:
    title, statements = IMPORTS[key]

    def turn(name: str) -> Sample:
        code = f"from time import perf_counter as t; start = t(); {statements[name]}; print(t() - start)"
        command = [str(python_of(CONTENDERS[name].environment or BARE)), "-c", code]
        with keep_to("target"):
            ran = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
        if ran.returncode:
            raise Failed(ran.stderr.strip()[-300:])
        return Sample(float(ran.stdout) * 1000)

    def prepare(name: str) -> Turn:
        turn(name)
        return partial(turn, name)

    row = Row.of(key, title, "ms", more=False)
    return [arena.contest(row, {name: partial(prepare, name) for name in statements})]


# --------------------------------------------------------------------- telemetry that is off

_OFF: Final = """
import sys
from toolpost import Server, SyncClient
server = Server("bench")
server.tool(name="add")(lambda: 3)
with SyncClient(server) as client:
    client.call_tool("add")
names = ("opentelemetry", "prometheus_client", "toolpost.telemetry")
print(sum(name.startswith(names) for name in sys.modules))
"""


def _telemetry(arena: Arena) -> list[Row]:
    """Count the modules of telemetry after a call, with the SDK and prometheus-client installed."""
    row = Row.of("start-telemetry", "modules of telemetry, loaded while it is off", "modules", more=False)

    def count() -> None:
        command = [str(python_of(None)), "-c", _OFF]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
        row.figures[OURS] = Figure((Sample(float(ran.stdout)),))

    arena.attempt(row, OURS, count)
    return [row]


# --------------------------------------------------------------------- size


def _size(arena: Arena) -> list[Row]:
    # The others always include the dependencies of HTTP.
    row = Row.of("start-size", "installed size, toolpost for stdio", "MB", more=False)
    http = Row.of("start-size-http", "installed size, for HTTP", "MB", more=False)

    def python(row: Row, name: str, environment_: str | None, *packages: str) -> None:
        command = script("size", environment_, *packages)
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        # toolpost is not installed there, but imported from the checkout.
        own = _bytes(ROOT / "src" / "toolpost") if packages[0] == "toolpost" else 0
        row.figures[name] = Figure((Sample((int(output) + own) / MB),))

    def node(name: str, environment_: str) -> None:
        row.figures[name] = Figure((Sample(_bytes(HOME / environment_ / "node_modules") / MB),))

    arena.attempt(row, OURS, partial(python, row, OURS, None, "toolpost"))
    arena.attempt(http, OURS, partial(python, http, OURS, None, "toolpost", "http"))
    for name, contender in CONTENDERS.items():
        if contender.environment is not None:
            if contender.node:
                arena.attempt(row, name, partial(node, name, contender.environment))
            else:
                package = name.partition("-")[0]
                arena.attempt(row, name, partial(python, row, name, contender.environment, package))
    http.figures.update({name: figure for name, figure in row.figures.items() if name != OURS})
    return [row, http]


def _bytes(folder: Path) -> int:
    files = (file for file in folder.rglob("*") if file.suffix != ".pyc" and not file.is_symlink())
    return sum(file.stat().st_size for file in files if file.is_file())


SCENARIOS: Final = (
    Scenario("start-server", True, _start),
    *(Scenario(key, False, partial(_import, key)) for key in IMPORTS),
    Scenario("start-telemetry", True, _telemetry),
    Scenario("start-size", False, _size),
)
