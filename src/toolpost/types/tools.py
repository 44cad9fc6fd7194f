"""Tools, tool calls and their results, and the tasks that calls may become.

Schemas are kept as they are, with every keyword; no code here reads them. Tasks are those of the core of
2025-11-25; the extension of 2026-07-28 differs and brings its own types.
"""

from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, field

from toolpost.types.base import JSON, Icon, InputResponseParams, MetaStruct, Params, Result, Unset, WireStruct
from toolpost.types.content import Content
from toolpost.types.initialize import PaginatedResult

__all__ = [
    "CallToolParams", "CallToolResult", "CreateTaskResult", "ListTasksResult", "ListToolsResult",
    "RelatedTask", "Task", "TaskMetadata", "TaskParams", "TaskPayload", "TaskResult", "TaskStatus",
    "TaskStatusParams", "Tool", "ToolAnnotations", "ToolExecution",
]  # fmt: skip


class ToolAnnotations(WireStruct, kw_only=True):
    """Hints about a tool. Trust them only as far as you trust the server.

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


class Tool(MetaStruct):
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


class ListToolsResult(PaginatedResult):
    """One page of the tools."""

    tools: list[Tool]


class CallToolParams(InputResponseParams):
    """The parameters of `tools/call`; the arguments stay raw until the tool is known."""

    name: str
    arguments: Raw | Unset = UNSET
    task: "TaskMetadata | None" = None


class CallToolResult(Result):
    """The result of a tool call. A `structured_content` of None is a value: JSON's null.

    Examples:
        >>> result = CallToolResult(content=[TextContent("no such item")], is_error=True)
    """

    content: list[Content]
    structured_content: JSON | Unset = UNSET
    is_error: bool | None = None


# --------------------------------------------------------------------- tasks

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]


class TaskMetadata(WireStruct):
    """A request to run as a task, and how long to keep the result."""

    ttl: int | None = None


class RelatedTask(WireStruct):
    """The task that a message belongs to, as a member of `_meta`."""

    task_id: str


class Task(WireStruct):
    """The state of a task. A `ttl` of None means no limit."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None


class CreateTaskResult(Result):
    """The result of a request that became a task."""

    task: Task


class TaskParams(Params):
    """The parameters of `tasks/get`, `tasks/result` and `tasks/cancel`."""

    task_id: str


class TaskResult(Result):
    """The result of `tasks/get` and `tasks/cancel`: the state of a task."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None


class TaskPayload(Result):
    """The result of the request behind a task: its members are in `raw`."""


class ListTasksResult(PaginatedResult):
    """One page of the tasks."""

    tasks: list[Task]


class TaskStatusParams(Task, kw_only=True):
    """The parameters of `notifications/tasks/status`: the new state of a task."""

    meta: dict[str, JSON] | None = field(name="_meta", default=None)
