"""Runs every peer against us, in both directions, and tells how each case went. `make interop` calls it.

Owns the table of who speaks what. The cases are in `drive_*`, for our client, and in `peers/`, for theirs.
Run as `python interop/run.py [peer]`.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from cases import Outcome, Suite
from drive_everything import EVERYTHING
from drive_filesystem import FILESYSTEM
from drive_installed import BARE
from drive_kitchen import KITCHEN
from environments import HERE, HOME, INSTALLED, NODE, ROOT, prepare, python_of
from ours import Guest, visit
from toolpost import Stdio
from toolpost.protocol.methods import DATES

PARALLEL: Final = 4
"""Conversations at a time: more of them make slow machines miss time-outs."""

SILENCE: Final = 60.0
"""Seconds after which a client of theirs that says nothing is taken for dead."""

SESSIONS: Final = DATES[:-1]
STATELESS: Final = DATES[-1]


class Served(NamedTuple):
    """A server of theirs: how to start it, what to try, the revisions that it speaks."""

    peer: str
    command: list[str]
    suite: Suite[Guest]
    revisions: tuple[str, ...]


class Visitor(NamedTuple):
    """A client of theirs, and the modes that it can connect in besides sessions."""

    peer: str
    command: list[str]
    modes: tuple[str, ...] = ()


def _module(peer: str, path: str) -> str:
    return str(HOME / peer / "node_modules" / "@modelcontextprotocol" / path)


SERVERS: Final = (
    Served(
        "mcp-2.3.0",
        [str(python_of("mcp-2.3.0")), "-W", "ignore", str(HERE / "peers" / "server_mcp2.py")],
        KITCHEN,
        DATES,
    ),
    Served(
        "mcp-1.30.0",
        [str(python_of("mcp-1.30.0")), "-W", "ignore", str(HERE / "peers" / "server_mcp1.py")],
        KITCHEN,
        SESSIONS,
    ),
    Served(
        "everything",
        [str(NODE), _module("everything", "server-everything/dist/index.js"), "stdio"],
        EVERYTHING,
        SESSIONS,
    ),
    Served(
        "filesystem",
        [str(NODE), _module("filesystem", "server-filesystem/dist/index.js"), str(HERE)],
        FILESYSTEM,
        SESSIONS,
    ),
)

SERVERS_OF_OURS: Final = (
    Served(INSTALLED, [str(python_of(INSTALLED)), str(HERE / "kitchen.py")], BARE, DATES),
)

CLIENTS: Final = (
    Visitor(
        "mcp-2.3.0",
        [str(python_of("mcp-2.3.0")), str(HERE / "peers" / "client_mcp2.py")],
        ("auto", STATELESS),
    ),
    Visitor("mcp-1.30.0", [str(python_of("mcp-1.30.0")), str(HERE / "peers" / "client_mcp1.py")]),
    Visitor("sdk-1.32.2", [str(NODE), str(HOME / "sdk-1.32.2" / "client_sdk.mjs")]),
    Visitor("client-2.4.0", [str(NODE), str(HOME / "client-2.4.0" / "client_v2.mjs")], ("auto", STATELESS)),
)

PEERS: Final = list(dict.fromkeys(one.peer for one in (*SERVERS, *SERVERS_OF_OURS, *CLIENTS)))


async def drive(served: Served, revision: str | None) -> AsyncIterator[Outcome]:
    """Our client against a server of theirs."""
    command, *args = served.command
    expected = revision or served.revisions[-1]
    with tempfile.TemporaryDirectory(prefix="interop-") as place:
        target = Stdio(command, args, stderr="discard")
        own = place if served.suite is FILESYSTEM else ""
        async for outcome in visit(
            served.peer, target, served.suite, revision=revision, expected=expected, place=own
        ):
            yield outcome


async def host(visitor: Visitor, mode: str, revision: str, only: str | None) -> AsyncIterator[Outcome]:
    """A client of theirs against our server, which speaks `only` one revision or all of them."""
    shown = only or ("unpinned" if mode in {"auto", "legacy"} else mode)
    ours = [sys.executable, str(HERE / "kitchen.py"), *([only] if only else [])]

    def outcome(what: str, why: str) -> Outcome:
        return Outcome(visitor.peer, "our server", shown, what, why)

    process = await asyncio.create_subprocess_exec(
        *visitor.command,
        mode,
        revision,
        *ours,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    grumble = asyncio.create_task(process.stderr.read())
    left = [f"connect → {revision}"]
    try:
        while True:
            async with asyncio.timeout(SILENCE):
                line = await process.stdout.readline()
            if not line:
                break
            told: dict[str, Any] = json.loads(line)
            if "plan" in told:
                left += told["plan"]
                continue
            left.remove(told["what"])
            yield outcome(told["what"], told["why"])
        async with asyncio.timeout(SILENCE):
            code = await process.wait()
        yield outcome("leave", "" if code == 0 and not left else f"exit code {code}")
    except TimeoutError:
        process.kill()
    said = (await grumble).decode(errors="replace")[-300:].replace("\n", " ")
    await process.wait()
    for what in left:
        yield outcome(what, f"the client never got there: {said}")


def plan(peers: list[str]) -> list[AsyncIterator[Outcome]]:
    """All conversations."""
    found: list[AsyncIterator[Outcome]] = []
    for served in (*SERVERS, *SERVERS_OF_OURS):
        if served.peer in peers:
            found += [drive(served, revision) for revision in (None, *served.revisions)]
    for visitor in CLIENTS:
        if visitor.peer in peers:
            found.append(host(visitor, "legacy", SESSIONS[-1], None))
            found += [host(visitor, "legacy", revision, revision) for revision in SESSIONS]
            found += [host(visitor, mode, STATELESS, None) for mode in visitor.modes]
            if "auto" in visitor.modes:
                # A probe that our server refuses because it speaks sessions only.
                found.append(host(visitor, "auto", SESSIONS[-1], SESSIONS[-1]))
    return found


async def main() -> int:
    """Run what was asked for; the exit code."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        print(f"there is no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
        return 2
    peers = names or PEERS
    broken = await prepare(peers)
    outcomes = [Outcome(peer, "environment", "", "install", why) for peer, why in broken.items()]
    for outcome in outcomes:
        print(outcome)
    turn = asyncio.Semaphore(PARALLEL)

    async def converse(conversation: AsyncIterator[Outcome]) -> None:
        async with turn:
            heard = [outcome async for outcome in conversation]
        outcomes.extend(heard)
        print(*heard, sep="\n", flush=True)

    await asyncio.gather(*(converse(one) for one in plan([peer for peer in peers if peer not in broken])))
    failed = [outcome for outcome in outcomes if outcome.why]
    if failed:
        print("\nfailed:", *failed, sep="\n")
    print(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
