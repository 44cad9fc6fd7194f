"""From a JSON Schema to options, and from words to arguments."""

from typing import Any

import click
import pytest

from toolpost.cli.errors import CommandError
from toolpost.cli.schema_options import (
    MAX_FIELDS,
    SchemaCommand,
    SchemaField,
    extract_fields,
    find_missing,
    parse_arguments,
)
from toolpost.cli.target import TargetSpec
from toolpost.types.tools import Tool

TEXT = {"type": "string"}
ADDRESS = {
    "type": "object",
    "properties": {"city": TEXT, "geo": {"type": "object", "properties": {"lat": {"type": "number"}}}},
    "required": ["city"],
}


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def form(wanted: dict[str, Any], *earlier: str, description: str = "") -> SchemaCommand:
    target = TargetSpec("file", ("python",), "weather.py")
    tool = Tool(name="forecast", input_schema=wanted, description=description)
    return SchemaCommand("call", tool, target, earlier)


def typed(wanted: dict[str, Any], *words: str) -> dict[str, Any]:
    made = form(wanted)
    return made.collect_arguments(made.parse_words(words))[0]


@pytest.mark.parametrize(
    ("field", "words", "value"),
    [
        (TEXT, ["--x", "a b"], "a b"),
        (TEXT, ["--x="], ""),
        ({"type": "integer"}, ["--x", "-3"], -3),
        ({"type": "number"}, ["--x", "3"], 3),
        ({"type": "number"}, ["--x", "1e3"], 1000.0),
        ({"type": "boolean"}, ["--x"], True),
        ({"type": "boolean"}, ["--no-x"], False),
        ({"enum": ["a", "b"]}, ["--x", "b"], "b"),
        ({"enum": [1, 2.5, "c"]}, ["--x", "2.5"], 2.5),
        ({"enum": [[1], [2]]}, ["--x", "[2]"], [2]),
        ({"const": "only"}, ["--x", "only"], "only"),
        ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}, ["--x", "b"], "b"),
        ({"type": "array", "items": TEXT}, ["--x", "a", "--x", "b,c"], ["a", "b,c"]),
        ({"type": "array", "items": {"type": "integer"}}, ["--x", "1", "--x", "2"], [1, 2]),
        ({"type": "array", "items": {"type": "boolean"}}, ["--x", "yes", "--x", "false"], [True, False]),
        ({"type": "array", "items": ADDRESS}, ["--x", '{"city": "Rome"}'], [{"city": "Rome"}]),
        ({"type": "array"}, ["--x", "1", "--x", "a"], [1, "a"]),
        ({"type": "object"}, ["--x", '{"a": 1}'], {"a": 1}),
        (ADDRESS, ["--x", '{"city": "Rome"}'], {"city": "Rome"}),
        (ADDRESS, ["--x.city", "Rome", "--x.geo.lat", "1.5"], {"city": "Rome", "geo": {"lat": 1.5}}),
        (ADDRESS, ["--x.city", "Oslo", "--x", '{"city": "Rome", "b": 1}'], {"city": "Oslo", "b": 1}),
        ({}, ["--x", "text"], "text"),
        ({}, ["--x", "[1, null]"], [1, None]),
        ({"type": ["string", "integer"]}, ["--x", "5"], 5),
        ({"type": ["string", "integer"]}, ["--x", "five"], "five"),
        ({"type": ["string", "null"]}, ["--x", "5"], "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["--x", "5"], 5),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["--x", "five"], "five"),
        ({"allOf": [{"$ref": "#/$defs/Way~1Point"}]}, ["--x.city", "Rome"], {"city": "Rome"}),
        ({"$ref": "https://elsewhere.example/schema"}, ["--x", "1"], 1),
        ({"$ref": "#/$defs/Loop"}, ["--x", "1"], 1),
        (True, ["--x", "1"], 1),
    ],
)
def test_words_become_values(field, words, value):
    wanted = schema(x=field) | {"$defs": {"Way/Point": ADDRESS, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert typed(wanted, *words) == {"x": value}


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ({"type": "integer"}, "1.5"),
        ({"type": "integer", "minimum": 2}, "1"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "1.1"),
        ({"type": "number"}, "inf"),
        ({"enum": ["a"]}, "b"),
        ({"type": "object"}, "text"),
        ({"type": "object"}, "[" * 100_000),
    ],
)
def test_words_that_cannot_be_meant_are_refused(field, word):
    with pytest.raises(click.BadParameter):
        typed(schema(x=field), "--x", word)


def test_names_are_those_of_the_schema_or_with_hyphens():
    wanted = schema(max_results=TEXT, camelCase=TEXT)
    assert typed(wanted, "--max_results", "a", "--camelCase", "b") == {"max_results": "a", "camelCase": "b"}
    assert typed(wanted, "--max-results", "a") == {"max_results": "a"}


def test_names_that_cannot_be_options_are_passed_as_json():
    wanted = schema(**{"a/b": TEXT, "-x": TEXT, "with space": TEXT, "": TEXT, "fine": TEXT})
    assert [each.name for each in extract_fields(wanted)] == ["fine"]


def test_names_may_have_letters_of_any_language():
    assert typed(schema(größe=TEXT, 数=TEXT), "--größe", "a", "--数", "b") == {"größe": "a", "数": "b"}


def test_help_shows_no_option_that_is_another_ones():
    flag = {"type": "boolean"}
    made = form(schema(**{"x": flag, "no-x": flag}))
    shown = made.get_help(made.parse_words([]))
    assert "--x\n  --no-x / --no-no-x\n" in shown


def test_names_that_collide_are_distinguished():
    flag = {"type": "boolean"}
    inner = {"type": "object", "properties": {"b": TEXT}}
    wanted = schema(
        **{"a.b": TEXT, "a": inner, "x_y": TEXT, "x-y": TEXT, "f": flag, "no-f": TEXT, "args": TEXT}
    )
    words = ["--a.b", "1", "--x_y", "2", "--x-y", "3", "--f", "--no-f", "4", "--args", "5"]
    told = {"a.b": "1", "x_y": "2", "x-y": "3", "f": True, "no-f": "4", "args": "5"}
    assert typed(wanted, *words) == told


def test_a_schema_that_has_no_end_is_cut():
    node: dict[str, Any] = {"type": "object", "properties": {"value": TEXT, "next": {"$ref": "#/$defs/Node"}}}
    found = extract_fields(schema(head={"$ref": "#/$defs/Node"}) | {"$defs": {"Node": node}})
    assert len(found) < 20
    assert max(len(each.path) for each in found) <= 4
    assert len(extract_fields(schema(**{f"f{number}": TEXT for number in range(1000)}))) == MAX_FIELDS
    assert extract_fields({"type": "object", "properties": ["nonsense"], "required": "all"}) == []


NEEDED = schema("a", "b", "x", a=TEXT, b={**TEXT, "default": "there"}, x=ADDRESS, y=ADDRESS)


@pytest.mark.parametrize(
    ("arguments", "gone"),
    [
        ({}, ["a", "x.city"]),
        ({"a": "1"}, ["x.city"]),
        ({"a": "1", "x": {}}, ["x.city"]),
        ({"a": "1", "x": {"city": "Rome"}}, []),
        ({"a": "1", "x": {"city": "Rome"}, "y": {"geo": {}}}, ["y.city"]),
        ({"a": "1", "x": "no object"}, []),
    ],
)
def test_missing_arguments_are_named(arguments, gone):
    given = {**arguments}
    assert [each.name for each in find_missing(extract_fields(NEEDED), given)] == gone
    assert given == {**arguments, "b": "there"}


def test_an_object_without_needed_members_stands_for_itself():
    wanted = schema("x", x={"type": "object", "properties": {"a": TEXT}})
    assert [each.name for each in find_missing(extract_fields(wanted), {})] == ["x"]


def test_our_options_give_way_to_those_of_the_tool():
    made = form(schema(json=TEXT), "--timeout")
    assert made.collect_arguments(made.parse_words(["--json", "x", "--save", "y"])) == (
        {"json": "x"},
        {"save": "y"},
    )
    with pytest.raises(click.UsageError, match="forecast has no --timeout; options of toolpost go before"):
        made.parse_words(["--timeout", "3"])
    made = form(schema(help={"type": "boolean"}))
    assert made.collect_arguments(made.parse_words(["--help"]))[0] == {"help": True}


def test_help_keeps_the_lines_of_a_description(capsys):
    made = form(
        schema(a={**TEXT, "description": "One.\n  Two."}), description="Long " * 30 + "\n\n- a\n- b\n\x1b[0m"
    )
    with pytest.raises(click.exceptions.Exit):
        made.parse_words(["--help"])
    shown = capsys.readouterr().out
    assert "  - a\n  - b\n  \\u001b[0m\n" in shown
    assert "--a TEXT  One. Two.\n" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "@nowhere", "@."])
def test_arguments_that_are_not_a_json_object_are_rejected(text):
    with pytest.raises(CommandError, match="--args"):
        parse_arguments(text)


def test_a_field_describes_itself():
    field = SchemaField(("a", "b"), click.BOOL)
    assert (field.name, field.is_flag) == ("a.b", True)
    assert not SchemaField(("a",), click.BOOL, many=True).is_flag
