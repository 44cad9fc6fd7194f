"""Types one by one: their schema, accepted values and rejected values.

Each row is bound as the only parameter of a function. `jsonschema_rs` has to accept the same values,
except where a row names a difference.
"""

import datetime as dt
import enum
import json
import pathlib
import sys
import typing
import uuid
from collections import abc, deque, namedtuple
from dataclasses import InitVar, dataclass, field, make_dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import annotated_types as at
import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest
import typing_extensions as te
from msgspec import Meta, Struct, UnsetType
from parameter_ids import tell
from pydantic import BaseModel
from pydantic import Field as PField

from toolpost.server.signature.errors import ArgumentError, SignatureError
from toolpost.server.signature.function_schema import BoundFunction

T = TypeVar("T")
UTC = dt.UTC


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Tone(enum.StrEnum):
    WARM = "warm"


class Mixed(enum.Enum):
    NAME = "a"
    NUMBER = 1
    HALF = 0.5
    YES = True
    NOTHING = None


class Bits(enum.Flag):
    A = 1
    B = 2


class Pairs(enum.Enum):
    A = (1, 2)


class Nobody(enum.Enum):
    pass


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Place:
    """Somewhere.

    Attributes:
        name: how it is called
    """

    name: str
    at: Point
    tags: list[str] = field(default_factory=list)
    note: Annotated[str | None, "what else"] = None


@dataclass
class Line:
    x: int
    end: int = 0


@dataclass
class Positive:
    n: Annotated[int, at.Gt(0)]


@dataclass
class Tree:
    value: int
    below: "list[Tree]" = field(default_factory=list)


@dataclass
class Sum:
    left: "Sum | int"
    right: "Sum | int | list[Sum]" = 0


@dataclass
class Chain:
    link: Annotated[int, at.Gt(0)]
    next: "Chain | None" = None


@dataclass
class Ping:
    n: Annotated[int, at.Ge(0)]
    pong: "Pong | None" = None


@dataclass
class Pong:
    ping: Ping | None = None


@dataclass
class Early:
    seed: InitVar[int]
    doubled: int = field(default=0, init=False)
    shared: ClassVar[int] = 3

    def __post_init__(self, seed: int) -> None:
        self.doubled = 2 * seed


@dataclass
class Late:
    n: int
    made: int = field(default=7, init=False)


class Validates:
    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return handler(Annotated[source, PField(gt=3)])


class ReadTitle(TypedDict):
    title: te.ReadOnly[str]


@dataclass
class Even:
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("n must be even")


@dataclass
class Date:
    date: "dt.date | None" = None


@dataclass
class Box(Generic[T]):
    value: T
    more: list[T] = field(default_factory=list)


class IntBox(Box[int]):
    pass


@dataclass
class Wide(Box[Annotated[int, at.Gt(3)]]):
    label: str = ""


class Movie(TypedDict):
    title: str
    year: te.NotRequired[int]


class Partly(TypedDict, total=False):
    a: te.Required[te.ReadOnly[int]]
    b: Annotated[str, at.MinLen(2)]


class Pair(NamedTuple):
    a: int
    b: str = "b"


class Checked(NamedTuple):
    a: Annotated[int, at.Gt(0)]


Loose: Any = namedtuple("Loose", "a b")  # noqa: PYI024 # pyright: ignore[reportUntypedNamedTuple] - is tested


class Add(Struct, tag="add"):
    left: "Add | Number"
    right: "Add | Number"


class Number(Struct, tag="number"):
    value: int


class Wired(Struct, rename="camel", forbid_unknown_fields=True):
    first_name: str
    last_name: str = msgspec.field(default="", name="surname")
    tags: list[str] = []
    maybe: int | UnsetType = msgspec.UNSET


class Row(Struct, array_like=True, tag=True):
    a: int
    b: str = ""


class Empty(Struct, array_like=True):
    pass


class Guarded(Struct, tag=True):
    n: Annotated[int, at.Gt(0)]


@attrs.define
class Pet:
    name: str
    age: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    tags: list[str] = attrs.field(factory=list)


@attrs.define
class Private:
    _token: str
    size: int = attrs.field(default=1, converter=lambda size: size * 10)
    made: int = attrs.field(default=7, init=False)
    twice: int = attrs.field(default=attrs.Factory(lambda self: 2 * self.size, takes_self=True))


class User(BaseModel):
    name: str
    age: Annotated[int, PField(ge=0)] = 0


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Leaf(BaseModel):
    value: int
    below: list["Leaf"] = []


class Dated(BaseModel):
    model_config = {"strict": True, "title": "A date of its own"}
    when: dt.date


Numbers = pydantic.RootModel[list[int]]


@pydantic.dataclasses.dataclass
class Cell:
    n: Annotated[int, PField(gt=3)]


@dataclass
class Team:
    lead: User
    cell: Cell | None = None


UserId = NewType("UserId", int)
Name = NewType("Name", Annotated[str, Meta(min_length=1)])  # pyright: ignore[reportGeneralTypeIssues] - works
Bounded = TypeVar("Bounded", bound=int)
ByName = TypeVar("ByName", bound="Point")
Either = TypeVar("Either", int, str)
Ints = te.TypeAliasType("Ints", list[int])
ListOf = te.TypeAliasType("ListOf", list[T], type_params=(T,))
Tangle = te.TypeAliasType("Tangle", "dict[str, Tangle] | list[Tangle] | int | None")


def bound_to(kind: Any, **options: Any):
    def take(it):
        return it

    take.__annotations__ = {"it": kind}
    return BoundFunction(take, **options)


def read(bound, value: Any) -> Any:
    return bound.call(bound.read(json.dumps({"it": value}).encode()))


class Case(Struct):
    kind: Any
    schema: Any
    good: list[tuple[Any, Any]] = []
    bad: list[Any] = []
    unsaid: list[Any] = []
    """Rejected although the schema allows it: formats, and checks of the class."""
    helped: list[tuple[Any, Any]] = []
    """Read although the schema does not allow it: JSON in a string, an item of a set twice, no tag."""


INT = {"type": "integer"}
NUM = {"type": "number"}
STR = {"type": "string"}
BOOL = {"type": "boolean"}
NULL = {"type": "null"}


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


def listed(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def optional(schema: Any, **more: Any) -> dict[str, Any]:
    return {"anyOf": [schema, NULL], **more}


WHEN = dt.datetime(2026, 7, 28, 12, 30, tzinfo=UTC)

SCALARS = [
    Case(
        int,
        INT,
        same(1, -7, 2**60),
        [True, None, 1.5, [1], {}],
        helped=[("3", 3), (" 3 ", 3), ("3.0", 3)],
    ),
    Case(int, INT, [(1.0, 1), (-3.0, -3)], ["", "x", '"3"', "null", "1.5", "[1"]),
    Case(float, NUM, same(1.5, 1, -2e10), [True, None, [], {}], helped=[("1.5", 1.5)]),
    Case(bool, BOOL, same(True, False), [0, 1, None, "yes"], helped=[("true", True), ("false", False)]),
    Case(str, STR, same("", "3", "[1]", "null"), [1, None, True, ["a"]]),
    Case(None, NULL, same(None), [0, "", "none", False], helped=[("null", None)]),
    Case(type(None), NULL, same(None), [0]),
    Case(Any, {}, same(1, "a", "[1]", None, [1, {"a": None}])),
    Case(object, {}, same(1, "a", None, {"a": 1})),
    Case(bytes, {"type": "string", "contentEncoding": "base64"}, [("aGk=", b"hi"), ("", b"")], [1], ["%"]),
    Case(
        bytearray,
        {"type": "string", "contentEncoding": "base64"},
        [("aGk=", bytearray(b"hi"))],
        [None],
        ["a"],
    ),
    Case(
        dt.datetime,
        {"type": "string", "format": "date-time"},
        [("2026-07-28T12:30:00Z", WHEN), ("2026-07-28T12:30:00", WHEN.replace(tzinfo=None))],
        [1, None],
        ["x", "2026-13-01T00:00:00Z", "1"],
    ),
    Case(dt.date, {"type": "string", "format": "date"}, [("2026-07-28", dt.date(2026, 7, 28))], [1], ["x"]),
    Case(dt.time, {"type": "string", "format": "time"}, [("12:30:00", dt.time(12, 30))], [1], ["x"]),
    Case(
        dt.timedelta,
        {"type": "string", "format": "duration"},
        [("PT1M", dt.timedelta(minutes=1))],
        [60],
        ["x"],
    ),
    Case(
        uuid.UUID,
        {"type": "string", "format": "uuid"},
        [("00000000-0000-0000-0000-000000000001", uuid.UUID(int=1))],
        [1],
        ["x"],
    ),
    Case(
        Decimal,
        {"type": ["string", "number"], "format": "decimal"},
        [("1.50", Decimal("1.50")), (2, Decimal(2)), (0.5, Decimal("0.5"))],
        [True, None, []],
        ["x", ""],
    ),
    Case(
        pathlib.Path, {"type": "string", "format": "path"}, [("a/b", pathlib.Path("a/b"))], [1, None, ["a"]]
    ),
    Case(pathlib.PurePosixPath, {"type": "string", "format": "path"}, [("/a", pathlib.PurePosixPath("/a"))]),
    Case(int | UnsetType, INT, same(1), [None]),
    Case(typing.LiteralString, STR, same("a"), [1]),
]

ODD = Literal[1, True, "x", None]  # noqa: PYI061 - is meant

CHOICES = [
    Case(Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, same("a", "b"), ["c", 1, None, '"a"']),
    Case(Literal[1, 2], {"type": "integer", "enum": [1, 2]}, same(1), [3, True, "x"], helped=[("2", 2)]),
    Case(ODD, {"enum": [1, True, "x", None]}, same(1, True, "x", None), [0, False, "y"]),
    Case(
        Literal[Color.RED, "x"], {"type": "string", "enum": ["red", "x"]}, [("red", Color.RED)], ["blue", {}]
    ),
    Case(
        Color,
        {"type": "string", "enum": ["red", "blue"]},
        [("red", Color.RED), ("blue", Color.BLUE)],
        ["RED", "", 1, None],
    ),
    Case(
        Level,
        {"type": "integer", "enum": [1, 2]},
        [(1, Level.LOW)],
        [3, True, "low"],
        helped=[("2", Level.HIGH)],
    ),
    Case(Tone, {"type": "string", "enum": ["warm"]}, [("warm", Tone.WARM)], ["cold"]),
    Case(
        Mixed,
        {"enum": ["a", 1, 0.5, None]},
        [("a", Mixed.NAME), (1, Mixed.NUMBER), (0.5, Mixed.HALF), (None, Mixed.NOTHING)],
        ["b", 2, False, []],
    ),
    Case(Bits, INT, [(3, Bits.A | Bits.B)], ["A"], [64]),
]

COLLECTIONS = [
    Case(list[int], listed(INT), same([], [1, 2]), [1, ["a"], {}, None, "1"], helped=[("[1, 2]", [1, 2])]),
    Case(list[int], listed(INT), [([1.0, 2], [1, 2])], ["[1, "]),
    Case(list, {"type": "array"}, same([1, "a"]), [{}]),
    Case(typing.List, {"type": "array"}, same([1, "a"]), [{}]),  # noqa: UP006 - is meant
    Case(list[Any], {"type": "array"}, same([1, "a"]), [{}]),
    Case(abc.Sequence[str], listed(STR), same(["a"]), [[1]]),
    Case(abc.Iterable[str], listed(STR), same(["a"]), [[1]]),
    Case(abc.Collection[int], listed(INT), same([1]), ["a"]),
    Case(set[int], listed(INT, uniqueItems=True), [([1, 2], {1, 2})], [["a"]], helped=[([1, 1], {1})]),
    Case(frozenset[str], listed(STR, uniqueItems=True), [(["a"], frozenset("a"))], [[1]]),
    Case(set, {"type": "array", "uniqueItems": True}, [([1], {1})], [1], [[[1]]]),
    Case(
        set[tuple[int, int]],
        listed({"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [INT, INT]}, uniqueItems=True),
        [([[1, 2]], {(1, 2)})],
    ),
    Case(
        tuple[int, str],
        {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [INT, STR]},
        [([1, "a"], (1, "a"))],
        [[1], [1, "a", 2], ["a", 1], {}],
    ),
    Case(tuple[int, ...], listed(INT), [([], ()), ([1, 2], (1, 2))], [["a"]]),
    Case(tuple, {"type": "array"}, [([1, "a"], (1, "a"))], [1]),
    Case(typing.Tuple, {"type": "array"}, [([1, "a"], (1, "a"))], [1]),  # noqa: UP006 - is meant
    Case(tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}, [([], ())], [[1]]),
    Case(
        dict[str, int],
        {"type": "object", "additionalProperties": INT},
        same({}, {"a": 1}),
        [{"a": "b"}, [], "a"],
        helped=[('{"a": 1}', {"a": 1})],
    ),
    Case(dict, {"type": "object"}, same({"a": [1]}), [[]]),
    Case(abc.Mapping[str, Any], {"type": "object"}, same({"a": [1]}), [[]]),
    Case(
        dict[int, str],
        {"type": "object", "propertyNames": {"pattern": "^-?(0|[1-9][0-9]*)$"}, "additionalProperties": STR},
        [({"1": "a", "-2": "b"}, {1: "a", -2: "b"})],
        [{"x": "a"}, {"1": 1}],
    ),
    Case(
        dict[float, bool],
        {
            "type": "object",
            "propertyNames": {"pattern": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"},
            "additionalProperties": BOOL,
        },
        [({"1.5": True}, {1.5: True})],
        [{"x": True}],
    ),
    Case(
        dict[Color, int],
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["red", "blue"]},
            "additionalProperties": INT,
        },
        [({"red": 1}, {Color.RED: 1})],
        [{"green": 1}],
    ),
    Case(
        dict[Annotated[str, at.MaxLen(1)], int],
        {"type": "object", "propertyNames": {"type": "string", "maxLength": 1}, "additionalProperties": INT},
        same({"a": 1}),
        [{"aa": 1}],
    ),
    Case(
        dict[uuid.UUID, list[int]],
        {
            "type": "object",
            "propertyNames": {"type": "string", "format": "uuid"},
            "additionalProperties": listed(INT),
        },
        [({str(uuid.UUID(int=1)): [1]}, {uuid.UUID(int=1): [1]})],
        [{str(uuid.UUID(int=1)): 1}],
        [{"x": [1]}],
    ),
]

UNIONS = [
    Case(int | None, optional(INT), same(1, None), ["x", 1.5], helped=[("null", None), ("3", 3)]),
    Case(typing.Optional[str], optional(STR), same("null", None), [1]),  # noqa: UP045 - is meant
    Case(int | str, {"anyOf": [INT, STR]}, same(1, "1", "null"), [None, 1.5]),
    Case(int | float, {"anyOf": [INT, NUM]}, same(1, 1.5), ["x"]),
    Case(bool | int | None, {"anyOf": [BOOL, INT, NULL]}, same(True, 1, None), ["x"]),
    Case(list[int] | str, {"anyOf": [listed(INT), STR]}, same([1], "[1]"), [["a"], None]),
    Case(str | dt.date, {"anyOf": [STR, {"type": "string", "format": "date"}]}, same("2026-07-28", "x"), [1]),
    Case(
        dt.date | str,
        {"anyOf": [{"type": "string", "format": "date"}, STR]},
        [("2026-07-28", dt.date(2026, 7, 28)), ("x", "x")],
        [1],
    ),
    Case(
        Color | str,
        {"anyOf": [{"type": "string", "enum": ["red", "blue"]}, STR]},
        [("red", Color.RED), ("x", "x")],
    ),
    Case(
        list[int] | list[str],
        {"anyOf": [listed(INT), listed(STR)]},
        same([1], ["a"], []),
        [[1, "a"], [None], 1],
    ),
    Case(
        list[int] | set[str],
        {"anyOf": [listed(INT), listed(STR, uniqueItems=True)]},
        [(["a"], {"a"})],
        [[None]],
    ),
    Case(
        Annotated[int, Meta(le=0)] | Annotated[int, Meta(ge=10)],
        {"anyOf": [{"type": "integer", "maximum": 0}, {"type": "integer", "minimum": 10}]},
        same(0, 10),
        [5],
    ),
]

LIMITS = [
    Case(
        Annotated[int, Meta(ge=1, le=3)], {"type": "integer", "minimum": 1, "maximum": 3}, same(1, 3), [0, 4]
    ),
    Case(
        Annotated[int, Meta(gt=1), Meta(lt=3)],
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 3},
        same(2),
        [1, 3],
    ),
    Case(
        Annotated[str, Meta(min_length=1, max_length=2)],
        {"type": "string", "minLength": 1, "maxLength": 2},
        same("a"),
        ["", "abc"],
    ),
    Case(Annotated[str, Meta(pattern="^a")], {"type": "string", "pattern": "^a"}, same("ab"), ["b"]),
    Case(Annotated[int, Meta(multiple_of=5)], {"type": "integer", "multipleOf": 5}, same(10), [3]),
    Case(
        Annotated[dt.datetime, Meta(tz=True)],
        {"type": "string", "format": "date-time"},
        [("2026-07-28T12:30:00Z", WHEN)],
        [],
        ["2026-07-28T12:30:00"],
    ),
    Case(Annotated[int, at.Gt(3)], {"type": "integer", "exclusiveMinimum": 3}, same(4), [3]),
    Case(
        Annotated[float, at.Ge(0), at.Lt(1)],
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        same(0, 0.5),
        [-1, 1],
    ),
    Case(
        Annotated[int, at.Interval(gt=1, le=5)],
        {"type": "integer", "exclusiveMinimum": 1, "maximum": 5},
        same(2, 5),
        [1, 6],
    ),
    Case(Annotated[int, at.Gt(1.5)], {"type": "integer", "exclusiveMinimum": 1.5}, same(2), [1]),
    Case(
        Annotated[int, at.Gt(1), at.Ge(3)],
        {"type": "integer", "exclusiveMinimum": 1, "minimum": 3},
        same(3),
        [2],
    ),
    Case(
        Annotated[int, at.Gt(1), at.Gt(3), at.Gt(2)], {"type": "integer", "exclusiveMinimum": 3}, same(4), [3]
    ),
    Case(Annotated[int, at.MultipleOf(4)], {"type": "integer", "multipleOf": 4}, same(8), [6]),
    Case(
        Annotated[list[int], at.Len(1, 2)],
        listed(INT, minItems=1, maxItems=2),
        same([1], [1, 2]),
        [[], [1, 2, 3]],
    ),
    Case(
        Annotated[set[int], at.MinLen(2)],
        listed(INT, uniqueItems=True, minItems=2),
        [([1, 2], {1, 2})],
        [[1], [1, 1]],
    ),
    Case(Annotated[tuple[int, ...], at.MaxLen(1)], listed(INT, maxItems=1), [([1], (1,))], [[1, 2]]),
    Case(
        Annotated[dict[str, int], at.MinLen(1)],
        {"type": "object", "additionalProperties": INT, "minProperties": 1},
        same({"a": 1}),
        [{}],
    ),
    Case(
        Annotated[bytes, at.MaxLen(3)],
        {"type": "string", "contentEncoding": "base64", "maxLength": 4},
        [("aGk=", b"hi")],
        ["aGVsbG8="],
    ),
    Case(
        Annotated[Decimal, at.Gt(3), at.MultipleOf(Decimal("0.5"))],
        {"type": ["string", "number"], "format": "decimal"},
        [("3.5", Decimal("3.5"))],
        [],
        ["3", "3.7"],
    ),
    Case(
        Annotated[dt.date, at.Ge(dt.date(2026, 1, 1))],
        {"type": "string", "format": "date"},
        [("2026-07-28", dt.date(2026, 7, 28))],
        [],
        ["2025-01-01"],
    ),
    Case(
        Annotated[dt.datetime, at.Timezone(None)],
        {"type": "string", "format": "date-time"},
        [("2026-07-28T12:30:00", WHEN.replace(tzinfo=None))],
        [],
        ["2026-07-28T12:30:00Z"],
    ),
    Case(
        Annotated[dt.datetime, at.Timezone(...)],
        {"type": "string", "format": "date-time"},
        [("2026-07-28T12:30:00Z", WHEN)],
        [],
        ["2026-07-28T12:30:00"],
    ),
    Case(Annotated[int, at.Not(bool)], INT, same(0), ["x"], [1]),
    Case(at.LowerCase[str], STR, same("a"), [1], ["A"]),
    Case(
        Annotated[str, at.Predicate(str.isalpha), at.MinLen(2)],
        {"type": "string", "minLength": 2},
        same("ab"),
        ["a"],
        ["a1"],
    ),
    Case(
        Annotated[int | None, at.Gt(3)],
        optional({"type": "integer", "exclusiveMinimum": 3}),
        same(4, None),
        [3],
    ),
    Case(
        Annotated[int | str, at.Gt(3), at.MaxLen(2)],
        {"anyOf": [{"type": "integer", "exclusiveMinimum": 3}, {"type": "string", "maxLength": 2}]},
        same(4, "ab"),
        [3, "abc"],
    ),
    Case(Annotated[int | None, at.Predicate(bool)], optional(INT), same(1, None), ["a"], [0]),
    Case(Annotated[UserId, at.Gt(3)], {"type": "integer", "exclusiveMinimum": 3}, same(4), [3]),
    Case(
        Annotated[Name, at.MaxLen(2)],
        {"type": "string", "minLength": 1, "maxLength": 2},
        same("a"),
        ["", "abc"],
    ),
    Case(Annotated[int, at.Unit("m")], INT, same(4), ["a"]),
    Case(
        list[Annotated[int, at.Gt(3)]], listed({"type": "integer", "exclusiveMinimum": 3}), same([4]), [[3]]
    ),
    Case(list[Annotated[int, {"unhashable": "marks are not ours"}]], listed(INT), same([4]), [["x"]]),
    Case(
        Annotated[int, PField(gt=1, le=3)],
        {"type": "integer", "exclusiveMinimum": 1, "maximum": 3},
        same(2),
        [1, 4],
    ),
    Case(
        Annotated[int | None, PField(ge=1)], optional({"type": "integer", "minimum": 1}), same(1, None), [0]
    ),
    Case(
        Annotated[str, PField(pattern="^a", max_length=2)],
        {"type": "string", "pattern": "^a", "maxLength": 2},
        same("ab"),
        ["b", "abc"],
    ),
    Case(pydantic.PositiveInt, {"type": "integer", "exclusiveMinimum": 0}, same(1), [0]),
    Case(
        Annotated[pydantic.PositiveInt, PField(gt=5)],
        {"type": "integer", "exclusiveMinimum": 5},
        same(6),
        [5],
    ),
    Case(pydantic.conint(gt=3, strict=True), {"type": "integer", "exclusiveMinimum": 3}, same(4), [3]),
    Case(pydantic.StrictInt, INT, same(4), ["x"]),
]

NOTES = [
    Case(Annotated[int, "how many"], {"type": "integer", "description": "how many"}, same(1)),
    Case(Annotated[int, "inner", te.Doc("outer")], {"type": "integer", "description": "outer"}, same(1)),
    Case(Annotated[int, at.DocInfo("documented")], {"type": "integer", "description": "documented"}, same(1)),
    Case(
        Annotated[int, Meta(title="T", description="d", examples=[1], extra_json_schema={"x-y": 1})],
        {"type": "integer", "title": "T", "description": "d", "examples": [1], "x-y": 1},
        same(1),
    ),
    Case(
        Annotated[int, PField(title="T", description="d", examples=[1], json_schema_extra={"x-y": 1})],
        {"type": "integer", "title": "T", "description": "d", "examples": [1], "x-y": 1},
        same(1),
    ),
    Case(Annotated[int, PField(deprecated=True)], {"type": "integer", "deprecated": True}, same(1)),
    Case(
        Annotated[int, "doubled", pydantic.AfterValidator(lambda n: 2 * n)],
        {"type": "integer", "description": "doubled"},
        [(1, 2)],
    ),
    Case(Annotated[int | None, "maybe"], optional(INT, description="maybe"), same(1, None)),
]

ALIASES = [
    Case(UserId, INT, same(1), ["x"]),
    Case(Name, {"type": "string", "minLength": 1}, same("a"), [""]),
    Case(T, {}, same(1, "a")),
    Case(Bounded, INT, same(1), ["x"]),
    Case(Either, {"anyOf": [INT, STR]}, same(1, "x"), [None]),
    Case(Ints, listed(INT), same([1]), [["x"]]),
    Case(ListOf[str], listed(STR), same(["x"]), [[1]]),
    Case(Annotated[Ints, at.MinLen(1)], listed(INT, minItems=1), same([1]), [[]]),
]


def ref(name: str, **more: Any) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}", **more}


def record(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, **more}


POINT = record({"x": INT, "y": {"type": "integer", "default": 0}}, "x")
LINE = record({"x": INT, "end": {"type": "integer", "default": 0}}, "x")
USER = {
    "type": "object",
    "properties": {"name": STR, "age": {"type": "integer", "minimum": 0, "default": 0}},
    "required": ["name"],
}
CELL = {"type": "object", "properties": {"n": {"type": "integer", "exclusiveMinimum": 3}}, "required": ["n"]}
CAT = {
    "type": "object",
    "properties": {"kind": {"const": "cat", "type": "string"}, "lives": INT},
    "required": ["kind", "lives"],
}
DOG = {
    "type": "object",
    "properties": {"kind": {"const": "dog", "type": "string"}, "name": STR},
    "required": ["kind", "name"],
}

# Here `schema` is that of the definitions; the parameter itself is in the first one.
CLASSES = [
    Case(
        Point,
        {"": ref("Point"), "Point": POINT},
        [({"x": 1}, Point(1)), ({"x": 1, "y": 2, "z": 3}, Point(1, 2))],
        [{}, {"x": "a"}, {"x": 1, "y": None}, [1], "x"],
        helped=[('{"x": 1}', Point(1))],
    ),
    Case(ByName, {"": ref("Point"), "Point": POINT}, [({"x": 1}, Point(1))], [{}]),
    Case(
        Point | None, {"": optional(ref("Point")), "Point": POINT}, [(None, None), ({"x": 1}, Point(1))], [{}]
    ),
    Case(list[Point], {"": listed(ref("Point")), "Point": POINT}, [([{"x": 1}], [Point(1)])], [[{}]]),
    Case(
        Place,
        {
            "": ref("Place"),
            "Point": POINT,
            "Place": record(
                {
                    "name": {"type": "string", "description": "how it is called"},
                    "at": ref("Point"),
                    "tags": listed(STR),
                    "note": optional(STR, description="what else", default=None),
                },
                "name",
                "at",
                description="Somewhere.",
            ),
        },
        [({"name": "a", "at": {"x": 1}, "tags": ["b"]}, Place("a", Point(1), ["b"]))],
        [{"name": "a"}, {"name": "a", "at": {"y": 1}}],
    ),
    Case(
        Positive,
        {"": ref("Positive"), "Positive": record({"n": {"type": "integer", "exclusiveMinimum": 0}}, "n")},
        [({"n": 1}, Positive(1))],
        [{"n": 0}, {}, 1],
    ),
    Case(
        dict[str, Positive | None],
        {
            "": {"type": "object", "additionalProperties": optional(ref("Positive"))},
            "Positive": record({"n": {"type": "integer", "exclusiveMinimum": 0}}, "n"),
        },
        [({"a": {"n": 1}, "b": None}, {"a": Positive(1), "b": None})],
        [{"a": {"n": 0}}],
    ),
    Case(
        Tree,
        {"": ref("Tree"), "Tree": record({"value": INT, "below": listed(ref("Tree"))}, "value")},
        [({"value": 1, "below": [{"value": 2}]}, Tree(1, [Tree(2)]))],
        [{"value": 1, "below": [{}]}],
    ),
    Case(
        Chain,
        {
            "": ref("Chain"),
            "Chain": record(
                {
                    "link": {"type": "integer", "exclusiveMinimum": 0},
                    "next": optional(ref("Chain"), default=None),
                },
                "link",
            ),
        },
        [({"link": 1, "next": {"link": 2}}, Chain(1, Chain(2)))],
        [{"link": 1, "next": {"link": 0}}],
    ),
    Case(
        Sum,
        {
            "": ref("Sum"),
            "Sum": record(
                {
                    "left": {"anyOf": [ref("Sum"), INT]},
                    "right": {"anyOf": [ref("Sum"), INT, listed(ref("Sum"))], "default": 0},
                },
                "left",
            ),
        },
        [({"left": {"left": 1}, "right": [{"left": 2}]}, Sum(Sum(1), [Sum(2)]))],
        [{"left": {"left": "a"}}, {"left": 1, "right": [1]}],
    ),
    Case(
        Pong,
        {
            "": ref("Pong"),
            "Pong": record({"ping": optional(ref("Ping"), default=None)}),
            "Ping": record(
                {"n": {"type": "integer", "minimum": 0}, "pong": optional(ref("Pong"), default=None)}, "n"
            ),
        },
        [({"ping": {"n": 0, "pong": {"ping": {"n": 1}}}}, Pong(Ping(0, Pong(Ping(1)))))],
        [{"ping": {"n": 0, "pong": {"ping": {"n": -1}}}}],
    ),
    Case(
        Early,
        {"": ref("Early"), "Early": record({"seed": INT}, "seed")},
        [({"seed": 2}, Early(2)), ({"seed": 2, "doubled": 9}, Early(2))],
        [{}],
    ),
    Case(Late, {"": ref("Late"), "Late": record({"n": INT}, "n")}, [({"n": 1, "made": 9}, Late(1))], [{}]),
    Case(
        ReadTitle,
        {"": ref("ReadTitle"), "ReadTitle": record({"title": STR}, "title")},
        [({"title": "a"}, {"title": "a"})],
        [{}],
    ),
    Case(Even, {"": ref("Even"), "Even": record({"n": INT}, "n")}, [({"n": 2}, Even(2))], [{}], [{"n": 1}]),
    Case(
        Date,
        {
            "": ref("Date"),
            "Date": record({"date": optional({"type": "string", "format": "date"}, default=None)}),
        },
        [({"date": "2026-07-28"}, Date(dt.date(2026, 7, 28)))],
        [{"date": 1}],
    ),
    Case(
        Box[int],
        {"": ref("Box_int"), "Box_int": record({"value": INT, "more": listed(INT)}, "value")},
        [({"value": 1, "more": [2]}, Box(1, [2]))],
        [{"value": "a"}],
    ),
    Case(
        Box[Annotated[str, at.MinLen(1)]],
        {
            "": ref("Box_str"),
            "Box_str": record(
                {
                    "value": {"type": "string", "minLength": 1},
                    "more": listed({"type": "string", "minLength": 1}),
                },
                "value",
            ),
        },
        [({"value": "a"}, Box("a"))],
        [{"value": ""}],
    ),
    Case(
        Box[Box[int]],
        {
            "": ref("Box_Box_int"),
            "Box_int": record({"value": INT, "more": listed(INT)}, "value"),
            "Box_Box_int": record({"value": ref("Box_int"), "more": listed(ref("Box_int"))}, "value"),
        },
        [({"value": {"value": 1}}, Box(Box(1)))],
        [{"value": {"value": "a"}}],
    ),
    Case(
        Box,
        {"": ref("Box"), "Box": record({"value": {}, "more": {"type": "array"}}, "value")},
        [({"value": "a"}, Box("a"))],
        [{}],
    ),
    Case(
        IntBox,
        {"": ref("IntBox"), "IntBox": record({"value": INT, "more": listed(INT)}, "value")},
        [({"value": 1}, IntBox(1))],
        [{"value": "a"}],
    ),
    Case(
        Wide,
        {
            "": ref("Wide"),
            "Wide": record(
                {
                    "value": {"type": "integer", "exclusiveMinimum": 3},
                    "more": listed({"type": "integer", "exclusiveMinimum": 3}),
                    "label": {"type": "string", "default": ""},
                },
                "value",
            ),
        },
        [({"value": 4}, Wide(4))],
        [{"value": 3}],
    ),
    Case(
        Movie,
        {"": ref("Movie"), "Movie": record({"title": STR, "year": INT}, "title")},
        [({"title": "a"}, {"title": "a"}), ({"title": "a", "year": 1, "b": 2}, {"title": "a", "year": 1})],
        [{"year": 1}, {"title": "a", "year": "b"}],
    ),
    Case(
        Partly,
        {"": ref("Partly"), "Partly": record({"a": INT, "b": {"type": "string", "minLength": 2}}, "a")},
        [({"a": 1}, {"a": 1}), ({"a": 1, "b": "bb"}, {"a": 1, "b": "bb"})],
        [{}, {"a": 1, "b": "b"}],
    ),
    Case(
        Pair,
        {
            "": ref("Pair"),
            "Pair": {
                "type": "array",
                "minItems": 1,
                "prefixItems": [INT, {"type": "string", "default": "b"}],
                "maxItems": 2,
            },
        },
        [([1], Pair(1)), ([1, "c"], Pair(1, "c"))],
        [[], [1, 2], [1, "a", 2], {}],
    ),
    Case(
        Checked,
        {
            "": ref("Checked"),
            "Checked": {
                "type": "array",
                "minItems": 1,
                "prefixItems": [{"type": "integer", "exclusiveMinimum": 0}],
                "maxItems": 1,
            },
        },
        [([1], Checked(1))],
        [[0], []],
    ),
    Case(
        Loose,
        {"": ref("Loose"), "Loose": {"type": "array", "minItems": 2, "prefixItems": [{}, {}], "maxItems": 2}},
        [([1, "a"], Loose(1, "a"))],
        [[1]],
    ),
    Case(
        Wired,
        {
            "": ref("Wired"),
            "Wired": record(
                {
                    "firstName": STR,
                    "surname": {"type": "string", "default": ""},
                    "tags": listed(STR),
                    "maybe": INT,
                },
                "firstName",
                additionalProperties=False,
            ),
        },
        [({"firstName": "a", "surname": "b"}, Wired("a", "b"))],
        [{}, {"firstName": "a", "first_name": "b"}],
    ),
    Case(
        Add | Number,
        {
            "": {"anyOf": [ref("Add"), ref("Number")]},
            "Add": record(
                {
                    "type": {"const": "add"},
                    "left": {"anyOf": [ref("Add"), ref("Number")]},
                    "right": {"anyOf": [ref("Add"), ref("Number")]},
                },
                "type",
                "left",
                "right",
            ),
            "Number": record({"type": {"const": "number"}, "value": INT}, "type", "value"),
        },
        [
            (
                {
                    "type": "add",
                    "left": {"type": "number", "value": 1},
                    "right": {"type": "number", "value": 2},
                },
                Add(Number(1), Number(2)),
            )
        ],
        [{"type": "sub"}, {"value": 1}, {"type": "number", "value": "a"}],
    ),
    Case(
        Row,
        {
            "": ref("Row"),
            "Row": {
                "type": "array",
                "minItems": 2,
                "prefixItems": [{"const": "Row"}, INT, {"type": "string", "default": ""}],
            },
        },
        [(["Row", 1], Row(1)), (["Row", 1, "a", "more"], Row(1, "a"))],
        [["Col", 1], [1], []],
    ),
    Case(Empty, {"": ref("Empty"), "Empty": {"type": "array", "minItems": 0}}, [([], Empty())], [{}]),
    Case(
        Guarded,
        {
            "": ref("Guarded"),
            "Guarded": record(
                {"type": {"const": "Guarded"}, "n": {"type": "integer", "exclusiveMinimum": 0}}, "type", "n"
            ),
        },
        [({"type": "Guarded", "n": 1}, Guarded(1))],
        [{"type": "Guarded", "n": 0}, {"type": "Other", "n": 1}],
        helped=[({"n": 1}, Guarded(1))],
    ),
    Case(
        Pet,
        {
            "": ref("Pet"),
            "Pet": record(
                {"name": STR, "age": {"type": "integer", "default": 0}, "tags": listed(STR)}, "name"
            ),
        },
        [({"name": "a", "age": 1}, Pet("a", 1))],
        [{}],
        [{"name": "a", "age": -1}],
    ),
    Case(
        Private,
        {
            "": ref("Private"),
            "Private": record(
                {"token": STR, "size": {"type": "integer", "default": 1}, "twice": INT}, "token"
            ),
        },
        [({"token": "a", "size": 2}, Private("a", 2)), ({"token": "a", "made": 9}, Private("a"))],
        [{"_token": "a"}],
    ),
    Case(
        Point | Line,
        {"": {"anyOf": [ref("Point"), ref("Line")]}, "Point": POINT, "Line": LINE},
        [({"x": 1}, Point(1)), ({"x": 1, "end": 2}, Line(1, 2)), ({"x": 1, "other": 2}, Point(1))],
        [{"x": "a"}, {}, 1],
    ),
    Case(
        dict[str, int] | Point,
        {"": {"anyOf": [{"type": "object", "additionalProperties": INT}, ref("Point")]}, "Point": POINT},
        same({"x": 1}),
        [{"y": "a"}],
    ),
    Case(
        Point | dict[str, int],
        {"": {"anyOf": [ref("Point"), {"type": "object", "additionalProperties": INT}]}, "Point": POINT},
        [({"x": 1}, Point(1)), ({"z": 1}, {"z": 1}), ({"x": 1, "z": 2}, {"x": 1, "z": 2})],
        [{"y": "a"}],
    ),
    Case(
        Tangle,
        {
            "": ref("Tangle"),
            "Tangle": {
                "anyOf": [
                    {"type": "object", "additionalProperties": ref("Tangle")},
                    listed(ref("Tangle")),
                    INT,
                    NULL,
                ]
            },
        },
        same(1, None, [1, [2]], {"a": {"b": [None]}}),
        ["x", ["x"], {"a": {"b": "c"}}],
    ),
]

# Pydantic converts as pydantic does: numbers in strings are read, which its schema does not say.
GUESTS = [
    Case(
        User,
        {"": ref("User"), "User": USER},
        [({"name": "a"}, User(name="a"))],
        [{}, {"name": 1}, {"name": "a", "age": -1}, []],
        helped=[({"name": "a", "age": "3"}, User(name="a", age=3)), ('{"name": "a"}', User(name="a"))],
    ),
    Case(list[User], {"": listed(ref("User")), "User": USER}, [([{"name": "a"}], [User(name="a")])], [[{}]]),
    Case(
        dict[str, User | None],
        {"": {"type": "object", "additionalProperties": optional(ref("User"))}, "User": USER},
        [({"a": {"name": "a"}, "b": None}, {"a": User(name="a"), "b": None})],
        [{"a": {}}],
    ),
    Case(
        Team,
        {
            "": ref("Team"),
            "User": USER,
            "Cell": CELL,
            "Team": record({"lead": ref("User"), "cell": optional(ref("Cell"), default=None)}, "lead"),
        },
        [({"lead": {"name": "a"}, "cell": {"n": 4}}, Team(User(name="a"), Cell(4)))],
        [{"lead": {}}, {"lead": {"name": "a"}, "cell": {"n": 3}}],
    ),
    Case(Cell, {"": ref("Cell"), "Cell": CELL}, [({"n": 4}, Cell(4))], [{"n": 3}, {}]),
    Case(
        Cat | Dog,
        {"": {"anyOf": [ref("Cat"), ref("Dog")]}, "Cat": CAT, "Dog": DOG},
        [({"kind": "dog", "name": "a"}, Dog(kind="dog", name="a"))],
        [{"kind": "dog"}, 1],
        helped=[('{"kind": "cat", "lives": 7}', Cat(kind="cat", lives=7))],
    ),
    Case(
        User | Point,
        {
            "": {"anyOf": [ref("User"), ref("Point_2")]},
            "User": USER,
            "Point_2": {"type": "object", "properties": POINT["properties"], "required": ["x"]},
        },
        [({"x": 1}, Point(1)), ({"name": "a"}, User(name="a"))],
        [{}],
    ),
    Case(
        User | Wired,
        {
            "": {"anyOf": [ref("User"), ref("Wired")]},
            "User": USER,
            "Wired": record(
                {
                    "firstName": STR,
                    "surname": {"type": "string", "default": ""},
                    "tags": listed(STR),
                    "maybe": INT,
                },
                "firstName",
                additionalProperties=False,
            ),
        },
        [({"firstName": "a"}, Wired("a")), ({"name": "a"}, User(name="a"))],
        [{}],
    ),
    Case(
        Annotated[Cat | Dog, PField(discriminator="kind")],
        {
            "": {
                "oneOf": [ref("Cat"), ref("Dog")],
                "discriminator": {
                    "propertyName": "kind",
                    "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
                },
            },
            "Cat": CAT,
            "Dog": DOG,
        },
        [({"kind": "dog", "name": "a"}, Dog(kind="dog", name="a"))],
        [{"kind": "cow"}],
        helped=[('{"kind": "cat", "lives": 7}', Cat(kind="cat", lives=7))],
    ),
    Case(
        Leaf,
        {
            "": ref("Leaf"),
            "Leaf": {
                "type": "object",
                "properties": {"value": INT, "below": {**listed(ref("Leaf")), "default": []}},
                "required": ["value"],
            },
        },
        [({"value": 1, "below": [{"value": 2}]}, Leaf(value=1, below=[Leaf(value=2)]))],
        [{"below": []}],
    ),
    Case(
        Dated,
        {
            "": ref("Dated"),
            "Dated": {
                "type": "object",
                "title": "A date of its own",
                "properties": {"when": {"type": "string", "format": "date"}},
                "required": ["when"],
            },
        },
        [({"when": "2026-07-28"}, Dated(when=dt.date(2026, 7, 28)))],
        [{"when": 1}],
    ),
    Case(
        Numbers,
        {"": ref("RootModel_list_int"), "RootModel_list_int": listed(INT)},
        [([1], Numbers([1]))],
        [["a"]],
        helped=[("[1]", Numbers([1]))],
    ),
    Case(
        pydantic.AnyUrl,
        {"": ref("AnyUrl"), "AnyUrl": {"type": "string", "format": "uri", "minLength": 1}},
        [("http://a.b/", pydantic.AnyUrl("http://a.b/"))],
        [1],
        ["x"],
    ),
    Case(
        Annotated[int, pydantic.AfterValidator(lambda n: 2 * n)],
        {"": INT},
        [(2, 4)],
        ["x"],
        helped=[("3", 6)],
    ),
    Case(
        Annotated[int, Validates()],
        {"": {"type": "integer", "exclusiveMinimum": 3}},
        same(4),
        [3],
        helped=[("4", 4)],
    ),
    Case(
        list[Tangle | str],
        {
            "": listed({"anyOf": [ref("Tangle"), STR]}),
            "Tangle": {
                "anyOf": [
                    {"type": "object", "additionalProperties": ref("Tangle")},
                    listed(ref("Tangle")),
                    INT,
                    NULL,
                ]
            },
        },
        same([1, "a", [2]]),
        [[True], [["a"]]],
    ),
    Case(
        Annotated[list[int], pydantic.BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)],
        {"": listed(INT)},
        same([1]),
        [],
        helped=[("1,2", [1, 2])],
    ),
    Case(
        Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=2)],
        {"": {"type": "string", "minLength": 2}},
        [(" ab ", "ab")],
        ["a"],
        [" a "],
    ),
    Case(
        Annotated[Decimal, PField(max_digits=3)],
        {"": {"anyOf": [NUM, {"type": "string"}]}},
        [("12.3", Decimal("12.3"))],
        [None],
        ["1234"],
    ),
    Case(
        Annotated[Point, pydantic.AfterValidator(lambda p: p)],
        {"": {"type": "object", "properties": POINT["properties"], "required": ["x"]}},
        [({"x": 1}, Point(1))],
        [{}],
    ),
]


def identify(case: Case) -> str:
    return tell(case.kind).replace("<class '", "").replace("__main__.", "")[:70]


PLAIN = SCALARS + CHOICES + COLLECTIONS + UNIONS + LIMITS + NOTES + ALIASES


@pytest.mark.requirement("TOOL-5", "JSCH-1", "JSCH-5")
@pytest.mark.parametrize("case", PLAIN, ids=identify)
def test_a_type_has_its_schema(case):
    schema = bound_to(case.kind).input_schema
    required = {"required": ["it"]}
    assert schema == {
        "type": "object",
        "properties": {"it": case.schema},
        **required,
        "additionalProperties": False,
    }
    jsonschema_rs.meta.validate(schema)


@pytest.mark.requirement("TOOL-5", "JSCH-5")
@pytest.mark.parametrize("case", CLASSES + GUESTS, ids=identify)
def test_a_class_has_a_definition(case):
    schema = bound_to(case.kind).input_schema
    assert {"": schema["properties"]["it"], **schema.get("$defs", {})} == case.schema
    jsonschema_rs.meta.validate(schema)


@pytest.mark.requirement("TOOL-16", "TOOL-19")
@pytest.mark.parametrize("case", PLAIN + CLASSES + GUESTS, ids=identify)
def test_the_schema_and_the_decoder_agree(case):
    bound = bound_to(case.kind)
    allows = jsonschema_rs.validator_for(bound.input_schema).is_valid
    for value, expected in case.good + case.helped:
        got = read(bound, value)
        assert got == expected
        assert type(got) is type(expected) or isinstance(expected, int | float)
    for value in case.bad + case.unsaid:
        with pytest.raises(ArgumentError, match=r"^Invalid arguments:\s(- )?it"):
            read(bound, value)
    assert all(allows({"it": value}) for value, _ in case.good)
    assert all(allows({"it": value}) for value in case.unsaid)
    assert not any(allows({"it": value}) for value in case.bad)
    assert not any(allows({"it": value}) for value, _ in case.helped)


class Handmade:
    pass


@dataclass
class Holds:
    it: Handmade


@dataclass
class Fielded:
    n: int = PField(gt=3)


@dataclass
class Twin:
    other: "Twin | Sibling | None" = None


@dataclass
class Sibling:
    other: "Twin | Sibling | None" = None


@dataclass
class Uncle:
    """Refers to the twins only through another known class."""

    friend: "Friend"
    other: "Friend | Sibling | None" = None


@dataclass
class Friend:
    uncle: "Uncle | None" = None


class Homemade(at.BaseMetadata):
    """A custom constraint of a user."""


Knot = te.TypeAliasType("Knot", "list[Knot] | tuple[Knot, Knot] | int")

REFUSED = [
    (abc.Callable[[int], int], "Callable[[int], int] cannot be represented in JSON", "use a builtin type"),
    (abc.Iterator[int], "Iterator[int] cannot be represented in JSON", "dataclass"),
    (abc.AsyncIterator[int], "cannot be represented in JSON", None),
    (abc.Generator[int], "cannot be represented in JSON", None)
    if sys.version_info >= (3, 13)
    else (complex, "complex", None),
    (complex, "complex cannot be represented in JSON", None),
    (type, "type cannot be represented in JSON", None),
    (deque, "deque cannot be represented in JSON", None),
    (typing.Never, "Never cannot be represented in JSON", None),
    (Handmade, "Handmade cannot be represented in JSON", None),
    (list[Handmade], "Handmade cannot be represented in JSON", None),
    (Holds, "field `it` of Holds: Handmade cannot be represented in JSON", None),
    (set[list[int]], "a set cannot hold list[int]", "use a list"),
    (set[int | dict[str, int]], "a set cannot hold", None),
    (frozenset[Point], "a set cannot hold Point", None),
    (dict[bool, int], "bool cannot be the key of a JSON object", "use str"),
    (dict[tuple[int, int], int], "tuple[int, int] cannot be the key", None),
    (Pairs, "Pairs has choices that JSON cannot represent", "use strings"),
    (Nobody, "Nobody has choices that JSON cannot represent", None),
    (Literal[b"x"], "has choices that JSON cannot represent", None),
    (Annotated[str, at.Gt(3)], "the limit `gt` does not apply to str", None),
    (Annotated[int, at.MinLen(3)], "the limit `min_length` does not apply to int", None),
    (Annotated[Any, at.Gt(3)], "the limit `gt` does not apply to Any", None),
    (Annotated[Point, at.Gt(3)], "the limit `gt` does not apply to Point", None),
    (Annotated[str, Meta(ge=1)], "the limit `ge` does not apply to str", None),
    (Annotated[str | None, at.Gt(3)], "the limit `gt` applies to no part of str | None", None),
    (Annotated[str, PField(pattern="(")], "invalid limits for str: '('", None),
    (
        Annotated[str, PField(pattern="a"), PField(pattern="b")],
        "the limit `pattern` is set twice: 'a' and 'b'",
        None,
    ),
    (
        Annotated[dt.datetime, at.Timezone("Europe/Oslo")],
        "Timezone(tz='Europe/Oslo') cannot be enforced",
        "predicate",
    ),
    (Annotated[int, Homemade()], "cannot be enforced", None),
    (
        Annotated[int, Meta(ge=3), pydantic.AfterValidator(abs)],
        "pydantic would ignore the limit `ge`",
        "pydantic.Field",
    ),
    (
        Annotated[Wired, pydantic.AfterValidator(abs)],
        "pydantic does not support it: Unable to generate",
        None,
    ),
    (Annotated[Handmade, pydantic.AfterValidator(abs)], "pydantic does not support it", None),
    (
        Annotated[int, PField(validation_alias=pydantic.AliasPath("a", 1))],
        "an alias that is not a string",
        None,
    ),
    (Annotated[int, PField(3, validate_default=True)], "`validate_default`", None),
    (Fielded, "field `n` of Fielded: pydantic's Field has no effect here", "pydantic's dataclass"),
    (Twin, "the members of Twin | Sibling | NoneType are ambiguous and recursive", "tags"),
    (list[Twin | Sibling], "are ambiguous and recursive", None),
    (Uncle, "are ambiguous and recursive", None),
    (Knot, "are ambiguous and recursive", None),
    (Box[Annotated[int, {"no": "hash"}]], "unhashable type: 'dict'", None),
    (
        "Nowhere",
        "the annotation 'Nowhere' cannot be evaluated: name 'Nowhere' is not defined",
        "define or import",
    ),
    ("list[", "the annotation 'list[' cannot be evaluated", None),
]


@pytest.mark.parametrize(("kind", "said", "hint"), REFUSED, ids=tell)
def test_unsupported_parameters_are_rejected_with_the_reason(kind, said, hint):
    with pytest.raises(SignatureError) as refused:
        bound_to(kind)
    assert refused.value.message.startswith("`take`: parameter `it`: ")
    assert said in refused.value.message
    assert hint is None or hint in refused.value.hint
    assert isinstance(refused.value, TypeError)


def test_pydantic_annotations_without_pydantic_are_rejected(monkeypatch):
    monkeypatch.delitem(sys.modules, "pydantic")
    with pytest.raises(SignatureError, match="it needs pydantic, which is not imported"):
        bound_to(Annotated[int, Validates()])


def test_two_classes_of_the_same_name_have_two_definitions():
    one, other = (make_dataclass("Same", [("it", kind)]) for kind in (int, str))

    def fn(a: one, b: other, c: list[one]):  # pyright: ignore - made above
        return a, b, c

    schema = BoundFunction(fn).input_schema
    assert schema["properties"] == {
        "a": ref("Same"),
        "b": ref("Same_2"),
        "c": listed(ref("Same")),
    }
    assert schema["$defs"] == {"Same": record({"it": INT}, "it"), "Same_2": record({"it": STR}, "it")}


def test_a_survey_says_the_same_each_time():
    def fn(a: Place, b: User | Point, c: Literal["x", "y"], d: set[Color]):
        return a, b, c, d

    first, second = json.dumps(BoundFunction(fn).input_schema), json.dumps(BoundFunction(fn).input_schema)
    assert first == second


def test_a_deep_value_that_fits_only_at_its_end_is_read_in_one_go():
    bound = bound_to(Sum)
    value: Any = "not a number"
    for _ in range(60):
        value = {"left": value, "right": 1}
    with pytest.raises(ArgumentError):
        read(bound, value)
