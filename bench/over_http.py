"""Scenarios over HTTP: calls, lists and reads of servers that listen on loopback.

A table, and one function that runs a line of it. Unless the title has an exception, requests are
ordinary ones: each has its own headers for tracing, its own id and its own progress token. Before the load,
one response of each target is checked, because an error may be faster than a valid response.
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
"""Seconds of warm-up."""

SECONDS: Final = 1.0
CONNECTIONS: Final = 16
LARGE: Final = 1 << 20


class Line(NamedTuple):
    """A scenario.

    Args:
        key: its name.
        title: its description.
        request: its name in `wire.ASKS`.
        era: stateless, or session.
        mode: the response format of targets with an option for it: json, or sse.
        targets: their names.
        connections: the number of connections.
        tools: the number of tools of the server; 0 for the minimum.
        goal: whether it has a goal.
        kind: the required content type of responses; None if the target may choose.
        switch: the option of the server: none, "token" or "middleware".
        ordinary: whether each request has its own headers and progress token.
    """

    key: str
    title: str
    request: str
    era: str
    mode: str
    targets: tuple[str, ...]
    connections: int = CONNECTIONS
    tools: int = 0
    goal: bool = False
    kind: str = "application/json"
    switch: str = ""
    ordinary: bool = True


_EVENTS: Final = "text/event-stream"


def _kind(era: str) -> str:
    """Return the content type of a response without notifications; optional in the stateless era."""
    return "" if era == "stateless" else "application/json"


def _constant(era: str, connections: int) -> Line:
    """Return scenarios with calls without a context and with constant headers."""
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
    """Return scenarios with ordinary calls of one era."""
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
    for name in line.targets:
        if line.era == "session" or CONTENDERS[name].stateless:
            prepare[name] = partial(_prepare, line, arena, name)
    rounds = ROUNDS if line.goal else FEWER
    return [arena.contest(Row.of(line.key, line.title), prepare, rounds=rounds)]


def _command(line: Line, name: str) -> list[str]:
    """Return the command of a target for a scenario. Scenarios with equal needs share a process."""
    http = CONTENDERS[name].http
    if name == LIMIT:  # has no tools, but needs the number of notifications
        return http(line.mode, *([str(NOTIFICATIONS[line.request])] if line.request in NOTIFICATIONS else []))
    if line.switch:
        return http(line.mode, str(line.tools), line.switch)
    return http(line.mode, *([str(line.tools)] if line.tools else []))


def _prepare(line: Line, arena: Arena, name: str) -> Turn:
    """Start a target, check its response, and warm it up."""
    target = arena.running(_command(line, name), listens=True)
    era = "stateless" if name == LIMIT else line.era
    headers = {"authorization": f"Bearer {wire.TOKEN}"} if line.switch == "token" else {}
    requests = asyncio.run(
        requests_for(target, line.request, era, line.connections, headers, ordinary=line.ordinary)
    )
    check(line.request, asyncio.run(ask(target.port, requests[0])), line.kind, line.tools)
    Loader().run(target.port, target.pid, requests, line.connections, WARM)
    return partial(arena.load.run, target.port, target.pid, requests, line.connections, SECONDS)


async def requests_for(
    target: Target,
    request: str,
    era: str,
    clients: int,
    headers: dict[str, str] | None = None,
    *,
    ordinary: bool = True,
) -> list[bytes]:
    """Return the request templates; in the session era, one session per connection."""
    stateless = era == "stateless"
    body = wire.body(request, wire.NUMBER, stateless=stateless, ordinary=ordinary)
    more = headers or {}
    sessions = [""] if stateless else (await open_sessions(target.port, clients, headers=more)).ids
    each = [wire.headers(request, stateless=stateless, session=one, ordinary=ordinary) for one in sessions]
    return [post(target.port, body, one | more) for one in each]


# --------------------------------------------------------------------- checking responses


def _sum(result: dict[str, Any], _tools: int) -> bool:
    return result["structuredContent"] in (3, {"result": 3}) and not result.get("isError")


_RIGHT: Final[dict[str, Callable[[dict[str, Any], int], bool]]] = {
    **dict.fromkeys(("add", "wait", "one", "ten"), _sum),
    "list": lambda result, tools: len(result["tools"]) == tools,
    "read": lambda result, _: len(result["contents"][0]["text"]) == LARGE,
}
NOTIFICATIONS: Final = {"one": 1, "ten": 10}
"""Request → number of progress notifications before its response."""


def check(request: str, answer: Answer, kind: str, tools: int = 0) -> None:
    """Check a response.

    Raises:
        Failed: it is wrong; the message shows it.
    """
    *notifications, last = wire.parse_messages(answer.body)
    found = answer.headers.get("content-type", "")
    shown = answer.body[:300].decode(errors="replace")
    if "result" not in last or not _RIGHT[request](last["result"], tools):
        raise Failed(f"wrong response: {shown}")
    if len(notifications) != NOTIFICATIONS.get(request, 0):
        raise Failed(f"{len(notifications)} notifications before the response: {shown}")
    if kind and not found.startswith(kind):
        raise Failed(f"the content type is {found}, not {kind}: {shown}")


SCENARIOS: Final = tuple(Scenario(line.key, line.goal, partial(_run, line)) for line in LINES)
