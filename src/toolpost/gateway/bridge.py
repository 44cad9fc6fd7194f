"""Bridges the questions of an upstream server to the client whose call it serves, in both eras.

A stateless server asks by its result, which becomes a result or a request for the client. A server with
sessions asks by a request. A client of a session gets it as a request, too; for a stateless client the call
is parked (`parked`), and the question becomes a result.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from toolpost.client.callbacks import parse_questions
from toolpost.errors import MethodNotFound, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.forward import ForwardedResult
from toolpost.protocol.jsonrpc import JSONReader
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import ELICITATION_CREATE, ROOTS_LIST, SAMPLING_CREATE_MESSAGE
from toolpost.server.elicitation.input_required import InputRequired, resolve_input_required
from toolpost.types.base import JSON, InputRequiredResult, Raw, Result
from toolpost.types.client_requests import ClientRequestParams, ElicitParams
from toolpost.types.initialize import (
    ClientCapabilities,
    ElicitationCapability,
    ListCapability,
    SamplingCapability,
)
from toolpost.types.notifications import LogParams, ProgressParams
from toolpost.types.skills import APPS_EXTENSION

if TYPE_CHECKING:
    from toolpost.server.context import Context

ALL_CAPABILITIES: Final = ClientCapabilities(
    elicitation=ElicitationCapability(form={}, url={}),
    sampling=SamplingCapability(context={}, tools={}),
    roots=ListCapability(),
)
"""The capabilities that a gateway can pass on, for a connection that several clients share."""

NO_CAPABILITIES: Final = ClientCapabilities()

_STATE: Final = "upstream"
"""The member of our request state that holds the state of the upstream server."""

_RESULT_READER: Final = JSONReader(InputRequiredResult)


class Relay:
    """One call of a client on its way to an upstream server."""

    __slots__ = ("ask", "context")

    def __init__(self, context: "Context") -> None:
        self.context: Context | None = context
        self.ask: Callable[[str, Any], Awaitable[Result]] = self._ask_in_session

    async def _ask_in_session(self, method: str, params: Any) -> Result:
        context = self.context
        if context is None:
            raise RPCError("the call that this question belongs to has ended")
        return await context.ask(method, params)

    @contextmanager
    def accompany(self) -> Generator[None]:
        """Let messages that belong to requests sent meanwhile find the call."""
        before = CURRENT_RELAY.set(self)
        try:
            yield
        finally:
            CURRENT_RELAY.reset(before)

    async def report(self, made: ProgressParams) -> None:
        """Pass progress on, unless the client is away."""
        if self.context is not None:
            await self.context.progress(made.progress, made.total, made.message)

    async def log(self, params: LogParams) -> None:
        """Pass a log message on, unless the client is away."""
        if self.context is not None:
            await self.context.log(params.level, params.data, logger=params.logger)


CURRENT_RELAY: Final[ContextVar[Relay | None]] = ContextVar("CURRENT_RELAY", default=None)
"""The call in whose context the upstream's messages arrive, as far as that is known."""


def select_capabilities(context: "Context") -> ClientCapabilities:
    """Return the capabilities of a client as far as they are passed on."""
    given = context.client.capabilities
    extensions = given.extensions or {}
    settings = extensions.get(APPS_EXTENSION)
    if given.elicitation is given.sampling is given.roots is settings is None:
        return NO_CAPABILITIES
    return ClientCapabilities(
        elicitation=given.elicitation,
        sampling=given.sampling,
        roots=None if given.roots is None else ListCapability(),
        extensions=None if settings is None else {APPS_EXTENSION: settings},
    )


def make_callbacks(
    find_relay: Callable[[], Relay | None], capabilities: ClientCapabilities
) -> dict[str, Any]:
    """Return the callbacks of a client for an upstream server with sessions."""

    async def ask(method: str, params: Any) -> Any:
        relay = CURRENT_RELAY.get() or find_relay()
        if relay is None:
            hint = 'mount it with share="session"'
            raise MethodNotFound(f"{method} belongs to none of the calls, or to several of them ({hint})")
        return await relay.ask(method, params)

    async def elicit(params: ElicitParams) -> Any:
        return await ask(ELICITATION_CREATE, params)

    async def sample(params: Any) -> Any:
        return await ask(SAMPLING_CREATE_MESSAGE, params)

    async def list_roots() -> Any:
        return (await ask(ROOTS_LIST, ClientRequestParams())).roots

    async def log(params: LogParams) -> None:
        relay = CURRENT_RELAY.get() or find_relay()
        if relay is not None:
            await relay.log(params)

    made: dict[str, Any] = {"on_log": log, "capabilities": capabilities}
    for name, callback in (("elicitation", elicit), ("sampling", sample), ("roots", list_roots)):
        if has_capability(capabilities, name):
            made[f"on_{name}"] = callback
    return made


async def forward_stateless(
    context: "Context",
    first: "Mapping[str, JSON]",
    forward: "Callable[[Mapping[str, JSON]], Awaitable[ForwardedResult]]",
) -> Any:
    """Forward a call to a stateless server, and pass its questions on until there is a result."""
    state: Any = context.request_state if "requestState" in first or "inputResponses" in first else None
    members = {key: value for key, value in first.items() if key not in {"requestState", "inputResponses"}}
    if state is None:
        forwarded = await forward(members)
        if forwarded.result_type != "input_required":
            return forwarded
        pending: InputRequired | None = read_questions(forwarded)
    else:
        pending = None

    async def serve() -> Any:
        nonlocal pending
        if pending is not None:
            asked, pending = pending, None
            return asked
        ours: Any = context.request_state
        answers = {key: Raw(jsonrpc.encode(value)) for key, value in context.input_responses.items()}
        again: dict[str, Any] = {**members, "inputResponses": answers} if answers else {**members}
        if ours[_STATE] is not None:
            again["requestState"] = ours[_STATE]
        forwarded = await forward(again)
        return forwarded if forwarded.result_type != "input_required" else read_questions(forwarded)

    return await resolve_input_required(context, serve)


def read_questions(forwarded: ForwardedResult) -> InputRequired:
    """Return the questions of a stateless server, and its state within ours, which is sealed."""
    result = _RESULT_READER(Raw(forwarded.raw))
    questions = parse_questions(result.input_requests or {})
    return InputRequired(
        {key: question.params for key, question in questions.items()}, state={_STATE: result.request_state}
    )
