"""Return values of tools: content, structured content, schemas, media."""

import datetime as dt
import enum
import json
import math
import sys
from base64 import b64encode
from collections import abc
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Never, NoReturn, TypedDict

import annotated_types as at
import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from parameter_ids import tell

from toolpost.errors import MCPError
from toolpost.protocol import jsonrpc
from toolpost.server.registry.media import Audio, File, Image, Media
from toolpost.server.signature.errors import SignatureError
from toolpost.server.signature.results import OutputError, ResultConverter
from toolpost.types.content import (
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from toolpost.types.tools import CallToolResult

INT = {"type": "integer"}
STR = {"type": "string"}
PNG = b"\x89PNG\r\n\x1a\n..."


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Counted:  # a check must not make it again
    n: int
    twice: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        assert not self.twice, "made from what was made"
        self.twice = 2 * self.n


@dataclass
class Started:
    seed: InitVar[int]


@dataclass
class Tree:
    value: int
    below: "list[Tree]" = field(default_factory=list)


class Movie(TypedDict, total=False):
    title: str


class Ride(msgspec.Struct, tag="ride"):
    line: int


class Walk(msgspec.Struct, tag="walk"):
    steps: int
    then: "Ride | Walk | None" = None


class Checked(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        assert self.n != 13


@attrs.define
class Pet:
    name: str = attrs.field(validator=attrs.validators.instance_of(str))
    _secret: int = 1


class Measured(pydantic.BaseModel):
    length: float
    width: float | None = None


class User(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    name: str = pydantic.Field(serialization_alias="fullName")

    @pydantic.computed_field
    @property
    def initial(self) -> str:
        return self.name[0]


class Holder(msgspec.Struct):
    user: User | None = None


class Plain(pydantic.BaseModel):
    a: int


class Held(msgspec.Struct):
    plain: Plain


def returning(annotation: Any = ..., *, is_bare: bool = False) -> ResultConverter:
    def fn():
        return None

    if annotation is not ...:
        fn.__annotations__ = {"return": annotation}
    return ResultConverter.for_function(fn, is_bare=is_bare)


def sent(result: CallToolResult) -> dict[str, Any]:
    return json.loads(jsonrpc.encode(result))


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def blob(data: bytes, name: str = "data", mime_type: str = "application/octet-stream") -> dict[str, Any]:
    resource = {"uri": f"file:///{name}", "blob": b64encode(data).decode(), "mimeType": mime_type}
    return {"type": "resource", "resource": resource}


PICTURE = {"type": "image", "data": b64encode(PNG).decode(), "mimeType": "image/png"}

# --------------------------------------------------------------------- content


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, []),
        ("", [text("")]),
        ("words", [text("words")]),
        (5, [text("5")]),
        (True, [text("true")]),
        (1.5, [text("1.5")]),
        (Color.RED, [text("red")]),
        (dt.date(2026, 7, 28), [text("2026-07-28")]),
        (Path("a/b"), [text("a/b")]),
        (pydantic.AnyUrl("http://a.b/"), [text("http://a.b/")]),
        (b"\x00", [blob(b"\x00")]),
        (Image(PNG), [PICTURE]),
        (TextContent("a"), [text("a")]),
        (
            [TextContent("a"), "b", Image(PNG), b"c", 1, {"d": 2}],
            [text("a"), text("b"), PICTURE, blob(b"c"), text("1"), text('{"d":2}')],
        ),
        (("a", Image(PNG)), [text("a"), PICTURE]),
        ([b"a", b"b"], [blob(b"a"), blob(b"b")]),
    ],
    ids=tell,
)
@pytest.mark.parametrize("annotation", [..., Any, object])
def test_without_a_promise_the_value_decides(annotation, value, content):
    returns = returning(annotation)
    assert (returns.output_schema, returns.is_wrapped, returns.wrapped_schema) == (None, False, None)
    assert sent(returns.convert(value)) == {"content": content}
    assert sent(returns.convert(value, wrap=True)) == {"content": content}


@pytest.mark.requirement("TOOL-12")
@pytest.mark.parametrize(
    "annotation", [..., Any, list, list[Any], list[object], abc.Sequence, tuple[Any, ...]]
)
@pytest.mark.parametrize("value", [[], [1, "a"], ["a", "b"], (1, 2)], ids=tell)
def test_a_list_of_anything_is_structured_unless_it_holds_blocks(annotation, value):
    returns = returning(annotation)
    assert returns.output_schema is None
    result = sent(returns.convert(value))
    assert result["structuredContent"] == {"result": list(value)}
    assert json.loads(result["content"][0]["text"]) == list(value)
    assert sent(returns.convert([*value, Image(PNG)])) == {
        "content": [*(text(str(item)) for item in value), PICTURE]
    }


@pytest.mark.parametrize(
    "annotation", [list[ResourceLink], list[ResourceLink | str], list[Image | str] | None]
)
@pytest.mark.parametrize(
    ("value", "content"),
    [([], []), (["a", "b"], [text("a"), text("b")]), (("a", Image(PNG)), [text("a"), PICTURE])],
    ids=tell,
)
def test_a_list_with_blocks_is_a_list_of_content(annotation, value, content):
    assert sent(returning(annotation).convert(value)) == {"content": content}


@pytest.mark.requirement("TOOL-12")
@pytest.mark.parametrize(
    ("value", "structured"),
    [
        ({"a": 1}, {"a": 1}),
        ({}, {}),
        (Point(1), {"x": 1, "y": 0}),
        (Ride(3), {"type": "ride", "line": 3}),
        (Pet("a"), {"name": "a"}),
        (User(name="abc"), {"fullName": "abc", "initial": "a"}),
        ({1: {"a": b"x"}}, {"1": {"a": "eA=="}}),
    ],
    ids=tell,
)
def test_an_object_is_structured_content_also_without_a_promise(value, structured):
    result = sent(returning().convert(value))
    assert result["structuredContent"] == structured
    (block,) = result["content"]
    assert json.loads(block["text"]) == structured


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        type(None),
        str | None,
        bytes,
        Image,
        Audio | None,
        File,
        Content,
        TextContent,
        ImageContent | str,
        list[Content],
        list[str | Image],
        tuple[str, Image],
        abc.Sequence[Media | str],
        abc.Iterable[TextContent],
        list[Annotated[Image, "a picture"]],
        Image | int,
        CallToolResult,
        CallToolResult | dict[str, int],
        int | Any,
        NoReturn,
        Never,
    ],
    ids=tell,
)
def test_content_has_no_schema(annotation):
    returns = returning(annotation)
    assert returns.output_schema is None
    assert sent(returns.convert("words")) == {"content": [text("words")]}
    assert sent(returns.convert(None)) == {"content": []}
    assert sent(returns.convert(Image(PNG))) == {"content": [PICTURE]}


def test_a_content_block_is_unchanged():
    link = ResourceLink(uri="a:b", name="c")
    assert returning().convert(link).content == [link]
    assert returning().convert([link, "ü"]).content == [link, TextContent("ü")]


def test_a_whole_result_passes_as_it_is():
    result = CallToolResult(content=[TextContent("a")], structured_content=[1], is_error=True)
    assert returning(CallToolResult).convert(result, wrap=True) is result
    assert returning().convert(result) is result


# --------------------------------------------------------------------- structured content

POINT = {
    "type": "object",
    "properties": {"x": INT, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
}
RIDE = {
    "type": "object",
    "properties": {"type": {"const": "ride"}, "line": INT},
    "required": ["type", "line"],
}
USER = {
    "type": "object",
    "properties": {"fullName": STR, "initial": {"type": "string", "readOnly": True}},
    "required": ["fullName", "initial"],
    "additionalProperties": False,
}

# annotation, schema, (value, structured)…
OBJECTS = [
    (Point, POINT, [(Point(1), {"x": 1, "y": 0}), ({"x": 1}, {"x": 1})]),
    (dict[str, int], {"type": "object", "additionalProperties": INT}, [({"a": 1}, {"a": 1}), ({}, {})]),
    (dict, {"type": "object"}, [({"a": [1]}, {"a": [1]})]),
    (Movie, {"type": "object", "properties": {"title": STR}}, [({}, {}), ({"title": "a"}, {"title": "a"})]),
    (
        Counted,
        {
            "type": "object",
            "properties": {"n": INT, "twice": {"type": "integer", "default": 0}},
            "required": ["n"],
        },
        [(Counted(2), {"n": 2, "twice": 4})],
    ),
    (Started, {"type": "object", "properties": {}}, [(Started(1), {})]),
    (Checked, {"type": "object", "properties": {"n": INT}, "required": ["n"]}, [(Checked(1), {"n": 1})]),
    (Pet, {"type": "object", "properties": {"name": STR}, "required": ["name"]}, [(Pet("a"), {"name": "a"})]),
    (
        Tree,
        {
            "type": "object",
            "properties": {"value": INT, "below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
            "required": ["value"],
            "$defs": {
                "Tree": {
                    "type": "object",
                    "properties": {
                        "value": INT,
                        "below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                    },
                    "required": ["value"],
                }
            },
        },
        [(Tree(1, [Tree(2)]), {"value": 1, "below": [{"value": 2, "below": []}]})],
    ),
    (
        Ride | Point,
        {
            "type": "object",
            "anyOf": [{"$ref": "#/$defs/Ride"}, {"$ref": "#/$defs/Point"}],
            "$defs": {"Ride": RIDE, "Point": POINT},
        },
        [(Ride(1), {"type": "ride", "line": 1}), (Point(1), {"x": 1, "y": 0})],
    ),
    (Annotated[Point, "where"], {**POINT, "description": "where"}, [(Point(1), {"x": 1, "y": 0})]),
    (
        User,
        USER,
        [
            (User(name="abc"), {"fullName": "abc", "initial": "a"}),
            ({"name": "abc"}, {"fullName": "abc", "initial": "a"}),
        ],
    ),
    (
        Held,
        {
            "type": "object",
            "properties": {"plain": {"$ref": "#/$defs/Plain"}},
            "required": ["plain"],
            "$defs": {"Plain": {"type": "object", "properties": {"a": INT}, "required": ["a"]}},
        },
        [(Held(Plain(a=1)), {"plain": {"a": 1}})],
    ),
]

OTHERS = [
    (int, INT, [(1, 1)]),
    (bool, {"type": "boolean"}, [(True, True)]),
    (float, {"type": "number"}, [(1.5, 1.5), (2, 2)]),
    (str, STR, [("", ""), ("ü", "ü"), ("5", "5")]),
    (Annotated[str, "words"], {"type": "string", "description": "words"}, [("a", "a")]),
    (int | str, {"anyOf": [INT, STR]}, [(1, 1), ("a", "a")]),
    (list[str], {"type": "array", "items": STR}, [(["a"], ["a"]), (("a",), ["a"])]),
    (
        tuple[int, str],
        {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [INT, STR]},
        [((1, "a"), [1, "a"])],
    ),
    (set[int], {"type": "array", "items": INT, "uniqueItems": True}, [({1}, [1])]),
    (Color, {"type": "string", "enum": ["red"]}, [(Color.RED, "red")]),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, [(1, 1)]),
    (list[Annotated[int, {"no": "hash"}]], {"type": "array", "items": INT}, [([1], [1])]),
    (dt.date, {"type": "string", "format": "date"}, [(dt.date(2026, 7, 28), "2026-07-28")]),
    (Annotated[int, at.Gt(3)], {"type": "integer", "exclusiveMinimum": 3}, [(4, 4)]),
    (
        Point | None,
        {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "$defs": {"Point": POINT}},
        [(Point(1), {"x": 1, "y": 0}), (None, None)],
    ),
    (
        list[Point],
        {"type": "array", "items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": POINT}},
        [([Point(1)], [{"x": 1, "y": 0}])],
    ),
    (
        list[User],
        {"type": "array", "items": {"$ref": "#/$defs/User"}, "$defs": {"User": USER}},
        [([User(name="abc")], [{"fullName": "abc", "initial": "a"}])],
    ),
    (
        Point | str,
        {"anyOf": [{"$ref": "#/$defs/Point"}, STR], "$defs": {"Point": POINT}},
        [(Point(1), {"x": 1, "y": 0}), ("a", "a")],
    ),
]


@pytest.mark.requirement("TOOL-12", "TOOL-13")
@pytest.mark.parametrize(("annotation", "schema", "values"), OBJECTS, ids=tell)
def test_an_object_keeps_its_schema_and_is_never_wrapped(annotation, schema, values):
    returns = returning(annotation)
    assert returns.output_schema == schema == returns.wrapped_schema
    assert not returns.is_wrapped
    validator = jsonschema_rs.validator_for(schema)
    for value, structured in values:
        result = sent(returns.convert(value))
        assert result == {"content": [text(result["content"][0]["text"])], "structuredContent": structured}
        assert json.loads(result["content"][0]["text"]) == structured
        assert validator.is_valid(structured)
        assert sent(returns.convert(value, wrap=True)) == result


@pytest.mark.requirement("TOOL-12", "TOOL-13")
@pytest.mark.parametrize(("annotation", "schema", "values"), OTHERS, ids=tell)
def test_other_values_are_wrapped_unless_the_author_wants_them_bare(annotation, schema, values):
    returns, bare = returning(annotation), returning(annotation, is_bare=True)
    assert bare.output_schema == schema
    wrapped = returns.output_schema
    assert wrapped is not None
    assert wrapped == returns.wrapped_schema == bare.wrapped_schema
    assert wrapped["type"] == "object"
    assert wrapped["x-fastmcp-wrap-result"] is True
    assert wrapped.get("$defs") == schema.get("$defs")
    assert "$defs" not in wrapped["properties"]["result"]
    for value, structured in values:
        plain, usual = sent(bare.convert(value, wrap=False)), sent(returns.convert(value, wrap=False))
        assert plain["structuredContent"] == structured
        assert usual["structuredContent"] == {"result": structured}
        assert usual == sent(returns.convert(value)) == sent(bare.convert(value))
        assert usual["content"] == plain["content"] == [text(plain["content"][0]["text"])]
        written = plain["content"][0]["text"]
        assert (written if isinstance(structured, str) else json.loads(written)) == structured
        assert jsonschema_rs.validator_for(schema).is_valid(structured)
        assert jsonschema_rs.validator_for(wrapped).is_valid({"result": structured})


@pytest.mark.requirement("TOOL-13")
@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "a", "does not match the output schema: expected an integer, got a string"),
        (int, True, "expected an integer, got a boolean"),
        (int, None, "expected an integer, got null"),
        (float, math.nan, "cannot be sent: JSON cannot represent nan"),
        (float | None, math.inf, "cannot be sent: JSON cannot represent inf"),
        (dict, {"a": [None, (1, -math.inf)]}, "cannot be sent: JSON cannot represent -inf"),
        (Measured, Measured(length=math.nan), "cannot be sent: JSON cannot represent nan"),
        (list[Measured], [{"length": math.nan}], "cannot be sent: JSON cannot represent nan"),
        (Point, Point("a"), "x: expected an integer, got a string"),  # pyright: ignore - is tested
        (Point, {"y": 1}, "object missing required field `x`"),
        (Point, [1], "expected an object, got an array"),
        (list[Point], [Point(1), {"x": "a"}], "[1].x: expected an integer"),
        (dict[str, int], {"a": "b"}, "expected an integer, got a string"),
        (Annotated[int, at.Gt(3)], 3, "expected an integer >= 4"),
        (Literal[1, 2], 3, "invalid enum value 3"),
        (Counted, {"n": "a"}, "n: expected an integer"),
        (Tree, Tree(1, [Tree("a")]), "below[0].value: expected an integer"),  # pyright: ignore - is tested
        (User, {"title": "a"}, "cannot be sent: name: Field required; title: Extra inputs are not permitted"),
        (list[User], [User(name="a"), {}], "[1].name: Field required"),
        (Held, {"plain": {"a": "x"}}, "plain.a: Input should be a valid integer"),
        (dict, {"a": object()}, "cannot be sent: object of type object is not JSON serializable"),
        (dict, {(1, 2): 3}, "cannot be sent"),
        (..., object(), "cannot be sent"),
        pytest.param(int, 10**5000, "cannot be sent: Exceeds the limit", id="a number of 5000 digits"),
        (..., [TextContent("a"), object()], "cannot be sent"),
        (..., [object()], "cannot be sent"),
    ],
)
def test_output_that_was_not_promised_is_an_error(annotation, value, said):
    with pytest.raises(OutputError) as refused:
        returning(annotation).convert(value)
    assert said in str(refused.value)
    assert isinstance(refused.value, MCPError)


@pytest.mark.requirement("TOOL-13")
def test_a_whole_result_keeps_the_schema_too():
    returns = returning(Point)
    good = CallToolResult(content=[], structured_content={"x": 1})
    assert returns.convert(good) is good
    failed = CallToolResult(content=[TextContent("no")], is_error=True)
    assert returns.convert(failed) is failed
    for wrong in (UNSET, {}, [1]):
        with pytest.raises(OutputError):
            returns.convert(CallToolResult(content=[], structured_content=wrong))
    numbers = returning(list[int])
    result = CallToolResult(content=[], structured_content=[1])
    assert numbers.convert(result, wrap=True).structured_content == {"result": [1]}
    assert result.structured_content == [1]
    users = returning(list[Plain])
    assert users.convert(CallToolResult(content=[], structured_content=[{"a": 1}]))
    with pytest.raises(OutputError, match=r"\[0\]\.a: Field required"):
        users.convert(CallToolResult(content=[], structured_content=[{}]))


def test_null_is_a_valid_value():
    for annotation in (dict, ...):
        result = returning(annotation).convert({"a": None, "b": [1.5, msgspec.Raw(b"null")], "c": "null"})
        assert result.structured_content == {"a": None, "b": [1.5, None], "c": "null"}
    written = returning(Measured).convert(Measured(length=1.5))
    assert written.structured_content == {"length": 1.5, "width": None}


HALF = "\ud800"  # of a character: Python has it, JSON does not


@pytest.mark.requirement("TOOL-13")
@pytest.mark.parametrize(
    "value",
    [
        HALF,
        f"a{HALF}b",
        ["a", TextContent("b"), HALF],
        TextContent(HALF),
        {"a": HALF},
        {HALF: 1},
        [HALF],
        {"a": math.nan},
        [1.5, {"a": Point(math.inf)}],  # pyright: ignore[reportArgumentType] - is tested
        CallToolResult(content=[], structured_content={"a": math.nan}),
        ResourceLink(uri=HALF, name="a"),
        EmbeddedResource(resource=ResourceContents(uri="a:b", text=HALF)),
        TextContent(object()),  # pyright: ignore[reportArgumentType] - is tested
        CallToolResult(content=[TextContent(HALF)]),
        CallToolResult(content=[], structured_content={"a": object()}),
        CallToolResult(content=[], meta={"a": Path("a")}),
        CallToolResult(content=[TextContent(HALF)], is_error=True),
    ],
    ids=lambda value: tell(ascii(value)),
)
@pytest.mark.parametrize("annotation", [..., CallToolResult])
def test_unencodable_values_are_errors_of_the_tool(annotation, value):
    with pytest.raises(OutputError, match="cannot be sent"):
        returning(annotation).convert(value)


class Odd:
    pass


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Odd, "`fn`: return value: Odd cannot be represented in JSON"),
        (abc.Iterator[int], "`fn`: return value: Iterator[int] cannot be represented in JSON"),
        (list[Odd], "return value: Odd cannot be represented in JSON"),
        ("Missing", "return value: the annotation 'Missing' cannot be evaluated"),
    ],
)
def test_unsupported_return_types_are_rejected_at_registration(annotation, said):
    with pytest.raises(SignatureError) as refused:
        returning(annotation)
    assert said in str(refused.value)


def test_half_a_character_is_no_text():
    for value in (HALF, f"a{HALF}b"):
        with pytest.raises(OutputError, match="cannot be sent"):
            returning(str).convert(value)


def test_a_local_type_may_be_returned():
    @dataclass
    class Local:
        a: int

    def fn() -> "list[Local]":
        return [Local(1)]

    assert sent(ResultConverter.for_function(fn).convert(fn()))["structuredContent"] == {"result": [{"a": 1}]}


def test_a_struct_may_hold_a_model_that_pydantic_alone_would_write_otherwise():
    returns = returning(Holder)
    assert sent(returns.convert(Holder()))["structuredContent"] == {"user": None}


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**60), 2**60)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_comes_through(value):
    result = returning(
        dict[str, Any] | list[dict | list | str | float | bool | None] | str | int | float | bool | None
    ).convert(value)
    assert result.structured_content == {"result": value}
    written = sent(result)["content"][0]["text"]
    assert (written if isinstance(value, str) else json.loads(written)) == value


# --------------------------------------------------------------------- schemas of the author's own


@pytest.mark.requirement("TOOL-13")
def test_a_custom_schema_is_checked():
    returns = ResultConverter.for_schema({"type": "object", "properties": {"a": INT}, "required": ["a"]}, "x")
    assert sent(returns.convert({"a": 1}))["structuredContent"] == {"a": 1}
    with pytest.raises(OutputError, match='"a" is a required property'):
        returns.convert({"b": 1})
    numbers = ResultConverter.for_schema({"type": "array", "items": INT}, "x")
    assert numbers.output_schema == {"type": "array", "items": INT}
    assert numbers.convert([1], wrap=False).structured_content == [1]
    assert numbers.convert([1]).structured_content == {"result": [1]}
    assert ResultConverter.for_schema(None, "x").convert([1]).content == [TextContent("[1]")]


@pytest.mark.requirement("JSCH-10")
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "none"}, "the output schema of 'x' is not valid: .*, at type"),
        ({"$ref": "https://schemas.example/a.json"}, "Retrieval is disabled"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema, said):
    with pytest.raises(ValueError, match=said):
        ResultConverter.for_schema(schema, "x")


def test_without_a_validator_a_custom_schema_is_rejected(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(
        MCPError, match=r"jsonschema-rs, which is not installed \(pip install 'toolpost\[schema\]'\)"
    ):
        ResultConverter.for_schema({"type": "object"}, "x")
    assert ResultConverter.for_schema(None, "x").output_schema is None
