"""Classes with fields: dataclasses, attrs, TypedDicts, named tuples and msgspec's structs, described alike.

Finds the fields, and the classes whose values msgspec would make differently than the class itself does; it
makes such values. `TypeCompiler` compiles the types of the fields.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from toolpost.json_schema import Schema
from toolpost.server.signature.compiled_types import ValueReader, convert_value
from toolpost.server.signature.inspection import AnnotationScope
from toolpost.types.base import JSON

TypeHints: TypeAlias = Mapping[str, Any]
"""The evaluated annotations of a class, by name."""


class RecordField(Struct, frozen=True):
    """One field: its name in Python and on the wire, its type, and whether it is required."""

    name: str
    wire_name: str
    annotation: Any
    required: bool = True
    default: Any = UNSET


class RecordType(Struct, frozen=True, kw_only=True):
    """The description of a class with fields."""

    fields: list[RecordField]
    array: bool = False  # on the wire, instead of an object
    closed: bool = False  # whether unknown keys, or further items, are refused
    tag: tuple[str, str | int] | None = None
    ordinary: bool = True  # whether msgspec makes values as the class itself does


def describe_record(it: Any, scope: AnnotationScope, *, output: bool) -> RecordType | None:
    """Return the description of a class; None if it has no fields."""
    cls = cast("type[Any]", get_origin(it) or it)
    describe = next((describe for mark, describe in _DESCRIBERS.items() if hasattr(cls, mark)), None)
    if describe is None:
        return None
    hints, complete = scope.resolve_class_hints(it)
    record = describe(cls, hints, output)
    checks = output and (hasattr(cls, "__post_init__") or hasattr(cls, "__attrs_post_init__"))
    return replace(record, ordinary=record.ordinary and complete and not checks)


def build_record_schema(record: RecordType, parts: Sequence[Schema], description: str) -> dict[str, JSON]:
    """Return the schema of a class with fields, given the schemas of the fields."""
    schema: dict[str, JSON] = {"description": description} if description else {}
    names = [field.wire_name for field in record.fields]
    required = [field.wire_name for field in record.fields if field.required]
    if record.tag is not None:
        names, parts = [record.tag[0], *names], [{"const": record.tag[1]}, *parts]
        required = [record.tag[0], *required]
    if record.array:
        least = max((index + 1 for index, name in enumerate(names) if name in required), default=0)
        schema |= {"type": "array", "minItems": least} | ({"prefixItems": parts} if parts else {})
        return schema | ({"maxItems": len(parts)} if record.closed else {})
    schema |= {"type": "object", "properties": dict(zip(names, parts, strict=True))}
    schema |= {"required": required} if required else {}
    return schema | ({"additionalProperties": False} if record.closed else {})


def make_record_reader(record: RecordType, kinds: Sequence[Any], build: type[Any] | None) -> ValueReader:
    """Return a reader of fields of the types `kinds`; it makes a value of the class `build`."""
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
        if build is None:
            return made
        given = zip(record.fields, msgspec.structs.astuple(made), strict=True)
        return build(**{field.name: item for field, item in given if item is not UNSET})

    return read


def _describe_struct(cls: Any, hints: TypeHints, _output: bool) -> RecordType:
    config, defaults = cls.__struct_config__, cls.__struct_defaults__
    missing = msgspec.NODEFAULT
    defaults = (missing,) * (len(cls.__struct_fields__) - len(defaults)) + defaults
    rows = zip(cls.__struct_fields__, cls.__struct_encode_fields__, defaults, strict=True)
    return RecordType(
        fields=[
            RecordField(
                name, wire, hints[name], default is missing, UNSET if hasattr(default, "factory") else default
            )
            for name, wire, default in rows
        ],
        array=config.array_like,
        closed=config.forbid_unknown_fields,
        tag=None if config.tag is None else (config.tag_field, config.tag),
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
        is_init_only = kind is init_only or isinstance(kind, init_only)
        # Msgspec would not set a default: it would be missing from `vars()`, and from the output.
        unset = cls.__dictoffset__ and field.default is not missing and not output
        ordinary = ordinary and field.init and not is_init_only and not unset
        if is_init_only if output else not field.init:
            continue
        kind = getattr(kind, "type", Any) if is_init_only else kind
        required = field.default is missing and field.default_factory is missing
        default = UNSET if field.default is missing else field.default
        fields.append(RecordField(field.name, field.name, kind, required, default))
    return RecordType(fields=fields, ordinary=ordinary)


def _describe_attrs(cls: Any, hints: TypeHints, output: bool) -> RecordType:
    ordinary = True
    missing = sys.modules["attr"].NOTHING
    fields: list[RecordField] = []
    for field in cls.__attrs_attrs__:
        hidden = field.name.startswith("_") if output else not field.init  # as msgspec writes them
        if not hidden:
            has_factory = hasattr(field.default, "factory")
            default = UNSET if field.default is missing or has_factory else field.default
            wire = field.name if output else field.alias
            kind = hints.get(field.name, field.type or Any)
            fields.append(RecordField(wire, wire, kind, field.default is missing, default))
        simple = field.init and field.converter is None and field.alias == field.name
        checked = field.validator is not None and output
        made_of_self = getattr(field.default, "takes_self", False)
        ordinary = ordinary and simple and not checked and not made_of_self
    return RecordType(fields=fields, ordinary=ordinary)


def _describe_typed_dict(cls: Any, hints: TypeHints, _output: bool) -> RecordType:
    fields: list[RecordField] = []
    for name, annotation in hints.items():
        # A string annotation hides `NotRequired` from the class, so the evaluated one decides.
        required, kind = name in cls.__required_keys__, annotation
        qualifiers = {"Required", "NotRequired", "ReadOnly"}
        while (qualifier := str(get_origin(kind)).rpartition(".")[2]) in qualifiers:
            required = required if qualifier == "ReadOnly" else qualifier == "Required"
            (kind,) = get_args(kind)
        fields.append(RecordField(name, name, kind, required))
    return RecordType(fields=fields)


def _describe_named_tuple(cls: Any, hints: TypeHints, _output: bool) -> RecordType:
    defaults = cls._field_defaults
    fields = [
        RecordField(name, name, hints.get(name, Any), name not in defaults, defaults.get(name, UNSET))
        for name in cls._fields
    ]
    return RecordType(fields=fields, array=True, closed=True)


_DESCRIBERS: Final[dict[str, Callable[[Any, TypeHints, bool], RecordType]]] = {  # by attribute
    "__struct_fields__": _describe_struct,
    "__dataclass_fields__": _describe_dataclass,
    "__attrs_attrs__": _describe_attrs,
    "__required_keys__": _describe_typed_dict,
    "_field_defaults": _describe_named_tuple,
}
