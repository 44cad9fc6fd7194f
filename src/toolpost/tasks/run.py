"""One run of a task: an attempt to execute the function behind it, with or without a client that waits.

`TaskRun` is what a context knows of its task: progress, steps, questions, the end. It also runs a call that
may become a task: until then, the client waits for the result as usual. `runner` decides when a run
begins, and which worker takes it over.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from toolpost.errors import (
    CapabilityNotDeclared,
    ClientCapabilityNotDeclared,
    InternalError,
    LocalProtocolError,
    StoreUnavailable,
    UrlElicitationRequired,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.downgrade import downgrade_value
from toolpost.protocol.eras import ERAS, find_missing_capability
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.elicitation.input_required import MAX_ROUNDS, request_url_visits
from toolpost.server.runtime.dispatch import to_rpc_error
from toolpost.server.runtime.eager_tasks import is_unanswered
from toolpost.server.state import State
from toolpost.tasks.record import MAX_MESSAGE, TaskRecord
from toolpost.tasks.table import make_item, make_token
from toolpost.types.base import JSON, InputRequest, Number, Raw, RequestId, Result, WireStruct
from toolpost.types.content import TextContent
from toolpost.types.initialize import LogLevel
from toolpost.types.tools import CallToolResult

if TYPE_CHECKING:
    from toolpost.server.handler import Handler
    from toolpost.server.registry.tools import RegisteredTool
    from toolpost.tasks.runner import TaskRunner

logger: Final = logging.getLogger("toolpost.tasks")

REPORT_INTERVAL: Final = 0.1
"""Seconds between two writes of progress."""

RETRY_DELAY: Final = 0.25
"""Seconds between two attempts to store what a run says, while the store is unavailable."""


class DetachedClient:
    """The client of a task, as its function sees it: it hears nothing, and answers through the journal."""

    endpoint = None
    identity = ""
    uris: tuple[str, ...] = ()

    def __init__(self, connection: Connection, *, is_remote: bool, headers: Mapping[str, str]) -> None:
        self.connection = connection
        self.is_remote = is_remote
        self._headers = headers

    async def set_subscription(self, uri: str, /, *, is_active: bool) -> None:
        """Do nothing: there is no session."""

    def add_url_elicitation(self, elicitation_id: str, /) -> None:
        """Do nothing: the session that asks does it."""

    async def set_log_level(self, level: LogLevel, /) -> None:
        """Do nothing: there is no session."""

    def open_session_state(self) -> State:
        """Return a state that ends with the run."""
        return State.in_memory()

    def headers_of(self, incoming: InboundRequest | None) -> Mapping[str, str]:
        """Return the headers of the call, on the worker that received it."""
        del incoming
        return self._headers

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Do nothing: there is no stream."""

    async def hand_over(self, handler: "Handler") -> None:
        """Do nothing: there is no session."""

    async def send(self, data: bytes, related: RequestId | None = None, *, outlives: bool = False) -> None:
        """Drop a message: no client listens."""

    async def send_client_request(self, data: bytes, related: RequestId | None, /) -> None:
        """Drop a request: `ask` refuses it before."""

    def get_request_task(self, incoming: InboundRequest, /) -> "asyncio.Task[Any] | None":
        """Return None: nothing waits for this request."""
        del incoming
        return None

    def run_in_background(self, work: Coroutine[Any, Any, Any], /) -> object:
        """Run a coroutine in a task."""
        return asyncio.get_running_loop().create_task(work)

    async def ask(
        self,
        context: Context,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """Refuse a request that is not one of the protocol's questions."""
        del context, params, timeout
        name = method if isinstance(method, str) else method.name
        raise CapabilityNotDeclared(name, f"a task cannot send {name} to its client")


def detach(context: Context, incoming: InboundRequest, *, is_remote: bool) -> None:
    """Let a context continue without the connection of its request."""
    connection = Connection(context.server.local_peer, peer=incoming.peer)
    connection.incoming[incoming.id] = incoming
    headers = {} if context.incoming is None else dict(context.client_connection.headers_of(context.incoming))
    context.client_connection = DetachedClient(connection, is_remote=is_remote, headers=headers)
    context.connection, context.incoming = connection, incoming


class TaskRun:
    """A run; or, as long as `is_task` is false, a call that may become a task.

    `context` is that of the function. `work` is the task that executes it, `token` names the run.
    """

    def __init__(
        self, runner: "TaskRunner", tool: "RegisteredTool[..., Any]", context: Context, task_id: str
    ) -> None:
        self.runner = runner
        self.tool = tool
        self.id = task_id
        self.number = 0  # the round of the task
        self.token = make_token()
        self.is_task = False
        self.is_lost = False  # whether the task was taken over or cancelled, or is gone
        self.is_detached = False  # whether another program completes the task
        self.is_stored = False  # whether its outcome is in the record
        self.first_record: TaskRecord | None = None  # once it has become a task
        self.became_task: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._promotion: asyncio.Lock = asyncio.Lock()
        self._report: tuple[Number, Number | None, str | None] | None = None
        self._reporter: asyncio.Task[None] | None = None
        self.context = copy(context)
        self.context.task_run = self
        self.work: asyncio.Task[CallToolResult] | None = None

    @property
    def item(self) -> str:
        """The item of the queue for this run."""
        return make_item(self.id, self.number)

    def begin(self) -> "asyncio.Task[CallToolResult]":
        """Call the function."""
        self.context.replay.task_run = self
        incoming = self.context.incoming
        assert incoming is not None, "only requests become tasks"
        self.work = asyncio.get_running_loop().create_task(
            self.tool.serve(self.context, incoming.params), name=f"toolpost task {self.id}"
        )
        return self.work

    def lose(self) -> None:
        """Stop the function: what it does has no effect any more."""
        self.is_lost = True
        if self.work is not None:
            self.work.cancel()

    async def become_task(self) -> bool:
        """Let the call go on as a task, if it can; return whether it is one."""
        async with self._promotion:
            if not self.is_task and not self.is_lost:
                await self.runner.promote(self)
        return self.is_task

    async def detach(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Let another program complete the task: call the function that hands it over, once."""
        threads = self.context.server.worker_threads

        async def hand_over() -> None:
            await threads.call_function(fn, self.id, *args)

        await self.context.step(f"detach {self.id}", hand_over)
        self.is_detached = True

    # ----------------------------------------------------------------- what the function says

    async def _change(self, change: Callable[[TaskRecord], Any]) -> bool:
        """Change the record if this run still has the task, and return whether it has.

        Waits while the store is unavailable, for as long as the lease may last.
        """

        def apply(record: TaskRecord) -> Any:
            if not record.is_held_by(self.token):
                return False
            self.show_report(record)
            return change(record)

        loop = asyncio.get_running_loop()
        until = loop.time() + self.runner.lease
        while True:
            try:
                _, is_changed = await self.runner.table.change(self.id, apply)
            except StoreUnavailable:
                if loop.time() >= until:
                    raise
                await asyncio.sleep(RETRY_DELAY)
                continue
            if is_changed:
                self.runner.tasks.announce(self.id)
            return bool(is_changed)

    async def save_steps(self) -> None:
        """Store the journal after a step. Raises LocalProtocolError if another run has the task."""
        if not self.is_task:
            return
        journal = await self.context.replay.load_journal()

        def save(record: TaskRecord) -> bool:
            record.journal = journal.encode()
            record.prolong(self.runner.table.now)
            return True

        if not await self._change(save):
            self.lose()
            raise LocalProtocolError("another worker has taken over this task")

    def report(self, progress: Number, total: Number | None, message: str | None) -> None:
        """Show progress as the status of the task. The latest wins; reports before it is a task, too."""
        self._report = progress, total, message
        if self.is_task and self._reporter is None:
            self._reporter = asyncio.get_running_loop().create_task(self._write_reports())

    def show_report(self, record: TaskRecord) -> bool:
        """Write the latest report into the record, if there is one."""
        if self._report is None:
            return False
        (progress, total, message), self._report = self._report, None
        share = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        record.progress, record.message = (progress, total, message), (message or share)[:MAX_MESSAGE]
        record.touch(self.runner.table.now)
        return True

    async def _write_reports(self) -> None:
        try:
            while self._report is not None:
                await self._change(lambda _: True)
                await asyncio.sleep(REPORT_INTERVAL)
        except StoreUnavailable as error:
            logger.warning("the progress of task %s was not stored: %s", self.id, error)
        finally:
            self._reporter = None

    def make_question(
        self, connection: Connection, method: str, params: WireStruct
    ) -> tuple[InputRequest, JSONReader[Any]]:
        """Return a question as the client will see it, and the reader of its answer."""
        incoming = self.context.incoming
        assert incoming is not None, "only requests become tasks"
        revision, capabilities = incoming.peer.revision, incoming.peer.capabilities
        if revision.stateless:
            asked = ERAS["stateless"].make_client_request(connection, incoming, method, params)
            assert isinstance(asked, InputRequest), "this era has no other requests"
            return asked, revision.input_requests[method].results["complete"]
        row = revision.requests["server"].get(method)
        missing = method if row is None else find_missing_capability(capabilities, row, params)
        if row is None or missing is not None:
            raise ClientCapabilityNotDeclared(
                missing or method, f"{method} needs the client capability {missing!r}", None
            )
        body = Raw(jsonrpc.encode(downgrade_value(params, revision)))
        return InputRequest(method, body), row.results["complete"]

    # ----------------------------------------------------------------- the end

    async def settle(self) -> None:
        """Wait until the function has ended, and store how."""
        work = self.work
        assert work is not None, "it has begun"
        await asyncio.wait([work])
        if self._reporter is not None:
            self._reporter.cancel()  # the last report is stored with the end
            await asyncio.wait([self._reporter])
        if self.is_lost:
            self.context.replay.give_up()
            return
        try:
            await self._store_outcome(work)
        except StoreUnavailable as error:
            logger.warning("the end of task %s could not be stored: %s", self.id, error)
        finally:
            self.context.connection.incoming.clear()

    async def _store_outcome(self, work: "asyncio.Task[CallToolResult]") -> None:
        incoming, replay = self.context.incoming, self.context.replay
        assert incoming is not None, "only requests become tasks"
        now = self.runner.table.now
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if isinstance(error, UrlElicitationRequired):
            try:
                await request_url_visits(self.context, error)
            except UrlElicitationRequired:
                pass  # there is none, or the client cannot open URLs
            except LocalProtocolError as unable:
                error = unable
        if replay.has_open_questions and (error is None or is_unanswered(error) or _is_visit(error)):
            self.is_stored = await self._suspend()
        elif error is not None:
            replay.give_up()
            failure = to_rpc_error(incoming, error)
            self.is_stored = await self._change(lambda record: record.fail(failure, now))
        elif self.is_detached:
            self.is_stored = await self._change(_let_go)
        else:
            end = make_end(self.context.server, incoming, work.result(), now)
            self.is_stored = await self._change(end)

    async def _suspend(self) -> bool:
        """Store the open questions; the last answer starts another run."""
        replay = self.context.replay
        await replay.end_run()
        journal = await replay.load_journal()
        now = self.runner.table.now
        if journal.record.rounds >= MAX_ROUNDS:
            endless = InternalError(f"Internal error: no result after {MAX_ROUNDS} rounds of questions")
            return await self._change(lambda record: record.fail(endless, now))
        encoded = journal.encode()
        return await self._change(
            lambda record: record.suspend(self.token, journal.open_questions, encoded, now)
        )


def _is_visit(error: BaseException) -> bool:
    return isinstance(error, UrlElicitationRequired)


def _let_go(record: TaskRecord) -> bool:
    """End a run whose task another program completes."""
    record.holder = ""
    return True


def make_end(
    server: "Handler", incoming: InboundRequest, result: CallToolResult, now: int
) -> Callable[[TaskRecord], bool]:
    """Return the change that ends a task with a result, as the call would have returned it."""
    era = ERAS[incoming.peer.revision.era]
    try:
        encoded = jsonrpc.encode(era.stamp_result(server.local_peer, incoming, result))
    except LocalProtocolError as wrong:
        failure = InternalError(f"Internal error: {wrong.message}")
        return lambda record: record.fail(failure, now)
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    is_error = bool(result.is_error)
    return lambda record: record.complete(encoded, now, is_error=is_error, text=text or None)
