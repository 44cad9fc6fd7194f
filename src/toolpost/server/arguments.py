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

from toolpost.server.problems import MAX_ISSUES, ValidationError, explain_mismatch, parse_issues
from toolpost.server.schema import Schema, can_accept
from toolpost.server.shapes import CompiledType, dec_hook
from toolpost.types.base import JSON

__all__ = ["DECODE_ERRORS", "decode_json_argument", "decode_string_argument"]

DECODE_ERRORS: Final = (msgspec.DecodeError, TypeError, RecursionError)
"""What reading raises; a TypeError comes from a set whose items cannot be hashed."""
MAX_EXACT_FLOAT: Final = 2.0**53
"""Up to here a float says exactly which integer it is."""


def decode_json_argument(raw: Raw, shape: CompiledType, defs: Schema, path: str) -> Any:
    """The value of a type in a piece of JSON.

    Args:
        raw: the JSON.
        shape: the type.
        defs: what the references in its schema refer to.
        path: where it stands, for the text of an error.

    Raises:
        ValidationError: it does not fit.
    """
    fault: Exception | None = None
    for reading in _iter_interpretations(raw, takes_text=can_accept(shape.schema, "string", defs)):
        try:
            return msgspec.json.decode(reading, type=shape.type, dec_hook=dec_hook)
        except DECODE_ERRORS as error:
            fault = fault or error
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:  # a number that no Python has
        raise ValidationError(parse_issues(error, path)) from fault
    raise _make_validation_error(value, shape, defs, path, cast("Exception", fault))


def decode_string_argument(value: JSON, shape: CompiledType, defs: Schema, path: str) -> Any:
    """The value of a type in a string, or in the list of strings that a URI template may find.

    A string stays one where the type takes it. Elsewhere "3" is a number, "true" a boolean, and lists and
    objects are JSON.

    Raises:
        ValidationError: it does not fit.
    """
    text = isinstance(value, str)
    strict = text and can_accept(shape.schema, "string", defs)
    try:
        return msgspec.convert(value, shape.type, strict=strict, dec_hook=dec_hook)
    except DECODE_ERRORS as error:
        if text and not strict:
            with suppress(*DECODE_ERRORS):
                return msgspec.json.decode(value, type=shape.type, dec_hook=dec_hook)
        raise _make_validation_error(value, shape, defs, path, error) from error


def _make_validation_error(
    value: JSON, shape: CompiledType, defs: Schema, path: str, fault: Exception
) -> ValidationError:
    told = islice(explain_mismatch(value, shape.schema, defs, path), MAX_ISSUES)
    return ValidationError([*told] or parse_issues(fault, path))


def _iter_interpretations(raw: Raw, *, takes_text: bool) -> Iterator[Raw | bytes]:
    """The ways to read an argument: as it was sent, as the JSON in a string, and with 2 where it says 2.0."""
    yield raw
    with suppress(msgspec.DecodeError, RecursionError):
        value = msgspec.json.decode(raw)
        if isinstance(value, str) and not takes_text:
            text = value.encode()
            yield text
            value = msgspec.json.decode(text)
        yield msgspec.json.encode(_normalize_integers(value))


def _normalize_integers(value: JSON) -> JSON:
    """The value with each whole float as an integer, which to JSON is the same."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_EXACT_FLOAT else value
    if isinstance(value, list):
        return [_normalize_integers(item) for item in cast("list[JSON]", value)]
    if isinstance(value, dict):
        return {name: _normalize_integers(item) for name, item in cast("dict[str, JSON]", value).items()}
    return value
