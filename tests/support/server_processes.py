"""Real processes for tests that kill, stop and starve them, and their resources."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hosted import call, modern
from raw_http import wired
from revision_dates import DATES, LATEST, LATEST_SESSION
from toolpost import Client, MCPError, Stdio
from waiting import until

__all__ = [
    "FIRST",
    "NEW",
    "OLD",
    "PATIENCE",
    "WAYS",
    "Process",
    "Victim",
    "begun",
    "caller",
    "descriptors",
    "failures",
    "gone",
    "memory",
    "piped",
    "run",
    "stdio",
    "still",
    "stopped",
    "victim",
]

PATIENCE = 100.0
"""Seconds after which a test fails: far more than any test takes on a busy machine."""

LOOKS, LOOK = 12, 0.02
"""Number of equal samples after which a process counts as idle, and the seconds between two samples."""

SLACK = {"descriptors": 1}
"""Tolerance between samples: the connection of the sample itself may not be closed yet."""

PROGRAMS = Path(__file__).parent / "programs"
FIRST, NEW, OLD = DATES[0], LATEST.date, LATEST_SESSION.date

WAYS = {"stateless": (NEW, False), "session": (OLD, False), "sse": (FIRST, True)}
"""The three ways to talk to a server over HTTP: the revision, and whether it is HTTP+SSE."""


def run(main: Callable[[], Coroutine[Any, Any, None]], patience: float = PATIENCE) -> None:
    """Run a test in a new event loop, with a timeout."""

    async def bounded() -> None:
        async with asyncio.timeout(patience):
            await main()

    asyncio.run(bounded())


# --------------------------------------------------------------------- what a process holds


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only their number matters


def memory(pid: int) -> int:
    """Return the private memory of a process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def gone(pid: int) -> bool:
    """Return whether a process has ended; orphans are reaped by init."""
    try:
        return _stat(pid)[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process."""
    return _stat(pid)[0] == "T"


async def still(pid: int) -> None:
    """Wait until a process is idle: it used no CPU time for several samples."""
    looks: list[tuple[str, ...]] = []
    while len(looks) < LOOKS or len(set(looks[-LOOKS:])) > 1 or looks[-1][0] != "S":
        state, *fields = _stat(pid)
        looks.append((state, *fields[10:12]))
        await asyncio.sleep(LOOK)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


# --------------------------------------------------------------------- processes


class Process:
    """A child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid
        self.output = ""

    def tell(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def stop(self) -> None:
        """Stop it until SIGCONT."""
        self.tell(signal.SIGSTOP)
        await until(lambda: stopped(self.pid))

    async def ends(self) -> int:
        """Wait for the process, and return its exit code. Its output is in `output`."""
        out, err = await self.process.communicate()
        self.output = ((out or b"") + (err or b"")).decode()
        assert self.process.returncode is not None
        return self.process.returncode


class Victim(Process):
    """A server over HTTP."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        super().__init__(process)
        self.port = port

    def entry(self, way: str = "stateless") -> dict[str, str]:
        """Return its entry for a configuration file."""
        sse = WAYS[way][1]
        return {
            "url": f"http://127.0.0.1:{self.port}/{'sse' if sse else 'mcp'}",
            "type": "sse" if sse else "http",
        }

    def client(self, way: str = "stateless", **options: Any) -> Client:
        """Return a client of it."""
        return Client(self.entry(way), revision=WAYS[way][0], **options)

    async def ask(self, tool: str, **arguments: Any) -> str:
        """Call a tool on a new connection, and return its result."""
        async with wired(self.port) as wire:
            await wire.ask("POST", "/mcp", *modern("tools/call", call(tool, **arguments)))
            return (await wire.answer()).json["result"]["content"][0]["text"]

    async def holdings(self) -> dict[str, int]:
        """Return its own counters, and its descriptors when no client is connected."""
        counters = json.loads(await self.ask("holdings"))
        return {**counters, "descriptors": descriptors(self.pid)}

    async def settled(self, wanted: dict[str, int]) -> None:
        """Wait until it uses at most these resources."""
        while True:
            held = await self.holdings()
            if all(held[name] <= most + SLACK.get(name, 0) for name, most in wanted.items()):
                return


@asynccontextmanager
async def _process(program: str, settings: dict[str, Any], **pipes: Any) -> AsyncGenerator[Any]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAMS / program), json.dumps(settings), **pipes
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()


@asynccontextmanager
async def victim(**settings: Any) -> AsyncGenerator[Victim]:
    """Run an HTTP server; it is killed at the end if it still runs."""
    async with _process("chaos_server.py", settings, stderr=asyncio.subprocess.PIPE) as child:
        line = (await child.stderr.readline()).decode()
        found = re.match(r"victim serves MCP at http://127\.0\.0\.1:(\d+)/mcp \(", line)
        assert found is not None, line
        yield Victim(child, int(found[1]))


@asynccontextmanager
async def piped(**settings: Any) -> AsyncGenerator[Process]:
    """A server over pipes that the test holds itself."""
    pipe = asyncio.subprocess.PIPE
    async with _process("chaos_server.py", {"stdio": True, **settings}, stdin=pipe, stdout=pipe) as child:
        yield Process(child)


@asynccontextmanager
async def caller(target: object, revision: str, calls: int = 1, **more: Any) -> AsyncGenerator[Process]:
    """Run a client in its own process; `output` is the number of its server once the call runs there."""
    settings = {"target": target, "revision": revision, "calls": calls, **more}
    async with _process("caller.py", settings, stdout=asyncio.subprocess.PIPE) as child:
        process = Process(child)
        process.output = (await child.stdout.readline()).decode().strip()
        assert process.output, "no output"
        yield process


def stdio(**settings: Any) -> Stdio:
    """A server over stdin and stdout, for a client to start."""
    program, options = str(PROGRAMS / "chaos_server.py"), json.dumps({"stdio": True, **settings})
    return Stdio(sys.executable, [program, options], inherit_env=True, stderr="discard")


# --------------------------------------------------------------------- clients


async def begun(client: Client, tool: str, count: int = 1, **arguments: Any) -> list[asyncio.Task[Any]]:
    """Start this number of calls, and wait until the server runs them."""
    heard = asyncio.Semaphore(0)

    async def hear(_: object) -> None:
        heard.release()

    calls = [
        asyncio.create_task(client.call_tool(tool, arguments, progress=hear, timeout=PATIENCE))
        for _ in range(count)
    ]
    waiting = asyncio.create_task(_all(heard, count))
    await asyncio.wait([waiting, *calls], return_when=asyncio.FIRST_COMPLETED)
    ended = [each for each in calls if each.done()]
    assert not ended, ended
    await waiting
    return calls


async def _all(heard: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await heard.acquire()


async def failures(calls: list[asyncio.Task[Any]]) -> list[MCPError]:
    """Return the errors of calls, all of which must have failed."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, MCPError) for end in ends), ends
    return [end for end in ends if isinstance(end, MCPError)]
