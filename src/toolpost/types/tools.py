"""Tools: what a server lets a model do, and how a call is asked for and answered.

Schemas are kept as they are, with every keyword; nobody here reads them.
"""

from msgspec import UNSET, Raw, field

from toolpost.types.base import JSON, Icon, InputResponseParams, Meta, Result, Unset, WireStruct
from toolpost.types.content import Content
from toolpost.types.initialize import PaginatedResult

__all__ = [
    "CallToolParams",
    "CallToolResult",
    "ListToolsResult",
    "TaskMetadata",
    "Tool",
    "ToolAnnotations",
    "ToolExecution",
]


class ToolAnnotations(WireStruct, kw_only=True):
    """Hints about a tool, not to be trusted from a server that is not.

    Examples:
        >>> hints = ToolAnnotations(read_only_hint=True)
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolExecution(WireStruct):
    """Whether a call may, must or must not be a task (2025-11-25)."""

    task_support: str | None = None


class Tool(WireStruct):
    """A function that a model may call.

    Examples:
        >>> Tool("search", {"type": "object"}, description="Search the shop.").name
        'search'
    """

    name: str
    input_schema: dict[str, JSON]
    description: str | None = None
    title: str | None = None
    output_schema: dict[str, JSON] | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    execution: ToolExecution | None = None
    meta: Meta | None = field(name="_meta", default=None)


class TaskMetadata(WireStruct):
    """The wish that a request be run as a task (2025-11-25), and for how long its result is kept."""

    ttl: int | None = None


class ListToolsResult(PaginatedResult):
    """One page of the tools."""

    tools: list[Tool]


class CallToolParams(InputResponseParams):
    """Which tool is called, with what; the arguments stay raw until the tool is known."""

    name: str
    arguments: Raw | Unset = UNSET
    task: TaskMetadata | None = None


class CallToolResult(Result):
    """What a tool said. A `structured_content` of None is a value: JSON's null.

    Examples:
        >>> result = CallToolResult(content=[TextContent("no such item")], is_error=True)
    """

    content: list[Content]
    structured_content: JSON | Unset = UNSET
    is_error: bool | None = None
