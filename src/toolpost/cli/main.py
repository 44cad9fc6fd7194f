"""The beginning and the end of every run of `toolpost`: which commands there are, and how a run ends.

Owns the table of commands, each in a module that is loaded when it is needed, the signals that end a run, and
the exit code. What a command does is not known here, nor is anything imported that may not be installed.
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
    "run": "run.command",
    "list": "commands.list",
    "call": "commands.call",
    "read": "commands.read",
    "prompt": "commands.prompt",
    "complete": "commands.complete",
    "ping": "commands.ping",
    "listen": "commands.listen",
    "doctor": "doctor.command",
    "tap": "tap.command",
    "install": "install.command",
    "init": "commands.init",
    "bench": "commands.bench",
}
"""Command → the module in `toolpost.cli` that has it, as `command`. They are listed in this order."""

_INTERRUPTED_EXIT_CODE: Final = 128 + signal.SIGINT
"""As shells count. The codes stand in `cli.errors`, which may not be loadable."""

_TERMINATION_SIGNALS: Final = ("SIGTERM", "SIGHUP")
"""Signals that end a run as Ctrl-C does: what was started is ended first. A closed terminal sends SIGHUP."""

_REQUIRED_PACKAGES: Final = ("click", "rich")
_MISSING_PACKAGES_MESSAGE: Final = "The command line needs click and rich: pip install 'toolpost[cli]'\n"


def main() -> NoReturn:
    """Run the command that the words of this process name, and end the process."""
    _reopen_closed_streams()
    told = _trap_termination_signals()
    code = _INTERRUPTED_EXIT_CODE
    with suppress(KeyboardInterrupt):
        code = _flush_stdout(_run_if_installed())
    if code == _INTERRUPTED_EXIT_CODE and told:
        signal.signal(told[0], signal.SIG_DFL)
        signal.raise_signal(told[0])
    if code == _INTERRUPTED_EXIT_CODE and threading.active_count() > 1:
        # One of them waits for a person at the keyboard, and would not let the interpreter end in peace.
        os._exit(_flush_stdout(code))
    sys.exit(code)


def _reopen_closed_streams() -> None:
    """Let stdout and stderr lead nowhere if they are closed, and nothing else be opened in their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - never closed


def _trap_termination_signals() -> list[int]:
    """The signals that were heard so far: each becomes a Ctrl-C, unless it is ignored, as by nohup."""
    heard: list[int] = []

    def record_signal(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        signal.raise_signal(signal.SIGINT)

    for number in (getattr(signal, name) for name in _TERMINATION_SIGNALS if hasattr(signal, name)):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, record_signal)
    return heard


def _run_if_installed() -> int:
    if any(find_spec(name) is None for name in _REQUIRED_PACKAGES):
        sys.stderr.write(_MISSING_PACKAGES_MESSAGE)
        return 1
    from toolpost.cli import group  # noqa: PLC0415 - it imports what may not be installed

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what the terminal cannot show is spelled out
            stream.reconfigure(errors="backslashreplace")
    return group.run_command_line()


def _flush_stdout(code: int) -> int:
    """The exit code, once all that was written is taken. If it is not, nothing more is said about it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        return 128 + signal.SIGPIPE if isinstance(error, BrokenPipeError) and os.name == "posix" else 1
    return code
