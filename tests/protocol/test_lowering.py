"""How newer things are told to an older peer; that the outcome fits the schemas is shown in test_emitted."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

import values
from toolpost.protocol import jsonrpc
from toolpost.protocol.lowering import lower
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.types import (
    UNSET,
    AudioContent,
    CallToolResult,
    CreateMessageParams,
    CreateMessageResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ListResourcesResult,
    ListToolsResult,
    PromptMessage,
    Resource,
    ResourceContents,
    ResourceLink,
    Result,
    SamplingMessage,
    TextContent,
    Tool,
    ToolResultContent,
    ToolUseContent,
    UnknownContent,
)

A, B, C, D, E = (REVISIONS[date] for date in DATES)

TEXT = TextContent("hello", meta={"a": 1})
IMAGE = ImageContent("aGk=", "image/png")
AUDIO = AudioContent("aGk=", "audio/wav")
LINK = ResourceLink("file:///a", "a")
RESOURCE = EmbeddedResource(ResourceContents("file:///a", "text"))
USE = ToolUseContent("1", "add", {"x": 1})
TOLD = ToolResultContent("1", [TEXT, IMAGE])
NEW = UnknownContent({"type": "hologram"})

AUDIO_TEXT = TextContent("[audio, audio/wav: this client cannot play it]")
LINK_TEXT = TextContent("a: file:///a")
RESOURCE_TEXT = TextContent('{"type":"resource","resource":{"uri":"file:///a","text":"text"}}')
USE_TEXT = TextContent('[call of add: {"x":1}]')
TOLD_TEXT = TextContent('hello\n{"type":"image","data":"aGk=","mimeType":"image/png"}')

# block, as it is told in each revision, oldest first; None: as it is
IN_TOOLS_AND_PROMPTS = [
    (TEXT, [None, None, None, None, None]),
    (IMAGE, [None, None, None, None, None]),
    (RESOURCE, [None, None, None, None, None]),
    (AUDIO, [AUDIO_TEXT, None, None, None, None]),
    (LINK, [LINK_TEXT, LINK_TEXT, None, None, None]),
    (USE, [USE_TEXT] * 5),
    (TOLD, [TOLD_TEXT] * 5),
    (NEW, [None, None, None, None, None]),  # whoever made it has to know whom it is for
]
IN_SAMPLING = [
    (TEXT, [None, None, None, None, None]),
    (IMAGE, [None, None, None, None, None]),
    (AUDIO, [AUDIO_TEXT, None, None, None, None]),
    (RESOURCE, [RESOURCE_TEXT] * 5),
    (LINK, [LINK_TEXT] * 5),
    (USE, [USE_TEXT, USE_TEXT, USE_TEXT, None, None]),
    (TOLD, [TOLD_TEXT, TOLD_TEXT, TOLD_TEXT, None, None]),
    (NEW, [None, None, None, None, None]),
]


def rows(table):
    """Each block with each revision, and what is told."""
    return [
        pytest.param(block, REVISIONS[date], told[at] or block, id=f"{type(block).__name__} {date}")
        for block, told in table
        for at, date in enumerate(DATES)
    ]


# --------------------------------------------------------------------- blocks


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_TOOLS_AND_PROMPTS))
def test_blocks_of_a_tool(block, revision, told):
    lowered = lower(CallToolResult(content=[TEXT, block], is_error=True, meta={"b": 2}), revision)
    assert lowered == CallToolResult(content=[TEXT, told], is_error=True, meta={"b": 2})


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_TOOLS_AND_PROMPTS))
def test_blocks_of_a_prompt(block, revision, told):
    result = GetPromptResult(
        messages=[PromptMessage("user", TEXT), PromptMessage("assistant", block)], description="d"
    )
    assert lower(result, revision) == GetPromptResult(
        messages=[PromptMessage("user", TEXT), PromptMessage("assistant", told)], description="d"
    )


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_SAMPLING))
def test_blocks_of_a_question_to_the_model(block, revision, told):
    params = CreateMessageParams(
        messages=[SamplingMessage("user", block, {"c": 3})], max_tokens=5, temperature=0
    )
    assert lower(params, revision) == CreateMessageParams(
        messages=[SamplingMessage("user", told, {"c": 3})], max_tokens=5, temperature=0
    )


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_SAMPLING))
def test_blocks_of_an_answer_of_the_model(block, revision, told):
    result = CreateMessageResult(role="assistant", content=block, model="m", stop_reason="endTurn")
    assert lower(result, revision) == CreateMessageResult(
        role="assistant", content=told, model="m", stop_reason="endTurn"
    )


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (ResourceLink("file:///a", "a"), "a: file:///a"),
        (ResourceLink("file:///a", "a", title="A"), "A: file:///a"),
        (ResourceLink("file:///a", "a", title=""), "a: file:///a"),
        (ResourceLink("file:///a", "a", description="All\nof it."), "a: file:///a\nAll\nof it."),
    ],
)
def test_a_link_as_text(link, text):
    assert lower(CallToolResult(content=[link]), A).content == [TextContent(text)]


def test_the_result_of_a_tool_as_text():
    block = ToolResultContent("1", [TEXT, NEW, TEXT])
    assert lower(CallToolResult(content=[block]), E).content == [
        TextContent('hello\n{"type":"hologram"}\nhello')
    ]
    assert lower(CallToolResult(content=[ToolResultContent("1", [])]), E).content == [TextContent("")]


# --------------------------------------------------------------------- several blocks


@pytest.mark.parametrize("revision", [A, B, C])
def test_a_turn_of_several_blocks_becomes_several_turns(revision):
    params = CreateMessageParams(
        messages=[
            SamplingMessage("user", [TEXT, IMAGE, USE], {"d": 4}),
            SamplingMessage("assistant", TEXT),
            SamplingMessage("user", []),
        ],
        max_tokens=5,
    )
    assert lower(params, revision).messages == [
        SamplingMessage("user", TEXT, {"d": 4}),
        SamplingMessage("user", IMAGE, {"d": 4}),
        SamplingMessage("user", USE_TEXT, {"d": 4}),
        SamplingMessage("assistant", TEXT),
    ]


@pytest.mark.parametrize("revision", [D, E])
def test_a_turn_of_several_blocks_stays_one_turn(revision):
    params = CreateMessageParams(messages=[SamplingMessage("user", [TEXT, LINK, USE])], max_tokens=5)
    assert lower(params, revision).messages == [SamplingMessage("user", [TEXT, LINK_TEXT, USE])]


SAID = [
    # what the model said, what it says where only one block may be said
    ([TEXT], TEXT),
    ([IMAGE], IMAGE),
    ([USE], USE_TEXT),
    ([NEW], NEW),
    ([TEXT, TextContent("you")], TextContent("hello\nyou")),
    ([TEXT, IMAGE], TOLD_TEXT),
    ([TEXT, NEW], TextContent('hello\n{"type":"hologram"}')),
    ([], TextContent("")),
]


@pytest.mark.parametrize("revision", [A, B, C])
@pytest.mark.parametrize(("content", "said"), SAID)
def test_an_answer_of_several_blocks_becomes_one(revision, content, said):
    result = CreateMessageResult(role="assistant", content=content, model="m")
    assert lower(result, revision).content == said


@pytest.mark.parametrize("revision", [D, E])
def test_an_answer_of_several_blocks_stays_as_it_is(revision):
    result = CreateMessageResult(role="assistant", content=[TEXT, USE, NEW], model="m")
    assert lower(result, revision) == result


# --------------------------------------------------------------------- structure

STRUCTURES = [
    # structured content, what is told of it in each revision: "-" nothing, "+" all
    ({"a": 1}, "--+++"),
    ({}, "--+++"),
    ([1], "----+"),
    ("s", "----+"),
    (0, "----+"),
    (None, "----+"),
    (UNSET, "-----"),
]


@pytest.mark.parametrize(("structured", "told"), STRUCTURES)
@pytest.mark.parametrize("at", range(5))
def test_structured_content(structured, told, at):
    lowered = lower(CallToolResult(content=[TEXT], structured_content=structured), REVISIONS[DATES[at]])
    assert lowered.structured_content == (structured if told[at] == "+" else UNSET)
    assert lowered.content == [TEXT]


@pytest.mark.parametrize("structured", [{"a": 1}, {}, [1], "s", 0, None])
@pytest.mark.parametrize("revision", [A, B, C, D])
def test_structured_content_without_text_is_told_as_text_too(structured, revision):
    """Older clients read text; the specification wants it beside what is no object (TOOL-12)."""
    lowered = lower(CallToolResult(content=[], structured_content=structured), revision)
    assert lowered.content == [TextContent(jsonrpc.encode(structured).decode())]


@pytest.mark.parametrize("structured", [{"a": 1}, None, UNSET])
def test_a_stateless_client_reads_any_structure(structured):
    result = CallToolResult(content=[], structured_content=structured)
    assert lower(result, E) is result


@pytest.mark.parametrize("revision", [A, B, C, D])
def test_an_output_schema_describes_an_object(revision):
    def tool(schema):
        return Tool(name="t", input_schema={"type": "object"}, output_schema=schema, title="T")

    schemas = [None, {"type": "object", "x": 1}, {"type": "array"}, {}, {"type": ["object"]}, {"anyOf": []}]
    result = ListToolsResult(tools=[tool(schema) for schema in schemas], next_cursor="c")
    kept = [None, {"type": "object", "x": 1}, None, None, None, None]
    assert lower(result, revision) == ListToolsResult(
        tools=[tool(schema) for schema in kept], next_cursor="c"
    )
    assert lower(result, revision).tools[1] is result.tools[1]
    assert lower(result, E) is result


# --------------------------------------------------------------------- identity

UNCHANGED = [
    CallToolResult(content=[]),
    CallToolResult(content=[TEXT, IMAGE, RESOURCE]),
    CallToolResult(content=[TEXT, NEW]),
    ListToolsResult(tools=[]),
    ListToolsResult(tools=[Tool(name="t", input_schema={}, output_schema={"type": "object"})]),
    GetPromptResult(messages=[]),
    GetPromptResult(messages=[PromptMessage("user", TEXT)]),
    GetPromptResult(messages=[PromptMessage("user", NEW)]),
    CreateMessageParams(messages=[], max_tokens=1),
    CreateMessageParams(messages=[SamplingMessage("user", TEXT)], max_tokens=1),
    CreateMessageParams(messages=[SamplingMessage("user", NEW)], max_tokens=1),
    CreateMessageResult(role="user", content=TEXT, model="m"),
    CreateMessageResult(role="user", content=NEW, model="m"),
    ListResourcesResult(resources=[Resource(uri="u", name="n")]),
    Result(),
]


SEVERAL = [
    CreateMessageParams(messages=[SamplingMessage("user", [TEXT, USE, TOLD])], max_tokens=1),
    CreateMessageResult(role="user", content=[TEXT, USE], model="m"),
]


@pytest.mark.parametrize("value", UNCHANGED, ids=lambda value: type(value).__name__)
def test_what_does_not_change_is_the_same_object(value):
    assert [revision for revision in REVISIONS.values() if lower(value, revision) is not value] == []


@pytest.mark.parametrize("value", SEVERAL, ids=lambda value: type(value).__name__)
def test_several_blocks_that_do_not_change_are_the_same_object(value):
    assert [revision for revision in (D, E) if lower(value, revision) is not value] == []


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=repr)
@pytest.mark.parametrize(
    "kind", [CallToolResult, ListToolsResult, GetPromptResult, CreateMessageParams, CreateMessageResult]
)
@given(data=st.data())
def test_nothing_is_changed_in_place(kind, revision, data):
    value = data.draw(values.of(kind))
    before = deepcopy(value)
    lowered = lower(value, revision)
    assert value == before
    assert lower(lowered, revision) == lowered, "what an older peer can read does not change any more"
    assert type(lowered) is kind


def test_a_lowered_result_has_no_bytes_of_the_old_one():
    result = CallToolResult(content=[AUDIO])
    vars(result)["raw"] = jsonrpc.Raw(b"{}")
    assert lower(result, B).raw == b"{}"
    assert lower(result, A).raw is None
