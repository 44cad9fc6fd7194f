"""Runs the clients of peers against our server, each in its own process.

Implements the protocol with that process, and checks it from outside. The cases are in `peers/`.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from cases import Outcome
from environments import HERE, ROOT
from hosts import Host, NotStarted, listening, tell
from relay import Relay, relayed
from toolpost.protocol.methods import DATES

__all__ = ["PATHS", "Visitor", "host", "host_http"]

PATHS: Final = {"http": "/mcp", "sse": "/sse", "alone": "/mcp", "httpx2": "/mcp", "fleet": "/mcp"}
"""The default paths of our server, and of the peers."""

STATELESS: Final = DATES[-1]

SILENCE: Final = 60.0
"""Seconds without output after which a client is considered dead."""

KITCHEN: Final = [sys.executable, str(HERE / "kitchen.py")]
FLEET: Final = [sys.executable, str(HERE / "three_kitchens.py")]


class Visitor(NamedTuple):
    """A client of a peer.

    Args:
        peer: its name.
        command: its command.
        modes: its modes besides sessions.
        sessions: its revisions with sessions.
        probes: whether it always tries the newest revision first.
        falls_back: whether it opens a session if the server rejects that revision.
        flags: arguments of our server that it needs.
        meets_fleet: whether it also talks to three workers.
    """

    peer: str
    command: list[str]
    modes: tuple[str, ...] = ()
    sessions: tuple[str, ...] = DATES[:-1]
    probes: bool = False
    falls_back: bool = True
    flags: tuple[str, ...] = ()
    meets_fleet: bool = False


class Stay(NamedTuple):
    """A connection of a peer's client.

    Args:
        visitor: the client.
        over: stdio, http, sse, alone: HTTP with neither sessions nor event streams for older clients; or
            fleet: http with three workers.
        mode: the peer's name of the mode.
        revision: the expected revision.
        only: the only revision of our server; None for all.
    """

    visitor: Visitor
    over: str
    mode: str
    revision: str
    only: str | None

    def outcome(self, what: str, why: str) -> Outcome:
        """Create the outcome of a case."""
        shown = self.only or ("unpinned" if self.mode in {"auto", "legacy"} else self.mode)
        return Outcome(self.visitor.peer, "our server", self.over, shown, what, why)


async def host(visitor: Visitor, mode: str, revision: str, only: str | None) -> AsyncIterator[Outcome]:
    """Run their client with our server over stdio."""
    stay = Stay(visitor, "stdio", mode, revision, only)
    async for outcome in _converse(stay, [*KITCHEN, *visitor.flags, *([only] if only else [])], None):
        yield outcome


async def host_http(
    visitor: Visitor, over: str, mode: str, revision: str, only: str | None
) -> AsyncIterator[Outcome]:
    """Run their client with the URL of our server."""
    stay = Stay(visitor, over, mode, revision, only)
    started = FLEET if over == "fleet" else [*KITCHEN, f"--{over}"]
    command, ours = [*started, *visitor.flags, *([only] if only else [])], Host()
    try:
        async with (
            listening(command, ours),
            relayed(ours, PATHS[over]) as relay,
        ):
            async for outcome in _converse(stay, [relay.url], relay):
                yield outcome
            if over != "sse":
                yield stay.outcome(*await _sessions(stay, relay))
            if relay.cuts and revision != STATELESS:
                why = "" if relay.resumed else "no stream was resumed"
                yield stay.outcome("Last-Event-ID was sent", why)
    except NotStarted as error:
        yield stay.outcome("our server starts", str(error))
        return
    yield stay.outcome("our server ends in order", ours.complaint)


async def _sessions(stay: Stay, relay: Relay) -> tuple[str, str]:
    """Check that sessions were opened and deleted as the era requires."""
    # One case of the stateless era also runs an older client, if there is one.
    most = 0 if stay.over == "alone" else 1 if stay.revision == STATELESS else None
    if most is not None and len(relay.sessions) > most:
        return "no sessions were opened", f"there were {len(relay.sessions)}"
    if most is not None and not relay.sessions:
        return "no sessions were opened", ""
    left = [session for session in relay.sessions if await relay.knows(session)]
    why = f"{len(left)} of {len(relay.sessions)} are still open" if left or not relay.sessions else ""
    return "its sessions are deleted", why


async def _converse(stay: Stay, target: list[str], relay: Relay | None) -> AsyncIterator[Outcome]:
    process = await asyncio.create_subprocess_exec(
        *stay.visitor.command,
        stay.mode,
        stay.revision,
        "http" if stay.over == "fleet" else stay.over,
        *target,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    grumble = asyncio.create_task(process.stderr.read())
    left = [f"connect → {stay.revision}"]
    try:
        while True:
            async with asyncio.timeout(SILENCE):
                line = await process.stdout.readline()
            if not line:
                break
            report: dict[str, Any] = json.loads(line)
            if "plan" in report:
                left += report["plan"]
            elif "cut" in report:
                assert relay is not None
                relay.cut()
            else:
                left.remove(report["what"])
                yield stay.outcome(report["what"], report["why"])
        async with asyncio.timeout(SILENCE):
            code = await process.wait()
        yield stay.outcome("leave", "" if code == 0 and not left else f"exit code {code}")
    except TimeoutError:
        pass  # reported below
    finally:
        tell(process, signal.SIGKILL)
    stderr = (await grumble).decode(errors="replace")[-300:].replace("\n", " ")
    await process.wait()
    for what in left:
        yield stay.outcome(what, f"the client never got there: {stderr}")
