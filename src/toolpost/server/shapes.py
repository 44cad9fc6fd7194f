"""A type as it is read: what msgspec is told, the schema of that, and what stands in where msgspec cannot.

A stand-in is a class of our making that takes the place of a type in the tree that msgspec reads, and whose
values we make. Owns both hooks. Knows no annotations: `Survey` makes shapes out of them.
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

from toolpost.server.guest import is_guest, validated, written
from toolpost.server.problems import Misfit, Problem, problems_of
from toolpost.server.schema import Schema, accepts, noted
from toolpost.types.base import JSON
from toolpost.types.base import enc_hook as write_open

if TYPE_CHECKING:
    from toolpost.server.records import Record

__all__ = [
    "ENCODER",
    "SCALARS",
    "Read",
    "Shape",
    "StandIn",
    "dec_hook",
    "documented",
    "enc_hook",
    "first_fit",
    "fit",
    "one_of",
    "possible",
    "record_reader",
    "stand_in",
]

Read: TypeAlias = Callable[[JSON], Any]
"""Makes a value out of decoded JSON; raises ValueError or TypeError if it cannot."""


SCALARS: Final[dict[Any, Schema]] = {
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


class Shape(Struct, frozen=True):
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


class StandIn(type):
    """The class of all stand-ins."""

    reader: Read

    def __instancecheck__(cls, instance: object) -> bool:
        """Yes: msgspec asks whether the hook made what was wanted, and it did."""
        return True


def stand_in(name: str, read: Read | None = None) -> StandIn:
    """A type for which `read` is called; it may be set later, so that a type can contain itself."""
    return StandIn(name, (), {} if read is None else {"reader": staticmethod(read)})


# --------------------------------------------------------------------- hooks


def dec_hook(kind: Any, value: JSON) -> Any:
    """What msgspec calls for a type that it does not know."""
    if type(kind) is StandIn:
        return kind.reader(value)
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        return validated(validate, value)
    if isinstance(value, str):
        return kind(value)  # a path: `Survey` lets no other class pass
    raise Misfit([Problem("", "expected a string")])


def enc_hook(value: Any) -> JSON:
    """What msgspec calls for a value that it does not know."""
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    return written(value) if is_guest(cast("Any", type(value))) else write_open(value)


ENCODER: Final = msgspec.json.Encoder(enc_hook=enc_hook)


def fit(value: JSON, kind: Any) -> Any:
    """The value of a type for a piece of decoded JSON.

    Raises:
        Misfit: it is not of this type.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=dec_hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise Misfit(problems_of(error)) from error


def documented(shape: Shape, default: Any, description: str | None, defs: Schema) -> Schema:
    """The schema of a type where it stands, with its default, if JSON can say it, and its description."""
    notes: dict[str, JSON] = {}
    if default is not UNSET and (default is not None or accepts(shape.schema, "null", defs)):
        with suppress(TypeError, ValueError, RecursionError):
            notes["default"] = msgspec.to_builtins(default, enc_hook=enc_hook, str_keys=True)
    if description:
        notes["description"] = description
    return noted(shape.schema, notes)


def possible(kind: Any) -> bool:
    """Whether msgspec can read a type."""
    try:
        msgspec.json.Decoder(kind, dec_hook=dec_hook)
    except Exception:  # noqa: BLE001 - each kind of type has errors of its own
        return False
    return True


# --------------------------------------------------------------------- what stand-ins read


def record_reader(record: "Record", kinds: Sequence[Any], *, build: bool) -> Read:
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
        rename={slot: field.wire for slot, field in slots.items()},
        array_like=record.array,
        forbid_unknown_fields=record.closed,
        **tag,
    )

    def read(value: JSON) -> Any:
        made = fit(value, struct)
        if not build:
            return made
        given = zip(record.fields, msgspec.structs.astuple(made), strict=True)
        return record.build(**{field.name: item for field, item in given if item is not UNSET})

    return read


def first_fit(shapes: Sequence[Shape]) -> Read:
    """Reads what fits one of several types.

    The rule: of the members that know all keys of an object, the first that fits, in the order in which they
    were written; then the first that fits of the others, which leave a key aside.
    """

    def leaves_a_key(shape: Shape, value: JSON) -> bool:
        return isinstance(value, dict) and shape.keys is not None and not value.keys() <= shape.keys

    def read(value: JSON) -> Any:
        faults: list[str] = []
        for shape in sorted(shapes, key=lambda shape: leaves_a_key(shape, value)):
            try:
                return fit(value, shape.type)
            except (ValueError, TypeError) as error:
                faults.append(str(error))
        raise Misfit([Problem("", f"fits none of its types: {' / '.join(faults)}")])

    return read


def one_of(choices: Sequence[JSON], members: Sequence[Any]) -> Read:
    """Reads one of several choices, each of which stands for a member."""
    # `True` and `1` are equal to Python, not to JSON.
    known = {(isinstance(choice, bool), choice): one for choice, one in zip(choices, members, strict=True)}

    def read(value: JSON) -> Any:
        key = (isinstance(value, bool), value)
        if isinstance(value, list | dict) or key not in known:
            raise Misfit([Problem("", "is not one of the choices")])
        return known[key]

    return read
