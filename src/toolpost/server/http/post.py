"""POST: finds the era and the session of a message, serves it, and sends the response.

A request is served in the ASGI task. Without a session it ends with its client; in a session it continues:
the client may reconnect for its response.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import nullcontext, suppress
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
from toolpost.protocol.http_routing import StatelessRoute, classify, get_http_status, verify_headers
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
from toolpost.protocol.revisions import LATEST, Revision
from toolpost.server.context import Context
from toolpost.server.http.authorization import build_step_up_headers
from toolpost.server.http.exchange import (
    RETRY_AFTER,
    ClientDisconnected,
    HttpExchange,
    HTTPRefusal,
    ResponseAborted,
)
from toolpost.server.http.reply import HttpReply
from toolpost.server.http.sessions import Session
from toolpost.server.http.streams import SessionStream
from toolpost.server.http.worker import MAX_SUBSCRIPTIONS, run_logged
from toolpost.server.runtime.dispatch import serve_request, to_rpc_error
from toolpost.server.runtime.notifications import dispatch_notification, is_notification_handled
from toolpost.types.base import RequestId
from toolpost.types.notifications import CancelledParams

if TYPE_CHECKING:
    from toolpost.server.http.worker import Worker

logger: Final = logging.getLogger("toolpost.http")

_SESSION_HEADER: Final = headers.SESSION.encode()
MISSING_SESSION_TEXT: Final = (
    f"Missing header {headers.SESSION}: send `initialize` first, then the session id from its response."
)
_ALREADY_WORKING: Final = nullcontext()  # for an item of a batch: the batch has already entered the exchange
_CANCELLED_PARAMS: Final = JSONReader(CancelledParams)


_Answer: TypeAlias = tuple[bytes | None, RPCError | None]  # the response, if any; the error in it, if any


class _ClientLimitExceeded(InternalError):
    """A client has too many requests in flight."""


def serve_post(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCMessage | None, data: bytes
) -> Awaitable[object]:
    """Return the awaitable that serves a POST; `message` is None for a batch."""
    try:
        route = classify(exchange.raw_headers, message, worker.handler.local_peer)
    except RPCError as error:
        # The id of a posted response is one of ours, so an error must not carry it.
        request_id = message.id if isinstance(message, JSONRPCRequest) else None
        raise HTTPRefusal(400, body=jsonrpc.encode_error(request_id, error)) from error
    if isinstance(route, StatelessRoute):
        if isinstance(message, JSONRPCRequest):
            return _serve_stateless(worker, exchange, message, route)
        return _serve_without_session(worker, exchange, message, data, LATEST)  # a notification
    if not worker.has_sessions:
        return _serve_without_session(worker, exchange, message, data, route.revision)
    if route.session is not None:
        return _serve_in_session(worker, exchange, message, data, route.session)
    if not route.is_initialize:
        raise HTTPRefusal(400, MISSING_SESSION_TEXT)  # HTTPL-26
    assert isinstance(message, JSONRPCRequest), "`initialize` is a request"
    return _initialize(worker, exchange, message)


# --------------------------------------------------------------------- without a session


def _serve_stateless(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCRequest, route: StatelessRoute
) -> Awaitable[object]:
    handler = worker.handler
    connection, incoming = Connection(handler.local_peer, limit=handler.max_in_flight), route.incoming
    if incoming is not None:
        connection.incoming[incoming.id] = incoming
    else:
        event = receive.handle_request(connection, message)
        if isinstance(event, InvalidMessageReceived):
            status = get_http_status(event.error.code) if isinstance(event.error, RPCError) else 400
            raise HTTPRefusal(status, body=event.data)
        incoming = event
    row, annotated = incoming.row, None
    if row.name == TOOLS_CALL and handler.has_header_parameters:
        annotated = handler.find_header_parameters(incoming.params.name)
    try:
        if row.named is not None:
            verify_headers(exchange.raw_headers, incoming, annotated)
    except HeaderMismatch as error:
        body = jsonrpc.encode_error(incoming.id, error)
        raise HTTPRefusal(get_http_status(error.code), body=body) from error
    if row.name == SUBSCRIPTIONS_LISTEN:
        return _serve_listen(worker, exchange, connection, incoming)
    return _run_request(worker, exchange, connection, incoming)


async def _serve_listen(
    worker: "Worker", exchange: HttpExchange, connection: Connection, incoming: InboundRequest
) -> None:
    """Serve a subscription. It counts as a stream, and ends with the token of its client."""
    counts, principal = worker.counts, exchange.principal
    peer, limit = exchange.address, counts.limit
    if principal is not None:  # one address may have many users; a principal is one
        peer, limit = principal.key, MAX_SUBSCRIPTIONS
    refused = counts.open_subscription(peer, limit)
    if refused is not None:
        error = _ClientLimitExceeded(refused)
        answer, revision = connection.fail(incoming.id, error), incoming.peer.revision
        await _send_answer(worker, exchange, answer, error, revision=revision)
        return
    timer = worker.end_with_token(exchange)
    try:
        await _run_request(worker, exchange, connection, incoming, is_listen=True)
    finally:
        counts.close_subscription(peer)
        if timer is not None:
            timer.cancel()


async def _run_request(
    worker: "Worker",
    exchange: HttpExchange,
    connection: Connection,
    incoming: InboundRequest,
    stream: SessionStream | None = None,
    *,
    is_listen: bool = False,
    is_in_batch: bool = False,
    is_held: bool = False,
) -> _Answer:
    """Serve a request in the current task and send its answer, unless it is in a batch or held back.

    The request ends with its client, unless it has the stream of a session.
    """
    session, principal = None if stream is None else stream.session, exchange.principal
    peer = principal.key if principal is not None else exchange.address if session is None else session.id
    refused = None if is_listen else worker.counts.begin(peer)
    if refused is not None:
        error: RPCError | None = _ClientLimitExceeded(refused)
        answer = connection.fail(incoming.id, error)
    else:
        reply = HttpReply(worker, connection, exchange, session, stream)
        reply.is_quiet = worker.options.json_only and not is_listen
        handler, lifespan = worker.handler, worker.lifespan
        if session is None:
            exchange.unwanted = connection.close
        else:
            handler, lifespan = worker.get_server(session)
            _register_call(exchange, session, reply, incoming.id, is_in_batch=is_in_batch)
        method = incoming.row.name
        context = Context(handler, reply, method, incoming, lifespan=lifespan, principal=principal)
        try:
            with _ALREADY_WORKING if is_in_batch else exchange:
                answer, error = await serve_request(context)
        except BaseException as raised:
            ended = _end_call(worker, stream, connection, incoming, raised)
            if ended is None:
                connection.close()  # cancels the context of a function in a thread
                raise
            answer, error = ended
        finally:
            if not is_listen:
                worker.counts.end(peer)
            if session is not None:
                session.remove_call(incoming.id)
    if error is None and answer is not None and not (exchange.streaming or is_in_batch or is_held):
        await exchange.respond(200, answer)
    elif not (is_in_batch or is_held):
        await _send_answer(worker, exchange, answer, error, revision=incoming.peer.revision, stream=stream)
    return answer, error


def _register_call(
    exchange: HttpExchange, session: Session, reply: HttpReply, request_id: RequestId, *, is_in_batch: bool
) -> None:
    """Let other requests of the session find a call, and let it outlast a disconnect."""
    task = asyncio.current_task() if is_in_batch else exchange.task
    assert task is not None, "a request is served in a task"
    reply.task = task
    reply.cancel = task.cancel if is_in_batch else exchange.abort
    session.calls = session.calls or {}
    session.calls[request_id] = reply
    exchange.pulse, exchange.is_detached = session.touch, True


def _end_call(
    worker: "Worker",
    stream: SessionStream | None,
    connection: Connection,
    incoming: InboundRequest,
    raised: BaseException,
) -> _Answer | None:
    """Return the answer to a call that was interrupted; None if there is none to send."""
    is_over = worker.is_over
    is_aborted = isinstance(raised, ClientDisconnected | ResponseAborted)
    if not is_aborted and not isinstance(raised, asyncio.CancelledError):
        return None
    is_cancelled = connection.incoming.get(incoming.id) is not incoming
    if stream is None and (
        is_aborted or is_cancelled or is_over or incoming.row.name == SUBSCRIPTIONS_LISTEN
    ):
        return None
    if is_cancelled:
        return None, None
    if stream is not None and not stream.is_open and (is_aborted or is_over):
        return None
    if is_aborted:
        error: RPCError = InternalError("The request was aborted: the server or a worker is shutting down.")
    else:  # the function has cancelled its own task
        task = asyncio.current_task()
        assert task is not None, "a request is served in a task"
        task.uncancel()
        error = to_rpc_error(incoming, raised)
    return connection.fail(incoming.id, error), error


async def _send_answer(
    worker: "Worker",
    exchange: HttpExchange,
    answer: bytes | None,
    error: RPCError | None,
    *,
    revision: Revision,
    stream: SessionStream | None = None,
) -> None:
    """Send the answer to one request: it may end a stream, and errors have their own status."""
    if stream is not None and stream.is_open:
        await stream.end(answer)
    elif exchange.streaming:
        await exchange.send_event(answer or b"", is_last=True)
    elif answer is None and stream is not None and stream.session.settings.is_ended:
        raise HTTPRefusal(404, "The session ended while this request was served.")
    elif answer is None:
        await exchange.respond(202)  # it was cancelled
    elif error is not None and error.is_forwarded:
        await exchange.respond(200, answer)  # it is about the server behind us, not about this request
    elif isinstance(error, MissingScopes) and (stream is None or worker.needs_scopes):
        challenge = build_step_up_headers(worker.authenticator, error.scopes, exchange.principal)
        await exchange.respond(403, answer, challenge)
    elif error is None or not revision.stateless:
        await exchange.respond(200, answer)
    elif isinstance(error, RateLimited | _ClientLimitExceeded):
        await exchange.respond(429, answer, [(b"retry-after", _format_retry_after(error))])
    else:
        await exchange.respond(get_http_status(revision.translate_code(error.code)), answer)


def _format_retry_after(error: RPCError) -> bytes:
    if isinstance(error, _ClientLimitExceeded):
        return RETRY_AFTER[429]
    data: Any = error.data
    seconds: Any = cast("Any", data).get("retryAfter") if isinstance(data, dict) else None
    known = isinstance(seconds, int | float) and 0 < seconds < inf
    return b"%d" % (max(1, ceil(seconds)) if known else 1)


async def _take_notification(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCNotification, session: Session | None
) -> None:
    """Pass a notification of a client to the handler, and log its exceptions."""
    handler, lifespan = worker.get_server(session)
    connection = worker.connect(session)
    if session is not None and message.method == INITIALIZED and not session.is_initialized:
        connection.lifecycle.state = "greeted"
        session.is_initialized = True
    event = connection.receive_message(message)
    if not isinstance(event, NotificationReceived) or not is_notification_handled(handler, event):
        return
    reply = HttpReply(worker, connection, exchange, session)
    reply.is_quiet = session is None
    work = dispatch_notification(handler, reply, lifespan, event, exchange.principal)
    if session is None:
        await run_logged(work, f"{event.method:.100} could not be handled")
        return
    peer, counts = session.id if exchange.principal is None else exchange.principal.key, worker.counts
    if counts.begin(peer) is None:
        worker.run_in_background(work).add_done_callback(lambda _: counts.end(peer))
    else:
        work.close()
        text = "dropped %.100s: too many messages of its client are being handled"
        logger.log(worker.warnings.choose_level(), text, event.method)


# --------------------------------------------------------------------- old clients, without sessions


async def _serve_without_session(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCMessage | None, data: bytes, revision: Revision
) -> None:
    """Answer a message of the session era, or a batch, without any session."""
    if message is not None:
        answer, error = await _answer_without_session(worker, exchange, message, revision)
        await _send_answer(worker, exchange, answer, error, revision=revision)
        return
    serve, answers = _answer_without_session, list[_Answer]()
    with exchange:
        for item in _decode_batch(data):
            answers.append(await serve(worker, exchange, item, revision, is_in_batch=True))
    await _send_batch(exchange, [answer for answer, _ in answers if answer])


async def _send_batch(exchange: HttpExchange, answers: list[bytes]) -> None:
    if exchange.streaming:
        for answer in answers:
            await exchange.send_event(answer)
        await exchange.end_stream()
    elif answers:
        await exchange.respond(200, jsonrpc.encode_batch(answers))
    else:
        await exchange.respond(202)


def _decode_batch(data: bytes) -> list[JSONRPCMessage | RemoteProtocolError]:
    try:
        return jsonrpc.decode_batch(data)
    except RemoteProtocolError as error:
        raise HTTPRefusal(400, error.message) from error


async def _answer_without_session(
    worker: "Worker",
    exchange: HttpExchange,
    message: JSONRPCMessage | RemoteProtocolError,
    revision: Revision,
    *,
    is_in_batch: bool = False,
) -> _Answer:
    """Return the answer to a message of a client that has no session."""
    if isinstance(message, RemoteProtocolError):
        return jsonrpc.encode_error(message.id, message.answer or InvalidRequest(message.message)), None
    if isinstance(message, JSONRPCNotification):
        await _take_notification(worker, exchange, message, None)
        return None, None
    is_initialize = isinstance(message, JSONRPCRequest) and message.method == INITIALIZE
    connection = worker.connect(peer=None if is_initialize else Peer(revision))
    event = connection.receive_message(message)
    if isinstance(event, InboundRequest):
        held = not is_in_batch
        return await _run_request(worker, exchange, connection, event, is_in_batch=is_in_batch, is_held=held)
    return (event.data if isinstance(event, InvalidMessageReceived) else None), None


# --------------------------------------------------------------------- in a session


async def _initialize(worker: "Worker", exchange: HttpExchange, message: JSONRPCRequest) -> None:
    """Open a session; its id goes out with the answer to the handshake, unless that is an error."""
    connection = worker.connect()
    event = receive.handle_request(connection, message)
    if isinstance(event, InvalidMessageReceived):
        await exchange.respond(200, event.data or b"")
        return
    session = await worker.sessions.open(event.peer, exchange.principal)
    session.changes_seen = worker.handler.broadcaster.position
    before = exchange.extra
    exchange.extra = (*before, (_SESSION_HEADER, session.id.encode()))
    stream = SessionStream(worker, session, exchange, event.id)
    answer, error = await _run_request(worker, exchange, connection, event, stream, is_held=True)
    if error is not None or answer is None:
        exchange.extra = before
        await worker.sessions.discard(session)
    await _send_answer(worker, exchange, answer, error, revision=event.peer.revision, stream=stream)


async def _serve_in_session(
    worker: "Worker", exchange: HttpExchange, message: JSONRPCMessage | None, data: bytes, session_id: str
) -> None:
    sessions, principal = worker.sessions, exchange.principal
    session = sessions.find_fresh(session_id, principal) or await sessions.find(session_id, principal)
    if isinstance(message, JSONRPCRequest):
        if worker.handler.is_per_client:
            await worker.choose_server(session, exchange)
        connection = worker.connect(session)
        accepted = _accept_in_session(worker, session, connection, message)
        if isinstance(accepted, bytes):
            await exchange.respond(200, accepted)
            return
        stream = SessionStream(worker, session, exchange, message.id)
        await _run_request(worker, exchange, connection, accepted, stream)
    elif message is not None:
        await _take_message(worker, exchange, session, message)
        await exchange.respond(202)
    elif not session.peer.revision.batches:
        raise HTTPRefusal(400, "The protocol revision of this session does not support batches.")
    else:
        await _serve_batch(worker, exchange, session, data)


def _make_id_in_use(request_id: RequestId) -> InvalidRequest:
    shown = jsonrpc.shorten(repr(request_id))
    return InvalidRequest(f"Invalid request: id {shown} is in use by another request")


def _accept_in_session(
    worker: "Worker", session: Session, connection: Connection, message: JSONRPCRequest
) -> InboundRequest | bytes:
    """Return a request of a session, or the error response that refuses it."""
    error: RPCError | None = None
    if worker.is_cancelled_early(session, message.id):
        error = InternalError("The request was cancelled before it arrived")
    elif session.calls is not None and message.id in session.calls:
        error = _make_id_in_use(message.id)
    if error is not None:
        return jsonrpc.encode_error(message.id, error)
    event = receive.handle_request(connection, message)
    return event if isinstance(event, InboundRequest) else event.data or b""


async def _take_message(
    worker: "Worker", exchange: HttpExchange, session: Session, message: JSONRPCMessage
) -> None:
    if isinstance(message, JSONRPCResponse | JSONRPCErrorResponse):
        await worker.take_answer(session, message)
        return
    assert isinstance(message, JSONRPCNotification), "requests are served elsewhere"
    if message.method == CANCELLED:
        with suppress(InvalidJSONValue):
            request_id = _CANCELLED_PARAMS(message.params).request_id
            if request_id is not None and not worker.cancel_request(session.key, request_id):
                await worker.announce("cancel", session.key, jsonrpc.encode(request_id))
        return
    await worker.choose_server(session, exchange)
    await _take_notification(worker, exchange, message, session)


async def _serve_batch(worker: "Worker", exchange: HttpExchange, session: Session, data: bytes) -> None:
    """Serve a batch: its requests at once, their answers together."""
    items = _decode_batch(data)
    for item in items:
        if isinstance(item, RemoteProtocolError):
            raise HTTPRefusal(400, item.message)
    requests = [item for item in items if isinstance(item, JSONRPCRequest)]
    for item in items:
        if not isinstance(item, JSONRPCRequest | RemoteProtocolError):
            await _take_message(worker, exchange, session, item)
    ids = [*(session.calls or ()), *(request.id for request in requests)]
    if not requests or len(set(ids)) < len(ids):
        used = next((each for number, each in enumerate(ids) if each in ids[:number]), "")
        error = _make_id_in_use(used)
        await _send_batch(exchange, [jsonrpc.encode_error(each.id, error) for each in requests])
        return
    stream = SessionStream(worker, session, exchange, requests[0].id)

    async def answer(request: JSONRPCRequest) -> None:
        connection = worker.connect(session)
        accepted = _accept_in_session(worker, session, connection, request)
        if isinstance(accepted, bytes):
            data: bytes | None = accepted
        else:
            data, _ = await _run_request(worker, exchange, connection, accepted, stream, is_in_batch=True)
        if data is not None:
            await stream.add_answer(data)

    await worker.choose_server(session, exchange)

    exchange.pulse, exchange.is_detached = session.touch, True
    with exchange:
        await asyncio.gather(*map(answer, requests))
    if stream.is_open:
        await stream.end(None)
    else:
        await _send_batch(exchange, list(stream.answers))
