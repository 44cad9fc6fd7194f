"""The requests that a function may send to its client: elicitation, sampling, roots.

The same calls in both eras. In a session they wait for the result; where there is none, the function ends at
the question and runs again from the top when the client has brought the answer (`elicitation.journal`).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from toolpost import types
from toolpost.errors import LocalProtocolError, ToolError, UrlElicitationRequired
from toolpost.protocol.eras import Peer
from toolpost.protocol.methods import ELICITATION_CREATE, ROOTS_LIST, SAMPLING_CREATE_MESSAGE
from toolpost.server.runtime.change_broadcast import ELICITATION_COMPLETE
from toolpost.types.base import JSON, Number, Result, WireStruct
from toolpost.types.content import Content, TextContent
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.server.elicitation.forms import Accepted, Cancelled, Declined
    from toolpost.server.request import ClientConnection

T = TypeVar("T")

MAX_ELICIT_ATTEMPTS: Final = 3
"""How often a user is asked the same question, if answers do not fit the form."""

MAX_URL_ELICITATIONS: Final = 256
"""URLs that a user was sent to and is not known to be done with."""


class ClientRequests:
    """The half of a `Context` that sends requests to the client."""

    __slots__ = ()

    _peer: Peer
    _client_connection: "ClientConnection"

    @abstractmethod
    async def ask(
        self, method: str, params: WireStruct, *, key: str | None = None, timeout: float | None = None
    ) -> Result:
        """Send one of the protocol's client requests, and return the result."""

    async def sample(
        self,
        messages: "str | Content | types.SamplingMessage | Sequence[types.SamplingMessage | str]",
        *,
        max_tokens: int = 1024,
        system: str | None = None,
        model: "types.ModelPreferences | str | None" = None,
        temperature: Number | None = None,
        stop: list[str] | None = None,
        tools: list[Tool] | None = None,
        tool_choice: Literal["auto", "required", "none"] | None = None,
        metadata: dict[str, JSON] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> "types.CreateMessageResult":
        """Ask the client's model, and return what it says.

        Args:
            messages: for the model: text, content, or turns of a conversation.
            max_tokens: how long its answer may be.
            system: the system prompt; the client may change or drop it.
            model: the preferred one: a part of its name, or preferences.
            temperature: how freely it answers.
            stop: texts at which it ends.
            tools: the tools it may call; you call them, and sample again with the result.
            tool_choice: whether it has to.
            metadata: for the provider of the model.
            key: as in `elicit`.
            timeout: seconds to wait.

        Raises:
            CapabilityNotDeclared: the client has no model for us.
            UserRejected: the user said no.
        """
        from toolpost.protocol import downgrade  # noqa: PLC0415 - start-up time

        if isinstance(model, str):
            model = types.ModelPreferences(hints=[types.ModelHint(model)])
        is_single = isinstance(messages, str | Content | types.SamplingMessage)
        turns = [_to_sampling_message(message) for message in ([messages] if is_single else messages)]
        wrong = downgrade.explain_invalid_tool_turns(turns)
        if wrong:
            raise LocalProtocolError(f"a model cannot be asked this: {wrong}")
        params = types.CreateMessageParams(
            messages=turns,
            max_tokens=max_tokens,
            system_prompt=system,
            model_preferences=model,
            temperature=temperature,
            stop_sequences=stop,
            tools=tools,
            tool_choice=None if tool_choice is None else types.ToolChoice(tool_choice),
            metadata=metadata,
        )
        result = await self.ask(SAMPLING_CREATE_MESSAGE, params, key=key, timeout=timeout)
        assert isinstance(result, types.CreateMessageResult)
        return result

    async def roots(self, *, key: str | None = None, timeout: float | None = None) -> "list[types.Root]":
        """Return the roots of the client. Raises CapabilityNotDeclared if it has none."""
        result = await self.ask(ROOTS_LIST, types.ClientRequestParams(), key=key, timeout=timeout)
        assert isinstance(result, types.ListRootsResult)
        return result.roots

    @overload
    async def elicit(
        self, message: str, form: type[T], *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[T] | Declined | Cancelled": ...

    @overload
    async def elicit(
        self, message: str, form: Any, *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[Any] | Declined | Cancelled": ...

    async def elicit(
        self, message: str, form: Any, *, key: str | None = None, timeout: float | None = None
    ) -> "Accepted[Any] | Declined | Cancelled":
        """Ask the user, and return the answer.

        Args:
            message: the question.
            form: the type of the answer: a primitive, a Literal, an enum, or a flat dataclass, struct,
                TypedDict or model of them.
            key: its key for stateless clients; by default derived from its words.
            timeout: seconds to wait; no limit by default, since people may take their time.

        Raises:
            CapabilityNotDeclared: the client cannot ask a user.
        """
        from toolpost.server.elicitation.forms import get_form  # noqa: PLC0415 - start-up time

        asked, words, attempts = get_form(form), message, 1
        while True:
            params = types.ElicitParams(message=words, requested_schema=asked.schema)
            result = await self.ask(ELICITATION_CREATE, params, key=key, timeout=timeout)
            assert isinstance(result, types.ElicitResult)
            try:
                return asked.read(result)
            except ToolError as error:
                if attempts == MAX_ELICIT_ATTEMPTS:
                    raise
                words, attempts = f"{message}\n\n{error}", attempts + 1

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        elicitation_id: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> "Accepted[None] | Declined | Cancelled":
        """Ask the user to visit a URL, for what must not go through the client.

        Args:
            message: why.
            url: where to. Another person may open it: check who they are (ELIC-44).
            elicitation_id: for `server.complete_elicitation`, which notifies the client.
            key: as in `elicit`.
            timeout: seconds to wait.

        Raises:
            CapabilityNotDeclared: the client cannot open URLs.
            ValueError: it is not a URL.
        """
        from toolpost.server.elicitation.forms import ANSWERS_BY_ACTION  # noqa: PLC0415 - as in `elicit`

        params = self._make_url_elicitation(message, url, elicitation_id)
        result = await self.ask(ELICITATION_CREATE, params, key=key, timeout=timeout)
        assert isinstance(result, types.ElicitResult)
        return ANSWERS_BY_ACTION[result.action]

    def url_required(
        self, message: str, url: str, *, elicitation_id: str | None = None
    ) -> UrlElicitationRequired:
        """Return the error to raise if the user has to visit a URL before the request can be served.

        A client of 2025-11-25 shows the URL, and calls again when the user is done. A stateless one is asked
        by a result, and calls again; the function checks again whether the user has been there.

        Raises:
            ValueError: it is not a URL.
        """
        elicitation_id = self._make_url_elicitation(message, url, elicitation_id).elicitation_id
        visit: JSON = {"mode": "url", "message": message, "url": url, "elicitationId": elicitation_id}
        return UrlElicitationRequired(message, {"elicitations": [visit]})

    def _make_url_elicitation(
        self, message: str, url: str, elicitation_id: str | None
    ) -> "types.ElicitParams":
        """Return the params of a URL elicitation, and remember it for `complete_elicitation`."""
        if not _is_web_url(url):
            raise ValueError(f"{url!r} is no URL that a user can visit, such as https://example.com/sign-in")
        if not elicitation_id:
            from secrets import token_urlsafe  # noqa: PLC0415 - start-up time

            elicitation_id = token_urlsafe(16)
        if ELICITATION_COMPLETE in self._peer.revision.notifications["server"]:
            self._client_connection.add_url_elicitation(elicitation_id)
        return types.ElicitParams(message=message, mode="url", url=url, elicitation_id=elicitation_id)


def _is_web_url(url: str) -> bool:
    """Return whether a URL leads to a page (ELIC-13)."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - start-up time

    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and url.isprintable() and " " not in url


def _to_sampling_message(message: "str | Content | types.SamplingMessage") -> "types.SamplingMessage":
    """Return a message for the model; plain text and single blocks are the user's."""
    if isinstance(message, types.SamplingMessage):
        return message
    return types.SamplingMessage("user", TextContent(message) if isinstance(message, str) else message)
