"""How newer content is converted for older peers; test_emitted shows that the outcome fits the schemas."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import struct_values
from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.downgrade import downgrade_value
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.types import (
    UNSET,
    Annotations,
    AudioContent,
    CallToolParams,
    CallToolResult,
    ClientRequestParams,
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    EmbeddedResource,
    GetPromptParams,
    GetPromptResult,
    ImageContent,
    ListResourcesResult,
    ListToolsResult,
    PromptMessage,
    Raw,
    ReadResourceParams,
    Resource,
    ResourceContents,
    ResourceLink,
    Result,
    SamplingMessage,
    TaskMetadata,
    TextContent,
    Tool,
    ToolChoice,
    ToolExecution,
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
TOLD = ToolResultContent("2", [TEXT, IMAGE])
NEW = UnknownContent({"type": "hologram"})

AUDIO_TEXT = TextContent("[audio, audio/wav: this client cannot play it]")
LINK_TEXT = TextContent("a: file:///a")
RESOURCE_TEXT = TextContent('{"type":"resource","resource":{"uri":"file:///a","text":"text"}}')
USE_TEXT = TextContent('[call 1 of add: {"x":1}]')
IMAGE_JSON = '{"type":"image","data":"aGk=","mimeType":"image/png"}'
TOLD_TEXT = TextContent(f"[result of call 2]\nhello\n{IMAGE_JSON}")

# block, as it is sent in each revision, oldest first; None: unchanged
IN_TOOLS_AND_PROMPTS = [
    (TEXT, [None, None, None, None, None]),
    (IMAGE, [None, None, None, None, None]),
    (RESOURCE, [None, None, None, None, None]),
    (AUDIO, [AUDIO_TEXT, None, None, None, None]),
    (LINK, [LINK_TEXT, LINK_TEXT, None, None, None]),
    (USE, [USE_TEXT] * 5),
    (TOLD, [TOLD_TEXT] * 5),
    (NEW, [None, None, None, None, None]),  # its creator has to know the receiver
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
    """Return each block with each revision, and the expected bytes."""
    return [
        pytest.param(block, REVISIONS[date], told[at] or block, id=f"{type(block).__name__} {date}")
        for block, told in table
        for at, date in enumerate(DATES)
    ]


# --------------------------------------------------------------------- blocks


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_TOOLS_AND_PROMPTS))
def test_blocks_of_a_tool(block, revision, told):
    lowered = downgrade_value(CallToolResult(content=[TEXT, block], is_error=True, meta={"b": 2}), revision)
    assert lowered == CallToolResult(content=[TEXT, told], is_error=True, meta={"b": 2})


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_TOOLS_AND_PROMPTS))
def test_blocks_of_a_prompt(block, revision, told):
    result = GetPromptResult(
        messages=[PromptMessage("user", TEXT), PromptMessage("assistant", block)], description="d"
    )
    assert downgrade_value(result, revision) == GetPromptResult(
        messages=[PromptMessage("user", TEXT), PromptMessage("assistant", told)], description="d"
    )


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_SAMPLING))
def test_blocks_of_a_question_to_the_model(block, revision, told):
    params = CreateMessageParams(
        messages=[SamplingMessage("user", block, meta={"c": 3})], max_tokens=5, temperature=0
    )
    assert downgrade_value(params, revision) == CreateMessageParams(
        messages=[SamplingMessage("user", told, meta={"c": 3})], max_tokens=5, temperature=0
    )


@pytest.mark.parametrize(("block", "revision", "told"), rows(IN_SAMPLING))
def test_blocks_of_an_answer_of_the_model(block, revision, told):
    result = CreateMessageResult(role="assistant", content=block, model="m", stop_reason="endTurn")
    assert downgrade_value(result, revision) == CreateMessageResult(
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
    assert downgrade_value(CallToolResult(content=[link]), A).content == [TextContent(text)]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (ToolResultContent("1", [TEXT, NEW, TEXT]), '[result of call 1]\nhello\n{"type":"hologram"}\nhello'),
        (ToolResultContent("1", []), "[result of call 1]"),
        (ToolResultContent("1", [TEXT], is_error=True), "[error of call 1]\nhello"),
        (ToolResultContent("1", [TEXT], is_error=False), "[result of call 1]\nhello"),
        (ToolResultContent("1", [], {"a": 2}, is_error=True), '[error of call 1]\n{"a":2}'),
        (ToolResultContent("1", [], None), "[result of call 1]\nnull"),
        (ToolResultContent("1", [IMAGE], [1]), f"[result of call 1]\n{IMAGE_JSON}\n[1]"),
        (ToolResultContent("1", [TEXT], [1]), "[result of call 1]\nhello"),
    ],
)
def test_the_result_of_a_tool_as_text(block, text):
    assert downgrade_value(CallToolResult(content=[block]), E).content == [TextContent(text)]
    params = CreateMessageParams(messages=[SamplingMessage("user", [block])], max_tokens=1)
    assert downgrade_value(params, C).messages == [SamplingMessage("user", TextContent(text))]


NOTES = Annotations(audience=["user"], priority=1, last_modified="2025-01-01")


@pytest.mark.parametrize(
    ("block", "annotations"),
    [
        (AudioContent("aGk=", "audio/wav", NOTES, meta={"k": 1}), NOTES),
        (ResourceLink("file:///a", "a", annotations=NOTES, meta={"k": 1}), NOTES),
        (EmbeddedResource(ResourceContents("file:///a", "t"), NOTES, meta={"k": 1}), NOTES),
        (ToolUseContent("1", "add", {}, meta={"k": 1}), None),
        (ToolResultContent("1", [], meta={"k": 1}), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_text_keeps_its_audience_and_meta(block, annotations):
    lowered = downgrade_value(CreateMessageResult(role="assistant", content=block, model="m"), A).content
    assert isinstance(lowered, TextContent)
    assert (lowered.annotations, lowered.meta) == (annotations, {"k": 1})


@pytest.mark.parametrize("block", ["hello", None, {"type": "text"}, [TEXT]], ids=repr)
@pytest.mark.parametrize("revision", [A, E])
def test_an_invalid_block_is_rejected(block, revision):
    with pytest.raises(LocalProtocolError, match=f"not {type(block).__name__}"):
        downgrade_value(CallToolResult(content=[block]), revision)


# --------------------------------------------------------------------- several blocks


@pytest.mark.parametrize("revision", [A, B, C])
def test_a_turn_of_several_blocks_becomes_several_turns(revision):
    params = CreateMessageParams(
        messages=[
            SamplingMessage("user", [TEXT, IMAGE, USE], meta={"d": 4}),
            SamplingMessage("assistant", TEXT),
            SamplingMessage("user", [], meta={"e": 5}),
        ],
        max_tokens=5,
    )
    assert downgrade_value(params, revision).messages == [
        SamplingMessage("user", TEXT, meta={"d": 4}),
        SamplingMessage("user", IMAGE),
        SamplingMessage("user", USE_TEXT),
        SamplingMessage("assistant", TEXT),
        SamplingMessage("user", TextContent(""), meta={"e": 5}),
    ]


@pytest.mark.parametrize("revision", [D, E])
def test_a_turn_of_several_blocks_stays_one_turn(revision):
    messages = [SamplingMessage("user", [TEXT, LINK, USE], meta={"d": 4}), SamplingMessage("user", [])]
    lowered = downgrade_value(CreateMessageParams(messages=messages, max_tokens=5), revision).messages
    assert lowered == [SamplingMessage("user", [TEXT, LINK_TEXT, USE], meta={"d": 4}), messages[1]]


SAID = [
    # what the model said, what it says where only one block may be said
    ([TEXT], TEXT),
    ([IMAGE], IMAGE),
    ([USE], USE_TEXT),
    ([NEW], NEW),
    ([TEXT, TextContent("you")], TextContent("hello\nyou")),
    ([TEXT, IMAGE], TextContent(f"hello\n{IMAGE_JSON}")),
    ([TEXT, NEW], TextContent('hello\n{"type":"hologram"}')),
    ([], TextContent("")),
]


@pytest.mark.parametrize("revision", [A, B, C])
@pytest.mark.parametrize(("content", "said"), SAID)
def test_an_answer_of_several_blocks_becomes_one(revision, content, said):
    result = CreateMessageResult(role="assistant", content=content, model="m")
    assert downgrade_value(result, revision).content == said


@pytest.mark.parametrize("revision", [D, E])
def test_an_answer_of_several_blocks_stays_as_it_is(revision):
    result = CreateMessageResult(role="assistant", content=[TEXT, USE, NEW], model="m")
    assert downgrade_value(result, revision) == result


# --------------------------------------------------------------------- structure

STRUCTURES = [
    # structured content, and what is sent of it in each revision: "-" nothing, "+" all
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
    lowered = downgrade_value(
        CallToolResult(content=[TEXT], structured_content=structured), REVISIONS[DATES[at]]
    )
    assert lowered.structured_content == (structured if told[at] == "+" else UNSET)
    assert lowered.content == [TEXT]


@pytest.mark.parametrize("structured", [{"a": 1}, {}, [1], "s", 0, None])
@pytest.mark.parametrize("revision", [A, B, C, D])
@pytest.mark.parametrize("blocks", [[], [IMAGE], [IMAGE, RESOURCE, NEW]], ids=len)
def test_structured_content_without_text_is_also_sent_as_text(structured, revision, blocks):
    """Older clients read text; the specification requires it for values that are not objects (TOOL-12)."""
    lowered = downgrade_value(CallToolResult(content=blocks, structured_content=structured), revision)
    assert lowered.content == [*blocks, TextContent(jsonrpc.encode(structured).decode())]


@pytest.mark.parametrize(("block", "told"), [(AUDIO, AUDIO_TEXT), (LINK, LINK_TEXT), (USE, USE_TEXT)])
def test_text_that_replaces_another_block_does_not_repeat_its_data(block, told):
    lowered = downgrade_value(CallToolResult(content=[block], structured_content={"a": 1}), A)
    assert lowered.content == [told, TextContent('{"a":1}')]


@pytest.mark.parametrize("structured", [{"a": 1}, None, UNSET])
@pytest.mark.parametrize("blocks", [[], [IMAGE]], ids=len)
def test_a_stateless_client_reads_any_structure(structured, blocks):
    result = CallToolResult(content=blocks, structured_content=structured)
    assert downgrade_value(result, E) is result


TOLD_STRUCTURES = [
    # the result of a tool, and what a model gets where structured content is an object
    (ToolResultContent("1", [], [1, 2]), ToolResultContent("1", [TextContent("[1,2]")])),
    (ToolResultContent("1", [], {"a": 1}), ToolResultContent("1", [TextContent('{"a":1}')], {"a": 1})),
    (
        ToolResultContent("1", [IMAGE], None, is_error=True, meta={"k": 1}),
        ToolResultContent("1", [IMAGE, TextContent("null")], is_error=True, meta={"k": 1}),
    ),
    (ToolResultContent("1", [TEXT], "s"), ToolResultContent("1", [TEXT])),
    (ToolResultContent("1", [TEXT], {"a": 1}), ToolResultContent("1", [TEXT], {"a": 1})),
    (ToolResultContent("1", [USE]), ToolResultContent("1", [USE_TEXT])),
]


@pytest.mark.parametrize(("block", "told"), TOLD_STRUCTURES)
def test_structured_content_for_a_model(block, told):
    alone_and_among_others: list[Any] = [(block, told), ([block], [told]), ([TEXT, block], [TEXT, told])]
    for said, expected in alone_and_among_others:
        params = CreateMessageParams(messages=[SamplingMessage("user", said)], max_tokens=1)
        assert downgrade_value(params, D).messages == [SamplingMessage("user", expected)]
        result = CreateMessageResult(role="user", content=said, model="m")
        assert downgrade_value(result, D).content == expected


@pytest.mark.parametrize("revision", [A, B, C, D])
def test_an_output_schema_describes_an_object(revision):
    def tool(schema):
        return Tool(name="t", input_schema={"type": "object"}, output_schema=schema, title="T")

    schemas = [None, {"type": "object", "x": 1}, {"type": "array"}, {}, {"type": ["object"]}, {"anyOf": []}]
    result = ListToolsResult(tools=[tool(schema) for schema in schemas], next_cursor="c")
    kept = [None, {"type": "object", "x": 1} if revision in (C, D) else None, None, None, None, None]
    assert downgrade_value(result, revision) == ListToolsResult(
        tools=[tool(schema) for schema in kept], next_cursor="c"
    )
    assert (downgrade_value(result, revision).tools[1] is result.tools[1]) is (revision in (C, D))
    assert downgrade_value(result, E) is result
    params = CreateMessageParams(
        messages=[], max_tokens=1, tools=result.tools, tool_choice=ToolChoice("none")
    )
    lowered = downgrade_value(params, revision)
    tools = (downgrade_value(result, revision).tools, params.tool_choice) if revision is D else (None, None)
    assert (lowered.tools, lowered.tool_choice) == tools
    assert downgrade_value(params, E) is params


RAW_TOOLS = [
    (b'{"name":"t","later":1.50}', (A, B, C, D, E)),
    (b'{"name":"t", "outputSchema":{"type":"object"}}', (C, D, E)),
    (b'{"name":"t", "outputSchema":{"type":"array"}}', (E,)),
    (b'{"name":"t", "outputSchema":null}', (E,)),
]


@pytest.mark.parametrize(("tool", "kept_in"), RAW_TOOLS)
def test_a_raw_tool_loses_only_an_output_schema_that_the_revision_lacks(tool, kept_in):
    listed: Any = [Raw(tool)]
    for revision in REVISIONS.values():
        [got] = downgrade_value(ListToolsResult(tools=listed), revision).tools
        assert got == (listed[0] if revision in kept_in else Raw(b'{"name":"t"}'))


# --------------------------------------------------------------------- what only some revisions have


@pytest.mark.parametrize("revision", [A, B, C, E])
def test_tasks_are_of_one_revision(revision):
    tool = Tool("t", {"type": "object"}, execution=ToolExecution("required"))
    plain = Tool("t", {"type": "object"})
    asks: dict[str, Any] = {"messages": [], "max_tokens": 1}
    pairs = [
        (ListToolsResult(tools=[plain, tool]), ListToolsResult(tools=[plain, plain])),
        (
            CreateMessageParams(**asks, tools=[tool]),
            CreateMessageParams(**asks, tools=[plain] if revision is E else None),
        ),
        (CallToolParams(name="t", task=TaskMetadata(5)), CallToolParams(name="t")),
        (CreateMessageParams(**asks, task=TaskMetadata(5)), CreateMessageParams(**asks)),
        (
            ElicitParams(message="m", requested_schema={}, task=TaskMetadata(5)),
            ElicitParams(message="m", requested_schema={}),
        ),
    ]
    for value, without in pairs:
        assert downgrade_value(value, revision) == without
        assert downgrade_value(value, D) is value


@pytest.mark.parametrize("kind", [CallToolParams, GetPromptParams, ReadResourceParams])
def test_only_a_stateless_request_is_a_retry(kind):
    whole = kind(**{kind.__struct_fields__[0]: "x"}, input_responses={"a": Raw(b"1")}, request_state="s")
    for revision in (A, B, C, D):
        assert downgrade_value(whole, revision) == kind(**{kind.__struct_fields__[0]: "x"})
    assert downgrade_value(whole, E) is whole


MEMBERS = [
    (struct_values.of(CreateMessageParams), "CreateMessageRequestParams"),
    (struct_values.elicitations(several=True), "ElicitRequestFormParams"),
    (struct_values.url_elicitations(), "ElicitRequestURLParams"),
    (struct_values.of(Tool).map(lambda tool: ListToolsResult(tools=[tool])), "ListToolsResult"),
]


@pytest.mark.parametrize(
    ("strategy", "name"), MEMBERS, ids=lambda value: value if isinstance(value, str) else ""
)
@given(data=st.data())
def test_stateless_messages_contain_no_session_members(schemas, strategy, name, data):
    """Its schema lets more members pass, so that test_emitted could not show it."""
    definitions = schemas[E.date]["$defs"]
    sent = json.loads(jsonrpc.encode(downgrade_value(data.draw(strategy), E)))
    for tool in sent.get("tools", []):
        assert tool.keys() <= definitions["Tool"]["properties"].keys()
    assert sent.keys() <= definitions[name]["properties"].keys()


@pytest.mark.parametrize("revision", [A, B, C, D])
def test_the_session_era_has_the_meta_of_an_ask(revision):
    params = CreateMessageParams(messages=[], max_tokens=1, meta={"k": 1})
    assert downgrade_value(params, revision) is params
    assert downgrade_value(params, E).meta is None


def test_the_ask_for_roots_has_meta_in_each_era():
    params = ClientRequestParams(meta={"k": 1})
    assert all(downgrade_value(params, revision) is params for revision in REVISIONS.values())


# --------------------------------------------------------------------- forms


def form(fields, **members):
    """A question by form with these fields."""
    return ElicitParams(
        message="m", requested_schema={"type": "object", "properties": fields, "required": ["f"]}, **members
    )


@pytest.mark.requirement("ELIC-12", "ELIC-13")
@pytest.mark.parametrize("revision", [REVISIONS[date] for date in DATES[-2:]])
def test_a_question_without_its_form_or_its_url_is_refused(revision):
    with pytest.raises(LocalProtocolError, match="requested_schema"):
        downgrade_value(ElicitParams(message="m"), revision)
    with pytest.raises(LocalProtocolError, match="`url`"):
        downgrade_value(ElicitParams(message="m", mode="url", elicitation_id="e"), revision)


URL = ElicitParams(message="m", mode="url", url="https://example.com", elicitation_id="e")
RED, BLUE = {"const": "r", "title": "Red"}, {"const": "b"}


@pytest.mark.parametrize(
    ("field", "plain"),
    [
        (
            {"type": "string", "title": "F", "oneOf": [RED], "default": "r"},
            {"type": "string", "title": "F", "enum": ["r"], "enumNames": ["Red"], "default": "r"},
        ),
        (
            {"type": "string", "oneOf": [BLUE, RED]},
            {"type": "string", "enum": ["b", "r"], "enumNames": ["b", "Red"]},
        ),
        ({"type": "string", "oneOf": []}, {"type": "string", "enum": [], "enumNames": []}),
    ],
)
def test_titles_of_choices_become_names(field, plain):
    other = {"type": "boolean"}
    params = form({"f": field, "g": other}, mode="form")
    assert downgrade_value(params, C) == form({"f": plain, "g": other}, mode="form")
    assert downgrade_value(params, D) is params
    assert downgrade_value(params, E) is params


@pytest.mark.parametrize(
    "params",
    [
        form({"f": {"type": "string", "enum": ["a"]}, "g": {"type": "integer"}, "h": {}}),
        form({}),
        ElicitParams(message="m", requested_schema={"type": "object"}),
        ElicitParams(message="m", requested_schema={}),
    ],
)
def test_a_plain_form_is_the_same_object(params):
    assert [revision for revision in (C, D, E) if downgrade_value(params, revision) is not params] == []


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"type": "array", "items": {"type": "string", "enum": ["a"]}}, "is a list, which"),
        (True, "has an invalid schema"),
        (None, "has an invalid schema"),
        ([], "has an invalid schema"),
        ({"type": "string", "oneOf": {}}, "has an invalid schema"),
        ({"type": "string", "oneOf": None}, "has an invalid schema"),
        ({"type": "string", "oneOf": [RED, {"title": "Blue"}]}, "not a string with a title"),
        ({"type": "string", "oneOf": [{"const": 1}]}, "not a string with a title"),
        ({"type": "string", "oneOf": ["r"]}, "not a string with a title"),
    ],
)
def test_a_field_that_cannot_be_asked_is_named(field, why):
    with pytest.raises(LocalProtocolError, match=f"the field 'colour' .*{why}"):
        downgrade_value(form({"f": {"type": "string"}, "colour": field}), C)


@pytest.mark.parametrize("fields", [None, [], "f", True])
def test_fields_have_names(fields):
    with pytest.raises(LocalProtocolError, match="`properties` of a form"):
        downgrade_value(form(fields), C)


@pytest.mark.requirement("ELIC-14")
def test_a_url_has_an_id_in_one_revision():
    bare = ElicitParams(message="m", mode="url", url="https://example.com")
    assert downgrade_value(URL, D) is URL
    assert downgrade_value(URL, E) == bare
    assert downgrade_value(bare, E) is bare
    with pytest.raises(LocalProtocolError, match="requires an elicitation_id"):
        downgrade_value(bare, D)


@pytest.mark.parametrize("revision", [A, B, C])
def test_a_url_cannot_be_asked_for_in_older_revisions(revision):
    with pytest.raises(LocalProtocolError, match=f"URL elicitation is not supported in {revision.date}"):
        downgrade_value(URL, revision)


# --------------------------------------------------------------------- subclasses


class Audible(AudioContent):
    """A block with a foreign type."""


class Verdict(CallToolResult):
    """A result with a foreign type."""

    score: int = 0


class Line(PromptMessage):
    """A message with a foreign type."""

    number: int = 0


class Aside(Result):
    """Another base, which is nothing to lower."""


class Both(Aside, CallToolResult):
    """A result whose first base is nothing to lower."""


def test_a_subclass_is_encoded_as_its_base():
    block = Audible("aGk=", "audio/wav")
    assert downgrade_value(Verdict(content=[block], score=3), A) == Verdict(content=[AUDIO_TEXT], score=3)
    assert downgrade_value(GetPromptResult(messages=[Line("user", block, 7)]), A).messages == [
        Line("user", AUDIO_TEXT, 7)
    ]
    same = Verdict(content=[block])
    assert downgrade_value(same, B) is same
    aside = Aside()
    assert downgrade_value(aside, A) is aside
    assert downgrade_value(Both(content=[block]), A) == Both(content=[AUDIO_TEXT])


# --------------------------------------------------------------------- identity

UNCHANGED = [
    CallToolResult(content=[]),
    CallToolResult(content=[TEXT, IMAGE, RESOURCE]),
    CallToolResult(content=[TEXT, NEW]),
    ListToolsResult(tools=[]),
    ListToolsResult(tools=[Tool(name="t", input_schema={})]),
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
def test_unchanged_content_is_the_same_object(value):
    assert [
        revision for revision in REVISIONS.values() if downgrade_value(value, revision) is not value
    ] == []


@pytest.mark.parametrize("value", SEVERAL, ids=lambda value: type(value).__name__)
def test_several_blocks_that_do_not_change_are_the_same_object(value):
    assert [revision for revision in (D, E) if downgrade_value(value, revision) is not value] == []


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=repr)
@pytest.mark.parametrize(
    "kind",
    [
        CallToolResult,
        ListToolsResult,
        GetPromptResult,
        CreateMessageParams,
        CreateMessageResult,
        ElicitParams,
    ],
)
@given(data=st.data())
def test_nothing_is_changed_in_place(kind, revision, data):
    value = data.draw(struct_values.of(kind))
    before = deepcopy(value)
    lowered = downgrade_value(value, revision)
    assert value == before
    assert downgrade_value(lowered, revision) == lowered, (
        "what an older peer can read does not change any more"
    )
    assert type(lowered) is kind


def test_a_lowered_result_has_no_bytes_of_the_old_one():
    result = CallToolResult(content=[AUDIO])
    vars(result)["raw"] = jsonrpc.Raw(b"{}")
    assert downgrade_value(result, B).raw == b"{}"
    assert downgrade_value(result, A).raw is None
