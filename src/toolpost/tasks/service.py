"""`server.tasks`: completes tasks from outside, and is what both kinds of tasks have in common.

Finds the task that a request names, answers, cancels and completes tasks, and has one `TaskRunner` for each
event loop. `extension_methods` and `session_methods` define what clients see.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from toolpost.errors import InvalidParams, RPCError, StoreUnavailable, ToolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.server.context import Context
from toolpost.server.registry.tools import make_error_result
from toolpost.tasks import extension_methods, session_methods
from toolpost.tasks.extension_methods import describe_task
from toolpost.tasks.options import TaskOptions
from toolpost.tasks.record import (
    TaskCall,
    TaskRecord,
    make_owner,
    make_task_id,
)
from toolpost.tasks.run import TaskRun, make_end
from toolpost.tasks.runner import TaskRunner
from toolpost.tasks.table import QUEUE, TaskTable, make_item
from toolpost.tasks.wire import TASKS_NOTIFICATION, TaskNotice
from toolpost.types.base import Raw, Result
from toolpost.types.tools import CallToolParams, CallToolResult

if TYPE_CHECKING:
    from toolpost.server.registry.registry_server import RegistryServer
    from toolpost.server.registry.tools import RegisteredTool

TaskKind: TypeAlias = Literal["extension", "session"]

SLOTS: Final = 32
"""Tasks from the queue that one process runs at once."""

MAX_WATCHED_TASKS: Final = 1000
"""Tasks that one listen filter may name."""


class Tasks:
    """The tasks of a server.

    Attributes:
        slots: how many tasks this process runs at once; the others wait. A call that has become a task after
            it began counts, but does not wait. Set it to 0 in processes that leave tasks to others.

    Examples:
        >>> server = Server("studio")
        >>> @server.tool(task=TaskOptions(required=True))
        ... async def render(scene: str, ctx: Context) -> str:
        ...     await ctx.detach(print, scene)  # in earnest: hand task id and scene to a render farm
        ...     return ""  # no effect
        >>> # later, there: await server.tasks.complete(task_id, "ready")
    """

    def __init__(self, server: "RegistryServer") -> None:
        self.server = server
        self.slots = SLOTS
        self.table = TaskTable(lambda: server.store)
        self._runners: WeakKeyDictionary[asyncio.AbstractEventLoop, TaskRunner] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Tasks of {self.server.info.name}>"

    # ----------------------------------------------------------------- for authors

    async def complete(self, task_id: str, value: Any) -> bool:
        """End a task with what its tool returns; return whether it was open.

        False means that it has ended before, has expired, or never existed. `value` is what the function of
        the tool might return.
        """

        def make(tool: "RegisteredTool[..., Any]", incoming: InboundRequest) -> CallToolResult:
            wrap = incoming.peer.revision.structured != "any"
            return tool.result_converter.convert(value, wrap=wrap)

        return await self._end(task_id, make)

    async def fail(self, task_id: str, error: str | ToolError | RPCError) -> bool:
        """End a task with an error, as if the function of its tool had raised it; a string is a `ToolError`.

        Return whether the task was open, as `complete` does.
        """
        if isinstance(error, RPCError):
            return await self.change(task_id, lambda record: record.fail(error, self.table.now))
        return await self._end(task_id, lambda _, __: make_error_result(str(error)))

    async def say(self, task_id: str, message: str) -> bool:
        """Set the status message of a task; return whether it is open."""
        now = self.table.now
        return await self.change(task_id, lambda record: not record.is_over and record.touch(now, message))

    async def _end(
        self,
        task_id: str,
        make: "Callable[[RegisteredTool[..., Any], InboundRequest], CallToolResult]",
    ) -> bool:
        call = await self.table.get_call(task_id)
        if call is None:
            return False
        incoming = call.restore_request(task_id)
        tool = self.server.tools.get(incoming.params.name)
        if tool is None:
            raise ValueError(f"the tool {incoming.params.name!r} of the task is not registered here")
        end = make_end(self.server, incoming, make(tool, incoming), self.table.now)
        return await self.change(task_id, end)

    async def change(self, task_id: str, change: Callable[[TaskRecord], Any]) -> bool:
        """Change a task from outside of its run."""
        record, is_changed = await self.table.change(task_id, change)
        if record is None or not is_changed:
            return False
        if record.is_over:
            await self.table.store.queues.remove(QUEUE, make_item(task_id, record.round))
        self.announce(task_id)
        return True

    def announce(self, task_id: str, *, is_ready: bool = False) -> None:
        """Report a change of a task, or that it is ready to run: here, and to other workers."""
        runner = self._runners.get(asyncio.get_running_loop())
        if runner is not None:
            runner.wake(task_id)
            if is_ready:
                runner.attend()
        self.server.broadcaster.broadcast(TASKS_NOTIFICATION, TaskNotice(task_id))

    # ----------------------------------------------------------------- for both kinds

    def get_runner(self, lifespan: Any) -> TaskRunner:
        """Return the runner of the current event loop, in which the server serves with this lifespan."""
        loop = asyncio.get_running_loop()
        runner = self._runners.get(loop)
        if runner is None:
            runner = self._runners[loop] = TaskRunner(self, lifespan)
        return runner

    async def close(self) -> None:
        """For handlers: stop the runs of the current event loop."""
        runner = self._runners.pop(asyncio.get_running_loop(), None)
        if runner is not None:
            await runner.close()

    def _make_record(
        self, kind: TaskKind, ctx: Context, options: TaskOptions, ttl: float | None = None
    ) -> TaskRecord:
        now, life = self.table.now, max(1, round((options.ttl if ttl is None else ttl) * 1000))
        owner, poll = make_owner(kind, ctx.principal), round(options.poll * 1000)
        return TaskRecord(kind, owner, now, life, life, poll, options.attempts, updated=now)

    async def _store(self, task_id: str, record: TaskRecord, ctx: Context) -> None:
        """Store a new task. Its item comes first, and is hidden: no task is stored that would never run."""
        assert ctx.incoming is not None, "only requests become tasks"
        store = self.table.store
        await store.queues.put(QUEUE, make_item(task_id, 0), store.lease)
        call = TaskCall.of(ctx.incoming, ctx.principal, is_remote=ctx.client_connection.is_remote)
        await self.table.create(task_id, record, call, is_listed=ctx.principal is not None)

    async def store_run(self, run: TaskRun, journal: bytes) -> TaskRecord:
        """Store a call that goes on as a task, held by the run that executes it."""
        options = run.tool.task
        assert options is not None, "only such tools have runs"
        record = self._make_record("extension", run.context, options)
        record.attempt, record.holder, record.journal = 1, run.token, journal
        run.show_report(record)
        await self._store(run.id, record, run.context)
        return record

    async def start(self, ctx: Context, options: TaskOptions, ttl: float | None) -> tuple[str, TaskRecord]:
        """Store a task that runs as soon as there is room, here or on another worker."""
        task_id, record = make_task_id(), self._make_record("session", ctx, options, ttl)
        await self._store(task_id, record, ctx)
        with suppress(StoreUnavailable):  # it runs when the lease is over
            await self.table.store.queues.put(QUEUE, make_item(task_id, 0))
        self.get_runner(ctx.lifespan)
        self.announce(task_id, is_ready=True)
        return task_id, record

    async def find(self, ctx: Context, kind: TaskKind, task_id: str) -> TaskRecord:
        """Return the task that a request names. Raises InvalidParams if it is not the client's (TASK-34)."""
        self.get_runner(ctx.lifespan)  # hears of changes from now on
        record = await self.table.get(task_id)
        if record is None or record.owner != make_owner(kind, ctx.principal):
            raise InvalidParams("Invalid params: there is no such task")
        return record

    async def answer(self, task_id: str, answers: Mapping[str, Raw]) -> None:
        """Take answers to the open questions of a task; with the last one, it runs again."""
        if len(answers) > MAX_INPUT_RESPONSES:
            raise InvalidParams(f"Invalid params: inputResponses has more than {MAX_INPUT_RESPONSES} members")

        async def enqueue(record: TaskRecord) -> None:
            if record.status == "working":  # before it is stored, so that no task works without an item
                await self.table.store.queues.put(QUEUE, make_item(task_id, record.round))

        _, is_changed = await self.table.change(
            task_id, lambda record: record.take_answers(answers, self.table.now), enqueue
        )
        if is_changed:
            self.announce(task_id, is_ready=True)

    async def cancel(self, task_id: str) -> bool:
        """Cancel a task; return whether it was open. Its function is stopped, wherever it runs."""
        return await self.change(task_id, lambda record: record.cancel(self.table.now))

    # ----------------------------------------------------------------- requests

    def serve_call(
        self, ctx: Context, tool: "RegisteredTool[..., Any]", params: CallToolParams
    ) -> "CoroutineType[Any, Any, Result]":
        """Serve a call of a tool that may or must become a task."""
        kind = extension_methods if is_stateless(ctx) else session_methods
        return kind.serve_call(self, ctx, tool, params)

    def serve(self, ctx: Context, params: Any) -> "CoroutineType[Any, Any, Result | Raw]":
        """Serve a method of tasks, of both kinds."""
        kind = extension_methods if is_stateless(ctx) else session_methods
        return kind.METHODS[ctx.method](self, ctx, params)

    async def accept_ids(self, ctx: Context, ids: list[str]) -> list[str]:
        """Return the ids of a listen filter that are tasks of the client."""
        if len(ids) > MAX_WATCHED_TASKS:
            raise InvalidParams(f"Invalid params: taskIds has more than {MAX_WATCHED_TASKS} members")
        accepted: list[str] = []
        for task_id in dict.fromkeys(ids):
            with suppress(InvalidParams):
                await self.find(ctx, "extension", task_id)
                accepted.append(task_id)
        return accepted

    async def fill_notice(self, notice: TaskNotice) -> dict[str, Raw] | None:
        """Return what `tasks/get` would say about a task; None if it is gone."""
        record = await self.table.get(notice.task_id)
        if record is None:
            return None
        return jsonrpc.MEMBERS_READER(jsonrpc.encode(describe_task(notice.task_id, record)))


def is_stateless(ctx: Context) -> bool:
    """Return whether a request is of the stateless era, whose tasks are the extension's."""
    return ctx.incoming is not None and ctx.incoming.peer.revision.stateless
