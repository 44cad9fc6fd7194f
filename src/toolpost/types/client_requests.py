"""Requests from a server to a client: sampling (the model), elicitation (the user), roots.

In the session era a client request is a message of its own; in the stateless era it is part of a result (see
`base`) and its answer part of the retry. The types are the same.
"""

from typing import Literal, Self, cast

from msgspec import convert, field

from toolpost.types.base import JSON, MetaStruct, Number, OpenUnion, Result, Role, UnknownKind, WireStruct
from toolpost.types.content import Blocks, TextContent
from toolpost.types.tools import TaskMetadata, Tool

__all__ = [
    "BooleanSchema", "Choice", "ChoiceItems", "ClientRequestParams", "CreateMessageParams",
    "CreateMessageResult", "ElicitParams", "ElicitResult", "EnumSchema", "FormSchema", "ListRootsResult",
    "ModelHint", "ModelPreferences", "MultiEnumSchema", "NumberSchema", "PropertySchema", "Root",
    "SamplingMessage", "StringSchema", "ToolChoice", "UnknownSchema",
]  # fmt: skip


class ClientRequestParams(MetaStruct):
    """The parameters of a client request; `roots/list` has none of its own."""


# --------------------------------------------------------------------- the model


class ModelHint(WireStruct):
    """A part of a model's name."""

    name: str | None = None


class ModelPreferences(WireStruct, kw_only=True):
    """Priorities for the choice of a model, from 0 (does not matter) to 1 (matters most)."""

    hints: list[ModelHint] | None = None
    cost_priority: Number | None = None
    speed_priority: Number | None = None
    intelligence_priority: Number | None = None


class SamplingMessage(MetaStruct):
    """One message of the conversation given to the model."""

    role: Role
    content: Blocks


class ToolChoice(WireStruct):
    """Whether the model may, must or must not use tools."""

    mode: Literal["auto", "required", "none"] | None = None


class CreateMessageParams(ClientRequestParams):
    """The parameters of `sampling/createMessage`.

    Examples:
        >>> turn = SamplingMessage("user", TextContent("Write a slogan"))
        >>> CreateMessageParams([turn], max_tokens=50).max_tokens
        50
    """

    messages: list[SamplingMessage]
    max_tokens: int
    system_prompt: str | None = None
    model_preferences: ModelPreferences | None = None
    temperature: Number | None = None
    stop_sequences: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    metadata: dict[str, JSON] | None = None
    task: TaskMetadata | None = None


class CreateMessageResult(Result):
    """The message that the model generated.

    Examples:
        >>> CreateMessageResult("assistant", TextContent("Pens for all!"), "some-model").text
        'Pens for all!'
    """

    role: Role
    content: Blocks
    model: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """The text blocks, joined by line breaks."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "\n".join(block.text for block in blocks if isinstance(block, TextContent))


# --------------------------------------------------------------------- the user


class ElicitParams(ClientRequestParams):
    """The parameters of `elicitation/create`: a form (`requested_schema`), or a `url` to visit.

    The schema is kept as it came; `FormSchema` is the typed view of one.

    Examples:
        >>> ElicitParams(message="How many?", requested_schema={"type": "object", "properties": {}}).message
        'How many?'
    """

    message: str
    requested_schema: dict[str, JSON] | None = None
    mode: Literal["form", "url"] | None = None
    url: str | None = None
    elicitation_id: str | None = None
    task: TaskMetadata | None = None


class ElicitResult(Result):
    """The answer of the user; `content` only with "accept" and a form.

    Examples:
        >>> ElicitResult("accept", {"pieces": 3}).content["pieces"]
        3
    """

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, JSON] | None = None


class PropertySchema(OpenUnion):
    """One field of a form, of any kind; narrow it with `isinstance` or `match`."""

    __slots__ = ()

    @classmethod
    def read(cls, value: JSON) -> Self:
        """Return the schema for decoded JSON."""
        if not isinstance(value, dict):
            raise ValueError("Expected a field schema: an object")  # noqa: TRY004 - msgspec adds the path
        members = cast("dict[str, JSON]", value)
        tag = members.get("type")
        kind = _PROPERTY_TYPES.get(tag) if isinstance(tag, str) else None
        if kind is StringSchema and members.keys() & {"enum", "oneOf"}:
            kind = EnumSchema
        return cast("Self", UnknownSchema(members) if kind is None else convert(members, kind))


class UnknownSchema(UnknownKind, PropertySchema):
    """A field of a kind that the specification does not name. `raw` is the whole schema."""

    __slots__ = ()


class _PropertyBase(WireStruct, PropertySchema, kw_only=True):
    title: str | None = None
    description: str | None = None


class StringSchema(_PropertyBase, tag_field="type", tag="string", kw_only=True):
    """A line of text."""

    min_length: int | None = None
    max_length: int | None = None
    format: str | None = None
    default: str | None = None


class NumberSchema(_PropertyBase, kw_only=True):
    """A number."""

    type: Literal["number", "integer"]
    minimum: Number | None = None
    maximum: Number | None = None
    default: Number | None = None


class BooleanSchema(_PropertyBase, tag_field="type", tag="boolean", kw_only=True):
    """Yes or no."""

    default: bool | None = None


class Choice(WireStruct):
    """A value to choose, and its title."""

    const: str
    title: str


class EnumSchema(_PropertyBase, tag_field="type", tag="string", kw_only=True):
    """A single choice: `enum` without titles, `one_of` with them, `enum_names` for older peers."""

    enum: list[str] | None = None
    one_of: list[Choice] | None = None
    enum_names: list[str] | None = None
    default: str | None = None


class ChoiceItems(WireStruct, kw_only=True):
    """The options of a multiple choice: `enum` without titles, `any_of` with them."""

    type: str | None = None
    enum: list[str] | None = None
    any_of: list[Choice] | None = None


class MultiEnumSchema(_PropertyBase, tag_field="type", tag="array", kw_only=True):
    """A multiple choice."""

    items: ChoiceItems
    min_items: int | None = None
    max_items: int | None = None
    default: list[str] | None = None


_PROPERTY_TYPES: dict[str, type[PropertySchema]] = {
    "string": StringSchema,
    "number": NumberSchema,
    "integer": NumberSchema,
    "boolean": BooleanSchema,
    "array": MultiEnumSchema,
}


class FormSchema(WireStruct, tag_field="type", tag="object"):
    """The typed view of a `requested_schema`: flat, each property a primitive or a choice."""

    properties: dict[str, PropertySchema]
    required: list[str] | None = None
    schema: str | None = field(name="$schema", default=None)


# --------------------------------------------------------------------- the roots


class Root(MetaStruct):
    """A folder or file that the user has opened; `uri` starts with file://."""

    uri: str
    name: str | None = None


class ListRootsResult(Result):
    """The roots that the user has opened."""

    roots: list[Root]
