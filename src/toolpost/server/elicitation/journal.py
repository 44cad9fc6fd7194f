"""The journal of one call without a session: what was asked, what was answered, what was done.

A function that asks finds its answer here, or leaves by `Unanswered` and runs again from the top when its
client has come back. A question is known by its kind, its words and how often it was asked, not by its place,
so that functions may ask side by side; a name of its own changes its key, not what it is. Knows neither seals
nor stores: what it holds goes out and comes back as bytes, and whoever carries them answers for them.

PART recall: A request that may ask before it answers: in the stateless era by returning its questions.

What its client brings back is opened first; a function that leaves with a question unanswered becomes a
result that wants input, and runs again from the top. In a session questions are requests, and only its steps
are kept here. What a journal holds is told in `journal`, how it travels in `states`.

PART steps: The steps of one call: functions that run once, however often the call does.

Owns those that are under way. One that has begun is finished, also when a question beside it ends the run, or
when the client has gone: half a payment helps nobody. Where values are remembered is told in `journal`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from inspect import isawaitable, iscoroutinefunction
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import msgspec

from toolpost.errors import InternalError, LocalProtocolError, UrlElicitationRequired, UserRejected
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import STATELESS_ERA
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.server.elicitation.forms import Accepted
from toolpost.server.runtime.eager import Unanswered
from toolpost.types.base import UNSET, Raw, Result, Struct, Unset, WireStruct
from toolpost.types.input_required import InputRequest, InputRequiredResult

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.handler import Handler

KEY_LENGTH: Final = 16
"""Letters of a key: no two questions of one call are the same by chance."""


class ManualQuestion(Struct):
    """A question that a function has put together itself; it has an answer if middleware had one."""

    name: str
    method: str
    answer: Raw | Unset = UNSET


class _JournalRecord(Struct):
    """What a journal holds, as it travels."""

    answers: dict[str, Raw]
    steps: dict[str, Raw]
    meant: dict[str, str]
    """What the questions with names of their own were, by key."""
    by_hand: dict[str, ManualQuestion]
    """The questions that a function has put together itself, by key."""
    asked: list[str]
    """The keys of the others that the client was asked last."""
    state: Raw | Unset = UNSET
    """What such a function wants back."""
    rounds: int = 0


_JOURNAL_READER: Final = JSONReader(_JournalRecord)


class ReplayJournal:
    """What one call has asked and done so far."""

    def __init__(self, pages: bytes | None = None, answers: Mapping[str, Raw] | None = None) -> None:
        written = _JOURNAL_READER(pages) if pages is not None else _JournalRecord({}, {}, {}, {}, [])
        self.rounds = written.rounds
        """How often the client has been asked."""
        self.open_questions: dict[str, InputRequest] = {}
        """The questions of this run that have no answer, by key."""
        self.manual_questions = written.by_hand
        """The questions that the function itself has put together, by key."""
        self.state = written.state
        """What such a function has wanted back."""
        self.client_answers = answers or {}
        """What the client has brought this time, by key: as it came."""
        self._answers = written.answers
        # What was answered counts, also if this run does not come so far as to ask.
        self._new_answers = {
            key: self.client_answers[key] for key in written.asked if key in self.client_answers
        }
        self._answers |= self._new_answers
        self._unsolicited_answers = self.client_answers if pages is None else {}
        self._steps = written.steps
        self._digests_by_key = written.meant
        self._occurrences: Counter[str] = Counter()
        self._used_keys: set[str] = set()

    def answer(self, question: InputRequest, read: JSONReader[Any], name: str | None = None) -> Result:
        """The answer to a question, if there is one that can be read."""
        digest = _digest_question(question.method, bytes(question.params or b""))
        key = self._next_key(name or digest)
        if name is not None and self._digests_by_key.get(key, digest) != digest:
            self._answers.pop(key, None)  # it answers another question, which had this name (MRTR-22)
        answer = self._answers.get(key) or self._unsolicited_answers.get(key)
        if name is not None:
            self._digests_by_key[key] = digest
        if answer is not None:
            try:
                result = read(answer)
            except InvalidJSONValue:
                self._answers.pop(key, None)  # asked again, as if nothing had been said (MRTR-16)
            else:
                self._answers[key] = answer
                return result
        self.open_questions[key] = question
        raise Unanswered("the question has no answer yet: the function ends here, and runs again with it")

    def begin_manual_questions(self, state: Raw | Unset) -> None:
        """Let what is asked from here on be asked in any case, and want a state back with the answers."""
        self._unsolicited_answers = {}
        self.manual_questions = {}
        self.state = state

    def look_up_step(self, name: str) -> tuple[str, Raw | None]:
        """The key of a step, and what it gave if it was done before."""
        key = self._next_key(_digest_question("step", name.encode()))
        return key, self._steps.get(key)

    @property
    def unused_keys(self) -> list[str]:
        """The keys of what the client was asked last and has answered, and nobody has asked in this run."""
        return [key for key in self._new_answers if key not in self._used_keys]

    def record_step(self, key: str, name: str, value: Any) -> Raw:
        """Remember what a step gave."""
        try:
            written = Raw(jsonrpc.encode(value))
        except (LocalProtocolError, TypeError, ValueError) as error:
            text = error.message if isinstance(error, LocalProtocolError) else str(error)
            raise LocalProtocolError(
                f"the step {name!r} ran, but gave what cannot be kept: {text}"
            ) from error
        self._steps[key] = written
        return written

    def encode(self) -> bytes:
        """What is to be there when the client comes back."""
        asked = [key for key in self.open_questions if key not in self.manual_questions]
        return jsonrpc.encode(
            _JournalRecord(
                self._answers,
                self._steps,
                self._digests_by_key,
                self.manual_questions,
                asked,
                self.state,
                self.rounds + 1,
            )
        )

    def _next_key(self, name: str) -> str:
        """A key that is not used yet in this run: the same question twice is two (MRTR-3)."""
        while True:
            self._occurrences[name] += 1
            times = self._occurrences[name]
            key = name if times == 1 else f"{name}-{times}"
            if key not in self._used_keys:
                self._used_keys.add(key)
                return key


def _digest_question(kind: str, words: bytes) -> str:
    """What a question or a step is known by."""
    from hashlib import sha256  # noqa: PLC0415 - 0.6 ms of every start

    return sha256(b"%b\0%b" % (kind.encode(), words)).hexdigest()[:KEY_LENGTH]


# --------------------------------------------------------------------- steps

STEP_SHUTDOWN_TIMEOUT: Final = 5.0
"""Seconds that steps get to end when their server does."""

_RUNNING_STEPS: ContextVar["Steps | None"] = ContextVar("_RUNNING_STEPS", default=None)
"""Whose step is running here."""


class Steps:
    """The steps of one call."""

    __slots__ = ("_running", "_server")

    def __init__(self, server: "Handler") -> None:
        self._server = server
        self._running: dict[str, asyncio.Task[Raw | BaseException]] = {}

    def check_not_in_step(self, what: str) -> None:
        """Return unless this is called by a step of the same call."""
        if _RUNNING_STEPS.get() is self:
            raise LocalProtocolError(
                f"a step cannot {what}: it runs once, and what it {what}s would not be remembered",
                hint="let the function do it, before the step or after",
            )

    async def run(
        self, journal: ReplayJournal, name: str, fn: Callable[..., Any], call: Callable[[], Any]
    ) -> Any:
        """What a function gives, or gave when it ran before; `call` calls it."""
        key, written = self.begin_step(journal, name)
        if written is None:
            # Whoever asks beside it may end the function; what has begun is done, and remembered.
            work = self._run_step(journal, key, name, call, is_async=iscoroutinefunction(fn))
            task = asyncio.get_running_loop().create_task(work)
            self._server.running_steps.add(task)
            self._running[name] = task
            task.add_done_callback(self._server.running_steps.discard)
            task.add_done_callback(lambda _: self._running.pop(name))
            done = await asyncio.shield(task)
            if isinstance(done, BaseException):
                raise done
            written = done
        return decode_step_value(name, written, fn)

    def call(self, call: Callable[[], Any], wait: Callable[[Awaitable[Any]], Any]) -> Any:
        """What a step gives that runs in the thread of the call; `wait` is for what has to be awaited."""
        before = _RUNNING_STEPS.set(self)
        try:
            value = call()
            return wait(value) if isawaitable(value) else value
        finally:
            _RUNNING_STEPS.reset(before)

    def begin_step(self, journal: ReplayJournal, name: str) -> tuple[str, Raw | None]:
        """The key of a step, and what it gave if it ran before."""
        self.check_not_in_step("run another")
        if name in self._running:
            raise LocalProtocolError(
                f"two steps {name!r} run at once, and nobody could tell later which gave what",
                hint="give each a name of its own",
            )
        return journal.look_up_step(name)

    async def _run_step(
        self, journal: ReplayJournal, key: str, name: str, call: Callable[[], Any], *, is_async: bool
    ) -> Raw | BaseException:
        """What a step gives, or raises: as a value, for some exceptions would end the loop with the task."""
        _RUNNING_STEPS.set(self)
        try:
            value: Any = call() if is_async else await self._server.worker_threads.run_in_thread(call)
            return journal.record_step(key, name, await value if isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the step
            return error

    async def settle(self) -> None:
        """Return when none is under way."""
        while self._running:
            await asyncio.wait(self._running.values())


async def finish_steps(steps: set["asyncio.Task[Any]"]) -> None:
    """Let the steps of a server that ends come to an end as well, for a while."""
    loop = asyncio.get_running_loop()
    ours = {task for task in steps if task.get_loop() is loop}
    if ours:
        _, late = await asyncio.wait(ours, timeout=STEP_SHUTDOWN_TIMEOUT)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def decode_step_value(name: str, written: Raw, fn: Callable[..., Any]) -> Any:
    """What a step gave: as the type that its function says it returns, be it remembered or not."""
    try:
        kind = get_type_hints(fn).get("return", Any)
    except (TypeError, NameError):  # nobody says, or nobody knows
        kind = Any
    try:
        return msgspec.json.decode(written, type=kind)
    except (TypeError, msgspec.ValidationError) as error:
        raise LocalProtocolError(f"the step {name!r} gives something else than it says: {error}") from error


# --------------------------------------------------------------------- recall

MAX_ROUNDS: Final = 100
"""How often one call may ask: more than any client goes along with, and a bound for what asks in a circle."""

logger: Final = logging.getLogger("toolpost.server")


class CallReplay:
    """What one request has asked and done before it ran again; in a session, what it does now."""

    __slots__ = ("_incoming", "_is_over", "_journal", "_principal", "_server", "_steps")

    def __init__(self, server: "Handler", incoming: InboundRequest | None, principal: str | None) -> None:
        self._server = server
        self._incoming = incoming
        self._principal = principal
        self._journal: ReplayJournal | None = None
        self._steps = Steps(server)
        self._is_over = False

    @property
    def is_stateless(self) -> bool:
        """Whether the client is asked by a result."""
        incoming = self._incoming
        return incoming is not None and incoming.row.can_require_input and incoming.peer.revision.stateless

    @property
    def loaded_journal(self) -> ReplayJournal | None:
        """What was asked and done before, if anybody has looked."""
        return self._journal

    async def load_journal(self) -> ReplayJournal:
        """What was asked and done before."""
        if self._journal is None:
            incoming = self._incoming
            if self.is_stateless and incoming is not None:
                self._journal = await self._server.request_states.open(incoming, self._principal)
            else:
                self._journal = ReplayJournal()
        return self._journal

    async def get_answer(
        self, connection: Connection, method: str, params: WireStruct, key: str | None
    ) -> Result:
        """What the client has answered to a question."""
        self._check_running()
        incoming = self._incoming
        assert incoming is not None, "outside of a request nothing can be asked in this era"
        asked = STATELESS_ERA.make_client_request(connection, incoming, method, params)
        journal = await self.load_journal()
        return journal.answer(asked, incoming.peer.revision.input_requests[method].results["complete"], key)

    def check_not_in_step(self) -> None:
        """Return unless a step asks."""
        self._steps.check_not_in_step("ask")

    # ----------------------------------------------------------------- steps

    async def step(self, name: str, fn: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """What a function gives, or gave when it ran before; `call` calls it."""
        self._check_running()
        return await self._steps.run(await self.load_journal(), name, fn, call)

    def step_in_thread(
        self, wait: Callable[[Any], Any], name: str, fn: Callable[..., Any], call: Callable[[], Any]
    ) -> Any:
        """The same for a function that runs in a thread; `wait` waits for what the loop has to do."""

        async def begin_step() -> tuple[str, Raw | None]:
            self._check_running()
            return self._steps.begin_step(await self.load_journal(), name)

        async def record_step(key: str, value: Any) -> Raw:
            return (await self.load_journal()).record_step(key, name, value)

        async def await_value(value: Awaitable[Any]) -> Any:
            return await value

        key, written = wait(begin_step())
        if written is None:
            written = wait(record_step(key, self._steps.call(call, lambda value: wait(await_value(value)))))
        return decode_step_value(name, written, fn)

    def _check_running(self) -> None:
        """Return unless the function has ended with its questions; what still runs of it must do no more."""
        if self._is_over:
            raise Unanswered("the run that this belongs to is over; the function runs again from the top")

    # ----------------------------------------------------------------- the end of a run

    async def build_input_required(self, method: str) -> InputRequiredResult:
        """The questions that have no answer, and what is to come back with the answers."""
        await self._steps.settle()
        self._is_over = True
        journal = await self.load_journal()
        if journal.rounds >= MAX_ROUNDS:
            raise InternalError(f"{method} has asked {MAX_ROUNDS} times, and still has no result")
        assert self._incoming is not None, "only a request can ask"
        # What is too much for one round is asked in the next.
        journal.open_questions = dict(islice(journal.open_questions.items(), MAX_INPUT_RESPONSES))
        if journal.unused_keys:
            logger.info(
                "%s: %d answers were not asked for again; a question has to be the same in each run",
                method,
                len(journal.unused_keys),
            )
        state = await self._server.request_states.seal(journal, self._incoming, self._principal)
        return InputRequiredResult(input_requests=journal.open_questions or None, request_state=state)

    def give_up(self) -> None:
        """Do no more: nobody waits for the answer. Steps that have begun are finished."""
        self._is_over = True


async def request_url_visits(context: "Context", wanted: UrlElicitationRequired) -> None:
    """Ask whether the user visits the URLs without which the request cannot be served.

    Whoever has agreed before was not there yet, or it would not be wanted again: they are asked once more.
    """
    asked = False
    for each in wanted.elicitations:
        try:
            for _ in range(MAX_ROUNDS):
                if not isinstance(await context.elicit_url(each["message"], each["url"]), Accepted):
                    raise UserRejected(f"The user does not want to visit the URL: {each['message']}")
                await asyncio.sleep(0)  # middleware may answer at once, and others want to be served
        except Unanswered:
            asked = True
    if not asked:
        raise wanted
