"""Scenarios over HTTP: calls, lists and reads of servers that listen on loopback.

A table, and one function that runs a line of it. Requests are ordinary ones unless the title says otherwise:
each has its own headers for tracing, its own id and its own progress token. Each target is asked once before
it is loaded, and what it answers is looked at: a fast refusal is no answer.
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

WARM: Final = 0.25
"""Seconds of load that do not count."""

SECONDS: Final = 1.0
CONNECTIONS: Final = 16
LARGE: Final = 1 << 20


class Line(NamedTuple):
    """A scenario.

    Args:
        key: its name.
        title: what it is, for a reader.
        asked: what is asked.
        era: stateless, or session.
        mode: how a peer that has to be told answers: json, or sse.
        who: the targets.
        connections: how many.
        tools: how many the server has; 0 for as few as there are.
        goal: whether a goal hangs on it.
        kind: the content type that every answer has to have; none where it is the target's choice.
        switch: what the server has switched on: nothing, "token" or "middleware".
        ordinary: whether each request has headers and a progress token of its own.
    """

    key: str
    title: str
    asked: str
    era: str
    mode: str
    who: tuple[str, ...]
    connections: int = CONNECTIONS
    tools: int = 0
    goal: bool = False
    kind: str = "application/json"
    switch: str = ""
    ordinary: bool = True


_EVENTS: Final = "text/event-stream"


def _kind(era: str) -> str:
    """The content type of an answer before which nothing is said: in the stateless era, it is a choice."""
    return "" if era == "stateless" else "application/json"


def _constant(era: str, connections: int) -> Line:
    """Calls of a tool without a context whose headers are always the same."""
    counted = f"{connections} connection{'' if connections == 1 else 's'}"
    return Line(
        f"http-{era}-{connections}",
        f"HTTP, {era}, `tools/call`, constant headers, {counted}",
        "add",
        era,
        "json",
        ALL if connections == CONNECTIONS else CORE,
        connections,
        kind=_kind(era),
        ordinary=False,
    )


def _ordinary(era: str) -> tuple[Line, ...]:
    """Ordinary calls of one era."""
    title = f"HTTP, {era}, `tools/call` with context"
    kind = _kind(era)
    return (
        Line(f"http-{era}-context", title, "wait", era, "json", CORE, goal=True, kind=kind),
        Line(
            f"http-{era}-token",
            f"{title}, bearer token",
            "wait",
            era,
            "json",
            CORE,
            kind=kind,
            switch="token",
        ),
        Line(
            f"http-{era}-middleware",
            f"{title}, one middleware",
            "wait",
            era,
            "json",
            CORE,
            kind=kind,
            switch="middleware",
        ),
        Line(
            f"http-{era}-progress-1",
            f"HTTP, {era}, `tools/call` with one progress notification (SSE)",
            "one",
            era,
            "sse",
            ALL if era == "session" else CORE,
            goal=era == "session",
            kind=_EVENTS,
        ),
        Line(
            f"http-{era}-progress-10",
            f"HTTP, {era}, `tools/call` with ten progress notifications (SSE)",
            "ten",
            era,
            "sse",
            CORE,
            kind=_EVENTS,
        ),
    )


LINES: Final = (
    *_ordinary("stateless"),
    *_ordinary("session"),
    *(_constant("stateless", n) for n in (1, 16, 64)),
    _constant("session", CONNECTIONS),
    Line(
        "http-list-100",
        "HTTP, session, `tools/list`, 100 tools",
        "list",
        "session",
        "json",
        PEERS,
        tools=100,
        goal=True,
    ),
    *(
        Line(
            f"http-read-{era}",
            f"HTTP, {era}, `resources/read` of 1 MiB",
            "read",
            era,
            "json",
            PAIR,
            goal=True,
        )
        for era in ("stateless", "session")
    ),
)


def _run(line: Line, arena: Arena) -> list[Row]:
    prepare: dict[str, Callable[[], Turn]] = {}
    for name in line.who:
        if line.era == "session" or CONTENDERS[name].stateless:
            prepare[name] = partial(_prepare, line, arena, name)
    rounds = ROUNDS if line.goal else FEWER
    return [arena.contest(Row.of(line.key, line.title), prepare, rounds=rounds)]


def _command(line: Line, name: str) -> list[str]:
    """What starts a target for a line; lines that want the same of it share it."""
    http = CONTENDERS[name].http
    if name == LIMIT:  # checks nothing and has no tools, but has to know how much it says before the answer
        return http(line.mode, *([str(NOTIFICATIONS[line.asked])] if line.asked in NOTIFICATIONS else []))
    if line.switch:
        return http(line.mode, str(line.tools), line.switch)
    return http(line.mode, *([str(line.tools)] if line.tools else []))


def _prepare(line: Line, arena: Arena, name: str) -> Turn:
    """Start a target, look at its answer, and load it for a moment."""
    target = arena.running(_command(line, name), listens=True)
    era = "stateless" if name == LIMIT else line.era
    headers = {"authorization": f"Bearer {wire.TOKEN}"} if line.switch == "token" else {}
    requests = asyncio.run(
        requests_for(target, line.asked, era, line.connections, headers, ordinary=line.ordinary)
    )
    check(line.asked, asyncio.run(ask(target.port, requests[0])), line.kind, line.tools)
    Loader().run(target.port, target.pid, requests, line.connections, WARM)
    return partial(arena.load.run, target.port, target.pid, requests, line.connections, SECONDS)


async def requests_for(
    target: Target,
    asked: str,
    era: str,
    clients: int,
    headers: dict[str, str] | None = None,
    *,
    ordinary: bool = True,
) -> list[bytes]:
    """The templates to load a target with; in the session era, of as many clients as connections."""
    stateless = era == "stateless"
    body = wire.body(asked, wire.NUMBER, stateless=stateless, ordinary=ordinary)
    more = headers or {}
    sessions = [""] if stateless else (await open_sessions(target.port, clients, headers=more)).ids
    told = [wire.headers(asked, stateless=stateless, session=one, ordinary=ordinary) for one in sessions]
    return [post(target.port, body, one | more) for one in told]


# --------------------------------------------------------------------- whether an answer is one


def _sum(result: dict[str, Any], _tools: int) -> bool:
    return result["structuredContent"] in (3, {"result": 3}) and not result.get("isError")


_RIGHT: Final[dict[str, Callable[[dict[str, Any], int], bool]]] = {
    **dict.fromkeys(("add", "wait", "one", "ten"), _sum),
    "list": lambda result, tools: len(result["tools"]) == tools,
    "read": lambda result, _: len(result["contents"][0]["text"]) == LARGE,
}
NOTIFICATIONS: Final = {"one": 1, "ten": 10}
"""How many notifications of progress come before the answer."""


def check(asked: str, answer: Answer, kind: str, tools: int = 0) -> None:
    """Return if an answer is what was asked for.

    Raises:
        Failed: it is not; the text shows it.
    """
    *notifications, last = wire.said(answer.body)
    told = answer.headers.get("content-type", "")
    shown = answer.body[:300].decode(errors="replace")
    if "result" not in last or not _RIGHT[asked](last["result"], tools):
        raise Failed(f"a wrong answer: {shown}")
    if len(notifications) != NOTIFICATIONS.get(asked, 0):
        raise Failed(f"{len(notifications)} notifications before the answer: {shown}")
    if kind and not told.startswith(kind):
        raise Failed(f"the answer is {told}, not {kind}: {shown}")


SCENARIOS: Final = tuple(Scenario(line.key, line.goal, partial(_run, line)) for line in LINES)
