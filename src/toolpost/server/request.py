"""The request that is served and the client that sent it, as a function sees them in its context.

Also `ClientConnection`, the interface that a context needs of the conversation or exchange around it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from toolpost.errors import InvalidParams
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import Row
from toolpost.types.base import JSON, UNSET, Meta, Params, Raw, RequestId, Result, Unset, WireStruct
from toolpost.types.initialize import ClientCapabilities, Implementation, LogLevel

if TYPE_CHECKING:
    from toolpost.server.context import Context
    from toolpost.server.handler import Handler
    from toolpost.server.state import State


_OBJECT_READER: Final = JSONReader(dict[str, JSON])


class ClientConnection(Protocol):
    """The interface of a context to its client: a conversation, or one stateless exchange."""

    connection: Connection

    @property
    def identity(self) -> object:
        """What a rate is limited by, if the principal is not known."""
        ...

    @property
    def uris(self) -> tuple[str, ...]:
        """The resources that the session subscribes to."""
        ...

    async def set_uris(self, uris: tuple[str, ...], /) -> None:
        """Change the resources that the session subscribes to."""

    def add_url_elicitation(self, elicitation_id: str, /) -> None:
        """Remember an elicitation by URL: the client may be notified of its end."""

    async def set_log_level(self, level: LogLevel, /) -> None:
        """Change the log level of the session."""

    def open_session_state(self) -> "State":
        """Return the state of the session."""
        ...

    def headers_of(self, incoming: InboundRequest | None) -> Mapping[str, str]:
        """Return the HTTP headers of a request."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether the client may be anywhere, so that scopes have to be proven."""
        ...

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Let the client of a request come back for the rest of its stream."""
        ...

    async def hand_over(self, handler: "Handler") -> None:
        """Let another handler serve the conversation, and hold its lifespan open until the end."""
        ...

    async def send(self, data: bytes, related: RequestId | None = None, *, outlives: bool = False) -> None:
        """Send a message to the client; `outlives` if it gets it even after the response."""
        ...

    async def ask(
        self,
        context: "Context",
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """Send a request to the client and return the result, in a session."""
        ...


class ContextRequest:
    """The request itself, or the notification. Called, it sends a request of your own to the client."""

    __slots__ = ("_client_connection", "_context", "_incoming", "method")

    def __init__(
        self, context: "Context", speaker: ClientConnection, method: str, incoming: InboundRequest | None
    ) -> None:
        self._context = context
        self._client_connection = speaker
        self._incoming = incoming
        self.method = method

    async def __call__(
        self, method: str, params: Mapping[str, JSON] | None = None, *, timeout: float | None = None
    ) -> Result:
        """Send a request of a method that is in no revision, and return the result; see its `raw`."""
        row = self._client_connection.connection.extra.get(method) or Row(method, Params, Result)
        return await self._context.send_request(row, params, timeout)

    @property
    def headers(self) -> Mapping[str, str]:
        """Its HTTP headers, by their names in lower case; none on other transports."""
        return dict(self._client_connection.headers_of(self._incoming))  # a copy: requests may share them

    @property
    def id(self) -> RequestId | None:
        """Its id; a notification has none."""
        return None if self._incoming is None else self._incoming.id

    @property
    def meta(self) -> Meta:
        """Its `_meta`; that of a notification is in its parameters."""
        return {} if self._incoming is None else self._incoming.meta


class ClientInfo:
    """The client of a request: `info` is its name and version, if it sends them; and its capabilities."""

    __slots__ = ("capabilities", "info")

    def __init__(self, info: Implementation | None, capabilities: ClientCapabilities) -> None:
        self.info = info
        self.capabilities = capabilities

    def __repr__(self) -> str:
        return f"<Client {self.info.name} {self.info.version}>" if self.info else "<Client>"


def decode_arguments(raw: Raw | bytes | Unset) -> dict[str, JSON]:
    """Return the arguments of a call as a dict; null counts as absent. Raises InvalidParams."""
    try:
        return _OBJECT_READER(UNSET if raw == Raw(b"null") else raw)
    except InvalidJSONValue as error:
        raise InvalidParams(f"Invalid params: arguments must be an object: {error}") from error
