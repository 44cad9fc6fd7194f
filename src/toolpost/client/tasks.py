"""Tasks of a server, as a client sees them: a call that goes on after its response.

`TaskHandle` polls a task, listens to it where that is possible, answers its questions by the client's
callbacks, and returns the result of the call. Knows both kinds of tasks: those of 2025-11-25, and the
extension of 2026-07-28.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec

from toolpost import types
from toolpost.client.callbacks import Answer, Question, parse_questions
from toolpost.client.listing import TOOLS
from toolpost.client.multi_round import MultiRoundCall
from toolpost.client.subscriptions import Subscription
from toolpost.errors import (
    CapabilityNotDeclared,
    InvalidParams,
    LocalProtocolError,
    MCPError,
    RemoteProtocolError,
    RequestTimeout,
    RPCError,
    make_rpc_error,
)
from toolpost.protocol.events import NotificationReceived
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.local_peer import LocalPeer, has_capability
from toolpost.protocol.methods import CLIENT, TASKS_CANCEL, TASKS_GET, TASKS_RESULT, TOOLS_CALL
from toolpost.protocol.revisions import LATEST
from toolpost.tasks.wire import (
    TASKS,
    TASKS_UPDATE,
    TERMINAL_STATUSES,
    CreatedTask,
    DetailedTask,
    TaskNotice,
    UpdateTaskParams,
)
from toolpost.types.base import Raw, Result, Struct
from toolpost.types.notifications import SubscriptionFilter
from toolpost.types.tools import TaskStatus

if TYPE_CHECKING:
    from toolpost.client.connection.session import ClientSession
    from toolpost.client.tools import ToolResult

T = TypeVar("T")

POLL_BOUNDS: Final = (0.1, 60.0)
"""The least and the most seconds between two polls of a task, whatever the server asks for."""

DEFAULT_POLL: Final = 1.0
"""Seconds between two polls of a task if the server does not set them."""

POLL_JITTER: Final = 0.1
"""The part of an interval by which it is longer at random, so that clients do not look all at once."""

CANCEL_TIMEOUT: Final = 5.0
"""Seconds for the cancellation of a task whose caller has given up."""

CALL_ROW: Final = LATEST.requests[CLIENT][TOOLS_CALL].with_result("task", CreatedTask)
"""The row of a call that may become a task, for clients that do not say so in all requests."""

_RESULTS: Final = CALL_ROW.results["complete"]


class _TaskError(Struct):
    code: int
    message: str
    data: Any = None


class _Extensions(Struct):
    extensions: dict[str, Any]


class _MissingCapabilities(Struct, rename="camel"):
    required_capabilities: _Extensions


_ERRORS: Final = JSONReader(_TaskError)


class TaskFilter(SubscriptionFilter):
    """The filter of a subscription to tasks."""

    task_ids: list[str] | None = None


class TaskState(Struct, frozen=True):
    """The state of a task at some time.

    Attributes:
        status: "working", "input_required", "completed", "failed" or "cancelled".
        message: what the server says about it, if anything.
        questions: the open questions of 2026-07-28, by key; in a session the client's callbacks get them.
        updated_at: when the task changed last, as ISO 8601.
        ttl: seconds for which the server keeps the task, from its creation; None for no limit.

    Examples:
        >>> state = TaskState("completed", "3 of 3", {}, "2026-11-20T12:00:00.000Z", 3600.0)
        >>> state.is_over
        True
    """

    status: TaskStatus
    message: str | None
    questions: dict[str, Question]
    updated_at: str
    ttl: float | None

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self.status in TERMINAL_STATUSES


class TaskHandle(Generic[T]):
    """A call that the server runs as a task; from `client.start_task`, or from `client.task` by its id.

    Iterate over it for its states, `async for state in task:`, or await `task.result()`. Both answer the
    questions of the task by the client's callbacks. The `id` is empty if the call ended at once.

    Examples:
        >>> import asyncio
        >>> server = Server("lab")
        >>> @server.tool(task=True)
        ... async def crunch(data: str) -> str:
        ...     return data.upper()
        >>> async def main():
        ...     async with Client(server) as mcp:
        ...         task = await mcp.start_task("crunch", {"data": "abc"})
        ...         return (await task.result()).text
        >>> asyncio.run(main())
        'ABC'
    """

    def __init__(
        self,
        session: "ClientSession",
        party: LocalPeer,
        task_id: str,
        convert: "Callable[[types.CallToolResult], ToolResult[T]]",
    ) -> None:
        self.id = task_id
        self.state: TaskState | None = None
        """The last known state; None before the first look."""
        self._session = session
        self._party = party
        self._convert = convert
        self._poll: float | None = None
        self._answered: set[str] = set()
        self._changed = asyncio.Event()
        self._outcome: types.CallToolResult | RPCError | None = None
        self._payload: asyncio.Task[Result] | None = None  # `tasks/result` of a session, in flight

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}: {self.status}>"

    @property
    def status(self) -> TaskStatus:
        """The last known status."""
        return "working" if self.state is None else self.state.status

    @property
    def message(self) -> str | None:
        """The last known status message."""
        return None if self.state is None else self.state.message

    # ----------------------------------------------------------------- for users

    async def refresh(self) -> TaskState:
        """Ask the server for the state of the task. Raises InvalidParams if it is gone, or not ours."""
        if not self.id or (self.state is not None and self.state.is_over):
            assert self.state is not None, "a call without a task has ended"
            return self.state
        if self._is_stateless:
            result = await self._request(TASKS.rows[TASKS_GET], types.TaskParams(self.id))
            assert isinstance(result, DetailedTask), "the row allows no other result"
            return self.take_extension_state(result)
        result = await self._request(TASKS_GET, types.TaskParams(self.id))
        assert isinstance(result, types.TaskResult), "as above"
        return self.take_session_state(result)

    async def __aiter__(self) -> AsyncIterator[TaskState]:
        """The states of the task from now on, until it has ended."""
        shown: TaskState | None = None
        async with self._listening():
            while True:
                state = await self.refresh()
                if state != shown:
                    shown = state
                    yield state
                if state.is_over:
                    return
                await self._serve_questions(state, must=False)
                await self._wait()

    async def result(self, *, timeout: float | None = None) -> "ToolResult[T]":
        """Wait until the task has ended, and return the result of the call.

        Args:
            timeout: seconds to wait. By default there is no limit. The task goes on after a timeout.

        Raises:
            ToolError: the tool reports a failure.
            RPCError: the call failed.
            RequestTimeout: the task has not ended in time.
            MCPError: the task was cancelled.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                async with self._listening():
                    while not (state := await self.refresh()).is_over:
                        await self._serve_questions(state, must=True)
                        await self._wait()
                outcome = await self._fetch_outcome(state)
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeout(f"the task {self.id} has not ended within {timeout:g} s") from None
        finally:
            if self._payload is not None and not self._payload.done():
                self._payload.cancel()
        if isinstance(outcome, RPCError):
            raise outcome
        return self._convert(outcome)

    async def answer(self, answers: Mapping[str, Answer]) -> None:
        """Answer open questions of the task by hand, by key; of 2026-07-28 only.

        Raises:
            LocalProtocolError: in a session the server asks the client's callbacks.
            ValueError: there is no such question.
        """
        if not self._is_stateless:
            raise LocalProtocolError("in a session, the client's callbacks answer the questions of a task")
        questions = {} if self.state is None else self.state.questions
        for key in answers:
            if key not in questions:
                raise ValueError(
                    f"answers: unknown key {key!r}; use one of {', '.join(map(repr, questions))}"
                )
        await self._update({key: questions[key] for key in answers}, answers)

    async def cancel(self) -> None:
        """Cancel the task. Nothing happens if it has ended."""
        if not self.id:
            return
        if self._is_stateless:
            await self._request(TASKS.rows[TASKS_CANCEL], types.TaskParams(self.id))
            return
        with contextlib.suppress(InvalidParams):  # it has ended (TASK-26)
            result = await self._request(TASKS_CANCEL, types.TaskParams(self.id))
            assert isinstance(result, types.TaskResult), "the row allows no other result"
            self.take_session_state(result)

    async def drive(self, timeout: float | None) -> "ToolResult[T]":
        """For `call_tool`: return the result; cancel the task if the caller gives up."""
        try:
            return await self.result(timeout=timeout)
        except (asyncio.CancelledError, RequestTimeout):
            with contextlib.suppress(MCPError, TimeoutError):
                async with asyncio.timeout(CANCEL_TIMEOUT):
                    await self.cancel()
            raise

    # ----------------------------------------------------------------- states

    def take_end(self) -> None:
        """Note that the call has ended without becoming a task; `convert` has its result."""
        self._outcome = types.CallToolResult(content=[])
        self.state = TaskState("completed", None, {}, "", None)

    def take_extension_state(self, task: CreatedTask) -> TaskState:
        """Take a state of 2026-07-28."""
        self._poll = None if task.poll_interval_ms is None else task.poll_interval_ms / 1000
        ttl = None if task.ttl_ms is None else task.ttl_ms / 1000
        questions: dict[str, Question] = {}
        if isinstance(task, DetailedTask):
            questions = parse_questions(task.input_requests or {})
            if task.status == "completed":
                if not isinstance(task.result, Raw):
                    raise RemoteProtocolError(f"the task {self.id} is completed, but has no result")
                self._outcome = self._read_result(task.result)
            elif task.status == "failed":
                error = _ERRORS(task.error)
                self._outcome = make_rpc_error(error.code, error.message, error.data, session=False)
        self.state = TaskState(task.status, task.status_message, questions, task.last_updated_at, ttl)
        return self.state

    def take_session_state(self, task: types.Task | types.TaskResult) -> TaskState:
        """Take a state of 2025-11-25."""
        self._poll = None if task.poll_interval is None else task.poll_interval / 1000
        ttl = None if task.ttl is None else task.ttl / 1000
        self.state = TaskState(task.status, task.status_message, {}, task.last_updated_at, ttl)
        return self.state

    @staticmethod
    def _read_result(raw: Raw) -> types.CallToolResult:
        try:
            result = _RESULTS(raw)
        except ValueError as error:
            raise RemoteProtocolError(f"invalid result of a task: {error}") from error
        vars(result)["raw"] = raw
        return cast("types.CallToolResult", result)

    async def _fetch_outcome(self, state: TaskState) -> types.CallToolResult | RPCError:
        """Return how the task has ended."""
        if self._outcome is not None:
            return self._outcome
        if state.status == "cancelled":
            raise MCPError(f"the task {self.id} was cancelled: {state.message or 'no reason given'}")
        payload = self._payload or self._start_payload()
        try:
            result = await payload
        except RPCError as error:
            self._outcome = error
            return error
        self._outcome = self._read_result(Raw(result.raw or b"{}"))
        return self._outcome

    def _start_payload(self) -> "asyncio.Task[Result]":
        """Send `tasks/result`: it waits for the end, and carries the questions of the task (TASK-13)."""
        params = types.TaskParams(self.id)
        limits = self._session.make_limits(float("inf"))
        call = MultiRoundCall(self._session, TASKS_RESULT, params, limits, retry=True)
        self._payload = asyncio.ensure_future(call.send())
        self._payload.add_done_callback(lambda _: self._changed.set())
        return self._payload

    # ----------------------------------------------------------------- requests

    @property
    def _is_stateless(self) -> bool:
        return self._session.last_connection.revision.stateless

    async def _request(self, method: Any, params: Any) -> Result:
        party = self._party if self._is_stateless else None
        limits = self._session.make_limits(None)
        return await MultiRoundCall(self._session, method, params, limits, party=party, retry=True).send()

    async def _serve_questions(self, state: TaskState, *, must: bool) -> None:
        """Let the client's callbacks answer the open questions, each once."""
        if state.status != "input_required":
            return
        if not self._is_stateless:
            if self._payload is None or self._payload.done():
                self._start_payload()
            return
        questions = {key: asked for key, asked in state.questions.items() if key not in self._answered}
        if questions and (must or self._session.request_callbacks.can_answer(questions)):
            await self._update(questions, {})

    async def _update(self, questions: dict[str, Question], given: Mapping[str, Answer]) -> None:
        capabilities = self._party.capabilities
        assert isinstance(capabilities, types.ClientCapabilities), "we are a client"
        answers = await self._session.request_callbacks.answer_questions(
            questions, given, capabilities, self._session.last_connection.revision
        )
        self._answered.update(answers)
        await self._request(TASKS.rows[TASKS_UPDATE], UpdateTaskParams(self.id, answers))
        self._changed.set()

    # ----------------------------------------------------------------- waiting

    async def _wait(self) -> None:
        """Wait for a notification, or until it is time to look again (TASK-18)."""
        shortest, longest = POLL_BOUNDS
        poll = min(max(DEFAULT_POLL if self._poll is None else self._poll, shortest), longest)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(poll * (1 + POLL_JITTER * random.random())):  # noqa: S311 - not a secret
                await self._changed.wait()
        self._changed.clear()

    def _on_notification(self, event: NotificationReceived) -> None:
        """Look at once when the server reports a change; the state itself is always fetched (TASK-22)."""
        params: Any = event.params
        if isinstance(params, TaskNotice | types.TaskStatusParams) and params.task_id == self.id:
            self._changed.set()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncGenerator[None]:
        """Listen to changes of the task, where the server offers that; else it is only polled."""
        subscription: Subscription | None = None
        listener = self._session.listener if self.id else None
        if listener is not None and not self._is_stateless:
            listener.observers.add(self._on_notification)
        elif listener is not None:
            wanted, limits = TaskFilter(task_ids=[self.id]), self._session.make_limits(None)
            with contextlib.suppress(MCPError):
                subscription = await listener.open(wanted, limits, self._on_notification, party=self._party)
        try:
            yield
        finally:
            if subscription is not None:
                with contextlib.suppress(MCPError):
                    await subscription.close()
            elif listener is not None:
                listener.observers.discard(self._on_notification)


def make_task_party(party: LocalPeer) -> LocalPeer:
    """Return the same client, declaring the extension for tasks."""
    return party if TASKS in party.extensions else party.with_capabilities(party.capabilities, [TASKS])


def is_task_demand(error: RPCError) -> bool:
    """Return whether a server refused a call because the client did not declare the extension."""
    try:
        needed = msgspec.convert(error.data, _MissingCapabilities)
    except msgspec.ValidationError:
        return False
    return TASKS.name in needed.required_capabilities.extensions


def check_task_support(session: "ClientSession") -> None:
    """Raise CapabilityNotDeclared if the server has no tasks in the revision of the connection (TASK-3)."""
    capabilities, revision = session.last_connection.result.capabilities, session.last_connection.revision
    if revision.stateless and TASKS.find_settings(capabilities) is None:
        text = f"the server does not offer the extension {TASKS.name}"
        raise CapabilityNotDeclared(f"extensions.{TASKS.name}", text)
    if not revision.stateless and not (revision.tasks and has_capability(capabilities, "tasks")):
        raise CapabilityNotDeclared("tasks", "the server does not offer tasks in this revision")


async def find_task_support(session: "ClientSession", name: str) -> str | None:
    """Return whether a tool may be called as a task of 2025-11-25, as the server lists it."""
    opened = session.last_connection
    if not (
        opened.revision.tasks and has_capability(opened.result.capabilities, "tasks.requests.tools.call")
    ):
        return None
    tools = await session.reader.read_list(TOOLS, session.make_limits(None))
    tool = next((tool for tool in tools if tool.name == name), None)
    return None if tool is None or tool.execution is None else tool.execution.task_support


async def check_tool_support(session: "ClientSession", name: str) -> None:
    """Raise CapabilityNotDeclared if a tool cannot be called as a task of 2025-11-25 (TASK-5)."""
    if await find_task_support(session, name) not in {"optional", "required"}:
        raise CapabilityNotDeclared("tasks", f"the tool {name!r} cannot be called as a task")
