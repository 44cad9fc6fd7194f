"""A request that may ask before it answers, in the stateless era: by returning its questions.

What its client brings back is opened first; a function that leaves with a question unanswered becomes a
result that wants input, and runs again from the top. In a session nothing of this is needed: questions are
requests there. What a journal holds is told in `journal`, how it travels in `states`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, get_type_hints

import msgspec

from toolpost.errors import InternalError, LocalProtocolError, UrlElicitationRequired, UserRejected
from toolpost.protocol import jsonrpc
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import STATELESS
from toolpost.protocol.events import Incoming
from toolpost.protocol.jsonrpc import Unfit
from toolpost.protocol.revisions import Revision
from toolpost.server.forms import Accepted
from toolpost.server.inputs import InputRequired
from toolpost.server.journal import Journal, Unanswered, is_unanswered
from toolpost.types.base import JSON, UNSET, Raw, Result, Wire
from toolpost.types.inputs import AnswerParams, InputRequiredResult

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.dispatch import Answer, Route
    from toolpost.server.handler import Handler

__all__ = ["MAX_ROUNDS", "Recall", "ask_and_answer"]

MAX_ROUNDS: Final = 100
"""How often one call may ask: more than any client goes along with, and a bound for what asks in a circle."""


STATE_PAUSE: Final = 0.1
"""Seconds before a method is called again in a session that asked nothing, but wants its state back."""

R = TypeVar("R")


class Recall:
    """What one request has asked and done before it ran again; in a session, what it does now.

    Args:
        server: who serves it.
        incoming: the request.
        principal: on whose behalf its client speaks.
    """

    __slots__ = (
        "_incoming",
        "_journal",
        "_over",
        "_principal",
        "_server",
        "_steps",
        "responses",
        "state",
    )

    def __init__(self, server: "Handler", incoming: Incoming | None, principal: str | None) -> None:
        self._server = server
        self._incoming = incoming
        self._principal = principal
        self._journal: Journal | None = None
        self._steps: set[asyncio.Task[Raw | BaseException]] = set()
        self._over = False
        self.responses: Mapping[str, Result] = {}
        """What the client has answered to questions that were asked by hand, by key."""
        self.state: JSON = None
        """What was to be brought back with these answers."""

    @property
    def _stateless(self) -> bool:
        """Whether the client is asked by a result."""
        incoming = self._incoming
        return incoming is not None and incoming.row.asks and incoming.peer.revision.stateless

    async def journal(self) -> Journal:
        """What was asked and done before.

        Raises:
            InvalidParams: what the client has brought is not ours.
        """
        if self._journal is None:
            incoming = self._incoming
            if self._stateless and incoming is not None:
                self._journal = journal = await self._server.states.open(incoming, self._principal)
                self.state = None if journal.state is UNSET else msgspec.json.decode(journal.state)
                self.responses = dict(_responses(journal, incoming.peer.revision))
            else:
                self._journal = Journal()
        return self._journal

    async def answer(self, connection: Connection, method: str, params: Wire, key: str | None) -> Result:
        """What the client has answered to a question.

        Raises:
            MissingCapability: it did not declare what the question needs.
            LocalProtocolError: the request may not ask.
            Unanswered: it was not asked before.
        """
        self._check_going_on()
        incoming = self._incoming
        assert incoming is not None, "outside of a request nothing can be asked in this era"
        asked = STATELESS.ask(connection, incoming, method, params)
        journal = await self.journal()
        return journal.answer(asked, incoming.peer.revision.asks[method].results["complete"], key)

    async def settled(self, context: "Context", serve: Callable[[], Awaitable[R | InputRequired]]) -> R:
        """What a handler's method gives that may ask by hand, once it has all answers.

        Raises:
            Unanswered: the questions go to the client, which comes back with the answers.
        """
        for _ in range(MAX_ROUNDS):
            value = await serve()
            if not isinstance(value, InputRequired):
                return value
            if self._stateless:
                await self._put(context, value)
            else:
                if not value.questions:
                    await asyncio.sleep(STATE_PAUSE)  # it wants to be called again, but hardly at once
                self.responses = {
                    key: await context.ask(method, params)
                    for key, (method, params) in value.questions.items()
                }
                self.state = value.state
        raise InternalError(f"{context.method} has asked {MAX_ROUNDS} times, and still has no result")

    async def _put(self, context: "Context", wanted: InputRequired) -> NoReturn:
        """Note what a method asks by hand."""
        journal = await self.journal()
        journal.put_by_hand(UNSET if wanted.state is None else Raw(jsonrpc.encode(wanted.state)))
        for key, (method, params) in wanted.questions.items():
            try:
                await context.ask(method, params, key=key)
            except Unanswered:
                journal.by_hand[key] = method
        raise Unanswered

    async def step(self, name: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a function gives, or gave when it ran before.

        Raises:
            LocalProtocolError: it gives nothing that JSON can hold, or something else than it says.
        """
        self._check_going_on()
        journal = await self.journal()
        key, written = journal.done(name)
        if written is None:
            # Whoever asks beside it may end the function; what has begun is done, and remembered.
            task = asyncio.get_running_loop().create_task(self._do(journal, key, fn, args, kwargs))
            self._steps.add(task)
            task.add_done_callback(self._steps.discard)
            done = await asyncio.shield(task)
            if isinstance(done, BaseException):
                raise done
            written = done
        return _read_again(name, written, fn)

    async def _do(
        self, journal: Journal, key: str, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Raw | BaseException:
        """What a step gives, or raises: as a value, for some exceptions would end the loop with the task."""
        try:
            if iscoroutinefunction(fn):
                value: Any = await fn(*args, **kwargs)
            else:
                value = await self._server.work.in_thread(lambda: fn(*args, **kwargs))
            return journal.note(key, await value if isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the step
            return error

    def _check_going_on(self) -> None:
        """Return unless the function has ended with its questions; what still runs of it must do no more."""
        if self._over:
            raise Unanswered

    async def interim(self, method: str) -> InputRequiredResult:
        """The questions that have no answer, and what is to come back with the answers."""
        while self._steps:
            await asyncio.wait(self._steps)
        self._over = True
        journal = await self.journal()
        if journal.rounds >= MAX_ROUNDS:
            raise InternalError(f"{method} has asked {MAX_ROUNDS} times, and still has no result")
        assert self._incoming is not None, "only a request can ask"
        state = await self._server.states.seal(journal, self._incoming, self._principal)
        return InputRequiredResult(input_requests=journal.asked or None, request_state=state)

    def give_up(self) -> None:
        """Do no more: nobody waits for the answer."""
        self._over = True
        for step in self._steps:
            step.cancel()


async def ask_and_answer(route: "Route", context: "Context", params: AnswerParams) -> "Answer":
    """The answer of a route, or what it has to know first."""
    if params.request_state is not None or params.input_responses:
        await context.recall.journal()  # what is brought back is looked at, whether it is needed or not
    try:
        value: Any = route(context, params)
        return await value if isawaitable(value) else value
    except UrlElicitationRequired as error:
        wanted = error
    except BaseException as error:
        if not is_unanswered(error):
            context.recall.give_up()
            raise
        wanted = None
    try:
        if wanted is not None:
            await _visit(context, wanted)
        return await context.recall.interim(context.method)
    except BaseException:  # nobody waits any more, not even for the questions
        context.recall.give_up()
        raise


async def _visit(context: "Context", wanted: UrlElicitationRequired) -> None:
    """Ask whether the user visits the URLs without which the request cannot be served.

    Whoever has agreed before was not there yet, or it would not be wanted again: they are asked once more.

    Raises:
        UserRejected: the user does not want to.
        MissingCapability: the client cannot show them.
        UrlElicitationRequired: it names none, and has to do as it is.
    """
    if not wanted.elicitations:
        raise wanted
    for each in wanted.elicitations:
        try:
            while isinstance(await context.elicit_url(each["message"], each["url"]), Accepted):
                pass
        except Unanswered:
            continue
        raise UserRejected(f"The user does not want to visit the URL: {each['message']}")


def _responses(journal: Journal, revision: Revision) -> Iterator[tuple[str, Result]]:
    """The answers to what was asked by hand, as far as they can be read (MRTR-13, MRTR-15)."""
    for key, method in journal.by_hand.items():
        row, answer = revision.asks.get(method), journal.brought.get(key)
        if row is not None and answer is not None:
            with suppress(Unfit):
                yield key, row.results["complete"](answer)


def _read_again(name: str, written: Raw, fn: Callable[..., Any]) -> Any:
    """What a step gave: as the type that its function says it returns, be it remembered or not."""
    try:
        kind = get_type_hints(fn).get("return", Any)
    except (TypeError, NameError):  # nobody says, or nobody knows
        kind = Any
    try:
        return msgspec.json.decode(written, type=kind)
    except (TypeError, msgspec.ValidationError) as error:
        raise LocalProtocolError(f"the step {name!r} gives something else than it says: {error}") from error
