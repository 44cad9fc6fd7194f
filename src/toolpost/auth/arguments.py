"""Checks of arguments of public classes.

Each raises TypeError or ValueError with the name of an invalid argument. Errors repeat no secret.
"""

import math
from typing import Any
from urllib.parse import SplitResult

from toolpost.auth.urls import parse_http_url
from toolpost.errors import AuthError


def check_texts(**texts: object) -> None:
    """Check that each argument is None or a string that is not empty."""
    for name, given in texts.items():
        if given is not None:
            check_text(name, given)


def check_text(name: str, given: object) -> None:
    """Check that an argument is a string that is not empty."""
    if not isinstance(given, str):
        raise TypeError(f"{name} must be a string, not {type(given).__name__}")
    if not given:
        raise ValueError(f"{name} is empty; is an environment variable missing?")


def check_http_url(url: str, name: str, hint: str = "") -> SplitResult:
    """Return the parts of an http or https URL."""
    try:
        return parse_http_url(url, name)
    except AuthError as error:
        raise ValueError(f"{error.message}{hint}") from None


def check_flag(name: str, given: object, *others: object) -> None:
    """Check that an argument is True, False, or one of the others."""
    if not isinstance(given, bool) and not any(given is other or given == other for other in others):
        *choices, last = map(repr, (True, False, *others))
        raise TypeError(f"{name} must be {', '.join(choices)} or {last}, not {given!r}")


def check_seconds(name: str, given: object) -> None:
    """Check that an argument is a finite number above zero."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(given).__name__}")
    if not given > 0 or math.isinf(given):
        raise ValueError(f"{name} must be more than 0 seconds, not {given!r}")


def check_duration(given: Any, name: str, most: float) -> float:
    """Return a number of seconds from zero to a limit."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= most:
        raise ValueError(f"{name} must be a number of seconds from 0 to {most:g}, not {given!r}")
    return float(given)
