"""POSTs without a session: each is served in the ASGI task of its own request.

Also what an endpoint needs of the server behind it (`EndpointHost`). Sessions are in `sessions`.
"""

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from math import ceil, inf
from typing import Any, Protocol, TypeAlias, cast

from toolpost.errors import (
    HeaderMismatch,
    InternalError,
    InvalidRequest,
    MissingScopes,
    RateLimited,
    RemoteProtocolError,
    RPCError,
)
from toolpost.principal import Principal
from toolpost.protocol import jsonrpc, receive
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest, InvalidMessageReceived, NotificationReceived
from toolpost.protocol.http_routing import HeaderAnnotations, StatelessRoute, get_http_status, verify_headers
from toolpost.protocol.jsonrpc import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import INITIALIZE, SUBSCRIPTIONS_LISTEN, TOOLS_CALL
from toolpost.protocol.revisions import Revision
from toolpost.server.http.authorization import Authenticator, build_step_up_headers
from toolpost.server.http.capacity import MAX_SUBSCRIPTIONS, RequestCounts
from toolpost.server.http.request import HttpExchange
from toolpost.server.http.security import RETRY_AFTER, HTTPRefusal, read_body
from toolpost.server.http.session import HttpSession
from toolpost.stores.store import Store
from toolpost.types.base import UNSET, Struct

Started: TypeAlias = Any
"""A request that has begun to be served; what that is, the server knows."""


class Caller(Struct, frozen=True):
    """Who sends a request that has no session, and where what is said before its answer goes."""

    exchange: HttpExchange
    principal: Principal | None
    json_only: bool
    load: RequestCounts
    keeper: Authenticator | None = None


class EndpointHost(Protocol):
    """What an endpoint serves."""

    @property
    def store(self) -> Store:
        """Where sessions live."""
        ...

    @property
    def is_per_client(self) -> bool:
        """Whether it decides when a session begins what is served in it, by what the principal is allowed."""
        ...

    @property
    def local_peer(self) -> LocalPeer:
        """How it presents itself."""
        ...

    def hold_lifespan(self) -> AbstractAsyncContextManager[object]:
        """Hold it ready to serve."""
        ...

    def connection(self, peer: Peer | None = None) -> Connection:
        """A fresh connection of the server's; with a peer, one whose handshake was done elsewhere."""
        ...

    def take_back(self, connection: Connection) -> None:
        """Use a connection again that came without a peer, and in which nothing is left."""

    def find_header_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """The parameters of a tool that HTTP mirrors in headers."""
        ...

    def get_required_scopes(self, method: str, about: str) -> frozenset[str]:
        """The scopes of what a request is about, as far as they are known before it is served."""
        ...

    def begin(self, incoming: InboundRequest) -> bytes | Started | None:
        """The answer to one request that has no session, if it is there at once.

        None if nothing has begun; otherwise `answer` goes on with it.
        """
        ...

    def answer(
        self, connection: Connection, incoming: InboundRequest, caller: Caller, started: Started | None = None
    ) -> Coroutine[Any, Any, tuple[bytes, RPCError | None]]:
        """The answer to one request that has no session, and the error in it, if it is one."""
        ...

    async def hear(self, connection: Connection, notice: NotificationReceived, caller: Caller) -> None:
        """Hear a notice that has no session."""

    async def serve(self, session: HttpSession, principal: Principal | None) -> None:
        """Hold the conversation of a session, or go on with what is left of it."""

    def end_subscriptions(self) -> None:
        """End the subscriptions of stateless clients, each with its result."""


# --------------------------------------------------------------------- stateless


def begin_known(
    host: EndpointHost,
    incoming: InboundRequest,
    data: bytes,
    exchange: HttpExchange,
    load: RequestCounts | None = None,
) -> "bytes | AcceptedRequest":
    """Do the same as `begin_stateless` for a request whose head is known."""
    named, started = incoming.row.named, None
    if (
        load is not None
        and (named is None or getattr(incoming.params, named) == exchange.head.about)
        and (not load.calls or load.has_room(_get_peer_key(exchange, exchange.principal)))
    ):
        started, load = host.begin(incoming), None  # it starts once
        if isinstance(started, bytes):
            return started
    if incoming.raw is UNSET:  # it was recognised without decoding
        message = read_body(data)
        assert isinstance(message, JSONRPCRequest), "only requests are recognised"
        route = StatelessRoute()
    else:
        message = JSONRPCRequest(incoming.id, incoming.row.name, incoming.raw)
        route = StatelessRoute(incoming.peer, incoming.params.meta)
    return begin_stateless(host, message, route, exchange, load, started=started)


def begin_stateless(
    host: EndpointHost,
    message: JSONRPCRequest,
    route: StatelessRoute,
    exchange: HttpExchange,
    load: RequestCounts | None = None,
    *,
    started: Started | None = None,
) -> "bytes | AcceptedRequest":
    """Accept a request of the stateless era; return its answer if that is there at once.

    Without `load`, it is only accepted. `started` is what was started before.
    """
    connection, head = host.connection(), exchange.head
    event = receive.handle_request(connection, message, route.meta, route.peer)
    if isinstance(event, InvalidMessageReceived):
        raise RPCRefusal(_get_status(event), event.data or b"")
    assert isinstance(event, InboundRequest), "a request is accepted or refused"
    about = None if event.row.named is None else getattr(event.params, event.row.named)
    if about is not None and about != head.about:
        _check_headers(event, exchange.headers)
        head.about = about
    if load is not None and (not load.calls or load.has_room(_get_peer_key(exchange, exchange.principal))):
        started = host.begin(event)
        if isinstance(started, bytes):
            connection.mark_answered(event.id)
            host.take_back(connection)
            return started
    if started is None and event.row.name == TOOLS_CALL:
        _check_headers(event, exchange.headers, host.find_header_parameters(event.params.name))
    return AcceptedRequest(connection, event, started)


def _check_headers(
    event: InboundRequest, sent: Mapping[str, str], annotated: HeaderAnnotations | None = None
) -> None:
    """Refuse a request whose headers do not repeat what the body says."""
    try:
        verify_headers(sent, event, annotated)
    except HeaderMismatch as error:
        raise RPCRefusal(get_http_status(error.code), jsonrpc.encode_error(event.id, error)) from error


class RPCRefusal(HTTPRefusal):
    """Refuses a request with this JSON-RPC error."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(status, "")
        self._data = data

    @property
    def body(self) -> bytes:
        """The answer."""
        return self._data


class AcceptedRequest(Struct):
    """A request that may be served, and what was started of it."""

    connection: Connection
    event: InboundRequest
    started: Started | None = None


async def serve_stateless(host: EndpointHost, taken: AcceptedRequest, caller: Caller) -> None:
    """Answer a request of the stateless era, or continue one that has started."""
    exchange, event = caller.exchange, taken.event
    data, error = await _answer(host, taken.connection, event, caller, taken.started)
    if exchange.streaming:
        await exchange.send_event(data)
        await exchange.end_stream()
    elif error is None:
        await exchange.send_json(200, data)
    elif isinstance(error, MissingScopes):
        await _refuse_missing_scopes(caller, error.scopes, data)
    elif isinstance(error, RateLimited | _ClientLimitExceeded):
        await exchange.send_json(429, data, [(b"retry-after", _format_retry_after(error))])
    else:
        await exchange.send_json(get_http_status(event.peer.revision.translate_code(error.code)), data)


async def _refuse_missing_scopes(caller: Caller, scopes: Sequence[str], data: bytes) -> None:
    """Answer that the token lacks scopes, and which."""
    await caller.exchange.send_json(403, data, build_step_up_headers(caller.keeper, scopes, caller.principal))


class _ClientLimitExceeded(InternalError):
    """A client has more requests in flight than it may."""


def _format_retry_after(error: RPCError) -> bytes:
    """Return the `Retry-After` of a client that has sent too many requests."""
    if isinstance(error, _ClientLimitExceeded):
        return RETRY_AFTER[429]
    data: Any = error.data
    seconds: Any = cast("Any", data).get("retryAfter") if isinstance(data, dict) else None
    known = isinstance(seconds, int | float) and 0 < seconds < inf
    return b"%d" % (max(1, ceil(seconds)) if known else 1)


async def _answer(
    host: EndpointHost,
    connection: Connection,
    incoming: InboundRequest,
    caller: Caller,
    started: Started | None = None,
) -> tuple[bytes, RPCError | None]:
    load, principal = caller.load, caller.principal
    peer = _get_peer_key(caller.exchange, principal)
    listens = incoming.row.name == SUBSCRIPTIONS_LISTEN
    if listens:
        if load.streams >= load.max_streams:
            raise make_stream_limit_refusal(load.max_streams)
        # One address may stand for many people; a principal is one.
        most = load.limit if principal is None else MAX_SUBSCRIPTIONS
        if not load.open_subscription(peer, most):
            return _refuse_too_many(
                connection, incoming, f"Too many subscriptions: at most {most} may be open"
            )
    elif started is not None:
        load.add(peer)  # it is too late to refuse it
    elif (refused := load.begin(peer)) is not None:
        return _refuse_too_many(connection, incoming, refused)
    try:
        work = host.answer(connection, incoming, caller, started)
        return await caller.exchange.run_while_connected(work, unwanted=connection.close)
    except BaseException:  # also a cancellation
        connection.close()  # cancels the context of a function in a thread
        raise
    finally:
        (load.close_subscription if listens else load.end)(peer)


def _get_peer_key(exchange: HttpExchange, principal: Principal | None) -> str:
    """Return the name under which the calls of a client without a session are counted."""
    return exchange.address if principal is None else principal.key


def _refuse_too_many(connection: Connection, incoming: InboundRequest, words: str) -> tuple[bytes, RPCError]:
    error = _ClientLimitExceeded(words)
    return connection.fail(incoming.id, error) or b"", error


def make_stream_limit_refusal(most: int) -> HTTPRefusal:
    """Return the refusal of a stream if as many are open as there may be."""
    return HTTPRefusal(
        503, f"There are {most} streams open, and no more are allowed: come back later (max_streams=)."
    )


async def receive_stateless(host: EndpointHost, notice: JSONRPCMessage | None, caller: Caller) -> None:
    """Serve a notification of the stateless era."""
    assert isinstance(notice, JSONRPCNotification), "anything else was refused"
    await _receive_notification(host, host.connection(), notice, caller)
    await caller.exchange.send_empty(202)


async def _receive_notification(
    host: EndpointHost, connection: Connection, notice: JSONRPCNotification, caller: Caller
) -> None:
    event = connection.receive_message(notice)
    if isinstance(event, NotificationReceived):
        await host.hear(connection, event, caller)


def _get_status(event: InvalidMessageReceived) -> int:
    return get_http_status(event.error.code) if isinstance(event.error, RPCError) else 400


# --------------------------------------------------------------------- old clients, without sessions


async def serve_without_session(
    host: EndpointHost, message: JSONRPCMessage | None, data: bytes, revision: Revision, caller: Caller
) -> None:
    """Answer a message of the session era, or a batch, without any session."""
    exchange = caller.exchange
    lacks: Sequence[str] = ()
    if message is not None:
        answers, lacks = await _serve_one(host, message, revision, caller)
    else:
        answers: list[bytes] = []
        for item in _decode_batch(data):
            answers += (await _serve_one(host, item, revision, caller))[0]
    if exchange.streaming:
        for answer in answers:
            await exchange.send_event(answer)
        await exchange.end_stream()
    elif not answers:
        await exchange.send_empty(202)
    elif lacks:
        await _refuse_missing_scopes(caller, lacks, answers[0])
    else:
        await exchange.send_json(200, answers[0] if message is not None else jsonrpc.encode_batch(answers))


def _decode_batch(data: bytes) -> list[JSONRPCMessage | RemoteProtocolError]:
    try:
        return jsonrpc.decode_batch(data)
    except RemoteProtocolError as error:
        raise HTTPRefusal(400, error.message) from error


async def _serve_one(
    host: EndpointHost, message: JSONRPCMessage | RemoteProtocolError, revision: Revision, caller: Caller
) -> tuple[list[bytes], Sequence[str]]:
    """Return the answer to one message, if it has any, and the scopes that it lacks."""
    if isinstance(message, RemoteProtocolError):
        answer = message.answer or InvalidRequest(message.message)
        return [jsonrpc.encode_error(message.id, answer)], ()
    opening = isinstance(message, JSONRPCRequest) and message.method == INITIALIZE
    connection = host.connection(None if opening else Peer(revision))
    if isinstance(message, JSONRPCNotification):
        await _receive_notification(host, connection, message, caller)
        return [], ()
    event = connection.receive_message(message)
    if isinstance(event, InboundRequest):
        data, error = await _answer(host, connection, event, caller)
        return [data], error.scopes if isinstance(error, MissingScopes) else ()
    return [event.data] if isinstance(event, InvalidMessageReceived) and event.data else [], ()
