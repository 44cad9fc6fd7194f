"""How newer things are told to an older peer: one function that consults the record.

A block of a kind that the peer's revision lacks becomes text; structured output that it could not read
becomes text as well. What the peer understands passes untouched, and nothing is changed in place.
"""

from collections.abc import Callable
from copy import copy
from operator import is_
from typing import Final, TypeVar, cast

from toolpost.errors import LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.revisions import Revision
from toolpost.types.asks import CreateMessageParams, CreateMessageResult, ElicitParams, SamplingMessage
from toolpost.types.base import JSON, UNSET, Wire
from toolpost.types.content import (
    KINDS,
    AudioContent,
    Blocks,
    Content,
    ResourceLink,
    TextContent,
    ToolResultContent,
    ToolUseContent,
    UnknownContent,
)
from toolpost.types.prompts import GetPromptResult, PromptMessage
from toolpost.types.tools import CallToolResult, ListToolsResult, Tool

__all__ = ["lower"]

W = TypeVar("W", bound=Wire)

_TAGS: Final = {kind: tag for tag, kind in KINDS.items()}


def lower(value: W, revision: Revision) -> W:
    """The value as a peer of `revision` can read it: itself where nothing has to change.

    Raises:
        LocalProtocolError: the revision has no way to say it.
    """
    change = _CHANGES.get(type(value))
    return value if change is None else cast("W", change(value, revision))


def _blocks(blocks: list[Content], kinds: frozenset[str], revision: Revision) -> list[Content]:
    """The blocks, the same list where none of them changes."""
    for block in blocks:
        if _TAGS.get(type(block)) not in kinds or type(block) is ToolResultContent:
            lowered = [_block(block, kinds, revision) for block in blocks]
            return blocks if all(map(is_, lowered, blocks)) else lowered
    return blocks


def _block(block: Content, kinds: frozenset[str], revision: Revision) -> Content:
    """The block, as text where its kind is not known; for what we do not know either, its author answers."""
    if isinstance(block, UnknownContent):
        return block
    tag = _TAGS.get(type(block))
    if tag is None:
        raise LocalProtocolError(
            f"content is made of content blocks, not of {type(block).__name__}",
            hint='such as content=[TextContent("hello")]',
        )
    if tag not in kinds:
        return TextContent(_TEXTS.get(type(block), _json)(block))
    return _told(block, revision) if isinstance(block, ToolResultContent) else block


def _link(block: ResourceLink) -> str:
    title = block.title or block.name
    return f"{title}: {block.uri}" + (f"\n{block.description}" if block.description else "")


def _audio(block: AudioContent) -> str:
    return f"[audio, {block.mime_type}: this client cannot play it]"


def _tool_use(block: ToolUseContent) -> str:
    return f"[call of {block.name}: {_json(block.input)}]"


def _tool_result(block: ToolResultContent) -> str:
    return "\n".join(item.text if isinstance(item, TextContent) else _json(item) for item in block.content)


def _json(value: JSON) -> str:
    return jsonrpc.encode(value).decode()


_TEXTS: Final[dict[type, Callable[..., str]]] = {
    ResourceLink: _link,
    AudioContent: _audio,
    ToolUseContent: _tool_use,
    ToolResultContent: _tool_result,
}


def _structured(value: JSON, revision: Revision) -> JSON:
    """Structured output, or UNSET where the revision does not have it in this shape."""
    kind: type = dict if revision.structured == "object" else object
    return UNSET if revision.structured is None or not issubclass(type(value), kind) else value


def _tool_call(result: CallToolResult, revision: Revision) -> CallToolResult:
    content: list[Content] = _blocks(result.content, revision.content, revision)
    structured = result.structured_content
    if structured is not UNSET and revision.structured != "any":
        if not content:
            content = [TextContent(_json(structured))]
        structured = _structured(structured, revision)
    if content is result.content and structured is result.structured_content:
        return result
    lowered = copy(result)
    lowered.content = content
    lowered.structured_content = structured
    return lowered


def _told(block: ToolResultContent, revision: Revision) -> ToolResultContent:
    """What a tool said, told to a model."""
    content = _blocks(block.content, revision.content, revision)
    structured = _structured(block.structured_content, revision)
    if content is block.content and structured is block.structured_content:
        return block
    lowered = copy(block)
    lowered.content = content
    lowered.structured_content = structured
    return lowered


def _tools(tools: list[Tool], revision: Revision) -> list[Tool]:
    """Tools. Before structured output could be anything, its schema had to describe an object."""
    if revision.structured == "any" or all(_describes_object(tool.output_schema) for tool in tools):
        return tools
    lowered: list[Tool] = []
    for tool in tools:
        kept = tool
        if not _describes_object(tool.output_schema):
            kept = copy(tool)
            kept.output_schema = None
        lowered.append(kept)
    return lowered


def _describes_object(schema: dict[str, JSON] | None) -> bool:
    return schema is None or schema.get("type") == "object"


def _tool_list(result: ListToolsResult, revision: Revision) -> ListToolsResult:
    tools = _tools(result.tools, revision)
    if tools is result.tools:
        return result
    lowered = copy(result)
    lowered.tools = tools
    return lowered


def _prompt(result: GetPromptResult, revision: Revision) -> GetPromptResult:
    contents = [_block(message.content, revision.content, revision) for message in result.messages]
    if all(now is message.content for now, message in zip(contents, result.messages, strict=True)):
        return result
    lowered = copy(result)
    lowered.messages = [
        PromptMessage(message.role, now) for now, message in zip(contents, result.messages, strict=True)
    ]
    return lowered


def _question(params: CreateMessageParams, revision: Revision) -> CreateMessageParams:
    messages: list[SamplingMessage] = []
    for message in params.messages:
        turns = _turns(message.content, revision)
        if len(turns) == 1 and turns[0] is message.content:
            messages.append(message)
        else:
            messages += [SamplingMessage(message.role, turn, message.meta) for turn in turns]
    tools = None if params.tools is None else _tools(params.tools, revision)
    same = len(messages) == len(params.messages) and all(map(is_, messages, params.messages))
    if same and tools is params.tools:
        return params
    lowered = copy(params)
    lowered.messages = messages
    lowered.tools = tools
    return lowered


def _spoken(result: CreateMessageResult, revision: Revision) -> CreateMessageResult:
    """What a model said. Where only one block may be said, several become one text."""
    turns = _turns(result.content, revision)
    if len(turns) == 1 and turns[0] is result.content:
        return result
    lowered = copy(result)
    lowered.content = turns[0] if len(turns) == 1 else TextContent("\n".join(map(_said, turns)))
    return lowered


def _said(blocks: Blocks) -> str:
    return blocks.text if isinstance(blocks, TextContent) else _json(blocks)


def _turns(content: Blocks, revision: Revision) -> list[Blocks]:
    """The content of one message, split into several where a message may hold only one block."""
    if not isinstance(content, list):
        return [_block(content, revision.spoken, revision)]
    blocks = _blocks(content, revision.spoken, revision)
    return [blocks] if revision.many_blocks else list(blocks)


def _form(params: ElicitParams, revision: Revision) -> ElicitParams:
    """A question to the user. What the first forms could not ask is refused, titles become `enumNames`.

    Raises:
        LocalProtocolError: the revision has no way to ask this.
    """
    if params.mode == "url":
        if not revision.rich_forms:
            raise LocalProtocolError(f"a user cannot be asked to visit a URL in {revision.date}")
        if not revision.stateless and params.elicitation_id is None:
            raise LocalProtocolError(
                f"a URL that is to be visited needs an elicitation_id in {revision.date}"
            )
    if revision.rich_forms or params.requested_schema is None:
        return params
    fields: dict[str, JSON] = params.requested_schema.get("properties", {})
    plain = {name: _field(name, schema, revision) for name, schema in fields.items()}
    if all(map(is_, plain.values(), fields.values())):
        return params
    lowered = copy(params)
    lowered.requested_schema = {**params.requested_schema, "properties": plain}
    return lowered


def _field(name: str, schema: JSON, revision: Revision) -> JSON:
    if schema.get("type") == "array":
        raise LocalProtocolError(f"the field {name!r} takes several values, which {revision.date} cannot ask")
    choices = schema.get("oneOf")
    if choices is None:
        return schema
    plain = {key: value for key, value in schema.items() if key != "oneOf"}
    plain["enum"] = [choice["const"] for choice in choices]
    plain["enumNames"] = [choice["title"] for choice in choices]
    return plain


_CHANGES: Final[dict[type, Callable[..., Wire]]] = {
    CallToolResult: _tool_call,
    ListToolsResult: _tool_list,
    GetPromptResult: _prompt,
    CreateMessageParams: _question,
    CreateMessageResult: _spoken,
    ElicitParams: _form,
}
