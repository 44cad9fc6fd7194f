"""A request, and all that the server wants to know before it has a result.

Owns the rounds of the stateless era: a wish for input, the answers, the same request with them; how many
there may be and how long the server may take over all of them; and the one more try of a call whose headers
were wrong. Who answers is told in `answer_questions`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Final, TypeVar

from toolpost.client.arguments import check_mapping
from toolpost.client.callbacks import Answer, RequestCallbacks
from toolpost.client.connection.pending import CallLimits, FirstAttempt
from toolpost.client.paused import PausedCall, Question, parse_questions
from toolpost.errors import HeaderMismatch, RemoteProtocolError, RequestTimeout
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.types.base import JSON, Raw, Result, Struct, WireStruct
from toolpost.types.initialize import ClientCapabilities
from toolpost.types.input_required import InputRequiredResult, InputResponseParams
from toolpost.types.tools import CallToolParams

if TYPE_CHECKING:
    from toolpost.client.connection.session import ClientSession

MAX_ROUNDS: Final = 10
"""How often a server may ask for input before a request has failed: a person answers only so much."""

MIN_REPEAT_DELAY: Final = 0.1
"""Seconds before a request is repeated for a server that has no question but wants it to come again. They
double each time: whoever sheds load wants it to come later."""

MAX_REPEAT_DELAY: Final = 5.0
"""Seconds that such a pause takes at most, so that a server that is ready is asked soon."""

R = TypeVar("R", bound=Result)


class MultiRoundCall(Struct):
    """A request on its way through the rounds.

    Args:
        method: what to ask.
        params: its parameters, with the answers and the state of the round before.
        limits: how long to wait for each answer, and for all of them together.
        meta: what to put into `_meta`.
        party: who asks, if that is not who the client is otherwise.
        retry: whether it may be sent twice; by default if it does no harm.
        rounds: how often the server has asked so far.
        elapsed: how many seconds it has taken so far. What a person or a model takes is not counted.
        first_attempt: what has come of the first try, if it was made already.
    """

    method: str
    params: WireStruct | None
    limits: CallLimits
    meta: Mapping[str, JSON] | None = None
    party: LocalPeer | None = None
    retry: bool | None = None
    rounds: int = 0
    elapsed: float = 0.0
    first_attempt: FirstAttempt[Result] | None = None

    def set_answers(self, state: str | None, answers: Mapping[str, Raw] | None) -> None:
        """Go on with the state and the answers of this round, and of no other (MRTR-18, MRTR-20)."""
        assert isinstance(self.params, InputResponseParams), "the row says so"
        self.params = copy(self.params)
        self.params.request_state = state
        self.params.input_responses = dict(answers) if answers else None

    def remaining_limits(self, more: float = 0.0) -> CallLimits:
        """What is left of the time.

        Args:
            more: seconds that will be waited before.

        Raises:
            RequestTimeout: nothing is left.
        """
        timeout, cap = self.limits.timeout, self.limits.cap
        if timeout is None or cap is None or not (self.elapsed or more):
            return self.limits
        left = cap - self.elapsed - more
        if left <= 0:
            raise RequestTimeout(f"{self.method} was not answered within {cap:.1f} s")
        return self.limits._replace(timeout=min(timeout, left), cap=left)


class MultiRoundRunner:
    """Requests that may take several rounds.

    Args:
        talk: the conversation.
        answers: what we answer.
    """

    def __init__(self, talk: "ClientSession", answers: RequestCallbacks) -> None:
        self._session = talk
        self._request_callbacks = answers

    async def request(
        self,
        kind: type[R],
        method: str,
        params: WireStruct | None,
        limits: CallLimits,
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
        trip = MultiRoundCall(method, params, limits, meta, retry=retry)
        while isinstance(result := await self.advance(trip), InputRequiredResult):
            await self.answer_questions(
                trip, result.request_state, parse_questions(result.input_requests or {}), {}
            )
        assert isinstance(result, kind), "the row says so"
        if plain is not None and not trip.rounds:
            plain(result)
        return result

    async def advance(self, trip: MultiRoundCall) -> Result:
        """What the server says: a result, or a wish for input with questions in it.

        A server that has no question and wants the request to come again gets it again, later and later.

        Raises:
            RemoteProtocolError: it has asked too often.
            RequestTimeout: it has taken too long, over all rounds.
        """
        pause, loop = MIN_REPEAT_DELAY, asyncio.get_running_loop()
        while True:
            limits = trip.remaining_limits() if trip.elapsed else trip.limits
            began, known = (
                (loop.time(), None)
                if trip.first_attempt is None
                else (trip.first_attempt.began, trip.first_attempt.known)
            )
            tool = trip.params.name if isinstance(trip.params, CallToolParams) else None
            if tool is not None and trip.first_attempt is None:
                known = self._session.reader.header_parameters.find(tool)
            try:
                result = await self._send(trip, limits, tool)
            except HeaderMismatch:
                # A tool whose headers have changed is called once more (HDR-28).
                if tool is None or not await self._session.reader.refresh_header_parameters(
                    tool, known, limits
                ):
                    raise
                result = await self._send(trip, limits, tool)
            if not isinstance(result, InputRequiredResult):
                return result
            trip.elapsed += loop.time() - began
            trip.rounds += 1
            if trip.rounds > MAX_ROUNDS:
                raise RemoteProtocolError(
                    f"{trip.method}: the server asked for input more than {MAX_ROUNDS} times"
                )
            if len(result.input_requests or ()) > MAX_INPUT_RESPONSES:
                raise RemoteProtocolError(
                    f"{trip.method}: the server asks more than {MAX_INPUT_RESPONSES} questions at once"
                )
            if result.input_requests:
                return result
            trip.remaining_limits(more=pause)
            await asyncio.sleep(pause)
            trip.elapsed += pause
            pause = min(2 * pause, MAX_REPEAT_DELAY)
            trip.set_answers(result.request_state, None)

    async def answer_questions(
        self,
        trip: MultiRoundCall,
        state: str | None,
        questions: Mapping[str, Question],
        given: Mapping[str, Answer],
    ) -> None:
        """Have the questions of a round answered: by what is given, and else by the callbacks."""
        revision = self._session.last_connection.revision
        trip.set_answers(
            state,
            await self._request_callbacks.answer_questions(
                questions, given, self.declared_capabilities(trip), revision
            ),
        )

    def check_questions(self, trip: MultiRoundCall, questions: Mapping[str, Question]) -> None:
        """Return if the server may ask this.

        Raises:
            RemoteProtocolError: it may not.
        """
        self._request_callbacks.check_questions(questions, self.declared_capabilities(trip))

    async def call_input_callback(
        self,
        callback: Callable[[PausedCall], Mapping[str, Answer] | Awaitable[Mapping[str, Answer]]],
        paused: PausedCall,
    ) -> dict[str, Answer]:
        """The answers of a callback that is given a whole round.

        Raises:
            TypeError: it returned no answers.
        """
        return check_mapping("on_input", await self._request_callbacks.run_callback(callback, paused))

    def declared_capabilities(self, trip: MultiRoundCall) -> ClientCapabilities:
        """What the request declares."""
        capabilities = self._request_callbacks.capabilities if trip.party is None else trip.party.capabilities
        assert isinstance(capabilities, ClientCapabilities), "we are a client"
        return capabilities

    def _send(self, trip: MultiRoundCall, limits: CallLimits, tool: str | None) -> Awaitable[Result]:
        """The answer to a request; a tool that is known to do no harm may be called twice."""
        talk, safe = self._session, trip.retry
        if safe is None and tool in talk.reader.retry_safe_tools:
            safe = True
        tried, trip.first_attempt = trip.first_attempt, None
        return talk.request(trip.method, trip.params, limits, trip.meta, trip.party, safe=safe, tried=tried)
