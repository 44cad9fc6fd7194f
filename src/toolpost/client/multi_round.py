"""Requests of several rounds: the server asks for input, and gets the same request again with the answers.

Owns the rounds of the stateless era: their number, their time over all rounds, the paused call as a value
that can be stored, and the one repetition of a call whose headers were wrong. Answering is left to
`callbacks`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

from msgspec import field

from toolpost.client.callbacks import Answer, Question, RequestCallbacks, parse_questions
from toolpost.client.connection.pending import CallLimits
from toolpost.client.options import check_mapping
from toolpost.errors import HeaderMismatch, RemoteProtocolError, RequestTimeout
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.receive import MAX_INPUT_RESPONSES
from toolpost.types.base import (
    JSON,
    InputRequest,
    InputRequiredResult,
    InputResponseParams,
    Raw,
    Result,
    Struct,
    WireStruct,
)
from toolpost.types.initialize import ClientCapabilities
from toolpost.types.tools import CallToolParams

if TYPE_CHECKING:
    from toolpost.client.connection.session import ClientSession

MAX_ROUNDS: Final = 10
"""How often a server may ask for input before a request fails."""

MIN_REPEAT_DELAY: Final = 0.1
"""Seconds before a request is repeated for a server that asks nothing but wants it again; they double."""

MAX_REPEAT_DELAY: Final = 5.0
"""Seconds that such a pause takes at most."""

_OBJECT: Final = JSONReader(dict[str, JSON])

R = TypeVar("R", bound=Result)


class PausedCall(
    Struct, frozen=True, kw_only=True, tag_field="toolpost", tag="paused call 1", omit_defaults=True
):
    """A call of a tool that waits for answers; `client.resume(paused, answers)` goes on with it.

    It holds the arguments of the call and the server's state: keep it as safe as those.

    Attributes:
        name: the tool.
        arguments: what it was called with.
        questions: what the server wants to know, by key.
        rounds: how often it has asked, this time included.

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
    input_requests: dict[str, InputRequest] = field(name="asked")
    state: str | None = None
    rounds: int = 1
    spent: float = 0.0
    """How many seconds the server has taken so far."""
    meta: dict[str, JSON] | None = None
    capabilities: ClientCapabilities | None = None
    raise_on_error: bool = True
    validate: bool = True

    @property
    def arguments(self) -> dict[str, JSON]:
        """What the tool was called with."""
        return _OBJECT(self.encoded_arguments)

    @property
    def questions(self) -> dict[str, Question]:
        """What the server wants to know, by key; `client.resume` takes an answer for each."""
        return parse_questions(self.input_requests)

    def to_json(self) -> str:
        """The call as a text that `from_json` reads, here or in another process."""
        return jsonrpc.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The call that `to_json` wrote.

        Raises:
            TypeError: it is no text.
            ValueError: the text is nothing that `to_json` writes.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise TypeError(f"a paused call is read from a text, not from a {type(text).__name__}")
        try:
            paused = JSONReader(cls)(text.encode())
            whole = bool(paused.questions)
            _OBJECT(paused.encoded_arguments)
        except (ValueError, RemoteProtocolError) as error:
            raise ValueError(f"this is no paused call: {error}") from error
        if not whole or paused.rounds < 1 or not paused.spent >= 0:
            raise ValueError("this is no paused call: it has no question, or numbers that cannot be")
        return paused

    def __repr__(self) -> str:
        return f"<PausedCall of {self.name!r}: {', '.join(self.input_requests)}>"


InputCallback: TypeAlias = Callable[[PausedCall], Mapping[str, Answer] | Awaitable[Mapping[str, Answer]]]
"""Is given what a call waits for, and returns the answers by key."""


class MultiRoundCall(Struct):
    """A request on its way through the rounds.

    Args:
        params: the parameters, with the answers and the state of the last round.
        limits: for each answer, and for all of them together.
        party: the identity of the caller, if it is not that of the client.
        rounds: how often the server has asked so far.
        elapsed: seconds that it has taken so far, without the time for answering.
    """

    method: str
    params: WireStruct | None
    limits: CallLimits
    meta: Mapping[str, JSON] | None = None
    party: LocalPeer | None = None
    retry: bool | None = None
    rounds: int = 0
    elapsed: float = 0.0

    def set_answers(self, state: str | None, answers: Mapping[str, Raw] | None) -> None:
        """Set the state and the answers of this round, and of no other (MRTR-18, MRTR-20)."""
        assert isinstance(self.params, InputResponseParams), "the row says so"
        self.params = copy(self.params)
        self.params.request_state = state
        self.params.input_responses = dict(answers) if answers else None

    def remaining_limits(self, more: float = 0.0) -> CallLimits:
        """Return what is left of the limits after `more` seconds. Raises `RequestTimeout` if nothing is."""
        timeout, cap = self.limits.timeout, self.limits.cap
        if timeout is None or cap is None or not (self.elapsed or more):
            return self.limits
        left = cap - self.elapsed - more
        if left <= 0:
            raise RequestTimeout(f"{self.method} was not answered within {cap:.1f} s")
        return self.limits._replace(timeout=min(timeout, left), cap=left)


class MultiRoundRunner:
    """Runs requests that may take several rounds."""

    def __init__(self, session: "ClientSession", answers: RequestCallbacks) -> None:
        self._session = session
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
        """Send a request and answer the server's questions until there is a result (MRTR-21 … MRTR-23).

        `plain` is called with the result if the server asked nothing.
        """
        call = MultiRoundCall(method, params, limits, meta, retry=retry)
        while isinstance(result := await self.advance(call), InputRequiredResult):
            await self.answer_questions(
                call, result.request_state, parse_questions(result.input_requests or {}), {}
            )
        assert isinstance(result, kind), "the row says so"
        if plain is not None and not call.rounds:
            plain(result)
        return result

    async def advance(self, call: MultiRoundCall) -> Result:
        """Send a request; return a result, or an input-required result with questions.

        If the server has no question but wants the request again, it is repeated with growing pauses.
        """
        pause, loop = MIN_REPEAT_DELAY, asyncio.get_running_loop()
        request, reader = self._session.request, self._session.reader
        while True:
            limits = call.remaining_limits() if call.elapsed else call.limits
            tool = call.params.name if isinstance(call.params, CallToolParams) else None
            began, known = loop.time(), None if tool is None else reader.header_parameters.find(tool)
            retry = True if call.retry is None and tool in reader.retry_safe_tools else call.retry
            try:
                result = await request(call.method, call.params, limits, call.meta, call.party, retry=retry)
            except HeaderMismatch:
                # A tool whose headers have changed is called once more (HDR-28).
                if tool is None or not await reader.refresh_header_parameters(tool, known, limits):
                    raise
                result = await request(call.method, call.params, limits, call.meta, call.party, retry=retry)
            if not isinstance(result, InputRequiredResult):
                return result
            call.elapsed += loop.time() - began
            call.rounds += 1
            if call.rounds > MAX_ROUNDS:
                raise RemoteProtocolError(
                    f"{call.method}: the server asked for input more than {MAX_ROUNDS} times"
                )
            if len(result.input_requests or ()) > MAX_INPUT_RESPONSES:
                raise RemoteProtocolError(
                    f"{call.method}: the server asks more than {MAX_INPUT_RESPONSES} questions at once"
                )
            if result.input_requests:
                return result
            call.remaining_limits(more=pause)
            await asyncio.sleep(pause)
            call.elapsed += pause
            pause = min(2 * pause, MAX_REPEAT_DELAY)
            call.set_answers(result.request_state, None)

    async def answer_questions(
        self,
        call: MultiRoundCall,
        state: str | None,
        questions: Mapping[str, Question],
        given: Mapping[str, Answer],
    ) -> None:
        """Answer the questions of a round from `given`, and else by the callbacks."""
        revision = self._session.last_connection.revision
        call.set_answers(
            state,
            await self._request_callbacks.answer_questions(
                questions, given, self.declared_capabilities(call), revision
            ),
        )

    def check_questions(self, call: MultiRoundCall, questions: Mapping[str, Question]) -> None:
        """Raise `RemoteProtocolError` if the server may not ask this."""
        self._request_callbacks.check_questions(questions, self.declared_capabilities(call))

    async def call_input_callback(self, callback: InputCallback, paused: PausedCall) -> dict[str, Answer]:
        """Return the answers of an `on_input` callback."""
        return check_mapping("on_input", await self._request_callbacks.run_callback(callback, paused))

    def declared_capabilities(self, call: MultiRoundCall) -> ClientCapabilities:
        """Return the capabilities that the request declares."""
        capabilities = self._request_callbacks.capabilities if call.party is None else call.party.capabilities
        assert isinstance(capabilities, ClientCapabilities), "we are a client"
        return capabilities
