"""`toolpost run` as a real process, with its stderr."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from toolpost import Stdio

__all__ = ["PATIENCE", "RUN", "Running", "run", "running", "started", "write"]

PATIENCE = 40.0
RUN = (sys.executable, "-m", "toolpost", "run")
URL = re.compile(r"serves MCP at (\S+)")


def run(main: Any) -> None:
    """Run a test in a new event loop, with a timeout."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


def write(path: Path, text: str) -> None:
    """Write a file as editors do: write a temporary file, then replace the original."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def started(*words: str, **options: Any) -> Stdio:
    """Return the target of a client that starts it over stdio."""
    covered = [name for name in os.environ if name.startswith("COV")]
    return Stdio(RUN[0], [*RUN[1:], *words], inherit_env=covered, **options)


class Running:
    """A server process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.output = ""
        self.url = ""

    async def hears(self, words: str) -> str:
        """Wait for these words, and return the output since the last call."""
        assert self.process.stderr is not None
        output = ""
        while words not in output:
            line = (await self.process.stderr.readline()).decode()
            assert line, f"the process ended; its output: {self.output}"
            output += line
            self.output += line
        return output

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Stop the process and return its exit code."""
        assert self.process.stderr is not None
        self.process.send_signal(number)
        self.output += (await self.process.stderr.read()).decode()
        return await self.process.wait()


@asynccontextmanager
async def running(*words: str, cwd: Path | None = None, subcommand: str = "run") -> AsyncGenerator[Running]:
    """Run a server process over HTTP on a free port."""
    command = [*RUN[:-1], subcommand, *words, "--http", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )
    server = Running(process)
    try:
        told = URL.search(await server.hears("serves MCP at"))
        assert told is not None
        server.url = told[1]
        yield server
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        assert process.stderr is not None
        await process.stderr.read()
