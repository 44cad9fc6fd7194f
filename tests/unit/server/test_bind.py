import asyncio
import datetime as dt
import enum
import functools
import gc
import json
import sys
import weakref
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

import annotated_types as at
import hypothesis
import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from parameter_ids import tell

from toolpost.errors import InvalidParams, ToolError
from toolpost.json_schema import MAX_ISSUES, ValidationIssue
from toolpost.server.elicitation.asked_parameters import Ask
from toolpost.server.signature.annotations import Header
from toolpost.server.signature.compiled_types import ENCODER
from toolpost.server.signature.errors import ArgumentError, SignatureError
from toolpost.server.signature.function_schema import BoundFunction

T = TypeVar("T")


class Context:
    pass


class Special(Context):
    pass


class Typed(Generic[T]):
    pass


CONTEXTS = (Context,)


def call(bound: BoundFunction, value: Any, context: Any = None, **extra: Any) -> Any:
    return bound.call(bound.read(json.dumps(value).encode()), context, **extra)


def problems(bound: BoundFunction, value: Any) -> list[str]:
    with pytest.raises(ArgumentError) as refused:
        bound.read(value if isinstance(value, bytes) else json.dumps(value).encode())
    return [str(problem) for problem in refused.value.issues]


# --------------------------------------------------------------------- callables


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first
        b (int): the second,
            if there is one

    Returns:
        the sum
    """
    return a + b


async def add_later(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


class Adder:
    """Adds a number to others."""

    def __init__(self, a: int = 10) -> None:
        self.a = a

    def plus(self, b: int) -> int:
        """Add to mine."""
        return self.a + b

    async def plus_later(self, b: int) -> int:
        return self.a + b

    def __call__(self, b: int) -> int:
        return self.a + b

    @classmethod
    def zero(cls, b: int) -> int:
        return b

    @staticmethod
    def one(b: int) -> int:
        return 1 + b


class LateAdder:
    async def __call__(self, b: int) -> int:
        """Add later."""
        return 10 + b


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


def closure(a: int):
    def plus(b: int) -> int:
        return a + b

    return plus


def without_types(a, b=2):
    return a + b


@pytest.mark.parametrize(
    ("fn", "name", "is_async", "arguments"),
    [
        pytest.param(add, "add", False, {"a": 8}, id="function"),
        pytest.param(without_types, "without_types", False, {"a": 8}, id="without annotations"),
        pytest.param(add_later, "add_later", True, {"a": 8}, id="async function"),
        pytest.param(Adder(5).plus, "plus", False, {"b": 5}, id="method"),
        pytest.param(Adder(5).plus_later, "plus_later", True, {"b": 5}, id="async method"),
        pytest.param(Adder.zero, "zero", False, {"b": 10}, id="class method"),
        pytest.param(Adder.one, "one", False, {"b": 9}, id="static method"),
        pytest.param(Adder(5), "Adder", False, {"b": 5}, id="object"),
        pytest.param(LateAdder(), "LateAdder", True, {"b": 0}, id="async object"),
        pytest.param(closure(7), "plus", False, {"b": 3}, id="closure"),
        pytest.param(functools.partial(add, 7), "add", False, {"b": 3}, id="partial"),
        pytest.param(functools.partial(add, b=7), "add", False, {"a": 3}, id="partial by keyword"),
        pytest.param(functools.partial(Adder(5)), "Adder", False, {"b": 5}, id="partial of an object"),
        pytest.param(
            functools.partial(functools.partial(add, 7), b=3), "add", False, {}, id="all set by partials"
        ),
        pytest.param(functools.partial(add_later, 7), "add_later", True, {"b": 3}, id="async partial"),
        pytest.param(logged(add), "add", False, {"a": 8}, id="wrapped"),
        pytest.param(logged(add_later), "add_later", True, {"a": 8}, id="wrapped async"),
        pytest.param(logged(Adder(5).plus), "plus", False, {"b": 5}, id="wrapped method"),
        pytest.param(functools.lru_cache(add), "add", False, {"a": 8}, id="cached"),
    ],
)
def test_anything_that_can_be_called_is_bound(fn, name, is_async, arguments):
    bound = BoundFunction(fn)
    assert (bound.fn, bound.name, bound.is_async) == (fn, name, is_async)
    result = call(bound, arguments)
    assert (asyncio.run(result) if is_async else result) == 10
    assert {parameter.name for parameter in bound.parameters if parameter.required} <= set(arguments)


@pytest.mark.parametrize(
    ("fn", "summary"),
    [
        (add, "Add two numbers.\n\nReturns:\n    the sum"),
        (functools.partial(add, 1), "Add two numbers.\n\nReturns:\n    the sum"),
        (logged(add_later), "Add two numbers."),
        (Adder().plus, "Add to mine."),
        (Adder(), "Adds a number to others."),
        (LateAdder(), "Add later."),
        (without_types, ""),
        (functools.partial(without_types, 1), ""),
    ],
)
def test_the_summary_is_the_docstring_without_the_parameters(fn, summary):
    assert BoundFunction(fn).summary == summary


def test_parameters_are_described_in_the_order_of_the_signature():
    first, second = BoundFunction(add).parameters
    assert (first.name, first.field, first.required, first.default, first.compiled_type.type) == (
        "a",
        "a",
        True,
        UNSET,
        int,
    )
    assert first.description == "the first"
    assert (second.name, second.required, second.default) == ("b", False, 2)
    assert second.description == "the second, if there is one"


@pytest.mark.requirement("TOOL-5")
def test_the_signature_is_the_schema():
    assert BoundFunction(add).input_schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "the first"},
            "b": {"type": "integer", "default": 2, "description": "the second, if there is one"},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert BoundFunction(lambda: None, name="nothing").input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_a_name_may_be_given_and_must_be_where_there_is_none():
    assert BoundFunction(add, name="plus").name == "plus"
    assert BoundFunction(lambda a: a, name="same").name == "same"
    with pytest.raises(SignatureError, match=r"`<lambda>` needs an explicit name \(pass name=\)"):
        BoundFunction(lambda a: a)


def many(*args: int):
    return args


def named(**kwargs: int):
    return kwargs


def generates(a: int):
    yield a


async def generates_later(a: int):
    yield a


class Generates:
    def __call__(self, a: int):
        yield a


def two_contexts(a: Context, b: Special):
    return a, b


def two_names(a: Annotated[int, pydantic.Field(alias="b")], b: int):
    return a, b


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (many, "`many`: parameter `args`: `*args` is not supported"),
        (named, "`named`: parameter `kwargs`: `**kwargs` is not supported"),
        (print, "`print`: parameter `args`: `*args` is not supported"),
        (generates, "`generates`: generator functions are not supported"),
        (generates_later, "`generates_later`: generator functions"),
        (Generates(), "`Generates`: generator functions"),
        (functools.partial(generates, 1), "`generates`: generator functions"),
        (int, "`int`: its signature cannot be read"),
        (two_contexts, "`two_contexts`: parameter `b`: `a` already gets the context"),
        (two_names, "`two_names`: two parameters have the same name on the wire"),
    ],
)
def test_parameters_that_cannot_be_passed_by_name_are_rejected(fn, said):
    with pytest.raises(SignatureError) as refused:
        BoundFunction(fn, context_types=CONTEXTS)
    assert refused.value.message.startswith(said)


# --------------------------------------------------------------------- how arguments are handed over


def every_kind(a: int, /, b: str = "b", *, c: float = 0.5, d: list[int] | None = None):
    return a, b, c, d


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"a": 1}, (1, "b", 0.5, None)),
        ({"a": 1, "b": "x", "c": 2, "d": [3]}, (1, "x", 2.0, [3])),
        ({"d": None, "a": 1}, (1, "b", 0.5, None)),
    ],
)
def test_every_kind_of_parameter_gets_its_argument(arguments, result):
    assert call(BoundFunction(every_kind), arguments) == result


@pytest.mark.parametrize("raw", [UNSET, b"{}", Raw(b"{}"), b" null ", b"{ }"])
def test_arguments_may_be_absent(raw):
    bound = BoundFunction(functools.partial(add, 1))
    assert bound.call(bound.read(raw)) == 3
    with pytest.raises(ArgumentError, match="a: required but missing"):
        BoundFunction(add).read(raw)


def test_a_mutable_default_is_not_shared_between_calls():
    def collect(a: int, into: list[int] = [0], by: dict[str, int] = {}):  # noqa: B006 - is what is tested
        into.append(a)
        by["a"] = a
        return into, by

    bound = BoundFunction(collect)
    assert call(bound, {"a": 1}) == ([0, 1], {"a": 1})
    assert call(bound, {"a": 2}) == ([0, 2], {"a": 2})
    assert bound.input_schema["properties"]["into"]["default"] == [0]


def test_a_default_that_json_cannot_say_stays_out_of_the_schema():
    marker = object()

    def odd(a: Any = marker, b: int = None, c: Context = marker):  # noqa: RUF013 # pyright: ignore - is tested
        return a, b, c

    bound = BoundFunction(odd, context_types=CONTEXTS)
    assert bound.input_schema["properties"] == {"a": {}, "b": {"type": "integer"}}
    assert call(bound, {}, "context") == (marker, None, "context")
    assert call(bound, {"b": None}, "context") == (marker, None, "context")


def test_a_dataclass_is_made_as_it_makes_itself():
    @dataclass
    class Settings:
        name: str
        volume: int = 5
        tags: list[str] = field(default_factory=list)

    @dataclass(slots=True)
    class Small:
        name: str
        volume: int = 5

    def fn(settings: Settings, small: Small):
        return settings, small

    settings, small = call(BoundFunction(fn), {"settings": {"name": "a"}, "small": {"name": "b"}})
    assert vars(settings) == vars(Settings("a"))
    assert json.loads(ENCODER.encode([settings, small])) == [
        {"name": "a", "volume": 5, "tags": []},
        {"name": "b", "volume": 5},
    ]


def test_an_unset_default_is_one():
    def maybe(a: int | msgspec.UnsetType = UNSET):
        return a

    bound = BoundFunction(maybe)
    assert bound.input_schema["properties"] == {"a": {"type": "integer"}}
    assert call(bound, {}) is UNSET
    assert call(bound, {"a": 1}) == 1


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        (Context, Context),
        (Special, Context),
        (Context | None, Context),
        (Annotated[Context | None, "x"], Context),
        (Typed, Typed),
        (Typed[int], Typed),
    ],
)
def test_the_context_goes_to_the_parameter_of_its_type(kind, of):
    def first(it, a: int, b: int = 2):
        return it, a, b

    def last(a: int, /, *, it, b: int = 2):
        return it, a, b

    def only_position(it, a: int, /):
        return it, a, 2

    for fn in (first, last, only_position):
        fn.__annotations__ |= {"it": kind}
        bound = BoundFunction(fn, context_types=(of,))
        assert bound.context == "it"
        assert "it" not in bound.input_schema["properties"]
        assert call(bound, {"a": 1}, "context") == ("context", 1, 2)
        assert "unknown argument 'it'" in problems(bound, {"a": 1, "it": 1})[0]


async def later(ctx: Context):
    return ctx


async def later_but_typed(ctx: Typed[int] | None):
    return ctx


def now(ctx: Typed[int]):
    return ctx


def now_but_untyped(ctx: "Context"):
    return ctx


def either(ctx: Context | Typed[int]):
    return ctx


def test_a_function_gets_the_context_that_its_editor_shows():
    for fn in (later, now, either):
        assert BoundFunction(fn, context_types=(Context, Typed)).context == "ctx"


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (
            later_but_typed,
            "parameter `ctx`: an async function gets Context, not .*annotate it as Context",
        ),
        (now_but_untyped, "a sync function gets Typed, not Context .annotate it as Typed"),
    ],
)
def test_a_context_of_the_other_kind_is_refused(fn, said):
    with pytest.raises(SignatureError, match=said):
        BoundFunction(fn, context_types=(Context, Typed))


# --------------------------------------------------------------------- what would fail at every call


@pytest.mark.parametrize(
    ("kind", "default", "said"),
    [
        (
            int,
            "a",
            "`fn`: parameter `x`: the default 'a' does not match the annotation: expected an integer",
        ),
        (int, "5", "does not match the annotation: expected an integer"),
        (int, 1.5, "does not match the annotation: expected an integer"),
        (str, 5, "does not match the annotation: expected a string, got an integer"),
        (bool, 0, "does not match the annotation: expected a boolean"),
        (Literal["a"], "b", "the default 'b' does not match"),
        (Annotated[int, at.Ge(1)], 0, "the default 0 does not match"),
        (list[str], "x" * 500, "the default 'x+… does not match the annotation: expected an array"),
        (pydantic.PositiveInt, -1, "the default -1 does not match"),
        (Annotated[int, pydantic.Field(default="a")], UNSET, "the default 'a' does not match"),
    ],
)
def test_a_default_that_does_not_fit_is_refused(kind, default, said):
    def fn(x):
        return x

    fn.__annotations__ = {"x": kind}
    fn.__defaults__ = None if default is UNSET else (default,)
    with pytest.raises(SignatureError, match=said):
        BoundFunction(fn)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (int, 1),
        (float, 1),
        (int, None),
        (int | str, "a"),
        (Any, 1),
        (int, object()),
        (Literal[1], 1),
        (dt.date, "1970-01-01"),
    ],
)
def test_a_default_that_fits_or_cannot_be_judged_is_taken(kind, default):
    def fn(x=default):
        return x

    fn.__annotations__ = {"x": kind}
    assert call(BoundFunction(fn), {}) is default


class Things:
    def method(self, a: int):
        return self, a

    def of_class(cls, a: int):  # noqa: N805 # pyright: ignore[reportSelfClsParameterName] - is tested
        return cls, a

    @staticmethod
    def without(this: int):
        return this


@pytest.mark.parametrize(("fn", "name"), [(Things.method, "method"), (Things.of_class, "of_class")])
def test_a_method_without_its_object_is_refused(fn, name):
    said = (
        rf"`{name}`: parameter .* unbound method of Things \(register the bound method, Things\(…\)\.{name}\)"
    )
    with pytest.raises(SignatureError, match=said):
        BoundFunction(fn)


def test_a_lookalike_of_a_method_is_a_function():
    def of_no_class(self):
        return self

    things = Things()
    assert call(BoundFunction(things.method), {"a": 1}) == (things, 1)
    assert call(BoundFunction(of_no_class), {"self": 1}) == 1
    assert call(BoundFunction(Things.without), {"this": 1}) == 1
    assert call(BoundFunction(lambda: 1, name="x"), {}) == 1


def test_without_context_types_there_is_no_context():
    assert BoundFunction(add).context is None
    with pytest.raises(SignatureError, match="parameter `a`: Context cannot be represented in JSON"):
        BoundFunction(two_contexts)


def test_an_argument_set_by_a_partial_is_not_a_parameter():
    bound = BoundFunction(functools.partial(every_kind, c=0.25))
    assert "c" not in bound.input_schema["properties"]
    assert "0.25" not in json.dumps(bound.input_schema)
    assert problems(bound, {"a": 1, "c": 3}) == ["unknown argument 'c' (expected: a, b, d)"]


def test_a_field_of_pydantics_may_stand_as_default():
    def fn(
        a: int = pydantic.Field(3, gt=1, description="a number"),
        b: list[int] = pydantic.Field(default_factory=lambda: [7]),  # noqa: B008 - is what is tested
        c: str = pydantic.Field(..., alias="see"),
        d: Annotated[int, pydantic.Field(default=9, lt=10)] = pydantic.Field(description="last"),
        e: Annotated[int, pydantic.Field(default=1)] = 5,
    ):
        return a, b, c, d, e

    bound = BoundFunction(fn)
    assert bound.input_schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "exclusiveMinimum": 1, "description": "a number", "default": 3},
            "b": {"type": "array", "items": {"type": "integer"}},
            "see": {"type": "string"},
            "d": {"type": "integer", "exclusiveMaximum": 10, "description": "last", "default": 9},
            "e": {"type": "integer", "default": 5},
        },
        "required": ["see"],
        "additionalProperties": False,
    }
    assert call(bound, {"see": "x"}) == (3, [7], "x", 9, 5)
    assert problems(bound, {"c": "x", "a": 1}) == [
        "a: expected more than 1, got 1",
        "see: required but missing",
        "unknown argument 'c' (expected: a, b, see, d, e)",
    ]


# --------------------------------------------------------------------- names in annotations


def test_types_that_are_local_to_a_function_are_found():
    @dataclass
    class Inner:
        value: int

    @dataclass
    class Outer:
        inner: "Inner"
        more: "list[Inner]" = field(default_factory=list)

    class Keyed(TypedDict):
        inner: "Inner"

    def fn(outer: "Outer", inner: "Inner | None" = None, keyed: "Keyed | None" = None):
        return outer, inner, keyed

    bound = BoundFunction(fn)
    arguments = {"outer": {"inner": {"value": 1}, "more": [{"value": 2}]}, "keyed": {"inner": {"value": 3}}}
    assert call(bound, arguments) == (Outer(Inner(1), [Inner(2)]), None, {"inner": Inner(3)})
    assert problems(bound, {"outer": {"inner": {"value": "x"}}}) == [
        "outer.inner.value: expected an integer, got a string"
    ]


def test_types_in_the_closure_of_a_function_are_found_later():
    def scope(*, early: bool) -> Any:
        @dataclass
        class Local:
            value: int

        def fn(a: "Local"):
            return a, Local, unborn

        if early:
            return fn
        unborn = 1
        return fn

    assert call(BoundFunction(scope(early=False)), {"a": {"value": 1}})[0].value == 1
    assert "Local" in BoundFunction(scope(early=True)).input_schema["$defs"]


def test_nothing_of_the_callers_is_kept():
    class Big:
        pass

    def register():
        big = Big()
        number = int

        def fn(a: "number"):  # pyright: ignore - is tested
            return a

        assert number
        return BoundFunction(fn), weakref.ref(big)

    bound, big = register()
    gc.collect()
    assert big() is None
    assert call(bound, {"a": 1}) == 1


if sys.version_info >= (3, 12):

    def test_type_parameters_and_aliases_of_the_newer_syntax():
        space: dict[str, Any] = {}
        exec(
            "type Pair[T] = tuple[T, T]\n"
            "type Json = dict[str, Json] | list[Json] | str | None\n"
            "def fn[T: int](a: T, b: 'list[T]', c: Pair[str], d: Json): return a, b, c, d\n",
            space,
        )
        bound = BoundFunction(space["fn"])
        properties = bound.input_schema["properties"]
        assert properties["a"] == {"type": "integer"}
        assert properties["b"] == {"type": "array", "items": {"type": "integer"}}
        assert call(bound, {"a": 1, "b": [2], "c": ["x", "y"], "d": {"e": [None]}}) == (
            1,
            [2],
            ("x", "y"),
            {"e": [None]},
        )

    def test_a_question_is_found_in_a_type_that_contains_itself():
        space: dict[str, Any] = {"Annotated": Annotated, "Ask": Ask}
        exec(
            "type Plain = dict[str, Plain] | str\n"
            "type Tree[T] = list[Tree[T]] | T\n"
            "type Asked = dict[str, Asked] | Annotated[str, Ask('?')]\n"
            "def plain(a: Plain, b: Tree[int]): ...\n"
            "def asked(a: Asked): ...\n",
            space,
        )
        assert [one.name for one in BoundFunction(space["plain"]).parameters] == ["a", "b"]
        with pytest.raises(SignatureError, match="this Ask has no effect"):
            BoundFunction(space["asked"])

    def test_two_names_that_look_the_same_are_two_types():
        spaces: list[dict[str, Any]] = [{}, {"Annotated": Annotated, "Ask": Ask}]
        exec("type Name = dict[str, str]", spaces[0])
        exec("type Name = Annotated[str, Ask('?')]", spaces[1])
        for order in ((0, 1), (1, 0)):
            space = {"A": spaces[order[0]]["Name"], "B": spaces[order[1]]["Name"]}
            exec("def fn(a: tuple[A, B]): ...", space)
            with pytest.raises(SignatureError, match="this Ask has no effect"):
                BoundFunction(space["fn"])


# --------------------------------------------------------------------- what a model reads


@dataclass
class Stop:
    name: str
    minutes: Annotated[int, at.Ge(0)] = 0


class Mode(enum.Enum):
    BUS = "bus"
    TRAM = "tram"


class Ride(msgspec.Struct, tag="ride"):
    line: int


class Walk(msgspec.Struct, tag="walk"):
    steps: int


class Leg(msgspec.Struct, array_like=True, tag="leg"):
    line: int


class Pause(msgspec.Struct, array_like=True, tag="pause"):
    minutes: int


class Person(pydantic.BaseModel):
    name: str
    age: int


def plan(
    days: int,
    stops: list[Stop],
    mode: Mode = Mode.BUS,
    prices: dict[str, float] | None = None,
    part: Ride | Walk | None = None,
    legs: list[Leg | Pause] | None = None,
    person: Person | None = None,
    when: dt.date | None = None,
    code: Annotated[str, at.Len(2, 3)] = "ab",
    pair: tuple[int, str] = (1, "a"),
    size: Annotated[int, at.MultipleOf(5)] = 5,
    data: Annotated[bytes, at.MaxLen(2)] = b"",
    table: dict[Literal["x", "y"], int] | None = None,
    exact: msgspec.UnsetType | list[list[int]] = UNSET,
):
    return days, stops


GOOD = {"days": 1, "stops": [{"name": "a"}]}


@pytest.mark.requirement("TOOL-16")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"days": "soon"}, ["days: expected an integer, got a string"]),
        ({"days": None}, ["days: expected an integer, got null"]),
        ({"days": True}, ["days: expected an integer, got a boolean"]),
        ({"days": 1.5}, ["days: expected an integer, got a number"]),
        ({"stops": {}}, ["stops: expected an array, got an object"]),
        (
            {"stops": [{"name": 1}, {"minutes": -1}, "x", {"name": "a", "minutes": 2}]},
            [
                "stops[0].name: expected a string, got an integer",
                "stops[1].minutes: expected at least 0, got -1",
                "stops[1].name: required but missing",
                "stops[2]: expected an object, got a string",
            ],
        ),
        ({"mode": "car"}, ['mode: expected one of "bus", "tram", got "car"']),
        ({"mode": 1}, ['mode: expected one of "bus", "tram", got an integer']),
        ({"mode": "x" * 100}, ['mode: expected one of "bus", "tram", got "' + "x" * 59 + "…"]),
        (
            {"prices": {"a": 1, "b c": "x", "d": None}},
            ['prices["b c"]: expected a number, got a string', "prices.d: expected a number, got null"],
        ),
        ({"prices": 3}, ["prices: expected an object or null, got an integer"]),
        ({"part": {"type": "ride", "line": "x"}}, ["part.line: expected an integer, got a string"]),
        (
            {"part": {"type": "fly"}},
            [
                'part: expected an object with "ride" as `type` or an object with "walk" as `type` or null, got an object'  # noqa: E501 - the exact message
            ],
        ),
        ({"legs": [["leg", "x"]]}, ["legs[0][1]: expected an integer, got a string"]),
        ({"legs": [["pause"]]}, ["legs[0]: expected at least 2 items, got 1"]),
        ({"legs": [[]]}, ["legs[0]: expected at least 2 items, got 0"]),
        (
            {"legs": [["fly", 1]]},
            [
                'legs[0]: expected an array that begins with "leg" or an array that begins with "pause", got an array'  # noqa: E501 - the exact message
            ],
        ),
        (
            {"person": {"age": "old"}},
            [
                "person.name: Field required",
                "person.age: Input should be a valid integer, unable to parse string as an integer",
            ],
        ),
        ({"when": "soon"}, ["when: invalid RFC3339 encoded date"]),
        ({"when": 1}, ["when: expected a string (date) or null, got an integer"]),
        ({"code": "a"}, ["code: expected at least 2 characters, got 1"]),
        ({"code": "abcd"}, ["code: expected at most 3 characters, got 4"]),
        (
            {"pair": ["a", 1, 2]},
            [
                "pair: expected at most 2 items, got 3",
                "pair[0]: expected an integer, got a string",
                "pair[1]: expected a string, got an integer",
            ],
        ),
        ({"size": 7}, ["size: expected a multiple of 5, got 7"]),
        ({"data": "aGVsbG8="}, ["data: expected `bytes` of length <= 2"]),
        ({"data": "%"}, ["data: invalid base64 encoded string"]),
        ({"table": {"z": 1}}, ['table: a key: expected one of "x", "y", got "z"']),
        ({"exact": [[1], ["x"]]}, ["exact[1][0]: expected an integer, got a string"]),
        (
            {"size": 7, "code": 1, "when": "x"},
            [
                "when: invalid RFC3339 encoded date",
                "code: expected a string, got an integer",
                "size: expected a multiple of 5, got 7",
            ],
        ),
    ],
    ids=tell,
)
def test_invalid_arguments_are_reported_with_path_and_expected_type(arguments, said):
    assert problems(BoundFunction(plan), {**GOOD, **arguments}) == said


def test_the_text_is_for_the_model():
    with pytest.raises(ToolError) as refused:
        BoundFunction(add).read(b'{"b": "x", "c": 1, "d": 2}')
    assert str(refused.value) == (
        "Invalid arguments:\n"
        "- a: required but missing\n"
        "- b: expected an integer, got a string\n"
        "- unknown arguments 'c', 'd' (expected: a, b)"
    )
    assert isinstance(refused.value, ArgumentError)
    assert refused.value.issues[0] == ValidationIssue("a", "required but missing")
    assert problems(BoundFunction(lambda: None, name="none"), {"a": 1}) == [
        "unknown argument 'a' (expected: none)"
    ]


@pytest.mark.requirement("TOOL-17")
@pytest.mark.parametrize(
    "raw",
    [b"[1]", b"1", b'"{}"', b"true", b"", b"{", b"nul", b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"],
)
def test_arguments_that_are_not_an_object_are_a_protocol_error(raw):
    with pytest.raises(InvalidParams, match="must be a JSON object"):
        BoundFunction(add).read(raw)


def test_json_in_a_string_is_understood_only_where_no_string_fits():
    def fn(a: int, b: list[int], c: str, d: int | str, e: Stop, f: Any, g: Mode, h: Decimal):
        return a, b, c, d, e, f, g, h

    arguments = {
        "a": "1",
        "b": "[2.0]",
        "c": "3",
        "d": "4",
        "e": '{"name": "x"}',
        "f": "6",
        "g": "bus",
        "h": "8",
    }
    assert call(BoundFunction(fn), arguments) == (1, [2], "3", "4", Stop("x"), "6", Mode.BUS, Decimal(8))
    assert problems(
        BoundFunction(fn), {**arguments, "a": '"1"', "b": "[2", "g": '"bus"', "e": '{"name": 1}'}
    ) == [
        "a: expected an integer, got a string",
        "b: expected an array, got a string",
        "e: expected an object, got a string",
        'g: expected one of "bus", "tram", got "\\"bus\\""',
    ]


def test_json_in_a_string_may_be_as_deep_as_it_likes():
    def fn(a: list[Any]):
        return a

    assert problems(BoundFunction(fn), {"a": "[" * 100_000}) == ["a: expected an array, got a string"]
    assert problems(BoundFunction(fn), {"a": "[" * 100_000 + "]" * 100_000}) == [
        "a: expected an array, got a string"
    ]


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_long_list_of_issues_is_shortened(size):
    def fn(a: list[int], b: dict[str, int]):
        return a, b

    names = {f"n{number}": "x" for number in range(size)}
    told = problems(BoundFunction(fn), {"a": ["x"] * size, "b": names, **names})
    assert len(told) <= MAX_ISSUES
    assert sum(map(len, told)) < 5000


def test_a_value_nested_beyond_measure_is_refused_in_words():
    deep: Any = 1
    for _ in range(300):
        deep = [deep]

    def fn(a: list[Any], b: int):
        return a, b

    assert problems(BoundFunction(fn), {"a": deep, "b": "x"}) == ["b: expected an integer, got a string"]
    assert problems(BoundFunction(fn), {"a": {"a": deep}, "b": 1}) == ["a: expected an array, got an object"]


def test_a_validator_that_breaks_is_the_authors_error():
    @dataclass
    class Broken:
        a: int

        def __post_init__(self):
            raise KeyError(self.a)

    def fn(it: Broken):
        return it

    with pytest.raises(KeyError):
        BoundFunction(fn).read(b'{"it": {"a": 1}}')


# --------------------------------------------------------------------- strings


def strings(
    n: int = 0,
    x: float = 0,
    yes: bool = False,
    text: str = "",
    either: int | str = 0,
    when: dt.date | None = None,
    items: list[int] | None = None,
    stop: Stop | None = None,
    level: Literal[1, 2] = 1,
    mode: Mode = Mode.BUS,
    person: Person | None = None,
):
    return {name: value for name, value in locals().items() if value}


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ({"n": "3"}, {"n": 3}),
        ({"x": "1e3"}, {"x": 1000.0}),
        ({"yes": "true"}, {"yes": True}),
        ({"yes": "True"}, {"yes": True}),
        ({"text": "3"}, {"text": "3"}),
        ({"text": "null"}, {"text": "null"}),
        ({"either": "3"}, {"either": "3"}),
        ({"when": "2026-07-28"}, {"when": dt.date(2026, 7, 28)}),
        ({"items": "[1, 2]"}, {"items": [1, 2]}),
        ({"items": ["1", "2"]}, {"items": [1, 2]}),
        ({"items": "null"}, {}),
        ({"stop": '{"name": "a"}'}, {"stop": Stop("a")}),
        ({"level": "2"}, {"level": 2}),
        ({"mode": "tram"}, {"mode": Mode.TRAM}),
        ({"person": '{"name": "a", "age": 3}'}, {"person": Person(name="a", age=3)}),
    ],
)
def test_strings_are_converted_to_the_type(values, result):
    bound = BoundFunction(strings)
    got = bound.call(bound.read_strings(values))
    assert got == {"level": 1, "mode": Mode.BUS, **result}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"n": "x"}, "n: expected an integer, got a string"),
        ({"n": ""}, "n: expected an integer, got a string"),
        ({"yes": "maybe"}, "yes: expected a boolean, got a string"),
        ({"when": "soon"}, "when: invalid RFC3339 encoded date"),
        ({"items": "[1"}, "items: expected an array or null, got a string"),
        ({"items": ["1", "x"]}, "items[1]: expected an integer, got a string"),
        ({"stop": "[]"}, "stop: expected an object or null, got a string"),
        ({"level": "3"}, "level: expected one of 1, 2, got a string"),
        ({"mode": "car"}, 'mode: expected one of "bus", "tram", got "car"'),
        ({"other": "x"}, "unknown argument 'other' (expected: n, x, yes"),
    ],
)
def test_strings_that_do_not_fit_are_refused_alike(values, said):
    with pytest.raises(ArgumentError) as refused:
        BoundFunction(strings).read_strings(values)
    assert said in str(refused.value)


def test_a_missing_string_is_refused():
    with pytest.raises(ArgumentError, match="a: required but missing"):
        BoundFunction(add).read_strings({"b": "1"})


# --------------------------------------------------------------------- headers


@pytest.mark.requirement("HDR-6", "HDR-8")
def test_a_parameter_may_be_mirrored_into_a_header():
    def fn(
        region: Annotated[str | None, Header("Region"), "where"] = None,
        count: Annotated[int, Header("Count")] = 1,
        both: Annotated[pydantic.PositiveInt, Header("Both"), pydantic.AfterValidator(abs)] = 1,
    ):
        return region, count

    bound = BoundFunction(fn)
    assert bound.input_schema["properties"] == {
        "region": {"type": "string", "x-mcp-header": "Region", "description": "where"},
        "count": {"type": "integer", "x-mcp-header": "Count", "default": 1},
        "both": {"type": "integer", "exclusiveMinimum": 0, "x-mcp-header": "Both", "default": 1},
    }
    assert call(bound, {"region": None}) == (None, 1)


@pytest.mark.requirement("HDR-7", "HDR-8", "HDR-9", "HDR-11")
@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ([Annotated[list[str], Header("A")]], "the type of the property must be exactly one of"),
        ([Annotated[float, Header("A")]], "the type of the property must be exactly one of"),
        ([Annotated[int | str, Header("A")]], "the type of the property must be exactly one of"),
        ([Annotated[str, Header("a b")]], "cannot be part of a header name"),
        ([Annotated[str, Header("")]], "it must be a non-empty string"),
        ([Annotated[str, Header("A")], Annotated[str, Header("a")]], "'a' already uses it"),
        ([list[Annotated[str, Header("A")]]], "it must be reachable through `properties` alone"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(kinds, said):
    def fn(a, b=None):
        return a, b

    fn.__annotations__ = dict(zip("ab", kinds, strict=False))
    with pytest.raises(SignatureError) as refused:
        BoundFunction(fn)
    assert said in str(refused.value)


# --------------------------------------------------------------------- for all values

LETTERS = st.text("abc", max_size=3)
WHOLE = st.integers(-(2**40), 2**40)


@st.composite
def classes(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> tuple[Any, Any]:
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    kinds = [kind for kind, _ in parts]
    cls = make_dataclass("Made", [(f"f{number}", kind) for number, kind in enumerate(kinds)])
    return cls, st.builds(lambda values: cls(*values), st.tuples(*(values for _, values in parts)))


def exactly(kind: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.just((kind, values))


SCALARS = st.one_of(
    exactly(int, WHOLE),
    exactly(float, st.floats(allow_nan=False, allow_infinity=False)),
    exactly(bool, st.booleans()),
    exactly(str, LETTERS),
    exactly(None, st.none()),
    exactly(Literal["a", 1], st.sampled_from(["a", 1])),
    exactly(Mode, st.sampled_from(Mode)),
    exactly(Annotated[int, at.Interval(ge=0, lt=100)], st.integers(0, 99)),
    exactly(Annotated[str, at.Len(1, 2)], st.text("ab", min_size=1, max_size=2)),
    exactly(Annotated[int | None, at.Gt(3)], st.none() | st.integers(4, 2**40)),
    exactly(int | None, st.none() | WHOLE),
    exactly(list[int] | str | None, st.none() | LETTERS | st.lists(WHOLE, max_size=3)),
    exactly(Stop, st.builds(Stop, LETTERS, st.integers(0, 99))),
    exactly(Ride | Walk, st.builds(Ride, WHOLE) | st.builds(Walk, WHOLE)),
)
FORMATS = st.one_of(
    exactly(dt.date, st.dates()),
    exactly(dt.datetime, st.datetimes(timezones=st.none() | st.just(dt.UTC))),
    exactly(dt.timedelta, st.timedeltas(dt.timedelta(0), dt.timedelta(10**6))),
    exactly(Decimal, st.decimals(-(10**9), 10**9, places=3)),
    exactly(bytes, st.binary(max_size=5)),
    exactly(frozenset[int], st.frozensets(WHOLE, max_size=3)),
)


def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda it: (list[it[0]], st.lists(it[1], max_size=3))),
        inner.map(lambda it: (dict[str, it[0]], st.dictionaries(LETTERS, it[1], max_size=3))),
        st.tuples(inner, inner).map(lambda it: (tuple[it[0][0], it[1][0]], st.tuples(it[0][1], it[1][1]))),
        classes(inner),
    )


TYPES = st.recursive(SCALARS, deeper, max_leaves=5)
ALL_TYPES = st.recursive(SCALARS | FORMATS, deeper, max_leaves=5)

JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False, width=32) | LETTERS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["f0", "f1", "f2", "name", "minutes", "type", "line", "a"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def taking(kinds: list[Any]) -> BoundFunction:
    def fn(a=None, b=None, c=None):
        return a, b, c

    fn.__annotations__ = dict(zip("abc", kinds, strict=False))
    return BoundFunction(fn)


@given(st.data(), st.lists(ALL_TYPES, min_size=3, max_size=3))
def test_encoded_values_are_decoded_unchanged(data, types):
    values = tuple(data.draw(values) for _, values in types)
    bound = taking([kind for kind, _ in types])
    raw = ENCODER.encode(dict(zip("abc", values, strict=True)))
    assert bound.call(bound.read(raw)) == values
    assert jsonschema_rs.validator_for(bound.input_schema).is_valid(json.loads(raw))


def mutated(value: Any, draw: Any) -> Any:
    """Return a JSON value with a random change somewhere."""
    if isinstance(value, list) and value and draw(st.booleans()):
        at_ = draw(st.integers(0, len(value) - 1))
        return [*value[:at_], mutated(value[at_], draw), *value[at_ + 1 :]]
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value)))
        if draw(st.booleans()):
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: mutated(value[name], draw)}
    return draw(JSON)


def has_inexact_number(value: Any) -> bool:
    """Return whether a JSON value contains a float that is too large to be exact."""
    if isinstance(value, dict):
        return any(map(has_inexact_number, value.values()))
    if isinstance(value, list):
        return any(map(has_inexact_number, value))
    return isinstance(value, float) and abs(value) > 2**53


@pytest.mark.requirement("TOOL-19")
@hypothesis.settings(max_examples=300)
@given(st.data(), TYPES)
def test_exactly_the_values_of_the_schema_are_accepted(data, it):
    kind, values = it
    bound = taking([kind])
    value = mutated(json.loads(ENCODER.encode(data.draw(values))), data.draw)
    arguments = {"a": value}
    try:
        bound.read(json.dumps(arguments).encode())
        fits = True
    except ArgumentError:
        fits = False
    allowed = jsonschema_rs.validator_for(bound.input_schema).is_valid(arguments)
    if (isinstance(value, str) or value is None) and not allowed:
        return  # JSON in a string is understood beyond the schema, and null is not given
    if has_inexact_number(value):
        return  # a whole number to the schema, and too inexact to be read as one
    assert fits == allowed


@given(JSON, TYPES)
def test_every_mismatch_is_explained(value, it):
    bound = taking([it[0]])
    told: tuple[ValidationIssue, ...] = (ValidationIssue("a", "fits"),)
    try:
        bound.read(json.dumps({"a": value}).encode())
    except ArgumentError as error:
        told = error.issues
    assert told
    assert all(problem.path.startswith("a") and problem.message for problem in told)
