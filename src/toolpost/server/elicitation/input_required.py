"""Calls that need input from their client: the replay of a call without a session, and `InputRequired`.

A question finds its answer in the journal, or raises `Unanswered`; then the function runs again from the top
when the client returns. `InputRequired` is the explicit form: returned by a handler, with named questions and
a state.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from inspect import isawaitable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec

from toolpost import types
from toolpost.errors import (
    CapabilityNotDeclared,
    InternalError,
    LocalProtocolError,
    UrlElicitationRequired,
    UserRejected,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import STATELESS_ERA, find_missing_capability
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import ELICITATION_CREATE, ROOTS_LIST, SAMPLING_CREATE_MESSAGE
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.server.elicitation.forms import Accepted
from toolpost.server.elicitation.journal import ManualQuestion, ReplayJournal
from toolpost.server.runtime.eager_tasks import Unanswered
from toolpost.server.signature.errors import SignatureError
from toolpost.server.signature.inspection import AnnotationScope, unwrap_layers
from toolpost.types.base import JSON, UNSET, InputRequiredResult, Raw, Result, WireStruct

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.handler import Handler
    from toolpost.tasks.run import TaskRun

    QuestionParams: TypeAlias = types.ElicitParams | types.CreateMessageParams | types.ClientRequestParams

MAX_ROUNDS: Final = 100
"""Rounds of questions of one call: more than any client allows, and a bound for an endless loop."""

STEP_SHUTDOWN_TIMEOUT: Final = 5.0
"""Seconds that running steps get to end at shutdown."""

logger: Final = logging.getLogger("toolpost.server")


class CallReplay:
    """The questions and steps of earlier runs of one request; in a session, only its steps.

    A running step continues to its end, even if a concurrent question ends the run or the client disconnects.
    """

    def __init__(self, server: "Handler", incoming: InboundRequest | None, principal: str | None) -> None:
        self._server = server
        self._incoming = incoming
        self._principal = principal
        self.loaded_journal: ReplayJournal | None = None
        self.input: tuple[Mapping[str, Result], JSON] = {}, None
        """The answers to the last `InputRequired` of this request, and its state."""
        self._running_steps: dict[str, asyncio.Task[Raw | BaseException]] = {}
        self._is_over = False
        self.task_run: TaskRun | None = None
        """The task of the call, which keeps the journal."""

    @property
    def is_stateless(self) -> bool:
        """Whether questions go to the client in a result."""
        incoming = self._incoming
        return incoming is not None and incoming.row.can_require_input and incoming.peer.revision.stateless

    @property
    def has_open_questions(self) -> bool:
        """Whether a question has no answer yet, where there is no session."""
        return self.loaded_journal is not None and bool(self.loaded_journal.open_questions)

    async def load_journal(self) -> ReplayJournal:
        """Return the journal. Raises InvalidParams if the client's state is not valid."""
        if self.loaded_journal is None:
            incoming = self._incoming
            if self.is_stateless and incoming is not None:
                self.loaded_journal = await self._server.request_states.open(incoming, self._principal)
                self.input = self.loaded_journal.read_input(incoming.peer.revision)
            else:
                self.loaded_journal = ReplayJournal()
        return self.loaded_journal

    async def claim_state(self) -> None:
        """Use up the state that the client sent, before a function that must not run twice.

        Raises InvalidParams if the state was used before.
        """
        journal = await self.load_journal()
        if self._incoming is not None and journal.claim is not None:
            await self._server.request_states.claim_state(journal, self._incoming)

    async def get_answer(
        self, connection: Connection, method: str, params: WireStruct, key: str | None
    ) -> Result:
        """Return the client's answer to a question. Raises Unanswered if it was not asked before."""
        self._check_running()
        incoming = self._incoming
        assert incoming is not None, "this era sends questions only within a request"
        journal = await self.load_journal()
        if self.task_run is not None and self.task_run.is_task:
            return journal.answer(*self.task_run.make_question(connection, method, params), key)
        asked = STATELESS_ERA.make_client_request(connection, incoming, method, params)
        return journal.answer(asked, incoming.peer.revision.input_requests[method].results["complete"], key)

    def _check_running(self) -> None:
        """Raise if the run is over: tasks of it that still run must ask nothing more."""
        if self._is_over:
            raise Unanswered("this run of the function is over; it runs again from the start")

    # ----------------------------------------------------------------- steps

    def check_not_in_step(self, action: str = "ask the client") -> None:
        """Raise LocalProtocolError inside a step of this call."""
        if _CURRENT_STEP_OWNER.get() is self:
            raise LocalProtocolError(
                f"a step cannot {action}: only its own result is stored",
                hint="do it in the function, before or after the step",
            )

    async def step(self, name: str, fn: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """Return the value of a function, from this run or an earlier one; `call` calls it."""
        kind = _check_step_type(name, fn)
        key, written = await self._begin_step(name)
        if written is None:
            # In a task: a concurrent question may end the function, but the step is finished and recorded.
            task = asyncio.get_running_loop().create_task(self._run_step(key, name, call))
            self._server.running_steps.add(task)
            self._running_steps[name] = task
            task.add_done_callback(self._server.running_steps.discard)
            task.add_done_callback(lambda _: self._running_steps.pop(name))
            done = await asyncio.shield(task)
            if isinstance(done, BaseException):
                raise done
            written = done
        return _decode_step_value(name, written, kind)

    def step_in_thread(
        self, wait: Callable[[Any], Any], name: str, fn: Callable[..., Any], call: Callable[[], Any]
    ) -> Any:
        """Run a step in the current thread; `wait` runs a coroutine on the loop."""
        kind = _check_step_type(name, fn)
        key, written = wait(self._begin_step(name))
        if written is None:
            before = _CURRENT_STEP_OWNER.set(self)
            try:
                written = wait(self._record_step(key, name, call()))
            finally:
                _CURRENT_STEP_OWNER.reset(before)
        return _decode_step_value(name, written, kind)

    async def _begin_step(self, name: str) -> tuple[str, Raw | None]:
        self._check_running()
        journal = await self.load_journal()
        self.check_not_in_step("run another step")
        if name in self._running_steps:
            raise LocalProtocolError(
                f"two steps named {name!r} run at the same time, so their results are ambiguous",
                hint="give each step a unique name",
            )
        key, written = journal.look_up_step(name)
        if written is None:
            await self.claim_state()
        return key, written

    async def _run_step(self, key: str, name: str, call: Callable[[], Any]) -> Raw | BaseException:
        """Return the value of a step, or its exception: some exceptions would end the loop if raised."""
        _CURRENT_STEP_OWNER.set(self)
        try:
            return await self._record_step(key, name, await self._server.worker_threads.call_function(call))
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller of the step
            return error

    async def _record_step(self, key: str, name: str, value: Any) -> Raw:
        value = await value if isawaitable(value) else value
        try:
            written = Raw(jsonrpc.encode(value))
        except LocalProtocolError as error:
            text = f"the result of step {name!r} cannot be stored: {error.message}"
            raise LocalProtocolError(text) from error
        (await self.load_journal()).record.steps[key] = written
        if self.task_run is not None:
            await self.task_run.save_steps()
        return written

    async def build_input_required(self, method: str) -> InputRequiredResult:
        """Return the open questions, and the state that the client sends with the answers."""
        await self.end_run()
        journal = await self.load_journal()
        if journal.record.rounds >= MAX_ROUNDS:
            raise InternalError(f"{method} has no result after {MAX_ROUNDS} rounds of questions")
        assert self._incoming is not None, "only a request can ask"
        # The rest of the questions is for the next round.
        journal.open_questions = dict(islice(journal.open_questions.items(), MAX_INPUT_RESPONSES))
        if unused := journal.count_unused_answers():
            text = "%s: %d answers were not used; a question must be the same in each run"
            logger.info(text, method, unused)
        state = await self._server.request_states.seal(journal, self._incoming, self._principal)
        return InputRequiredResult(input_requests=journal.open_questions or None, request_state=state)

    async def end_run(self) -> None:
        """End the run once its steps have ended."""
        while self._running_steps:
            await asyncio.wait(self._running_steps.values())
        self._is_over = True

    def give_up(self) -> None:
        """End the run: the request was cancelled. Running steps are finished."""
        self._is_over = True


_CURRENT_STEP_OWNER: ContextVar[CallReplay | None] = ContextVar("_CURRENT_STEP_OWNER", default=None)


async def finish_steps(steps: set["asyncio.Task[Any]"]) -> None:
    """Wait for the running steps of a server, `STEP_SHUTDOWN_TIMEOUT` at most, then cancel them."""
    _, late = await asyncio.wait(steps, timeout=STEP_SHUTDOWN_TIMEOUT)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)


def _check_step_type(name: str, fn: Callable[..., Any]) -> Any:
    """Return the declared type of a step's value. Raises LocalProtocolError if it is not JSON."""
    *_, written = unwrap_layers(fn)
    try:
        kind = AnnotationScope(fn).evaluate(getattr(written, "__annotations__", {}).get("return", Any))
    except SignatureError:  # it cannot be resolved
        return Any
    try:
        msgspec.json.schema(kind)
    except TypeError as error:
        text = f"the result of step {name!r} cannot be stored: its return type is not JSON: {error}"
        raise LocalProtocolError(text, hint="the step did not run; return JSON values") from error
    return kind


def _decode_step_value(name: str, written: Raw, kind: Any) -> Any:
    """Return the value of a step, as the type that its function declares."""
    try:
        return msgspec.json.decode(written, type=kind)
    except (TypeError, msgspec.ValidationError) as error:
        raise LocalProtocolError(
            f"the result of step {name!r} does not match its return type: {error}"
        ) from error


async def request_url_visits(context: "Context", wanted: UrlElicitationRequired) -> None:
    """Ask the user to visit the URLs without which the request cannot be served.

    A URL that is still required was not visited, even if the user agreed to it before. So ask again.
    Raises `wanted` if there is no URL, or if middleware always agrees.
    """
    asked = False
    for each in wanted.elicitations:
        try:
            for _ in range(MAX_ROUNDS):
                if not isinstance(await context.elicit_url(each["message"], each["url"]), Accepted):
                    raise UserRejected(f"The user declined to visit the URL: {each['message']}")
                await asyncio.sleep(0)  # middleware may answer at once: let others run
        except Unanswered:
            asked = True
    if not asked:
        raise wanted


# --------------------------------------------------------------------- questions by hand

STATE_RETRY_DELAY: Final = 0.1
"""Seconds before the next call of a method that returned a state but no question."""
_QUESTION_METHODS: Final[dict[type, str]] = {
    types.ElicitParams: ELICITATION_CREATE,
    types.CreateMessageParams: SAMPLING_CREATE_MESSAGE,
    types.ClientRequestParams: ROOTS_LIST,
}

R = TypeVar("R")


class InputRequired:
    """Returned by a handler instead of a result, to ask questions first.

    The method is then called again: it finds the answers in `ctx.input_responses`, and the state in
    `ctx.request_state`. In a session the client is asked at once, and the method is called again within the
    same request. A stateless client sends a new request with the answers and the sealed state, perhaps to
    another worker.

    Args:
        questions: the questions by name: for the user, for the model, or, as a plain
            `ClientRequestParams()`, for the roots.
        state: any JSON value, for the next call.

    Raises:
        TypeError: a question has the wrong type.
        ValueError: there is neither a question nor a state, or there are more questions than a client may
            answer at once.

    Examples:
        >>> asked = InputRequired({"name": ElicitParams(message="Who are you?")}, state={"tries": 1})
        >>> list(asked.questions)
        ['name']
    """

    __slots__ = ("questions", "state")

    def __init__(self, questions: "Mapping[str, QuestionParams] | None" = None, state: JSON = None) -> None:
        self.questions: dict[str, tuple[str, QuestionParams]] = {}
        for key, asked in (questions or {}).items():
            if type(asked) not in _QUESTION_METHODS:
                raise TypeError(
                    f"question {key!r} must be an ElicitParams, a CreateMessageParams or a plain "
                    f"ClientRequestParams (for roots), not {type(asked).__name__}"
                )
            self.questions[key] = _QUESTION_METHODS[type(asked)], asked
        self.state = state
        if not self.questions and state is None:
            raise ValueError("InputRequired needs at least one question or a state")
        if len(self.questions) > MAX_INPUT_RESPONSES:
            raise ValueError(f"too many questions: {len(self.questions)} (limit: {MAX_INPUT_RESPONSES})")

    def __repr__(self) -> str:
        return f"InputRequired({', '.join(self.questions)})"


async def resolve_input_required(context: "Context", serve: Callable[[], Awaitable[R | InputRequired]]) -> R:
    """Call a method until it returns a result. Raises Unanswered if a stateless client has to be asked."""
    for _ in range(MAX_ROUNDS):
        value = await serve()
        if not isinstance(value, InputRequired):
            return value
        if context.replay.is_stateless:
            await _record_questions(context, value)
        else:
            await _ask_in_session(context, value)
    raise InternalError(f"{context.method} has no result after {MAX_ROUNDS} rounds of questions")


async def _ask_in_session(context: "Context", wanted: InputRequired) -> None:
    incoming = context.incoming
    assert incoming is not None, "only a request has a handler"
    rows = incoming.peer.revision.requests["server"]
    for method, params in wanted.questions.values():  # all or none
        row, capabilities = rows.get(method), incoming.peer.capabilities
        missing = method if row is None else find_missing_capability(capabilities, row, params)
        if missing:
            text = f"the client does not offer {missing!r}, which {method} needs"
            raise CapabilityNotDeclared(missing, text)
    if not wanted.questions:
        await asyncio.sleep(STATE_RETRY_DELAY)
    state = msgspec.json.decode(jsonrpc.encode(wanted.state))
    given = {key: await context.ask(method, params) for key, (method, params) in wanted.questions.items()}
    context.replay.input = given, state


async def _record_questions(context: "Context", wanted: InputRequired) -> NoReturn:
    """Record the questions in the journal."""
    journal = await context.replay.load_journal()
    journal.begin_manual_questions(UNSET if wanted.state is None else Raw(jsonrpc.encode(wanted.state)))
    for name, (method, params) in wanted.questions.items():
        before = len(journal.open_questions)
        try:
            answer = await context.ask(method, params, key=name)
        except Unanswered:
            (key,) = list(journal.open_questions)[before:]
            journal.record.by_hand[key] = ManualQuestion(name, method)
        else:  # by middleware: the client need not be asked
            answered = ManualQuestion(name, method, Raw(jsonrpc.encode(answer)))
            journal.record.by_hand[f"{name} (answered)"] = answered
    raise Unanswered("the questions have no answers yet")
