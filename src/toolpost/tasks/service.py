"""`server.tasks`: completes tasks from outside, and is what both kinds of tasks have in common.

Finds the task that a request names, answers, cancels and completes tasks, and has one `TaskRunner` for each
event loop. `extension_methods` and `session_methods` define what clients see.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from toolpost.errors import InvalidParams, RPCError, ToolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.server.context import Context
from toolpost.server.registry.tools import make_error_result
from toolpost.tasks import extension_methods, session_methods
from toolpost.tasks.options import TaskOptions
from toolpost.tasks.record import (
    MAX_MESSAGE,
    StoredPrincipal,
    TaskCall,
    TaskRecord,
    make_owner,
    make_task_id,
)
from toolpost.tasks.run import TaskRun, make_end
from toolpost.tasks.runner import TaskRunner, restore_request
from toolpost.tasks.table import QUEUE, TaskTable, make_item
from toolpost.tasks.wire import TASKS_NOTIFICATION, TaskNotice, UpdateTaskParams
from toolpost.types.base import Raw, Result
from toolpost.types.initialize import ClientCapabilities
from toolpost.types.tools import CallToolParams, CallToolResult, TaskParams

if TYPE_CHECKING:
    from toolpost.server.registry.registry_server import RegistryServer
    from toolpost.server.registry.tools import RegisteredTool

TaskKind: TypeAlias = Literal["extension", "session"]

SLOTS: Final = 32
"""Tasks from the queue that one process runs at once."""


def make_unknown_error() -> InvalidParams:
    """Return the error for the id of no task, of another principal's task, and of an expired one."""
    return InvalidParams("Invalid params: there is no such task")


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

        def say(record: TaskRecord) -> bool:
            if record.is_over:
                return False
            record.message = message[:MAX_MESSAGE]
            record.touch(self.table.now)
            return True

        return await self.change(task_id, say, ends=False)

    async def _end(
        self,
        task_id: str,
        make: "Callable[[RegisteredTool[..., Any], InboundRequest], CallToolResult]",
    ) -> bool:
        call = await self.table.get_call(task_id)
        if call is None:
            return False
        incoming = restore_request(task_id, call)
        tool = self.server.tools.get(incoming.params.name)
        if tool is None:
            raise ValueError(f"the tool {incoming.params.name!r} of the task is not registered here")
        end = make_end(self.server, incoming, make(tool, incoming), self.table.now)
        return await self.change(task_id, end)

    async def change(self, task_id: str, change: Callable[[TaskRecord], Any], *, ends: bool = True) -> bool:
        """Change a task from outside of its run."""
        record, is_changed = await self.table.change(task_id, change)
        if record is None or not is_changed:
            return False
        if ends:
            await self.table.store.queues.remove(QUEUE, make_item(task_id, record.round))
        self.announce(task_id)
        return True

    def announce(self, task_id: str) -> None:
        """Report a change of a task: here at once, to other workers in the way of list changes."""
        runner = self._runners.get(asyncio.get_running_loop())
        if runner is not None:
            runner.wake(task_id)
        self.server.broadcaster.broadcast(TASKS_NOTIFICATION, TaskNotice(task_id))

    # ----------------------------------------------------------------- for both kinds

    def make_owner(self, ctx: Context, kind: TaskKind) -> str:
        """Return the owner of the tasks that a request may see."""
        return make_owner(kind, ctx.principal)

    @property
    def is_shared(self) -> bool:
        """Whether other workers may run and change the tasks."""
        return not self.server.is_in_memory

    @property
    def lease(self) -> float:
        """Seconds after which the task of a silent worker is given to another."""
        return self.table.store.lease

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

    def make_record(
        self, kind: TaskKind, options: TaskOptions, owner: str, ttl: float | None = None
    ) -> TaskRecord:
        """Return the record of a new task."""
        now = self.table.now
        life = max(1, round((options.ttl if ttl is None else ttl) * 1000))
        poll = round(options.poll * 1000)
        return TaskRecord(kind, owner, now, life, life, poll, options.attempts, updated=now)

    async def store_run(self, run: TaskRun, journal: bytes) -> None:
        """Store a call that goes on as a task, held by the run that executes it."""
        context, task = run.context, run.tool.task
        assert task is not None, "only such tools have runs"
        record = self.make_record("extension", task, make_owner("extension", context.principal))
        record.attempt, record.holder, record.journal = 1, run.token, journal
        run.show_report(record)
        is_listed = context.principal is not None
        await self.table.create(run.id, record, make_call(context), is_listed=is_listed)
        await self.table.store.queues.put(QUEUE, run.item, self.lease)
        run.first_record = record

    async def start(self, ctx: Context, options: TaskOptions, ttl: float | None) -> tuple[str, TaskRecord]:
        """Store a task that runs as soon as there is room, here or on another worker."""
        task_id = make_task_id()
        record = self.make_record("session", options, make_owner("session", ctx.principal), ttl)
        await self.table.create(task_id, record, make_call(ctx), is_listed=ctx.principal is not None)
        await self.table.store.queues.put(QUEUE, make_item(task_id, 0))
        runner = self.get_runner(ctx.lifespan)
        self.announce(task_id)
        runner.attend()
        return task_id, record

    async def find(self, ctx: Context, kind: TaskKind, task_id: str) -> TaskRecord:
        """Return the task that a request names. Raises InvalidParams if it is not the client's (TASK-34)."""
        self.get_runner(ctx.lifespan)  # hears of changes from now on
        record = await self.table.get(task_id)
        if record is None or record.owner != make_owner(kind, ctx.principal):
            raise make_unknown_error()
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
            self.announce(task_id)

    async def cancel(self, task_id: str) -> bool:
        """Cancel a task; return whether it was open. Its function is stopped, wherever it runs."""
        return await self.change(task_id, lambda record: record.cancel(self.table.now))

    # ----------------------------------------------------------------- requests

    def serve_call(
        self, ctx: Context, tool: "RegisteredTool[..., Any]", params: CallToolParams
    ) -> "CoroutineType[Any, Any, Result]":
        """Serve a call of a tool that may or must become a task."""
        if not is_stateless(ctx):
            return session_methods.serve_call(self, ctx, tool, params)
        if tool.task is None:  # a request to run it as a task is ignored
            return tool.serve(ctx, params)
        return extension_methods.serve_call(self, ctx, tool, params)

    async def serve_get(self, ctx: Context, params: TaskParams) -> Result:
        """Serve `tasks/get` of both kinds."""
        kind = extension_methods if is_stateless(ctx) else session_methods
        return await kind.serve_get(self, ctx, params)

    async def serve_cancel(self, ctx: Context, params: TaskParams) -> Result:
        """Serve `tasks/cancel` of both kinds."""
        kind = extension_methods if is_stateless(ctx) else session_methods
        return await kind.serve_cancel(self, ctx, params)

    async def serve_update(self, ctx: Context, params: UpdateTaskParams) -> Result:
        """Serve `tasks/update` (2026-07-28)."""
        return await extension_methods.serve_update(self, ctx, params)

    async def serve_result(self, ctx: Context, params: TaskParams) -> Raw:
        """Serve `tasks/result` (2025-11-25)."""
        return await session_methods.serve_result(self, ctx, params)

    async def serve_list(self, ctx: Context, params: Any) -> Result:
        """Serve `tasks/list` (2025-11-25)."""
        return await session_methods.serve_list(self, ctx, params)

    async def accept_ids(self, ctx: Context, ids: list[str]) -> list[str] | None:
        """Return the ids of a listen filter that are tasks of the client."""
        return await extension_methods.accept_ids(self, ctx, ids)

    async def fill_notice(self, ctx: Context, notice: TaskNotice) -> TaskNotice | None:
        """Return a notification with the current state of its task; None if it is gone."""
        return await extension_methods.fill_notice(self, ctx, notice)


def is_stateless(ctx: Context) -> bool:
    """Return whether a request is of the stateless era, whose tasks are the extension's."""
    return ctx.incoming is not None and ctx.incoming.peer.revision.stateless


def make_call(ctx: Context) -> TaskCall:
    """Return what to store of a call."""
    incoming = ctx.incoming
    assert incoming is not None, "only requests become tasks"
    peer, params = incoming.peer, incoming.params
    kept = {"name": params.name, "arguments": params.arguments, "_meta": params.meta}
    capabilities = peer.capabilities or ClientCapabilities()
    return TaskCall(
        jsonrpc.encode({name: value for name, value in kept.items() if isinstance(value, str | Raw)}),
        peer.revision.date,
        jsonrpc.encode(capabilities),
        None if peer.info is None else jsonrpc.encode(peer.info),
        StoredPrincipal.of(ctx.principal),
        ctx.client_connection.is_remote,
    )
