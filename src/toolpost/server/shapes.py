"""A type as it is read: what msgspec is told, the schema of that, and what stands in where msgspec cannot.

A stand-in is a class of our making that takes the place of a type in the tree that msgspec reads, and whose
values we make. Owns both hooks. Knows no annotations: `TypeCompiler` makes shapes out of them.
"""

import datetime as dt
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from toolpost.server.guest import is_pydantic_type, to_jsonable, validate_with_pydantic
from toolpost.server.problems import ValidationError, ValidationIssue, parse_issues
from toolpost.server.schema import Schema, add_keywords, can_accept
from toolpost.types.base import JSON
from toolpost.types.base import enc_hook as write_open

if TYPE_CHECKING:
    from toolpost.server.records import RecordType

__all__ = [
    "ENCODER",
    "SCALAR_SCHEMAS",
    "CompiledType",
    "ProxyType",
    "ValueReader",
    "convert_value",
    "dec_hook",
    "document_schema",
    "enc_hook",
    "is_decodable",
    "make_choice_reader",
    "make_proxy_type",
    "make_record_reader",
    "make_union_reader",
]

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
"""The builtin types, and what JSON they are."""


class CompiledType(Struct, frozen=True):
    """One type, surveyed."""

    type: Any
    """What msgspec is told to read."""
    schema: Schema
    native: bool = True
    """Whether msgspec would read the annotation alike as it was written, without us."""
    base: Any = None
    """The class of the values, where limits may be put on them."""
    keys: frozenset[str] | None = None
    """The keys that an object of this type may have; None if it is no class with fields."""


class ProxyType(type):
    """The class of all stand-ins."""

    reader: ValueReader

    def __instancecheck__(cls, instance: object) -> bool:
        """Yes: msgspec asks whether the hook made what was wanted, and it did."""
        return True


def make_proxy_type(name: str, read: ValueReader | None = None) -> ProxyType:
    """A type for which `read` is called; it may be set later, so that a type can contain itself."""
    return ProxyType(name, (), {} if read is None else {"reader": staticmethod(read)})


# --------------------------------------------------------------------- hooks


def dec_hook(kind: Any, value: JSON) -> Any:
    """What msgspec calls for a type that it does not know."""
    if type(kind) is ProxyType:
        return kind.reader(value)
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        return validate_with_pydantic(validate, value)
    if isinstance(value, str):
        return kind(value)  # a path: `TypeCompiler` lets no other class pass
    raise ValidationError([ValidationIssue("", "expected a string")])


def enc_hook(value: Any) -> JSON:
    """What msgspec calls for a value that it does not know."""
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    return to_jsonable(value) if is_pydantic_type(cast("Any", type(value))) else write_open(value)


ENCODER: Final = msgspec.json.Encoder(enc_hook=enc_hook)


def convert_value(value: JSON, kind: Any) -> Any:
    """The value of a type for a piece of decoded JSON.

    Raises:
        ValidationError: it is not of this type.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=dec_hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValidationError(parse_issues(error)) from error


def document_schema(shape: CompiledType, default: Any, description: str | None, defs: Schema) -> Schema:
    """The schema of a type where it stands, with its default, if JSON can say it, and its description."""
    notes: dict[str, JSON] = {}
    if default is not UNSET and (default is not None or can_accept(shape.schema, "null", defs)):
        with suppress(TypeError, ValueError, RecursionError):
            notes["default"] = msgspec.to_builtins(default, enc_hook=enc_hook, str_keys=True)
    if description:
        notes["description"] = description
    return add_keywords(shape.schema, notes)


def is_decodable(kind: Any) -> bool:
    """Whether msgspec can read a type."""
    try:
        msgspec.json.Decoder(kind, dec_hook=dec_hook)
    except Exception:  # noqa: BLE001 - each kind of type has errors of its own
        return False
    return True


# --------------------------------------------------------------------- what stand-ins read


def make_record_reader(record: "RecordType", kinds: Sequence[Any], *, build: bool) -> ValueReader:
    """Fits the fields of a class and, if asked to, builds a value of it."""
    slots = {f"slot_{index}": field for index, field in enumerate(record.fields)}
    tag: dict[str, Any] = {} if record.tag is None else {"tag_field": record.tag[0], "tag": record.tag[1]}
    struct = msgspec.defstruct(
        "Record",
        [
            (slot, kind) if field.required else (slot, kind, UNSET)
            for (slot, field), kind in zip(slots.items(), kinds, strict=True)
        ],
        kw_only=True,
        rename={slot: field.wire_name for slot, field in slots.items()},
        array_like=record.array,
        forbid_unknown_fields=record.closed,
        **tag,
    )

    def read(value: JSON) -> Any:
        made = convert_value(value, struct)
        if not build:
            return made
        given = zip(record.fields, msgspec.structs.astuple(made), strict=True)
        return record.build(**{field.name: item for field, item in given if item is not UNSET})

    return read


def make_union_reader(shapes: Sequence[CompiledType]) -> ValueReader:
    """Reads what fits one of several types.

    The rule: of the members that know all keys of an object, the first that fits, in the order in which they
    were written; then the first that fits of the others, which leave a key aside.
    """

    def has_unknown_key(shape: CompiledType, value: JSON) -> bool:
        return isinstance(value, dict) and shape.keys is not None and not value.keys() <= shape.keys

    def read(value: JSON) -> Any:
        faults: list[str] = []
        for shape in sorted(shapes, key=lambda shape: has_unknown_key(shape, value)):
            try:
                return convert_value(value, shape.type)
            except (ValueError, TypeError) as error:
                faults.append(str(error))
        raise ValidationError([ValidationIssue("", f"fits none of its types: {' / '.join(faults)}")])

    return read


def make_choice_reader(choices: Sequence[JSON], members: Sequence[Any]) -> ValueReader:
    """Reads one of several choices, each of which stands for a member."""
    # `True` and `1` are equal to Python, not to JSON.
    known = {(isinstance(choice, bool), choice): one for choice, one in zip(choices, members, strict=True)}

    def read(value: JSON) -> Any:
        key = (isinstance(value, bool), value)
        if isinstance(value, list | dict) or key not in known:
            raise ValidationError([ValidationIssue("", "is not one of the choices")])
        return known[key]

    return read
