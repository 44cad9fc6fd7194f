"""Runs tasks in one event loop: takes them from the queue, renews their leases, gives up those it has lost.

Without tasks it does nothing; on a store that workers share, it looks at the queue now and then. A patrol
looks after the runs: it stops those that were cancelled or taken over, and takes tasks whose worker has died.
`run` executes them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolpost.errors import InvalidParams, MCPError, StoreUnavailable
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import TOOLS_CALL
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.context import Context
from toolpost.server.elicitation.journal import ReplayJournal
from toolpost.tasks.record import TaskCall, TaskRecord
from toolpost.tasks.run import DetachedClient, TaskRun, detach
from toolpost.tasks.table import QUEUE, TaskTable, make_item, make_token, parse_item
from toolpost.tasks.wire import TASKS_NOTIFICATION, TaskNotice
from toolpost.types.base import Raw
from toolpost.types.initialize import ClientCapabilities, Implementation
from toolpost.types.notifications import NotificationParams

if TYPE_CHECKING:
    from toolpost.tasks.service import Tasks
    from toolpost.tasks.session_methods import TaskListener

logger: Final = logging.getLogger("toolpost.tasks")

LOOK_INTERVAL: Final = 2.0
"""Seconds after which a task is looked at again, where another worker may change it."""

EARLY_DELAY: Final = 0.5
"""Seconds after which an item is ready again that was found before its task had the last answer."""

CLOSE_TIMEOUT: Final = 2.0
"""Seconds for cancelled functions to end."""


class TaskRunner:
    """The runs of one server in one event loop. `lifespan` is the value of the server's lifespan."""

    def __init__(self, tasks: "Tasks", lifespan: Any) -> None:
        self.tasks = tasks
        self.table: TaskTable = tasks.table
        self.lease = tasks.lease
        self.lifespan = lifespan
        self.loop = asyncio.get_running_loop()
        self.runs: dict[str, TaskRun | None] = {}  # by item; None while a run is prepared
        self.listeners: dict[str, TaskListener] = {}  # of sessions, by task
        self.asking: dict[str, set[str]] = {}  # the questions that sessions are asked now, by task
        self._watchers: dict[str, set[asyncio.Event]] = {}  # by task
        self._background: set[asyncio.Task[Any]] = set()
        self._patrol_timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.Task[None] | None = None
        self._is_closed = False
        tasks.server.broadcaster.add_subscriber(self)

    # ----------------------------------------------------------------- changes

    def on_change(self, method: str, params: NotificationParams) -> None:
        """Notice the change of a task, here or on another worker."""
        if method != TASKS_NOTIFICATION or not isinstance(params, TaskNotice):
            return
        self.wake(params.task_id)
        self.attend()
        listener = self.listeners.get(params.task_id)
        if listener is not None:
            self.spawn(self._notify(params.task_id, listener))
        for run in tuple(self.runs.values()):
            if run is not None and run.id == params.task_id:
                self.spawn(self._check(run))

    async def _notify(self, task_id: str, listener: "TaskListener") -> None:
        try:
            is_open = await listener.notify()
        except MCPError as error:
            logger.debug("the session of task %s was not notified: %s", task_id, error)
            is_open = False
        if not is_open:
            self.listeners.pop(task_id, None)

    def wake(self, task_id: str) -> None:
        """Wake those who wait for a change of a task here."""
        for event in self._watchers.get(task_id, ()):
            event.set()

    @contextlib.contextmanager
    def watch(self, task_id: str) -> Generator[asyncio.Event]:
        """Return an event that is set by each change of a task."""
        event = asyncio.Event()
        self._watchers.setdefault(task_id, set()).add(event)
        try:
            yield event
        finally:
            self._watchers[task_id].discard(event)
            if not self._watchers[task_id]:
                del self._watchers[task_id]
                self.asking.pop(task_id, None)

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for a change, or until it is time to look again."""
        limit = LOOK_INTERVAL if self.tasks.is_shared else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await event.wait()
        event.clear()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine in a task that ends with the runner."""
        task = self.loop.create_task(self._run_logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda _: work.close())
        return task

    async def _run_logged(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except StoreUnavailable as error:
            logger.warning("tasks: %s; will try again", error)
        except Exception:
            logger.exception("a task could not be run")

    # ----------------------------------------------------------------- taking

    def attend(self) -> None:
        """Take what is ready, if there is room, and look after it from now on."""
        if self._is_closed:
            return
        if self._taking is None and len(self.runs) < self.tasks.slots:
            self._taking = self.spawn(self._take())
        if self._patrol_timer is None:
            self._patrol_timer = self.loop.call_later(self.lease / 3, self._start_patrol)

    async def _take(self) -> None:
        try:
            while (room := self.tasks.slots - len(self.runs)) > 0:
                items = await self.table.store.queues.take(QUEUE, room, self.lease)
                if not items:
                    return
                for item in items:
                    if item not in self.runs:
                        self.runs[item] = None
                        self.spawn(self._serve(item))
        finally:
            self._taking = None

    async def _serve(self, item: str) -> None:
        """Run a task from the queue."""
        task_id, number = parse_item(item)
        token = make_token()
        is_done = True
        try:
            record, begun = await self.table.change(
                task_id, lambda record: record.start(number, token, self.table.now)
            )
            if begun == "early":
                is_done = False
                await self.table.store.queues.put(QUEUE, item, EARLY_DELAY)
            elif begun == "over":
                self.tasks.announce(task_id)
            elif begun == "run" and record is not None:
                run = await self._prepare(task_id, number, token, record)
                if run is not None:
                    self.runs[item] = run
                    run.begin()
                    await run.settle()
                    is_done = run.is_stored
        except StoreUnavailable:
            is_done = False  # it is ready again when the lease is over
            raise
        finally:
            self._end_run(item, is_done=is_done)

    async def _prepare(self, task_id: str, number: int, token: str, record: TaskRecord) -> TaskRun | None:
        """Return the run of a task that was taken; None if it cannot be run."""
        call = await self.table.get_call(task_id)
        server = self.tasks.server
        if call is None:
            return None
        incoming = restore_request(task_id, call)
        tool = server.tools.get(incoming.params.name)
        if tool is None or tool.task is None:
            unknown = InvalidParams(f"Unknown tool: {incoming.params.name}")
            await self.table.change(task_id, lambda record: record.fail(unknown, self.table.now))
            self.tasks.announce(task_id)
            return None
        principal = None if call.principal is None else call.principal.restore()
        connection = Connection(server.local_peer, peer=incoming.peer)
        connection.incoming[incoming.id] = incoming
        client = DetachedClient(connection, is_remote=call.is_remote, headers={})
        context = Context(server, client, TOOLS_CALL, incoming, lifespan=self.lifespan, principal=principal)
        run = TaskRun(self, tool, context, task_id)
        run.number, run.token, run.is_task = number, token, True
        answers = {key: Raw(answer) for key, answer in record.answers.items()}
        run.context.replay.loaded_journal = ReplayJournal(record.journal or None, answers)
        return run

    def _end_run(self, item: str, *, is_done: bool) -> None:
        """Make room for another run. An item that is not done may belong to another worker by now."""
        self.runs.pop(item, None)
        if not self._is_closed:
            if is_done:
                self.spawn(self.table.store.queues.remove(QUEUE, item))
            self.attend()

    # ----------------------------------------------------------------- calls that become tasks

    async def promote(self, run: TaskRun) -> None:
        """Let a call go on as a task: store it, with this run as its holder.

        Does nothing if the function waits for an answer: the client gets the question first.
        """
        context, replay = run.context, run.context.replay
        journal = await replay.load_journal()
        if journal.open_questions:
            return
        await replay.claim_state()
        steps = len(journal.record.steps)
        await self.tasks.store_run(run, journal.encode())
        run.is_task = True
        incoming = context.incoming
        assert incoming is not None, "only requests become tasks"
        detached = msgspec.structs.replace(incoming, id=run.id, token=None)
        detach(context, detached, is_remote=context.client_connection.is_remote)
        self.runs[run.item] = run
        self.spawn(self._settle(run))
        run.became_task.set_result(None)
        if len(journal.record.steps) != steps:
            await run.save_steps()
        self.attend()

    async def _settle(self, run: TaskRun) -> None:
        try:
            await run.settle()
        finally:
            self._end_run(run.item, is_done=run.is_stored)

    # ----------------------------------------------------------------- the patrol

    def _start_patrol(self) -> None:
        self._patrol_timer = None
        self.spawn(self._patrol())

    async def _patrol(self) -> None:
        """Renew the leases of runs, stop those that have lost their task, take what is ready.

        Where other workers put tasks into the queue it goes on without runs, because a message about a task
        may be lost.
        """
        try:
            runs = [run for run in self.runs.values() if run is not None]
            await asyncio.gather(*map(self._check, runs))
            held = [run.item for run in runs if not run.is_lost]
            await self.table.store.queues.renew(QUEUE, held, self.lease)
        finally:
            if self.runs or self.tasks.is_shared:
                self.attend()

    async def _check(self, run: TaskRun) -> None:
        """Stop a run that has lost its task; keep the record of a long one."""
        if run.is_lost or not run.is_task:
            return
        record = await self.table.get(run.id)
        if record is None or not record.is_held_by(run.token):
            if run.item in self.runs:
                run.lose()
            return
        now = self.table.now
        if record.expires - now < record.life / 2:

            def prolong(record: TaskRecord) -> bool:
                record.prolong(now)
                return True

            await self.table.change(run.id, prolong)

    # ----------------------------------------------------------------- the end

    async def close(self) -> None:
        """Stop all runs. A task that may run again is ready at once, for another worker."""
        self._is_closed = True
        self.tasks.server.broadcaster.remove_subscriber(self)
        if self._patrol_timer is not None:
            self._patrol_timer.cancel()
        runs = [run for run in self.runs.values() if run is not None]
        for run in runs:
            run.lose()
        if self._background:
            _, stuck = await asyncio.wait(self._background, timeout=CLOSE_TIMEOUT)
            for task in stuck:
                task.cancel()
            if stuck:
                await asyncio.wait(stuck, timeout=CLOSE_TIMEOUT)
        for run in runs:
            with contextlib.suppress(StoreUnavailable):  # its lease will end
                await self._release(run)

    async def _release(self, run: TaskRun) -> None:
        _, may_run = await self.table.change(run.id, lambda record: _lose(record, run, self.table.now))
        queues, item = self.table.store.queues, make_item(run.id, run.number)
        if may_run == "again":
            await queues.put(QUEUE, item)
        else:
            await queues.remove(QUEUE, item)
        self.tasks.announce(run.id)


def _lose(record: TaskRecord, run: TaskRun, now: int) -> str | None:
    if not record.is_held_by(run.token):
        return None
    return "again" if record.lose(run.token, now) else "over"


def restore_request(task_id: str, call: TaskCall) -> InboundRequest:
    """Return the request behind a task, as if it had just arrived."""
    revision = REVISIONS[call.revision]
    row = revision.requests["client"][TOOLS_CALL]
    info = None if call.info is None else msgspec.json.decode(call.info, type=Implementation)
    capabilities = msgspec.json.decode(call.capabilities, type=ClientCapabilities)
    raw = Raw(call.params)
    return InboundRequest(task_id, row, row.read_params.decode(raw), Peer(revision, capabilities, info), raw)
