"""Starts servers that listen on a port, waits for them, and ends them.

Handles the process and its output. Independent of the protocol.
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
"""Seconds for a server to print its port."""

STOP: Final = 10.0
"""Seconds for the shutdown of a server: ours drains for five of them."""

LINE: Final = 1024 * 1024
"""The longest line of output, in bytes."""

_PORT: Final = re.compile(r"(?:http://127\.0\.0\.1:|on port )([1-9]\d*)")


class NotStarted(Exception):
    """A server did not print its port; the message is its output."""


@dataclass
class Host:
    """A server process.

    Attributes:
        port: its port.
        lines: its output, stdout and stderr.
        end: a description of an abnormal end, else empty.
    """

    port: int = 0
    lines: list[str] = field(default_factory=list[str])
    end: str = ""

    @property
    def complaint(self) -> str:
        """Problems of its end or its output; empty if there are none."""
        _, *failures = "\n".join(self.lines).split("Traceback ")
        return failures[0][-500:].replace("\n", " ") if failures else self.end


@asynccontextmanager
async def listening(command: list[str], host: Host, *, names_port: bool = True) -> AsyncGenerator[None]:
    """Run a server during the context.

    Args:
        command: its command.
        host: the record to fill.
        names_port: whether it chooses a port. Otherwise it gets one in its environment.

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
            raise NotStarted(" ".join(host.lines)[-400:] or "no output")
        yield
    finally:
        tell(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP):
                code = await process.wait()
                await hearing
            host.end = f"exit code {code}" if code else ""
        except TimeoutError:
            host.end = f"killed after {STOP:g} s"
            tell(process, signal.SIGKILL)
            await process.wait()


async def _hear(output: asyncio.StreamReader, host: Host, there: asyncio.Event) -> None:
    """Read all output, so that the server never blocks."""
    while line := await output.readline():
        host.lines.append(line.decode(errors="replace").rstrip())
        found = _PORT.search(host.lines[-1])
        if found and not host.port:
            host.port = int(found[1])
            there.set()
    there.set()


def tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process group: Node runs behind a wrapper."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]
