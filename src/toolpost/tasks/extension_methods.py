"""The tasks of 2026-07-28, the extension: a server decides that a call becomes a task.

Serves calls, `tasks/get`, `tasks/update`, `tasks/cancel`, and the ids in listen filters. `service`
applies the requests to the tasks.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.errors import InvalidParams, StoreUnavailable
from toolpost.server.context import Context
from toolpost.tasks.record import TaskRecord, format_time, make_task_id
from toolpost.tasks.run import TaskRun
from toolpost.tasks.wire import TASKS, CreatedTask, DetailedTask, TaskNotice, UpdateTaskParams
from toolpost.types.base import UNSET, InputRequest, Raw, Result
from toolpost.types.tools import CallToolParams, TaskParams

if TYPE_CHECKING:
    from toolpost.server.registry.tools import RegisteredTool
    from toolpost.tasks.service import Tasks

MAX_WATCHED_TASKS: Final = 1000
"""Tasks that one listen filter may name."""

_REQUESTS: Final = msgspec.json.Decoder(InputRequest)


async def serve_call(
    tasks: "Tasks", ctx: Context, tool: "RegisteredTool[..., Any]", params: CallToolParams
) -> Result:
    """Serve a call; its result is a task if it takes long and the client knows tasks."""
    options = tool.task
    assert options is not None, "only calls of such tools come here"
    if TASKS.find_settings(ctx.client.capabilities) is None:
        if options.required:
            TASKS.require(ctx.client.capabilities)
        return await tool.serve(ctx, params)
    run = TaskRun(tasks.get_runner(ctx.lifespan), tool, ctx, make_task_id())
    work = run.begin()
    ends = (work, run.became_task)
    try:
        await asyncio.wait(ends, timeout=options.after, return_when=asyncio.FIRST_COMPLETED)
        if not (work.done() or run.is_task):
            await run.become_task()
        if not run.is_task:  # it has ended, or waits for the answer to a question
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:  # the client has gone, or the task could not be stored
        await _abandon(tasks, run, work)
        raise
    record = run.first_record
    if not run.is_task or record is None:
        ctx.loaded_replay = run.context.loaded_replay
        return work.result()
    ctx.loaded_replay = None  # from now on, its questions are those of the task
    return CreatedTask(**_describe(run.id, record), result_type="task")


async def _abandon(tasks: "Tasks", run: TaskRun, work: "asyncio.Task[Any]") -> None:
    """Stop a call whose client will not hear of its task."""
    run.lose()
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # marks it as retrieved
    with suppress(StoreUnavailable):  # it was not stored, or expires
        await tasks.cancel(run.id)


def _describe(task_id: str, record: TaskRecord) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "status": record.status,
        "created_at": format_time(record.created),
        "last_updated_at": format_time(record.updated),
        "ttl_ms": record.ttl,
        "poll_interval_ms": record.poll,
        "status_message": record.message,
    }


def describe_task(task_id: str, record: TaskRecord) -> DetailedTask:
    """Return the state of a task as clients see it."""
    requests = {key: _REQUESTS.decode(asked) for key, (_, asked) in record.questions.items()}
    return DetailedTask(
        **_describe(task_id, record),
        input_requests=requests or None,
        result=UNSET if record.result is None else Raw(record.result),
        error=UNSET if record.error is None else Raw(record.error),
    )


async def serve_get(tasks: "Tasks", ctx: Context, params: TaskParams) -> Result:
    """Return the state of a task."""
    return describe_task(params.task_id, await tasks.find(ctx, "extension", params.task_id))


async def serve_update(tasks: "Tasks", ctx: Context, params: UpdateTaskParams) -> Result:
    """Take answers to questions of a task; unknown ones are ignored."""
    await tasks.find(ctx, "extension", params.task_id)
    await tasks.answer(params.task_id, params.input_responses)
    return Result()


async def serve_cancel(tasks: "Tasks", ctx: Context, params: TaskParams) -> Result:
    """Cancel a task, unless it has ended."""
    await tasks.find(ctx, "extension", params.task_id)
    await tasks.cancel(params.task_id)
    return Result()


async def accept_ids(tasks: "Tasks", ctx: Context, ids: list[str]) -> list[str] | None:
    """Return the ids that are tasks of the client."""
    if len(ids) > MAX_WATCHED_TASKS:
        raise InvalidParams(f"Invalid params: taskIds has more than {MAX_WATCHED_TASKS} members")
    accepted: list[str] = []
    for task_id in dict.fromkeys(ids):
        with suppress(InvalidParams):
            await tasks.find(ctx, "extension", task_id)
            accepted.append(task_id)
    return accepted


async def fill_notice(tasks: "Tasks", ctx: Context, notice: TaskNotice) -> TaskNotice | None:
    """Return a notification with the current state of its task, which is what `tasks/get` would say."""
    del ctx
    record = await tasks.table.get(notice.task_id)
    return None if record is None else TaskNotice.of_task(describe_task(notice.task_id, record))
