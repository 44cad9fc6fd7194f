"""Results of a tool, as text and as data of every type."""

import json
from dataclasses import dataclass
from datetime import date
from typing import Any, TypedDict, cast

import attrs
import msgspec
import pydantic
import pytest

from toolpost.client.tools import convert_value, decode_value, make_tool_result
from toolpost.errors import MCPError, RemoteProtocolError
from toolpost.types import UNSET, CallToolResult, Content, ImageContent, TextContent


@dataclass
class Weather:
    city: str
    day: date


class WeatherStruct(msgspec.Struct):
    city: str
    day: date


class WeatherDict(TypedDict):
    city: str
    day: date


@attrs.define
class WeatherAttrs:
    city: str
    day: date


class WeatherModel(pydantic.BaseModel):
    city: str
    day: date


DATA = {"city": "Ulm", "day": "2030-01-02"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Weather, Weather("Ulm", date(2030, 1, 2))),
        (WeatherStruct, WeatherStruct("Ulm", date(2030, 1, 2))),
        (WeatherDict, {"city": "Ulm", "day": date(2030, 1, 2)}),
        (WeatherAttrs, WeatherAttrs("Ulm", date(2030, 1, 2))),
        (WeatherModel, WeatherModel(city="Ulm", day=date(2030, 1, 2))),
        (dict, DATA),
        (dict[str, str], DATA),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_data_has_the_type_that_was_asked_for(kind, value, as_text):
    text = msgspec.json.encode(DATA).decode()
    structured = UNSET if as_text else DATA
    result = make_tool_result(
        "t", CallToolResult(content=[TextContent(text)], structured_content=structured), kind
    )
    assert result.data == value


def test_models_are_found_inside_of_other_types():
    assert convert_value([DATA], list[WeatherModel], "x")[0].city == "Ulm"
    assert convert_value([{"type": "text", "text": "hi"}], list[Content], "x") == [TextContent("hi")]


@pytest.mark.parametrize(
    "kind", [Weather, WeatherStruct, WeatherAttrs, WeatherModel, list[WeatherModel], int]
)
def test_data_of_another_type_is_the_servers_fault(kind):
    result = CallToolResult(content=[], structured_content={"city": 7})
    with pytest.raises(RemoteProtocolError, match="the result of tool 't' is not of type"):
        make_tool_result("t", result, kind)


def test_bytes_that_cannot_be_read_are_the_servers_fault():
    assert decode_value(b"[1]", list[int], "x") == [1]
    with pytest.raises(RemoteProtocolError, match="x cannot be read: Number out of range"):
        decode_value(b"[1e999]", list[float], "x")


def test_an_unsupported_result_type_is_an_error_of_the_caller():
    class Strange:
        pass

    with pytest.raises(MCPError, match="cannot convert JSON to Strange"):
        convert_value({}, Strange, "x")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", int, 5),
        ("5", str, "5"),
        ("[1, 2]", list[int], [1, 2]),
        ("plain", str, "plain"),
        ("null", type(None), None),
        ("5", str | None, "5"),
        ("plain", str | None, "plain"),
        ("plain", Any, "plain"),
    ],
)
def test_without_structured_content_typed_data_is_read_from_the_text(text, kind, value):
    assert make_tool_result("t", CallToolResult(content=[TextContent(text)]), kind).data == value


def test_text_that_is_not_json_is_not_of_the_type():
    with pytest.raises(RemoteProtocolError, match="is not of type int"):
        make_tool_result("t", CallToolResult(content=[TextContent("about five")]), int)


@pytest.mark.parametrize(
    ("content", "data"),
    [
        ([TextContent("words")], "words"),
        ([TextContent("5")], "5"),  # it is not declared as JSON
        ([TextContent("")], None),  # so that a function without a result has content
        ([ImageContent("aGk=", "image/png")], None),
        ([], None),
    ],
)
def test_without_structured_content_the_text_is_the_data(content, data):
    assert make_tool_result("t", CallToolResult(content=content), None).data == data


def test_an_empty_result_is_none():
    optional: Any = str | None
    assert make_tool_result("t", CallToolResult(content=[]), optional).data is None
    with pytest.raises(RemoteProtocolError, match="is not of type int"):
        make_tool_result("t", CallToolResult(content=[]), int)


MARKED = [{"fastmcp": {"wrap_result": True}}]
UNMARKED = [None, {}, {"fastmcp": {}}, {"fastmcp": True}, {"fastmcp": None}]


def wrapping(structured: Any, meta: dict[str, Any] | None) -> CallToolResult:
    return CallToolResult(content=[], structured_content=structured, meta=meta)


@pytest.mark.parametrize("meta", MARKED)
@pytest.mark.parametrize("value", [[1], 5, "five", None, {"a": 1}, {"result": 1}])
@pytest.mark.parametrize("kind", [None, Any])
def test_a_value_is_taken_out_of_its_object_where_that_is_marked(meta, value, kind):
    result = make_tool_result("t", wrapping({"result": value}, meta), kind)
    assert result.data == value
    assert result.structured_content == {"result": value}


@pytest.mark.parametrize("meta", MARKED)
@pytest.mark.parametrize("value", [{"a": 1}, {"result": 1, "a": 1}, {}, [1], "result"])
def test_a_mark_on_something_else_means_nothing(meta, value):
    assert make_tool_result("t", wrapping(value, meta), None).data == value


@pytest.mark.parametrize("meta", UNMARKED)
def test_an_object_without_a_mark_is_not_unwrapped(meta):
    result = wrapping({"result": [1]}, meta)
    assert make_tool_result("t", result, None).data == {"result": [1]}
    assert make_tool_result("t", result, dict).data == {"result": [1]}
    assert make_tool_result("t", result, None, wrapped=True).data == [1]  # the output schema said so


def test_a_type_that_does_not_fit_the_object_may_fit_its_only_member():
    assert make_tool_result("t", wrapping({"result": [1]}, None), list[int]).data == [1]
    with pytest.raises(RemoteProtocolError, match=r"is not of type list: .*at `\$\[0\]`"):
        make_tool_result("t", wrapping({"result": ["a"]}, None), list[int])
    with pytest.raises(RemoteProtocolError, match="got `object`"):
        make_tool_result("t", wrapping({"result": [1], "more": 2}, None), list[int])


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (5, ["5"]),
        (2.5, ["2.5"]),
        (True, ["true"]),
        ("five", ["five"]),
        ("5", ["5"]),
        ([1, "a"], ['[1, "a"]']),
        ([1, "a"], ["1", "a"]),  # an item each, as the official SDK writes it
        ([[1]], ["[1]"]),
        ([], []),
        (None, ["null"]),
        (None, []),
        ({"result": 1}, ['{"result": 1}']),
    ],
)
def test_a_value_whose_text_stands_alone_is_taken_out_of_its_object(value, texts):
    result = CallToolResult(content=[*map(TextContent, texts)], structured_content={"result": value})
    assert make_tool_result("t", result, None).data == value
    assert make_tool_result("t", result, cast("Any", Any)).data == value


@pytest.mark.parametrize(
    "structured", [{"result": 5}, {"result": [1, 2]}, {"result": "a"}, {"result": {"a": 1}}, {"a": 1}]
)
@pytest.mark.parametrize("text", [None, "other words", "6"])
def test_an_object_whose_text_is_another_stays_what_it_is(structured, text):
    content: Any = [TextContent(json.dumps(structured) if text is None else text)]
    result = CallToolResult(content=content, structured_content=structured)
    assert make_tool_result("t", result, None).data == structured


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_json_in_a_wrapped_text_is_read_for_a_type(wrapped):
    """A function that returns `str` may return JSON."""
    result = CallToolResult(content=[TextContent("[1, 2]")], structured_content={"result": "[1, 2]"})
    assert make_tool_result("t", result, None, wrapped=wrapped).data == "[1, 2]"
    assert make_tool_result("t", result, str, wrapped=wrapped).data == "[1, 2]"
    assert make_tool_result("t", result, list[int], wrapped=wrapped).data == [1, 2]
    with pytest.raises(RemoteProtocolError, match=r"Expected `str`, got `int` - at `\$\[0\]`"):
        make_tool_result("t", result, list[str], wrapped=wrapped)


def test_an_object_of_the_type_is_found_although_its_text_is_that_of_its_member():
    class Sum(msgspec.Struct):
        result: int

    result = CallToolResult(content=[TextContent("5")], structured_content={"result": 5})
    assert make_tool_result("t", result, Sum).data == Sum(5)
    with pytest.raises(RemoteProtocolError, match="Expected `array`, got `int`"):
        make_tool_result("t", result, list)


def test_a_text_that_is_structured_is_not_looked_into():
    with pytest.raises(RemoteProtocolError, match="is not of type int"):
        make_tool_result("t", CallToolResult(content=[], structured_content="5"), int)


def test_an_error_has_no_typed_data():
    result = make_tool_result("t", CallToolResult(content=[TextContent("no")], is_error=True), int)
    assert result.is_error
    assert result.data is None


def test_text_is_the_text_blocks():
    blocks: list[Any] = [TextContent("a"), ImageContent("aGk=", "image/png"), TextContent("b")]
    result = make_tool_result("t", CallToolResult(content=blocks), None)
    assert result.text == result.data == "a\nb"
    assert result.structured_content is UNSET
    assert not result.is_error
    assert (result.content, result.meta, result.raw) == (blocks, None, None)


def test_null_is_a_value():
    result = make_tool_result("t", CallToolResult(content=[], structured_content=None), None)
    assert result.structured_content is None
