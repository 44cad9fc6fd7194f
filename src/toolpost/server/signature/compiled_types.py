"""A type as it is read: what msgspec is told, the schema of that, and what stands in where msgspec cannot.

A stand-in is a class of our making that takes the place of a type in the tree that msgspec reads, and whose
values we make. Owns both hooks. Knows no annotations: `TypeCompiler` makes shapes out of them.

PART records: Classes with fields, described alike: dataclasses, attrs, TypedDicts, named tuples and structs.

Knows what a class asks for, and where msgspec would make its values otherwise than the class itself. How
values are read is not known here.
"""

import datetime as dt
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from toolpost.server.signature.json_schema import Schema, add_keywords, can_accept
from toolpost.server.signature.names import AnnotationScope
from toolpost.server.signature.pydantic_types import is_pydantic_type, to_jsonable, validate_with_pydantic
from toolpost.server.signature.validation import ValidationError, ValidationIssue, parse_issues
from toolpost.types.base import JSON
from toolpost.types.base import enc_hook as write_open

if TYPE_CHECKING:
    pass


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


# --------------------------------------------------------------------- records

TypeHints: TypeAlias = Mapping[str, Any]
"""The annotations of a class by name, evaluated."""

_QUALIFIERS: Final = frozenset({"Required", "NotRequired", "ReadOnly"})


class RecordField(Struct, frozen=True):
    """One field: its name in Python and on the wire, its type, and whether it must be there."""

    name: str
    wire_name: str
    annotation: Any
    required: bool = True
    default: Any = UNSET


class RecordType(Struct, frozen=True, kw_only=True):
    """What a class with fields asks for."""

    fields: list[RecordField]
    array: bool = False
    """Whether it is an array on the wire, not an object."""
    closed: bool = False
    """Whether unknown keys, or further items, are refused."""
    tag: tuple[str, str | int] | None = None
    ordinary: bool = True
    """Whether msgspec makes values of this class as the class itself would."""
    build: Callable[..., Any]
    """Makes a value from fields by keyword."""


def describe_record(it: Any, scope: AnnotationScope, *, output: bool) -> RecordType | None:
    """What a class asks for; None if it is none with fields.

    Args:
        it: the class, or a generic one with its arguments.
        scope: where names are looked up.
        output: whether values are written, not read.

    Raises:
        SignatureError: an annotation of it cannot be evaluated.
    """
    cls = cast("type[Any]", get_origin(it) or it)
    reader = next((reader for mark, reader in _DESCRIBERS.items() if hasattr(cls, mark)), None)
    if reader is None:
        return None
    hints, whole = scope.resolve_class_hints(it)
    record = reader(cls, hints, output)
    checks = output and (hasattr(cls, "__post_init__") or hasattr(cls, "__attrs_post_init__"))
    return replace(record, ordinary=record.ordinary and whole and not checks)


def build_record_schema(record: RecordType, parts: Sequence[Schema], about: str) -> dict[str, JSON]:
    """The schema of a class with fields, given those of the fields and what its docstring says."""
    schema: dict[str, JSON] = {"description": about} if about else {}
    names = [field.wire_name for field in record.fields]
    needed = [field.wire_name for field in record.fields if field.required]
    if record.tag is not None:
        names, parts = [record.tag[0], *names], [{"const": record.tag[1]}, *parts]
        needed = [record.tag[0], *needed]
    if record.array:
        least = max((index + 1 for index, name in enumerate(names) if name in needed), default=0)
        schema |= {"type": "array", "minItems": least} | ({"prefixItems": parts} if parts else {})
        return schema | ({"maxItems": len(parts)} if record.closed else {})
    schema |= {"type": "object", "properties": dict(zip(names, parts, strict=True))}
    schema |= {"required": needed} if needed else {}
    return schema | ({"additionalProperties": False} if record.closed else {})


def _describe_struct(cls: Any, hints: TypeHints, _output: bool) -> RecordType:
    config = cls.__struct_config__
    nothing = msgspec.NODEFAULT
    defaults = cls.__struct_defaults__
    defaults = (nothing,) * (len(cls.__struct_fields__) - len(defaults)) + defaults
    fields = [
        RecordField(
            name, wire, hints[name], default is nothing, UNSET if hasattr(default, "factory") else default
        )
        for name, wire, default in zip(
            cls.__struct_fields__, cls.__struct_encode_fields__, defaults, strict=True
        )
    ]
    return RecordType(
        fields=fields,
        array=config.array_like,
        closed=config.forbid_unknown_fields,
        tag=None if config.tag is None else (config.tag_field, config.tag),
        build=cls,
    )


def _describe_dataclass(cls: Any, hints: TypeHints, output: bool) -> RecordType:
    ordinary = True
    missing = sys.modules["dataclasses"].MISSING
    init_only = sys.modules["dataclasses"].InitVar
    fields: list[RecordField] = []
    for field in cls.__dataclass_fields__.values():
        kind = hints[field.name]
        if kind is ClassVar or get_origin(kind) is ClassVar:
            continue
        at_start = kind is init_only or isinstance(kind, init_only)
        # Msgspec leaves a default to the class: it would be missing from `vars()`, and where it is written.
        unset = cls.__dictoffset__ and field.default is not missing and not output
        ordinary = ordinary and field.init and not at_start and not unset
        if at_start if output else not field.init:
            continue
        kind = getattr(kind, "type", Any) if at_start else kind
        required = field.default is missing and field.default_factory is missing
        default = UNSET if field.default is missing else field.default
        fields.append(RecordField(field.name, field.name, kind, required, default))
    return RecordType(fields=fields, ordinary=ordinary, build=cls)


def _describe_attrs(cls: Any, hints: TypeHints, output: bool) -> RecordType:
    ordinary = True
    nothing = sys.modules["attr"].NOTHING
    fields: list[RecordField] = []
    for field in cls.__attrs_attrs__:
        hidden = field.name.startswith("_") if output else not field.init  # as msgspec writes them
        if not hidden:
            made = hasattr(field.default, "factory")
            default = UNSET if field.default is nothing or made else field.default
            wire = field.name if output else field.alias
            kind = hints.get(field.name, field.type or Any)
            fields.append(RecordField(wire, wire, kind, field.default is nothing, default))
        simple = field.init and field.converter is None and field.alias == field.name
        checked = field.validator is not None and output
        made_of_self = getattr(field.default, "takes_self", False)
        ordinary = ordinary and simple and not checked and not made_of_self
    return RecordType(fields=fields, ordinary=ordinary, build=cls)


def _describe_typed_dict(cls: Any, hints: TypeHints, _output: bool) -> RecordType:
    fields: list[RecordField] = []
    for name, annotation in hints.items():
        # A string annotation hides `NotRequired` from the class itself, so the evaluated one decides.
        required, kind = name in cls.__required_keys__, annotation
        while (qualifier := str(get_origin(kind)).rpartition(".")[2]) in _QUALIFIERS:
            required = required if qualifier == "ReadOnly" else qualifier == "Required"
            (kind,) = get_args(kind)
        fields.append(RecordField(name, name, kind, required))
    return RecordType(fields=fields, build=dict)


def _describe_named_tuple(cls: Any, hints: TypeHints, _output: bool) -> RecordType:
    defaults = cls._field_defaults
    fields = [
        RecordField(name, name, hints.get(name, Any), name not in defaults, defaults.get(name, UNSET))
        for name in cls._fields
    ]
    return RecordType(fields=fields, array=True, closed=True, build=cls)


_DESCRIBERS: Final[dict[str, Callable[[Any, TypeHints, bool], RecordType]]] = {
    "__struct_fields__": _describe_struct,
    "__dataclass_fields__": _describe_dataclass,
    "__attrs_attrs__": _describe_attrs,
    "__required_keys__": _describe_typed_dict,
    "_field_defaults": _describe_named_tuple,
}
"""What a class with fields is known by."""
