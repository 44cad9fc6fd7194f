"""Requests of a server to a client: forms as typed views, sampling, roots."""

import json

import pytest
from hypothesis import given

import struct_values
from schema_definitions import text
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.types import (
    BooleanSchema,
    Choice,
    ChoiceItems,
    ClientRequestParams,
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    EnumSchema,
    FormSchema,
    ImageContent,
    ListRootsResult,
    MultiEnumSchema,
    NumberSchema,
    PropertySchema,
    Root,
    StringSchema,
    TextContent,
    UnknownSchema,
)

FIELDS = [
    ({"type": "string"}, StringSchema()),
    (
        {"type": "string", "minLength": 0, "format": "email", "default": ""},
        StringSchema(min_length=0, format="email", default=""),
    ),
    ({"type": "number", "minimum": 0.5, "default": 0}, NumberSchema(type="number", minimum=0.5, default=0)),
    ({"type": "integer", "maximum": 3}, NumberSchema(type="integer", maximum=3)),
    ({"type": "boolean", "default": False}, BooleanSchema(default=False)),
    ({"type": "string", "enum": ["a"], "enumNames": ["A"]}, EnumSchema(enum=["a"], enum_names=["A"])),
    ({"type": "string", "enum": []}, EnumSchema(enum=[])),
    ({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}, EnumSchema(one_of=[Choice("a", "A")])),
    (
        {"type": "array", "items": {"type": "string", "enum": ["a"]}, "minItems": 1, "default": []},
        MultiEnumSchema(items=ChoiceItems(type="string", enum=["a"]), min_items=1, default=[]),
    ),
    (
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
        MultiEnumSchema(items=ChoiceItems(any_of=[Choice("a", "A")])),
    ),
]

NEW = [
    {"type": "color", "space": {"name": "srgb", "depth": None}},
    {"type": "object", "properties": {}},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {},
    {"type": None},
    {"type": 5},
    {"type": ["string", "null"], "title": "Either"},  # valid JSON Schema, which forms may allow one day
    {"type": {"deep": []}},
]


def written(value):
    return json.loads(jsonrpc.encode(value))


def form(field):
    return {"type": "object", "properties": {"field": field}}


@pytest.mark.parametrize(("value", "schema"), FIELDS)
def test_each_kind_of_field_is_decoded_as_its_struct(value, schema):
    read = JSONReader(FormSchema)(json.dumps(form(value)).encode())
    assert read == FormSchema(properties={"field": schema})
    assert isinstance(schema, PropertySchema)
    assert text(written(read)) == text(form(value))


@pytest.mark.parametrize("value", NEW)
def test_an_unknown_field_type_survives(value):
    read = JSONReader(FormSchema)(json.dumps(form(value)).encode())
    field = read.properties["field"]
    assert isinstance(field, UnknownSchema)
    assert field.raw == value
    assert text(written(read)) == text(form(value))


WRONG = [
    (form(5), "$.properties"),
    (form([]), "$.properties"),
    (form({"type": "string", "minLength": "5"}), "minLength"),
    (form({"type": "array"}), "items"),
    (form({"type": "string", "oneOf": [{"const": "a"}]}), "title"),
    (form({"type": "boolean", "default": "yes"}), "default"),
    ({"type": "array", "properties": {}}, "'array'"),
    ({"type": "object"}, "properties"),
]


@pytest.mark.parametrize(("value", "named"), WRONG)
def test_an_invalid_form_is_rejected_with_a_path(value, named):
    with pytest.raises(InvalidJSONValue) as caught:
        JSONReader(FormSchema)(json.dumps(value).encode())
    assert named in str(caught.value)


@given(params=struct_values.elicitations(several=True) | struct_values.url_elicitations())
def test_an_elicitation_survives_encoding_and_decoding(params):
    read = JSONReader(ElicitParams)(jsonrpc.encode(params))
    assert read == params
    if read.requested_schema is not None:
        typed = JSONReader(FormSchema)(jsonrpc.encode(read.requested_schema))
        assert text(written(typed)) == text(read.requested_schema)


def test_a_form_is_not_changed():
    """The typed view has fewer members than the schema, and the schema is sent."""
    schema = form({"type": "string", "pattern": "^a", "x-nobody-knows": [None]}) | {"x-more": 1}
    read = JSONReader(ElicitParams)(json.dumps({"message": "m", "requestedSchema": schema}).encode())
    assert text(written(read)["requestedSchema"]) == text(schema)


def test_the_dialect_of_a_form():
    value = form({"type": "string"}) | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "required": ["field"],
    }
    read = JSONReader(FormSchema)(json.dumps(value).encode())
    assert read.schema == value["$schema"]
    assert text(written(read)) == text(value)


@pytest.mark.parametrize("content", [{}, {"a": 95.5, "b": True, "c": ["x"], "d": ""}])
def test_answers_of_the_user(content):
    value = {"action": "accept", "content": content}
    assert text(written(JSONReader(ElicitResult)(json.dumps(value).encode()))) == text(value)


@pytest.mark.parametrize("action", ["yes", "", None, 1])
def test_an_unknown_action_is_rejected(action):
    with pytest.raises(InvalidJSONValue, match=r"\$\.action"):
        JSONReader(ElicitResult)(json.dumps({"action": action}).encode())


@given(params=struct_values.of(CreateMessageParams))
def test_a_sampling_request_survives_encoding_and_decoding(params):
    assert JSONReader(CreateMessageParams)(jsonrpc.encode(params)) == params


def test_roots():
    result = ListRootsResult(roots=[Root("file:///a", name="A", meta={"b": 1}), Root("file:///c")])
    assert JSONReader(ListRootsResult)(jsonrpc.encode(result)) == result
    assert JSONReader(ClientRequestParams)(b"{}") == ClientRequestParams()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TextContent("a"), "a"),
        ([TextContent("a"), ImageContent("eA==", "image/png"), TextContent("b")], "a\nb"),
        (ImageContent("eA==", "image/png"), ""),
    ],
)
def test_the_text_of_a_sampling_result(content, said):
    assert CreateMessageResult("assistant", content, "some-model").text == said
