"""Compiles the types of a signature: each to a type that msgspec reads, and to the schema of that type.

One walk makes both, so that they cannot disagree. A type that msgspec reads as its author means it stays as
it is, others get a proxy, and a type that cannot be read soundly is refused.
"""

import enum
import inspect
import sys
import types
import typing
from collections import abc
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from toolpost import json_schema
from toolpost.json_schema import Schema, ValidationIssue
from toolpost.server.signature import compiled_types, inspection, schema_parts
from toolpost.server.signature.compiled_types import SCALAR_SCHEMAS, CompiledType, convert_value, is_decodable
from toolpost.server.signature.errors import SignatureError, ValidationError, prefix_signature_errors
from toolpost.server.signature.inspection import UNION_TYPES, AnnotationScope, describe_type, resolve_alias
from toolpost.server.signature.schema_parts import HEADER_KEYWORD, Definitions
from toolpost.types.base import JSON

if TYPE_CHECKING:
    from toolpost.server.signature.annotations import Limit
    from toolpost.server.signature.record_types import RecordField

_COLLECTION_TYPES: Final[dict[Any, Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    frozenset: frozenset,
    tuple: tuple,
}
_CHOICE_TYPES: Final = frozenset({str, int, float, bool, type(None)})
_KEY_PATTERNS: Final[dict[Any, str]] = {  # keys that are numbers
    int: "^-?(0|[1-9][0-9]*)$",
    float: r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
}
_NUMBER_SCHEMAS: Final = (SCALAR_SCHEMAS[int], SCALAR_SCHEMAS[float])
_SUPPORTED_TYPES_HINT: Final = (
    "use a builtin type, a dataclass, a TypedDict, a msgspec struct or a pydantic model"
)


class TypeCompiler:
    """Compiles the types of one signature, whose annotations `scope` evaluates.

    A class may contain itself. While it is compiled, an occurrence inside of it becomes a reference to the
    class, as if msgspec could read it. If its fields show that msgspec cannot, the class gets a proxy, and
    its fields are compiled once more: the occurrences inside now refer to that proxy.

    With `output`, values are written, not read. `defs` has the definitions that the schemas share.
    """

    def __init__(self, scope: AnnotationScope, *, output: bool = False) -> None:
        self.defs = Definitions()
        self._scope = scope
        self._output = output
        self._compiled: dict[Any, CompiledType] = {}
        self._in_progress: set[Any] = set()  # the classes and aliases around the current type
        self._proxies: dict[Any, compiled_types.ProxyType] = {}  # for types that msgspec cannot read

    def compile_type(self, annotation: Any) -> CompiledType:
        """Compile a type; raise `SignatureError` if it cannot be read, or not soundly."""
        try:
            compiled = self._compile_type(annotation)
        except SignatureError:
            raise
        except TypeError as error:  # metadata of a generic class may be unhashable
            raise SignatureError(f"{describe_type(annotation)} cannot be inspected: {error}") from error
        if not is_decodable(compiled.type):
            raise SignatureError(f"{describe_type(annotation)} cannot be read from JSON")
        return compiled

    def _compile_type(self, it: Any) -> CompiledType:
        origin, args = get_origin(it), get_args(it)
        if origin is Annotated:
            return self._compile_annotated(it)
        if it is object:
            return CompiledType(Any, {}, native=False)
        if it is None or it is Any or (isinstance(it, type) and it in SCALAR_SCHEMAS):
            kind = type(None) if it is None else it
            return CompiledType(kind, SCALAR_SCHEMAS[kind], base=kind)
        if origin in UNION_TYPES:
            return self._compile_union(args)
        if origin is Literal:
            return self._compile_choices(it, args)
        target = resolve_alias(it)
        if target is not it:
            return self._compile_alias(it, target)
        if (origin or it) in _COLLECTION_TYPES:
            return self._compile_collection(it, origin or it, args)
        return self._compile_class(it, origin or it)

    # ----------------------------------------------------------------- metadata

    def _compile_annotated(self, it: Any) -> CompiledType:
        from toolpost.server.signature import annotations  # noqa: PLC0415 - start-up time

        inner, *metadata = get_args(it)
        marks = annotations.read_annotation_metadata(metadata)
        if marks.needs_pydantic:
            annotations.refuse_ignored_limits(metadata)
            compiled = self._compile_pydantic(it)
        else:
            compiled = self._compile_limited(inner, marks.limits)
        schema = compiled.schema
        if HEADER_KEYWORD in marks.schema_keywords:
            schema = schema_parts.remove_null(schema)
        return replace(
            compiled,
            schema=schema_parts.add_keywords(schema, marks.schema_keywords),
            has_msgspec_limits=compiled.has_msgspec_limits or any(limit.is_native for limit in marks.limits),
        )

    def _compile_limited(self, inner: Any, limits: "list[Limit]") -> CompiledType:
        """Compile a type with limits; each limit of a union goes to the members that it fits."""
        if not limits:
            return self._compile_type(inner)
        from toolpost.server.signature import annotations  # noqa: PLC0415 - start-up time

        target = resolve_alias(inner)
        if target is not inner:
            return self._compile_limited(target, limits)
        if get_origin(inner) is Annotated:
            inner, *metadata = get_args(inner)
            return self._compile_type(Annotated[inner, *metadata, *limits])
        if get_origin(inner) not in UNION_TYPES:
            return annotations.apply_limits(self._compile_type(inner), limits, describe_type(inner))
        members: list[Any] = []
        unused = limits
        for member in get_args(inner):
            compiled = self._compile_type(member)
            fitting = [limit for limit in limits if annotations.can_apply_limit(limit, compiled)]
            unused = [limit for limit in unused if limit not in fitting]
            members.append(Annotated[member, *fitting] if fitting else member)
        if unused:
            raise SignatureError(f"the limit `{unused[0].name}` applies to no part of {describe_type(inner)}")
        return self._compile_union(members)

    # ----------------------------------------------------------------- choices

    def _compile_union(self, members: Sequence[Any]) -> CompiledType:
        """Compile a union: if msgspec cannot tell its members apart, a proxy tries one after the other."""
        every = [self._compile_type(member) for member in members]
        present = [member for member in every if member.type is not UnsetType]
        schema = schema_parts.make_any_of([member.schema for member in present])
        if HEADER_KEYWORD in (alone := schema_parts.remove_null(schema)):
            schema = alone
        kind = Union[tuple(member.type for member in every)]  # noqa: UP007 - of a tuple
        alike = any(self._can_confuse(*pair) for pair in combinations(present, 2))
        if is_decodable(kind) and not alike:
            return _combine(every, kind, schema)
        is_foreign = any(isinstance(member.schema, json_schema.ForeignSchema) for member in every)
        if is_foreign and not any(member.has_msgspec_limits for member in every):
            with suppress(SignatureError):  # pydantic may not know one of the members
                return self._compile_pydantic(Union[tuple(members)])  # noqa: UP007 - of a tuple
        if alike and not schema_parts.collect_definitions(schema, self.defs).keys().isdisjoint(
            map(self._name_definition, self._in_progress)
        ):  # trying each member would double the work with each level of a value
            raise SignatureError(
                f"the members of {' | '.join(map(describe_type, members))} are ambiguous and recursive",
                hint="use msgspec structs with tags, or pydantic models with a discriminator",
            )
        return _combine(
            every, compiled_types.make_proxy_type("union", _make_union_reader(present)), schema, native=False
        )

    def _can_confuse(self, one: CompiledType, other: CompiledType) -> bool:
        """Return whether some value may fit both types."""
        if one.schema in _NUMBER_SCHEMAS and other.schema in _NUMBER_SCHEMAS:
            return False
        tagged = isinstance(one.type, type(Struct)) and isinstance(other.type, type(Struct))
        return not tagged and any(
            schema_parts.can_accept(one.schema, kind, self.defs)
            and schema_parts.can_accept(other.schema, kind, self.defs)
            for kind in json_schema.JSON_TYPES.values()
        )

    def _compile_choices(self, it: Any, members: Sequence[Any]) -> CompiledType:
        choices = [member.value if isinstance(member, enum.Enum) else member for member in members]
        if not choices or not all(type(choice) in _CHOICE_TYPES for choice in choices):
            raise SignatureError(
                f"{describe_type(it)} has choices that JSON cannot represent",
                hint="use strings, integers, numbers, booleans or None",
            )
        native = is_decodable(it)
        kind = (
            it if native else compiled_types.make_proxy_type("choices", _make_choice_reader(choices, members))
        )
        kinds = {json_schema.get_json_type(choice) for choice in choices}
        schema = {"enum": choices} if len(kinds) > 1 else {"type": kinds.pop(), "enum": choices}
        return CompiledType(kind, schema, native)

    # ----------------------------------------------------------------- collections

    def _compile_collection(self, it: Any, origin: Any, args: tuple[Any, ...]) -> CompiledType:
        kind: Any = _COLLECTION_TYPES[origin]
        if kind is dict:
            return self._compile_mapping(*(args or (Any, Any)))
        if kind is tuple and it not in {tuple, typing.Tuple} and args[1:] != (...,):  # noqa: UP006 - is meant
            return self._compile_tuple(args)
        item = args[0] if args else Any
        compiled = self._compile_type(item)
        schema: dict[str, JSON] = {"type": "array"} | ({"items": compiled.schema} if compiled.schema else {})
        if kind in {set, frozenset}:
            schema["uniqueItems"] = True
            members = get_args(item) if get_origin(item) in UNION_TYPES else (item,)
            if any((get_origin(member) or member).__hash__ is None for member in members):
                raise SignatureError(f"a set cannot hold {describe_type(item)}", hint="use a list")
        inner = (compiled.type, ...) if kind is tuple else (compiled.type,)
        native = origin is not abc.Iterable
        return _combine([compiled], types.GenericAlias(kind, inner), schema, native=native, base=kind)

    def _compile_tuple(self, args: tuple[Any, ...]) -> CompiledType:
        items = [self._compile_type(arg) for arg in args]
        schema: dict[str, JSON] = {"type": "array", "minItems": len(args), "maxItems": len(args)}
        if items:
            schema["prefixItems"] = [item.schema for item in items]
        kind = types.GenericAlias(tuple, tuple(item.type for item in items))
        return _combine(items, kind, schema, base=tuple)

    def _compile_mapping(self, key: Any, item: Any) -> CompiledType:
        keys, items = self._compile_type(key), self._compile_type(item)
        schema: dict[str, JSON] = {"type": "object"}
        if keys.base in _KEY_PATTERNS:
            schema["propertyNames"] = {"pattern": _KEY_PATTERNS[keys.base]}
        elif not schema_parts.can_accept(keys.schema, "string", self.defs):
            raise SignatureError(f"{describe_type(key)} cannot be the key of a JSON object", hint="use str")
        elif keys.schema not in ({}, SCALAR_SCHEMAS[str]):
            schema["propertyNames"] = keys.schema
        if items.schema:
            schema["additionalProperties"] = items.schema
        return _combine([keys, items], dict[keys.type, items.type], schema, base=dict)

    # ----------------------------------------------------------------- named types

    def _compile_alias(self, it: Any, target: Any) -> CompiledType:
        """Compile a name for another type; a type that contains itself gets a proxy."""
        if it in self._in_progress:
            return CompiledType(self._make_proxy(it), self._make_ref(it), native=False)
        self._in_progress.add(it)
        compiled = self._compile_type(self._scope.evaluate(target))
        self._in_progress.discard(it)
        if it not in self._proxies:
            return replace(compiled, native=compiled.native and is_decodable(it))
        self._proxies[it].reader = lambda value: convert_value(value, compiled.type)
        self.defs[self._name_definition(it)] = compiled.schema
        return replace(compiled, schema=self._make_ref(it), native=False, base=None, keys=None)

    def _compile_class(self, it: Any, cls: Any) -> CompiledType:
        if inspect.isclass(cls):
            if it in self._compiled:
                return self._compiled[it]
            if it in self._in_progress:
                proxy = self._proxies.get(it)
                return CompiledType(proxy or it, self._make_ref(it), native=proxy is None)
            if compiled_types.is_pydantic_type(cls) and not issubclass(cls, Struct):
                return self._compiled.setdefault(it, self._compile_pydantic(it))
            if issubclass(cls, enum.Flag):
                return CompiledType(it, {"type": "integer"})
            if issubclass(cls, enum.Enum):
                return self._compile_choices(it, list(cls))
            paths = sys.modules.get("pathlib")  # slow to import, and loaded already if there is a path
            if paths is not None and issubclass(cls, paths.PurePath):
                return CompiledType(it, {"type": "string", "format": "path"})
            record = self._compile_record(it, cls)
            if record is not None:
                return self._compiled.setdefault(it, record)
        raise SignatureError(f"{describe_type(it)} cannot be represented in JSON", hint=_SUPPORTED_TYPES_HINT)

    def _compile_record(self, it: Any, cls: type[Any]) -> CompiledType | None:
        """Compile a class with fields, to itself or to a proxy; return None if it has no fields."""
        from toolpost.server.signature import record_types  # noqa: PLC0415 - start-up time

        record = record_types.describe_record(it, self._scope, output=self._output)
        if record is None:
            return None
        doc = cls.__dict__.get("__doc__")
        is_generated = doc is not None and doc.startswith(f"{cls.__name__}(")  # by a decorator
        summary, descriptions = inspection.parse_docstring(None if is_generated else doc)
        self._in_progress.add(it)
        fields = [self._compile_field(cls, field, descriptions) for field in record.fields]
        self._in_progress.discard(it)
        schema = record_types.build_record_schema(record, [field.schema for field in fields], summary)
        name = self._name_definition(it)
        self.defs[name] = schema
        keys = None if record.array else frozenset(field.wire_name for field in record.fields)
        compiled = replace(_combine(fields, it, self._make_ref(it), native=record.ordinary), keys=keys)
        if compiled.native and is_decodable(it):
            return compiled
        if it not in self._proxies and name in schema_parts.collect_definitions(schema, self.defs):
            self._make_proxy(it)
            self._compiled.clear()  # other classes may contain this one without its proxy
            return self._compile_record(it, cls)
        proxy = self._make_proxy(it)
        build = None if self._output else cls  # a TypedDict makes a dict
        proxy.reader = record_types.make_record_reader(record, [field.type for field in fields], build)
        return replace(compiled, type=proxy, native=False)

    def _compile_field(
        self, cls: type[Any], field: "RecordField", descriptions: abc.Mapping[str, str]
    ) -> CompiledType:
        with prefix_signature_errors(f"field `{field.name}` of {cls.__name__}"):
            if compiled_types.is_pydantic_field(field.default):
                raise SignatureError("pydantic's Field has no effect here", hint="use pydantic's dataclass")
            compiled = self._compile_type(field.annotation)
        description = compiled.schema.get("description") or descriptions.get(field.name)
        return replace(
            compiled, schema=compiled_types.document_schema(compiled, field.default, description, self.defs)
        )

    def _compile_pydantic(self, it: Any) -> CompiledType:
        """Compile a type that pydantic reads."""
        pydantic_type = compiled_types.PydanticType(it, output=self._output)
        schema = pydantic_type.adopt_schema(self.defs)
        is_model = isinstance(it, type) and hasattr(it, "model_validate_json")
        kind = it if is_model else compiled_types.make_proxy_type("pydantic", pydantic_type.read)
        return CompiledType(kind, schema, native=is_model, uses_pydantic=True)

    def _make_proxy(self, it: Any) -> compiled_types.ProxyType:
        return self._proxies.setdefault(it, compiled_types.make_proxy_type("named"))

    def _name_definition(self, it: Any) -> str:
        return self.defs.assign_name(it, inspection.make_label(it))

    def _make_ref(self, it: Any) -> dict[str, JSON]:
        return {"$ref": f"{json_schema.DEFS_PREFIX}{self._name_definition(it)}"}


def _combine(
    parts: Sequence[CompiledType], kind: Any, schema: Schema, *, native: bool = True, base: Any = None
) -> CompiledType:
    return CompiledType(
        kind,
        schema,
        native=native and all(part.native for part in parts),
        base=base,
        uses_pydantic=any(part.uses_pydantic for part in parts),
        has_msgspec_limits=any(part.has_msgspec_limits for part in parts),
    )


def _make_union_reader(members: Sequence[CompiledType]) -> compiled_types.ValueReader:
    """Return a reader that tries the members of a union in order; those that would ignore a key come last."""

    def has_unknown_key(member: CompiledType, value: JSON) -> bool:
        return isinstance(value, dict) and member.keys is not None and not value.keys() <= member.keys

    def read(value: JSON) -> Any:
        reasons: list[str] = []
        for member in sorted(members, key=lambda member: has_unknown_key(member, value)):
            try:
                return convert_value(value, member.type)
            except (ValueError, TypeError) as error:
                reasons.append(str(error))
        raise ValidationError([ValidationIssue("", f"matches none of its types: {' / '.join(reasons)}")])

    return read


def _make_choice_reader(choices: Sequence[JSON], members: Sequence[Any]) -> compiled_types.ValueReader:
    # `True` and `1` are equal in Python, but not in JSON.
    known = {(isinstance(choice, bool), choice): one for choice, one in zip(choices, members, strict=True)}

    def read(value: JSON) -> Any:
        key = (isinstance(value, bool), value)
        if isinstance(value, list | dict) or key not in known:
            raise ValidationError([ValidationIssue("", "is not one of the choices")])
        return known[key]

    return read
