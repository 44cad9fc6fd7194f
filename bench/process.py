"""Targets as processes: started on a core of their own, looked at from outside, ended in any case.

Owns cores, ports, clocks and sizes that the system keeps of a process. What a target says is not known here.
"""

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

__all__ = [
    "ROOT",
    "Failed",
    "Place",
    "Target",
    "core",
    "cores",
    "cpu",
    "environment",
    "frozen_source",
    "keep_to",
    "open_files",
    "rss",
    "started",
]

ROOT: Final = Path(__file__).resolve().parent.parent
PATIENCE: Final = 30.0
"""Seconds for a target to start."""

GRACE: Final = 3.0
"""Seconds for a target to end before it is killed."""

MOST_FILES: Final = 65536
"""Descriptors that we and the targets ask for: an open stream needs one at each end."""

Place = Literal["target", "load"]


class Failed(Exception):
    """A target did not do what it was asked for; the text says what happened instead."""


class Target:
    """A process that is measured.

    Args:
        process: the process.
        port: where it listens; 0 if it does not.
        complaints: the file that has what it wrote to stderr and, if it listens, to stdout.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, complaints: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self._complaints = complaints

    def output(self) -> str:
        """What it has said."""
        return self._complaints.read_text(errors="replace").strip()

    def complaint(self) -> str:
        """Its last line, which of a traceback is the one that matters."""
        return (self.output().splitlines() or ["it said nothing"])[-1][-300:]


def cores() -> int:
    """On how many cores we may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def keep_to(place: Place) -> Generator[None]:
    """Keep to one core, and so all processes that are started meanwhile: load and targets have one each."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core(place)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


_CORES: Final = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def core(place: Place) -> int:
    """The core of a place: the first and the last that we may use."""
    return _CORES[0] if place == "target" else _CORES[-1]


@contextmanager
def started(
    command: list[str], *, listens: bool = False, place: Place = "target", log: Path, patience: float = GRACE
) -> Generator[Target]:
    """A process, which ends with the block; `PORT` in its command is one that is free.

    Args:
        command: what starts it.
        listens: whether it listens at that port.
        place: whose core it has.
        log: the file for what it says.
        patience: seconds that it gets to end by itself.

    Raises:
        Failed: it has ended, or does not listen.
    """
    port = _free_port() if listens else 0
    filled = [str(port) if word == "PORT" else word for word in command]
    with log.open("wb") as complaints, ExitStack() as stack:
        # Nobody reads the output of a server that listens, and it must not wait for that.
        output = complaints if listens else subprocess.PIPE
        with keep_to(place):
            process = subprocess.Popen(
                filled,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=complaints,
                env=environment(),
                start_new_session=True,
            )
            stack.callback(_end, process, patience)
        target = Target(process, port, log)
        if listens:
            _await_port(target)
        yield target


def environment() -> Mapping[str, str]:
    """Ours, with toolpost from this checkout, and with bytecode written."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(_source[-1]), "NODE_ENV": "production"}


_source: Final = [ROOT / "src"]


@contextmanager
def frozen_source() -> Generator[None]:
    """Measure toolpost as it is now, whatever happens to the checkout meanwhile."""
    with tempfile.TemporaryDirectory(prefix="bench-source-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        _source.append(copy)
        try:
            yield
        finally:
            _source.pop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await_port(target: Target) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", target.port), timeout=1):
            return
        if target.process.poll() is not None:
            raise Failed(f"it has ended instead of listening: {target.complaint()}")
        if time.monotonic() > deadline:
            raise Failed(f"it does not listen after {PATIENCE:g} s: {target.complaint()}")
        time.sleep(0.02)


def _end(process: "subprocess.Popen[bytes]", patience: float) -> None:
    if not patience:
        process.kill()  # before it can notice that nobody talks to it any more
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it has started itself


def open_files() -> None:
    """Allow us, and all that we start, as many descriptors as open streams need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# --------------------------------------------------------------------- what the system knows


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss(pid: int) -> int:
    """Bytes of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
