"""Prompts that a server offers to users, and completion of arguments.

Completion serves resource templates too; prompts use it most.
"""

from typing import TypeAlias

from toolpost.types.base import Icon, InputResponseParams, MetaStruct, Params, Result, Role, WireStruct
from toolpost.types.content import Content
from toolpost.types.initialize import PaginatedResult

__all__ = [
    "CompleteParams", "CompleteResult", "Completion", "CompletionArgument", "CompletionContext",
    "GetPromptParams", "GetPromptResult", "ListPromptsResult", "Prompt", "PromptArgument",
    "PromptMessage", "PromptReference", "Reference", "ResourceReference",
]  # fmt: skip


class PromptArgument(WireStruct):
    """An argument of a prompt."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class Prompt(MetaStruct):
    """A template of messages, with arguments to fill in."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = None


class ListPromptsResult(PaginatedResult):
    """One page of the prompts."""

    prompts: list[Prompt]


class GetPromptParams(InputResponseParams):
    """The parameters of `prompts/get`."""

    name: str
    arguments: dict[str, str] | None = None


class PromptMessage(WireStruct):
    """One message of a prompt.

    Examples:
        >>> PromptMessage("user", TextContent("Write a hymn to my pen.")).role
        'user'
    """

    role: Role
    content: Content


class GetPromptResult(Result):
    """The messages of a prompt, with its arguments filled in."""

    messages: list[PromptMessage]
    description: str | None = None


class PromptReference(WireStruct, tag_field="type", tag="ref/prompt"):
    """A reference to the prompt whose argument is being completed.

    Examples:
        >>> PromptReference("praise").name
        'praise'
    """

    name: str
    title: str | None = None


class ResourceReference(WireStruct, tag_field="type", tag="ref/resource"):
    """A reference to the resource template whose variable is being completed; `uri` is the template.

    Examples:
        >>> ResourceReference("items://{number}/name").uri
        'items://{number}/name'
    """

    uri: str


Reference: TypeAlias = PromptReference | ResourceReference


class CompletionArgument(WireStruct):
    """The argument to complete, with the text typed so far."""

    name: str
    value: str


class CompletionContext(WireStruct):
    """The arguments that already have values."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params):
    """The parameters of `completion/complete`."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(WireStruct):
    """Suggested values, at most 100, best first.

    Examples:
        >>> Completion(["pen", "pencil"], has_more=True).values
        ['pen', 'pencil']
    """

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """The result of `completion/complete`."""

    completion: Completion
