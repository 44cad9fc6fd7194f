"""The bench's own programs as commands: what they end with, and how a reader types the interpreter.

Whoever interrupts one, or stops to read, has no use for a traceback. What a command does is not known here.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bench.process import ROOT, Failed

__all__ = ["exit_code", "python_shown"]


def exit_code(main: Callable[[], int]) -> int:
    """What a command ends with: its own code, or one that says who ended it; a failure is told in a sentence.

    SIGTERM ends it as Ctrl-C does, so that what it has started ends with it.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(143)


def python_shown() -> str:
    """The interpreter that runs us, as a reader in the checkout would type it."""
    python = Path(sys.executable)
    return str(python.relative_to(ROOT) if python.is_relative_to(ROOT) else python)
