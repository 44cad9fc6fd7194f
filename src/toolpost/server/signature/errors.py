"""The errors of signatures and arguments, and the problems that msgspec reports, in our words.

Why a value misses a schema is explained in `toolpost.json_schema`.
"""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import Final

from toolpost.errors import MCPError, ToolError
from toolpost.json_schema import MAX_ISSUES, TYPE_NAMES, ValidationIssue, join_path

_QUOTED_NAME: Final = r"`(\w+)`"
_NATIVE_NAMES: Final = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}
"""The JSON types by the names that msgspec has for them."""


class ValidationError(ValueError):
    """A value is not of the type that it should be; the paths count from that value."""

    def __init__(self, issues: Iterable[ValidationIssue]) -> None:
        self.issues = tuple(islice(issues, MAX_ISSUES))
        super().__init__("; ".join(map(str, self.issues)))


class ArgumentError(ToolError):
    """The arguments of a call do not fit. The text is for the model; `issues` has the parts of it."""

    def __init__(self, issues: Iterable[ValidationIssue]) -> None:
        self.issues = tuple(islice(issues, MAX_ISSUES))
        super().__init__("\n- ".join(["The arguments do not fit:", *map(str, self.issues)]))


class SignatureError(MCPError, TypeError):
    """A function cannot be bound. The text names the parameter, the hint what to write instead.

    Examples:
        >>> @Server("shop").tool
        ... def impossible(callback: type) -> str:
        ...     return "never"
        Traceback (most recent call last):
        toolpost.server.signature.errors.SignatureError: ...callback...
    """


@contextmanager
def prefix_signature_errors(where: str) -> Generator[None]:
    """Put the place of the cause in front of a `SignatureError`."""
    try:
        yield
    except SignatureError as error:
        raise SignatureError(f"{where}: {error.message}", hint=error.hint) from error


def parse_issues(error: Exception, path: str = "") -> list[ValidationIssue]:
    """Return the problems that an error of msgspec describes, or carries from one of our hooks.

    `path` is that of the value that was read.
    """
    text, at, where = str(error).rpartition(" - at `")
    if not at:
        text, where = where, "$`"
    is_key = where.startswith("key` in `")
    path = f"{path}{where.removeprefix('key` in `')[1:-1]}".lstrip(".")
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return [ValidationIssue(join_path(path, issue.path), issue.message) for issue in cause.issues]
    text = text[:1].lower() + re.sub(_QUOTED_NAME, _rename_type, text[1:])
    return [ValidationIssue(path, f"a key: {text}" if is_key else text)]


def _rename_type(match: re.Match[str]) -> str:
    return TYPE_NAMES.get(_NATIVE_NAMES.get(match[1], match[1]), match[0])
