"""The beginning and the end of every run of `toolpost`: which commands there are, and how a run ends.

Owns the table of commands, each in a module that is loaded when it is needed, and the exit code. What a
command does is not known here, nor is anything imported that may not be installed.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Final, NoReturn

__all__ = ["COMMANDS", "main"]

COMMANDS: Final = {
    "run": "run",
    "list": "list_",
    "call": "call",
    "read": "read",
    "prompt": "prompt",
    "complete": "complete",
    "ping": "ping",
    "listen": "listen",
    "doctor": "doctor",
    "tap": "tap",
    "install": "install",
    "init": "init",
    "bench": "bench",
}
"""Command → the module in `toolpost.cli` that has it, as `command`. They are listed in this order."""

_INTERRUPTED: Final = 128 + signal.SIGINT
"""As shells count. The codes stand in `exits`, which may not be loadable."""

_NEEDED: Final = ("click", "rich")
_MISSING: Final = "The command line needs click and rich: pip install 'toolpost[cli]'\n"


def main() -> NoReturn:
    """Run the command that the words of this process name, and end the process."""
    code = _INTERRUPTED
    with suppress(KeyboardInterrupt):
        code = _run()
        if not _flushed():
            code = 128 + signal.SIGPIPE if os.name == "posix" else 1
    if code == _INTERRUPTED and threading.active_count() > 1:
        # One of them waits for a person at the keyboard, and would not let the interpreter end in peace.
        _flushed()
        os._exit(code)
    sys.exit(code)


def _run() -> int:
    if any(find_spec(name) is None for name in _NEEDED):
        sys.stderr.write(_MISSING)
        return 1
    from toolpost.cli import group  # noqa: PLC0415 - it imports what may not be installed

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what the terminal cannot show is spelled out
            stream.reconfigure(errors="backslashreplace")
    return group.run()


def _flushed() -> bool:
    """Whether all that was written has been taken. If not, nothing more is said about it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        return False
    return True
