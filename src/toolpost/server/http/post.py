"""POST: reads a message, finds out which era and session it belongs to, serves it, and sends the response.

A request is served in the ASGI task. Without a session it ends with its client; in a session it goes on, and
the client may come back for its answer.
"""

import asyncio
import logging
from collections.abc import Sequence
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from toolpost.errors import (
    HeaderMismatch,
    InternalError,
    InvalidRequest,
    MissingScopes,
    RateLimited,
    RemoteProtocolError,
    RPCError,
)
from toolpost.protocol import headers, jsonrpc, receive
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest, InvalidMessageReceived, NotificationReceived
from toolpost.protocol.http_routing import (
    RejectedRoute,
    SessionRoute,
    StatelessRoute,
    classify,
    get_http_status,
    verify_headers,
)
from toolpost.protocol.jsonrpc import (
    InvalidJSONValue,
    JSONReader,
    JSONRPCErrorResponse,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from toolpost.protocol.methods import CANCELLED, INITIALIZE, INITIALIZED, SUBSCRIPTIONS_LISTEN, TOOLS_CALL
from toolpost.protocol.revisions import Revision
from toolpost.server.context import Context
from toolpost.server.http.authorization import build_step_up_headers
from toolpost.server.http.capacity import MAX_SUBSCRIPTIONS
from toolpost.server.http.reply import HttpReply
from toolpost.server.http.request import ClientDisconnected, HttpExchange, ResponseAborted
from toolpost.server.http.security import RETRY_AFTER, HTTPRefusal
from toolpost.server.http.sessions import Session, make_unknown_session
from toolpost.server.http.streams import SessionStream
from toolpost.server.http.worker import make_stream_limit_refusal
from toolpost.server.runtime.notifications import dispatch_notification, is_notification_handled
from toolpost.server.runtime.request import serve_request, to_rpc_error
from toolpost.types.notifications import CancelledParams

if TYPE_CHECKING:
    from toolpost.server.handler import Handler
    from toolpost.server.http.worker import Worker

logger: Final = logging.getLogger("toolpost.http")

_SESSION_HEADER: Final = headers.SESSION.encode()
MISSING_SESSION_TEXT: Final = (
    f"The header {headers.SESSION} is missing: send `initialize` first, and then the id that it gives."
)
_CANCELLED_PARAMS: Final = JSONReader(CancelledParams)


class RPCRefusal(HTTPRefusal):
    """Refuses a request with this JSON-RPC error."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(status, "")
        self._data = data

    @property
    def body(self) -> bytes:
        """The answer."""
        return self._data


class _ClientLimitExceeded(InternalError):
    """A client has more requests in flight than it may."""


async def serve_post(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCMessage | None, data: bytes
) -> None:
    """Serve a POST; `message` is None for a batch."""
    handler, counts = worker.handler, worker.counts
    is_new = message is None or isinstance(message, JSONRPCRequest)
    if is_new and counts.calls >= counts.max_calls:  # answers and cancellations let calls end
        raise HTTPRefusal(
            503, f"{counts.max_calls} requests are being served, and no more can be (max_calls=)."
        )
    route = classify(exchange.headers, message, handler.local_peer, handler.extra_methods)
    if isinstance(route, RejectedRoute):
        raise RPCRefusal(route.status, jsonrpc.encode_error(route.id, route.error))
    if isinstance(route, StatelessRoute):
        if isinstance(message, JSONRPCRequest):
            await _serve_stateless(worker, exchange, message, route)
        else:
            assert isinstance(message, JSONRPCNotification), "anything else was refused"
            await _take_notification(worker, handler, exchange, message, None)
            await exchange.send_empty(202)
    elif not worker.has_sessions:
        await _serve_without_session(worker, exchange, message, data, route.revision)
    elif route.session is None:
        if not route.is_initialize:
            raise HTTPRefusal(400, MISSING_SESSION_TEXT)  # HTTPL-26
        assert isinstance(message, JSONRPCRequest), "`initialize` is a request"
        await _initialize(worker, exchange, message)
    else:
        await _serve_in_session(worker, exchange, message, data, route)


def _get_peer(exchange: HttpExchange, session: Session | None = None) -> str:
    """Return for whom a request counts: a principal in all its sessions; else the session, or the address."""
    if exchange.principal is not None:
        return exchange.principal.key
    return exchange.address if session is None else session.id


# --------------------------------------------------------------------- without a session


def _connect(handler: "Handler", peer: Peer | None = None) -> Connection:
    return Connection(handler.local_peer, peer=peer, extra=handler.extra_methods, limit=handler.max_in_flight)


async def _serve_stateless(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCRequest, route: StatelessRoute
) -> None:
    """Serve a request of the stateless era."""
    handler = worker.handler
    connection = Connection(handler.local_peer, extra=handler.extra_methods, limit=handler.max_in_flight)
    event = receive.handle_request(connection, message, route.decoded)
    if isinstance(event, InvalidMessageReceived):
        status = get_http_status(event.error.code) if isinstance(event.error, RPCError) else 400
        raise RPCRefusal(status, event.data or b"")
    assert isinstance(event, InboundRequest), "a request is accepted or refused"
    _check_headers(handler, event, exchange)
    if event.row.name == SUBSCRIPTIONS_LISTEN:
        timer = worker.end_with_token(exchange)
        try:
            data, error = await _run_in_asgi_task(worker, exchange, connection, event)
        finally:
            if timer is not None:
                timer.cancel()
    else:
        data, error = await _run_in_asgi_task(worker, exchange, connection, event)
    if exchange.streaming:
        await exchange.send_event(data)
        await exchange.end_stream()
    elif error is None:
        await exchange.send_json(200, data)
    elif isinstance(error, MissingScopes):
        await _send_missing_scopes(worker, exchange, error.scopes, data)
    elif isinstance(error, RateLimited | _ClientLimitExceeded):
        await exchange.send_json(429, data, [(b"retry-after", _format_retry_after(error))])
    else:
        await exchange.send_json(get_http_status(event.peer.revision.translate_code(error.code)), data)


def _check_headers(handler: "Handler", event: InboundRequest, exchange: HttpExchange) -> None:
    """Refuse a request whose headers do not repeat what the body says."""
    row, params = event.row, event.params
    try:
        if row.named is not None:
            headers.check_name(exchange.headers.get(headers.NAME), getattr(params, row.named))
        if row.name == TOOLS_CALL and handler.has_header_parameters:
            verify_headers(exchange.headers, event, handler.find_header_parameters(params.name))
    except HeaderMismatch as error:
        raise RPCRefusal(get_http_status(error.code), jsonrpc.encode_error(event.id, error)) from error


async def _run_in_asgi_task(
    worker: "Worker", exchange: HttpExchange, connection: Connection, incoming: InboundRequest
) -> tuple[bytes, RPCError | None]:
    """Serve a request that ends with its client; return the response, and the error in it if it is one."""
    counts, principal = worker.counts, exchange.principal
    peer = exchange.address if principal is None else principal.key
    is_listen = incoming.row.name == SUBSCRIPTIONS_LISTEN
    if is_listen:
        if counts.streams >= counts.max_streams:
            raise make_stream_limit_refusal(counts.max_streams)
        # One address may stand for many people; a principal is one.
        most = counts.limit if principal is None else MAX_SUBSCRIPTIONS
        refused = counts.open_subscription(peer, most)
    else:
        refused = counts.begin(peer)
    if refused is not None:
        error = _ClientLimitExceeded(refused)
        return connection.fail(incoming.id, error) or b"", error
    reply = HttpReply(worker, connection, exchange)
    reply.is_quiet = worker.options.json_only and not is_listen
    context = Context(
        worker.handler,
        reply,
        incoming.row.name,
        incoming,
        lifespan=worker.lifespan,
        principal=principal,
    )
    try:
        data, error = await exchange.run_while_connected(serve_request(context), unwanted=connection.close)
    except BaseException:  # also a cancellation
        connection.close()  # cancels the context of a function in a thread
        raise
    finally:
        (counts.close_subscription if is_listen else counts.end)(peer)
    return data or b"", error


def _format_retry_after(error: RPCError) -> bytes:
    """Return the `Retry-After` of a client that has sent too many requests."""
    if isinstance(error, _ClientLimitExceeded):
        return RETRY_AFTER[429]
    data: Any = error.data
    seconds: Any = cast("Any", data).get("retryAfter") if isinstance(data, dict) else None
    known = isinstance(seconds, int | float) and 0 < seconds < inf
    return b"%d" % (max(1, ceil(seconds)) if known else 1)


async def _send_missing_scopes(
    worker: "Worker", exchange: HttpExchange, scopes: Sequence[str], data: bytes
) -> None:
    """Answer that the token lacks scopes, and which."""
    challenge = build_step_up_headers(worker.authenticator, scopes, exchange.principal)
    await exchange.send_json(403, data, challenge)


async def _take_notification(
    worker: "Worker",
    handler: "Handler",
    exchange: HttpExchange,
    message: JSONRPCNotification,
    session: Session | None,
) -> None:
    """Pass a notification of a client to the handler. What that raises is logged."""
    connection = _connect(handler) if session is None else worker.connect(handler, session)
    if session is not None and message.method == INITIALIZED and not session.is_initialized:
        connection.lifecycle.state = "greeted"
        session.is_initialized = True
    event = connection.receive_message(message)
    if not isinstance(event, NotificationReceived) or not is_notification_handled(handler, event):
        return
    reply = HttpReply(worker, connection, exchange, session)
    reply.is_quiet = session is None
    lifespan = worker.lifespan if session is None or session.server is None else session.server[1]
    work = dispatch_notification(handler, reply, lifespan, event, exchange.principal)
    if session is not None:
        worker.take_in_background(_get_peer(exchange, session), work, event.method)
        return
    try:
        await work
    except asyncio.CancelledError:
        raise
    except BaseException:  # an error in a function ends neither the request nor the process
        logger.exception("%s could not be served", event.method)


# --------------------------------------------------------------------- old clients, without sessions


async def _serve_without_session(
    worker: "Worker",
    exchange: HttpExchange,
    message: JSONRPCMessage | None,
    data: bytes,
    revision: Revision,
) -> None:
    """Answer a message of the session era, or a batch, without any session."""
    scopes: Sequence[str] = ()
    answers: list[bytes] = []
    for item in _decode_batch(data) if message is None else (message,):
        answer, error = await _serve_item_without_session(worker, exchange, item, revision)
        answers += [answer] if answer else []
        scopes = error.scopes if isinstance(error, MissingScopes) and message is not None else ()
    if exchange.streaming:
        for answer in answers:
            await exchange.send_event(answer)
        await exchange.end_stream()
    elif not answers:
        await exchange.send_empty(202)
    elif scopes:
        await _send_missing_scopes(worker, exchange, scopes, answers[0])
    else:
        await exchange.send_json(200, answers[0] if message is not None else jsonrpc.encode_batch(answers))


def _decode_batch(data: bytes) -> list[JSONRPCMessage | RemoteProtocolError]:
    try:
        return jsonrpc.decode_batch(data)
    except RemoteProtocolError as error:
        raise HTTPRefusal(400, error.message) from error


async def _serve_item_without_session(
    worker: "Worker",
    exchange: HttpExchange,
    message: JSONRPCMessage | RemoteProtocolError,
    revision: Revision,
) -> tuple[bytes | None, RPCError | None]:
    """Return the answer to one message, if it has any, and the error in it."""
    if isinstance(message, RemoteProtocolError):
        return jsonrpc.encode_error(message.id, message.answer or InvalidRequest(message.message)), None
    if isinstance(message, JSONRPCNotification):
        await _take_notification(worker, worker.handler, exchange, message, None)
        return None, None
    opening = isinstance(message, JSONRPCRequest) and message.method == INITIALIZE
    connection = _connect(worker.handler, None if opening else Peer(revision))
    event = connection.receive_message(message)
    if isinstance(event, InboundRequest):
        return await _run_in_asgi_task(worker, exchange, connection, event)
    return (event.data if isinstance(event, InvalidMessageReceived) else None), None


# --------------------------------------------------------------------- in a session


async def _initialize(worker: "Worker", exchange: HttpExchange, message: JSONRPCRequest) -> None:
    """Open a session; its id goes out with the answer to the handshake, if that is no error."""
    handler = worker.handler
    connection = _connect(handler)
    event = receive.handle_request(connection, message)
    if isinstance(event, InvalidMessageReceived):
        await exchange.send_json(200, event.data or b"")
        return
    assert isinstance(event, InboundRequest), "a request is accepted or refused"
    session = await worker.sessions.open(event.peer, exchange.principal)
    session.changes_seen = handler.broadcaster.position
    before = exchange.extra
    exchange.extra = (*before, (_SESSION_HEADER, session.id.encode()))
    stream = SessionStream(worker, session, exchange, event.id)
    answer, error = await _run_call(worker, exchange, session, connection, event, stream=stream)
    if error is not None or answer is None:
        exchange.extra = before
        await worker.sessions.discard(session)
    await _send_answer(worker, exchange, session, answer, error)


async def _serve_in_session(
    worker: "Worker",
    exchange: HttpExchange,
    message: JSONRPCMessage | None,
    data: bytes,
    route: SessionRoute,
) -> None:
    """Serve a message or a batch of a session."""
    sessions, principal = worker.sessions, exchange.principal
    assert route.session is not None, "checked before"
    session = sessions.find_fresh(route.session, principal) or await sessions.find(route.session, principal)
    if isinstance(message, JSONRPCRequest):
        stream = SessionStream(worker, session, exchange, message.id)
        answer, error = await _answer(worker, exchange, session, message, stream=stream)
        await _send_answer(worker, exchange, session, answer, error)
    elif message is not None:
        await _take_message(worker, exchange, session, message)
        await exchange.send_empty(202)
    elif not session.peer.revision.batches:
        raise HTTPRefusal(400, "A batch is not part of the protocol revision of this session.")
    else:
        await _serve_batch(worker, exchange, session, data)


async def _send_answer(
    worker: "Worker", exchange: HttpExchange, session: Session, answer: bytes | None, error: RPCError | None
) -> None:
    """Send the response to one request, unless its event stream was the response."""
    if exchange.streaming:
        return
    if answer is None and session.settings.is_ended:
        raise make_unknown_session()
    if answer is None:
        await exchange.send_empty(202)  # it was cancelled
    elif isinstance(error, MissingScopes) and worker.needs_scopes:
        await _send_missing_scopes(worker, exchange, error.scopes, answer)
    else:
        await exchange.send_json(200, answer)


_Answer: TypeAlias = tuple[bytes | None, RPCError | None]
"""The response to a request, None if it was cancelled; and the error in it, if it is one."""


async def _answer(
    worker: "Worker",
    exchange: HttpExchange,
    session: Session,
    message: JSONRPCRequest,
    *,
    stream: SessionStream,
    is_shared: bool = False,
) -> _Answer:
    """Serve a request of a session; a batch shares its stream."""
    error: RPCError | None = None
    if session.early_cancellations and message.id in session.early_cancellations:
        del session.early_cancellations[message.id]
        error = InternalError("The request was cancelled before it came")
    elif session.calls is not None and message.id in session.calls:
        shown = jsonrpc.shorten(repr(message.id))
        error = InvalidRequest(f"Invalid request: id {shown} is in use by another request")
    if error is not None:
        return jsonrpc.encode_error(message.id, error), error
    handler = worker.handler
    if session.server is not None or handler.is_per_client:
        handler = await worker.get_server(session, exchange)
    connection = worker.connect(handler, session)
    event = receive.handle_request(connection, message)
    if isinstance(event, InvalidMessageReceived):
        return event.data, None
    assert isinstance(event, InboundRequest), "a request is accepted or refused"
    return await _run_call(worker, exchange, session, connection, event, stream=stream, is_shared=is_shared)


async def _run_call(
    worker: "Worker",
    exchange: HttpExchange,
    session: Session,
    connection: Connection,
    incoming: InboundRequest,
    *,
    stream: SessionStream,
    is_shared: bool = False,
) -> _Answer:
    """Serve a request of a session in the current task. It goes on when its client has gone."""
    counts, peer = worker.counts, _get_peer(exchange, session)
    refused = counts.begin(peer)
    if refused is not None:
        error = InternalError(refused)
        return connection.fail(incoming.id, error), error
    task = asyncio.current_task()
    assert task is not None, "a request is served in a task"
    reply = HttpReply(worker, connection, exchange, session, stream)
    reply.is_quiet = worker.options.json_only
    reply.task = task
    reply.cancel = task.cancel if is_shared else exchange.abort
    handler, lifespan = (worker.handler, worker.lifespan) if session.server is None else session.server[:2]
    context = Context(
        handler, reply, incoming.row.name, incoming, lifespan=lifespan, principal=exchange.principal
    )
    session.calls = session.calls or {}
    session.calls[incoming.id] = reply
    data, error = None, None
    try:
        work = serve_request(context)
        data, error = await (
            work if is_shared else exchange.run_while_connected(work, session.touch, is_detached=True)
        )
    except (ClientDisconnected, ResponseAborted):
        if connection.incoming.get(incoming.id) is incoming:  # not cancelled by the client: the server stops
            if not stream.is_open:
                raise
            error = InternalError("The request was given up: the server, or one of its workers, stops.")
            data = connection.fail(incoming.id, error)
    except asyncio.CancelledError as cancelled:
        if connection.incoming.get(incoming.id) is incoming:  # the function has cancelled its own task
            if worker.is_over and not stream.is_open:
                raise
            task.uncancel()
            error = to_rpc_error(incoming, cancelled)
            data = connection.fail(incoming.id, error)
    finally:
        counts.end(peer)
        if session.calls.get(incoming.id) is reply:
            del session.calls[incoming.id]
    if stream.is_open and not is_shared:
        await stream.end(data)
    return data, error


async def _take_message(
    worker: "Worker", exchange: HttpExchange, session: Session, message: JSONRPCMessage
) -> None:
    """Take a notification or an answer of a session."""
    if isinstance(message, JSONRPCResponse | JSONRPCErrorResponse):
        await worker.take_answer(session, message)
        return
    assert isinstance(message, JSONRPCNotification), "requests are served elsewhere"
    if message.method == INITIALIZED:
        await worker.sessions.complete_handshake(session)
    elif message.method == CANCELLED:
        await _cancel(worker, session, message)
        return
    handler = await worker.get_server(session, exchange)
    await _take_notification(worker, handler, exchange, message, session)


async def _cancel(worker: "Worker", session: Session, message: JSONRPCNotification) -> None:
    """Cancel a request of a session, on whichever worker it is served."""
    try:
        request_id = _CANCELLED_PARAMS(message.params).request_id
    except InvalidJSONValue:
        return
    if request_id is not None and not worker.cancel_request(session, request_id):
        session.cancel_early(request_id)
        await worker.announce("cancel", worker.sessions.get_key(session), jsonrpc.encode(request_id))


async def _serve_batch(worker: "Worker", exchange: HttpExchange, session: Session, data: bytes) -> None:
    """Serve a batch: its requests at once, their answers together."""
    requests: list[JSONRPCRequest] = []
    items = _decode_batch(data)
    for item in items:
        if isinstance(item, RemoteProtocolError):
            raise HTTPRefusal(400, item.message)
    for item in items:
        if isinstance(item, JSONRPCRequest):
            requests.append(item)
        elif not isinstance(item, RemoteProtocolError):
            await _take_message(worker, exchange, session, item)
    answers = await _serve_batch_requests(worker, exchange, session, requests) if requests else []
    if exchange.streaming:
        return
    if answers:
        await exchange.send_json(200, jsonrpc.encode_batch(answers))
    else:
        await exchange.send_empty(202)


async def _serve_batch_requests(
    worker: "Worker", exchange: HttpExchange, session: Session, requests: list[JSONRPCRequest]
) -> list[bytes]:
    """Return the answers to the requests of a batch; none if they went out as events."""
    used = set(session.calls or ())
    for request in requests:
        if request.id not in used:
            used.add(request.id)
            continue
        shown = jsonrpc.shorten(repr(request.id))
        error = InvalidRequest(f"Invalid request: id {shown} is in use by another request")
        return [jsonrpc.encode_error(request.id, error) for request in requests]
    stream = SessionStream(worker, session, exchange, requests[0].id)

    async def answer(request: JSONRPCRequest) -> None:
        data, _ = await _answer(worker, exchange, session, request, stream=stream, is_shared=True)
        if data is not None:
            await stream.add_answer(data)

    async def answer_all() -> None:
        await asyncio.gather(*map(answer, requests))

    await exchange.run_while_connected(answer_all(), session.touch, is_detached=True)
    if stream.is_open:
        await stream.end(None)
    return list(stream.answers)
