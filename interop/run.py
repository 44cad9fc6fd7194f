"""Runs every peer against us in both directions, and prints the outcomes, for `make interop`.

Defines the table of peers. The cases are in `drive_*` for our client, and in `peers/` for theirs.
Run as `python interop/run.py [peer]`.
"""

import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from cases import WAYS, Outcome, Suite
from drive_everything import EVERYTHING
from drive_filesystem import FILESYSTEM
from drive_installed import BARE
from drive_kitchen import BRIDGED, KITCHEN, PROXIED
from drive_login import NODE_PEER, PEER, log_in, logged_in
from drive_tasks import TASKS
from drive_trace import PROGRAMS, trace_through
from drive_web import ALONE, EVERYTHING_WEB, SPOILED, WEB
from environments import HERE, HOME, INSTALLED, NODE, prepare, python_of
from hosts import Host, NotStarted, listening
from ours import Guest, Trip, visit
from relay import relayed
from theirs import PATHS, Visitor, host, host_http
from toolpost import Http, Stdio
from toolpost.protocol.methods import DATES

PARALLEL: Final = 4
"""Concurrent sessions: with more, slow machines miss timeouts."""

SESSIONS: Final = DATES[:-1]
STATELESS: Final = DATES[-1]

LOOPS: Final = (
    "tools: list changed, as a loop hears it",
    "a loop hears changes after all connections were cut",
)

LATEST: Final = SESSIONS[-2:]
"""For what is built on a client that speaks all revisions already."""


class Served(NamedTuple):
    """A server of theirs.

    Args:
        peer: its name.
        command: its command, without the transport.
        suite: the cases.
        revisions: its revisions over stdio.
        ways: its transports: stdio, http, sse; "alone" is HTTP without sessions for session-era clients,
            "httpx2" is http too, with the other library on our side.
        names_port: whether it chooses a port.
        behind: the transport of a server of ours, if this one is a bridge to its URL.
    """

    peer: str
    command: list[str]
    suite: Suite[Guest]
    revisions: tuple[str, ...]
    ways: tuple[str, ...] = WAYS
    names_port: bool = True
    behind: str = ""

    def speaks(self, over: str) -> tuple[str, ...]:
        """Return its revisions over a transport."""
        return {
            "stdio": self.revisions,
            "http": self.revisions[1:],
            "sse": (SESSIONS[0], SESSIONS[-1]),
            "alone": (SESSIONS[1], SESSIONS[-1]),
            "httpx2": DATES[-2:],
        }[over]

    def started(self, over: str) -> list[str]:
        """Return its command for a transport; the transport is omitted if it has only one."""
        if self.ways == ("stdio",):
            return self.command
        if over in {"http", "httpx2"}:
            return [*self.command, "http" if self.names_port else "streamableHttp"]
        return [*self.command, over]


def _module(peer: str, path: str) -> str:
    return str(HOME / peer / "node_modules" / "@modelcontextprotocol" / path)


def _script(peer: str, name: str) -> list[str]:
    return [str(NODE), str(HOME / peer / name)]


def _peer(peer: str, name: str) -> list[str]:
    return [str(python_of(peer)), "-W", "ignore", str(HERE / "peers" / name)]


KITCHEN_OF_OURS: Final = [sys.executable, str(HERE / "kitchen.py")]

_PROXY: Final = [str(python_of("mcp-proxy-0.13.0").with_name("mcp-proxy"))]

SERVERS: Final = (
    Served(
        "mcp-2.3.0",
        _peer("mcp-2.3.0", "server_mcp2.py"),
        KITCHEN + WEB + ALONE,
        DATES,
        ways=(*WAYS, "alone", "httpx2"),
    ),
    Served(
        "mcp-1.30.0",
        _peer("mcp-1.30.0", "server_mcp1.py"),
        KITCHEN + WEB + ALONE,
        SESSIONS,
        ways=(*WAYS, "alone"),
    ),
    Served("sdk-1.32.2", _script("sdk-1.32.2", "server_sdk.mjs"), KITCHEN + WEB, SESSIONS),
    Served(
        "server-2.4.0",
        _script("server-2.4.0", "server_v2.mjs"),
        KITCHEN + WEB + ALONE + SPOILED,
        DATES,
        ways=("stdio", "http", "alone"),
    ),
    Served(
        "fastmcp-4.1.0",
        _peer("fastmcp-4.1.0", "server_fastmcp.py"),
        # Without a session it has no subscriptions.
        (KITCHEN + WEB + ALONE).without(*LOOPS, era="stateless"),
        DATES,
        ways=(*WAYS, "alone"),
    ),
    Served(
        "fastmcp-tasks-4.1.0", _peer("fastmcp-tasks-4.1.0", "server_tasks.py"), TASKS, DATES[-2:], WAYS[:2]
    ),
    Served(
        "everything",
        [str(NODE), _module("everything", "server-everything/dist/index.js")],
        EVERYTHING + EVERYTHING_WEB,
        SESSIONS,
        names_port=False,
    ),
    Served(
        "filesystem",
        [str(NODE), _module("filesystem", "server-filesystem/dist/index.js"), str(HERE)],
        FILESYSTEM,
        SESSIONS,
        ways=("stdio",),
    ),
)

BRIDGES: Final = (
    Served(
        "mcp-remote-0.15.1",
        [str(NODE), str(HOME / "mcp-remote-0.15.1" / "node_modules" / "mcp-remote" / "dist" / "proxy.js")],
        # Without a session it posts the notification instead of closing the request's stream.
        BRIDGED.without("cancellation", "time-out tells the server", era="stateless"),
        (*LATEST, STATELESS),
        ways=("stdio",),
        behind="http",
    ),
    Served(
        "mcp-proxy-0.13.0",
        [*_PROXY, "--transport", "streamablehttp"],
        PROXIED,
        LATEST,
        ways=("stdio",),
        behind="http",
    ),
    # Over HTTP it answers with JSON alone, which leaves no room for progress.
    Served(
        "mcp-proxy-0.13.0",
        [*_PROXY, "--port", "0", "--", *KITCHEN_OF_OURS],
        PROXIED.without("progress"),
        LATEST,
        ways=("http",),
    ),
    Served(
        "mcp-proxy-0.13.0",
        [*_PROXY, "--port", "0", "--", *KITCHEN_OF_OURS],
        PROXIED,
        LATEST,
        ways=("sse",),
    ),
)

SERVERS_OF_OURS: Final = (
    Served(INSTALLED, [str(python_of(INSTALLED)), str(HERE / "kitchen.py")], BARE, DATES, ways=("stdio",)),
)

CLIENTS: Final = (
    Visitor(
        "mcp-2.3.0",
        _peer("mcp-2.3.0", "client_mcp2.py"),
        ("auto", STATELESS),
        meets_fleet=True,
    ),
    Visitor("mcp-1.30.0", _peer("mcp-1.30.0", "client_mcp1.py"), meets_fleet=True),
    Visitor("sdk-1.32.2", _script("sdk-1.32.2", "client_sdk.mjs"), meets_fleet=True),
    Visitor("mcp-1.9.4", _peer("mcp-1.9.4", "client_mcp1.py"), sessions=SESSIONS[:2]),
    Visitor("sdk-1.22.0", _script("sdk-1.22.0", "client_sdk.mjs"), sessions=SESSIONS[:3]),
    Visitor("client-2.4.0", _script("client-2.4.0", "client_v2.mjs"), ("auto", STATELESS), meets_fleet=True),
    Visitor("fastmcp-4.1.0", _peer("fastmcp-4.1.0", "client_fastmcp.py"), ("auto",), LATEST),
    Visitor(
        "fastmcp-tasks-4.1.0",
        _peer("fastmcp-tasks-4.1.0", "client_tasks.py"),
        ("auto",),
        LATEST,
        flags=("--tasks",),
    ),
    # After −32022 it does not open a session, as the specification allows (VER-2).
    Visitor(
        "ai-sdk-2.0.99",
        _script("ai-sdk-2.0.99", "client_ai_sdk.mjs"),
        ("auto",),
        LATEST,
        falls_back=False,
    ),
    Visitor("langchain-0.3.2", _peer("langchain-0.3.2", "client_langchain.py"), sessions=LATEST),
    Visitor(
        "pydantic-ai-2.66.0",
        _peer("pydantic-ai-2.66.0", "client_pydantic_ai.py"),
        ("auto",),
        LATEST,
        probes=True,
    ),
    Visitor(
        "openai-agents-0.24.0",
        _peer("openai-agents-0.24.0", "client_openai.py"),
        ("auto",),
        LATEST,
        probes=True,
    ),
    # It reads the first page of a list, and no other.
    Visitor(
        "google-adk-2.13.0",
        _peer("google-adk-2.13.0", "client_adk.py"),
        sessions=LATEST,
        flags=("--whole",),
    ),
)

PEERS: Final = list(dict.fromkeys(one.peer for one in (*SERVERS, *BRIDGES, *SERVERS_OF_OURS, *CLIENTS)))


async def drive(served: Served, over: str, revision: str | None) -> AsyncIterator[Outcome]:
    """Run our client against their server over stdio."""
    with tempfile.TemporaryDirectory(prefix="interop-") as place:
        command, *args = served.started(over)
        trip = Trip(
            served.peer,
            over,
            Stdio(
                command,
                args,
                env={"MCP_REMOTE_CONFIG_DIR": place},
                stderr="discard",
                max_line=64 * 1024 * 1024,
            ),
            revision,
            revision or served.speaks(over)[-1],
            place if served.suite is FILESYSTEM else "",
        )
        async for outcome in visit(trip, served.suite):
            yield outcome


async def drive_bridge(served: Served, over: str, revision: str | None) -> AsyncIterator[Outcome]:
    """Run our client over stdio against their bridge to the URL of our server."""
    ours = Host()
    async with listening([*KITCHEN_OF_OURS, f"--{served.behind}"], ours):
        url = f"http://127.0.0.1:{ours.port}{PATHS[served.behind]}"
        bridge = served._replace(command=[*served.command, url])
        async for outcome in drive(bridge, over, revision):
            yield outcome
    yield Outcome(
        served.peer,
        "our server",
        served.behind,
        revision or "unpinned",
        "our server ends in order",
        ours.complaint,
    )


async def drive_http(served: Served, over: str, revision: str | None) -> AsyncIterator[Outcome]:
    """Run our client against their server at a URL."""
    theirs = Host()
    try:
        async with (
            listening(served.started(over), theirs, names_port=served.names_port),
            relayed(theirs, PATHS[over]) as relay,
        ):
            # Without a pin the client must detect the transport of the URL.
            sse = over == "sse" and revision is not None
            target = Http(relay.url, sse=sse, http="httpx2" if over == "httpx2" else None)
            expected = revision or served.speaks(over)[-1]
            trip = Trip(served.peer, over, target, revision, expected, relay=relay)
            async for outcome in visit(trip, served.suite):
                yield outcome
    except NotStarted as error:
        yield Outcome(served.peer, "our client", over, revision or "unpinned", "start", str(error))


def _over_http(visitor: Visitor) -> list[AsyncIterator[Outcome]]:
    """Return all sessions of their client with our URL."""
    oldest, *streamable = visitor.sessions
    newest = streamable[-1]
    found = [] if visitor.probes else [host_http(visitor, "http", "legacy", newest, None)]
    found += [host_http(visitor, "http", "legacy", revision, revision) for revision in streamable]
    found += [host_http(visitor, "http", mode, STATELESS, None) for mode in visitor.modes]
    if visitor.meets_fleet:
        found += [host_http(visitor, "fleet", "legacy", revision, revision) for revision in streamable]
        found += [host_http(visitor, "fleet", mode, STATELESS, None) for mode in visitor.modes]
    if "auto" in visitor.modes and visitor.falls_back and not visitor.probes:
        found.append(host_http(visitor, "http", "auto", newest, newest))
    found += [host_http(visitor, "alone", "legacy", date, date) for date in sorted({streamable[0], newest})]
    if not visitor.probes:
        found.append(host_http(visitor, "sse", "legacy", newest, None))
    found.append(host_http(visitor, "sse", "legacy", oldest, oldest))
    return found


def _logins(peers: list[str]) -> list[AsyncIterator[Outcome]]:
    found: list[AsyncIterator[Outcome]] = []
    for peer in {PEER, NODE_PEER}.intersection(peers):
        for login in ("issuer", "provider"):
            found.append(logged_in(peer, "legacy", SESSIONS[-1], login))
            found.append(logged_in(peer, "auto", STATELESS, login))
    if PEER in peers:
        found += [log_in(revision) for revision in (None, SESSIONS[-1], STATELESS)]
    return found


def plan(peers: list[str]) -> list[AsyncIterator[Outcome]]:
    """Return all sessions."""
    found: list[AsyncIterator[Outcome]] = []
    for served in (*SERVERS, *BRIDGES, *SERVERS_OF_OURS):
        if served.peer in peers:
            for over in served.ways:
                # Without a pin our client would not open a session.
                unpinned = () if over == "alone" else (None,)
                start = drive_bridge if served.behind else drive if over == "stdio" else drive_http
                found += [start(served, over, revision) for revision in (*unpinned, *served.speaks(over))]
    for visitor in CLIENTS:
        if visitor.peer in peers:
            if not visitor.probes:
                found.append(host(visitor, "legacy", visitor.sessions[-1], None))
            found += [host(visitor, "legacy", revision, revision) for revision in visitor.sessions]
            found += [host(visitor, mode, STATELESS, None) for mode in visitor.modes]
            if "auto" in visitor.modes and visitor.falls_back and not visitor.probes:
                # A probe that our server rejects because it supports only sessions.
                found.append(host(visitor, "auto", SESSIONS[-1], SESSIONS[-1]))
            found += _over_http(visitor)
    traced = [peer for peer in PROGRAMS if peer in peers]
    found += [trace_through(peer, revision) for peer in traced for revision in (SESSIONS[-1], STATELESS)]
    return found + _logins(peers)


def _failures() -> list[str]:
    """Collect errors logged in this process; hide warnings."""
    messages: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    return messages


async def main() -> int:
    """Run the selected peers and return the exit code. SIGTERM works like Ctrl-C."""
    us = asyncio.current_task()
    assert us is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, us.cancel)
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        print(f"unknown peer {unknown[0]!r}; available: {', '.join(PEERS)}")
        return 2
    peers = names or PEERS
    broken = await prepare(peers)
    outcomes = [Outcome(peer, "environment", "", "", "install", why) for peer, why in broken.items()]
    for outcome in outcomes:
        print(outcome)
    turn = asyncio.Semaphore(PARALLEL)
    failures = _failures()

    async def converse(conversation: AsyncIterator[Outcome]) -> None:
        async with turn:
            heard = [outcome async for outcome in conversation]
        outcomes.extend(heard)
        print(*heard, sep="\n", flush=True)

    await asyncio.gather(*(converse(one) for one in plan([peer for peer in peers if peer not in broken])))
    outcomes.append(Outcome("all", "our client", "", "", "no error was logged", " | ".join(failures)[:500]))
    failed = [outcome for outcome in outcomes if outcome.why]
    if failed:
        print("\nfailed:", *failed, sep="\n")
    print(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
