"""How newer things are told to an older peer: one function that consults the record.

A block of a kind that the peer's revision lacks becomes text; structured output that it could not read
becomes text as well; what a later revision has dropped is left out. What the peer understands passes
untouched, and nothing is changed in place.
"""

from collections.abc import Callable
from copy import copy
from operator import is_
from typing import Any, Final, TypeVar, cast

from toolpost import types
from toolpost.errors import LocalProtocolError, NotDeclared
from toolpost.protocol import jsonrpc
from toolpost.protocol.revisions import Revision
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
from toolpost.types.inputs import AnswerParams
from toolpost.types.tools import CallToolParams, CallToolResult, ListToolsResult, Tool

__all__ = ["lower"]

V = TypeVar("V")
W = TypeVar("W", bound=Wire)
Ask = TypeVar("Ask", "types.CreateMessageParams", "types.ElicitParams")
Answers = TypeVar("Answers", bound=AnswerParams)
Outcome = TypeVar("Outcome", CallToolResult, ToolResultContent)


class _ByKind(dict[type | str, V | None]):
    """A table by class, where a subclass has what its base has; what was looked for once is kept.

    A class that few processes have loaded stands in it by the path of its name.
    """

    def __missing__(self, kind: type) -> V | None:
        names = (name for base in kind.__mro__ for name in (base, f"{base.__module__}.{base.__qualname__}"))
        found = next((found for name in names if (found := self.get(name)) is not None), None)
        self[kind] = found
        return found


def lower(value: W, revision: Revision) -> W:
    """The value as a peer of `revision` can read it: itself where nothing has to change.

    Raises:
        LocalProtocolError: the revision has no way to say it.
    """
    change = _CHANGES[type(value)]
    return value if change is None else change(value, revision)


def _changed(value: W, **members: object) -> W:
    """The value with these members: itself where it has them already."""
    lowered = value
    for name, member in members.items():
        if getattr(value, name) is not member:
            lowered = copy(value) if lowered is value else lowered
            setattr(lowered, name, member)
    return lowered


def _kept(before: list[V], after: list[V]) -> list[V]:
    """The same list where no item of it changed; one that was split in two has changed as well."""
    return before if all(map(is_, before, after)) else after


# --------------------------------------------------------------------- blocks

_TAGS: Final[_ByKind[str]] = _ByKind({kind: tag for tag, kind in KINDS.items()})


def _blocks(blocks: list[Content], kinds: frozenset[str], revision: Revision) -> list[Content]:
    for block in blocks:
        if type(block) is not TextContent:  # which everybody can read, and most of what is said
            return _kept(blocks, [_block(block, kinds, revision) for block in blocks])
    return blocks


def _block(block: Content, kinds: frozenset[str], revision: Revision) -> Content:
    """The block, as text where its kind is not known; for what we do not know either, its author answers."""
    tag = _TAGS[type(block)]
    if tag in kinds:
        return _outcome(block, revision) if isinstance(block, ToolResultContent) else block
    if isinstance(block, UnknownContent):
        return block
    if tag is None:
        raise LocalProtocolError(
            f"content is made of content blocks, not of {type(block).__name__}",
            hint='such as content=[TextContent("hello")]',
        )
    text = _TEXTS.get(tag, _json)(block)
    return TextContent(text, getattr(block, "annotations", None), meta=getattr(block, "meta", None))


def _link(block: ResourceLink) -> str:
    title = block.title or block.name
    return f"{title}: {block.uri}" + (f"\n{block.description}" if block.description else "")


def _audio(block: AudioContent) -> str:
    return f"[audio, {block.mime_type}: this client cannot play it]"


def _tool_use(block: ToolUseContent) -> str:
    return f"[call {block.id} of {block.name}: {_json(block.input)}]"


def _tool_result(block: ToolResultContent) -> str:
    outcome = f"[{'error' if block.is_error else 'result'} of call {block.tool_use_id}]"
    return "\n".join([outcome, *map(_said, _spelled(block))])


def _said(block: Blocks) -> str:
    return block.text if isinstance(block, TextContent) else _json(block)


def _json(value: JSON) -> str:
    return jsonrpc.encode(value).decode()


_TEXTS: Final[dict[str, Callable[..., str]]] = {
    "resource_link": _link,
    "audio": _audio,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
}


# --------------------------------------------------------------------- tools


def _outcome(value: Outcome, revision: Revision) -> Outcome:
    """What a tool said, to the client or in a model's conversation."""
    content, structured = value.content, value.structured_content
    if revision.structured != "any":
        content = _spelled(value)
        if revision.structured is None or not issubclass(type(structured), dict):
            structured = UNSET
    content = _blocks(content, revision.content, revision)
    if content is value.content and structured is value.structured_content:
        return value
    return _changed(value, content=content, structured_content=structured)


def _spelled(value: CallToolResult | ToolResultContent) -> list[Content]:
    """The content, and the structure as text unless its author has put something into text (TOOL-12)."""
    structured = value.structured_content
    if structured is UNSET:
        return value.content
    for block in value.content:
        if isinstance(block, TextContent):
            return value.content
    return [*value.content, TextContent(_json(structured))]


def _call(params: CallToolParams, revision: Revision) -> CallToolParams:
    if params.task is not None and not revision.tasks:
        params = _changed(params, task=None)
    return params if revision.stateless else _answers(params, revision)


def _answers(params: Answers, revision: Revision) -> Answers:
    """A request that may be a retry: in a session nothing is asked by returning."""
    if revision.stateless:
        return params
    return _changed(params, input_responses=None, request_state=None)


def _tool_list(result: ListToolsResult, revision: Revision) -> ListToolsResult:
    return _changed(result, tools=_tools(result.tools, revision))


def _tools(tools: list[Tool], revision: Revision) -> list[Tool]:
    return _kept(tools, [_tool(tool, revision) for tool in tools])


def _tool(tool: Tool, revision: Revision) -> Tool:
    """A tool. Before structured output could be anything, its schema had to describe an object."""
    if tool.output_schema is None and tool.execution is None:
        return tool
    schema = tool.output_schema
    if schema is not None and revision.structured != "any" and schema.get("type") != "object":
        schema = None
    return _changed(tool, output_schema=schema, execution=tool.execution if revision.tasks else None)


# --------------------------------------------------------------------- conversations


def _prompt(result: "types.GetPromptResult", revision: Revision) -> "types.GetPromptResult":
    messages = [
        _changed(message, content=_block(message.content, revision.content, revision))
        for message in result.messages
    ]
    return _changed(result, messages=_kept(result.messages, messages))


def _question(params: "types.CreateMessageParams", revision: Revision) -> "types.CreateMessageParams":
    messages: list[types.SamplingMessage] = []
    for message in params.messages:
        first, *others = _turns(message.content, revision)
        messages.append(_changed(message, content=first))
        messages += [_changed(message, content=turn, meta=None) for turn in others]
    asked = _changed(_ask(params, revision), messages=_kept(params.messages, messages))
    if "tool_use" not in revision.spoken:
        return _changed(asked, tools=None, tool_choice=None)
    return asked if params.tools is None else _changed(asked, tools=_tools(params.tools, revision))


def _spoken(result: "types.CreateMessageResult", revision: Revision) -> "types.CreateMessageResult":
    """What a model said. Where only one block may be said, several become one text."""
    turns = _turns(result.content, revision)
    content = turns[0] if len(turns) == 1 else TextContent("\n".join(map(_said, turns)))
    return _changed(result, content=content)


def _turns(content: Blocks, revision: Revision) -> list[Blocks]:
    """The content of one message, split into several where a message holds exactly one block."""
    if not isinstance(content, list):
        return [_block(content, revision.spoken, revision)]
    blocks = _blocks(content, revision.spoken, revision)
    return [blocks] if revision.many_blocks else [*blocks] or [TextContent("")]


def _ask(params: Ask, revision: Revision) -> Ask:
    """A question without what only other revisions have. Inside a result it has no `_meta`."""
    return _changed(
        params,
        task=params.task if revision.tasks else None,
        meta=None if revision.stateless else params.meta,
    )


# --------------------------------------------------------------------- forms


def _form(params: "types.ElicitParams", revision: Revision) -> "types.ElicitParams":
    """A question to the user. What the first forms could not ask is refused, titles become `enumNames`.

    Raises:
        LocalProtocolError: the revision has no way to ask this.
    """
    if params.mode == "url":
        if not revision.rich_forms:
            raise NotDeclared("elicitation.url", f"a user cannot be asked to visit a URL in {revision.date}")
        if not revision.stateless and params.elicitation_id is None:
            raise LocalProtocolError(
                f"a URL that is to be visited needs an elicitation_id in {revision.date}"
            )
        if not params.url:
            raise LocalProtocolError("a user cannot be asked to visit a URL without a `url`")  # ELIC-13
    elif params.requested_schema is None:
        raise LocalProtocolError("a user cannot be asked by a form without a `requested_schema`")  # ELIC-12
    schema = params.requested_schema
    return _changed(
        _ask(params, revision),
        requested_schema=schema if schema is None or revision.rich_forms else _plain(schema, revision),
        elicitation_id=None if revision.stateless else params.elicitation_id,
    )


def _plain(schema: dict[str, JSON], revision: Revision) -> dict[str, JSON]:
    fields = schema.get("properties", {})
    if not isinstance(fields, dict):
        raise LocalProtocolError("the `properties` of a form are an object: name and schema of each field")
    before = cast("dict[str, JSON]", fields)
    after = {name: _field(name, field, revision) for name, field in before.items()}
    return schema if all(map(is_, before.values(), after.values())) else {**schema, "properties": after}


def _field(name: str, schema: JSON, revision: Revision) -> JSON:
    match schema:
        case {"type": "array"}:
            raise NotDeclared(
                "elicitation", f"the field {name!r} takes several values, which {revision.date} cannot ask"
            )
        case {"oneOf": [*choices], **others}:
            titled = [_choice(name, choice) for choice in choices]
            return {
                **others,
                "enum": [value for value, _ in titled],
                "enumNames": [title for _, title in titled],
            }
        case {**members} if "oneOf" not in members:
            return schema
        case _:
            raise LocalProtocolError(
                f"the field {name!r} has a schema that cannot be asked",
                hint='a schema is an object such as {"type": "string"}, `oneOf` is a list of choices',
            )


def _choice(name: str, choice: JSON) -> tuple[str, str]:
    """A value to choose and its title, which is the value itself where it has none."""
    match choice:
        case {"const": str(value), "title": str(title)}:
            return value, title
        case {"const": str(value)}:
            return value, value
        case _:
            raise LocalProtocolError(
                f"the field {name!r} has a choice that is no text with a title",
                hint='such as {"const": "r", "title": "Red"}',
            )


_CHANGES: Final[_ByKind[Callable[..., Any]]] = _ByKind(
    {
        CallToolParams: _call,
        AnswerParams: _answers,
        CallToolResult: _outcome,
        ListToolsResult: _tool_list,
        "toolpost.types.prompts.GetPromptResult": _prompt,
        "toolpost.types.asks.CreateMessageParams": _question,
        "toolpost.types.asks.CreateMessageResult": _spoken,
        "toolpost.types.asks.ElicitParams": _form,
    }
)
