"""Entry point of `toolpost`: the table of commands, the signals that end a run, and the exit code.

Each command is in a module that is loaded when it is needed. Imports nothing that may not be installed.
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
    "run": ("run.command", "Serve the server in a file, over stdio or HTTP."),
    "list": ("commands.list", "List tools, resources, templates and prompts."),
    "call": ("commands.call", "Call a tool."),
    "read": ("commands.read", "Read a resource."),
    "prompt": ("commands.prompt", "Fill in a prompt, and print the messages."),
    "complete": ("commands.complete", "Ask how an argument might go on."),
    "ping": ("commands.ping", "Ask a server whether it answers, and tell how long that takes."),
    "listen": ("commands.listen", "Show what changes on a server, and its log, until Ctrl-C."),
    "doctor": ("doctor.command", "Examine a server, and say what to do about what is wrong."),
    "tap": ("tap.command", "Show every message between a host and a server."),
    "install": ("install.command", "Write a server into the configuration of a host."),
    "init": ("commands.init", "Make a project of a server, a test and a README."),
    "bench": ("commands.bench", "Load a server, and measure throughput and latency."),
}
"""Command → the module in `toolpost.cli` that defines it, and its line of `toolpost --help`, in this order.

Help loads no command: that is slow, and one may be broken.
"""

_INTERRUPTED_EXIT_CODE: Final = 128 + signal.SIGINT  # as in `cli.errors`, which needs click


def main() -> NoReturn:
    """Run the command that the words of this process name, and end the process."""
    _reopen_closed_streams()
    received = _trap_termination_signals()
    code = _INTERRUPTED_EXIT_CODE
    with suppress(KeyboardInterrupt):
        code = _flush_stdout(_run_if_installed())
    if code == _INTERRUPTED_EXIT_CODE and received:
        signal.signal(received[0], signal.SIG_DFL)
        signal.raise_signal(received[0])
    if code == _INTERRUPTED_EXIT_CODE and threading.active_count() > 1:
        # A thread that waits for the keyboard would keep the interpreter from exiting.
        os._exit(_flush_stdout(code))
    sys.exit(code)


def _reopen_closed_streams() -> None:
    """Open the null device in place of closed standard streams, before another file takes their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - never closed


def _trap_termination_signals() -> list[int]:
    """Turn termination signals into Ctrl-C, unless they are ignored, as by nohup. Returns those received.

    A closed terminal sends SIGHUP.
    """
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
        sys.stderr.write("The command line needs click and rich: pip install 'toolpost[cli]'\n")
        return 1
    from toolpost.cli import group  # noqa: PLC0415 - it imports what may not be installed

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return group.run_command_line()


def _flush_stdout(code: int) -> int:
    """Flush stdout; return the exit code, or another if that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        return 128 + signal.SIGPIPE if isinstance(error, BrokenPipeError) and os.name == "posix" else 1
    return code
