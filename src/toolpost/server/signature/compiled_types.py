"""A compiled type: the type that msgspec reads, and the schema of exactly that.

Where msgspec cannot read a type, or would read it otherwise than its author means, a proxy type takes its
place: a class whose values a function of ours makes. Owns the hooks that msgspec calls for them.
"""

import datetime as dt
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from toolpost.json_schema import Schema, ValidationIssue
from toolpost.server.signature.pydantic_types import is_pydantic_type, to_jsonable, validate_with_pydantic
from toolpost.server.signature.schema_builder import add_keywords, can_accept
from toolpost.server.signature.validation import ValidationError, parse_issues
from toolpost.types.base import JSON
from toolpost.types.base import enc_hook as write_open

ValueReader: TypeAlias = Callable[[JSON], Any]
"""Makes a value out of decoded JSON; raises ValueError or TypeError if it cannot."""

SCALAR_SCHEMAS: Final[dict[Any, Schema]] = {
    Any: {},
    object: {},
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
        return validate_with_pydantic(validate, value)
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
    """Return the value of a type for decoded JSON.

    Raises:
        ValidationError: it is not of this type.
    """
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


# --------------------------------------------------------------------- readers of proxy types


def make_union_reader(members: Sequence[CompiledType]) -> ValueReader:
    """Return a reader that tries the members of a union in the order in which they were written.

    Members that know all keys of an object come before those that would leave a key aside.
    """

    def has_unknown_key(member: CompiledType, value: JSON) -> bool:
        return isinstance(value, dict) and member.keys is not None and not value.keys() <= member.keys

    def read(value: JSON) -> Any:
        reasons: list[str] = []
        for member in sorted(members, key=lambda member: has_unknown_key(member, value)):
            try:
                return convert_value(value, member.type)
            except (ValueError, TypeError) as error:
                reasons.append(str(error))
        raise ValidationError([ValidationIssue("", f"fits none of its types: {' / '.join(reasons)}")])

    return read


def make_choice_reader(choices: Sequence[JSON], members: Sequence[Any]) -> ValueReader:
    """Return a reader of choices, each of which stands for a member."""
    # `True` and `1` are equal in Python, but not in JSON.
    known = {(isinstance(choice, bool), choice): one for choice, one in zip(choices, members, strict=True)}

    def read(value: JSON) -> Any:
        key = (isinstance(value, bool), value)
        if isinstance(value, list | dict) or key not in known:
            raise ValidationError([ValidationIssue("", "is not one of the choices")])
        return known[key]

    return read
