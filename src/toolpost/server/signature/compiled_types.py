"""A compiled type: the type that msgspec reads, and the schema of exactly that.

Where msgspec cannot read a type, or would read it otherwise than its author means, a proxy type takes its
place: a class whose values a function of ours makes. Owns the hooks that msgspec calls for them.
"""

import datetime as dt
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from toolpost.json_schema import MAX_ISSUES, Schema, ValidationIssue, explain_mismatch
from toolpost.server.signature.errors import ValidationError, parse_issues
from toolpost.server.signature.pydantic_types import is_pydantic_type, to_jsonable, validate_with_pydantic
from toolpost.server.signature.schema_parts import add_keywords, can_accept
from toolpost.types.base import JSON
from toolpost.types.base import enc_hook as write_open

DECODE_ERRORS: Final = (msgspec.DecodeError, TypeError, RecursionError)
"""The errors of msgspec's readers; a TypeError comes from a set whose items cannot be hashed."""

MAX_EXACT_FLOAT: Final = 2.0**53
"""The largest float up to which each integer has a float of its own."""

ValueReader: TypeAlias = Callable[[JSON], Any]
"""Makes a value out of decoded JSON; raises ValueError or TypeError if it cannot."""

SCALAR_SCHEMAS: Final[dict[Any, Schema]] = {
    Any: {},
    UnsetType: {"not": {}},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    bytearray: {"type": "string", "contentEncoding": "base64"},
    dt.datetime: {"type": "string", "format": "date-time"},
    dt.date: {"type": "string", "format": "date"},
    dt.time: {"type": "string", "format": "time"},
    dt.timedelta: {"type": "string", "format": "duration"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": ["string", "number"], "format": "decimal"},
}
"""The schemas of the builtin types."""


class CompiledType(Struct, frozen=True):
    """One type of a signature, ready to be read."""

    type: Any
    """The type that msgspec reads: the annotated one, or one with proxy types in it."""
    schema: Schema
    native: bool = True
    """Whether msgspec reads the annotation as it was written in the same way."""
    base: Any = None
    """The class of the values, where limits may be put on them."""
    keys: frozenset[str] | None = None
    """The keys that an object of this type may have; None if it is not a class with fields."""
    uses_pydantic: bool = False
    """Whether pydantic reads it, or a part of it."""
    has_msgspec_limits: bool = False
    """Whether there are limits of `msgspec.Meta` in it, which pydantic would ignore."""


class ProxyType(type):
    """The class of all proxy types."""

    reader: ValueReader

    def __instancecheck__(cls, instance: object) -> bool:
        """Accept everything: msgspec checks what the hook returned, and the reader is right."""
        return True


def make_proxy_type(name: str, read: ValueReader | None = None) -> ProxyType:
    """Return a type that `read` reads; the reader may be set later, so that a type can contain itself."""
    return ProxyType(name, (), {} if read is None else {"reader": staticmethod(read)})


# --------------------------------------------------------------------- hooks of msgspec


def dec_hook(kind: Any, value: JSON) -> Any:
    """Read a value of a type that msgspec does not know: a proxy, one of pydantic's models, or a path."""
    if type(kind) is ProxyType:
        return kind.reader(value)
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        return validate_with_pydantic(validate, msgspec.json.encode(value))
    if isinstance(value, str):
        return kind(value)
    raise ValidationError([ValidationIssue("", "expected a string")])


def enc_hook(value: Any) -> JSON:
    """Write a value of a type that msgspec does not know."""
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    return to_jsonable(value) if is_pydantic_type(cast("Any", type(value))) else write_open(value)


ENCODER: Final = msgspec.json.Encoder(enc_hook=enc_hook)


def convert_value(value: JSON, kind: Any) -> Any:
    """Return the value of a type for decoded JSON; raise `ValidationError` if it does not fit."""
    try:
        return msgspec.convert(value, kind, dec_hook=dec_hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValidationError(parse_issues(error)) from error


def is_decodable(kind: Any) -> bool:
    """Return whether msgspec can read a type."""
    try:
        msgspec.json.Decoder(kind, dec_hook=dec_hook)
    except Exception:  # noqa: BLE001 - each kind of type has errors of its own
        return False
    return True


def document_schema(compiled: CompiledType, default: Any, description: str | None, defs: Schema) -> Schema:
    """Return the schema of a parameter or field: with its default, if JSON has it, and its description."""
    notes: dict[str, JSON] = {}
    if default is not UNSET and (default is not None or can_accept(compiled.schema, "null", defs)):
        with suppress(TypeError, ValueError, RecursionError):
            notes["default"] = msgspec.to_builtins(default, enc_hook=enc_hook, str_keys=True)
    if description:
        notes["description"] = description
    return add_keywords(compiled.schema, notes)


# --------------------------------------------------------------------- reading arguments


def decode_json_argument(raw: Raw, compiled: CompiledType, defs: Schema, path: str) -> Any:
    """Read an argument in JSON; if it does not fit, try what some callers send instead."""
    first: Exception | None = None
    for reading in _iter_interpretations(raw, takes_text=can_accept(compiled.schema, "string", defs)):
        try:
            return msgspec.json.decode(reading, type=compiled.type, dec_hook=dec_hook)
        except DECODE_ERRORS as error:
            first = first or error
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:  # a number that Python does not have
        raise ValidationError(parse_issues(error, path)) from first
    raise _explain(value, compiled, defs, path, cast("Exception", first))


def decode_string_argument(value: JSON, compiled: CompiledType, defs: Schema, path: str) -> Any:
    """Read an argument in a string, or in the list of strings that a URI template may find.

    A string stays one where the type takes it. Elsewhere "3" is a number, "true" a boolean, and lists and
    objects are JSON.
    """
    is_text = isinstance(value, str)
    strict = is_text and can_accept(compiled.schema, "string", defs)
    try:
        return msgspec.convert(value, compiled.type, strict=strict, dec_hook=dec_hook)
    except DECODE_ERRORS as error:
        if is_text and not strict:
            with suppress(*DECODE_ERRORS):
                return msgspec.json.decode(value, type=compiled.type, dec_hook=dec_hook)
        raise _explain(value, compiled, defs, path, error) from error


def _explain(
    value: JSON, compiled: CompiledType, defs: Schema, path: str, error: Exception
) -> ValidationError:
    issues = [*islice(explain_mismatch(value, compiled.schema, defs, path), MAX_ISSUES)]
    return ValidationError(issues or parse_issues(error, path))


def _iter_interpretations(raw: Raw, *, takes_text: bool) -> Iterator[Raw | bytes]:
    """Yield the ways to read an argument: as it was sent, as JSON in a string, and with 2 in place of 2.0."""
    yield raw
    with suppress(msgspec.DecodeError, RecursionError):
        value = msgspec.json.decode(raw)
        if isinstance(value, str) and not takes_text:
            text = value.encode()
            yield text
            value = msgspec.json.decode(text)
        yield msgspec.json.encode(_normalize_integers(value))


def _normalize_integers(value: JSON) -> JSON:
    """Return the value with each float that has no fraction as an integer, which is the same in JSON."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_EXACT_FLOAT else value
    if isinstance(value, list):
        return [_normalize_integers(item) for item in cast("list[JSON]", value)]
    if isinstance(value, dict):
        return {name: _normalize_integers(item) for name, item in cast("dict[str, JSON]", value).items()}
    return value
