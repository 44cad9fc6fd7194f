"""Soak test: clients of all revisions, over all transports, with injected faults.

`make soak` runs it for SOAK_SECONDS. Prints a report in Markdown. The exit code is 1 after an error that no
injected fault explains, or if a process has grown. SOAK_SEED seeds the choices, but the timing differs in
every run. Linux only: reads /proc.
"""

import asyncio
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from soak_lane import Faults, Lane, Visitor
from soak_ledger import Ledger
from soak_relay import Relay
from toolpost import Stdio
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import LATEST, OLDEST_HTTP

SERVER: Final = str(Path(__file__).with_name("soak_server.py"))
OVER_HTTP: Final = DATES[DATES.index(OLDEST_HTTP.date) :]
NEW, OLD, FIRST = DATES[-1], DATES[-2], DATES[0]

LOOK: Final = 2.0
"""Seconds between two samples of the processes."""

SETTLED: Final = 5.0
"""Minimum age in seconds of a worker before it is killed: uvicorn does not replace younger ones."""

PATIENCE: Final = 60.0
"""Seconds for the shutdown of everything."""

EVERY: Final = {"stdio": (4.0, 8.0), "worker": (10.0, 20.0), "cut": (4.0, 9.0), "slow": (3.0, 6.0)}
"""Minimum and maximum of seconds between two faults of a kind."""


_PLACE: Final = re.compile(r"MCP at http://127\.0\.0\.1:(\d+)")


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def called(pid: int) -> str:
    """Return the name that a server was started with; empty if it has ended or is not ours."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return ""
    return words[3] if len(words) > 3 and words[1] == SERVER else ""


class Site:
    """An HTTP server with its own log.

    Args:
        name: its name.
        process: the process.
        port: its port.
        log: the file with its stderr.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        self.name = name
        self.process = process
        self.port = port
        self.log = log


@asynccontextmanager
async def site(name: str, folder: Path, ledger: Ledger, **settings: Any) -> AsyncGenerator[Site]:
    """Start an HTTP server; it must shut down cleanly."""
    log = folder / f"{name}.log"
    words = json.dumps({"http": "127.0.0.1:0", **settings})
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(sys.executable, SERVER, words, name, stderr=file)
    try:
        while not (found := _PLACE.search(log.read_text())):  # noqa: ASYNC110 - a file has no events
            await asyncio.sleep(0.05)
        yield Site(name, process, int(found[1]), log)
        process.terminate()
        try:
            async with asyncio.timeout(PATIENCE):
                code = await process.wait()
        except TimeoutError:
            ledger.blame("a server did not stop", name)
        else:
            if code:
                ledger.blame("a server failed", f"{name}: {code}")
        if "Traceback" in log.read_text():
            ledger.blame("traceback of a server", f"{name}: {log.read_text()[-3000:]}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Soak:
    """The soak test.

    Args:
        dice: the random generator.
        ledger: the counters.
    """

    def __init__(self, dice: random.Random, ledger: Ledger) -> None:
        self._dice = dice
        self._ledger = ledger
        self._faults = Faults()
        self._over = asyncio.Event()
        self._seen: dict[int, float] = {}

    async def run(self, seconds: float) -> None:
        """Run for this many seconds."""
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            plain = await stack.enter_async_context(site("http", folder, self._ledger, idle=20))
            single = await stack.enter_async_context(site("sse", folder, self._ledger, idle=20))
            many = await stack.enter_async_context(
                site("workers", folder, self._ledger, workers=2, stateless=True)
            )
            relays = {
                each.name: await stack.enter_async_context(Relay(each.port).listening())
                for each in (plain, single)
            }
            lanes = self._lanes(plain, single, many, relays)
            work: list[Awaitable[None]] = [
                Visitor(lane, self._ledger, self._faults, self._dice).run(self._over) for lane in lanes
            ]
            work += [
                self._again("stdio", self._kill_server),
                self._again("worker", lambda: self._kill_worker(many)),
                self._again("cut", lambda: self._cut(relays)),
                self._again("slow", lambda: self._dawdle(plain)),
                self._look(plain, single, many),
            ]
            tasks = [asyncio.ensure_future(each) for each in work]
            await asyncio.sleep(seconds)
            self._over.set()
            _, stuck = await asyncio.wait(tasks, timeout=PATIENCE)
            for task in stuck:
                self._ledger.blame("a task did not stop", repr(task))
                task.cancel()
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(end, Exception):
                    self._ledger.blame("the soak itself failed", repr(end))

    def _lanes(self, plain: Site, single: Site, many: Site, relays: dict[str, Relay]) -> list[Lane]:
        """Return every transport with each of its revisions, some with faults, some without."""
        lanes = [Lane("stdio", f"stdio-{date}", date, self._stdio(f"stdio-{date}")) for date in DATES]
        lanes.append(Lane("stdio, spared", "", NEW, self._stdio("spared"), stays=True))
        lanes.append(Lane("stdio, spared", "", OLD, self._stdio("spared"), stays=True))
        for date in OVER_HTTP:
            lanes.append(Lane("HTTP, cut", "http", date, _url(relays["http"].port)))
            lanes.append(Lane("HTTP, workers", "workers", date, _url(many.port), sessions=False))
        lanes.append(Lane("HTTP", "", NEW, _url(plain.port)))
        lanes.append(Lane("HTTP", "", OLD, _url(plain.port)))
        for name, place, port in (
            ("HTTP+SSE", "", single.port),
            ("HTTP+SSE, cut", "sse", relays["sse"].port),
        ):
            lanes.append(Lane(name, place, FIRST, {"url": f"http://127.0.0.1:{port}/sse", "type": "sse"}))
        return lanes

    def _stdio(self, name: str) -> Stdio:
        def heard(line: str) -> None:
            if "Traceback" in line:
                self._ledger.blame("traceback of a server", name)

        return Stdio(sys.executable, [SERVER, "{}", name], inherit_env=True, stderr=heard)

    # ----------------------------------------------------------------- faults

    async def _again(self, kind: str, hurt: Callable[[], Awaitable[None]]) -> None:
        while not self._over.is_set():
            try:
                async with asyncio.timeout(self._dice.uniform(*EVERY[kind])):
                    await self._over.wait()
            except TimeoutError:
                await hurt()

    async def _kill_server(self) -> None:
        names = {pid: called(pid) for pid in children(os.getpid())}
        alive = [pid for pid, name in names.items() if name.startswith("stdio-")]
        if alive:
            pid = self._dice.choice(alive)
            self._hurt("stdio server killed", names[pid])
            os.kill(pid, signal.SIGKILL)

    async def _kill_worker(self, many: Site) -> None:
        """Kill the youngest worker, so that the oldest is measured during the whole run."""
        now = time.monotonic()
        old = [pid for pid in self._workers(many) if now - self._seen[pid] > SETTLED]
        if len(old) > 1:
            self._hurt("worker killed", "workers")
            os.kill(max(old, key=lambda pid: self._seen[pid]), signal.SIGKILL)

    async def _cut(self, relays: dict[str, Relay]) -> None:
        name = self._dice.choice([*relays])
        self._hurt("connections cut", name)
        relays[name].cut(self._dice, self._dice.choice([0.3, 1.0]))

    async def _dawdle(self, plain: Site) -> None:
        """Request a large response and do not read it."""
        self._ledger.faults["slow reader"] += 1
        about: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": LATEST.date,
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": 1,
        }
        params = {"name": "flood", "arguments": {"count": 10_000}, "_meta": about}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{plain.port}\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nMcp-Method: tools/call\r\nMcp-Name: flood\r\n"
            f"MCP-Protocol-Version: {LATEST.date}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", plain.port, limit=1024)
        try:
            writer.write(head.encode() + body)
            status = await reader.readline()
            if b" 200 " not in status:
                self._ledger.blame("a slow reader was rejected", repr(status))
            await asyncio.sleep(self._dice.uniform(0.5, 2.5))
        finally:
            writer.transport.abort()

    def _hurt(self, what: str, place: str) -> None:
        self._ledger.faults[what] += 1
        self._faults.note(place)

    # ----------------------------------------------------------------- samples

    def _workers(self, many: Site) -> list[int]:
        """Return the workers, oldest first."""
        pids = children(many.process.pid)
        for pid in pids:
            self._seen.setdefault(pid, time.monotonic())
        return sorted(pids, key=lambda pid: self._seen[pid])

    async def _look(self, plain: Site, single: Site, many: Site) -> None:
        while not self._over.is_set():
            mine = {pid: called(pid) for pid in children(os.getpid())}
            roles = {
                "all clients": [os.getpid()],
                "HTTP": [plain.process.pid],
                "HTTP+SSE": [single.process.pid],
                "HTTP, parent of workers": [many.process.pid],
                "HTTP, oldest worker": self._workers(many)[:1],
                "stdio, average": [pid for pid, name in mine.items() if name.startswith("stdio-")],
                "stdio, spared": [pid for pid, name in mine.items() if name == "spared"],
            }
            for role, pids in roles.items():
                self._ledger.sample(role, pids)
            await asyncio.sleep(LOOK)


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


class _Complaints(logging.Handler):
    """Collects the warnings of asyncio: an exception that was never retrieved is an error too."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.ERROR)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        """Record the message."""
        self._ledger.blame(f"log of {record.name}", self.format(record)[-2000:])


async def main(seconds: float, seed: int) -> int:
    """Run the soak test and print the report."""
    ledger = Ledger()
    for name in ("asyncio", "toolpost"):
        logging.getLogger(name).addHandler(_Complaints(ledger))
    sys.unraisablehook = lambda hook: ledger.blame("unraisable", f"{hook.exc_value!r} in {hook.object!r}")
    print(f"soak: {seconds:g} s, SOAK_SEED={seed}", flush=True)
    await Soak(random.Random(seed), ledger).run(seconds)  # noqa: S311 - not for secrets
    print(ledger.report())
    return 0 if ledger.good else 1


if __name__ == "__main__":
    sys.exit(
        asyncio.run(
            main(
                float(os.environ.get("SOAK_SECONDS") or 600), int(os.environ.get("SOAK_SEED") or time.time())
            )
        )
    )
