"""A request, and all that the server wants to know before it has a result.

Owns the rounds of the stateless era: a wish for input, the answers, the same request with them; how many
there may be and how long the server may take over all of them; and the one more try of a call whose headers
were wrong. Who answers is told in `answer`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Final, TypeVar

from toolpost.client.answer import Answer, Answers
from toolpost.client.call import Limits, Tried
from toolpost.client.door import named
from toolpost.client.paused import Paused, Question, questions_of
from toolpost.errors import HeaderMismatch, RemoteProtocolError, RequestTimeout
from toolpost.protocol.inbox import MAX_ANSWERS
from toolpost.protocol.party import Party
from toolpost.types.base import JSON, Raw, Result, Struct, Wire
from toolpost.types.inputs import AnswerParams, InputRequiredResult
from toolpost.types.lifecycle import ClientCapabilities
from toolpost.types.tools import CallToolParams

if TYPE_CHECKING:
    from toolpost.client.conversation import Conversation

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "MAX_ROUNDS", "Rounds", "Trip"]

MAX_ROUNDS: Final = 10
"""How often a server may ask for input before a request has failed: a person answers only so much."""

FIRST_PAUSE: Final = 0.1
"""Seconds before a request is repeated for a server that has no question but wants it to come again. They
double each time: whoever sheds load wants it to come later."""

LONGEST_PAUSE: Final = 5.0
"""Seconds that such a pause takes at most, so that a server that is ready is asked soon."""

R = TypeVar("R", bound=Result)


class Trip(Struct):
    """A request on its way through the rounds.

    Args:
        method: what to ask.
        params: its parameters, with the answers and the state of the round before.
        limits: how long to wait for each answer, and for all of them together.
        meta: what to put into `_meta`.
        party: who asks, if that is not who the client is otherwise.
        retry: whether it may be sent twice; by default if it does no harm.
        rounds: how often the server has asked so far.
        spent: how many seconds it has taken so far. What a person or a model takes is not counted.
        tried: what has come of the first try, if it was made already.
    """

    method: str
    params: Wire | None
    limits: Limits
    meta: Mapping[str, JSON] | None = None
    party: Party | None = None
    retry: bool | None = None
    rounds: int = 0
    spent: float = 0.0
    tried: Tried[Result] | None = None

    def carry(self, state: str | None, answers: Mapping[str, Raw] | None) -> None:
        """Go on with the state and the answers of this round, and of no other (MRTR-18, MRTR-20)."""
        assert isinstance(self.params, AnswerParams), "the row says so"
        self.params = copy(self.params)
        self.params.request_state = state
        self.params.input_responses = dict(answers) if answers else None

    def limits_now(self, more: float = 0.0) -> Limits:
        """What is left of the time.

        Args:
            more: seconds that will be waited before.

        Raises:
            RequestTimeout: nothing is left.
        """
        timeout, cap = self.limits.timeout, self.limits.cap
        if timeout is None or cap is None or not (self.spent or more):
            return self.limits
        left = cap - self.spent - more
        if left <= 0:
            raise RequestTimeout(f"{self.method} was not answered within {cap:.1f} s")
        return self.limits._replace(timeout=min(timeout, left), cap=left)


class Rounds:
    """Requests that may take several rounds.

    Args:
        talk: the conversation.
        answers: what we answer.
    """

    def __init__(self, talk: "Conversation", answers: Answers) -> None:
        self._talk = talk
        self._answers = answers

    async def ask(
        self,
        kind: type[R],
        method: str,
        params: Wire | None,
        limits: Limits,
        meta: Mapping[str, JSON] | None = None,
        *,
        retry: bool | None = None,
        plain: Callable[[R], object] | None = None,
    ) -> R:
        """The answer to a request, after all that the server wants to know first (MRTR-21 … MRTR-23).

        Args:
            kind: what the answer is.
            method: what to ask.
            params: its parameters.
            limits: how long to wait for each answer, and for all of them together.
            meta: what to put into `_meta`.
            retry: whether it may be sent twice; by default if it does no harm.
            plain: is given the answer, if the server wanted to know nothing first.
        """
        trip = Trip(method, params, limits, meta, retry=retry)
        while isinstance(result := await self.go(trip), InputRequiredResult):
            await self.answer(trip, result.request_state, questions_of(result.input_requests or {}), {})
        assert isinstance(result, kind), "the row says so"
        if plain is not None and not trip.rounds:
            plain(result)
        return result

    async def go(self, trip: Trip) -> Result:
        """What the server says: a result, or a wish for input with questions in it.

        A server that has no question and wants the request to come again gets it again, later and later.

        Raises:
            RemoteProtocolError: it has asked too often.
            RequestTimeout: it has taken too long, over all rounds.
        """
        pause, loop = FIRST_PAUSE, asyncio.get_running_loop()
        while True:
            limits = trip.limits_now() if trip.spent else trip.limits
            began, known = (loop.time(), None) if trip.tried is None else (trip.tried.began, trip.tried.known)
            tool = trip.params.name if isinstance(trip.params, CallToolParams) else None
            if tool is not None and trip.tried is None:
                known = self._talk.reading.mirrors.of(tool)
            try:
                result = await self._send(trip, limits, tool)
            except HeaderMismatch:
                # A tool whose headers have changed is called once more (HDR-28).
                if tool is None or not await self._talk.reading.relearn(tool, known, limits):
                    raise
                result = await self._send(trip, limits, tool)
            if not isinstance(result, InputRequiredResult):
                return result
            trip.spent += loop.time() - began
            trip.rounds += 1
            if trip.rounds > MAX_ROUNDS:
                raise RemoteProtocolError(
                    f"{trip.method}: the server asked for input more than {MAX_ROUNDS} times"
                )
            if len(result.input_requests or ()) > MAX_ANSWERS:
                raise RemoteProtocolError(
                    f"{trip.method}: the server asks more than {MAX_ANSWERS} questions at once"
                )
            if result.input_requests:
                return result
            trip.limits_now(more=pause)
            await asyncio.sleep(pause)
            trip.spent += pause
            pause = min(2 * pause, LONGEST_PAUSE)
            trip.carry(result.request_state, None)

    async def answer(
        self, trip: Trip, state: str | None, questions: Mapping[str, Question], given: Mapping[str, Answer]
    ) -> None:
        """Have the questions of a round answered: by what is given, and else by the callbacks."""
        revision = self._talk.opened.revision
        trip.carry(state, await self._answers.respond(questions, given, self.declared(trip), revision))

    def check(self, trip: Trip, questions: Mapping[str, Question]) -> None:
        """Return if the server may ask this.

        Raises:
            RemoteProtocolError: it may not.
        """
        self._answers.check(questions, self.declared(trip))

    async def consult(
        self,
        callback: Callable[[Paused], Mapping[str, Answer] | Awaitable[Mapping[str, Answer]]],
        paused: Paused,
    ) -> dict[str, Answer]:
        """The answers of a callback that is given a whole round.

        Raises:
            TypeError: it returned no answers.
        """
        return named("on_input", await self._answers.call(callback, paused))

    def declared(self, trip: Trip) -> ClientCapabilities:
        """What the request declares."""
        capabilities = self._answers.capabilities if trip.party is None else trip.party.capabilities
        assert isinstance(capabilities, ClientCapabilities), "we are a client"
        return capabilities

    def _send(self, trip: Trip, limits: Limits, tool: str | None) -> Awaitable[Result]:
        """The answer to a request; a tool that is known to do no harm may be called twice."""
        talk, safe = self._talk, trip.retry
        if safe is None and tool in talk.reading.harmless:
            safe = True
        tried, trip.tried = trip.tried, None
        return talk.request(trip.method, trip.params, limits, trip.meta, trip.party, safe=safe, tried=tried)
