"""Entry points of the benchmark commands: exit codes, and the path of the interpreter.

Interrupts and closed pipes end a command without a traceback.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bench.process import ROOT, Failed

__all__ = ["exit_code", "python_path"]


def exit_code(main: Callable[[], int]) -> int:
    """Run a command and return its exit code, or that of a signal. Prints failures on one line.

    SIGTERM works like Ctrl-C, so that its child processes end too.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(143)


def python_path() -> str:
    """Return the path of this interpreter relative to the checkout."""
    python = Path(sys.executable)
    return str(python.relative_to(ROOT) if python.is_relative_to(ROOT) else python)
