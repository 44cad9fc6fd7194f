"""What went wrong in somebody's own code, in its own lines: a traceback without ours.

Owns which frames are shown. Why the code ran, and what is said besides, others know.
"""

import asyncio
import os
import traceback
from contextlib import contextmanager
from typing import Any, Final, cast

__all__ = ["format_user_traceback", "is_internal_error", "list_traceback_files"]

_PACKAGE_PREFIX: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - compared as text
_HIDDEN_PREFIXES: Final = (
    _PACKAGE_PREFIX,
    "<frozen importlib",
    "<frozen runpy",
    asyncio.__path__[0] + os.sep,
    contextmanager.__code__.co_filename,
    "uvloop",
)
"""What only leads from one line of somebody's own to the next."""


def format_user_traceback(error: BaseException) -> str:
    """An exception as Python shows it, but for lines that are ours or only lead to other ones."""
    told = traceback.TracebackException.from_exception(error)
    _strip_internal_frames(told)
    return "".join(told.format()).rstrip()


def list_traceback_files(error: BaseException) -> set[str]:
    """The files that an exception names."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    return files | ({error.filename} if isinstance(error, SyntaxError) and error.filename else set())


def is_internal_error(error: BaseException) -> bool:
    """Whether our code has raised it, and not somebody else's that we call."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or frames[-1].filename.startswith(_PACKAGE_PREFIX)


def _strip_internal_frames(told: traceback.TracebackException) -> bool:
    """Whether anything is left, in an exception or in those behind it."""
    stack = told.stack
    stack[:] = [frame for frame in stack if not frame.filename.startswith(_HIDDEN_PREFIXES)]
    if not stack:
        cast("Any", told).stack = None  # a heading over nothing
    if told.__cause__ is not None and not _strip_internal_frames(told.__cause__):
        told.__cause__ = None
        told.__suppress_context__ = True
    if told.__context__ is not None and not _strip_internal_frames(told.__context__):
        told.__context__ = None
    for each in told.exceptions or ():
        _strip_internal_frames(each)
    return bool(stack) or hasattr(told, "lineno")  # a syntax error names its line by itself
