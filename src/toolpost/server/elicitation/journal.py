"""Replay of calls without a session: the journal of what was asked, answered and done, and the run of a call.

A function that asks finds its answer in the journal, or leaves by `Unanswered` and runs again from the top
when its client has come back. A question is known by its kind, its words and how often it was asked, not by
its place, so that functions may ask side by side. How a journal travels is `request_state`'s business.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from inspect import isawaitable, iscoroutinefunction
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import msgspec
from msgspec.structs import replace

from toolpost.errors import InternalError, LocalProtocolError, UrlElicitationRequired, UserRejected
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import STATELESS_ERA
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.server.elicitation.forms import Accepted
from toolpost.server.runtime.eager import Unanswered
from toolpost.types.base import (
    UNSET,
    InputRequest,
    InputRequiredResult,
    Raw,
    Result,
    Struct,
    Unset,
    WireStruct,
)

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.handler import Handler

KEY_LENGTH: Final = 16
"""Letters of a key: no two questions of one call are the same by chance."""


class ManualQuestion(Struct):
    """A question of an `InputRequired`; it has an answer if middleware had one."""

    name: str
    method: str
    answer: Raw | Unset = UNSET


class JournalRecord(Struct):
    """The content of a journal, as it travels."""

    answers: dict[str, Raw]
    steps: dict[str, Raw]
    meant: dict[str, str]
    """The digests of the questions that have a name, by key."""
    by_hand: dict[str, ManualQuestion]
    """The questions of an `InputRequired`, by key."""
    asked: list[str]
    """The keys of the other questions of the last round."""
    state: Raw | Unset = UNSET
    """The state of an `InputRequired`."""
    rounds: int = 0


_JOURNAL_READER: Final = JSONReader(JournalRecord)


class ReplayJournal:
    """What one call has asked and done so far: `pages` of earlier runs, and the answers of this round."""

    def __init__(self, pages: bytes | None = None, answers: Mapping[str, Raw] | None = None) -> None:
        self.record = JournalRecord({}, {}, {}, {}, []) if pages is None else _JOURNAL_READER(pages)
        self.open_questions: dict[str, InputRequest] = {}
        """The questions of this run that have no answer, by key."""
        self.client_answers = answers or {}
        """The answers of this round, by key: as they came."""
        # An answer counts even if this run ends before it asks.
        self._new_answers = {
            key: self.client_answers[key] for key in self.record.asked if key in self.client_answers
        }
        self.record.answers |= self._new_answers
        self._unsolicited_answers = self.client_answers if pages is None else {}
        self._occurrences: Counter[str] = Counter()
        self._used_keys: set[str] = set()

    def answer(self, question: InputRequest, read: JSONReader[Any], name: str | None = None) -> Result:
        """Return the answer to a question. Raises Unanswered if there is none that can be read."""
        digest = _digest_question(question.method, bytes(question.params or b""))
        key = self._next_key(name or digest)
        answers, meant = self.record.answers, self.record.meant
        if name is not None:
            if meant.setdefault(key, digest) != digest:
                answers.pop(key, None)  # it answers another question, which had this name (MRTR-22)
            meant[key] = digest
        answer = answers.get(key) or self._unsolicited_answers.get(key)
        if answer is not None:
            try:
                result = read(answer)
            except InvalidJSONValue:
                answers.pop(key, None)  # asked again, as if nothing had been said (MRTR-16)
            else:
                answers[key] = answer
                return result
        self.open_questions[key] = question
        raise Unanswered("the question has no answer yet: the function ends here, and runs again with it")

    def begin_manual_questions(self, state: Raw | Unset) -> None:
        """Start an `InputRequired`: its questions are asked in any case, and its state comes back."""
        self._unsolicited_answers = {}
        self.record.by_hand, self.record.state = {}, state

    def look_up_step(self, name: str) -> tuple[str, Raw | None]:
        """Return the key of a step, and its value if it ran before."""
        key = self._next_key(_digest_question("step", name.encode()))
        return key, self.record.steps.get(key)

    def count_unused_answers(self) -> int:
        """Return how many new answers this run has not asked for."""
        return len(self._new_answers.keys() - self._used_keys)

    def record_step(self, key: str, name: str, value: Any) -> Raw:
        """Remember the value of a step. Raises LocalProtocolError if JSON cannot hold it."""
        try:
            written = Raw(jsonrpc.encode(value))
        except (LocalProtocolError, TypeError, ValueError) as error:
            text = error.message if isinstance(error, LocalProtocolError) else str(error)
            raise LocalProtocolError(
                f"the step {name!r} ran, but gave what cannot be kept: {text}"
            ) from error
        self.record.steps[key] = written
        return written

    def encode(self) -> bytes:
        """Return the journal as bytes, for when the client comes back."""
        asked = [key for key in self.open_questions if key not in self.record.by_hand]
        return jsonrpc.encode(replace(self.record, asked=asked, rounds=self.record.rounds + 1))

    def _next_key(self, name: str) -> str:
        """Return a key that this run has not used: the same question twice is two (MRTR-3)."""
        while True:
            self._occurrences[name] += 1
            times = self._occurrences[name]
            key = name if times == 1 else f"{name}-{times}"
            if key not in self._used_keys:
                self._used_keys.add(key)
                return key


def _digest_question(kind: str, words: bytes) -> str:
    """Return what a question or a step is known by."""
    from hashlib import sha256  # noqa: PLC0415 - start-up time

    return sha256(b"%b\0%b" % (kind.encode(), words)).hexdigest()[:KEY_LENGTH]


# --------------------------------------------------------------------- the run of a call

MAX_ROUNDS: Final = 100
"""How often one call may ask: more than any client goes along with, and a bound for an endless loop."""

STEP_SHUTDOWN_TIMEOUT: Final = 5.0
"""Seconds that steps get to end when their server does."""

logger: Final = logging.getLogger("toolpost.server")


class CallReplay:
    """What one request has asked and done before it ran again; in a session, only its steps.

    A step that was started is finished, even if a question beside it ends the run, or the client has gone.
    """

    __slots__ = ("_incoming", "_is_over", "_principal", "_running_steps", "_server", "loaded_journal")

    def __init__(self, server: "Handler", incoming: InboundRequest | None, principal: str | None) -> None:
        self._server = server
        self._incoming = incoming
        self._principal = principal
        self.loaded_journal: ReplayJournal | None = None
        self._running_steps: dict[str, asyncio.Task[Raw | BaseException]] = {}
        self._is_over = False

    @property
    def is_stateless(self) -> bool:
        """Whether the client is asked by a result."""
        incoming = self._incoming
        return incoming is not None and incoming.row.can_require_input and incoming.peer.revision.stateless

    async def load_journal(self) -> ReplayJournal:
        """Return the journal. Raises InvalidParams if what the client has brought is not ours."""
        if self.loaded_journal is None:
            incoming = self._incoming
            if self.is_stateless and incoming is not None:
                self.loaded_journal = await self._server.request_states.open(incoming, self._principal)
            else:
                self.loaded_journal = ReplayJournal()
        return self.loaded_journal

    async def get_answer(
        self, connection: Connection, method: str, params: WireStruct, key: str | None
    ) -> Result:
        """Return the client's answer to a question. Raises Unanswered if it was not asked before."""
        self._check_running()
        incoming = self._incoming
        assert incoming is not None, "outside of a request nothing can be asked in this era"
        asked = STATELESS_ERA.make_client_request(connection, incoming, method, params)
        journal = await self.load_journal()
        return journal.answer(asked, incoming.peer.revision.input_requests[method].results["complete"], key)

    def _check_running(self) -> None:
        """Raise if the function has ended with its questions: what still runs of it must do no more."""
        if self._is_over:
            raise Unanswered("the run that this belongs to is over; the function runs again from the top")

    # ----------------------------------------------------------------- steps

    def check_not_in_step(self, what: str = "ask") -> None:
        """Raise LocalProtocolError if a step of this call is the caller."""
        if _CURRENT_STEP_OWNER.get() is self:
            raise LocalProtocolError(
                f"a step cannot {what}: it runs once, and what it {what}s would not be remembered",
                hint="let the function do it, before the step or after",
            )

    async def step(self, name: str, fn: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """Return what a function returns, or returned when it ran before; `call` calls it."""
        key, written = await self._begin_step(name)
        if written is None:
            # In a task: a question beside it may end the function, but a step is finished and remembered.
            work = self._run_step(key, name, call, is_async=iscoroutinefunction(fn))
            task = asyncio.get_running_loop().create_task(work)
            self._server.running_steps.add(task)
            self._running_steps[name] = task
            task.add_done_callback(self._server.running_steps.discard)
            task.add_done_callback(lambda _: self._running_steps.pop(name))
            done = await asyncio.shield(task)
            if isinstance(done, BaseException):
                raise done
            written = done
        return _decode_step_value(name, written, fn)

    def step_in_thread(
        self, wait: Callable[[Any], Any], name: str, fn: Callable[..., Any], call: Callable[[], Any]
    ) -> Any:
        """Do the same for a function that runs in a thread; `wait` runs a coroutine on the loop."""
        key, written = wait(self._begin_step(name))
        if written is None:
            before = _CURRENT_STEP_OWNER.set(self)
            try:
                written = wait(self._record_step(key, name, call()))
            finally:
                _CURRENT_STEP_OWNER.reset(before)
        return _decode_step_value(name, written, fn)

    async def _begin_step(self, name: str) -> tuple[str, Raw | None]:
        """Return the key of a step, and its value if it ran before."""
        self._check_running()
        journal = await self.load_journal()
        self.check_not_in_step("run another")
        if name in self._running_steps:
            raise LocalProtocolError(
                f"two steps {name!r} run at once, and nobody could tell later which gave what",
                hint="give each a name of its own",
            )
        return journal.look_up_step(name)

    async def _run_step(
        self, key: str, name: str, call: Callable[[], Any], *, is_async: bool
    ) -> Raw | BaseException:
        """Return what a step returns, or raises: as a value, since some exceptions would end the loop."""
        _CURRENT_STEP_OWNER.set(self)
        try:
            value: Any = call() if is_async else await self._server.worker_threads.run_in_thread(call)
            return await self._record_step(key, name, value)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller of the step
            return error

    async def _record_step(self, key: str, name: str, value: Any) -> Raw:
        value = await value if isawaitable(value) else value
        return (await self.load_journal()).record_step(key, name, value)

    # ----------------------------------------------------------------- the end of a run

    async def build_input_required(self, method: str) -> InputRequiredResult:
        """Return the open questions, and the state that the client brings back with the answers."""
        while self._running_steps:
            await asyncio.wait(self._running_steps.values())
        self._is_over = True
        journal = await self.load_journal()
        if journal.record.rounds >= MAX_ROUNDS:
            raise InternalError(f"{method} has asked {MAX_ROUNDS} times, and still has no result")
        assert self._incoming is not None, "only a request can ask"
        # What is too much for one round is asked in the next.
        journal.open_questions = dict(islice(journal.open_questions.items(), MAX_INPUT_RESPONSES))
        if unused := journal.count_unused_answers():
            text = "%s: %d answers were not asked for again; a question has to be the same in each run"
            logger.info(text, method, unused)
        state = await self._server.request_states.seal(journal, self._incoming, self._principal)
        return InputRequiredResult(input_requests=journal.open_questions or None, request_state=state)

    def give_up(self) -> None:
        """Do no more: the request was cancelled. Steps that have begun are finished."""
        self._is_over = True


_CURRENT_STEP_OWNER: ContextVar[CallReplay | None] = ContextVar("_CURRENT_STEP_OWNER", default=None)
"""The call whose step runs here."""


async def finish_steps(steps: set["asyncio.Task[Any]"]) -> None:
    """Wait for the steps of a server that ends, `STEP_SHUTDOWN_TIMEOUT` at most, then cancel them."""
    loop = asyncio.get_running_loop()
    ours = {task for task in steps if task.get_loop() is loop}
    if ours:
        _, late = await asyncio.wait(ours, timeout=STEP_SHUTDOWN_TIMEOUT)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def _decode_step_value(name: str, written: Raw, fn: Callable[..., Any]) -> Any:
    """Return the value of a step as the type that its function declares, whether it was remembered or not."""
    try:
        kind = get_type_hints(fn).get("return", Any)
    except (TypeError, NameError):  # there is none, or it cannot be resolved
        kind = Any
    try:
        return msgspec.json.decode(written, type=kind)
    except (TypeError, msgspec.ValidationError) as error:
        raise LocalProtocolError(f"the step {name!r} gives something else than it says: {error}") from error


async def request_url_visits(context: "Context", wanted: UrlElicitationRequired) -> None:
    """Ask whether the user visits the URLs without which the request cannot be served.

    A user who has agreed before has not been there yet, or the URL would not be required: so ask again.
    Raises `wanted` if there is no URL, or if middleware always agrees.
    """
    asked = False
    for each in wanted.elicitations:
        try:
            for _ in range(MAX_ROUNDS):
                if not isinstance(await context.elicit_url(each["message"], each["url"]), Accepted):
                    raise UserRejected(f"The user does not want to visit the URL: {each['message']}")
                await asyncio.sleep(0)  # middleware may answer at once: let others run
        except Unanswered:
            asked = True
    if not asked:
        raise wanted
