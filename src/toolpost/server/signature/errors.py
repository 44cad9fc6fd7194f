"""The errors of signatures and arguments, and msgspec's error messages in our words.

`toolpost.json_schema` explains why a value does not match a schema.
"""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import Final

from toolpost.errors import MCPError, ToolError
from toolpost.json_schema import MAX_ISSUES, TYPE_NAMES, ValidationIssue, join_path

_QUOTED_NAME: Final = r"`(\w+)`"
_JSON_TYPES_BY_NATIVE: Final = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}


class ValidationError(ValueError):
    """A value has the wrong type; the paths of the issues are relative to that value."""

    def __init__(self, issues: Iterable[ValidationIssue]) -> None:
        self.issues = tuple(islice(issues, MAX_ISSUES))
        super().__init__("; ".join(map(str, self.issues)))


class ArgumentError(ToolError):
    """The arguments of a call are not valid. The message is for the model; `issues` has its parts."""

    def __init__(self, issues: Iterable[ValidationIssue]) -> None:
        self.issues = tuple(islice(issues, MAX_ISSUES))
        separator = "\n- " if len(self.issues) > 1 else " "
        super().__init__(separator.join(["Invalid arguments:", *map(str, self.issues)]))


class SignatureError(MCPError, TypeError):
    """A function has an unsupported signature. The message names the parameter; the hint says what to do.

    Examples:
        >>> @Server("shop").tool
        ... def impossible(callback: type) -> str:
        ...     return "never"
        Traceback (most recent call last):
        toolpost.server.signature.errors.SignatureError: ...callback...
    """


@contextmanager
def prefix_signature_errors(where: str) -> Generator[None]:
    """Prefix a `SignatureError` with its location."""
    try:
        yield
    except SignatureError as error:
        raise SignatureError(f"{where}: {error.message}", hint=error.hint) from error


def parse_issues(error: Exception, path: str = "") -> list[ValidationIssue]:
    """Return the issues of an error of msgspec, or of one of our hooks; `path` is that of the value."""
    text, at, where = str(error).rpartition(" - at `")
    if not at:
        text, where = where, "$`"
    is_key = where.startswith("key` in `")
    path = f"{path}{where.removeprefix('key` in `')[1:-1]}".lstrip(".")
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return [ValidationIssue(join_path(path, issue.path), issue.message) for issue in cause.issues]
    types = {native: TYPE_NAMES[kind] for native, kind in _JSON_TYPES_BY_NATIVE.items()} | TYPE_NAMES
    text = text[:1].lower() + re.sub(_QUOTED_NAME, lambda name: types.get(name[1], name[0]), text[1:])
    return [ValidationIssue(path, f"a key: {text}" if is_key else text)]
