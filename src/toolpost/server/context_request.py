"""The request and the client of a context.

Also `ClientConnection`: the interface between a context and the conversation or exchange around it.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from toolpost.errors import InvalidParams
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import Row
from toolpost.types.base import JSON, UNSET, Meta, Params, Raw, RequestId, Result, Struct, Unset, WireStruct
from toolpost.types.initialize import ClientCapabilities, Implementation, LogLevel
from toolpost.types.skills import APP_MIME_TYPE, APPS_EXTENSION

if TYPE_CHECKING:
    import asyncio

    from toolpost.server.context import Context
    from toolpost.server.handler import Handler
    from toolpost.server.state import State

R = TypeVar("R")

_OBJECT_READER: Final = JSONReader(dict[str, JSON])


class ClientConnection(Protocol):
    """The interface of a context to its client: a conversation, or one stateless exchange."""

    connection: Connection

    @property
    def endpoint(self) -> object:
        """The conversation, or the worker of an HTTP endpoint, which ends its subscriptions when it stops."""
        return None

    @property
    def identity(self) -> object:
        """The key for rate limits, if the principal is unknown."""
        return ""

    @property
    def uris(self) -> tuple[str, ...]:
        """The resources that the session subscribes to."""
        return ()

    async def set_subscription(self, uri: str, /, *, is_active: bool) -> None:
        """Subscribe the session to a resource, or unsubscribe it."""

    def add_url_elicitation(self, elicitation_id: str, /) -> None:
        """Remember a URL elicitation, so that the client can be notified of its end."""

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
        """Whether the client is remote, so that it has to prove its scopes."""
        return False

    @property
    def session_key(self) -> str | None:
        """A name for the session of HTTP that does not reveal its id."""
        return None

    @property
    def network(self) -> Mapping[str, str | int]:
        """How the client is connected, by the names of OpenTelemetry: transport, address, session."""
        return {}

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Close the stream of a request; the client resumes it later."""

    async def hand_over(self, handler: "Handler") -> None:
        """Let another handler serve the conversation, and hold its lifespan open until the end."""

    async def send(self, data: bytes, related: RequestId | None = None, *, outlives: bool = False) -> None:
        """Send a message to the client; `outlives` if it may follow the response."""

    async def send_client_request(self, data: bytes, related: RequestId | None, /) -> None:
        """Send a request on the stream of the client's own request, if there is one."""

    def get_request_task(self, incoming: InboundRequest, /) -> "asyncio.Task[Any] | None":  # noqa: ARG002 - there is none
        """Return the task that serves a request, if there is one."""
        return None

    def run_in_background(self, work: Coroutine[Any, Any, Any], /) -> object:
        """Run a coroutine in a task."""
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


class ContextRequest(Generic[R]):
    """The request itself, or the notification. Call it to send a custom request to the client."""

    __slots__ = ("_context", "_send")

    def __init__(self, context: "Context", send: Callable[[Coroutine[Any, Any, Result]], R]) -> None:
        self._context = context
        self._send = send

    def __call__(
        self, method: str, params: Mapping[str, JSON] | None = None, *, timeout: float | None = None
    ) -> R:
        """Send a request whose method is in no revision, and return the result; see its `raw`."""
        row = self._context.connection.local_peer.extra_rows.get(method) or Row(method, Params, Result)
        return self._send(self._context.send_request(row, params, timeout))

    @property
    def method(self) -> str:
        """The method."""
        return self._context.method

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers, by their names in lower case; none on other transports."""
        context = self._context
        return dict(context.client_connection.headers_of(context.incoming))  # a copy: requests may share them

    @property
    def target(self) -> str | None:
        """The name of the tool or prompt, or the URI of the resource, that the request is about."""
        params = None if self._context.incoming is None else self._context.incoming.params
        found: Any = getattr(params, "name", None) or getattr(params, "uri", None)
        return found if isinstance(found, str) else None

    @property
    def id(self) -> RequestId | None:
        """The id; a notification has none."""
        return self._context.related

    @property
    def params(self) -> bytes:
        """The raw parameters, for forwarding; a notification has none."""
        incoming = self._context.incoming
        return b"{}" if incoming is None or incoming.raw is UNSET else bytes(incoming.raw)

    @property
    def meta(self) -> Meta:
        """The `_meta`; that of a notification is in its parameters."""
        incoming = self._context.incoming
        return {} if incoming is None else incoming.meta


class ClientInfo(Struct):
    """The client of a request: its name and version, if it sends them, and its capabilities."""

    info: Implementation | None
    capabilities: ClientCapabilities

    @property
    def shows_apps(self) -> bool:
        """Whether the client shows the pages of apps (`Server.app`)."""
        settings: Any = (self.capabilities.extensions or {}).get(APPS_EXTENSION) or {}
        kinds: Any = settings.get("mimeTypes")
        return isinstance(kinds, list) and APP_MIME_TYPE in kinds

    def __repr__(self) -> str:
        return f"<Client {self.info.name} {self.info.version}>" if self.info else "<Client>"


def decode_arguments(raw: Raw | bytes | Unset) -> dict[str, JSON]:
    """Return the arguments of a call as a dict; null counts as absent. Raises InvalidParams."""
    try:
        return _OBJECT_READER(UNSET if raw == Raw(b"null") else raw)
    except InvalidJSONValue as error:
        raise InvalidParams(f"Invalid params: arguments must be an object: {error}") from error
