"""Arguments of public classes: checks before any request is sent, and calls of those that are functions.

Each check returns if the argument can work, and raises TypeError or ValueError with its name otherwise.
Errors repeat no secret.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import SplitResult

from toolpost.auth.urls import parse_http_url
from toolpost.errors import AuthError
from toolpost.principal import SCOPE_PATTERN
from toolpost.threads import ThreadPool


def split_scopes(text: str) -> tuple[str, ...]:
    """Return the scopes in a list that is separated by spaces, each once, without what cannot be a scope."""
    return tuple(dict.fromkeys(word for word in text.split(" ") if re.fullmatch(SCOPE_PATTERN, word)))


def normalize_scopes(scopes: "str | Iterable[str] | None") -> tuple[str, ...]:
    """Return scopes that a user gave as a list, or as a string with spaces."""
    if scopes is None:
        return ()
    if not isinstance(cast("object", scopes), Iterable):
        raise TypeError(f"scopes: a list of texts, not a {type(scopes).__name__}")
    given: list[Any] = scopes.split() if isinstance(scopes, str) else [*scopes]
    for scope in given:
        if not isinstance(scope, str):
            raise TypeError(f"scopes: a list of texts, not {scope!r}")
        if split_scopes(scope) != (scope,):
            raise ValueError(f"scopes: {scope!r} cannot be a scope")
    return tuple(dict.fromkeys(given))


def check_texts(**texts: object) -> None:
    """Check that each is a string with something in it, or None."""
    for what, given in texts.items():
        if given is not None:
            check_text(what, given)


def check_text(what: str, given: object) -> None:
    """Check that an argument is a string with something in it."""
    if not isinstance(given, str):
        raise TypeError(f"{what}: a text, not a {type(given).__name__}")
    if not given:
        raise ValueError(f"{what} is empty; is a variable of the environment not set?")


def check_http_url(url: str, what: str, hint: str = "") -> SplitResult:
    """Return the parts of an http or https URL."""
    try:
        return parse_http_url(url, what)
    except AuthError as error:
        raise ValueError(f"{error.message}{hint}") from None


def check_issuer_url(issuer: object) -> None:
    """Check that an argument is the URL of an authorization server, or None."""
    check_texts(issuer=issuer)
    if isinstance(issuer, str):
        check_http_url(issuer, f"issuer={issuer[:80]!r}", "; it looks like https://login.example.com")


def check_flag(what: str, given: object, *others: object) -> None:
    """Check that an argument is True, False, or one of some others."""
    if not isinstance(given, bool) and not any(given is other or given == other for other in others):
        choices = ", ".join(repr(choice) for choice in (True, False, *others))
        raise TypeError(f"{what}: one of {choices}, not {given!r}")


def check_seconds(what: str, given: object) -> None:
    """Check that an argument is a finite number above zero."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{what}: seconds, not a {type(given).__name__}")
    if not given > 0 or math.isinf(given):
        raise ValueError(f"{what}: seconds above zero, not {given!r}")


def check_duration(given: Any, what: str, most: float) -> float:
    """Return a number of seconds from zero to a limit."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= most:
        raise ValueError(f"{what} is {given!r}; give seconds, a number from 0 to {most:g}")
    return float(given)


async def call_user_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, sync or async. A sync one runs in a thread, since it may block."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    threads = ThreadPool(1)
    try:
        result = await threads.run_in_thread(lambda: function(*arguments))
    finally:
        threads.close()
    return await result if inspect.isawaitable(result) else result
