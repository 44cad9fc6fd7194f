"""What a function may know and do while it serves a request.

A context belongs to one request. It speaks through a `Speaker`, which is all it knows of the conversation;
it knows nothing of registries and transports.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from toolpost.errors import NotDeclared
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import Incoming
from toolpost.protocol.methods import Row
from toolpost.protocol.party import declares
from toolpost.server.forms import ANSWERS, Accepted, Cancelled, Declined, form_of
from toolpost.types.asks import (
    AskParams,
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    ModelHint,
    ModelPreferences,
    Root,
    SamplingMessage,
    ToolChoice,
)
from toolpost.types.base import JSON, Meta, Number, Params, Raw, RequestId, Result, Wire
from toolpost.types.content import Content, ResourceContents, TextContent
from toolpost.types.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    LogLevel,
)
from toolpost.types.notices import NoticeParams
from toolpost.types.tools import Tool

if TYPE_CHECKING:
    from toolpost.server.catalogue import Catalogue
    from toolpost.server.handler import Handler

__all__ = ["Client", "Context", "Request", "Speaker"]

T = TypeVar("T")


class Speaker(Protocol):
    """What a context needs of the conversation that its request came in."""

    connection: Connection
    state: dict[str, Any]
    headers: Mapping[str, str]
    watched: set[str]

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Hand a message over to the peer."""
        ...

    async def ask(
        self,
        incoming: Incoming,
        method: str | Row,
        params: Wire | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """Ask the peer, and wait for its answer."""
        ...


class Request:
    """The request itself. Called, it sends one of a method of your own to the client."""

    __slots__ = ("_incoming", "_speaker")

    def __init__(self, speaker: Speaker, incoming: Incoming) -> None:
        self._speaker = speaker
        self._incoming = incoming

    async def __call__(
        self, method: str, params: Mapping[str, JSON] | None = None, *, timeout: float | None = None
    ) -> Result:
        """The client's answer to a request of a method that is in no revision; see its `raw`."""
        row = self._speaker.connection.extra.get(method) or Row(method, Params, Result)
        return await self._speaker.ask(self._incoming, row, params, timeout)

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers that it came with, by their names in lower case; none on other transports."""
        return self._speaker.headers

    @property
    def id(self) -> RequestId:
        """Its id, as the client chose it."""
        return self._incoming.id

    @property
    def method(self) -> str:
        """What was asked for."""
        return self._incoming.row.name

    @property
    def meta(self) -> Meta:
        """Its `_meta`, whole."""
        return self._incoming.meta


class Client:
    """Who is asking: `info` is its name tag, if it wears one, and `capabilities` what it can do for us."""

    __slots__ = ("capabilities", "info")

    def __init__(self, info: Implementation | None, capabilities: ClientCapabilities) -> None:
        self.info = info
        self.capabilities = capabilities

    def __repr__(self) -> str:
        return f"<Client {self.info.name} {self.info.version}>" if self.info else "<Client>"


class Context:
    """One request, as the function that serves it sees it.

    Ask for it by annotation, under any name: `async def forecast(city: str, ctx: Context)`.
    """

    __slots__ = ("_incoming", "_request", "_speaker", "_state", "lifespan", "server")

    def __init__(
        self,
        server: "Handler",
        speaker: Speaker,
        incoming: Incoming,
        *,
        lifespan: Any = None,
    ) -> None:
        self.server = server
        self.lifespan = lifespan
        self._speaker = speaker
        self._incoming = incoming
        self._request: Request | None = None
        self._state: dict[str, Any] | None = {} if incoming.peer.revision.stateless else None

    def __repr__(self) -> str:
        return f"<Context of {self._incoming.row.name}, id {self._incoming.id!r}>"

    # ----------------------------------------------------------------- what is known

    @property
    def request(self) -> Request:
        """The request itself; call it to send one of a method of your own to the client."""
        if self._request is None:
            self._request = Request(self._speaker, self._incoming)
        return self._request

    @property
    def client(self) -> Client:
        """Who is asking."""
        peer = self._incoming.peer
        capabilities = peer.capabilities
        return Client(
            peer.info, capabilities if isinstance(capabilities, ClientCapabilities) else ClientCapabilities()
        )

    @property
    def revision(self) -> str:
        """The protocol revision that the client speaks."""
        return self._incoming.peer.revision.date

    @property
    def state(self) -> dict[str, Any]:
        """A place of the session's own; in the stateless era it lives as long as the request."""
        return self._speaker.state if self._state is None else self._state

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._incoming.id not in self._speaker.connection.incoming

    # ----------------------------------------------------------------- what can be said

    async def progress(
        self, progress: Number, total: Number | None = None, message: str | None = None
    ) -> None:
        """Tell how far the work has come. Costs nothing if the client does not want to know."""
        data = self._speaker.connection.progress(self._incoming.id, progress, total, message)
        if data is not None:
            await self._speaker.send(data, self._incoming.id)

    async def log(self, level: LogLevel, data: JSON, *, logger: str | None = None) -> None:
        """Write to the client's log, if it wants lines of this level."""
        if self.cancelled:
            return
        connection = self._speaker.connection
        if not connection.party.declares("logging"):
            return
        line = connection.log(level, data, logger=logger, to=self._incoming)
        if line is not None:
            await self._speaker.send(line, self._incoming.id)

    async def debug(self, data: JSON) -> None:
        """Write a line that helps to find faults."""
        await self.log("debug", data)

    async def info(self, data: JSON) -> None:
        """Write a line about what goes on."""
        await self.log("info", data)

    async def warning(self, data: JSON) -> None:
        """Write a line about what might go wrong."""
        await self.log("warning", data)

    async def error(self, data: JSON) -> None:
        """Write a line about what went wrong."""
        await self.log("error", data)

    async def notify(self, method: str, params: Mapping[str, JSON] | None = None) -> None:
        """Send a notice of a method of your own, on the stream of this request."""
        connection = self._speaker.connection
        row = connection.extra.get(method) or Row(method, NoticeParams)
        await self._speaker.send(connection.notify(row, params, to=self._incoming), self._incoming.id)

    async def notify_resource_updated(self, uri: str) -> None:
        """Tell everybody who watches this resource that it has changed."""
        self.server.announce_update(uri)

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """What a resource of this server holds."""
        return await self.server.read(uri, self)

    async def tell(self, method: str, params: NoticeParams) -> None:
        """Send a notice of the protocol's on the stream of this request."""
        data = self._speaker.connection.notify(method, params, to=self._incoming)
        await self._speaker.send(data, self._incoming.id)

    # ----------------------------------------------------------------- for the handler and middleware

    @property
    def conversation(self) -> object:
        """What all requests of one client have in common; compare it, or count by it."""
        return self._speaker

    @property
    def wraps(self) -> bool:
        """Whether structured output has to be an object for this client."""
        return self._incoming.peer.revision.structured != "any"

    def introduce(self, instructions: str | None) -> InitializeResult | DiscoverResult:
        """Who this server is, as the request asks."""
        return self._speaker.connection.introduce(self._incoming, instructions)

    def page(self, catalogue: "Catalogue[Any]", cursor: str | None) -> Raw:
        """A page of a list, for this client."""
        return catalogue.page(self._speaker.connection, self._incoming, cursor)

    def set_log_level(self, level: LogLevel) -> None:
        """From which level on the session wants log messages."""
        self._speaker.connection.log_level = level

    def watch(self, uri: str) -> None:
        """Tell this session when a resource changes."""
        self._speaker.watched.add(uri)

    def unwatch(self, uri: str) -> None:
        """Tell this session no longer."""
        self._speaker.watched.discard(uri)

    # ----------------------------------------------------------------- what can be asked

    async def ask(self, method: str, params: Wire, *, timeout: float | None = None) -> Result:
        """Ask the client, by one of the methods that the protocol has for it."""
        return await self._speaker.ask(self._incoming, method, params, timeout)

    async def sample(
        self,
        messages: str | Content | SamplingMessage | Sequence[SamplingMessage | str],
        *,
        max_tokens: int = 1024,
        system: str | None = None,
        model: ModelPreferences | str | None = None,
        temperature: Number | None = None,
        stop: list[str] | None = None,
        tools: list[Tool] | None = None,
        tool_choice: Literal["auto", "required", "none"] | None = None,
        metadata: dict[str, JSON] | None = None,
        timeout: float | None = None,
    ) -> CreateMessageResult:
        """What the client's model says.

        Raises:
            NotDeclared: the client has no model for us.
            UserRejected: the user said no.
        """
        if isinstance(model, str):
            model = ModelPreferences(hints=[ModelHint(model)])
        params = CreateMessageParams(
            messages=_turns(messages),
            max_tokens=max_tokens,
            system_prompt=system,
            model_preferences=model,
            temperature=temperature,
            stop_sequences=stop,
            tools=tools,
            tool_choice=None if tool_choice is None else ToolChoice(tool_choice),
            metadata=metadata,
        )
        if tools is not None:
            self._require("sampling.tools", "sampling with tools")
        result = await self.ask("sampling/createMessage", params, timeout=timeout)
        assert isinstance(result, CreateMessageResult)
        return result

    async def roots(self, *, timeout: float | None = None) -> list[Root]:
        """The places that the user has opened.

        Raises:
            NotDeclared: the client does not tell.
        """
        result = await self.ask("roots/list", AskParams(), timeout=timeout)
        assert isinstance(result, ListRootsResult)
        return result.roots

    async def elicit(
        self, message: str, form: type[T], *, timeout: float | None = None
    ) -> Accepted[T] | Declined | Cancelled:
        """What the user answers to a question.

        Args:
            message: the question.
            form: what is wanted: a primitive, a Literal, an enum, or a flat dataclass, struct, TypedDict or
                model of them.
            timeout: seconds to wait; people may take their time, so there is none unless you say so.

        Raises:
            NotDeclared: the client has nobody to ask.
        """
        asked = form_of(form)
        params = ElicitParams(message=message, requested_schema=asked.schema)
        result = await self.ask("elicitation/create", params, timeout=timeout)
        assert isinstance(result, ElicitResult)
        return asked.read(result)

    async def elicit_url(
        self, message: str, url: str, *, timeout: float | None = None
    ) -> Accepted[None] | Declined | Cancelled:
        """Whether the user agrees to visit a URL, for what must not go through the client.

        Raises:
            NotDeclared: the client cannot open URLs.
        """
        self._require("elicitation.url", "URL elicitation")
        params = ElicitParams(message=message, mode="url", url=url, elicitation_id=secrets.token_urlsafe(16))
        result = await self.ask("elicitation/create", params, timeout=timeout)
        assert isinstance(result, ElicitResult)
        return ANSWERS[result.action]

    def _require(self, path: str, what: str) -> None:
        """Return if the client declared a capability finer than a method's own."""
        peer = self._incoming.peer
        if peer.capabilities is None or not declares(peer.capabilities, path):
            raise NotDeclared(path, f"the client does not offer {path!r}, which {what} needs")


def _turns(
    messages: str | Content | SamplingMessage | Sequence[SamplingMessage | str],
) -> list[SamplingMessage]:
    """Messages for the model; plain text and single blocks are the user's."""
    if isinstance(messages, str | Content | SamplingMessage):
        return [_turn(messages)]
    return [_turn(message) for message in messages]


def _turn(message: str | Content | SamplingMessage) -> SamplingMessage:
    if isinstance(message, SamplingMessage):
        return message
    return SamplingMessage("user", TextContent(message) if isinstance(message, str) else message)
