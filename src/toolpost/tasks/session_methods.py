"""The tasks of 2025-11-25, a part of the protocol: a client asks that a call is run as a task.

Serves calls, `tasks/get`, `tasks/result`, `tasks/list` and `tasks/cancel`, and sends notifications about the
tasks that were created here. Questions of a task are sent while the client waits for its result.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.errors import InternalError, InvalidParams, InvalidSeal, MethodNotFound, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.methods import PROGRESS, TASKS_STATUS
from toolpost.server.context import Context
from toolpost.tasks.options import MAX_TTL
from toolpost.tasks.record import TaskRecord, decode_error_object, format_time
from toolpost.types import RELATED_TASK
from toolpost.types.base import InputRequest, Number, ProgressToken, Raw, Result
from toolpost.types.client_requests import ElicitParams
from toolpost.types.initialize import PaginatedRequestParams
from toolpost.types.notifications import ProgressParams
from toolpost.types.tools import (
    CallToolParams,
    CreateTaskResult,
    ListTasksResult,
    Task,
    TaskParams,
    TaskResult,
    TaskStatusParams,
)

if TYPE_CHECKING:
    from toolpost.server.context_request import ClientConnection
    from toolpost.server.registry.tools import RegisteredTool
    from toolpost.tasks.service import Tasks

PAGE_SIZE: Final = 100
"""Tasks on a page of `tasks/list`."""

_REQUESTS: Final = msgspec.json.Decoder(InputRequest)


async def serve_call(
    tasks: "Tasks", ctx: Context, tool: "RegisteredTool[..., Any]", params: CallToolParams
) -> Result:
    """Serve a call, as a task if the client asks for that (TASK-6, TASK-8, TASK-15)."""
    options, incoming = tool.task, ctx.incoming
    assert incoming is not None, "only requests become tasks"
    wanted = params.task if incoming.peer.revision.tasks else None
    if wanted is None:
        if options is not None and options.required:
            raise MethodNotFound(f"Method not found: the tool {tool.name} can only be called as a task")
        return await tool.serve(ctx, params)
    if options is None:
        raise MethodNotFound(f"Method not found: the tool {tool.name} cannot be called as a task")
    ttl = None if wanted.ttl is None else min(max(wanted.ttl, 1), MAX_TTL * 1000) / 1000
    task_id, record = await tasks.start(ctx, options, ttl)
    listener = TaskListener(tasks, task_id, ctx.client_connection, incoming.token)
    tasks.get_runner(ctx.lifespan).listeners[task_id] = listener
    return CreateTaskResult(task=Task(**describe(task_id, record)))


def describe(task_id: str, record: TaskRecord) -> dict[str, Any]:
    """Return the state of a task; the failure of a tool is one of the task (REVISIONS §22)."""
    failed = record.status == "completed" and record.is_error
    return {
        "task_id": task_id,
        "status": "failed" if failed else record.status,
        "created_at": format_time(record.created),
        "last_updated_at": format_time(record.updated),
        "ttl": record.ttl,
        "poll_interval": record.poll,
        "status_message": record.message,
    }


class TaskListener:
    """Notifies the session that has created a task of its changes, until it ends."""

    def __init__(
        self, tasks: "Tasks", task_id: str, client: "ClientConnection", token: ProgressToken | None
    ) -> None:
        self._tasks = tasks
        self._task_id = task_id
        self._client = client
        self._token = token
        self._status: dict[str, Any] = {}
        self._progress: Number | None = None
        self._lock = asyncio.Lock()

    async def notify(self) -> bool:
        """Send what is new; return whether more may follow."""
        async with self._lock:
            record = await self._tasks.table.get(self._task_id)
            if record is None:
                return False
            connection = self._client.connection
            progress = record.progress
            if (
                progress is not None
                and self._token is not None
                and (self._progress is None or progress[0] > self._progress)
            ):
                self._progress = progress[0]
                params = ProgressParams(self._token, *progress)
                await self._client.send(connection.notify(PROGRESS, params), None, outlives=True)
            status = describe(self._task_id, record)
            if status != self._status:
                self._status = status
                members = jsonrpc.MEMBERS_READER(jsonrpc.encode(TaskStatusParams(**status)))
                note = connection.notify(TASKS_STATUS, members)
                await self._client.send(note, None, outlives=True)
            return not record.is_over


async def serve_get(tasks: "Tasks", ctx: Context, params: TaskParams) -> Result:
    """Return the state of a task (TASK-14)."""
    return TaskResult(**describe(params.task_id, await tasks.find(ctx, "session", params.task_id)))


async def serve_cancel(tasks: "Tasks", ctx: Context, params: TaskParams) -> Result:
    """Cancel a task, and return its state; one that has ended cannot be cancelled (TASK-26, TASK-27)."""
    task_id = params.task_id
    record = await tasks.find(ctx, "session", task_id)
    if record.is_over or not await tasks.cancel(task_id):
        raise InvalidParams("Invalid params: the task has ended and cannot be cancelled")
    return TaskResult(**describe(task_id, await tasks.find(ctx, "session", task_id)))


async def serve_list(tasks: "Tasks", ctx: Context, params: PaginatedRequestParams) -> Result:
    """Return a page of the tasks of the client's principal, oldest first (TASK-23, TASK-24)."""
    keys, audience = (
        await tasks.server.request_states.get_keys(),
        f"cursor of tasks of {tasks.server.info.name}",
    )
    owner = tasks.make_owner(ctx, "session")
    after = ""
    if params.cursor:
        try:
            after = keys.open(params.cursor, audience=audience, now=int(time.time())).decode()
        except InvalidSeal as error:
            raise InvalidParams("Invalid params: the cursor is not valid; start again without one") from error
    listed = [task_id for task_id, _ in await tasks.table.list_tasks(owner)]
    if after in listed:
        listed = listed[listed.index(after) + 1 :]
    page, more = listed[:PAGE_SIZE], len(listed) > PAGE_SIZE
    found = [(task_id, await tasks.table.get(task_id)) for task_id in page]
    return ListTasksResult(
        tasks=[Task(**describe(task_id, record)) for task_id, record in found if record is not None],
        next_cursor=keys.seal(page[-1].encode(), audience=audience) if more else None,
    )


async def serve_result(tasks: "Tasks", ctx: Context, params: TaskParams) -> Raw:
    """Wait for the end of a task, and return what the call would have returned (TASK-17, TASK-19).

    Questions of the task are sent to the client meanwhile (TASK-12, TASK-13).
    """
    task_id, runner = params.task_id, tasks.get_runner(ctx.lifespan)
    with runner.watch(task_id) as event:
        while True:
            record = await tasks.find(ctx, "session", task_id)
            if record.is_over:
                return _get_outcome(task_id, record)
            asking = runner.asking.setdefault(task_id, set())
            questions = {key: asked for key, (_, asked) in record.questions.items() if key not in asking}
            if not questions:  # or another request asks them already
                await runner.wait(event)
                continue
            asking.update(questions)
            try:
                async with asyncio.TaskGroup() as group:
                    for key, asked in questions.items():
                        group.create_task(_ask(tasks, ctx, task_id, key, asked))
            except* RPCError:
                pass  # the task has failed with it
            finally:
                asking.difference_update(questions)
                runner.wake(task_id)


def _get_outcome(task_id: str, record: TaskRecord) -> Raw:
    if record.error is not None:
        raise decode_error_object(record.error)
    if record.result is None:
        raise InternalError("The task was cancelled")
    members = jsonrpc.MEMBERS_READER(record.result)
    meta = {**jsonrpc.MEMBERS_READER(members.get("_meta", Raw(b"{}"))), RELATED_TASK: {"taskId": task_id}}
    return Raw(jsonrpc.encode({**members, "_meta": meta}))


async def _ask(tasks: "Tasks", ctx: Context, task_id: str, key: str, encoded: bytes) -> None:
    """Send an open question of a task, and take the answer. A refusal ends the task."""
    question = _REQUESTS.decode(encoded)
    asked = ctx.connection.revision.requests["server"][question.method].read_params(question.params)
    asked.meta = {**(asked.meta or {}), RELATED_TASK: {"taskId": task_id}}
    if isinstance(asked, ElicitParams) and asked.elicitation_id is not None:
        ctx.client_connection.add_url_elicitation(asked.elicitation_id)
    try:
        answer = await ctx.client_connection.ask(ctx, question.method, asked, None)
    except RPCError as error:
        refusal = error
        await tasks.change(task_id, lambda record: record.fail(refusal, tasks.table.now))
        raise  # the other questions need no answer any more
    await tasks.answer(task_id, {key: Raw(jsonrpc.encode(answer))})
