"""Requests of several rounds: the server asks for input, and gets the same request again with the answers.

Owns the rounds of the stateless era: their number, their time over all rounds, and the paused call as a value
that can be stored. Answering is left to `callbacks`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar, final

from msgspec import field
from msgspec.structs import replace

from toolpost import types
from toolpost.client.callbacks import Answer, Question, parse_questions
from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.retry import RETRY_SAFE_METHODS
from toolpost.client.options import check_mapping
from toolpost.errors import RemoteProtocolError, RequestTimeout
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import Row
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.types.base import JSON, Raw, Result, Struct, WireStruct

if TYPE_CHECKING:
    from toolpost.client.connection.session import ClientSession

MAX_ROUNDS: Final = 10  # how often a server may ask for input before a request fails
MIN_REPEAT_DELAY: Final = 0.1  # seconds before a request without questions is repeated; doubles each time
MAX_REPEAT_DELAY: Final = 5.0  # the longest of these delays, in seconds

_OBJECT: Final = JSONReader(dict[str, JSON])

R = TypeVar("R", bound=Result)


@final
class PausedCall(
    Struct, frozen=True, kw_only=True, tag_field="toolpost", tag="paused call 1", omit_defaults=True
):
    """A tool call that waits for answers; `client.resume(paused, answers)` continues it.

    It contains the arguments of the call and the server's state: protect it as you protect those.

    Attributes:
        name: the name of the tool.
        arguments: its arguments.
        questions: the questions of the server, by key.
        rounds: how often the server has asked so far.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... async def buy(ctx: Context) -> str:
        ...     answer = await ctx.elicit("How many?", int)
        ...     return f"{answer.data} pens"
        >>> with SyncClient(server) as mcp:
        ...     paused = mcp.begin_call("buy")
        ...     answers = {key: {"value": 3} for key in paused.questions}
        ...     mcp.resume(PausedCall.from_json(paused.to_json()), answers).text
        '3 pens'
    """

    name: str
    encoded_arguments: Raw = field(name="written")
    input_requests: dict[str, types.InputRequest] = field(name="asked")
    state: str | None = None
    rounds: int = 1
    spent: float = 0.0  # seconds that the server has taken so far
    meta: dict[str, JSON] | None = None
    capabilities: types.ClientCapabilities | None = None
    raise_on_error: bool = True
    validate: bool = True

    @property
    def arguments(self) -> dict[str, JSON]:
        """The arguments of the call."""
        return _OBJECT(self.encoded_arguments)

    @property
    def questions(self) -> dict[str, Question]:
        """The questions of the server, by key; `client.resume` takes an answer for each."""
        return parse_questions(self.input_requests)

    def to_json(self) -> str:
        """Return the call as a string for `from_json`, here or in another process."""
        return jsonrpc.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the call that `to_json` encoded.

        Raises:
            TypeError: `text` is not a string.
            ValueError: the string does not come from `to_json`.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise TypeError(f"a paused call must be a string, not {type(text).__name__}")
        try:
            paused = JSONReader(cls)(text.encode())
            whole = bool(paused.questions)
            _OBJECT(paused.encoded_arguments)
        except (ValueError, RemoteProtocolError) as error:
            raise ValueError(f"not a paused call: {error}") from error
        if not whole or paused.rounds < 1 or not paused.spent >= 0:
            raise ValueError("not a paused call: it has no questions, or invalid numbers")
        return paused

    def __repr__(self) -> str:
        return f"<PausedCall {self.name!r}: {', '.join(self.input_requests)}>"


InputCallback: TypeAlias = Callable[[PausedCall], Mapping[str, Answer] | Awaitable[Mapping[str, Answer]]]
"""Takes a paused call and returns the answers by key."""


class MultiRoundCall(Struct):
    """A request with its rounds of input. A struct, because one is made for every call."""

    session: "ClientSession"
    method: str | Row
    params: WireStruct | Mapping[str, JSON] | None  # with the answers and the state of the last round
    limits: CallLimits  # for each answer, and for all of them together
    meta: Mapping[str, JSON] | None = None
    party: LocalPeer | None = None  # the identity of the caller, if it is not that of the client
    retry: bool | None = None  # see `ClientSession.run_with_retry`
    rounds: int = 0  # how often the server has asked so far
    elapsed: float = 0.0  # seconds so far, without the time for answering
    began: float = 0.0  # when the request was sent last

    async def finish(self, kind: type[R]) -> R:
        """Answer the server's questions by callbacks until there is a result (MRTR-21 … MRTR-23)."""
        while isinstance(result := await self.settle(await self.send()), types.InputRequiredResult):
            await self.answer(result.request_state, parse_questions(result.input_requests or {}), {})
        assert isinstance(result, kind), "the row allows no other result"
        return result

    def send(self) -> Awaitable[Result]:
        """Send the request, which is awaited at once; `settle` takes the result."""
        method, retry, meta = self.method, self.retry, self.meta
        limits = self._remaining_limits() if self.elapsed else self.limits
        self.began = asyncio.get_running_loop().time()
        return self.session.run_with_retry(
            Dispatcher.request,
            limits,
            method,
            self.params,
            None if meta is None else check_mapping("meta", meta),
            self.party,
            safe=True if retry is None and method in RETRY_SAFE_METHODS else retry,
            started=self.began,
        )

    async def settle(self, result: Result) -> Result:
        """Return the final result, or one with questions; without any, repeat the request after a pause."""
        pause = MIN_REPEAT_DELAY
        while isinstance(result, types.InputRequiredResult):
            self.elapsed += asyncio.get_running_loop().time() - self.began
            self.rounds += 1
            if self.rounds > MAX_ROUNDS:
                raise RemoteProtocolError(
                    f"{self.method}: the server asked for input more than {MAX_ROUNDS} times"
                )
            if len(result.input_requests or ()) > MAX_INPUT_RESPONSES:
                raise RemoteProtocolError(
                    f"{self.method}: the server asked more than {MAX_INPUT_RESPONSES} questions at once"
                )
            if result.input_requests:
                return result
            self._remaining_limits(more=pause)
            await asyncio.sleep(pause)
            self.elapsed += pause
            pause = min(2 * pause, MAX_REPEAT_DELAY)
            self._set_answers(result.request_state, None)
            result = await self.send()
        resolve = self.session.result_resolvers.get(type(result))
        return result if resolve is None else await resolve(result)

    async def answer(
        self, state: str | None, questions: Mapping[str, Question], given: Mapping[str, Answer]
    ) -> None:
        """Answer the questions of a round from `given`, and else by the callbacks."""
        answers = await self.session.request_callbacks.answer_questions(
            questions, given, self.capabilities, self.session.last_connection.revision
        )
        self._set_answers(state, answers)

    def _set_answers(self, state: str | None, answers: dict[str, Raw] | None) -> None:
        """Set the state and the answers of this round, and of no other (MRTR-18, MRTR-20)."""
        assert isinstance(self.params, types.InputResponseParams), "the row requires it"
        self.params = copy(self.params)
        self.params.request_state = state
        self.params.input_responses = answers or None

    def _remaining_limits(self, more: float = 0.0) -> CallLimits:
        """Return what is left of the limits after `more` seconds. Raises `RequestTimeout` if nothing is."""
        timeout, cap = self.limits.timeout, self.limits.cap
        if timeout is None or cap is None:
            return self.limits
        left = cap - self.elapsed - more
        if left <= 0:
            raise RequestTimeout(f"no response to {self.method} within {cap:g} s")
        return replace(self.limits, timeout=min(timeout, left), cap=left)

    @property
    def capabilities(self) -> types.ClientCapabilities:
        """The capabilities that the request declares."""
        if self.party is None:
            return self.session.request_callbacks.capabilities
        assert isinstance(self.party.capabilities, types.ClientCapabilities), "we are a client"
        return self.party.capabilities
