"""Content blocks: each type is decoded as its struct, and unknown types survive."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import struct_values
from schema_definitions import text
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.types import (
    CONTENT_TYPES,
    UNSET,
    AudioContent,
    CallToolResult,
    Content,
    CreateMessageParams,
    CreateMessageResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ResourceContents,
    ResourceLink,
    SamplingMessage,
    TextContent,
    ToolResultContent,
    ToolUseContent,
    UnknownContent,
)

NEW = {"type": "hologram", "data": {"depth": [1, None, 0.5]}, "_meta": {"a": 1}, "text": 5}
HELLO = {"type": "text", "text": "hello"}

BLOCKS = [
    ({"type": "text", "text": "t"}, TextContent("t")),
    ({"type": "image", "data": "aGk=", "mimeType": "image/png"}, ImageContent("aGk=", "image/png")),
    ({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}, AudioContent("aGk=", "audio/wav")),
    ({"type": "resource_link", "uri": "u", "name": "n", "size": 3}, ResourceLink("u", "n", size=3)),
    ({"type": "resource", "resource": {"uri": "u", "text": ""}}, EmbeddedResource(ResourceContents("u", ""))),
    (
        {"type": "resource", "resource": {"uri": "u", "blob": ""}},
        EmbeddedResource(ResourceContents("u", blob="")),
    ),
    ({"type": "tool_use", "id": "1", "name": "n", "input": {"a": 1}}, ToolUseContent("1", "n", {"a": 1})),
    (
        {"type": "tool_result", "toolUseId": "1", "content": [HELLO]},
        ToolResultContent("1", [TextContent("hello")]),
    ),
    (
        {"type": "tool_result", "toolUseId": "1", "content": [], "structuredContent": None},
        ToolResultContent("1", [], structured_content=None),
    ),
    (NEW, UnknownContent(NEW)),
    ({"type": ""}, UnknownContent({"type": ""})),
]


def written(value):
    return json.loads(jsonrpc.encode(value))


@pytest.mark.parametrize(("value", "block"), BLOCKS)
def test_each_kind_is_read_as_its_struct(value, block):
    assert JSONReader(Content)(json.dumps(value).encode()) == block
    assert Content.read(value) == block
    assert text(written(block)) == text(value)


def test_every_kind_is_in_the_table():
    assert {type(block) for _, block in BLOCKS} == {*CONTENT_TYPES.values(), UnknownContent}
    assert all(
        Content.read(value).__class__ is CONTENT_TYPES.get(str(value["type"]), UnknownContent)
        for value, _ in BLOCKS
    )


@pytest.mark.parametrize("kind", list(CONTENT_TYPES.values()))
@given(data=st.data())
def test_each_kind_is_written_and_read_again(kind, data):
    block = data.draw(struct_values.of(kind))
    assert JSONReader(Content)(jsonrpc.encode(block)) == block


# --------------------------------------------------------------------- unknown types

RESULT = {"type": "tool_result", "toolUseId": "1", "content": [HELLO, NEW, HELLO]}
PLACES = [
    (CallToolResult, {"content": [HELLO, NEW]}),
    (CallToolResult, {"content": [NEW]}),
    (GetPromptResult, {"messages": [{"role": "user", "content": NEW}, {"role": "user", "content": HELLO}]}),
    (SamplingMessage, {"role": "user", "content": NEW}),
    (SamplingMessage, {"role": "user", "content": [NEW, HELLO]}),
    (SamplingMessage, {"role": "user", "content": RESULT}),
    (SamplingMessage, {"role": "user", "content": [HELLO, RESULT]}),
    (CreateMessageParams, {"messages": [{"role": "user", "content": [NEW]}], "maxTokens": 1}),
    (CreateMessageResult, {"role": "assistant", "model": "m", "content": NEW}),
    (CreateMessageResult, {"role": "assistant", "model": "m", "content": [HELLO, NEW]}),
    (CreateMessageResult, {"role": "assistant", "model": "m", "content": []}),
]


@pytest.mark.parametrize(("kind", "value"), PLACES)
def test_an_unknown_kind_survives_wherever_it_stands(kind, value):
    assert text(written(JSONReader(kind)(json.dumps(value).encode()))) == text(value)


def test_an_unknown_block_keeps_its_type():
    block = Content.read(NEW)
    assert isinstance(block, UnknownContent)
    assert block.type == "hologram"
    assert block.raw == NEW
    assert repr(block) == f"UnknownContent({NEW!r})"


def test_unknown_blocks_are_equal_if_their_members_are():
    assert UnknownContent({"type": "a"}) == UnknownContent({"type": "a"})
    assert UnknownContent({"type": "a"}) != UnknownContent({"type": "b"})
    assert UnknownContent({"type": "a"}) != {"type": "a"}
    with pytest.raises(TypeError, match="unhashable"):
        hash(UnknownContent({"type": "a"}))


def test_one_block_or_several():
    """The run-time type for both accepts everything that the type checker allows."""
    one = JSONReader(SamplingMessage)(json.dumps({"role": "user", "content": HELLO}).encode())
    many = JSONReader(SamplingMessage)(json.dumps({"role": "user", "content": [HELLO]}).encode())
    assert one.content == TextContent("hello")
    assert many.content == [TextContent("hello")]


# --------------------------------------------------------------------- invalid content

WRONG = [
    # kind, JSON, what the error names
    (CallToolResult, {"content": [HELLO, {"type": "text"}]}, ["`text`", "$.content[1]"]),
    (CallToolResult, {"content": [HELLO, 5]}, ["content block", "$.content[1]"]),
    (CallToolResult, {"content": [{"text": "no type"}]}, ["content block", "$.content[0]"]),
    (CallToolResult, {"content": [{"type": 5}]}, ["content block", "$.content[0]"]),
    (CallToolResult, {"content": [{"type": ["text"]}]}, ["content block", "$.content[0]"]),
    (CallToolResult, {"content": HELLO}, ["array", "$.content"]),
    (CallToolResult, {"content": None}, ["array", "$.content"]),
    (CallToolResult, {}, ["`content`"]),
    (
        GetPromptResult,
        {"messages": [{"role": "user", "content": [HELLO]}]},
        ["content block", "$.messages[0].content"],
    ),
    (GetPromptResult, {"messages": [{"role": "robot", "content": HELLO}]}, ["'robot'", "$.messages[0].role"]),
    (
        SamplingMessage,
        {"role": "user", "content": {"type": "image", "data": ""}},
        ["`mimeType`", "$.content"],
    ),
    (SamplingMessage, {"role": "user", "content": 5}, ["content block", "$.content"]),
    (
        SamplingMessage,
        {"role": "user", "content": {**RESULT, "content": [HELLO, {"type": "text", "text": 5}]}},
        ["`int`", "$.text", "$.content[1]", "$.content"],
    ),
    (SamplingMessage, {"role": "user", "content": [HELLO, {"type": "text"}]}, ["`text`", "[1]", "$.content"]),
    (SamplingMessage, {"role": "user", "content": [HELLO, 5]}, ["content block", "[1]", "$.content"]),
    (
        CreateMessageParams,
        {"messages": [{"role": "user", "content": [HELLO, HELLO, {"type": "audio"}]}], "maxTokens": 1},
        ["`data`", "[2]", "$.messages[0].content"],
    ),
]


@pytest.mark.parametrize(("kind", "value", "named"), WRONG)
def test_an_error_names_the_fault_and_its_position(kind, value, named):
    with pytest.raises(InvalidJSONValue) as caught:
        JSONReader(kind)(json.dumps(value).encode())
    said = str(caught.value)
    assert [name for name in named if name not in said] == [], said


def test_deep_results_of_tools_are_read_without_recursion_errors():
    """Nesting is bounded by the envelope; what gets this far is read or refused, and never crashes."""
    nested = HELLO
    for _ in range(30):
        nested = {"type": "tool_result", "toolUseId": "1", "content": [nested]}
    assert text(written(Content.read(nested))) == text(nested)
    bottomless = b'{"type":"tool_result","toolUseId":"1","content":[' * 100_000
    with pytest.raises(InvalidJSONValue):
        JSONReader(Content)(bottomless)


def test_absent_structure_is_not_null():
    assert ToolResultContent("1", []).structured_content is UNSET
    assert "structuredContent" not in written(ToolResultContent("1", []))
