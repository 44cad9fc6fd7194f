"""Targets as processes: starts them on their own core, measures them from outside, and always ends them.

Handles cores, ports, CPU time and memory. Independent of the protocol.
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
"""The limit of descriptors for us and the targets: an open stream needs one at each end."""

Place = Literal["target", "load"]


class Failed(Exception):
    """A target failed; the message gives the reason."""


class Target:
    """A process that is measured.

    Args:
        process: the process.
        port: its port; 0 if it does not listen.
        complaints: the file with its stderr and, if it listens, its stdout.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, complaints: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self._complaints = complaints

    def output(self) -> str:
        """Return its output."""
        return self._complaints.read_text(errors="replace").strip()

    def complaint(self) -> str:
        """Return the last line of its output, which in a traceback is the message."""
        return (self.output().splitlines() or ["no output"])[-1][-300:]


def cores() -> int:
    """Return the number of available cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def keep_to(place: Place) -> Generator[None]:
    """Stay on one core, with all new child processes: load and targets have one core each."""
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
    """Return the core for load or targets: the first or the last available one."""
    return _CORES[0] if place == "target" else _CORES[-1]


@contextmanager
def started(
    command: list[str], *, listens: bool = False, place: Place = "target", log: Path, patience: float = GRACE
) -> Generator[Target]:
    """Run a process during the block. `PORT` in its command is replaced by a free port.

    Args:
        command: its command.
        listens: whether it listens on that port.
        place: the core to run on.
        log: the file for its output.
        patience: seconds to wait for it to end before it is killed.

    Raises:
        Failed: it ended, or does not listen.
    """
    port = _free_port() if listens else 0
    filled = [str(port) if word == "PORT" else word for word in command]
    with log.open("wb") as complaints, ExitStack() as stack:
        # The output of a listening server is not read, so it must not go to a pipe.
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
    """Return our environment variables, with toolpost from this checkout and with bytecode caching."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(_source[-1]), "NODE_ENV": "production"}


_source: Final = [ROOT / "src"]


@contextmanager
def frozen_source() -> Generator[None]:
    """Copy toolpost, so that later changes of the checkout do not affect the run."""
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
            raise Failed(f"the process ended instead of listening: {target.complaint()}")
        if time.monotonic() > deadline:
            raise Failed(f"the process does not listen after {PATIENCE:g} s: {target.complaint()}")
        time.sleep(0.02)


def _end(process: "subprocess.Popen[bytes]", patience: float) -> None:
    if not patience:
        process.kill()  # before it notices that its pipes are closed
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
        os.killpg(process.pid, signal.SIGKILL)  # its child processes


def open_files() -> None:
    """Raise the limit of descriptors for us and our child processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# --------------------------------------------------------------------- CPU time and memory


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process and of those that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu, _children(pid)))


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):  # some kernels do not tell
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def rss(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
