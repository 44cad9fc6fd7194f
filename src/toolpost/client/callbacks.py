"""Answers the requests of a server with the callbacks that the client was given.

Owns the callbacks, the capabilities that they declare, the questions of a multi-round request as typed
values, and the conversion of what a callback returns to a result. The same callbacks serve both eras.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote

from toolpost.client.connection.incoming import CallbackThreads
from toolpost.client.form_validation import fill_defaults, find_form_error
from toolpost.errors import InvalidParams, LocalProtocolError, RemoteProtocolError, UserRejected
from toolpost.protocol import downgrade, jsonrpc
from toolpost.protocol.downgrade import downgrade_value
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.local_peer import has_capability
from toolpost.protocol.methods import ELICITATION_CREATE, PING, ROOTS_LIST, ROWS, SAMPLING_CREATE_MESSAGE, Row
from toolpost.protocol.revisions import Revision
from toolpost.types.base import JSON, UNSET, InputRequest, Raw, Result, Unset
from toolpost.types.client_requests import (
    ClientRequestParams,
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    Root,
)
from toolpost.types.content import Blocks, Content, TextContent
from toolpost.types.initialize import (
    ClientCapabilities,
    ElicitationCapability,
    ListCapability,
    SamplingCapability,
)

SamplingAnswer: TypeAlias = CreateMessageResult | Content | list[Content] | str | None
"""What a model said; None means that the user does not want it asked."""

ElicitationAnswer: TypeAlias = ElicitResult | Mapping[str, JSON] | bool | None
"""What a user answered: the fields of the form or True to accept, None or False to decline."""

RootLike: TypeAlias = Root | str | PathLike[str]
"""A root: as such, as a file:// URI, or as a path."""


def make_sampling_result(said: object, who: str) -> CreateMessageResult:
    """Convert a callback's value to a sampling result; None is a refusal. `who` is named in errors."""
    if said is None:
        raise UserRejected("User rejected sampling request")
    if isinstance(said, CreateMessageResult):
        return said
    content = TextContent(said) if isinstance(said, str) else said
    blocks = cast("list[object]", content) if isinstance(content, list) else [content]
    if not all(isinstance(block, Content) for block in blocks):
        raise TypeError(
            f"{who}: a {type(said).__name__} is no answer; it may be a text, a content block or a list of "
            "them, a CreateMessageResult, or None to refuse"
        )
    return CreateMessageResult(role="assistant", content=cast("Blocks", content), model="unknown")


def make_elicit_result(params: ElicitParams, answered: object, who: str) -> ElicitResult:
    """Convert a callback's value to an elicitation result and validate it against the form (ELIC-42)."""
    if answered is None or answered is False:
        return ElicitResult(action="decline")
    if answered is True:
        answered = {}
    if isinstance(answered, Mapping):
        fields = cast("Mapping[str, JSON]", answered)
        answered = ElicitResult(action="accept", content={**fields})
    if not isinstance(answered, ElicitResult):
        raise TypeError(
            f"{who}: a {type(answered).__name__} is no answer; it may be a dict with the fields of the form "
            "or True to accept, None or False to decline, or an ElicitResult"
        )
    content = None
    if answered.action == "accept" and params.mode != "url":
        given = answered.content or {}
        wrong = find_form_error(params.requested_schema, given)
        if wrong:
            raise LocalProtocolError(f"{who}: the form does not allow this answer: {wrong}", retry_safe=False)
        content = fill_defaults(params.requested_schema, given)
    return ElicitResult(action=answered.action, content=content, meta=answered.meta)


def make_roots(places: Iterable[RootLike]) -> list[Root]:
    """Convert paths and URIs to roots. A path is made absolute, which reads the file system."""
    if isinstance(places, str | PathLike | Root):
        raise TypeError("on_roots is a list of roots, or a function that returns one")
    return [_make_root(place) for place in places]


def _make_root(place: RootLike) -> Root:
    if isinstance(place, Root):
        root = place
    elif isinstance(place, str) and "://" in place:
        root = Root(uri=place)
    else:
        path = Path(place).absolute()
        root = Root(uri=path.as_uri(), name=path.name or None)
    if not root.uri.startswith("file://"):
        raise ValueError(f"a root is a file:// URI, not {root.uri!r}")
    if ".." in unquote(root.uri).split("/"):
        raise ValueError(f"a root says where it is, without '..': {root.uri!r}")  # ROOT-5
    return root


# --------------------------------------------------------------------- questions

QuestionParams: TypeAlias = ElicitParams | CreateMessageParams | ClientRequestParams
"""What is asked: something of the user, of the model, or where the roots are."""

_QUESTION_ROWS: Final = {row.name: row for row in ROWS if row.asked}


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


def parse_questions(asked: Mapping[str, InputRequest]) -> dict[str, Question]:
    """Parse the questions of an input-required result. Raises `RemoteProtocolError` for an unknown kind."""
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


# --------------------------------------------------------------------- callbacks

SamplingCallback: TypeAlias = Callable[[CreateMessageParams], SamplingAnswer | Awaitable[SamplingAnswer]]
ElicitationCallback: TypeAlias = Callable[[ElicitParams], ElicitationAnswer | Awaitable[ElicitationAnswer]]
RootsCallback: TypeAlias = Callable[[], Iterable[RootLike] | Awaitable[Iterable[RootLike]]]
CustomRequestCallback: TypeAlias = Callable[[dict[str, JSON]], JSON]
"""Answers a method of one's own: is given the params, returns the result, both plain JSON."""

Answer: TypeAlias = ElicitationAnswer | SamplingAnswer | Iterable[RootLike]
"""An answer to a question, as the callback for it might return it.

Examples:
    >>> form: Answer = {"value": 3}
    >>> no: Answer = None
    >>> model: Answer = "It is 3."
    >>> roots: Answer = ["file:///books"]
"""

ASKING_SERVER: Final[ContextVar[str | None]] = ContextVar("ASKING_SERVER", default=None)
"""While a callback runs: which server asks (ELIC-3)."""

_OBJECT: Final = JSONReader(dict[str, JSON])
_PROTOCOL_METHODS: Final = frozenset(row.name for row in ROWS)


class RequestCallbacks:
    """The callbacks of a client. `custom` holds those for methods that no revision defines, by name."""

    def __init__(
        self,
        *,
        sampling: SamplingCallback | None = None,
        elicitation: ElicitationCallback | None = None,
        roots: Iterable[RootLike] | RootsCallback | None = None,
        custom: Mapping[str, CustomRequestCallback] | None = None,
        declared: ClientCapabilities | None = None,
    ) -> None:
        self.threads = CallbackThreads()
        """Where callbacks run that are not async."""
        self.describe_server: Callable[[], str | None] = lambda: None
        """Tells which server asks."""
        for name, callback in (("on_sampling", sampling), ("on_elicitation", elicitation)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name}: a function that answers, not a {type(callback).__name__}")
        self._sampling = sampling
        self._elicitation = elicitation
        self._roots = roots if roots is None or callable(roots) else make_roots(roots)
        self._custom_methods = dict(custom or {})
        for name in self._custom_methods:
            if name in _PROTOCOL_METHODS:
                raise ValueError(
                    f"request_handlers: {name} is a method of the protocol and has its own callback"
                )
        self.custom_rows = {name: Row(name, ClientRequestParams, Result) for name in self._custom_methods}
        self.capabilities = _build_capabilities(
            declared or ClientCapabilities(),
            sampling=sampling is not None,
            elicitation=elicitation is not None,
            roots=roots is not None,
        )
        self._by_method: Final[dict[str, Callable[[Any], Awaitable[Result]]]] = {
            PING: self._answer_ping,
            SAMPLING_CREATE_MESSAGE: self._sample,
            ELICITATION_CREATE: self._elicit,
            ROOTS_LIST: self._list_roots,
        }

    async def run_callback(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """Run a callback; while it runs, `ASKING_SERVER` names the server."""
        before = ASKING_SERVER.set(self.describe_server())
        try:
            return await self.threads.run(callback, *arguments)
        finally:
            ASKING_SERVER.reset(before)

    async def answer_request(self, method: str, params: Any, raw: Raw | Unset = UNSET) -> Result | Raw:
        """Return the result of a server's request. An `RPCError` is what to send the server instead."""
        own = self._custom_methods.get(method)
        if own is not None:
            try:
                given = _OBJECT(raw)
            except InvalidJSONValue as error:
                raise InvalidParams(f"Invalid params for {method}: {error}") from error
            return _encode_custom_result(method, await self.run_callback(own, given))
        wrong = _find_params_error(params, self.capabilities)
        if wrong:
            raise InvalidParams(f"Invalid params: {wrong}")
        return await self._by_method[method](params)

    async def _answer_ping(self, params: object) -> Result:  # noqa: ARG002 - one signature for all
        return Result()

    async def _sample(self, params: CreateMessageParams) -> Result:
        assert self._sampling is not None, "sampling was not declared"
        return make_sampling_result(await self.run_callback(self._sampling, params), "on_sampling")

    async def _elicit(self, params: ElicitParams) -> Result:
        assert self._elicitation is not None, "elicitation was not declared"
        return make_elicit_result(
            params, await self.run_callback(self._elicitation, params), "on_elicitation"
        )

    async def _list_roots(self, params: object) -> Result:  # noqa: ARG002 - one signature for all
        roots = self._roots
        assert roots is not None, "roots were not declared"
        if callable(roots):
            roots = await self.threads.run_in_thread(partial(make_roots, await self.run_callback(roots)))
        return ListRootsResult(roots=roots)

    async def answer_questions(
        self,
        questions: Mapping[str, Question],
        given: Mapping[str, Answer],
        capabilities: ClientCapabilities,
        revision: Revision,
    ) -> dict[str, Raw]:
        """Answer the questions of a round from `given` and else by the callbacks, one by one (MRTR-17)."""
        self.check_questions(questions, capabilities)
        for key in given:
            if key not in questions:
                raise ValueError(
                    f"answers: {key!r} was not asked; there are {', '.join(map(repr, questions))}"
                )
        for key, question in questions.items():
            if key not in given and _find_question_error(question, self.capabilities):
                raise ValueError(
                    f"answers: {key!r} is missing ({question.method}), and this client has no callback for it"
                )
        return {
            key: Raw(
                jsonrpc.encode(downgrade_value(await self._answer_question(key, question, given), revision))
            )
            for key, question in questions.items()
        }

    def check_questions(self, questions: Mapping[str, Question], capabilities: ClientCapabilities) -> None:
        """Raise `RemoteProtocolError` if a question needs a capability that was not declared."""
        for question in questions.values():
            wrong = _find_question_error(question, capabilities)
            if wrong:
                raise RemoteProtocolError(f"the server asks for {question.method}{wrong}")

    async def _answer_question(self, key: str, question: Question, given: Mapping[str, Answer]) -> Result:
        params = question.params
        if key not in given:
            return await self._by_method[question.method](params)
        value: Any = given[key]
        if isinstance(params, ElicitParams):
            return make_elicit_result(params, value, f"answers[{key!r}]")
        if isinstance(params, CreateMessageParams):
            return make_sampling_result(value, f"answers[{key!r}]")
        return ListRootsResult(roots=await self.threads.run_in_thread(partial(make_roots, value)))


# --------------------------------------------------------------------- capabilities


def _build_capabilities(declared: ClientCapabilities, **given: bool) -> ClientCapabilities:
    """Combine the capabilities of the callbacks with what is declared about them."""
    for name, there in given.items():
        if getattr(declared, name) is not None and not there:
            raise ValueError(f"capabilities: {name} needs a callback, on_{name}")
    if declared.tasks is not None:
        raise ValueError("capabilities: this client runs nothing as a task")
    return ClientCapabilities(
        sampling=(declared.sampling or SamplingCapability()) if given["sampling"] else None,
        elicitation=(declared.elicitation or ElicitationCapability()) if given["elicitation"] else None,
        roots=(declared.roots or ListCapability(list_changed=True)) if given["roots"] else None,
        experimental=declared.experimental,
        extensions=declared.extensions,
    )


def _elicitation_modes(elicitation: ElicitationCapability | None) -> frozenset[str]:
    """Return the modes of an elicitation capability; naming neither means forms (ELIC-8)."""
    if elicitation is None or (elicitation.form is None and elicitation.url is None):
        return frozenset({"form"})
    return frozenset(mode for mode in ("form", "url") if getattr(elicitation, mode) is not None)


def _find_question_error(question: Question, capabilities: ClientCapabilities) -> str | None:
    """Return why a question may not be asked under these capabilities, as the rest of a sentence."""
    needs = _REQUIRED_CAPABILITIES[question.method]
    if needs and not has_capability(capabilities, needs):
        return ", which this client does not offer"
    wrong = _find_params_error(question.params, capabilities)
    return f": {wrong}" if wrong else None


def _find_params_error(params: object, capabilities: ClientCapabilities) -> str | None:
    """Return what is wrong with the parameters of a request whose capability is declared."""
    if isinstance(params, ElicitParams):
        mode = params.mode or "form"  # ELIC-11
        offered = mode in _elicitation_modes(capabilities.elicitation)
        return None if offered else f"this client does not offer elicitation by {mode}"  # ELIC-21
    if isinstance(params, CreateMessageParams):
        tools = params.tools is not None or params.tool_choice is not None
        if tools and not has_capability(capabilities, "sampling.tools"):
            return "this client does not offer sampling with tools"  # SAMP-4
        return downgrade.explain_invalid_tool_turns(params.messages)  # SAMP-15
    return None


_REQUIRED_CAPABILITIES: Final = {row.name: row.needs for row in ROWS}


def _encode_custom_result(method: str, value: JSON) -> Result | Raw:
    """Encode the result of a custom method."""
    if isinstance(value, Result):
        return value
    data = jsonrpc.encode({} if value is None else value)
    if not data.startswith(b"{"):
        raise TypeError(f"the handler of {method} returned a {type(value).__name__}; a result is an object")
    return Raw(data)
