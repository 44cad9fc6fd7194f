"""What a user hands to a grant, looked at before anything is asked of anybody.

Owns the words for what cannot be meant. None of them repeats what may be a secret.
"""

import math
from collections.abc import Iterable
from typing import Any, cast

from toolpost.auth.challenge import split_scopes
from toolpost.auth.guard import parse_http_url
from toolpost.auth.storage import Storage
from toolpost.errors import AuthError

__all__ = [
    "check_callable",
    "check_flag",
    "check_issuer_url",
    "check_seconds",
    "check_storage",
    "check_text",
    "normalize_scopes",
]


def normalize_scopes(what: str, scopes: "str | Iterable[str] | None") -> tuple[str, ...]:
    """Scopes as a user gives them: a list, or a text with spaces.

    Raises:
        TypeError: this is neither, or one of them is no text.
        ValueError: one of them cannot be a scope.
    """
    if scopes is None:
        return ()
    if not isinstance(cast("object", scopes), Iterable):
        raise TypeError(f"{what}: a list of texts, not a {type(scopes).__name__}")
    given: list[Any] = scopes.split() if isinstance(scopes, str) else [*scopes]
    for scope in given:
        if not isinstance(scope, str):
            raise TypeError(f"{what}: a list of texts, not {scope!r}")
        if split_scopes(scope) != (scope,):
            raise ValueError(f"{what}: {scope!r} cannot be a scope")
    return tuple(dict.fromkeys(given))


def check_text(what: str, given: object, *, needed: bool = False) -> None:
    """Return if something is a text with something in it, or was not given and is not needed.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty.
    """
    if (needed or given is not None) and not isinstance(given, str):
        raise TypeError(f"{what}: a text, not a {type(given).__name__}")
    if given == "":
        raise ValueError(f"{what} is empty; is a variable of the environment not set?")


def check_issuer_url(what: str, given: object) -> None:
    """Return if something is the URL of an authorization server, or was not given.

    Raises:
        TypeError: it is no text.
        ValueError: it is no URL.
    """
    check_text(what, given)
    if isinstance(given, str):
        try:
            parse_http_url(given, f"{what}={given[:80]!r}")
        except AuthError as error:
            raise ValueError(f"{error.message}; it looks like https://login.example.com") from None


def check_flag(what: str, given: object, *others: object) -> None:
    """Return if something is True or False, or one of some others.

    Raises:
        TypeError: it is neither.
    """
    if not isinstance(given, bool) and not any(given is other or given == other for other in others):
        choices = ", ".join(repr(choice) for choice in (True, False, *others))
        raise TypeError(f"{what}: one of {choices}, not {given!r}")


def check_seconds(what: str, given: object) -> None:
    """Return if something is a time that passes.

    Raises:
        TypeError: it is no number.
        ValueError: it is none that is above zero.
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{what}: seconds, not a {type(given).__name__}")
    if not given > 0 or math.isinf(given):
        raise ValueError(f"{what}: seconds above zero, not {given!r}")


def check_callable(what: str, given: object) -> None:
    """Return if something can be called, or was not given.

    Raises:
        TypeError: it cannot.
    """
    if given is not None and not callable(given):
        raise TypeError(f"{what}: a function, not a {type(given).__name__}")


def check_storage(given: object) -> None:
    """Return if something can keep tokens, or was not given.

    Raises:
        TypeError: it cannot.
    """
    if isinstance(given, type):
        raise TypeError(f"storage={given.__name__}: this is a class; make one of it: {given.__name__}(…)")
    if given is not None and not isinstance(given, Storage):
        raise TypeError(
            f"storage: FileTokens(folder), MemoryTokens(), or an object with get, put and delete, "
            f"not a {type(given).__name__}"
        )
