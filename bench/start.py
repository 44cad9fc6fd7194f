"""How soon a server answers: from the start of its process to the first answer to `tools/list`, over stdio.

The same server with one tool, made with toolpost and with PyPI's `mcp`, beside a bare start of Python that
imports what any asyncio server with msgspec needs. Rounds are interleaved, the median counts. The
environments are those of `make interop`. Run as `python bench/start.py [rounds]`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
ENVIRONMENTS: Final = ROOT / ".cache" / "interop"
PEER: Final = "mcp-2.3.0"
TOOLPOST: Final = """
from toolpost import Server
server = Server("start", version="1")

@server.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run()
"""
MCP: Final = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("start", version="1", log_level="ERROR")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run()
"""
GOAL_PEER: Final = 5.0
GOAL_BARE: Final = 1.6
WARM: Final = 2
"""Rounds that do not count: they write the bytecode and fill the caches of the file system."""

COVERS: Final = {
    "bare": 'python -c "import asyncio, msgspec": starts, answers nothing, ends',
    "toolpost": "a server with one tool, from this checkout",
    PEER: "the same server, made with PyPI's mcp",
}

HELLO: Final[dict[str, Any]] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "start", "version": "1"},
}


def environment() -> dict[str, str]:
    """Ours, with toolpost on the path and bytecode written."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "src")}


def bare(python: Path) -> float:
    """Seconds that an empty program takes."""
    start = time.perf_counter()
    subprocess.run([python, "-c", "import asyncio, msgspec"], check=True, env=environment())
    return time.perf_counter() - start


def served(python: Path, code: str) -> float:
    """Seconds until a server has told its tools."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    with process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
            say({"id": number, "method": method, "params": params})
            return json.loads(stdout.readline())["result"]

        def say(message: dict[str, Any]) -> None:
            stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            stdin.flush()

        ask(1, "initialize", HELLO)
        say({"method": "notifications/initialized"})
        tools = ask(2, "tools/list", {})["tools"]
        taken = time.perf_counter() - start
        assert [tool["name"] for tool in tools] == ["add"]
        stdin.close()
    return taken


def main() -> int:
    """Measure and tell; 1 if a goal was missed, 2 if there is nobody to compare with."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    prepare = ROOT / "interop" / "environments.py"
    if subprocess.run([sys.executable, prepare, PEER, "bare"], check=False).returncode:
        print(f"start: not measured, because {PEER} or msgspec could not be installed; pip said why above")
        return 2
    ours, theirs = (ENVIRONMENTS / name / "bin" / "python" for name in ("bare", PEER))
    contests = {
        "bare": lambda: bare(ours),
        "toolpost": lambda: served(ours, TOOLPOST),
        PEER: lambda: served(theirs, MCP),
    }
    taken: dict[str, list[float]] = {name: [] for name in contests}
    for number in range(WARM + rounds):
        for name, run in contests.items():
            seconds = run()
            if number >= WARM:
                taken[name].append(seconds)
    typical = {name: median(seconds) for name, seconds in taken.items()}
    print(f"from process start to the first tools/list answer, median of {rounds} rounds")
    for name, seconds in typical.items():
        print(f"  {name:10} {seconds * 1000:8.1f} ms   (best {min(taken[name]) * 1000:.1f})  {COVERS[name]}")
    sooner, over = typical[PEER] / typical["toolpost"], typical["toolpost"] / typical["bare"]
    goals = (
        (
            f"toolpost is {sooner:.2f} x sooner than {PEER}; goal: at least {GOAL_PEER:g} x",
            sooner >= GOAL_PEER,
        ),
        (f"toolpost takes {over:.2f} x a bare start; goal: at most {GOAL_BARE:g} x", over <= GOAL_BARE),
    )
    for goal, reached in goals:
        print(f"  {'reached' if reached else 'MISSED '}  {goal}")
    return 0 if all(reached for _, reached in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
