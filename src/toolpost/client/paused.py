"""A call of a tool that waits for answers, as a value: kept, sent elsewhere, and taken up again.

Owns what has to travel with it, and the questions as typed values. Everything is in it that the retry needs,
so that neither answers nor state can get to another request (MRTR-22). Who answers is not known here.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Self, TypeAlias, cast

from toolpost.errors import RemoteProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import ROWS
from toolpost.types.base import JSON, Raw, Struct
from toolpost.types.client_requests import ClientRequestParams, CreateMessageParams, ElicitParams
from toolpost.types.initialize import ClientCapabilities
from toolpost.types.input_required import InputRequest

QuestionParams: TypeAlias = ElicitParams | CreateMessageParams | ClientRequestParams
"""What is asked: something of the user, of the model, or where the roots are."""

_QUESTION_ROWS: Final = {row.name: row for row in ROWS if row.asked}
_OBJECT: Final = JSONReader(dict[str, JSON])


class Question(NamedTuple):
    """One thing that a server wants to know.

    Attributes:
        method: "elicitation/create", "sampling/createMessage" or "roots/list".
        params: `ElicitParams`, `CreateMessageParams` or `ClientRequestParams`, in this order.

    Examples:
        >>> question = Question("elicitation/create", ElicitParams(message="How many?"))
        >>> question.params.message
        'How many?'
    """

    method: str
    params: QuestionParams


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
    written: Raw
    """The arguments as they were sent."""
    asked: dict[str, InputRequest]
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
        return _OBJECT(self.written)

    @property
    def questions(self) -> dict[str, Question]:
        """What the server wants to know, by key; `client.resume` takes an answer for each."""
        return parse_questions(self.asked)

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
            _OBJECT(paused.written)
        except (ValueError, RemoteProtocolError) as error:
            raise ValueError(f"this is no paused call: {error}") from error
        if not whole or paused.rounds < 1 or not paused.spent >= 0:
            raise ValueError("this is no paused call: it has no question, or numbers that cannot be")
        return paused

    def __repr__(self) -> str:
        return f"<Paused call of {self.name!r}: {', '.join(self.asked)}>"


def parse_questions(asked: Mapping[str, InputRequest]) -> dict[str, Question]:
    """The questions in a result that wants input.

    Raises:
        RemoteProtocolError: one is nothing that can be asked this way.
    """
    return {key: _parse_question(ask) for key, ask in asked.items()}


def _parse_question(ask: InputRequest) -> Question:
    row = _QUESTION_ROWS.get(ask.method)
    if row is None:
        raise RemoteProtocolError(
            f"the server asks for {jsonrpc.shorten(ask.method)}, which this client does not offer"
        )
    try:
        return Question(ask.method, cast("QuestionParams", row.read_params(ask.params)))
    except InvalidJSONValue as error:
        raise RemoteProtocolError(f"the server asks with invalid {ask.method}: {error}") from error
