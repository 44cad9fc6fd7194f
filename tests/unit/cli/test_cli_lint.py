"""The findings of the doctor about tools, resources and prompts."""

import pytest

from http_sites import Reply, odd_site
from toolpost.cli.doctor.check_session import (
    ITEM_KINDS,
    MAX_TOOLS,
    lint_items,
)
from toolpost.protocol.revisions import LATEST, LATEST_SESSION
from toolpost.testing.schemas import MAX_DESCRIPTION_LENGTH

OBJECT = {"type": "object"}


def tool(**members):
    return {"name": "add", "description": "Adds.", "inputSchema": OBJECT, **members}


def schema(**properties):
    return {"inputSchema": {**OBJECT, "properties": properties}}


@pytest.mark.parametrize(
    "good",
    [
        tool(),
        tool(name="a-B_9"),
        tool(**schema(a={"type": "integer", "description": "one"})),
        tool(outputSchema={**OBJECT, "properties": {"n": {"type": "integer"}}}),
        tool(inputSchema={**OBJECT, "$defs": {"x": {"type": "string"}}, "allOfIt": {"$ref": "#/$defs/x"}}),
        tool(inputSchema={"$schema": "http://json-schema.org/draft-07/schema#", **OBJECT}),
    ],
)
def test_a_tool_that_is_well_has_no_findings(good):
    assert list(lint_items(ITEM_KINDS["tools"], [good], LATEST_SESSION)) == []


@pytest.mark.parametrize(
    ("odd", "verdict", "text"),
    [
        (tool(name="add two"), "fail", "tool add two: invalid name: use 1 to 128 letters"),
        (tool(name="math.add"), "warn", "many hosts only accept names"),
        (tool(name="a" * 65), "warn", "many hosts only accept names"),
        (tool(description=""), "warn", "no description"),
        (tool(description="x" * (MAX_DESCRIPTION_LENGTH + 1)), "warn", "description of 1025 characters"),
        (tool(inputSchema=None), "fail", "invalid definition: Expected `object`, got `null`"),
        (tool(inputSchema=[]), "fail", "invalid definition: Expected `object`, got `array`"),
        (tool(inputSchema={}), "fail", "the type of the input schema must be 'object', not None"),
        (
            tool(inputSchema={"type": "array"}),
            "fail",
            "the type of the input schema must be 'object', not 'array'",
        ),
        (
            tool(**schema(a={"type": "int", "description": "x"})),
            "fail",
            "the input schema is not valid: properties.a.type: ",
        ),
        (tool(**schema(a={"$ref": "#/$defs/none"})), "fail", "the input schema is not valid: "),
        (tool(inputSchema={**OBJECT, "anyOf": [{}]}), "warn", "anyOf at the top"),
        (tool(**schema(a={"$ref": "https://x.example/y", "description": "x"})), "warn", "hosts do not fetch"),
        (tool(**schema(a={"items": [{"$ref": "o.json"}], "description": "x"})), "warn", "hosts do not fetch"),
        (tool(**schema(**{"a b": {"description": "x"}})), "warn", "parameter names such as 'a b'"),
        (tool(**schema(a={}, b={})), "warn", "2 of 2 parameters have no description: a, b"),
        (tool(inputSchema={**OBJECT, "properties": {}, "required": ["x"]}), "warn", "schema requires 'x'"),
        (tool(outputSchema={"type": "integer"}), "fail", "the type of the output schema must be 'object'"),
        ({"name": "add", "description": "x"}, "fail", "missing required field `inputSchema`"),
        ({"description": "x"}, "fail", "tool number 1 has no name"),
        ("tool", "fail", "tool number 1 has no name"),
    ],
)
def test_problems_of_a_tool_are_found(odd, verdict, text):
    found = list(lint_items(ITEM_KINDS["tools"], [odd], LATEST_SESSION))
    assert any(each[0] == verdict and text in each[1] for each in found), found


@pytest.mark.parametrize("key", ["$ref", "$schema", "$dynamicRef"])
def test_a_schema_causes_no_requests(key):
    asked = []

    def answer(request):
        asked.append(request.path)
        return Reply(200, b"{}")

    with odd_site(answer) as origin:
        inner = {"description": "x", key: f"{origin}/schema"}
        found = list(
            lint_items(
                ITEM_KINDS["tools"], [tool(**schema(a=inner)), tool(inputSchema={**OBJECT, **inner})], LATEST
            )
        )
    assert asked == []
    assert key == "$dynamicRef" or found


def test_output_may_be_anything_in_the_stateless_era():
    assert list(lint_items(ITEM_KINDS["tools"], [tool(outputSchema={"type": "integer"})], LATEST)) == []


def test_two_tools_of_one_name_and_too_many_are_found():
    found = list(lint_items(ITEM_KINDS["tools"], [tool(), tool()], LATEST))
    assert [text for _, text in found] == ["tool add: 2 items have this name"]
    many = [tool(name=f"t{number}") for number in range(MAX_TOOLS + 1)]
    assert [verdict for verdict, _ in lint_items(ITEM_KINDS["tools"], many, LATEST)] == ["warn"]


def test_a_schema_that_nests_without_an_end_is_not_followed():
    deep = {"type": "string"}
    for _ in range(2000):
        deep = {"not": deep}
    found = lint_items(ITEM_KINDS["tools"], [tool(inputSchema={**OBJECT, "x-deep": deep})], LATEST)
    # Which library notices it first depends on the Python version.
    (text,) = [text for verdict, text in found if verdict == "fail"]
    assert text.startswith("tool add: the input schema is not valid: ")


def test_problems_of_other_entries_are_found():
    resources = [{"uri": "a:b", "name": "b"}, {"uri": "b", "name": "b"}, {"uri": "c:d"}, {}]
    assert [text for _, text in lint_items(ITEM_KINDS["resources"], resources, LATEST)] == [
        "resource b: the URI has no scheme, such as file: or notes:",
        "resource c:d: no name",
        "resource number 4 has no uri",
    ]
    templates = [{"uriTemplate": "a:{b}"}, {"uriTemplate": "a:{b"}, 5]
    verdicts = [verdict for verdict, _ in lint_items(ITEM_KINDS["templates"], templates, LATEST)]
    assert verdicts == ["fail", "fail"]
    prompts = [{"name": "a", "title": "A"}, {"name": "b"}, {"name": "c", "description": "C"}, None]
    assert [text for _, text in lint_items(ITEM_KINDS["prompts"], prompts, LATEST)] == [
        "prompt b: no title and no description: users choose prompts by them",
        "prompt number 4 has no name",
    ]
