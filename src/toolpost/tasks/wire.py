"""The tasks extension of 2026-07-28 on the wire: its methods and structs, for servers and clients.

The tasks of 2025-11-25 are part of the protocol (`types.tools`). What a server does is left to
`toolpost.tasks`, what a client does to `client.tasks`.
"""

from typing import Any, Final

from toolpost.protocol.extension import Extension
from toolpost.protocol.methods import TASKS_CANCEL, TASKS_GET, TASKS_LIST, TASKS_RESULT, TOOLS_CALL
from toolpost.types.base import JSON, UNSET, InputRequest, Params, Raw, Result, Struct, Unset, WireStruct
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


class ErrorObject(Struct, omit_defaults=True):
    """An error as responses have it."""

    code: int
    message: str
    data: JSON = None


class TaskNotice(NotificationParams):
    """The parameters of `notifications/tasks`. A server adds what `tasks/get` returns, for each client."""

    task_id: str


class UpdateTaskParams(Params):
    """The parameters of `tasks/update`: answers to questions of a task, by key."""

    task_id: str
    input_responses: dict[str, Raw]


TASKS: Final = Extension("io.modelcontextprotocol/tasks")
"""The extension. A server serves its methods, and those of 2025-11-25, by its `tasks`."""

TASKS.result(TOOLS_CALL, "task", CreatedTask)


def _serve(ctx: Any, params: Any) -> Any:
    return ctx.server.tasks.serve(ctx, params)


_METHODS: Final[dict[str, tuple[type[WireStruct], type[Result]]]] = {
    TASKS_GET: (TaskParams, DetailedTask),
    TASKS_UPDATE: (UpdateTaskParams, Result),
    TASKS_CANCEL: (TaskParams, Result),
}
for _name, _types in _METHODS.items():
    TASKS.method(_name, *_types, named="task_id", repeatable=True)(_serve)
TASKS.routes |= {TASKS_RESULT: _serve, TASKS_LIST: _serve}  # their rows are those of the protocol


def _fill_notice(ctx: Any, notice: TaskNotice) -> Any:
    return ctx.server.tasks.fill_notice(notice)


def _accept_ids(ctx: Any, ids: list[str]) -> Any:
    return ctx.server.tasks.accept_ids(ctx, ids)


def _is_watched(ids: list[str], notice: TaskNotice) -> bool:
    return notice.task_id in ids


TASKS.listen_filter("taskIds", list[str], TASKS_NOTIFICATION, TaskNotice, _is_watched, fill=_fill_notice)(
    _accept_ids
)
