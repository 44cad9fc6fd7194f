"""Scenarios over HTTP: calls, lists and reads of servers that listen on loopback.

A table, and one function that runs a line of it. Each target is asked once before it is loaded, and what it
answers is looked at: a fast refusal is no answer.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from bench.arena import FEWER, ROUNDS, Arena, Scenario, Turn
from bench.contenders import CONTENDERS
from bench.figures import LIMIT, OFFICIAL, OURS, Row
from bench.loader import Answer, Loader, ask, open_sessions, post
from bench.process import Failed, Target
from bench.targets import wire

__all__ = ["SCENARIOS", "check", "requests_for"]

PAIR: Final = (OURS, OFFICIAL)
CORE: Final = (LIMIT, OURS, OFFICIAL)
ALL: Final = tuple(CONTENDERS)
PEERS: Final = tuple(name for name in CONTENDERS if name != LIMIT)

VARIETY: Final = 256
"""Requests that differ in their ids, more than are ever in flight."""

WARM: Final = 0.25
"""Seconds of load that do not count."""

SECONDS: Final = 1.0
LARGE: Final = 1 << 20


class Line(NamedTuple):
    """A scenario.

    Args:
        key: its name.
        title: what it is, for a reader.
        asked: what is asked.
        era: stateless, or session.
        mode: how a peer that has to be told answers: json, or sse.
        connections: how many.
        who: the targets.
        tools: how many the server has; 0 for as few as there are.
        goal: whether a goal hangs on it.
        kind: the content type that every answer has to have; none where it is the target's choice.
    """

    key: str
    title: str
    asked: str
    era: str
    mode: str
    connections: int
    who: tuple[str, ...]
    tools: int = 0
    goal: bool = False
    kind: str = "application/json"


_EVENTS: Final = "text/event-stream"


def _connections(n: int) -> str:
    return f"{n} connection{'' if n == 1 else 's'}"


LINES: Final = (
    *(
        Line(
            f"http-stateless-{n}",
            f"HTTP, stateless, `tools/call`, {_connections(n)}",
            "add",
            "stateless",
            "json",
            n,
            ALL if n == 16 else CORE,
            goal=n == 16,
            kind="",
        )
        for n in (1, 16, 64)
    ),
    *(
        Line(
            f"http-session-json-{n}",
            f"HTTP, session, `tools/call` as JSON, {_connections(n)}",
            "add",
            "session",
            "json",
            n,
            ALL if n == 16 else PAIR,
            goal=n == 16,
        )
        for n in (1, 16, 64)
    ),
    *(
        Line(
            f"http-session-sse-{n}",
            f"HTTP, session, `tools/call` as SSE (one notice, then the answer), {_connections(n)}",
            "told",
            "session",
            "sse",
            n,
            PEERS if n == 16 else PAIR,
            kind=_EVENTS,
        )
        for n in (1, 16, 64)
    ),
    Line(
        "http-session-default-16",
        "HTTP, session, `tools/call`, mcp as SSE (its default), 16 connections",
        "add",
        "session",
        "sse",
        16,
        PEERS,
        goal=True,
        kind="",
    ),
    Line(
        "http-list-100",
        "HTTP, session, `tools/list`, 100 tools, 16 connections",
        "list",
        "session",
        "json",
        16,
        PEERS,
        tools=100,
        goal=True,
    ),
    Line(
        "http-read-stateless",
        "HTTP, stateless, `resources/read` of 1 MiB, 16 connections",
        "read",
        "stateless",
        "json",
        16,
        PAIR,
        goal=True,
    ),
    Line(
        "http-read-session",
        "HTTP, session, `resources/read` of 1 MiB, 16 connections",
        "read",
        "session",
        "json",
        16,
        PAIR,
        goal=True,
    ),
    Line(
        "http-progress",
        "HTTP, session, `tools/call` with 10 progress notices, 16 connections",
        "count",
        "session",
        "sse",
        16,
        PAIR,
        kind=_EVENTS,
    ),
)


def _run(line: Line, arena: Arena) -> list[Row]:
    prepare: dict[str, Callable[[], Turn]] = {}
    for name in line.who:
        if line.era == "session" or CONTENDERS[name].stateless:
            prepare[name] = partial(_prepare, line, arena, name)
    rounds = ROUNDS if line.goal else FEWER
    return [arena.contest(Row.of(line.key, line.title), prepare, rounds=rounds)]


def _prepare(line: Line, arena: Arena, name: str) -> Turn:
    """Start a target, look at its answer, and load it for a moment."""
    contender = CONTENDERS[name]
    more = [str(line.tools)] if line.tools else []
    target = arena.running(contender.http(line.mode, *more), listens=True)
    era = "stateless" if name == LIMIT else line.era
    requests = asyncio.run(requests_for(target, line.asked, era, line.connections))
    check(line.asked, asyncio.run(ask(target.port, requests[0])), line.kind, line.tools)
    Loader().run(target.port, target.pid, requests, line.connections, WARM)
    return partial(arena.load.run, target.port, target.pid, requests, line.connections, SECONDS)


async def requests_for(
    target: Target, asked: str, era: str, clients: int, headers: dict[str, str] | None = None
) -> list[bytes]:
    """The requests to load a target with; in the session era, of as many clients as there are connections."""
    stateless = era == "stateless"
    sessions = [""] if stateless else (await open_sessions(target.port, clients)).ids
    made: list[bytes] = []
    for number in range(1, VARIETY + 1):
        session = sessions[number % len(sessions)]
        told = wire.headers(asked, stateless=stateless, session=session) | (headers or {})
        made.append(post(target.port, wire.body(asked, number, stateless=stateless), told))
    return made


# --------------------------------------------------------------------- whether an answer is one


def _sum(result: dict[str, Any], _tools: int) -> bool:
    return result["structuredContent"] in (3, {"result": 3}) and not result.get("isError")


_RIGHT: Final[dict[str, Callable[[dict[str, Any], int], bool]]] = {
    "add": _sum,
    "told": _sum,
    "count": lambda result, _: result["structuredContent"] in (10, {"result": 10}),
    "list": lambda result, tools: len(result["tools"]) == tools,
    "read": lambda result, _: len(result["contents"][0]["text"]) == LARGE,
}
_NOTICES: Final = {"told": 1, "count": 10}


def check(asked: str, answer: Answer, kind: str, tools: int = 0) -> None:
    """Return if an answer is what was asked for.

    Raises:
        Failed: it is not; the text shows it.
    """
    *notices, last = wire.said(answer.body)
    told = answer.headers.get("content-type", "")
    shown = answer.body[:300].decode(errors="replace")
    if "result" not in last or not _RIGHT[asked](last["result"], tools):
        raise Failed(f"a wrong answer: {shown}")
    if len(notices) != _NOTICES.get(asked, 0):
        raise Failed(f"{len(notices)} notices before the answer: {shown}")
    if kind and not told.startswith(kind):
        raise Failed(f"the answer is {told}, not {kind}: {shown}")


SCENARIOS: Final = tuple(Scenario(line.key, line.goal, partial(_run, line)) for line in LINES)
