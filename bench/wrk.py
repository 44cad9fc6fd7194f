"""Generates load with wrk, if it is or can be installed; otherwise with the built-in loader.

Builds the command and parses its output. wrk needs whole seconds and counts the responses within them.
"""

import os
import shutil
import subprocess
import tempfile
from math import ceil
from pathlib import Path
from typing import Final, Protocol

from bench.figures import Sample
from bench.loader import Loader
from bench.process import Failed, cpu, keep_to
from bench.targets import wire

__all__ = ["Load", "Wrk", "best_load"]

PATIENT: Final = 5
"""Seconds of a second attempt."""

SCRIPT: Final = Path(__file__).with_name("wrk.lua")


class Load(Protocol):
    """A load generator."""

    name: str

    def run(self, port: int, pid: int, requests: list[bytes], connections: int, seconds: float) -> Sample:
        """Send requests as fast as possible over these connections, one at a time on each.

        Requests are templates of `wire`.
        """
        ...


class Wrk:
    """Generates load with wrk, in one thread."""

    def __init__(self, command: str) -> None:
        self._command = command
        version = subprocess.run([command, "-v"], check=False, capture_output=True, text=True).stdout.split()
        self.name = " ".join(version[:2]) or "wrk"

    def run(self, port: int, pid: int, requests: list[bytes], connections: int, seconds: float) -> Sample:
        """Send requests as fast as possible over these connections, one at a time on each.

        Raises:
            Failed: some requests were rejected, or got no response.
        """
        sample = self._run(port, pid, requests, connections, seconds)
        # A slow target on a busy machine may not respond before wrk stops counting.
        sample = sample or self._run(port, pid, requests, connections, PATIENT)
        if sample is None:
            raise Failed(f"no response within {PATIENT} s")
        return sample

    def _run(
        self, port: int, pid: int, requests: list[bytes], connections: int, seconds: float
    ) -> Sample | None:
        with tempfile.NamedTemporaryFile(prefix="bench-", suffix=".requests") as file:
            file.write(b"".join(b"%d\n%b" % (len(request), request) for request in requests))
            file.flush()
            command = [self._command, "-t1", f"-c{connections}", f"-d{ceil(seconds)}s", "--timeout", "10s"]
            command += ["-s", str(SCRIPT), f"http://127.0.0.1:{port}/mcp", "--", file.name]
            command += [str(wire.NUMBER), str(wire.first_number())]
            used = cpu(pid)
            with keep_to("load"):
                ran = subprocess.run(command, check=False, capture_output=True, text=True)
            burnt = cpu(pid) - used
        lines = [line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("figures ")]
        if ran.returncode or not lines:
            raise Failed(f"wrk failed: {(ran.stderr or ran.stdout).strip()[-300:]}")
        count, micros, p50, p99, refused, lost = map(int, lines[0])
        if refused or lost:
            raise Failed(f"of {count} requests, {refused} were rejected and {lost} were lost")
        if not count:
            return None
        return Sample(count / (micros / 1e6), count / burnt if burnt else None, p50 / 1000, p99 / 1000)


def best_load() -> Load:
    """Return wrk, installed if possible; otherwise the built-in loader."""
    if (
        shutil.which("wrk") is None
        and hasattr(os, "geteuid")
        and os.geteuid() == 0
        and shutil.which("apt-get")
    ):
        subprocess.run(["apt-get", "install", "-y", "wrk"], check=False, capture_output=True)  # noqa: S607 - found
    found = shutil.which("wrk")
    return Wrk(found) if found else Loader()
