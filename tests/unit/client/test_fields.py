"""Validation of a filled-in form against its schema: valid, invalid and unchecked values."""

from datetime import date
from typing import Any

import pytest

from toolpost.client.form_validation import (
    fill_defaults,
    find_field_error,
    find_form_error,
    parse_choices,
)
from toolpost.errors import LocalProtocolError
from toolpost.json_schema import read_choices

TEXT = {"type": "string"}
ONE = {"type": "string", "enum": ["a", "b"]}
TITLED = {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}
SOME = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2}
NAMED = {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}}


def wrong(field: Any, value: Any) -> str | None:
    return find_form_error({"type": "object", "properties": {"x": field}}, {"x": value})


@pytest.mark.requirement("ELIC-42")
@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (TEXT, ["", "a"], [(1, "a string"), (None, "a string"), (True, "a string"), (["a"], "a string")]),
        ({**TEXT, "minLength": 2}, ["ab"], [("a", "at least 2 characters")]),
        ({**TEXT, "maxLength": 2}, ["", "ab", "✓✓"], [("abc", "at most 2 characters")]),
        (
            {**TEXT, "format": "email"},
            ["a@b.example", "a.b+c@d"],
            [(text, "an email address") for text in ("a", "a@", "@b", "a@b@c", "a b@c", "a@b\n")],
        ),
        (
            {**TEXT, "format": "uri"},
            ["https://a.example/x?y#z", "mailto:a@b", "urn:x:y"],
            [(text, "a URI") for text in ("a", "/a/b", "https:", "http://a b", "http://[x", "")],
        ),
        (
            {**TEXT, "format": "date"},
            ["2031-12-24", date(2031, 12, 24)],
            [(text, "a date") for text in ("24.12.2031", "2031-02-30", "20311224", "2031-12-24T00:00:00Z")],
        ),
        (
            {**TEXT, "format": "date-time"},
            [
                "2031-12-24T18:00:00Z",
                "2031-12-24t18:00:00+01:00",
                "2031-12-24T18:00:00",
                "2031-12-24T18:00:00.5z",
            ],
            [
                (text, "a date and time")
                for text in ("2031-12-24", "18:00", "2031-13-24T18:00:00Z", "20311224T180000Z")
            ],
        ),
        (
            {"type": "integer"},
            [0, -3, 3.0, 10**30],
            [(1.5, "an integer"), ("1", "an integer"), (True, "an integer")],
        ),
        ({"type": "number"}, [0, 1.5], [("1", "a number"), (False, "a number"), (float("nan"), "a number")]),
        ({"type": "integer", "minimum": 1, "maximum": 3}, [1, 3], [(0, "at least 1"), (4, "at most 3")]),
        ({"type": "number", "minimum": 0.5}, [0.5], [(0.4, "at least 0.5")]),
        ({"type": "boolean"}, [True, False], [(1, "a boolean"), ("yes", "a boolean")]),
        (ONE, ["a", "b"], [("c", "one of 'a', 'b'"), (1, "a string")]),
        (TITLED, ["a"], [("A", "one of 'a', 'b'")]),
        (
            SOME,
            [["a"], ["a", "b"], ("b",)],
            [("a", "an array"), (["c"], "one of 'a', 'b'"), ([1], "one of"), ([], "at least 1 choices")],
        ),
        (SOME, [], [(["a", "b", "a"], "at most 2 choices")]),
        (NAMED, [[], ["b"]], [(["B"], "one of 'a', 'b'")]),
    ],
)
def test_a_field_is_held_against_its_kind(field, good, bad):
    for value in good:
        assert wrong(field, value) is None, value
    for value, reason in bad:
        assert (wrong(field, value) or "").startswith("'x' must "), value
        assert reason in (wrong(field, value) or ""), value


@pytest.mark.parametrize(
    "field",
    [
        {},
        {"type": "object"},
        {"type": ["string", "null"]},
        {"type": 7},
        {"type": "string", "format": "colour"},
        {"type": "string", "format": 7},
        {"type": "string", "pattern": "^a$"},
        {"type": "string", "minLength": "many", "maxLength": True},
        {"type": "string", "enum": 7},
        {"type": "string", "enum": []},
        {"type": "string", "enum": [1, 2]},
        {"type": "string", "oneOf": [{"pattern": "x"}]},
        {"type": "string", "oneOf": ["x"]},
        7,
        None,
    ],
)
def test_unknown_keywords_are_not_checked(field):
    assert wrong(field, "anything") is None


@pytest.mark.parametrize(
    "field", [{"type": "array"}, {"type": "array", "items": 7}, {"type": "array", "items": {}}]
)
def test_items_that_are_not_known_are_not_judged(field):
    assert wrong(field, [1, "x", None]) is None


@pytest.mark.parametrize(
    ("schema", "content", "reason"),
    [
        (None, {"a": 1}, None),
        ({}, {}, None),
        ({"required": ["a"]}, {}, "'a' is missing"),
        ({"required": ["a"]}, {"a": None}, None),
        ({"required": ["a", 7]}, {"a": 1}, None),
        ({"required": "a"}, {}, None),
        ({"required": ["a"], "properties": {"a": {"default": 1}}}, {}, None),
        ({"properties": {"a": {}}}, {"b": 1}, None),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, None),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1},
            "'b' is not a field of the form",
        ),
        ({"properties": 7, "additionalProperties": {}}, {"b": 1}, None),
    ],
)
def test_a_form_is_held_against_its_schema(schema, content, reason):
    assert find_form_error(schema, content) == reason


@pytest.mark.requirement("ELIC-15")
def test_defaults_are_filled_in_and_not_judged():
    schema = {
        "properties": {"a": {"type": "integer", "default": "odd"}, "b": {"default": 1}, "c": {}, "d": 7}
    }
    assert find_form_error(schema, {"b": 2}) is None
    assert fill_defaults(schema, {"b": 2}) == {"a": "odd", "b": 2}
    assert fill_defaults(None, {"b": 2}) == {"b": 2}


def test_no_value_of_the_user_is_in_the_reason_and_no_flood_of_the_server():
    assert "secret" not in (wrong({**TEXT, "maxLength": 1}, "secret") or "")
    many = {"type": "string", "enum": [f"{number} " + "x" * 1000 for number in range(1000)]}
    assert len(wrong(many, "secret") or "") < 1000
    assert len(find_form_error({"required": ["y" * 10_000]}, {}) or "") < 200


def test_invalid_json_is_reported():
    with pytest.raises(LocalProtocolError, match="JSON"):
        wrong(TEXT, object())


def test_many_choices_take_no_more_time_than_they_are():
    values = [str(number) for number in range(100_000)]
    assert wrong({"type": "array", "items": {"enum": values}}, values) is None


def test_choices_have_titles():
    assert parse_choices({"enum": ["a", "b"], "enumNames": ["A", "B"]}) == {"a": "A", "b": "B"}
    assert parse_choices({"enum": ["a", "b"], "enumNames": ["A"]}) == {"a": "a", "b": "b"}
    assert parse_choices({"oneOf": [{"const": "a"}]}) == {"a": "a"}
    assert parse_choices(TITLED) == {"a": "A", "b": "B"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ({"type": "string", "enum": ["ab", "c"], "minLength": 2}, "c"),
        ({"type": "string", "oneOf": [{"title": "no const"}], "enum": ["a"]}, "b"),
        ({"type": "number", "exclusiveMinimum": 1}, 1),
        ({"type": "integer", "multipleOf": 2}, 3),
    ],
)
def test_forms_check_only_specified_keywords(field, value):
    assert find_field_error(field, value) is None


def test_the_order_of_the_keywords_decides_about_choices():
    schema = {"enum": ["a", "b"], "oneOf": [{"const": "c"}]}
    assert read_choices(schema, ("enum", "const", "oneOf")) == {"a": "a", "b": "b"}
    assert read_choices(schema, ("oneOf", "enum")) == {"c": "c"}
    assert read_choices({"enum": ["a", None], "oneOf": [{"const": "c"}]}, ("enum", "oneOf")) == {}


def test_references_of_a_form_are_not_followed():
    """40 levels of two references each would never end."""
    levels = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/a0", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": levels}
    assert find_form_error(schema, {"x": {"y": 1}}) is None
    assert fill_defaults(schema, {"x": 1}) == {"x": 1}
