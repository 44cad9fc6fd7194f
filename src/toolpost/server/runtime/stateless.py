"""One request without a session: it is answered where it came in, and nothing of it stays.

What a `Conversation` is to a session, this is to a single HTTP request. Owns no task: whoever calls runs it,
and cancels it. Knows no HTTP; what is said before the answer goes to a function that it is given.
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
from toolpost.server.runtime.notifications import send_client_request, send_notification
from toolpost.server.runtime.pending_requests import build_client_request
from toolpost.server.runtime.request import is_being_cancelled, start_request, to_rpc_error
from toolpost.types.base import JSON, RequestId, Result, WireStruct

if TYPE_CHECKING:
    from toolpost.server.handler import Handler

NotificationSender = Callable[[bytes], Awaitable[None]]
"""Says something to the client before its answer."""


class StatelessExchange:
    """Who has sent a request that belongs to no session, for whom nothing is kept behind it.

    Args:
        connection: fresh; it has taken the request.
        say: where notices go.
        principal: on whose behalf the client speaks.
        headers: what the request came with.
        address: where it came from, as far as that is known.
    """

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
        """The HTTP headers that the request came with."""
        del incoming
        return self._headers

    def principal_of(self, incoming: InboundRequest | None) -> Principal | None:
        """On whose behalf the client speaks."""
        del incoming
        return self._principal

    async def interrupt(self, incoming: InboundRequest) -> None:
        """Do nothing: a client cannot come back to a stream that has no session."""

    async def hand_over(self, handler: "Handler") -> None:
        """Do nothing: nothing comes after this request."""

    async def send(self, data: bytes, related: RequestId | None = None) -> None:
        """Say something before the answer."""
        del related
        await self._send_notification(data)

    async def send_notification(
        self, context: Context, method: str, params: Any, build: Callable[[Any], bytes | None]
    ) -> None:
        """Say something, once all middleware has seen it."""
        await send_notification(self, context, method, params, build)

    async def send_request(
        self,
        context: Context,
        method: str | Row,
        params: WireStruct | Mapping[str, JSON] | None,
        timeout: float | None,
        key: str | None = None,
    ) -> Result:
        """The answer that the client has brought, if it is of the stateless era.

        Raises:
            Unanswered: it was not asked before.
            MissingCapability: it could not answer.
            LocalProtocolError: there is no way for an answer.
        """
        del timeout
        return await send_client_request(
            context,
            method,
            params,
            lambda context, params: self._reject_request(context, method, params),
            key,
        )

    async def _reject_request(
        self, context: Context, method: str | Row, params: WireStruct | Mapping[str, JSON] | None
    ) -> Result:
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
    """The bytes that answer a request, and the error in them, if it is one; none if nobody wants them.

    Args:
        handler: what serves it.
        once: who has sent it.
        incoming: the request.
        lifespan: what the server's lifespan gave.
        started: the call, if it has begun.
    """
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
        error = to_rpc_error(incoming, cancelled)  # the handler raised it, nobody cancelled the request
        data = connection.fail(incoming.id, error)
    except BaseException as raised:  # noqa: BLE001 - whatever a handler raises stays with its request
        error = to_rpc_error(incoming, raised)
        data = connection.fail(incoming.id, error)
    return data or b"", error
