"""How newer things are told to an older peer: one function that consults the record.

A block of a kind that the peer's revision lacks becomes text; structured output that it could not read
becomes text as well. What the peer understands passes untouched, and nothing is changed in place.
"""

from collections.abc import Callable
from copy import copy
from typing import Final, TypeVar, cast

from toolpost.protocol import jsonrpc
from toolpost.protocol.revisions import Revision
from toolpost.types.asks import CreateMessageParams, CreateMessageResult, SamplingMessage
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
from toolpost.types.tools import CallToolResult, ListToolsResult

__all__ = ["lower"]

W = TypeVar("W", bound=Wire)

_TAGS: Final = {kind: tag for tag, kind in KINDS.items()}


def lower(value: W, revision: Revision) -> W:
    """The value as a peer of `revision` can read it: itself where nothing has to change."""
    change = _CHANGES.get(type(value))
    return value if change is None else cast("W", change(value, revision))


def _blocks(blocks: list[Content], kinds: frozenset[str]) -> list[Content]:
    """The blocks, the same list where all of them are known."""
    for block in blocks:
        if _TAGS.get(type(block)) not in kinds:
            return [_block(block, kinds) for block in blocks]
    return blocks


def _block(block: Content, kinds: frozenset[str]) -> Content:
    """The block, as text where its kind is not known; for what we do not know either, its author answers."""
    if _TAGS.get(type(block)) in kinds or isinstance(block, UnknownContent):
        return block
    return TextContent(_TEXTS.get(type(block), _json)(block))


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


def _tool_call(result: CallToolResult, revision: Revision) -> CallToolResult:
    content: list[Content] = _blocks(result.content, revision.content)
    structured = result.structured_content
    if structured is not UNSET and revision.structured != "any":
        if not content:
            content = [TextContent(_json(structured))]
        if revision.structured is None or not isinstance(structured, dict):
            structured = UNSET
    if content is result.content and structured is result.structured_content:
        return result
    lowered = copy(result)
    lowered.content = content
    lowered.structured_content = structured
    return lowered


def _tool_list(result: ListToolsResult, revision: Revision) -> ListToolsResult:
    """Before `structuredContent` could be anything, an output schema had to describe an object."""
    if revision.structured == "any" or all(_describes_object(tool.output_schema) for tool in result.tools):
        return result
    lowered = copy(result)
    lowered.tools = []
    for tool in result.tools:
        kept = tool
        if not _describes_object(tool.output_schema):
            kept = copy(tool)
            kept.output_schema = None
        lowered.tools.append(kept)
    return lowered


def _describes_object(schema: dict[str, JSON] | None) -> bool:
    return schema is None or schema.get("type") == "object"


def _prompt(result: GetPromptResult, revision: Revision) -> GetPromptResult:
    if all(_TAGS.get(type(message.content)) in revision.content for message in result.messages):
        return result
    lowered = copy(result)
    lowered.messages = [
        PromptMessage(message.role, _block(message.content, revision.content)) for message in result.messages
    ]
    return lowered


def _question(params: CreateMessageParams, revision: Revision) -> CreateMessageParams:
    messages: list[SamplingMessage] = []
    for message in params.messages:
        for content in _turns(message.content, revision):
            messages.append(SamplingMessage(message.role, content, message.meta))  # noqa: PERF401 - reads better
    lowered = copy(params)
    lowered.messages = messages
    return lowered


def _spoken(result: CreateMessageResult, revision: Revision) -> CreateMessageResult:
    """What a model said. Where only one block may be said, several become one text."""
    turns = _turns(result.content, revision)
    lowered = copy(result)
    lowered.content = turns[0] if len(turns) == 1 else TextContent("\n".join(map(_said, turns)))
    return lowered


def _said(blocks: Blocks) -> str:
    return blocks.text if isinstance(blocks, TextContent) else _json(blocks)


def _turns(content: Blocks, revision: Revision) -> list[Blocks]:
    """The content of one message, split into several where a message may hold only one block."""
    if not isinstance(content, list):
        return [_block(content, revision.spoken)]
    blocks = _blocks(content, revision.spoken)
    return [blocks] if revision.many_blocks else list(blocks)


_CHANGES: Final[dict[type, Callable[..., Wire]]] = {
    CallToolResult: _tool_call,
    ListToolsResult: _tool_list,
    GetPromptResult: _prompt,
    CreateMessageParams: _question,
    CreateMessageResult: _spoken,
}
