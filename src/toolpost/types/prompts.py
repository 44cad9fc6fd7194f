"""Prompts that a server offers to users, and the completion of arguments while they are typed.

Completion serves resource templates too; it lives here because prompts need it most.
"""

from typing import TypeAlias

from msgspec import field

from toolpost.types.base import Icon, InputResponseParams, Meta, Params, Result, Role, WireStruct
from toolpost.types.content import Content
from toolpost.types.initialize import PaginatedResult

__all__ = [
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "GetPromptParams",
    "GetPromptResult",
    "ListPromptsResult",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "PromptReference",
    "Reference",
    "ResourceReference",
]


class PromptArgument(WireStruct):
    """What a prompt wants to know."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class Prompt(WireStruct):
    """A conversation starter with gaps to fill."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListPromptsResult(PaginatedResult):
    """One page of the prompts."""

    prompts: list[Prompt]


class GetPromptParams(InputResponseParams):
    """Which prompt is wanted, with which gaps filled."""

    name: str
    arguments: dict[str, str] | None = None


class PromptMessage(WireStruct):
    """One turn of the conversation.

    Examples:
        >>> PromptMessage("user", TextContent("Write a hymn to my pen.")).role
        'user'
    """

    role: Role
    content: Content


class GetPromptResult(Result):
    """The prompt, filled in."""

    messages: list[PromptMessage]
    description: str | None = None


class PromptReference(WireStruct, tag_field="type", tag="ref/prompt"):
    """The prompt whose argument is being typed.

    Examples:
        >>> PromptReference("praise").name
        'praise'
    """

    name: str
    title: str | None = None


class ResourceReference(WireStruct, tag_field="type", tag="ref/resource"):
    """The resource template whose variable is being typed; `uri` is the template.

    Examples:
        >>> ResourceReference("items://{number}/name").uri
        'items://{number}/name'
    """

    uri: str


Reference: TypeAlias = PromptReference | ResourceReference


class CompletionArgument(WireStruct):
    """What has been typed so far."""

    name: str
    value: str


class CompletionContext(WireStruct):
    """The arguments that are already known."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params):
    """What is to be completed."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(WireStruct):
    """How it might go on: at most 100 values, best first.

    Examples:
        >>> Completion(["pen", "pencil"], has_more=True).values
        ['pen', 'pencil']
    """

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """How it might go on."""

    completion: Completion
