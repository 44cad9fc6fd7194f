"""The tasks of 2026-07-28, the extension: a server decides that a call becomes a task.

Serves calls, `tasks/get`, `tasks/update` and `tasks/cancel`. `service` applies the requests to the tasks.
"""

import asyncio
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.errors import StoreUnavailable
from toolpost.protocol.methods import TASKS_CANCEL, TASKS_GET
from toolpost.server.context import Context
from toolpost.tasks.record import TaskRecord, make_task_id
from toolpost.tasks.run import TaskRun
from toolpost.tasks.wire import TASKS, TASKS_UPDATE, CreatedTask, DetailedTask, UpdateTaskParams
from toolpost.types.base import UNSET, InputRequest, Raw, Result
from toolpost.types.tools import TaskParams

if TYPE_CHECKING:
    from toolpost.server.registry.tools import RegisteredTool
    from toolpost.tasks.service import Tasks

_REQUESTS: Final = msgspec.json.Decoder(InputRequest)


async def serve_call(tasks: "Tasks", ctx: Context, tool: "RegisteredTool[..., Any]", params: Any) -> Result:
    """Serve a call; its result is a task if it takes long and the client knows tasks."""
    options = tool.task
    if options is None:  # a request to run it as a task is ignored
        return await tool.serve(ctx, params)
    if TASKS.find_settings(ctx.client.capabilities) is None:
        if options.required:
            TASKS.require(ctx.client.capabilities)
        return await tool.serve(ctx, params)
    run = TaskRun(tasks.get_runner(ctx.lifespan), tool, copy(ctx), make_task_id())
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
    return {**record.describe(task_id), "ttl_ms": record.ttl, "poll_interval_ms": record.poll}


def describe_task(task_id: str, record: TaskRecord) -> DetailedTask:
    """Return the state of a task as clients see it."""
    requests = {key: _REQUESTS.decode(asked) for key, (_, asked) in record.questions.items()}
    return DetailedTask(
        **_describe(task_id, record),
        input_requests=requests or None,
        result=UNSET if record.result is None else Raw(record.result),
        error=UNSET if record.error is None else Raw(record.error),
    )


async def _serve_get(tasks: "Tasks", ctx: Context, params: TaskParams) -> Result:
    return describe_task(params.task_id, await tasks.find(ctx, "extension", params.task_id))


async def _serve_update(tasks: "Tasks", ctx: Context, params: UpdateTaskParams) -> Result:
    await tasks.find(ctx, "extension", params.task_id)
    await tasks.answer(params.task_id, params.input_responses)
    return Result()


async def _serve_cancel(tasks: "Tasks", ctx: Context, params: TaskParams) -> Result:
    await tasks.find(ctx, "extension", params.task_id)
    await tasks.cancel(params.task_id)
    return Result()


METHODS: Final = {TASKS_GET: _serve_get, TASKS_UPDATE: _serve_update, TASKS_CANCEL: _serve_cancel}
