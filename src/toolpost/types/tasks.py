"""Tasks as the core of 2025-11-25 has them: requests whose result is fetched later.

The extension of 2026-07-28 speaks differently and brings its own types.
"""

from typing import Literal, TypeAlias

from toolpost.types.base import Params, Result, WireStruct
from toolpost.types.initialize import PaginatedResult
from toolpost.types.notifications import NotificationParams

__all__ = [
    "CreateTaskResult",
    "ListTasksResult",
    "RelatedTask",
    "Task",
    "TaskParams",
    "TaskPayload",
    "TaskResult",
    "TaskStatus",
    "TaskStatusParams",
]

TaskStatus: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]


class RelatedTask(WireStruct):
    """The task that a message belongs to; stands in `_meta`."""

    task_id: str


class Task(WireStruct):
    """The state of a task. A `ttl` of None means that it is kept for ever."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None


class CreateTaskResult(Result):
    """The answer to a request that became a task."""

    task: Task


class TaskParams(Params):
    """Which task is meant."""

    task_id: str


class TaskResult(Result):
    """The state of a task, as `tasks/get` and `tasks/cancel` answer."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None


class TaskPayload(Result):
    """The result of the request behind a task: its members stand in `raw`."""


class ListTasksResult(PaginatedResult):
    """One page of the tasks."""

    tasks: list[Task]


class TaskStatusParams(NotificationParams):
    """A task has moved on."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None
