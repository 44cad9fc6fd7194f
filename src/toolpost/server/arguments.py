"""One argument of a call, read from JSON or from a string; and if it does not fit, why.

What a type accepts is read first. Only after that has failed is it read as what some callers send instead:
JSON in a string, or 2.0 for 2. Knows neither functions nor which arguments there are.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from toolpost.server.problems import MAX_PROBLEMS, Misfit, explain, problems_of
from toolpost.server.schema import Schema, accepts
from toolpost.server.shapes import Shape, dec_hook
from toolpost.types.base import JSON

__all__ = ["UNREAD", "from_json", "from_text"]

UNREAD: Final = (msgspec.DecodeError, TypeError, RecursionError)
"""What reading raises; a TypeError comes from a set whose items cannot be hashed."""
EXACT: Final = 2.0**53
"""Up to here a float says exactly which integer it is."""


def from_json(raw: Raw, shape: Shape, defs: Schema, path: str) -> Any:
    """The value of a type in a piece of JSON.

    Args:
        raw: the JSON.
        shape: the type.
        defs: what the references in its schema refer to.
        path: where it stands, for the text of an error.

    Raises:
        Misfit: it does not fit.
    """
    fault: Exception | None = None
    for reading in _readings(raw, takes_text=accepts(shape.schema, "string", defs)):
        try:
            return msgspec.json.decode(reading, type=shape.type, dec_hook=dec_hook)
        except UNREAD as error:
            fault = fault or error
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:  # a number that no Python has
        raise Misfit(problems_of(error, path)) from fault
    raise _misfit(value, shape, defs, path, cast("Exception", fault))


def from_text(value: JSON, shape: Shape, defs: Schema, path: str) -> Any:
    """The value of a type in a string, or in the list of strings that a URI template may find.

    A string stays one where the type takes it. Elsewhere "3" is a number, "true" a boolean, and lists and
    objects are JSON.

    Raises:
        Misfit: it does not fit.
    """
    text = isinstance(value, str)
    strict = text and accepts(shape.schema, "string", defs)
    try:
        return msgspec.convert(value, shape.type, strict=strict, dec_hook=dec_hook)
    except UNREAD as error:
        if text and not strict:
            with suppress(*UNREAD):
                return msgspec.json.decode(value, type=shape.type, dec_hook=dec_hook)
        raise _misfit(value, shape, defs, path, error) from error


def _misfit(value: JSON, shape: Shape, defs: Schema, path: str, fault: Exception) -> Misfit:
    told = islice(explain(value, shape.schema, defs, path), MAX_PROBLEMS)
    return Misfit([*told] or problems_of(fault, path))


def _readings(raw: Raw, *, takes_text: bool) -> Iterator[Raw | bytes]:
    """The ways to read an argument: as it was sent, as the JSON in a string, and with 2 where it says 2.0."""
    yield raw
    with suppress(msgspec.DecodeError, RecursionError):
        value = msgspec.json.decode(raw)
        if isinstance(value, str) and not takes_text:
            text = value.encode()
            yield text
            value = msgspec.json.decode(text)
        yield msgspec.json.encode(_whole(value))


def _whole(value: JSON) -> JSON:
    """The value with each whole float as an integer, which to JSON is the same."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= EXACT else value
    if isinstance(value, list):
        return [_whole(item) for item in cast("list[JSON]", value)]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in cast("dict[str, JSON]", value).items()}
    return value
