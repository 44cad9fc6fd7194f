"""Entry point of `toolpost`: the table of commands, termination signals, and the exit code.

Loads the module of a command on demand. Imports no optional dependency.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from io import TextIOWrapper
from types import FrameType
from typing import Final, NoReturn

COMMANDS: Final = {
    "run": ("run.command", "Run the server in a file, over stdio or HTTP."),
    "gateway": (
        "commands.gateway",
        "Serve all servers of an mcp.json as one.",
    ),
    "list": ("commands.queries", "List tools, resources, templates and prompts."),
    "call": ("commands.requests", "Call a tool."),
    "read": ("commands.requests", "Read a resource."),
    "prompt": ("commands.requests", "Fill in a prompt and print its messages."),
    "complete": ("commands.queries", "Complete an argument of a prompt or a resource template."),
    "tasks": ("commands.tasks", "Show tasks, wait for their results, or cancel them."),
    "work": ("commands.tasks", "Run the tasks of the server in a file, without serving clients."),
    "ping": ("commands.queries", "Check whether a server responds, and how fast."),
    "listen": ("commands.listen", "Show changes and log messages of a server until Ctrl-C."),
    "doctor": ("doctor.command", "Diagnose a server and suggest fixes."),
    "fleet": ("commands.store", "List the workers that share a store on Redis."),
    "tap": ("tap.command", "Show every message between a host and a server."),
    "install": ("install.command", "Add a server to the configuration of a host."),
    "init": ("commands.init", "Create a project with a server, a test and a README."),
    "bench": ("commands.bench", "Load-test a server: throughput and latency."),
}
"""Command → its module in `toolpost.cli`, and its line of `toolpost --help`, which loads no module."""

_INTERRUPTED_EXIT_CODE: Final = 128 + signal.SIGINT  # as in `cli.errors`, which needs click


def main() -> NoReturn:
    """Run the command in `sys.argv` and exit."""
    _reopen_closed_streams()
    received = _trap_termination_signals()
    code = _INTERRUPTED_EXIT_CODE
    with suppress(KeyboardInterrupt):
        code = _flush_stdout(_run_if_installed())
    if code == _INTERRUPTED_EXIT_CODE and received:
        signal.signal(received[0], signal.SIG_DFL)
        signal.raise_signal(received[0])
    if code == _INTERRUPTED_EXIT_CODE and threading.active_count() > 1:
        # A thread that reads from the keyboard would keep the interpreter alive.
        os._exit(_flush_stdout(code))
    sys.exit(code)


def _reopen_closed_streams() -> None:
    """Open the null device in place of closed standard streams, before another file gets their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - never closed


def _trap_termination_signals() -> list[int]:
    """Turn termination signals into Ctrl-C, unless they are ignored (nohup). Returns those received."""
    received: list[int] = []

    def record_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    for number in (getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, record_signal)
    return received


def _run_if_installed() -> int:
    if find_spec("click") is None or find_spec("rich") is None:
        sys.stderr.write("The command line requires click and rich: pip install 'toolpost[cli]'\n")
        return 1
    from toolpost.cli import group  # noqa: PLC0415 - it needs click

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return group.run_command_line()


def _flush_stdout(code: int) -> int:
    """Flush stdout. Returns `code`, or the exit code for a failed flush."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit
        return 128 + signal.SIGPIPE if isinstance(error, BrokenPipeError) and os.name == "posix" else 1
    return code
