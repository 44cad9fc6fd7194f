"""`InputRequired`: returned by a handler to ask questions with names, and to get a state back.

The explicit form of `ctx.elicit` and the like: how it is asked in each era, and what the handler finds when
it is called again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias, TypeVar

import msgspec

from toolpost import types
from toolpost.errors import CapabilityNotDeclared, InternalError
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import find_missing_capability
from toolpost.protocol.jsonrpc import InvalidJSONValue
from toolpost.protocol.methods import ELICITATION_CREATE, ROOTS_LIST, SAMPLING_CREATE_MESSAGE
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.protocol.revisions import Revision
from toolpost.server.elicitation.journal import MAX_ROUNDS, ManualQuestion, ReplayJournal
from toolpost.server.runtime.eager import Unanswered
from toolpost.types.base import JSON, UNSET, Raw, Result

if TYPE_CHECKING:
    from toolpost.server.context import Context

    QuestionParams: TypeAlias = types.ElicitParams | types.CreateMessageParams | types.ClientRequestParams


STATE_RETRY_DELAY: Final = 0.1
"""Seconds before a method is called again that asked nothing, but wants its state back."""
_QUESTION_METHODS: Final[dict[type, str]] = {
    types.ElicitParams: ELICITATION_CREATE,
    types.CreateMessageParams: SAMPLING_CREATE_MESSAGE,
    types.ClientRequestParams: ROOTS_LIST,
}

R = TypeVar("R")


class InputRequired:
    """Returned by a handler instead of its result: these questions have to be answered first.

    The method is then called again: it finds the answers in `ctx.input_responses`, and the state in
    `ctx.request_state`. In a session the client is asked at once, and the method is called again by the same
    request; a stateless client asks again with the answers, perhaps another worker, and what it carries is
    sealed.

    Args:
        questions: what to ask, by a name for each: the user, the model, or, by a plain
            `ClientRequestParams()`, which places are open.
        state: what to bring back: anything that JSON can hold.

    Raises:
        TypeError: one of the questions is none.
        ValueError: there is neither a question nor a state, or there are more questions than a client may
            answer at once.

    Examples:
        >>> asked = InputRequired({"name": ElicitParams(message="Who are you?")}, state={"tries": 1})
        >>> list(asked.questions)
        ['name']
    """

    __slots__ = ("questions", "state")

    def __init__(self, questions: "Mapping[str, QuestionParams] | None" = None, state: JSON = None) -> None:
        self.questions = {
            key: (_method_of_question(key, asked), asked) for key, asked in (questions or {}).items()
        }
        self.state = state
        if not self.questions and state is None:
            raise ValueError("there is neither a question nor a state: nothing would change the next time")
        if len(self.questions) > MAX_INPUT_RESPONSES:
            raise ValueError(
                f"a client may answer {MAX_INPUT_RESPONSES} questions at once, not {len(self.questions)}"
            )

    def __repr__(self) -> str:
        return f"InputRequired({', '.join(self.questions)})"


def _method_of_question(key: str, question: object) -> str:
    if type(question) not in _QUESTION_METHODS:
        raise TypeError(
            f"the question {key!r} is a {type(question).__name__}; it may be an ElicitParams, a "
            "CreateMessageParams, or a plain ClientRequestParams for the roots"
        )
    return _QUESTION_METHODS[type(question)]


def read_responses(journal: ReplayJournal, revision: Revision) -> Iterator[tuple[str, Result]]:
    """Yield the answers to an `InputRequired`, as far as they can be read (MRTR-13, MRTR-15)."""
    for key, asked in journal.record.by_hand.items():
        row = revision.input_requests.get(asked.method)
        answer = journal.client_answers.get(key) if asked.answer is UNSET else asked.answer
        if row is not None and answer is not None:
            with suppress(InvalidJSONValue):
                yield asked.name, row.results["complete"](answer)


def read_state(journal: ReplayJournal) -> JSON:
    """Return the state of the last `InputRequired`."""
    state = journal.record.state
    return None if state is UNSET else msgspec.json.decode(state)


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
    raise InternalError(f"{context.method} has asked {MAX_ROUNDS} times, and still has no result")


async def _ask_in_session(context: "Context", wanted: InputRequired) -> None:
    """Ask in a session, and keep the answers for the next call."""
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
        await asyncio.sleep(STATE_RETRY_DELAY)  # it wants to be called again, but hardly at once
    state = msgspec.json.decode(jsonrpc.encode(wanted.state))
    given = {key: await context.ask(method, params) for key, (method, params) in wanted.questions.items()}
    context.set_input_responses(given, state)


async def _record_questions(context: "Context", wanted: InputRequired) -> NoReturn:
    """Note the questions in the journal, where there is no session."""
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
    raise Unanswered("what was asked by hand has no answer yet")
