"""Answers what a server asks, with the callbacks that the client was given.

Owns the way from a callback's value to a result, and what a client declares by being given a callback. The
same callbacks serve both eras: whether an ask came as a request or inside a result is not known here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import unquote

from toolpost.client.threads import Crew
from toolpost.errors import InvalidParams, RemoteProtocolError, UserRejected
from toolpost.protocol import jsonrpc, turns
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.protocol.lowering import lower
from toolpost.protocol.methods import ROWS, Row
from toolpost.protocol.party import declares
from toolpost.protocol.revisions import Revision
from toolpost.types.asks import (
    AskParams,
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    Root,
)
from toolpost.types.base import JSON, UNSET, Raw, Result, Unset
from toolpost.types.content import Blocks, Content, TextContent
from toolpost.types.inputs import AnswerParams, InputRequest, InputRequiredResult
from toolpost.types.lifecycle import (
    ClientCapabilities,
    ElicitationCapability,
    ListCapability,
    SamplingCapability,
)

__all__ = [
    "Answers",
    "AskCallback",
    "ElicitationCallback",
    "Elicited",
    "Place",
    "RootsCallback",
    "Sampled",
    "SamplingCallback",
]

Sampled: TypeAlias = CreateMessageResult | Content | list[Content] | str | None
"""What a model said; None means that the user does not want it asked."""

Elicited: TypeAlias = ElicitResult | Mapping[str, JSON] | bool | None
"""What a user answered: the fields of the form or True to accept, None or False to decline."""

Place: TypeAlias = Root | str | PathLike[str]
"""A root: as such, as a file:// URI, or as a path."""

SamplingCallback: TypeAlias = Callable[[CreateMessageParams], Sampled | Awaitable[Sampled]]
ElicitationCallback: TypeAlias = Callable[[ElicitParams], Elicited | Awaitable[Elicited]]
RootsCallback: TypeAlias = Callable[[], Iterable[Place] | Awaitable[Iterable[Place]]]
AskCallback: TypeAlias = Callable[[dict[str, JSON]], JSON]
"""Answers a method of one's own: is given the params, returns the result, both plain JSON."""

A = TypeVar("A", bound=AnswerParams)

STATE_PAUSE: Final = 0.1
"""Seconds before a request is repeated for a server that has no question but wants it to come again."""

_OBJECT: Final = Reader(dict[str, JSON])
_KNOWN: Final = frozenset(row.name for row in ROWS)


class Answers:
    """The callbacks of a client.

    Args:
        sampling: asks the model.
        elicitation: asks the user.
        roots: the places that the user has opened, or a function that tells them.
        others: callbacks for methods that are in no revision, by name.
        declared: more about the capabilities that the callbacks stand for, such as the modes of elicitation,
            and experimental ones and extensions.

    Raises:
        ValueError: a capability is declared that no callback stands for, a root is none, or one of `others`
            is a method of the protocol.
    """

    def __init__(
        self,
        *,
        sampling: SamplingCallback | None = None,
        elicitation: ElicitationCallback | None = None,
        roots: Iterable[Place] | RootsCallback | None = None,
        others: Mapping[str, AskCallback] | None = None,
        declared: ClientCapabilities | None = None,
    ) -> None:
        self.crew = Crew()
        """Where callbacks run that are not async."""
        self._sampling = sampling
        self._elicitation = elicitation
        self._roots = roots if roots is None or callable(roots) else _rooted(roots)
        self._others = dict(others or {})
        for name in self._others:
            if name in _KNOWN:
                raise ValueError(
                    f"request_handlers: {name} is a method of the protocol and has its own callback"
                )
        self.rows = {name: Row(name, AskParams, Result) for name in self._others}
        self.capabilities = _capabilities(
            declared or ClientCapabilities(),
            sampling=sampling is not None,
            elicitation=elicitation is not None,
            roots=roots is not None,
        )
        self._by_method: Final[dict[str, Callable[[Any], Awaitable[Result]]]] = {
            "ping": self._pong,
            "sampling/createMessage": self._sample,
            "elicitation/create": self._elicit,
            "roots/list": self._list_roots,
        }

    async def answer(self, method: str, params: Any, raw: Raw | Unset = UNSET) -> Result | Raw:
        """The result of an ask.

        Raises:
            RPCError: what the server shall be told instead.
            Exception: whatever a callback raises.
        """
        own = self._others.get(method)
        if own is not None:
            try:
                given = _OBJECT(raw)
            except Unfit as error:
                raise InvalidParams(f"Invalid params for {method}: {error}") from error
            return _own_result(method, await self.crew.run(own, given))
        return await self._by_method[method](params)

    async def retry(self, params: A, wants: InputRequiredResult, revision: Revision) -> A:
        """The parameters to ask again with, after a result that wants input (MRTR-17 … MRTR-20).

        Raises:
            RemoteProtocolError: the server asks what it may not ask.
            Exception: whatever a callback raises: the request cannot go on.
        """
        if not wants.input_requests:
            await asyncio.sleep(STATE_PAUSE)
        again = copy(params)
        again.request_state = wants.request_state
        again.input_responses = {
            key: await self._respond(ask, revision) for key, ask in (wants.input_requests or {}).items()
        } or None
        return again

    async def _respond(self, ask: InputRequest, revision: Revision) -> Raw:
        """The answer to an ask that came inside a result.

        Raises:
            RemoteProtocolError: it cannot be asked this way, or needs what we did not declare.
            Exception: whatever a callback raises: the request cannot go on.
        """
        row = revision.asks.get(ask.method)
        if row is None or (row.needs and not declares(self.capabilities, row.needs)):
            raise RemoteProtocolError(f"the server asks for {ask.method}, which this client does not offer")
        try:
            params = row.read_params(ask.params)
        except Unfit as error:
            raise RemoteProtocolError(f"the server asks with invalid {ask.method}: {error}") from error
        result = cast("Result", await self.answer(ask.method, params))
        return Raw(jsonrpc.encode(lower(result, revision)))

    async def _pong(self, params: object) -> Result:  # noqa: ARG002 - one signature for all
        return Result()

    async def _sample(self, params: CreateMessageParams) -> Result:
        tools = params.tools is not None or params.tool_choice is not None
        if tools and not declares(self.capabilities, "sampling.tools"):
            raise InvalidParams("Invalid params: this client does not offer sampling with tools")  # SAMP-4
        wrong = turns.objection(params.messages)
        if wrong:
            raise InvalidParams(f"Invalid params: {wrong}")  # SAMP-15
        assert self._sampling is not None, "sampling was not declared"
        said = await self.crew.run(self._sampling, params)
        if said is None:
            raise UserRejected("User rejected sampling request")
        if isinstance(said, CreateMessageResult):
            return said
        content = TextContent(said) if isinstance(said, str) else said
        blocks = cast("list[object]", content) if isinstance(content, list) else [content]
        if not all(isinstance(block, Content) for block in blocks):
            raise TypeError(
                f"on_sampling returned a {type(said).__name__}; it may return a text, a content block or a "
                "list of them, a CreateMessageResult, or None to refuse"
            )
        return CreateMessageResult(role="assistant", content=cast("Blocks", content), model="unknown")

    async def _elicit(self, params: ElicitParams) -> Result:
        mode = params.mode or "form"  # ELIC-11
        if mode not in _modes(self.capabilities.elicitation):
            raise InvalidParams(
                f"Invalid params: this client does not offer elicitation by {mode}"
            )  # ELIC-21
        assert self._elicitation is not None, "elicitation was not declared"
        answered = await self.crew.run(self._elicitation, params)
        if answered is None or answered is False:
            return ElicitResult(action="decline")
        if answered is True:
            answered = {}
        if isinstance(answered, Mapping):
            fields = cast("Mapping[str, JSON]", answered)
            answered = ElicitResult(action="accept", content=dict(fields))
        if not isinstance(answered, ElicitResult):
            raise TypeError(
                f"on_elicitation returned a {type(answered).__name__}; it may return a dict with the fields "
                "of the form or True to accept, None or False to decline, or an ElicitResult"
            )
        content = None
        if answered.action == "accept" and mode == "form":
            content = {**_defaults(params.requested_schema), **(answered.content or {})}
        return ElicitResult(action=answered.action, content=content, meta=answered.meta)

    async def _list_roots(self, params: object) -> Result:  # noqa: ARG002 - one signature for all
        roots = self._roots
        assert roots is not None, "roots were not declared"
        if callable(roots):
            # A path is made absolute, which asks the file system.
            roots = await self.crew.in_thread(partial(_rooted, await self.crew.run(roots)))
        return ListRootsResult(roots=roots)


# --------------------------------------------------------------------- what is declared


def _capabilities(declared: ClientCapabilities, **given: bool) -> ClientCapabilities:
    """What the callbacks stand for, with what is declared about it."""
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


def _modes(elicitation: ElicitationCapability | None) -> frozenset[str]:
    """The modes that a capability stands for; neither named means forms (ELIC-8)."""
    if elicitation is None or (elicitation.form is None and elicitation.url is None):
        return frozenset({"form"})
    return frozenset(mode for mode in ("form", "url") if getattr(elicitation, mode) is not None)


# --------------------------------------------------------------------- values


def _own_result(method: str, value: JSON) -> Result | Raw:
    """The result of a method of one's own."""
    if isinstance(value, Result):
        return value
    data = jsonrpc.encode({} if value is None else value)
    if not data.startswith(b"{"):
        raise TypeError(f"the handler of {method} returned a {type(value).__name__}; a result is an object")
    return Raw(data)


def _defaults(schema: dict[str, JSON] | None) -> dict[str, JSON]:
    """The defaults of a form: what the user left out is what the form proposed (ELIC-15)."""
    properties: JSON = (schema or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    fields = cast("dict[str, JSON]", properties)
    return {
        name: field["default"]
        for name, field in fields.items()
        if isinstance(field, dict) and "default" in field
    }


def _rooted(places: Iterable[Place]) -> list[Root]:
    """The roots for what a person may write.

    Raises:
        ValueError: one is a URI of another scheme than file (ROOT-3).
    """
    if isinstance(places, str | PathLike | Root):
        raise TypeError("on_roots is a list of roots, or a function that returns one")
    return [_root(place) for place in places]


def _root(place: Place) -> Root:
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
