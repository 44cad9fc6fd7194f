"""A request, and all that the server wants to know before it has a result.

Owns the rounds of the stateless era: a wish for input, the answers, the same request with them; and the one
more try of a call whose headers were wrong. Who answers is told in `answer`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from toolpost.client.answer import Answers
from toolpost.client.call import Limits
from toolpost.errors import HeaderMismatch, RemoteProtocolError
from toolpost.types.base import JSON, Result, Wire
from toolpost.types.inputs import AnswerParams, InputRequiredResult
from toolpost.types.tools import CallToolParams

if TYPE_CHECKING:
    from toolpost.client.conversation import Conversation

__all__ = ["MAX_ROUNDS", "Rounds"]

MAX_ROUNDS: Final = 10
"""How often a server may ask for input before a request has failed: a person answers only so much."""

R = TypeVar("R", bound=Result)


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
        plain: Callable[[R], object] | None = None,
    ) -> R:
        """The answer to a request, after all that the server wants to know first (MRTR-21 … MRTR-23).

        Args:
            kind: what the answer is.
            method: what to ask.
            params: its parameters.
            limits: how long to wait for each answer.
            meta: what to put into `_meta`.
            plain: is given the answer, if the server wanted to know nothing first.
        """
        for number in range(MAX_ROUNDS):
            result = await self._once(method, params, limits, meta)
            if not isinstance(result, InputRequiredResult):
                assert isinstance(result, kind), "the row says so"
                if plain is not None and not number:
                    plain(result)
                return result
            assert isinstance(params, AnswerParams), "the row says so"
            params = await self._answers.retry(params, result, self._talk.opened.revision)
        raise RemoteProtocolError(
            f"{method}: the server asked for input {MAX_ROUNDS} times and has no result"
        )

    async def _once(
        self, method: str, params: Wire | None, limits: Limits, meta: Mapping[str, JSON] | None
    ) -> Result:
        """The answer to a request; a tool whose headers have changed is called once more (HDR-28)."""
        if not isinstance(params, CallToolParams):
            return await self._talk.request(method, params, limits, meta)
        known = self._talk.reading.mirrors.of(params.name)
        try:
            return await self._talk.request(method, params, limits, meta)
        except HeaderMismatch:
            if not await self._talk.reading.relearn(params.name, known, limits):
                raise
        return await self._talk.request(method, params, limits, meta)
