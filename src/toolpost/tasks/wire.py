"""The tasks extension of 2026-07-28 on the wire: its methods and structs, for servers and clients.

The tasks of 2025-11-25 are part of the protocol (`types.tools`). What a server does is left to
`toolpost.tasks`, what a client does to `client.tasks`.
"""

from typing import Any, Final

from msgspec.structs import asdict

from toolpost.protocol.extension import Extension
from toolpost.protocol.methods import TASKS_CANCEL, TASKS_GET, TASKS_LIST, TASKS_RESULT, TOOLS_CALL
from toolpost.types.base import UNSET, InputRequest, Params, Raw, Result, Unset
from toolpost.types.initialize import PaginatedRequestParams
from toolpost.types.notifications import NotificationParams
from toolpost.types.tools import TaskParams, TaskStatus

TASKS_UPDATE: Final = "tasks/update"
TASKS_NOTIFICATION: Final = "notifications/tasks"
TERMINAL_STATUSES: Final = frozenset({"completed", "failed", "cancelled"})
"""The states that a task does not leave."""


class CreatedTask(Result):
    """The result of a call that became a task: its first state. A `ttl_ms` of None means no limit."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None
    status_message: str | None = None


class DetailedTask(CreatedTask):
    """The state of a task: with its open questions, its result or its error."""

    input_requests: dict[str, InputRequest] | None = None
    result: Raw | Unset = UNSET
    error: Raw | Unset = UNSET


class TaskNotice(NotificationParams):
    """The parameters of `notifications/tasks`: all that `tasks/get` returns.

    Between workers only the id is sent; the rest is filled in for each client.
    """

    task_id: str
    status: TaskStatus | Unset = UNSET
    created_at: str | Unset = UNSET
    last_updated_at: str | Unset = UNSET
    ttl_ms: int | Unset | None = UNSET
    poll_interval_ms: int | None = None
    status_message: str | None = None
    input_requests: dict[str, InputRequest] | None = None
    result: Raw | Unset = UNSET
    error: Raw | Unset = UNSET

    @classmethod
    def of_task(cls, task: DetailedTask) -> "TaskNotice":
        """Return the notification about a state."""
        return cls(**{name: value for name, value in asdict(task).items() if name in cls.__struct_fields__})


class UpdateTaskParams(Params):
    """The parameters of `tasks/update`: answers to questions of a task, by key."""

    task_id: str
    input_responses: dict[str, Raw]


def _is_watched(ids: list[str], notice: TaskNotice) -> bool:
    return notice.task_id in ids


TASKS: Final = Extension("io.modelcontextprotocol/tasks")
"""The extension. A server serves its methods by its `tasks` (`toolpost.tasks.service`)."""

TASKS.result(TOOLS_CALL, "task", CreatedTask)


@TASKS.method(TASKS_GET, TaskParams, DetailedTask, named="task_id", repeatable=True)
def _serve_get(ctx: Any, params: TaskParams) -> Any:
    return ctx.server.tasks.serve_get(ctx, params)


@TASKS.method(TASKS_UPDATE, UpdateTaskParams, Result, named="task_id", repeatable=True)
def _serve_update(ctx: Any, params: UpdateTaskParams) -> Any:
    return ctx.server.tasks.serve_update(ctx, params)


@TASKS.method(TASKS_CANCEL, TaskParams, Result, named="task_id", repeatable=True)
def _serve_cancel(ctx: Any, params: TaskParams) -> Any:
    return ctx.server.tasks.serve_cancel(ctx, params)


# Methods of 2025-11-25, whose rows are those of the protocol.
def _serve_result(ctx: Any, params: TaskParams) -> Any:
    return ctx.server.tasks.serve_result(ctx, params)


def _serve_list(ctx: Any, params: PaginatedRequestParams) -> Any:
    return ctx.server.tasks.serve_list(ctx, params)


TASKS.routes |= {TASKS_RESULT: _serve_result, TASKS_LIST: _serve_list}


async def _fill_notice(ctx: Any, notice: TaskNotice) -> TaskNotice | None:
    return await ctx.server.tasks.fill_notice(ctx, notice)


@TASKS.listen_filter(
    "taskIds",
    list[str],
    TASKS_NOTIFICATION,
    TaskNotice,
    _is_watched,
    fill=_fill_notice,
)
async def _accept_ids(ctx: Any, ids: list[str]) -> list[str] | None:
    return await ctx.server.tasks.accept_ids(ctx, ids)
