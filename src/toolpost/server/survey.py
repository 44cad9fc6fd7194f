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

from toolpost.server import docstring
from toolpost.server.guest import Guest, is_field, is_guest
from toolpost.server.problems import SignatureError, within
from toolpost.server.schema import (
    MIRRORED,
    Definitions,
    Opaque,
    accepts,
    any_of,
    choice_of,
    noted,
    overlap,
    reached,
    without_null,
)
from toolpost.server.scope import UNIONS, Scope, label, meant, shown
from toolpost.server.shapes import (
    SCALARS,
    Shape,
    StandIn,
    documented,
    first_fit,
    fit,
    one_of,
    possible,
    record_reader,
    stand_in,
)
from toolpost.types.base import JSON

if TYPE_CHECKING:
    from toolpost.server.marks import Limit
    from toolpost.server.records import Field, Record

__all__ = ["Survey"]

_READ_AS: Final[dict[Any, Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    frozenset: frozenset,
    tuple: tuple,
}
_CHOICES: Final = frozenset({str, int, float, bool, type(None)})
_KEYS: Final[dict[Any, str]] = {
    int: "^-?(0|[1-9][0-9]*)$",
    float: r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
}
"""Numbers as keys: what the string must look like."""
_INSTEAD: Final = "take a builtin type, a dataclass, a TypedDict, a msgspec struct or a pydantic model"


class Survey:
    """The types of one signature.

    Args:
        scope: where the names in annotations are looked up.
        output: whether the types are written, not read.

    Attributes:
        defs: the definitions that the schemas share.
        guests: whether something is read by pydantic.
        metas: how many limits of `msgspec.Meta` there are.
    """

    def __init__(self, scope: Scope, *, output: bool = False) -> None:
        self.defs = Definitions()
        self.guests = False
        self.metas = 0
        self._scope = scope
        self._output = output
        self._known: dict[Any, Shape] = {}
        self._stand_ins: defaultdict[Any, StandIn] = defaultdict(partial(stand_in, "named"))
        self._open: set[Any] = set()
        """The classes and aliases whose survey has begun and not ended."""
        self._stale = False

    def shape(self, annotation: Any) -> Shape:
        """The shape of a type.

        Raises:
            SignatureError: no value of this type can be read, or not soundly.
        """
        try:
            shape = self._shape(annotation)
            while self._stale:
                # A class that contains itself needs a stand-in after all: look again at what contains it.
                self._stale = False
                self._known.clear()
                shape = self._shape(annotation)
        except SignatureError:
            raise
        except TypeError as error:  # metadata in the arguments of a generic class may have no hash
            raise SignatureError(f"{shown(annotation)} cannot be surveyed: {error}") from error
        if not possible(shape.type):
            raise SignatureError(f"{shown(annotation)} cannot be read from JSON")
        return shape

    def _shape(self, it: Any) -> Shape:
        origin, args = get_origin(it), get_args(it)
        if origin is Annotated:
            return self._annotated(it)
        if it is None or it is Any or (isinstance(it, type) and it in SCALARS):
            kind = type(None) if it is None else it
            return Shape(Any if it is object else kind, SCALARS[kind], native=it is not object, base=kind)
        if origin in UNIONS:
            return self._union(args)
        if origin is Literal:
            return self._choices(it, args)
        behind = meant(it)
        if behind is not it:
            return self._alias(it, behind)
        if (origin or it) in _READ_AS:
            return self._collection(it, origin or it, args)
        return self._class(it, origin or it)

    # ----------------------------------------------------------------- metadata

    def _annotated(self, it: Any) -> Shape:
        """The shape of a type with marks on it."""
        from toolpost.server.marks import read_marks  # noqa: PLC0415 - 0.3 ms of a start

        inner, *metadata = get_args(it)
        marks = read_marks(metadata)
        if marks.guest:
            shape = self._guest(it)
        else:
            self.metas += sum(limit.own for limit in marks.limits)
            shape = self._limited(inner, marks.limits) if marks.limits else self._shape(inner)
        schema = shape.schema
        if MIRRORED in marks.notes:
            schema = without_null(schema)
        return replace(shape, schema=noted(schema, marks.notes))

    def _limited(self, inner: Any, limits: "list[Limit]") -> Shape:
        """The shape of a type with limits; those of a union go to the members that they fit."""
        from toolpost.server.marks import limited  # noqa: PLC0415 - as above

        behind = meant(inner)
        if behind is not inner:
            return self._limited(behind, limits)
        if get_origin(inner) is Annotated:
            inner, *metadata = get_args(inner)
            return self._shape(Annotated[inner, *metadata, *limits])
        if get_origin(inner) in UNIONS:
            return self._union(self._distributed(inner, limits))
        return limited(self._shape(inner), limits, shown(inner))

    def _distributed(self, union: Any, limits: "list[Limit]") -> list[Any]:
        """The members of a union, each with those limits that fit it."""
        from toolpost.server.marks import fits  # noqa: PLC0415 - as above

        members: list[Any] = []
        used: list[Limit] = []
        for member in get_args(union):
            shape = self._shape(member)
            fitting = [limit for limit in limits if fits(limit, shape)]
            used += fitting
            members.append(Annotated[member, *fitting] if fitting else member)
        for limit in limits:
            if limit not in used:
                raise SignatureError(f"a limit `{limit.name}` fits no part of {shown(union)}")
        return members

    # ----------------------------------------------------------------- choices

    def _union(self, members: Sequence[Any]) -> Shape:
        """The shape of a union: read by msgspec if it can tell the members apart, else by trying them."""
        metas = self.metas
        shapes = [self._shape(member) for member in members]
        real = [shape for shape in shapes if shape.type is not UnsetType]
        schema = any_of([shape.schema for shape in real])
        if MIRRORED in (alone := without_null(schema)):
            schema = alone
        kind = Union[tuple(shape.type for shape in shapes)]  # noqa: UP007 - of a tuple
        alike = any(self._alike(*pair) for pair in combinations(real, 2))
        if possible(kind) and not alike:
            return Shape(kind, schema, all(shape.native for shape in shapes))
        if self.metas == metas and any(isinstance(shape.schema, Opaque) for shape in shapes):
            with suppress(SignatureError):  # one of ours is among them, which pydantic does not know
                return self._guest(Union[tuple(members)])  # noqa: UP007 - of a tuple
        if alike and {self._name(one) for one in self._open} & reached(schema, self.defs).keys():
            # Trying would double the work with each level of a value.
            raise SignatureError(
                f"the members of {' | '.join(map(shown, members))} look alike and contain each other",
                hint="make them msgspec structs with tags, or pydantic models with a discriminator",
            )
        return Shape(stand_in("union", first_fit(real)), schema, native=False)

    def _alike(self, one: Shape, other: Shape) -> bool:
        """Whether some value may fit both types; msgspec would read two kinds of integer as one."""
        plain = (SCALARS[int], SCALARS[float])
        if one.schema in plain and other.schema in plain:
            return False
        tagged = isinstance(one.type, type(Struct)) and isinstance(other.type, type(Struct))
        return not tagged and overlap(one.schema, other.schema, self.defs)

    def _choices(self, it: Any, members: Sequence[Any]) -> Shape:
        """The shape of an enumeration or of a `Literal`."""
        choices = [member.value if isinstance(member, enum.Enum) else member for member in members]
        if not choices or not all(type(choice) in _CHOICES for choice in choices):
            raise SignatureError(
                f"{shown(it)} has choices that JSON cannot say",
                hint="take strings, integers, numbers, booleans or None",
            )
        native = possible(it)
        kind = it if native else stand_in("choices", one_of(choices, members))
        return Shape(kind, choice_of(choices), native)

    # ----------------------------------------------------------------- collections

    def _collection(self, it: Any, origin: Any, args: tuple[Any, ...]) -> Shape:
        kind: Any = _READ_AS[origin]
        if kind is dict:
            return self._mapping(*(args or (Any, Any)))
        if kind is tuple and it not in {tuple, typing.Tuple} and args[1:] != (...,):  # noqa: UP006 - is meant
            return self._tuple(args)
        item = args[0] if args else Any
        shape = self._shape(item)
        schema: dict[str, JSON] = {"type": "array"} | ({"items": shape.schema} if shape.schema else {})
        if kind in {set, frozenset}:
            schema["uniqueItems"] = True
            members = get_args(item) if get_origin(item) in UNIONS else (item,)
            if any((get_origin(member) or member).__hash__ is None for member in members):
                raise SignatureError(f"a set cannot hold {shown(item)}", hint="take a list")
        inner = (shape.type, ...) if kind is tuple else (shape.type,)
        native = shape.native and origin is not abc.Iterable
        return Shape(types.GenericAlias(kind, inner), schema, native, kind)

    def _tuple(self, args: tuple[Any, ...]) -> Shape:
        shapes = [self._shape(arg) for arg in args]
        schema: dict[str, JSON] = {"type": "array", "minItems": len(args), "maxItems": len(args)}
        if shapes:
            schema["prefixItems"] = [shape.schema for shape in shapes]
        kind = types.GenericAlias(tuple, tuple(shape.type for shape in shapes))
        return Shape(kind, schema, all(shape.native for shape in shapes), tuple)

    def _mapping(self, key: Any, item: Any) -> Shape:
        names, shape = self._shape(key), self._shape(item)
        schema: dict[str, JSON] = {"type": "object"}
        if names.base in _KEYS:
            schema["propertyNames"] = {"pattern": _KEYS[names.base]}
        elif not accepts(names.schema, "string", self.defs):
            raise SignatureError(f"a key in JSON is a string and cannot be {shown(key)}", hint="take str")
        elif names.schema not in ({}, SCALARS[str]):
            schema["propertyNames"] = names.schema
        if shape.schema:
            schema["additionalProperties"] = shape.schema
        return Shape(dict[names.type, shape.type], schema, names.native and shape.native, dict)

    # ----------------------------------------------------------------- named types

    def _alias(self, it: Any, behind: Any) -> Shape:
        """The shape of a name for another type, which may contain itself."""
        if it in self._open:
            return Shape(self._stand_ins[it], self.defs.ref(self._name(it)), native=False)
        self._open.add(it)
        shape = self._shape(self._scope.evaluate(behind))
        self._open.discard(it)
        if it not in self._stand_ins:
            return replace(shape, native=shape.native and possible(it))
        self._stand_ins[it].reader = lambda value: fit(value, shape.type)
        self.defs[self._name(it)] = shape.schema
        return Shape(shape.type, self.defs.ref(self._name(it)), native=False)

    def _class(self, it: Any, cls: Any) -> Shape:
        """The shape of a class that is none of the builtin ones."""
        if not inspect.isclass(cls):
            raise SignatureError(f"{shown(it)} cannot be said in JSON", hint=_INSTEAD)
        if it in self._known:
            return self._known[it]
        if it in self._open:
            kind = self._stand_ins.get(it)
            return Shape(kind or it, self.defs.ref(self._name(it)), native=kind is None)
        if is_guest(cls) and not issubclass(cls, Struct):
            return self._guest(it)
        if issubclass(cls, enum.Flag):
            return Shape(it, {"type": "integer"})
        if issubclass(cls, enum.Enum):
            return self._choices(it, list(cls))
        if _is_path(cls):
            return Shape(it, {"type": "string", "format": "path"})
        from toolpost.server.records import describe  # noqa: PLC0415 - 0.2 ms of a start

        record = describe(it, self._scope, output=self._output)
        if record is None:
            raise SignatureError(f"{shown(it)} cannot be said in JSON", hint=_INSTEAD)
        return self._record(it, cls, record)

    def _record(self, it: Any, cls: type[Any], record: "Record") -> Shape:
        """The shape of a class with fields: the class itself, or a stand-in that builds values of it."""
        from toolpost.server.records import record_schema  # noqa: PLC0415 - as above

        about = docstring.parse(_doc(cls))
        self._open.add(it)
        shapes = [self._field(cls, field, about.parameters) for field in record.fields]
        self._open.discard(it)
        kind, name = it, self._name(it)
        schema = record_schema(record, [shape.schema for shape in shapes], about.summary)
        native = record.ordinary and all(shape.native for shape in shapes) and possible(it)
        if not native:
            self._stale |= it not in self._stand_ins and name in reached(schema, self.defs)
            kind = self._stand_ins[it]
            kind.reader = record_reader(record, [shape.type for shape in shapes], build=not self._output)
        self.defs[name] = schema
        keys = None if record.array else frozenset(field.wire for field in record.fields)
        return self._known.setdefault(it, Shape(kind, self.defs.ref(name), native, keys=keys))

    def _field(self, cls: type[Any], field: "Field", told: Mapping[str, str]) -> Shape:
        with within(f"field `{field.name}` of {cls.__name__}"):
            if is_field(field.default):
                raise SignatureError("pydantic's Field has no effect here", hint="use pydantic's dataclass")
            shape = self._shape(field.annotation)
        about = shape.schema.get("description") or told.get(field.name)
        return replace(shape, schema=documented(shape, field.default, about, self.defs))

    def _guest(self, it: Any) -> Shape:
        """The shape of a type that pydantic reads, with no limit in it that pydantic would ignore."""
        from toolpost.server.overlooked import refuse_overlooked  # noqa: PLC0415 - for pydantic only

        self.guests = True
        guest = Guest(it, output=self._output)
        refuse_overlooked(it, self._scope)
        schema = guest.adopted(self.defs)
        model = isinstance(it, type) and hasattr(it, "model_validate_json")
        shape = Shape(it if model else stand_in("guest", guest.read), schema, native=model)
        return self._known.setdefault(it, shape) if isinstance(it, type) else shape

    def _name(self, it: Any) -> str:
        return self.defs.name(it, label(it))


def _is_path(cls: type[Any]) -> bool:
    paths = sys.modules.get("pathlib")  # who has a path has loaded it, and it is slow to load
    return paths is not None and issubclass(cls, paths.PurePath)


def _doc(cls: type[Any]) -> str | None:
    """The docstring that the author of a class wrote; not one that a decorator made from the signature."""
    doc = cls.__dict__.get("__doc__")
    return None if doc is None or doc.startswith(f"{cls.__name__}(") else doc
