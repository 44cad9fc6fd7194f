"""The official suite as a program: installed once from its lock file, run for one leg or one scenario.

Owns the processes and reads what they leave behind. Whether that is good enough is for `verdict` to say. Node
comes as interop brings it. What is installed is told by `package.json` and its lock; no registry is named.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from client import DONE
from environments import HOME, NODE, ROOT, Broken, prepare
from hosts import Host, NotStarted, listening, tell

__all__ = ["Ran", "install", "run_client", "run_server", "sets"]

HERE: Final = Path(__file__).resolve().parent
PLACE: Final = HOME.with_name("conformance")
PROGRAM: Final = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

SCENARIO: Final = 30
"""Seconds that the suite gives a scenario."""

LEG: Final = 240.0
"""Seconds for all scenarios of a server: they take a few, and if some hang, the suite says so."""

_STAMP: Final = re.compile(r"^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")
"""How the suite names the folder of a scenario's results."""

_TROUBLE: Final = re.compile(r"Client (?:exited with code -?\d+|timed out after \d+ms)")
"""What the suite says of a client and may then forgive."""

Check = dict[str, Any]


class Ran(NamedTuple):
    """What is left of one scenario.

    Args:
        checks: what the suite has checked.
        trouble: what went wrong with the processes; empty if nothing did.
    """

    checks: list[Check]
    trouble: str = ""


class _Ended(NamedTuple):
    """A run of the suite's program."""

    said: str
    trouble: str


async def install() -> None:
    """Install Node and the suite, unless they are there.

    Raises:
        Broken: npm or pip failed; the text is what they said.
    """
    for why in (await prepare(["node"])).values():
        raise Broken(why)
    wanted = [HERE / "package.json", HERE / "package-lock.json"]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in wanted)).hexdigest()
    stamp = PLACE / ".ready"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    for path in wanted:
        shutil.copy(path, PLACE)
    npm = str(NODE.with_name("npm"))
    ended = await _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], at=PLACE, within=LEG)
    if ended.trouble:
        raise Broken(f"npm ci: {ended.trouble}: {ended.said[-800:]}")
    stamp.write_text(digest)


async def run_server(*asked: str) -> tuple[dict[str, Ran], str]:
    """What is left of the scenarios for a server of ours, by name; and what went wrong with the leg itself.

    Args:
        asked: which scenarios, in the suite's own words.
    """
    ours = Host()
    with tempfile.TemporaryDirectory(prefix="conformance-") as place:
        try:
            async with listening([sys.executable, str(HERE / "server.py")], ours):
                url = f"http://127.0.0.1:{ours.port}/mcp"
                ended = await _suite("server", "--url", url, *asked, "-o", place, within=LEG)
        except NotStarted as error:
            return {}, f"our server did not start: {error}"
        ran = {named[1]: Ran(_read(folder)) for folder, named in _folders(Path(place))}
    return ran, ours.complaint or ended.trouble


async def run_client(scenario: str, *asked: str) -> Ran:
    """What is left of one scenario for our client.

    Args:
        scenario: its name.
        asked: on which wire, in the suite's own words.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as place:
        command = '"$CONFORMANCE_PYTHON" conformance/client.py'
        ended = await _suite(
            "client", "--command", command, "--scenario", scenario, *asked, "-o", place, within=2.0 * SCENARIO
        )
        forgiven = _TROUBLE.search(ended.said)
        trouble = forgiven[0] if forgiven else ended.trouble
        if not trouble and not _said(Path(place)).endswith(f"{DONE}\n"):
            trouble = "our client did not come to its end"
        return Ran(_read(Path(place)), trouble)


async def sets(revision: str) -> dict[str, list[str]]:
    """The scenarios of a requirement set, by side: those that count, and those that are only reported."""
    ended = await _suite("list", "--requirements", revision, within=SCENARIO)
    found: dict[str, list[str]] = {"server": [], "client": []}
    side = ""
    for line in ended.said.splitlines():
        heading = re.match(r"(Server|Client) scenarios", line)
        side = heading[1].lower() if heading else side
        if named := re.match(r"\s+- (\S+)(?: \[(\w+)\])?$", line):
            found[named[2] or side].append(named[1])
    return found


def _folders(place: Path) -> list[tuple[Path, re.Match[str]]]:
    """The folders of the scenarios for a server, and their names."""
    return [(folder, named) for folder in place.iterdir() if (named := _STAMP.match(folder.name))]


def _said(folder: Path) -> str:
    """What our client has said."""
    return "".join(path.read_text() for path in folder.rglob("stdout.txt"))


def _read(folder: Path) -> list[Check]:
    """The checks that were written into a folder; none if the scenario never got there."""
    found: list[Check] = []
    for path in folder.rglob("checks.json"):
        found += json.loads(path.read_text())
    return found


async def _suite(*arguments: str, within: float) -> _Ended:
    limit = () if arguments[0] == "list" else ("--timeout", str(SCENARIO * 1000))
    return await _run([str(NODE), str(PROGRAM), *arguments, *limit], at=ROOT, within=within)


async def _run(command: list[str], *, at: Path, within: float) -> _Ended:
    """Run a program to its end, and all that it has started with it."""
    async with _started(command, at) as process:
        assert process.stdout is not None
        said = bytearray()
        try:
            async with asyncio.timeout(within):
                while data := await process.stdout.read(65536):
                    said += data
                code = await process.wait()
            trouble = f"exit code {code}" if code else ""
        except TimeoutError:
            trouble = f"it took longer than {within:g} s"
    return _Ended(said.decode(errors="replace"), trouble)


@asynccontextmanager
async def _started(command: list[str], at: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    path = f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=at,
        # The suite splits a command at its spaces; a shell that reads a variable does not.
        env={**os.environ, "PATH": path, "CONFORMANCE_PYTHON": sys.executable, "NO_COLOR": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        tell(
            process, signal.SIGKILL
        )  # whatever is left of it: the suite ends the shell of a client, not the client
        with contextlib.suppress(ProcessLookupError):
            await process.wait()
