"""What is odd about tools, resources and prompts, as a doctor finds it."""

import pytest

from http_sites import Reply, odd_site
from toolpost.cli.doctor.check_items import (
    MAX_DESCRIPTION_LENGTH,
    MAX_TOOLS,
    lint_prompts,
    lint_resources,
    lint_templates,
    lint_tools,
)
from toolpost.protocol.revisions import LATEST, LATEST_SESSION

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
    assert list(lint_tools([good], LATEST_SESSION)) == []


@pytest.mark.parametrize(
    ("odd", "verdict", "text"),
    [
        (tool(name="add two"), "fail", "tool add two: a name has 1 to 128 letters"),
        (tool(name="math.add"), "warn", "many hosts take only names"),
        (tool(name="a" * 65), "warn", "many hosts take only names"),
        (tool(description=""), "warn", "no description"),
        (tool(description="x" * (MAX_DESCRIPTION_LENGTH + 1)), "warn", "its description has 1025 characters"),
        (tool(inputSchema=None), "fail", "no client can read it: Expected `object`, got `null`"),
        (tool(inputSchema=[]), "fail", "no client can read it: Expected `object`, got `array`"),
        (tool(inputSchema={}), "fail", "the type of its input schema is None, and has to be 'object'"),
        (tool(inputSchema={"type": "array"}), "fail", "the type of its input schema is 'array'"),
        (
            tool(**schema(a={"type": "int", "description": "x"})),
            "fail",
            "its input schema is not valid: properties.a.type: ",
        ),
        (tool(**schema(a={"$ref": "#/$defs/none"})), "fail", "its input schema is not valid: "),
        (tool(inputSchema={**OBJECT, "anyOf": [{}]}), "warn", "anyOf at the top"),
        (tool(**schema(a={"$ref": "https://x.example/y", "description": "x"})), "warn", "hosts do not fetch"),
        (tool(**schema(a={"items": [{"$ref": "o.json"}], "description": "x"})), "warn", "hosts do not fetch"),
        (tool(**schema(**{"a b": {"description": "x"}})), "warn", "parameters that are called like 'a b'"),
        (tool(**schema(a={}, b={})), "warn", "2 of 2 parameters have no description: a, b"),
        (tool(inputSchema={**OBJECT, "properties": {}, "required": ["x"]}), "warn", "schema requires 'x'"),
        (tool(outputSchema={"type": "integer"}), "fail", "the type of its output schema has to be 'object'"),
        ({"name": "add", "description": "x"}, "fail", "missing required field `inputSchema`"),
        ({"description": "x"}, "fail", "tool number 1 has no name"),
        ("tool", "fail", "tool number 1 has no name"),
    ],
)
def test_what_is_odd_about_a_tool_is_found(odd, verdict, text):
    found = list(lint_tools([odd], LATEST_SESSION))
    assert any(each.verdict == verdict and text in each.text for each in found), found


@pytest.mark.parametrize("key", ["$ref", "$schema", "$dynamicRef"])
def test_a_schema_makes_nobody_fetch_anything(key):
    asked = []

    def answer(request):
        asked.append(request.path)
        return Reply(200, b"{}")

    with odd_site(answer) as origin:
        inner = {"description": "x", key: f"{origin}/schema"}
        found = list(lint_tools([tool(**schema(a=inner)), tool(inputSchema={**OBJECT, **inner})], LATEST))
    assert asked == []
    assert key == "$dynamicRef" or found


def test_output_may_be_anything_in_the_stateless_era():
    assert list(lint_tools([tool(outputSchema={"type": "integer"})], LATEST)) == []


def test_two_tools_of_one_name_and_too_many_are_found():
    found = list(lint_tools([tool(), tool()], LATEST))
    assert [each.text for each in found] == ["tool add: 2 have this name"]
    many = [tool(name=f"t{number}") for number in range(MAX_TOOLS + 1)]
    assert [each.verdict for each in lint_tools(many, LATEST)] == ["warn"]


def test_a_schema_that_nests_without_an_end_is_not_followed():
    deep = {"type": "string"}
    for _ in range(2000):
        deep = {"not": deep}
    list(lint_tools([tool(inputSchema={**OBJECT, "x-deep": deep})], LATEST))


def test_what_is_odd_about_the_others_is_found():
    resources = [{"uri": "a:b", "name": "b"}, {"uri": "b", "name": "b"}, {"uri": "c:d"}, {}]
    assert [each.text for each in lint_resources(resources, LATEST)] == [
        "resource b: a URI begins with a scheme, such as file: or notes:",
        "resource c:d: it has no name",
        "resource number 4 has no uri",
    ]
    templates = [{"uriTemplate": "a:{b}"}, {"uriTemplate": "a:{b"}, 5]
    verdicts = [each.verdict for each in lint_templates(templates, LATEST)]
    assert verdicts == ["fail", "fail"]
    prompts = [{"name": "a", "title": "A"}, {"name": "b"}, {"name": "c", "description": "C"}, None]
    assert [each.text for each in lint_prompts(prompts, LATEST)] == [
        "prompt b: it has neither title nor description: a person chooses by it",
        "prompt number 4 has no name",
    ]
