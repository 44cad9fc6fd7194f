"""`HttpReply`: the client of one HTTP request, as its context sees it.

Messages and requests to the client go to the stream of its own request, or else to the general stream of the
session. The response to such a request arrives in a separate POST, perhaps at another worker.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolpost.errors import CapabilityNotDeclared, ChannelClosed, LocalProtocolError
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import ErrorReceived, InboundRequest, ResponseReceived
from toolpost.protocol.jsonrpc import JSONRPCErrorResponse, JSONRPCResponse
from toolpost.protocol.methods import Row
from toolpost.server.http.exchange import HttpExchange
from toolpost.server.http.sessions import Session
from toolpost.server.http.streams import GeneralStream, SessionStream, send_general
from toolpost.server.runtime.pending_requests import PendingClientRequests, build_client_request
from toolpost.server.state import State
from toolpost.types.base import JSON, RequestId, Result, Struct, WireStruct
from toolpost.types.initialize import LogLevel

if TYPE_CHECKING:
    from types import CoroutineType

    from toolpost.server.context import Context
    from toolpost.server.handler import Handler
    from toolpost.server.http.worker import Worker


class HttpReply(Struct, eq=False):
    """The client of one HTTP request, with or without a session."""

    endpoint: "Worker"
    connection: Connection
    exchange: HttpExchange | None
    session: Session | None = None
    stream: SessionStream | GeneralStream | None = None
    is_quiet: bool = False
    """Whether nothing may be sent before the response."""
    task: "asyncio.Task[Any] | None" = None
    """The task that serves the request."""
    cancel: Callable[[], object] | None = None
    """Cancels the request."""
    _pending_requests: PendingClientRequests | None = None

    @property
    def is_remote(self) -> bool:
        """Clients over HTTP have to prove their scopes."""
        return True

    @property
    def has_client(self) -> bool:
        """Whether the client waits for the response."""
        return self.exchange is not None and not self.exchange.has_ended

    @property
    def identity(self) -> object:
        """The key of rate limits if the principal is not known: the session, or the address."""
        if self.session is not None:
            return self.session.id
        return "" if self.exchange is None else self.exchange.address

    def headers_of(self, incoming: InboundRequest | None) -> Mapping[str, str]:
        """Return the HTTP headers of the request."""
        del incoming
        return {} if self.exchange is None else self.exchange.headers

    def open_session_state(self) -> State:
        """Return the state of the session; without one, a state that ends with the request."""
        if self.session is None:
            return State.in_memory()
        return self.endpoint.sessions.open_state(self.session)

    def cancel_request(self) -> None:
        """Cancel the request: the client no longer wants a response."""
        calls = (self.session and self.session.calls) or {}
        for request_id in tuple(self.connection.incoming):
            calls.pop(request_id, None)
        self.connection.incoming.clear()
        if self.cancel is not None:
            self.cancel()

    # ----------------------------------------------------------------- the session

    @property
    def uris(self) -> tuple[str, ...]:
        """The resources that the session subscribes to."""
        return () if self.session is None else self.session.settings.uris

    async def set_subscription(self, uri: str, *, is_active: bool) -> None:
        """Subscribe the session to a resource, or unsubscribe it."""
        if self.session is not None:
            await self.endpoint.sessions.set_subscription(self.session, uri, is_active=is_active)

    async def set_log_level(self, level: LogLevel) -> None:
        """Change the log level of the session."""
        self.connection.log_level = level
        if self.session is not None:
            await self.endpoint.sessions.set_log_level(self.session, level)

    def add_url_elicitation(self, elicitation_id: str) -> None:
        """Remember an elicitation by URL: the client may be notified of its end."""
        if self.session is not None:
            sessions = self.endpoint.sessions
            work = sessions.set_url_elicitation(self.session, elicitation_id, is_pending=True)
            self.endpoint.run_in_background(work)

    async def hand_over(self, handler: "Handler") -> None:
        """Let another server serve the later requests of this session."""
        if self.session is not None:
            await self.endpoint.hand_over(self.session, handler)

    # ----------------------------------------------------------------- messages

    def send(
        self, data: bytes, related: RequestId | None = None, *, outlives: bool = False
    ) -> "CoroutineType[Any, Any, None]":
        """Send a message before the response; `outlives` if the client must get it even after that."""
        is_in_flight = bool(self.connection.incoming)
        if self.session is None:
            if not self.is_quiet and self.exchange is not None:
                return self.exchange.send_event(data)
        elif self.stream is None or (outlives and not is_in_flight):
            return send_general(self.endpoint, self.session, data)
        elif related is None or (is_in_flight and not self.is_quiet):
            return self.stream.send(data)  # after the response, messages are too late (HTTPL-14)
        return _send_nothing()

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Make the client reconnect for the rest of the stream of this request."""
        del incoming
        if isinstance(self.stream, SessionStream) and not self.is_quiet:
            await self.stream.interrupt()

    # ----------------------------------------------------------------- requests to the client

    async def ask(
        self,
        context: "Context",
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """Send a request to the client and return the result; without a session it cannot answer."""
        connection = self.connection
        if self.session is None:
            outgoing = build_client_request(connection, context.incoming, method, params)
            connection.cancel(outgoing.id)
            name = outgoing.row.name
            raise CapabilityNotDeclared(
                outgoing.row.needs or name,
                f"cannot send {name}: there is no session in which the client could respond",
                hint="serve with stateless=False",
            )
        if self._pending_requests is None:
            self._pending_requests = PendingClientRequests(self, self.endpoint.loop)
        worker = self.endpoint
        connection.next_id = request_id = worker.number << 32 | (worker.next_number() & 0xFFFFFFFF)
        worker.questions[request_id] = self
        try:
            return await self._pending_requests.send_request(context, method, params, timeout)
        finally:
            del worker.questions[request_id]

    async def send_client_request(self, data: bytes, related: RequestId | None) -> None:
        """Send a request to the client. Raises LocalProtocolError if no stream leads to it."""
        assert self.session is not None, "checked before"
        if related is not None and self.is_quiet:
            raise LocalProtocolError(
                "cannot send a request to the client: the server responds with plain JSON",
                hint="serve with json_only=False",
            )
        if related is not None and self.stream is not None:
            await self.stream.send(data)
            if isinstance(self.stream, SessionStream) and self.stream.is_lost:
                raise ChannelClosed("the client disconnected, and cannot resume the stream")
        else:
            await send_general(self.endpoint, self.session, data, is_request=True)

    def fail_questions(self) -> None:
        """Fail the requests that the client can no longer read."""
        if self._pending_requests is not None:
            self._pending_requests.fail_lost(tuple(self.connection.outgoing.values()))

    def resolve(self, message: JSONRPCResponse | JSONRPCErrorResponse) -> None:
        """Take the client's answer to a request."""
        event = self.connection.receive_message(message)
        if self._pending_requests is not None and isinstance(event, ResponseReceived | ErrorReceived):
            self._pending_requests.resolve(event)

    def get_request_task(self, incoming: InboundRequest) -> "asyncio.Task[Any] | None":
        """Return the task that serves the request, if there is one."""
        del incoming
        return self.task

    def run_in_background(self, work: Any) -> None:
        """Run a coroutine in a task that ends with the worker."""
        self.endpoint.run_in_background(work)


async def _send_nothing() -> None:
    """Drop a message that has no stream."""
