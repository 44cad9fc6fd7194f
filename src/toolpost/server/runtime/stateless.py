"""One request without a session: served in the caller's task, and nothing is kept.

The counterpart of `conversation` for a single HTTP request. Knows no HTTP: messages before the response go to
a function that it is given.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolpost.errors import CapabilityNotDeclared, RPCError
from toolpost.principal import Principal
from toolpost.protocol.connection import Connection
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import Row
from toolpost.server.context import Context
from toolpost.server.runtime.eager import is_pending
from toolpost.server.runtime.fast_path import StartedCall
from toolpost.server.runtime.pending_requests import build_client_request
from toolpost.server.runtime.request import is_being_cancelled, start_request, to_rpc_error
from toolpost.types.base import JSON, RequestId, Result, WireStruct

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

NotificationSender = Callable[[bytes], Awaitable[None]]
"""Sends a message to the client before the response."""


class StatelessExchange:
    """The client of one request without a session, as a context sees it."""

    __slots__ = (
        "_headers",
        "_principal",
        "_send_notification",
        "address",
        "connection",
        "state",
        "subscribed_uris",
        "url_elicitations",
    )

    is_remote = True

    def __init__(
        self,
        connection: Connection,
        say: NotificationSender,
        principal: Principal | None,
        headers: Mapping[str, str],
        address: str = "",
    ) -> None:
        self.connection = connection
        self._principal = principal
        self.state: dict[str, Any] = {}
        self.subscribed_uris: set[str] = set()
        self.url_elicitations: dict[str, None] = {}
        self._send_notification = say
        self._headers = headers
        self.address = address

    def headers_of(self, incoming: InboundRequest | None) -> Mapping[str, str]:
        """Return the HTTP headers of the request."""
        del incoming
        return self._headers

    def principal_of(self, incoming: InboundRequest | None) -> Principal | None:
        """Return the principal of the request."""
        del incoming
        return self._principal

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Do nothing: without a session a client cannot resume a stream."""

    async def hand_over(self, handler: "Handler") -> None:
        """Do nothing: no request follows."""

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Send a message before the response."""
        del related
        await self._send_notification(data)

    async def ask(
        self,
        context: Context,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
    ) -> Result:
        """Raise CapabilityNotDeclared: without a session the client cannot answer."""
        del timeout
        outgoing = build_client_request(self.connection, context.incoming, method, params)
        self.connection.cancel(outgoing.id)
        raise CapabilityNotDeclared(
            outgoing.row.needs or outgoing.row.name,
            f"{outgoing.row.name} cannot be asked: there is no session over which the client could answer",
            hint="serve with stateless=False",
        )


async def serve_stateless_request(
    handler: "Handler",
    once: StatelessExchange,
    incoming: InboundRequest,
    lifespan: Any,
    started: StartedCall | None = None,
) -> tuple[bytes, RPCError | None]:
    """Return the response to a request, and the error in it if it is one; empty if it was cancelled."""
    connection = once.connection
    try:
        context = Context(handler, once, incoming.row.name, incoming, lifespan=lifespan)
        begun = (
            start_request(handler.routes, handler.middleware, context, incoming)
            if started is None
            else started.go_on(context)
        )
        data = connection.reply(incoming.id, await begun if is_pending(begun) else begun)
        error = None
    except asyncio.CancelledError as cancelled:
        if is_being_cancelled():
            raise
        error = to_rpc_error(incoming, cancelled)  # the handler itself raised it
        data = connection.fail(incoming.id, error)
    except BaseException as raised:  # noqa: BLE001 - whatever a handler raises stays with its request
        error = to_rpc_error(incoming, raised)
        data = connection.fail(incoming.id, error)
    return data or b"", error
