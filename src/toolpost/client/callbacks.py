"""Answers the requests of a server with the callbacks that the client was given.

Owns the callbacks, the capabilities that they declare, the questions of a multi-round request as typed
values, and the conversion of what a callback returns to a result. The same callbacks serve both eras.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from copy import copy
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

from toolpost import types
from toolpost.client.form_validation import fill_defaults, find_form_error
from toolpost.errors import InvalidParams, LocalProtocolError, RemoteProtocolError, UserRejected
from toolpost.protocol import downgrade, jsonrpc
from toolpost.protocol.downgrade import downgrade_value
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import ELICITATION_CREATE, PING, ROOTS_LIST, ROWS, SAMPLING_CREATE_MESSAGE, Row
from toolpost.protocol.revisions import Revision
from toolpost.threads import ThreadPool
from toolpost.types.base import JSON, Raw, Result

SamplingAnswer: TypeAlias = types.CreateMessageResult | types.Content | list[types.Content] | str | None
"""The answer of a model; None if the user rejects the request."""

ElicitationAnswer: TypeAlias = types.ElicitResult | Mapping[str, JSON] | bool | None
"""The answer of a user: the fields of the form or True to accept, None or False to decline."""

RootLike: TypeAlias = types.Root | str | PathLike[str]
"""A root: a `Root`, a file:// URI, or a path."""


def make_sampling_result(value: object, source: str) -> types.CreateMessageResult:
    """Convert a callback's value to a sampling result; None is a refusal. Errors name the `source`."""
    if value is None:
        raise UserRejected("User rejected sampling request")
    if isinstance(value, types.CreateMessageResult):
        return value
    content = types.TextContent(value) if isinstance(value, str) else value
    blocks = cast("list[object]", content) if isinstance(content, list) else [content]
    if not all(isinstance(block, types.Content) for block in blocks):
        raise TypeError(
            f"{source}: expected a string, a content block or a list of them, a CreateMessageResult, or None "
            f"to decline, not {type(value).__name__}"
        )
    return types.CreateMessageResult(role="assistant", content=cast("types.Blocks", content), model="unknown")


def make_elicit_result(params: types.ElicitParams, answered: object, source: str) -> types.ElicitResult:
    """Convert a callback's value to an elicitation result and validate it against the form (ELIC-42)."""
    if answered is None or answered is False:
        return types.ElicitResult(action="decline")
    if answered is True:
        answered = {}
    if isinstance(answered, Mapping):
        fields = cast("Mapping[str, JSON]", answered)
        answered = types.ElicitResult(action="accept", content={**fields})
    if not isinstance(answered, types.ElicitResult):
        raise TypeError(
            f"{source}: expected a dict with the fields of the form or True to accept, None or False to "
            f"decline, or an ElicitResult, not {type(answered).__name__}"
        )
    content = None
    if answered.action == "accept" and params.mode != "url":
        given = answered.content or {}
        wrong = find_form_error(params.requested_schema, given)
        if wrong:
            raise LocalProtocolError(f"{source}: invalid answer: {wrong}", retry_safe=False)
        content = fill_defaults(params.requested_schema, given)
    return types.ElicitResult(action=answered.action, content=content, meta=answered.meta)


def make_roots(places: Iterable[RootLike]) -> list[types.Root]:
    """Convert paths and URIs to roots. A path is made absolute, which reads the file system."""
    if isinstance(places, str | PathLike | types.Root):
        raise TypeError("on_roots must be a list of roots, or a function that returns one")
    return [_make_root(place) for place in places]


def _make_root(place: RootLike) -> types.Root:
    if isinstance(place, types.Root):
        root = place
    elif isinstance(place, str) and "://" in place:
        root = types.Root(uri=place)
    else:
        path = Path(place).absolute()
        root = types.Root(uri=path.as_uri(), name=path.name or None)
    if not root.uri.startswith("file://"):
        raise ValueError(f"a root must be a file:// URI, not {root.uri!r}")
    if ".." in unquote(root.uri).split("/"):
        raise ValueError(f"a root must not contain '..': {root.uri!r}")  # ROOT-5
    return root


# --------------------------------------------------------------------- questions

QuestionParams: TypeAlias = types.ElicitParams | types.CreateMessageParams | types.ClientRequestParams
"""The parameters of a question to the user, to the model, or about the roots."""

_QUESTION_ROWS: Final = {row.name: row for row in ROWS if row.asked}


class Question(NamedTuple):
    """One question of a server.

    Attributes:
        method: "elicitation/create", "sampling/createMessage" or "roots/list".
        params: `ElicitParams`, `CreateMessageParams` or `ClientRequestParams`, respectively.

    Examples:
        >>> question = Question("elicitation/create", ElicitParams(message="How many?"))
        >>> question.params.message
        'How many?'
    """

    method: str
    params: QuestionParams


def parse_questions(asked: Mapping[str, types.InputRequest]) -> dict[str, Question]:
    """Parse the questions of an input-required result. Raises `RemoteProtocolError` for an unknown kind."""
    questions: dict[str, Question] = {}
    for key, ask in asked.items():
        row = _QUESTION_ROWS.get(ask.method)
        if row is None:
            raise RemoteProtocolError(
                f"the server requested {jsonrpc.shorten(ask.method)}, which this client does not offer"
            )
        try:
            questions[key] = Question(ask.method, cast("QuestionParams", row.read_params(ask.params)))
        except InvalidJSONValue as error:
            raise RemoteProtocolError(f"the server sent invalid params for {ask.method}: {error}") from error
    return questions


# --------------------------------------------------------------------- callbacks

SamplingCallback: TypeAlias = Callable[
    [types.CreateMessageParams], SamplingAnswer | Awaitable[SamplingAnswer]
]
ElicitationCallback: TypeAlias = Callable[
    [types.ElicitParams], ElicitationAnswer | Awaitable[ElicitationAnswer]
]
RootsCallback: TypeAlias = Callable[[], Iterable[RootLike] | Awaitable[Iterable[RootLike]]]
CustomRequestCallback: TypeAlias = Callable[[dict[str, JSON]], JSON]
"""Answers a method that the protocol does not define: takes the params, returns the result, as plain JSON."""

Answer: TypeAlias = ElicitationAnswer | SamplingAnswer | Iterable[RootLike]
"""An answer to a question, as the callback for it could return it.

Examples:
    >>> form: Answer = {"value": 3}
    >>> no: Answer = None
    >>> model: Answer = "It is 3."
    >>> roots: Answer = ["file:///books"]
"""

ASKING_SERVER: Final[ContextVar[str | None]] = ContextVar("ASKING_SERVER", default=None)
"""The name of the server, while a callback runs (ELIC-3)."""

_OBJECT: Final = JSONReader(dict[str, JSON])
PROTOCOL_METHODS: Final = frozenset(row.name for row in ROWS)


class RequestCallbacks:
    """The callbacks of a client. `custom` holds those for methods that no revision defines, by name."""

    def __init__(
        self,
        *,
        sampling: SamplingCallback | None = None,
        elicitation: ElicitationCallback | None = None,
        roots: Iterable[RootLike] | RootsCallback | None = None,
        custom: Mapping[str, CustomRequestCallback] | None = None,
        declared: types.ClientCapabilities | None = None,
    ) -> None:
        self.threads = ThreadPool()  # of this client: a callback that blocks does not affect others
        self.describe_server: Callable[[], str | None] = lambda: None  # returns the name of the server
        for name, callback in (("on_sampling", sampling), ("on_elicitation", elicitation)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} must be a function, not {type(callback).__name__}")
        self._by_method: dict[str, Any] = {
            SAMPLING_CREATE_MESSAGE: sampling,
            ELICITATION_CREATE: elicitation,
            ROOTS_LIST: roots if roots is None or callable(roots) else make_roots(roots),
        }
        self._custom_methods = dict(custom or {})
        for name in self._custom_methods:
            if name in PROTOCOL_METHODS:
                raise ValueError(f"request_handlers: {name} is a protocol method and has its own callback")
        self.custom_rows = {
            name: Row(name, types.ClientRequestParams, Result) for name in self._custom_methods
        }
        given = {"sampling": sampling, "elicitation": elicitation, "roots": roots}
        self.capabilities = _build_capabilities(declared or types.ClientCapabilities(), given)

    async def run_callback(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """Run a callback; while it runs, `ASKING_SERVER` names the server."""
        before = ASKING_SERVER.set(self.describe_server())
        try:
            return await self.threads.call_function(callback, *arguments)
        finally:
            ASKING_SERVER.reset(before)

    async def answer_request(self, incoming: InboundRequest) -> Result | Raw:
        """Return the result of a server's request. An `RPCError` is what to send the server instead."""
        method, params = incoming.row.name, incoming.params
        own = self._custom_methods.get(method)
        if own is not None:
            try:
                given = _OBJECT(incoming.raw)
            except InvalidJSONValue as error:
                raise InvalidParams(f"Invalid params for {method}: {error}") from error
            return _encode_custom_result(method, await self.run_callback(own, given))
        wrong = _find_params_error(params, self.capabilities)
        if wrong:
            raise InvalidParams(f"Invalid params: {wrong}")
        return await self._answer(method, params)

    async def _answer(self, method: str, params: Any) -> Result:
        """Answer a request of the protocol by its callback, which is declared as a capability."""
        if method == PING:
            return Result()
        callback, arguments = self._by_method[method], (params,)
        if method == ROOTS_LIST:
            if not callable(callback):
                return types.ListRootsResult(roots=callback)
            arguments = ()
        source = "on_elicitation" if method == ELICITATION_CREATE else "on_sampling"
        return await self._make_result(params, await self.run_callback(callback, *arguments), source)

    async def _make_result(self, params: QuestionParams, value: Any, source: str) -> Result:
        """Convert a callback's value, or an answer of the user, to a result. Errors name the `source`."""
        if isinstance(params, types.ElicitParams):
            return make_elicit_result(params, value, source)
        if isinstance(params, types.CreateMessageParams):
            return make_sampling_result(value, source)
        # Roots may be paths, which are read from the file system.
        return types.ListRootsResult(roots=await self.threads.run_in_thread(partial(make_roots, value)))

    async def answer_questions(
        self,
        questions: Mapping[str, Question],
        given: Mapping[str, Answer],
        capabilities: types.ClientCapabilities,
        revision: Revision,
    ) -> dict[str, Raw]:
        """Answer the questions of a round from `given` and else by the callbacks, one by one (MRTR-17)."""
        self.check_questions(questions, capabilities)
        for key in given:
            if key not in questions:
                raise ValueError(
                    f"answers: unknown key {key!r}; use one of {', '.join(map(repr, questions))}"
                )
        for key, question in questions.items():
            if key not in given and _find_question_error(question, self.capabilities):
                raise ValueError(
                    f"answers: {key!r} is missing ({question.method}), and this client has no callback for it"
                )
        answers: dict[str, Raw] = {}
        for key, (method, params) in questions.items():
            if key in given:
                result = await self._make_result(params, given[key], f"answers[{key!r}]")
            else:
                result = await self._answer(method, params)
            answers[key] = Raw(jsonrpc.encode(downgrade_value(result, revision)))
        return answers

    def can_answer(self, questions: Mapping[str, Question]) -> bool:
        """Return whether there is a callback for each question."""
        return not any(_find_question_error(asked, self.capabilities) for asked in questions.values())

    def check_questions(
        self, questions: Mapping[str, Question], capabilities: types.ClientCapabilities
    ) -> None:
        """Raise `RemoteProtocolError` if a question needs a capability that was not declared."""
        for question in questions.values():
            wrong = _find_question_error(question, capabilities)
            if wrong:
                raise RemoteProtocolError(f"the server requested {question.method}{wrong}")


# --------------------------------------------------------------------- capabilities


_DEFAULT_CAPABILITIES: Final[dict[str, Callable[[], object]]] = {
    "sampling": types.SamplingCapability,
    "elicitation": types.ElicitationCapability,
    "roots": partial(types.ListCapability, list_changed=True),
}


def _build_capabilities(
    declared: types.ClientCapabilities, given: Mapping[str, object]
) -> types.ClientCapabilities:
    """Combine the capabilities of the callbacks that were given with what is declared about them."""
    if declared.tasks is not None:
        raise ValueError("capabilities: this client does not support tasks")
    declared = copy(declared)
    for name, make_default in _DEFAULT_CAPABILITIES.items():
        if given[name] is None and getattr(declared, name) is not None:
            raise ValueError(f"capabilities: {name} requires the callback on_{name}")
        if given[name] is not None and getattr(declared, name) is None:
            setattr(declared, name, make_default())
    return declared


def _find_question_error(question: Question, capabilities: types.ClientCapabilities) -> str | None:
    """Return why a question must not be asked under these capabilities, as the rest of a sentence."""
    needs = _QUESTION_ROWS[question.method].needs
    if needs and not has_capability(capabilities, needs):
        return ", which this client does not offer"
    wrong = _find_params_error(question.params, capabilities)
    return f": {wrong}" if wrong else None


def _find_params_error(params: object, capabilities: types.ClientCapabilities) -> str | None:
    """Return the error in the parameters of a request whose capability is declared."""
    if isinstance(params, types.ElicitParams):
        mode = params.mode or "form"  # ELIC-11
        offered = [m for m in ("form", "url") if getattr(capabilities.elicitation, m, None) is not None]
        if mode not in (offered or ["form"]):  # ELIC-8
            return f"this client does not offer elicitation in {mode} mode"  # ELIC-21
        return None
    if isinstance(params, types.CreateMessageParams):
        tools = params.tools is not None or params.tool_choice is not None
        if tools and not has_capability(capabilities, "sampling.tools"):
            return "this client does not offer sampling with tools"  # SAMP-4
        return downgrade.explain_invalid_tool_turns(params.messages)  # SAMP-15
    return None


def _encode_custom_result(method: str, value: JSON) -> Result | Raw:
    """Encode the result of a custom method."""
    if isinstance(value, Result):
        return value
    data = jsonrpc.encode({} if value is None else value)
    if not data.startswith(b"{"):
        raise TypeError(f"the handler of {method} must return an object, not {type(value).__name__}")
    return Raw(data)
