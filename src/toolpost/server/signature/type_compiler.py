"""The types of a signature, surveyed once: for each what msgspec is to read, and the schema of just that.

One walk makes both, so that they cannot disagree. What msgspec reads by itself stays as it is, everything
else gets a stand-in, what cannot be read soundly is refused. Knows nothing of functions and calls.
"""

import enum
import inspect
import sys
import types
import typing
from collections import abc, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from toolpost.server.signature import docstrings
from toolpost.server.signature.compiled_types import (
    SCALAR_SCHEMAS,
    CompiledType,
    ProxyType,
    convert_value,
    document_schema,
    is_decodable,
    make_choice_reader,
    make_proxy_type,
    make_record_reader,
    make_union_reader,
)
from toolpost.server.signature.json_schema import (
    HEADER_KEYWORD,
    Definitions,
    ForeignSchema,
    add_keywords,
    can_accept,
    can_overlap,
    collect_definitions,
    make_any_of,
    make_enum_schema,
    remove_null,
)
from toolpost.server.signature.names import (
    UNION_TYPES,
    AnnotationScope,
    describe_type,
    make_label,
    resolve_alias,
)
from toolpost.server.signature.pydantic_types import PydanticType, is_pydantic_field, is_pydantic_type
from toolpost.server.signature.validation import SignatureError, prefix_signature_errors
from toolpost.types.base import JSON

if TYPE_CHECKING:
    from toolpost.server.signature.annotations import Limit
    from toolpost.server.signature.compiled_types import RecordField, RecordType

_COLLECTION_TYPES: Final[dict[Any, Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    frozenset: frozenset,
    tuple: tuple,
}
_CHOICE_TYPES: Final = frozenset({str, int, float, bool, type(None)})
_KEY_PATTERNS: Final[dict[Any, str]] = {
    int: "^-?(0|[1-9][0-9]*)$",
    float: r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
}
"""Numbers as keys: what the string must look like."""
_SUPPORTED_TYPES_HINT: Final = (
    "take a builtin type, a dataclass, a TypedDict, a msgspec struct or a pydantic model"
)


class TypeCompiler:
    """The types of one signature.

    Args:
        scope: where the names in annotations are looked up.
        output: whether the types are written, not read.

    Attributes:
        defs: the definitions that the schemas share.
        uses_pydantic: whether something is read by pydantic.
        msgspec_limit_count: how many limits of `msgspec.Meta` there are.
    """

    def __init__(self, scope: AnnotationScope, *, output: bool = False) -> None:
        self.defs = Definitions()
        self.uses_pydantic = False
        self.msgspec_limit_count = 0
        self._scope = scope
        self._output = output
        self._compiled: dict[Any, CompiledType] = {}
        self._proxy_types: defaultdict[Any, ProxyType] = defaultdict(partial(make_proxy_type, "named"))
        self._in_progress: set[Any] = set()
        """The classes and aliases whose survey has begun and not ended."""
        self._needs_recompile = False

    def compile_type(self, annotation: Any) -> CompiledType:
        """The shape of a type.

        Raises:
            SignatureError: no value of this type can be read, or not soundly.
        """
        try:
            shape = self._compile_type(annotation)
            while self._needs_recompile:
                # A class that contains itself needs a stand-in after all: look again at what contains it.
                self._needs_recompile = False
                self._compiled.clear()
                shape = self._compile_type(annotation)
        except SignatureError:
            raise
        except TypeError as error:  # metadata in the arguments of a generic class may have no hash
            raise SignatureError(f"{describe_type(annotation)} cannot be surveyed: {error}") from error
        if not is_decodable(shape.type):
            raise SignatureError(f"{describe_type(annotation)} cannot be read from JSON")
        return shape

    def _compile_type(self, it: Any) -> CompiledType:
        origin, args = get_origin(it), get_args(it)
        if origin is Annotated:
            return self._compile_annotated(it)
        if it is None or it is Any or (isinstance(it, type) and it in SCALAR_SCHEMAS):
            kind = type(None) if it is None else it
            return CompiledType(
                Any if it is object else kind, SCALAR_SCHEMAS[kind], native=it is not object, base=kind
            )
        if origin in UNION_TYPES:
            return self._compile_union(args)
        if origin is Literal:
            return self._compile_choices(it, args)
        behind = resolve_alias(it)
        if behind is not it:
            return self._compile_alias(it, behind)
        if (origin or it) in _COLLECTION_TYPES:
            return self._compile_collection(it, origin or it, args)
        return self._compile_class(it, origin or it)

    # ----------------------------------------------------------------- metadata

    def _compile_annotated(self, it: Any) -> CompiledType:
        """The shape of a type with marks on it."""
        from toolpost.server.signature.annotations import read_annotation_metadata  # noqa: PLC0415 - 0.3 ms of a start

        inner, *metadata = get_args(it)
        marks = read_annotation_metadata(metadata)
        if marks.needs_pydantic:
            shape = self._compile_pydantic(it)
        else:
            self.msgspec_limit_count += sum(limit.is_native for limit in marks.limits)
            shape = self._compile_limited(inner, marks.limits) if marks.limits else self._compile_type(inner)
        schema = shape.schema
        if HEADER_KEYWORD in marks.schema_keywords:
            schema = remove_null(schema)
        return replace(shape, schema=add_keywords(schema, marks.schema_keywords))

    def _compile_limited(self, inner: Any, limits: "list[Limit]") -> CompiledType:
        """The shape of a type with limits; those of a union go to the members that they fit."""
        from toolpost.server.signature.annotations import apply_limits  # noqa: PLC0415 - as above

        behind = resolve_alias(inner)
        if behind is not inner:
            return self._compile_limited(behind, limits)
        if get_origin(inner) is Annotated:
            inner, *metadata = get_args(inner)
            return self._compile_type(Annotated[inner, *metadata, *limits])
        if get_origin(inner) in UNION_TYPES:
            return self._compile_union(self._distribute_limits(inner, limits))
        return apply_limits(self._compile_type(inner), limits, describe_type(inner))

    def _distribute_limits(self, union: Any, limits: "list[Limit]") -> list[Any]:
        """The members of a union, each with those limits that fit it."""
        from toolpost.server.signature.annotations import can_apply_limit  # noqa: PLC0415 - as above

        members: list[Any] = []
        used: list[Limit] = []
        for member in get_args(union):
            shape = self._compile_type(member)
            fitting = [limit for limit in limits if can_apply_limit(limit, shape)]
            used += fitting
            members.append(Annotated[member, *fitting] if fitting else member)
        for limit in limits:
            if limit not in used:
                raise SignatureError(f"a limit `{limit.name}` fits no part of {describe_type(union)}")
        return members

    # ----------------------------------------------------------------- choices

    def _compile_union(self, members: Sequence[Any]) -> CompiledType:
        """The shape of a union: read by msgspec if it can tell the members apart, else by trying them."""
        metas = self.msgspec_limit_count
        shapes = [self._compile_type(member) for member in members]
        real = [shape for shape in shapes if shape.type is not UnsetType]
        schema = make_any_of([shape.schema for shape in real])
        if HEADER_KEYWORD in (alone := remove_null(schema)):
            schema = alone
        kind = Union[tuple(shape.type for shape in shapes)]  # noqa: UP007 - of a tuple
        alike = any(self._can_confuse(*pair) for pair in combinations(real, 2))
        if is_decodable(kind) and not alike:
            return CompiledType(kind, schema, all(shape.native for shape in shapes))
        if self.msgspec_limit_count == metas and any(
            isinstance(shape.schema, ForeignSchema) for shape in shapes
        ):
            with suppress(SignatureError):  # one of ours is among them, which pydantic does not know
                return self._compile_pydantic(Union[tuple(members)])  # noqa: UP007 - of a tuple
        if (
            alike
            and {self._name_definition(one) for one in self._in_progress}
            & collect_definitions(schema, self.defs).keys()
        ):
            # Trying would double the work with each level of a value.
            raise SignatureError(
                f"the members of {' | '.join(map(describe_type, members))} look alike and contain each other",
                hint="make them msgspec structs with tags, or pydantic models with a discriminator",
            )
        return CompiledType(make_proxy_type("union", make_union_reader(real)), schema, native=False)

    def _can_confuse(self, one: CompiledType, other: CompiledType) -> bool:
        """Whether some value may fit both types; msgspec would read two kinds of integer as one."""
        plain = (SCALAR_SCHEMAS[int], SCALAR_SCHEMAS[float])
        if one.schema in plain and other.schema in plain:
            return False
        tagged = isinstance(one.type, type(Struct)) and isinstance(other.type, type(Struct))
        return not tagged and can_overlap(one.schema, other.schema, self.defs)

    def _compile_choices(self, it: Any, members: Sequence[Any]) -> CompiledType:
        """The shape of an enumeration or of a `Literal`."""
        choices = [member.value if isinstance(member, enum.Enum) else member for member in members]
        if not choices or not all(type(choice) in _CHOICE_TYPES for choice in choices):
            raise SignatureError(
                f"{describe_type(it)} has choices that JSON cannot say",
                hint="take strings, integers, numbers, booleans or None",
            )
        native = is_decodable(it)
        kind = it if native else make_proxy_type("choices", make_choice_reader(choices, members))
        return CompiledType(kind, make_enum_schema(choices), native)

    # ----------------------------------------------------------------- collections

    def _compile_collection(self, it: Any, origin: Any, args: tuple[Any, ...]) -> CompiledType:
        kind: Any = _COLLECTION_TYPES[origin]
        if kind is dict:
            return self._compile_mapping(*(args or (Any, Any)))
        if kind is tuple and it not in {tuple, typing.Tuple} and args[1:] != (...,):  # noqa: UP006 - is meant
            return self._compile_tuple(args)
        item = args[0] if args else Any
        shape = self._compile_type(item)
        schema: dict[str, JSON] = {"type": "array"} | ({"items": shape.schema} if shape.schema else {})
        if kind in {set, frozenset}:
            schema["uniqueItems"] = True
            members = get_args(item) if get_origin(item) in UNION_TYPES else (item,)
            if any((get_origin(member) or member).__hash__ is None for member in members):
                raise SignatureError(f"a set cannot hold {describe_type(item)}", hint="take a list")
        inner = (shape.type, ...) if kind is tuple else (shape.type,)
        native = shape.native and origin is not abc.Iterable
        return CompiledType(types.GenericAlias(kind, inner), schema, native, kind)

    def _compile_tuple(self, args: tuple[Any, ...]) -> CompiledType:
        shapes = [self._compile_type(arg) for arg in args]
        schema: dict[str, JSON] = {"type": "array", "minItems": len(args), "maxItems": len(args)}
        if shapes:
            schema["prefixItems"] = [shape.schema for shape in shapes]
        kind = types.GenericAlias(tuple, tuple(shape.type for shape in shapes))
        return CompiledType(kind, schema, all(shape.native for shape in shapes), tuple)

    def _compile_mapping(self, key: Any, item: Any) -> CompiledType:
        names, shape = self._compile_type(key), self._compile_type(item)
        schema: dict[str, JSON] = {"type": "object"}
        if names.base in _KEY_PATTERNS:
            schema["propertyNames"] = {"pattern": _KEY_PATTERNS[names.base]}
        elif not can_accept(names.schema, "string", self.defs):
            raise SignatureError(
                f"a key in JSON is a string and cannot be {describe_type(key)}", hint="take str"
            )
        elif names.schema not in ({}, SCALAR_SCHEMAS[str]):
            schema["propertyNames"] = names.schema
        if shape.schema:
            schema["additionalProperties"] = shape.schema
        return CompiledType(dict[names.type, shape.type], schema, names.native and shape.native, dict)

    # ----------------------------------------------------------------- named types

    def _compile_alias(self, it: Any, behind: Any) -> CompiledType:
        """The shape of a name for another type, which may contain itself."""
        if it in self._in_progress:
            return CompiledType(
                self._proxy_types[it], self.defs.make_ref(self._name_definition(it)), native=False
            )
        self._in_progress.add(it)
        shape = self._compile_type(self._scope.evaluate(behind))
        self._in_progress.discard(it)
        if it not in self._proxy_types:
            return replace(shape, native=shape.native and is_decodable(it))
        self._proxy_types[it].reader = lambda value: convert_value(value, shape.type)
        self.defs[self._name_definition(it)] = shape.schema
        return CompiledType(shape.type, self.defs.make_ref(self._name_definition(it)), native=False)

    def _compile_class(self, it: Any, cls: Any) -> CompiledType:
        """The shape of a class that is none of the builtin ones."""
        if not inspect.isclass(cls):
            raise SignatureError(f"{describe_type(it)} cannot be said in JSON", hint=_SUPPORTED_TYPES_HINT)
        if it in self._compiled:
            return self._compiled[it]
        if it in self._in_progress:
            kind = self._proxy_types.get(it)
            return CompiledType(
                kind or it, self.defs.make_ref(self._name_definition(it)), native=kind is None
            )
        if is_pydantic_type(cls) and not issubclass(cls, Struct):
            return self._compile_pydantic(it)
        if issubclass(cls, enum.Flag):
            return CompiledType(it, {"type": "integer"})
        if issubclass(cls, enum.Enum):
            return self._compile_choices(it, list(cls))
        if _is_path(cls):
            return CompiledType(it, {"type": "string", "format": "path"})
        from toolpost.server.signature.compiled_types import describe_record  # noqa: PLC0415 - 0.2 ms of a start

        record = describe_record(it, self._scope, output=self._output)
        if record is None:
            raise SignatureError(f"{describe_type(it)} cannot be said in JSON", hint=_SUPPORTED_TYPES_HINT)
        return self._compile_record(it, cls, record)

    def _compile_record(self, it: Any, cls: type[Any], record: "RecordType") -> CompiledType:
        """The shape of a class with fields: the class itself, or a stand-in that builds values of it."""
        from toolpost.server.signature.compiled_types import build_record_schema  # noqa: PLC0415 - as above

        about = docstrings.parse_docstring(_find_class_docstring(cls))
        self._in_progress.add(it)
        shapes = [self._compile_field(cls, field, about.parameters) for field in record.fields]
        self._in_progress.discard(it)
        kind, name = it, self._name_definition(it)
        schema = build_record_schema(record, [shape.schema for shape in shapes], about.summary)
        native = record.ordinary and all(shape.native for shape in shapes) and is_decodable(it)
        if not native:
            self._needs_recompile |= it not in self._proxy_types and name in collect_definitions(
                schema, self.defs
            )
            kind = self._proxy_types[it]
            kind.reader = make_record_reader(record, [shape.type for shape in shapes], build=not self._output)
        self.defs[name] = schema
        keys = None if record.array else frozenset(field.wire_name for field in record.fields)
        return self._compiled.setdefault(it, CompiledType(kind, self.defs.make_ref(name), native, keys=keys))

    def _compile_field(self, cls: type[Any], field: "RecordField", told: Mapping[str, str]) -> CompiledType:
        with prefix_signature_errors(f"field `{field.name}` of {cls.__name__}"):
            if is_pydantic_field(field.default):
                raise SignatureError("pydantic's Field has no effect here", hint="use pydantic's dataclass")
            shape = self._compile_type(field.annotation)
        about = shape.schema.get("description") or told.get(field.name)
        return replace(shape, schema=document_schema(shape, field.default, about, self.defs))

    def _compile_pydantic(self, it: Any) -> CompiledType:
        """The shape of a type that pydantic reads, with no limit in it that pydantic would ignore."""
        from toolpost.server.overlooked import refuse_overlooked  # noqa: PLC0415 - for pydantic only

        self.uses_pydantic = True
        guest = PydanticType(it, output=self._output)
        refuse_overlooked(it, self._scope)
        schema = guest.adopt_schema(self.defs)
        model = isinstance(it, type) and hasattr(it, "model_validate_json")
        shape = CompiledType(it if model else make_proxy_type("guest", guest.read), schema, native=model)
        return self._compiled.setdefault(it, shape) if isinstance(it, type) else shape

    def _name_definition(self, it: Any) -> str:
        return self.defs.assign_name(it, make_label(it))


def _is_path(cls: type[Any]) -> bool:
    paths = sys.modules.get("pathlib")  # who has a path has loaded it, and it is slow to load
    return paths is not None and issubclass(cls, paths.PurePath)


def _find_class_docstring(cls: type[Any]) -> str | None:
    """The docstring that the author of a class wrote; not one that a decorator made from the signature."""
    doc = cls.__dict__.get("__doc__")
    return None if doc is None or doc.startswith(f"{cls.__name__}(") else doc
