"""Runs the command line as a user does: in a real process, with pipes or a terminal."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pexpect

__all__ = [
    "PATIENCE",
    "SHOP",
    "TALKER",
    "TOOLPOST",
    "Said",
    "environment",
    "on_terminal",
    "serving",
    "toolpost",
]

PATIENCE = 40
PROGRAMS = Path(__file__).with_name("programs")
TOOLPOST = (sys.executable, "-m", "toolpost")
SHOP = ("--", sys.executable, str(PROGRAMS / "shop.py"))
TALKER = ("--", sys.executable, str(PROGRAMS / "talker.py"))


class Said(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output, which is one JSON document."""
        return json.loads(self.out)


def environment(**more: str) -> dict[str, str]:
    """Return our environment variables, without those that affect colours."""
    ours = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    return {**ours, "TERM": "xterm-256color", **more}


def toolpost(*words: str, given: str = "", cwd: Path | None = None, **env: str) -> Said:
    """Run a command with pipes and return its result."""
    done = subprocess.run(
        [*TOOLPOST, *words],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment(**env),
        timeout=PATIENCE,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


@contextmanager
def serving() -> Generator[str]:
    """The URL of the shop over HTTP. A command that does not have to start a server takes half the time."""
    command = [*TOOLPOST, "run", SHOP[-1], "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"serves MCP at (\S+)", process.stderr.readline())
            assert found is not None
            yield found[1]
        finally:
            process.kill()


@contextmanager
def on_terminal(*words: str, cwd: Path | None = None, **env: str) -> Generator[Any]:
    """Run a command on its own terminal. At the end of the block it has ended, and `exitstatus` is set."""
    child = pexpect.spawn(
        TOOLPOST[0],
        [*TOOLPOST[1:], *words],
        encoding="utf-8",
        timeout=PATIENCE,
        dimensions=(50, 110),
        cwd=None if cwd is None else str(cwd),
        env=environment(**env),
    )
    try:
        yield child
        child.expect(pexpect.EOF)
        child.wait()
    finally:
        child.close(force=True)
