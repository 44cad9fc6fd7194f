"""Installs and runs the official suite, for one leg or one scenario.

Runs the processes and reads their results; `verdict` judges them. `package.json` and its lock file define the
installed version. Node comes from the interop environments.
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
"""Timeout of the suite for a scenario, in seconds."""

LEG: Final = 240.0
"""Timeout for all scenarios of a server, in seconds. The suite reports scenarios that hang."""

_STAMP: Final = re.compile(r"^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")
"""The suite's name for the folder of a scenario's results."""

_TROUBLE: Final = re.compile(r"Client (?:exited with code -?\d+|timed out after \d+ms)")
"""Failures of a client that the suite may ignore."""

Check = dict[str, Any]


class Ran(NamedTuple):
    """The results of one scenario.

    Args:
        checks: the checks of the suite.
        trouble: a failure of the processes, else empty.
    """

    checks: list[Check]
    trouble: str = ""


class _Ended(NamedTuple):
    """A run of the suite's program."""

    output: str
    trouble: str


async def install() -> None:
    """Install Node and the suite if necessary.

    Raises:
        Broken: npm or pip failed; the message is their output.
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
        raise Broken(f"npm ci: {ended.trouble}: {ended.output[-800:]}")
    stamp.write_text(digest)


async def run_server(*arguments: str) -> tuple[dict[str, Ran], str]:
    """Run scenarios against our server. Returns the results by name, and a failure of the whole leg.

    Args:
        arguments: the suite's arguments that select scenarios.
    """
    ours = Host()
    with tempfile.TemporaryDirectory(prefix="conformance-") as place:
        try:
            async with listening([sys.executable, str(HERE / "server.py")], ours):
                url = f"http://127.0.0.1:{ours.port}/mcp"
                ended = await _suite("server", "--url", url, *arguments, "-o", place, within=LEG)
        except NotStarted as error:
            return {}, f"our server did not start: {error}"
        ran = {named[1]: Ran(_read(folder)) for folder, named in _folders(Path(place))}
    return ran, ours.complaint or ended.trouble


async def run_client(scenario: str, *arguments: str) -> Ran:
    """Run one scenario with our client and return its results.

    Args:
        scenario: its name.
        arguments: the suite's arguments that select the revision.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as place:
        command = '"$CONFORMANCE_PYTHON" conformance/client.py'
        ended = await _suite(
            "client",
            "--command",
            command,
            "--scenario",
            scenario,
            *arguments,
            "-o",
            place,
            within=2.0 * SCENARIO,
        )
        forgiven = _TROUBLE.search(ended.output)
        trouble = forgiven[0] if forgiven else ended.trouble
        if not trouble and not _read_output(Path(place)).endswith(f"{DONE}\n"):
            trouble = "our client did not finish"
        return Ran(_read(Path(place)), trouble)


async def sets(revision: str) -> dict[str, list[str]]:
    """Return the scenarios of a requirement set by side: required and informative ones."""
    ended = await _suite("list", "--requirements", revision, within=SCENARIO)
    found: dict[str, list[str]] = {"server": [], "client": []}
    side = ""
    for line in ended.output.splitlines():
        heading = re.match(r"(Server|Client) scenarios", line)
        side = heading[1].lower() if heading else side
        if named := re.match(r"\s+- (\S+)(?: \[(\w+)\])?$", line):
            found[named[2] or side].append(named[1])
    return found


def _folders(place: Path) -> list[tuple[Path, re.Match[str]]]:
    """Return the folders of the scenarios for a server, with their names."""
    return [(folder, named) for folder in place.iterdir() if (named := _STAMP.match(folder.name))]


def _read_output(folder: Path) -> str:
    """Return the output of our client."""
    return "".join(path.read_text() for path in folder.rglob("stdout.txt"))


def _read(folder: Path) -> list[Check]:
    """Return the checks in a folder; none if the scenario did not write any."""
    found: list[Check] = []
    for path in folder.rglob("checks.json"):
        found += json.loads(path.read_text())
    return found


async def _suite(*arguments: str, within: float) -> _Ended:
    limit = () if arguments[0] == "list" else ("--timeout", str(SCENARIO * 1000))
    return await _run([str(NODE), str(PROGRAM), *arguments, *limit], at=ROOT, within=within)


async def _run(command: list[str], *, at: Path, within: float) -> _Ended:
    """Run a program, and end its child processes with it."""
    async with _start(command, at) as process:
        assert process.stdout is not None
        output = bytearray()
        try:
            async with asyncio.timeout(within):
                while data := await process.stdout.read(65536):
                    output += data
                code = await process.wait()
            trouble = f"exit code {code}" if code else ""
        except TimeoutError:
            trouble = f"timed out after {within:g} s"
    return _Ended(output.decode(errors="replace"), trouble)


@asynccontextmanager
async def _start(command: list[str], at: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
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
        tell(process, signal.SIGKILL)  # the suite ends the shell of a client, but not the client
        with contextlib.suppress(ProcessLookupError):
            await process.wait()
