"""Classes with fields, described alike: dataclasses, attrs, TypedDicts, named tuples and structs.

Knows what a class asks for, and where msgspec would make its values otherwise than the class itself. How
values are read is not known here.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from toolpost.server.schema import Schema
from toolpost.server.scope import AnnotationScope
from toolpost.types.base import JSON

__all__ = ["RecordField", "RecordType", "build_record_schema", "describe_record"]

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
