"""Translate values for a peer of an older revision.

A content block that the revision lacks becomes text, and so does structured output; members that it does not
have are left out. All else passes untouched, and nothing is changed in place. Also checks the
order of tool calls and results in a sampling conversation.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import is_
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from toolpost import types
from toolpost.errors import CapabilityNotDeclared, LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue
from toolpost.protocol.revisions import Revision
from toolpost.types import JSON, UNSET, Content, Raw

_OBJECT_TYPE: Final = Raw(b'"object"')

V = TypeVar("V")
W = TypeVar("W", bound=types.WireStruct)
ClientRequestT = TypeVar("ClientRequestT", types.CreateMessageParams, types.ElicitParams)
RetryParamsT = TypeVar("RetryParamsT", bound=types.InputResponseParams)
ToolsT = TypeVar("ToolsT", types.CreateMessageParams, types.ListToolsResult)
ToolResultT = TypeVar("ToolResultT", types.CallToolResult, types.ToolResultContent)


class _TypeTable(dict[type, V | None]):
    """A table by class in which a subclass has the entry of its base."""

    def __missing__(self, kind: type) -> V | None:
        found = (value for base in kind.__mro__ if (value := self.get(base)) is not None)
        self[kind] = next(found, None)
        return self[kind]


def downgrade_value(value: W, revision: Revision) -> W:
    """Return the value for a peer of `revision`; LocalProtocolError if that has no way to express it."""
    change = DOWNGRADES[type(value)]
    return value if change is None else change(value, revision)


def _replace_members(value: W, **members: object) -> W:
    """Return a copy with these members, or the value itself if it has them."""
    changes = {name: member for name, member in members.items() if getattr(value, name) is not member}
    return replace(value, **changes) if changes else value


def _keep_if_unchanged(before: list[V], after: list[V]) -> list[V]:
    """Return the same list if no item changed."""
    return before if all(map(is_, before, after)) else after


# --------------------------------------------------------------------- blocks

_TAG_BY_TYPE: Final[_TypeTable[str]] = _TypeTable({kind: tag for tag, kind in types.CONTENT_TYPES.items()})


def _downgrade_blocks(blocks: list[Content], kinds: frozenset[str], revision: Revision) -> list[Content]:
    for block in blocks:
        if type(block) is not types.TextContent:
            return _keep_if_unchanged(blocks, [_downgrade_block(block, kinds, revision) for block in blocks])
    return blocks


def _downgrade_block(block: Content, kinds: frozenset[str], revision: Revision) -> Content:
    """Return the block, or its text if the peer lacks the type; types unknown to us pass."""
    tag = _TAG_BY_TYPE[type(block)]
    if tag in kinds and isinstance(block, types.ToolResultContent):
        return _downgrade_tool_result(block, revision)
    if tag in kinds or isinstance(block, types.UnknownContent):
        return block
    if tag is None:
        raise LocalProtocolError(
            f"content must consist of content blocks, not {type(block).__name__}",
            hint='such as content=[TextContent("hello")]',
        )
    text = _spell_out_block(block)
    return types.TextContent(text, getattr(block, "annotations", None), meta=getattr(block, "meta", None))


def _spell_out_block(block: Content) -> str:
    """Return a block of a type that the peer lacks as text."""
    match block:
        case types.ResourceLink():
            title = block.title or block.name
            return f"{title}: {block.uri}" + (f"\n{block.description}" if block.description else "")
        case types.AudioContent():
            return f"[audio, {block.mime_type}: this client cannot play it]"
        case types.ToolUseContent():
            return f"[call {block.id} of {block.name}: {_to_json(block.input)}]"
        case types.ToolResultContent():
            outcome = f"[{'error' if block.is_error else 'result'} of call {block.tool_use_id}]"
            return "\n".join([outcome, *map(_block_to_text, _spell_out_structured(block))])
        case _:
            return _to_json(block)


def _block_to_text(block: types.Blocks) -> str:
    return block.text if isinstance(block, types.TextContent) else _to_json(block)


def _to_json(value: JSON) -> str:
    return jsonrpc.encode(value).decode()


# --------------------------------------------------------------------- tools


def _downgrade_tool_result(value: ToolResultT, revision: Revision) -> ToolResultT:
    """Translate the result of a tool, for a client or in a sampling conversation."""
    content, structured = value.content, value.structured_content
    is_object = revision.structured == "object" and issubclass(type(structured), dict)
    fits = is_object or revision.structured == "any"
    if fits and len(content) == 1 and type(content[0]) is types.TextContent:
        return value  # the usual case
    if revision.structured != "any":
        if not content or type(content[0]) is not types.TextContent:
            content = _spell_out_structured(value)
        if not fits:
            structured = UNSET
    content = _downgrade_blocks(content, revision.content, revision)
    if content is value.content and structured is value.structured_content:
        return value
    return _replace_members(value, content=content, structured_content=structured)


def _spell_out_structured(value: types.CallToolResult | types.ToolResultContent) -> list[Content]:
    """Return the content, and structured content as text unless there is text already (TOOL-12)."""
    structured = value.structured_content
    if structured is UNSET or any(isinstance(block, types.TextContent) for block in value.content):
        return value.content
    return [*value.content, types.TextContent(_to_json(structured))]


def _downgrade_call(params: types.CallToolParams, revision: Revision) -> types.CallToolParams:
    if params.task is not None and not revision.tasks:
        params = _replace_members(params, task=None)
    is_retry = params.input_responses is not None or params.request_state is not None
    return _drop_input_responses(params, revision) if is_retry else params


def _drop_input_responses(params: RetryParamsT, revision: Revision) -> RetryParamsT:
    """Remove the input responses of a retry, which sessions do not have."""
    dropped = {} if revision.stateless else {"input_responses": None, "request_state": None}
    return _replace_members(params, **dropped)


def _downgrade_tools(value: ToolsT, revision: Revision) -> ToolsT:
    """Translate the tools of a list or of a sampling request."""
    if not value.tools:
        return value
    listed: list[Any] = value.tools
    tools = [_downgrade_tool(tool, revision) for tool in listed]
    return _replace_members(value, tools=_keep_if_unchanged(listed, tools))


def _downgrade_tool(tool: types.Tool | Raw, revision: Revision) -> types.Tool | Raw:
    """Translate a tool. Before structured output could be anything, its schema had to describe an object."""
    if isinstance(tool, Raw):  # of another server, passed on as it came
        return _downgrade_raw_tool(tool, revision)
    if tool.output_schema is None and tool.execution is None:
        return tool
    schema = tool.output_schema
    if schema is not None and revision.structured != "any":
        schema = schema if revision.structured and schema.get("type") == "object" else None
    return _replace_members(tool, output_schema=schema, execution=tool.execution if revision.tasks else None)


def _downgrade_raw_tool(tool: Raw, revision: Revision) -> Raw:
    members = {} if revision.structured == "any" else MEMBERS_READER(tool)
    schema = members.pop("outputSchema", None)
    with suppress(InvalidJSONValue):  # the schema is not an object
        if schema is None or (revision.structured and MEMBERS_READER(schema).get("type") == _OBJECT_TYPE):
            return tool
    return Raw(jsonrpc.encode(members))


# --------------------------------------------------------------------- conversations


def _downgrade_prompt(result: types.GetPromptResult, revision: Revision) -> types.GetPromptResult:
    messages = [
        _replace_members(message, content=_downgrade_block(message.content, revision.content, revision))
        for message in result.messages
    ]
    return _replace_members(result, messages=_keep_if_unchanged(result.messages, messages))


def _downgrade_sampling(params: types.CreateMessageParams, revision: Revision) -> types.CreateMessageParams:
    messages: list[types.SamplingMessage] = []
    for message in params.messages:
        first, *others = _split_turns(message.content, revision)
        messages.append(_replace_members(message, content=first))
        messages += [_replace_members(message, content=turn, meta=None) for turn in others]
    asked = _replace_members(
        _downgrade_client_request(params, revision), messages=_keep_if_unchanged(params.messages, messages)
    )
    if "tool_use" not in revision.sampling_content:
        return _replace_members(asked, tools=None, tool_choice=None)
    return _downgrade_tools(asked, revision)


def _downgrade_sampling_result(
    result: types.CreateMessageResult, revision: Revision
) -> types.CreateMessageResult:
    """Translate the answer of a model. Where only one block is allowed, several become one text."""
    turns = _split_turns(result.content, revision)
    content = turns[0] if len(turns) == 1 else types.TextContent("\n".join(map(_block_to_text, turns)))
    return _replace_members(result, content=content)


def _split_turns(content: types.Blocks, revision: Revision) -> list[types.Blocks]:
    """Return the content of a message, split where a message holds exactly one block."""
    if not isinstance(content, list):
        return [_downgrade_block(content, revision.sampling_content, revision)]
    blocks = _downgrade_blocks(content, revision.sampling_content, revision)
    return [blocks] if revision.many_blocks else [*blocks] or [types.TextContent("")]


def _downgrade_client_request(params: ClientRequestT, revision: Revision) -> ClientRequestT:
    """Remove what only other revisions have. Inside a result there is no `_meta`."""
    task, meta = params.task if revision.tasks else None, None if revision.stateless else params.meta
    return _replace_members(params, task=task, meta=meta)


# --------------------------------------------------------------------- forms


def _downgrade_elicitation(params: types.ElicitParams, revision: Revision) -> types.ElicitParams:
    """Translate an elicitation. Fields that older forms lack are refused, titles become `enumNames`."""
    if params.mode == "url":
        date = revision.date
        if not revision.rich_forms:
            raise CapabilityNotDeclared("elicitation.url", f"URL elicitation is not supported in {date}")
        if not revision.stateless and params.elicitation_id is None:
            raise LocalProtocolError(f"URL elicitation requires an elicitation_id in {date}")
        if not params.url:
            raise LocalProtocolError("URL elicitation requires a `url`")  # ELIC-13
    elif params.requested_schema is None:
        raise LocalProtocolError("form elicitation requires a `requested_schema`")  # ELIC-12
    schema = params.requested_schema
    if schema is not None and not revision.rich_forms:
        schema = _downgrade_form_schema(schema, revision)
    return _replace_members(
        _downgrade_client_request(params, revision),
        requested_schema=schema,
        elicitation_id=None if revision.stateless else params.elicitation_id,
    )


def _downgrade_form_schema(schema: dict[str, JSON], revision: Revision) -> dict[str, JSON]:
    fields = schema.get("properties", {})
    if not isinstance(fields, dict):
        raise LocalProtocolError("the `properties` of a form must map field names to schemas")
    before = cast("dict[str, JSON]", fields)
    after = {name: _downgrade_field(name, field, revision) for name, field in before.items()}
    return schema if all(map(is_, before.values(), after.values())) else {**schema, "properties": after}


def _downgrade_field(name: str, schema: JSON, revision: Revision) -> JSON:
    match schema:
        case {"type": "array"}:
            raise CapabilityNotDeclared(
                "elicitation", f"the field {name!r} is a list, which {revision.date} does not support"
            )
        case {"oneOf": [*choices], **others}:
            titled = [_read_choice(name, choice) for choice in choices]
            values, titles = [value for value, _ in titled], [title for _, title in titled]
            return {**others, "enum": values, "enumNames": titles}
        case {**members} if "oneOf" not in members:
            return schema
        case _:
            raise LocalProtocolError(
                f"the field {name!r} has an invalid schema",
                hint='a schema is an object such as {"type": "string"}, and `oneOf` is a list of choices',
            )


def _read_choice(name: str, choice: JSON) -> tuple[str, str]:
    """Return value and title of a choice; the title defaults to the value."""
    match choice:
        case {"const": str(value), "title": str(title)}:
            return value, title
        case {"const": str(value)}:
            return value, value
        case _:
            raise LocalProtocolError(
                f"the field {name!r} has a choice that is not a string with a title",
                hint='such as {"const": "r", "title": "Red"}',
            )


DOWNGRADES: Final[_TypeTable[Callable[..., Any]]] = _TypeTable(
    {
        types.CallToolParams: _downgrade_call,
        types.InputResponseParams: _drop_input_responses,
        types.CallToolResult: _downgrade_tool_result,
        types.ListToolsResult: _downgrade_tools,
        types.GetPromptResult: _downgrade_prompt,
        types.CreateMessageParams: _downgrade_sampling,
        types.CreateMessageResult: _downgrade_sampling_result,
        types.ElicitParams: _downgrade_elicitation,
    }
)


# --------------------------------------------------------------------- order of tool calls and results


def explain_invalid_tool_turns(messages: Iterable[types.SamplingMessage]) -> str | None:
    """Return the problem with the order of tool calls and results, or None (SAMP-6, SAMP-7)."""
    used: set[str] = set()
    for number, message in enumerate(messages, 1):
        content = message.content
        blocks: Sequence[object] = content if isinstance(content, list) else (content,)
        results = [block for block in blocks if isinstance(block, types.ToolResultContent)]
        if results and (message.role != "user" or len(results) < len(blocks)):
            return f"message {number}: tool results must be the only content of a user message"
        answered = {block.tool_use_id for block in results}
        if answered != used:
            expected, got = _format_ids(used), _format_ids(answered)
            return f"message {number}: expected results for {expected}, got {got}"
        used = {block.id for block in blocks if isinstance(block, types.ToolUseContent)}
    if used:
        return f"the last message uses tools, but no result follows for {_format_ids(used)}"
    return None


def _format_ids(ids: set[str]) -> str:
    shown = [repr(each[:40]) for each in sorted(ids)[:3]]
    return ", ".join(shown) + (" …" if len(ids) > 3 else "") or "no call"
