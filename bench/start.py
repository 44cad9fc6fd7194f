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
    subprocess.run([python, "-c", "import asyncio, msgspec"], check=True, env=environment())  # noqa: S603 - ours
    return time.perf_counter() - start


def served(python: Path, code: str) -> float:
    """Seconds until a server has told its tools."""
    start = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - ours
        [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
            say({"id": number, "method": method, "params": params})
            return json.loads(process.stdout.readline())["result"]  # pyright: ignore[reportOptionalMemberAccess] - asserted

        def say(message: dict[str, Any]) -> None:
            line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
            process.stdin.write(line.encode())  # pyright: ignore[reportOptionalMemberAccess] - asserted
            process.stdin.flush()  # pyright: ignore[reportOptionalMemberAccess] - asserted

        ask(1, "initialize", HELLO)
        say({"method": "notifications/initialized"})
        tools = ask(2, "tools/list", {})["tools"]
        taken = time.perf_counter() - start
        assert [tool["name"] for tool in tools] == ["add"]
        process.stdin.close()
    return taken


def main() -> None:
    """Measure and tell."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    prepare = ROOT / "interop" / "environments.py"
    subprocess.run([sys.executable, prepare, PEER, "bare"], check=True)  # noqa: S603 - ours
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
        print(f"  {name:10} {seconds * 1000:8.1f} ms   (best {min(taken[name]) * 1000:.1f})")
    sooner, over = typical[PEER] / typical["toolpost"], typical["toolpost"] / typical["bare"]
    _tell(f"sooner than {PEER}", sooner, f"at least {GOAL_PEER:g} x", reached=sooner >= GOAL_PEER)
    _tell("over a bare start", over, f"at most {GOAL_BARE:g} x", reached=over <= GOAL_BARE)


def _tell(what: str, ratio: float, goal: str, *, reached: bool) -> None:
    print(f"  {what:22} {ratio:5.2f} x   goal: {goal:14} {'reached' if reached else 'MISSED'}")


if __name__ == "__main__":
    main()
