"""Forms: from a type to a question, and from the answer to a value."""

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import annotated_types as at
import msgspec
import pydantic
import pytest
from parameter_ids import tell

from toolpost.errors import ToolError
from toolpost.server.elicitation.forms import Accepted, Cancelled, Declined, ElicitationForm
from toolpost.server.signature.annotations import Titles
from toolpost.server.signature.errors import SignatureError
from toolpost.types import ElicitResult

STR = {"type": "string"}
INT = {"type": "integer"}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


COLOUR = {"type": "string", "enum": ["red", "blue"]}


@dataclass
class Guest:
    """A visitor.

    Args:
        name: as it is spoken
    """

    name: str
    age: Annotated[int, at.Ge(0), at.Le(150), "in years"]
    colour: Annotated[Colour, "of the hat"] = Colour.RED
    friendly: bool = True
    nick: str | None = None


class Movie(TypedDict, total=False):
    title: str


class Booking(msgspec.Struct):
    day: dt.date
    hats: Annotated[list[Colour], at.MaxLen(2)] = []
    seat: Colour | None = None


class User(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2, title="Full name")
    size: Literal["s", "l"] = "s"


def accepted(content: Any = None) -> ElicitResult:
    return ElicitResult(action="accept", content=content)


FORMS: list[tuple[Any, dict[str, Any], list[str], Any, Any]] = [
    (int, {"value": INT}, ["value"], {"value": 3}, 3),
    (str, {"value": STR}, ["value"], {"value": ""}, ""),
    (bool, {"value": {"type": "boolean"}}, ["value"], {"value": False}, False),
    (float, {"value": {"type": "number"}}, ["value"], {"value": 1}, 1.0),
    (Colour, {"value": COLOUR}, ["value"], {"value": "blue"}, Colour.BLUE),
    (Literal["a", "b"], {"value": {**STR, "enum": ["a", "b"]}}, ["value"], {"value": "b"}, "b"),
    (
        dt.datetime,
        {"value": {**STR, "format": "date-time"}},
        ["value"],
        {"value": "2026-07-28T10:00:00Z"},
        dt.datetime(2026, 7, 28, 10, tzinfo=dt.UTC),
    ),
    (dt.time, {"value": STR}, ["value"], {"value": "10:00:00"}, dt.time(10)),
    (
        list[Colour],
        {"value": {"type": "array", "items": COLOUR}},
        ["value"],
        {"value": ["red"]},
        [Colour.RED],
    ),
    (
        Guest,
        {
            "name": {**STR, "description": "as it is spoken"},
            "age": {**INT, "minimum": 0, "maximum": 150, "description": "in years"},
            "colour": {**COLOUR, "description": "of the hat", "default": "red"},
            "friendly": {"type": "boolean", "default": True},
            "nick": STR,
        },
        ["name", "age"],
        {"name": "Ann", "age": 3, "colour": "blue"},
        Guest("Ann", 3, Colour.BLUE),
    ),
    (Movie, {"title": STR}, [], {}, {}),
    (
        Booking,
        {
            "day": {**STR, "format": "date"},
            "hats": {"type": "array", "items": COLOUR, "maxItems": 2},
            "seat": COLOUR,
        },
        ["day"],
        {"day": "2026-07-28", "hats": ["red"], "seat": None},
        Booking(dt.date(2026, 7, 28), [Colour.RED]),
    ),
    (
        User,
        {
            "name": {**STR, "minLength": 2, "title": "Full name"},
            "size": {**STR, "enum": ["s", "l"], "default": "s"},
        },
        ["name"],
        {"name": "Ann"},
        User(name="Ann"),
    ),
]


@pytest.mark.requirement("ELIC-12")
@pytest.mark.parametrize(("kind", "fields", "required", "content", "data"), FORMS, ids=tell)
def test_a_flat_type_is_a_form(kind, fields, required, content, data):
    form = ElicitationForm(kind)
    asked = {"type": "object", "properties": fields}
    assert form.schema == asked | ({"required": required} if required else {})
    assert form.read(accepted(content)) == Accepted(data)


@pytest.mark.parametrize(("action", "answer"), [("decline", Declined()), ("cancel", Cancelled())])
def test_a_user_may_say_no_or_nothing(action, answer):
    assert ElicitationForm(int).read(ElicitResult(action=action)) == answer
    assert ElicitationForm(int).read(ElicitResult(action=action, content={"value": 1})) == answer


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (int, {"value": "x"}, "expected an integer, got a string"),
        (int, {}, "expected an integer, got null"),
        (int, None, "expected an integer, got null"),
        (Colour, {"value": "green"}, "invalid enum value 'green'"),
        (Guest, {"name": "Ann"}, "missing required field `age`"),
        (Guest, {"name": "Ann", "age": 200}, "age: expected an integer <= 150"),
        (User, {"name": "A"}, "name: String should have at least 2 characters"),
    ],
)
def test_an_answer_that_does_not_fit_is_reported(kind, content, said):
    with pytest.raises(ToolError, match="is not valid") as refused:
        ElicitationForm(kind).read(accepted(content))
    assert said in str(refused.value).lower() or said in str(refused.value)


@dataclass
class Nested:
    guest: Guest


@dataclass
class Several:
    a: int
    b: list[int]


@dataclass
class Empty:
    pass


@dataclass
class Rated:
    level: Level


@pytest.mark.requirement("ELIC-12")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Nested, "'guest' is not supported in a form"),
        (Several, "'b' has a list type that forms do not support"),
        (list[Level], "'value' has a list type that forms do not support"),
        (list, "'value' has a list type that forms do not support"),
        (Rated, "'level' is not supported in a form"),
        (Literal[1, 2], "is not supported in a form"),
        (Literal["a", 2], "is not supported in a form"),
        (Decimal, "is not supported in a form"),
        (int | str, "is not supported in a form"),
        (dict[str, int], "has no field for the user to fill in"),
        (Empty, "Empty has no field"),
        (object(), "cannot be represented in JSON"),
    ],
    ids=tell,
)
def test_nested_fields_are_rejected_by_name(kind, said):
    with pytest.raises(SignatureError) as refused:
        ElicitationForm(kind)
    assert said in str(refused.value)


# --------------------------------------------------------------------- titles


Size = Annotated[Literal["s", "x-l"], Titles({"x-l": "Extra large"}, s="Small")]


@dataclass
class Shirt:
    size: Size
    spare: list[Size]
    colour: Annotated[Literal["red", "blue"], Titles(red="Like fire")] = "blue"


def test_choices_have_titles():
    sizes = [{"const": "s", "title": "Small"}, {"const": "x-l", "title": "Extra large"}]
    form = ElicitationForm(Shirt)
    assert form.schema["properties"] == {
        "size": {"type": "string", "oneOf": sizes},
        "spare": {"type": "array", "items": {"anyOf": sizes}},
        "colour": {
            "type": "string",
            "oneOf": [{"const": "red", "title": "Like fire"}, {"const": "blue", "title": "blue"}],
            "default": "blue",
        },
    }
    read = form.read(ElicitResult(action="accept", content={"size": "s", "spare": ["x-l"]}))
    assert read == Accepted(Shirt("s", ["x-l"], "blue"))
    with pytest.raises(ToolError, match="size"):
        form.read(ElicitResult(action="accept", content={"size": "m", "spare": []}))


def test_choices_with_titles_may_be_written_as_a_schema():
    choices = [{"const": "a", "title": "A"}]

    @dataclass
    class Own:
        one: Annotated[str, msgspec.Meta(extra_json_schema={"oneOf": choices})]
        some: Annotated[list[str], msgspec.Meta(extra_json_schema={"items": {"anyOf": choices}})]

    assert ElicitationForm(Own).schema["properties"] == {
        "one": {"type": "string", "oneOf": choices},
        "some": {"type": "array", "items": {"anyOf": choices}},
    }


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Annotated[Literal["a"], Titles(b="B")], "a title for 'b', which is not a choice"),
        (list[Annotated[Literal["a"], Titles(b="B")]], "a title for 'b', which is not a choice"),
        (
            Annotated[str, msgspec.Meta(extra_json_schema={"oneOf": [{"const": 1, "title": "A"}]})],
            "not support",
        ),
        (Annotated[str, msgspec.Meta(extra_json_schema={"oneOf": [{"const": "a"}]})], "not support"),
        (list[Annotated[Literal[1, 2], Titles({"1": "One"})]], "not support"),
    ],
)
def test_titles_that_do_not_fit_are_refused(kind, told):
    with pytest.raises(SignatureError, match=told):
        ElicitationForm(kind)
