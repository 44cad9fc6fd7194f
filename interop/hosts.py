"""Servers that are reached by a port: started, waited for until they listen, ended and reaped.

Owns the process and what it says. What it serves is not known here.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from environments import ROOT

__all__ = ["Host", "NotStarted", "listening", "tell"]

START: Final = 30.0
"""Seconds that a server has to say where it listens."""

STOP: Final = 10.0
"""Seconds that a server has to end when it is told to: ours drains for five of them."""

LINE: Final = 1024 * 1024
"""The longest line that a server may say."""

_PORT: Final = re.compile(r"(?:http://127\.0\.0\.1:|on port )(\d+)")


class NotStarted(Exception):
    """A server did not say where it listens; the text is what it said."""


@dataclass
class Host:
    """A process that serves.

    Attributes:
        port: where it listens.
        lines: what it has said, on both of its outputs.
        end: how it ended, in words; empty if that was in order.
    """

    port: int = 0
    lines: list[str] = field(default_factory=list[str])
    end: str = ""

    @property
    def complaint(self) -> str:
        """What is wrong with how it ended or with what it said; empty if nothing is."""
        _, *failures = "\n".join(self.lines).split("Traceback ")
        return failures[0][-500:].replace("\n", " ") if failures else self.end


@asynccontextmanager
async def listening(command: list[str], host: Host, *, names_port: bool = True) -> AsyncGenerator[None]:
    """Let a server listen until the context is left.

    Args:
        command: how to start it.
        host: what is taken down of it.
        names_port: whether it finds a port itself. One that does not is given one in its environment.

    Raises:
        NotStarted: it does not listen.
    """
    environment: Mapping[str, str] = os.environ if names_port else {**os.environ, "PORT": str(_free_port())}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=LINE,
        start_new_session=True,
    )
    assert process.stdout is not None
    there = asyncio.Event()
    hearing = asyncio.create_task(_hear(process.stdout, host, there))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START):
                await there.wait()
        if not host.port:
            raise NotStarted(" ".join(host.lines)[-400:] or "it said nothing")
        yield
    finally:
        tell(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP):
                code = await process.wait()
                await hearing
            host.end = f"exit code {code}" if code else ""
        except TimeoutError:
            host.end = f"it had to be killed after {STOP:g} s"
            tell(process, signal.SIGKILL)
            await process.wait()


async def _hear(output: asyncio.StreamReader, host: Host, there: asyncio.Event) -> None:
    """Read to the end, so that the server never has to wait for us."""
    while line := await output.readline():
        host.lines.append(line.decode(errors="replace").rstrip())
        found = _PORT.search(host.lines[-1])
        if found and not host.port:
            host.port = int(found[1])
            there.set()
    there.set()


def tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process that leads a session, and to all in it: Node comes with a shim in front."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]
