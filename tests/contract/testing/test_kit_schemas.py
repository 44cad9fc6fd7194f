"""Schemas of tools: comparison with expected ones, and lint."""

import sys

import pytest

from calculator import calculator
from toolpost import SyncClient
from toolpost.testing import assert_tool_schema, lint_tools
from toolpost.types import Tool

INTEGER = {"type": "integer"}
ADD = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["b", "a"], ...: ...}


WRAPPED = {"type": "object", "properties": {"result": INTEGER}, ...: ...}


def test_schemas_as_they_are():
    assert_tool_schema(calculator(), "add", input=ADD, output=WRAPPED)
    assert_tool_schema(calculator(), "add")


def test_tools_that_were_listed():
    with SyncClient(calculator(), revision="2025-06-18") as mcp:
        tools = mcp.list_tools()
    assert_tool_schema(
        tools, "add", input=ADD, output={"type": "object", "properties": {"result": INTEGER}, ...: ...}
    )


def test_an_unknown_tool_is_reported():
    with pytest.raises(AssertionError, match="no tool named 'sub'; available: add, login, sign"):
        assert_tool_schema(calculator(), "sub")
    with pytest.raises(AssertionError, match="available: none"):
        assert_tool_schema([], "sub")


TOOL = Tool(
    name="add",
    description="Add.",
    input_schema={"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
)


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        ({"type": "object"}, ['+  "properties": {']),
        (
            {"type": "object", "properties": {"a": {"enum": [1, 3]}}, "required": ["a"]},
            ["-        3", "+        2"],
        ),
        ({"type": "object", "properties": {"a": {"enum": [..., 3]}}, ...: ...}, ["-        3", "+        2"]),
        ({"type": "object", "properties": {"a": {"enum": [1, 2, ...]}}, ...: ...}, ['-        "…"']),
        ({"properties": {"a": ..., "b": ...}, ...: ...}, ['-    "b": "…"']),
        ({"type": ..., "properties": {"a": ..., "b": INTEGER}, "required": ...}, ['-    "b": {']),
        ({"type": ["object"], ...: ...}, ['-    "object"']),
    ],
)
def test_a_difference_is_shown(wanted, lines):
    with pytest.raises(AssertionError) as caught:
        assert_tool_schema([TOOL], "add", input=wanted)
    text = str(caught.value)
    assert text.startswith("the input schema of add differs:\n--- expected\n+++ found\n")
    for line in lines:
        assert any(each.startswith(line) for each in text.splitlines()), text


def test_a_tool_without_an_output_schema():
    assert_tool_schema([TOOL], "add", output=None)
    with pytest.raises(AssertionError, match=r"(?s)the output schema of add.*\+null"):
        assert_tool_schema([TOOL], "add", output=INTEGER)
    with pytest.raises(AssertionError, match=r"(?s)the output schema of add.*-null"):
        assert_tool_schema(calculator(), "add", output=None)


# --------------------------------------------------------------------- mistakes


def test_our_tools_have_none():
    assert all("no description" in found for found in lint_tools(calculator()))


def tool(name="add", description="Add.", input_schema=None, output_schema=None):
    return Tool(
        name, input_schema or {"type": "object"}, description=description, output_schema=output_schema
    )


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (tool(name="a.b"), ["a.b: many hosts only accept names of 1 to 64 letters, digits, '_' and '-'"]),
        (tool(description=" "), ["add: no description"]),
        (
            tool(input_schema={"type": "array"}),
            ["add: the type of the input schema must be 'object', not 'array'"],
        ),
        (
            tool(output_schema={"required": ["a", "b"], "properties": {"a": {}}}),
            ["add: the output schema requires 'b', which is not in its properties"],
        ),
        (tool(input_schema={"type": "object", "required": ["a"]}), []),
        (tool(name="a b"), ["a b: invalid name", "a b: many hosts"]),
        (tool(description="x" * 1025), ["add: description of 1025 characters; some hosts cut at 1024"]),
        (
            tool(input_schema={"type": "object", "oneOf": [{}]}),
            ["add: the input schema has oneOf at the top level; some hosts reject that"],
        ),
        (
            tool(input_schema={"type": "object", "properties": {"a b": {"description": "A."}}}),
            ["add: some hosts reject parameter names such as 'a b'"],
        ),
        (
            tool(
                input_schema={
                    "type": "object",
                    "properties": {
                        "a": {"$ref": "#/$defs/A"},
                        "b": {"$ref": "#/$defs/B"},
                        "c": {"$ref": "#/$defs/C"},
                    },
                    "$defs": {"A": {"description": "A."}, "B": {"$ref": "#/$defs/A"}, "C": {}},
                }
            ),
            ["add: 1 of 3 parameters have no description: c"],
        ),
        (tool(output_schema={"type": "nothing"}), ["add: the output schema is not valid: "]),
        (tool(output_schema={"$ref": "#/$defs/none"}), ["add: the output schema is not valid: "]),
    ],
)
def test_mistakes(made, wrong):
    found = lint_tools([made])
    assert len(found) == len(wrong)
    assert all(line.startswith(words) for line, words in zip(found, wrong, strict=True))


def test_without_the_library_less_is_seen(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    assert lint_tools([tool(output_schema={"type": "nothing"})]) == []
