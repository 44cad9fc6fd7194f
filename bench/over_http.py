"""`tools/call` over HTTP at 1, 16 and 64 connections: toolpost beside PyPI's `mcp`, and beside the limit.

Each target is a process of its own on loopback, as its documentation says to run it; the limit is the
smallest ASGI application on the same uvicorn that reads the body and answers the right bytes. Rounds are
interleaved, the median counts; the load comes from a loader of ours on another core. Run as
`python bench/over_http.py [rounds]`.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
ENVIRONMENTS: Final = ROOT / ".cache" / "interop"
PEER: Final = "mcp-2.3.0"
LATEST: Final = "2026-07-28"
SESSION: Final = "2025-11-25"
CONNECTIONS: Final = (1, 16, 64)
SECONDS: Final = 1.0
PATIENCE: Final = 10.0

TOOLPOST: Final = """
import sys
from toolpost import Server
server = Server("bench", version="1")

@server.tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run(http=f"127.0.0.1:{sys.argv[1]}")
"""
MCP: Final = """
import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("bench", version="1", log_level="ERROR")

@server.tool()
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

server.run("streamable-http", port=int(sys.argv[1]), json_response=sys.argv[2] == "json")
"""
LIMIT: Final = """
import sys, msgspec, uvicorn
ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"3"}],"structuredContent":3}}'

class Call(msgspec.Struct):
    id: int

read = msgspec.json.Decoder(Call).decode

async def app(scope, receive, send):
    body = ANSWER % read((await receive())["body"]).id
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", ws="none", log_config=None, access_log=False)
"""


class Target(NamedTuple):
    """Who is measured: its name, its program, the environment that it runs in, its last argument."""

    name: str
    code: str
    python: Path
    mode: str = "json"


TARGETS: Final = (
    Target("limit", LIMIT, Path(sys.executable)),
    Target("toolpost", TOOLPOST, Path(sys.executable)),
    Target(PEER, MCP, ENVIRONMENTS / PEER / "bin" / "python"),
)


class Rate(NamedTuple):
    """How much a target did in a round: calls per second, and per second of its own CPU."""

    calls: float
    per_cpu: float


# --------------------------------------------------------------------- targets


@contextmanager
def started(target: Target) -> Generator[tuple[int, int]]:
    """A target that answers: its port and the id of its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")} if target.code is not MCP else None
    command = [str(target.python), "-c", target.code, str(port), target.mode]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _pin(process.pid, 0)
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{target.name} did not start")
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pin(pid: int, core: int) -> None:
    """Keep a process on one core, where that can be said."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(pid, {core % (os.cpu_count() or 1)})


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used; nothing where that cannot be known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --------------------------------------------------------------------- load


def request(port: int, body: dict[str, object], **headers: str) -> bytes:
    """The bytes of a POST."""
    data = json.dumps({"jsonrpc": "2.0", **body}).encode()
    sent = {
        "host": f"127.0.0.1:{port}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "content-length": str(len(data)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + data


CALL: Final = {"name": "add", "arguments": {"a": 1, "b": 2}}
META: Final = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


Call = Callable[[int], bytes]
"""The bytes of a call with an id."""


def stateless_call(port: int, number: int) -> bytes:
    """A call of the stateless era."""
    return request(
        port,
        {"id": number, "method": "tools/call", "params": {**CALL, "_meta": META}},
        mcp_protocol_version=LATEST,
        mcp_method="tools/call",
        mcp_name="add",
    )


async def session_call(port: int) -> Call:
    """Calls in a session, which is opened first."""
    hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(port, {"id": 1, "method": "initialize", "params": hello}))
        head = await answered(reader)
        lines = head.decode("latin-1").split("\r\n")
        ids = [line.split(":", 1)[1].strip() for line in lines if line.lower().startswith("mcp-session-id:")]
        named = {"mcp_session_id": ids[0], "mcp_protocol_version": SESSION} if ids else {}
        writer.write(request(port, {"method": "notifications/initialized"}, **named))
        await answered(reader)
    finally:
        writer.close()
    return lambda number: request(port, {"id": number, "method": "tools/call", "params": CALL}, **named)


async def answered(reader: asyncio.StreamReader) -> bytes:
    """Read one response; its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    lowered = head.lower()
    if not lowered.startswith((b"http/1.1 200", b"http/1.1 202")):
        raise RuntimeError(f"refused: {head.decode('latin-1')}")
    if b"transfer-encoding: chunked" in lowered:
        while (size := int(await reader.readline(), 16)) > 0:
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        length = lowered.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or b"0"))
    return head


async def load(port: int, pid: int, call: Call, connections: int) -> Rate:
    """Call as fast as it goes over so many connections, one call at a time on each."""
    count = 0
    until = time.perf_counter() + SECONDS

    async def caller(number: int) -> None:
        nonlocal count
        data = call(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while time.perf_counter() < until:
                writer.write(data)
                await answered(reader)
                count += 1
        finally:
            writer.close()

    used, start = cpu(pid), time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(1, connections + 1)))
    taken, burnt = time.perf_counter() - start, cpu(pid) - used
    return Rate(count / taken, count / burnt if burnt else 0.0)


# --------------------------------------------------------------------- the table


def main() -> int:
    """Measure and tell; 2 if there is nobody to compare with."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    prepare = ROOT / "interop" / "environments.py"
    if subprocess.run([sys.executable, prepare, PEER], check=False).returncode:
        print(f"over HTTP: not measured, because {PEER} could not be installed; pip said why above")
        return 2
    signal.signal(signal.SIGTERM, _leave)
    _pin(0, 1)
    print(f"tools/call over HTTP, calls per second, median of {rounds} rounds of {SECONDS:g} s, interleaved")
    print(f"  limit: the smallest ASGI application on the same uvicorn; {PEER}: with json_response=True\n")
    with ExitStack() as stack:
        running = {target.name: stack.enter_context(started(target)) for target in TARGETS}
        for era in ("stateless", "session"):
            calls = {
                name: partial(stateless_call, port)
                if era == "stateless" or name == "limit"
                else asyncio.run(session_call(port))
                for name, (port, _) in running.items()
            }
            for connections in CONNECTIONS:
                _tell(era, connections, _contest(running, calls, connections, rounds))
    return 0


def _leave(*_: object) -> None:
    """Leave in order, so that the targets end with us."""
    sys.exit(143)


def _contest(
    running: dict[str, tuple[int, int]], calls: dict[str, Call], connections: int, rounds: int
) -> dict[str, Rate]:
    """The median of all rounds, targets taking turns; the first round does not count."""
    seen: dict[str, list[Rate]] = {name: [] for name in running}
    for number in range(rounds + 1):
        for name, (port, pid) in running.items():
            rate = asyncio.run(load(port, pid, calls[name], connections))
            if number:
                seen[name].append(rate)
    return {
        name: Rate(median(rate.calls for rate in rates), median(rate.per_cpu for rate in rates))
        for name, rates in seen.items()
    }


def _tell(era: str, connections: int, rates: dict[str, Rate]) -> None:
    ours, theirs, limit = rates["toolpost"], rates[PEER], rates["limit"]
    shown = "  ".join(f"{name} {rate.calls:7.0f}" for name, rate in rates.items())
    print(f"{era:9} {connections:3} connections   {shown}")
    print(
        f"{'':27}toolpost: {ours.calls / theirs.calls:.1f} x {PEER} "
        f"({ours.per_cpu / theirs.per_cpu if theirs.per_cpu else 0:.1f} x per CPU second), "
        f"{ours.calls / limit.calls:.2f} x the limit"
    )


if __name__ == "__main__":
    sys.exit(main())
