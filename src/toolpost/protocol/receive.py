"""Handling of received messages: one function per kind of message.

The receiving half of `connection`, which owns the state that is read and changed here. Every message becomes
exactly one event, and none of these functions raises.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import ValidationError, convert

from toolpost.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MCPError,
    MethodNotFound,
    RemoteProtocolError,
    RPCError,
    UserRejected,
    make_rpc_error,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import NO_META, STATELESS_ERA, Peer, read_meta
from toolpost.protocol.events import (
    CancellationReceived,
    ConnectionEvent,
    ErrorReceived,
    InboundRequest,
    InvalidMessageReceived,
    MessageDropped,
    NotificationReceived,
    OutboundRequest,
    ProgressReceived,
    ResponseReceived,
)
from toolpost.protocol.extension import make_missing_extension_error
from toolpost.protocol.forward import make_raw_row
from toolpost.protocol.jsonrpc import (
    DECODE_ERRORS,
    InvalidJSONValue,
    JSONReader,
    JSONRPCErrorResponse,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    describe_decode_error,
    shorten,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, INITIALIZE, INITIALIZED, ROWS, SERVER, SUBSCRIPTIONS_LISTEN, Row
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, Revision, find_newest, negotiate
from toolpost.types.base import UNSET, InputRequiredResult, Raw, RequestId, Result, Struct, Unset
from toolpost.types.initialize import (
    SERVER_INFO,
    DiscoverResult,
    Implementation,
    InitializeParams,
    InitializeResult,
    RequestMeta,
)
from toolpost.types.notifications import CancelledParams, ListenResult, ProgressParams

if TYPE_CHECKING:
    from toolpost.protocol.connection import Connection


class _ResultWithType(Struct, rename="camel"):
    result_type: str = "complete"


class _CreatedTask(Struct):
    task: Raw | Unset = UNSET


# A server with a session still reads the notifications of stateless clients, and the other way round.
_NOTIFICATION_ROWS: Final = {
    by: {**LATEST_SESSION.notifications[by], **LATEST.notifications[by]} for by in (CLIENT, SERVER)
}

_PROTOCOL_METHODS: Final = frozenset(row.name for row in ROWS)

MAX_IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024  # bytes of a peer's unanswered requests, small ones not counted
MAX_INPUT_RESPONSES: Final = 256  # input responses of a request: more than a user is asked in one round
MAX_EARLY_CANCELLATIONS: Final = 64  # cancellations to remember whose requests may still be on their way
SMALL_REQUEST_BYTES: Final = 64 * 1024  # requests up to this size are bounded by their number alone

_RESULT_TYPE_READER: Final = JSONReader(_ResultWithType)
_CREATED_TASK_READER: Final = JSONReader(_CreatedTask)


def handle_message(
    connection: "Connection", message: JSONRPCResponse | JSONRPCNotification | JSONRPCErrorResponse
) -> ConnectionEvent:
    """Return the event for a message that is not a request."""
    if type(message) is JSONRPCNotification:
        return _handle_notification(connection, message)
    request_id = message.id
    if type(request_id) is str:
        request_id = jsonrpc.restore_id(request_id)
    outgoing = None if request_id is None else connection.outgoing.pop(request_id, None)
    if outgoing is None and request_id is not None:
        is_late = isinstance(request_id, int) and 0 < request_id < connection.next_id
        return drop(connection, "late response" if is_late else "response to an unknown request")
    if type(message) is JSONRPCErrorResponse:
        return _handle_error(connection, message, outgoing)
    assert outgoing is not None, "a result has an id"
    row = outgoing.row
    try:
        result = _decode_result(outgoing, message.result)
        accept = _ACCEPT_RESULT.get(type(result))
        if accept is not None:
            accept(connection, row, result)
    except InvalidJSONValue as error:
        wrong = RemoteProtocolError(f"invalid result for {row.name}: {error}")
        return _fail_request(connection, outgoing, wrong)
    except RemoteProtocolError as error:
        return _fail_request(connection, outgoing, error)
    return ResponseReceived(outgoing, result)


def handle_request(
    connection: "Connection", message: JSONRPCRequest
) -> InboundRequest | InvalidMessageReceived:
    """Return the event for a request."""
    method, request_id = message.method, message.id
    try:
        if connection.lifecycle.state == "closed":
            connection.lifecycle.check_incoming(method)
        if connection.incoming or connection.early_cancellations:
            _check_in_flight_limits(connection, message)
        incoming = _decode_request(connection, message)
    except (RPCError, *DECODE_ERRORS) as error:
        if not isinstance(error, RPCError):
            error = InvalidParams(f"Invalid params for {method}: {describe_decode_error(error)}")
        return InvalidMessageReceived(error, jsonrpc.encode_error(request_id, error), request_id)
    connection.incoming[request_id] = incoming
    return incoming


def _decode_request(connection: "Connection", message: JSONRPCRequest) -> InboundRequest:
    """Decode any request, with errors that name the fault."""
    peer, local_peer = connection.peer, connection.local_peer
    if local_peer.role == SERVER and (peer is None or connection.lifecycle.state == "ready"):
        revision = local_peer.newest if peer is None else peer.revision
        if peer is not None or revision.stateless:
            decoded = decode_ordinary_request(local_peer, revision, message, peer)
            if decoded is not None:
                return decoded
    method, raw = message.method, message.params
    meta = read_meta(raw)
    peer = _identify_peer(connection, method, meta)
    row = local_peer.served_rows[peer.revision.date].get(method)
    if row is None:
        row = _make_forwarded_row(connection, method, peer.revision)
    params: Any = row.read_params.decode(b"{}" if raw is UNSET else raw)
    extensions = (peer.capabilities and peer.capabilities.extensions) or ()
    if row.extension is not None and not row.for_all_clients and row.extension not in extensions:
        raise make_missing_extension_error(row.extension)  # the client did not declare it (VER-5)
    if row.can_require_input and len(params.input_responses or ()) > MAX_INPUT_RESPONSES:
        raise InvalidParams(f"Invalid params: inputResponses has more than {MAX_INPUT_RESPONSES} members")
    if isinstance(params, InitializeParams):
        peer = _accept_initialize(connection, params)
    token = None if meta.progress_token is UNSET else meta.progress_token
    return InboundRequest(message.id, row, params, peer, raw, token)


def decode_ordinary_request(
    local_peer: LocalPeer, revision: Revision, message: JSONRPCRequest, peer: Peer | None = None
) -> InboundRequest | None:
    """Decode an ordinary request to a server in one pass; None if it needs the general way, with its errors.

    `peer` is the client of a session; without one, the request is stateless, and so is the revision.
    """
    row, raw = local_peer.served_rows[revision.date].get(message.method), message.params
    if row is None or row.early or row.extension is not None or raw is UNSET:
        return None
    try:
        params: Any = row.read_whole.decode(raw)
    except DECODE_ERRORS:
        return None
    meta: RequestMeta = params.meta or NO_META
    if peer is None:
        if meta.protocol_version != revision.date or meta.client_capabilities is UNSET:
            return None
        peer = Peer(revision, meta.client_capabilities, meta.client_info or None, meta.log_level or None)
    elif meta.protocol_version is not UNSET:
        return None
    if row.can_require_input and params.input_responses:
        return None
    token = meta.progress_token
    return InboundRequest(message.id, row, params, peer, raw, None if token is UNSET else token)


def _identify_peer(connection: "Connection", method: str, meta: RequestMeta) -> Peer:
    """Return the sender of a request: the peer of the session, or the one that its `_meta` names (VER-1)."""
    peer, ready = connection.peer, connection.lifecycle.state == "ready"
    if ready and peer is not None and meta.protocol_version is UNSET and method != INITIALIZE:
        return peer
    stateless = connection.role == SERVER and (
        meta.protocol_version is not UNSET
        or (not connection.local_peer.has_sessions and method != INITIALIZE)
    )
    if stateless:
        STATELESS_ERA.check_meta(meta)
        return STATELESS_ERA.read_peer(connection.local_peer, meta)
    connection.lifecycle.check_incoming(method)  # before a session is open, few pass (LIFE-1, LIFE-5)
    return peer or Peer(LATEST_SESSION)


def _check_in_flight_limits(connection: "Connection", message: JSONRPCRequest) -> None:
    """Reject an id in use, a request that was cancelled early, and too many requests in flight."""
    if connection.early_cancellations and message.id in connection.early_cancellations:
        del connection.early_cancellations[message.id]
        raise InternalError("The request was cancelled before it arrived")
    if message.id in connection.incoming:
        raise InvalidRequest(f"Invalid request: id {shorten(repr(message.id))} is in use by another request")
    if len(connection.incoming) >= connection.limit:
        raise InternalError(f"Too many requests in flight: the limit is {connection.limit}")
    size = _measure_request(message.id, message.params)
    held = (_measure_request(other.id, other.raw) for other in connection.incoming.values())
    if size > SMALL_REQUEST_BYTES and size + sum(held) > MAX_IN_FLIGHT_BYTES:
        raise InternalError(f"Too many bytes in flight: the limit is {MAX_IN_FLIGHT_BYTES}")


def _measure_request(request_id: RequestId, params: Raw | Unset) -> int:
    size = 0 if params is UNSET else memoryview(params).nbytes
    return size + len(request_id) if isinstance(request_id, str) else size


def _make_forwarded_row(connection: "Connection", method: str, revision: Revision) -> Row:
    """Return the row of a request that we only forward; MethodNotFound if we do not offer it (ERR-10)."""
    if connection.local_peer.forwards and method not in _PROTOCOL_METHODS:
        return make_raw_row(method)
    row = connection.find_row(method, revision, connection.local_peer.peer_role, is_request=True)
    why = "" if row is None else f" (this {connection.role} does not offer {row.needs})"
    raise MethodNotFound(f"Method not found: {shorten(method)}{why}")


def _accept_initialize(connection: "Connection", params: InitializeParams) -> Peer:
    """Accept the client that opens a session, and return it."""
    revision = negotiate(params.protocol_version, connection.local_peer.supported)
    if revision is None:
        raise connection.local_peer.make_unsupported_error(params.protocol_version)
    connection.lifecycle.move(INITIALIZE)
    return Peer(revision, params.capabilities, params.client_info)


def _handle_notification(connection: "Connection", message: JSONRPCNotification) -> ConnectionEvent:
    method = message.method
    row = connection.find_row(method, connection.revision, connection.local_peer.peer_role, is_request=False)
    if row is None:
        row = _NOTIFICATION_ROWS[connection.local_peer.peer_role].get(method)
    if row is None:
        return NotificationReceived(method, None, None, message.params)
    try:
        params = row.read_params(message.params)
    except InvalidJSONValue as error:
        return drop(connection, "malformed notification", RemoteProtocolError(f"invalid {method}: {error}"))
    if isinstance(params, CancelledParams):
        return _handle_cancellation(connection, params)
    if isinstance(params, ProgressParams):
        return _handle_progress(connection, params)
    if method == INITIALIZED and not connection.lifecycle.move("initialized"):
        return drop(connection, "unexpected notifications/initialized")
    return NotificationReceived(method, params, row, message.params)


def _handle_cancellation(connection: "Connection", params: CancelledParams) -> ConnectionEvent:
    request_id = params.request_id
    if request_id is None:
        return drop(connection, "cancellation without a request id")
    incoming = connection.incoming.get(request_id)
    if incoming is not None and incoming.row.name != INITIALIZE:  # LIFE-16
        del connection.incoming[request_id]
        return CancellationReceived(incoming, params.reason)
    outgoing = connection.outgoing.get(request_id)
    if outgoing is not None and outgoing.row.name == SUBSCRIPTIONS_LISTEN:
        # A stateless server ends a subscription this way, or by answering, or both (CANC-13).
        del connection.outgoing[request_id]
        return ResponseReceived(outgoing, ListenResult())
    if connection.is_unordered:
        early = connection.early_cancellations = connection.early_cancellations or {}
        early[request_id] = None
        if len(early) > MAX_EARLY_CANCELLATIONS:
            del early[next(iter(early))]
    return drop(connection, "cancellation of an unknown request")


def _handle_progress(connection: "Connection", params: ProgressParams) -> ConnectionEvent:
    outgoing = connection.outgoing.get(cast("RequestId", jsonrpc.restore_id(params.progress_token)))
    if outgoing is None or outgoing.token is None:
        return drop(connection, "progress of an unknown request")
    if outgoing.progress is not None and params.progress <= outgoing.progress:
        return drop(connection, "progress that does not increase")
    outgoing.progress = params.progress
    return ProgressReceived(outgoing, params)


def _decode_result(outgoing: OutboundRequest, raw: Raw) -> Result:
    """Decode the result of a request. Nearly all are complete, so that is tried first."""
    if not outgoing.task:
        decode = outgoing.row.results["complete"].decode
        try:
            result = decode(raw)
        except DECODE_ERRORS:
            pass  # another kind, or invalid
        else:
            if not outgoing.revision.stateless or result.result_type == "complete":
                vars(result)["raw"] = raw
                return result
    return outgoing.row.read_result(raw, _read_result_type(outgoing, raw))


def _read_result_type(outgoing: OutboundRequest, raw: Raw) -> str | None:
    """Return the kind of a result: named in the stateless era; in a session it may be a requested task."""
    if outgoing.revision.stateless:
        return _RESULT_TYPE_READER(raw).result_type
    return None if outgoing.task and _CREATED_TASK_READER(raw).task is not UNSET else "complete"


def _check_input_requests(_: "Connection", row: Row, result: InputRequiredResult) -> None:
    """Refuse a result that requires input but asks for none (MRTR-5)."""
    if not result.input_requests and result.request_state is None:
        raise RemoteProtocolError(f"the result of {row.name} requires input, but has no input requests")


def _fail_request(connection: "Connection", outgoing: OutboundRequest, error: MCPError) -> ErrorReceived:
    """Return the event for a failed request of ours; a handshake may be tried again."""
    if outgoing.row.name == INITIALIZE:
        connection.lifecycle.move("refused")
    return ErrorReceived(outgoing, error)


def _complete_initialize(connection: "Connection", _: Row, result: InitializeResult) -> None:
    """Remember the server of the session (LIFE-12)."""
    revision = find_newest([result.protocol_version], era="session", among=connection.local_peer.supported)
    if revision is None:
        raise RemoteProtocolError(
            f"unsupported protocol revision of the server: {shorten(result.protocol_version)}",
            hint=f"this client supports {', '.join(connection.local_peer.supported)}",
        )
    connection.lifecycle.move("answered")
    connection.set_peer(Peer(revision, result.capabilities, result.server_info))


def _adopt_discovered_server(connection: "Connection", _: Row, result: DiscoverResult) -> None:
    """Remember the server of a stateless conversation, if we share a revision."""
    revision = find_newest(result.supported_versions, era="stateless", among=connection.local_peer.supported)
    if revision is not None and connection.revision.stateless:
        info: Implementation | None = None
        with suppress(ValidationError):  # an unreadable name is not an error (DISC-3)
            info = convert((result.meta or {}).get(SERVER_INFO), Implementation | None)
        connection.set_peer(Peer(revision, result.capabilities, info))


_ACCEPT_RESULT: Final[dict[type[Result], Callable[["Connection", Row, Any], None]]] = {
    InitializeResult: _complete_initialize,
    DiscoverResult: _adopt_discovered_server,
    InputRequiredResult: _check_input_requests,
}
"""What has to be done with some results; raises RemoteProtocolError for an invalid one."""


def _handle_error(
    connection: "Connection", message: JSONRPCErrorResponse, outgoing: OutboundRequest | None
) -> ConnectionEvent:
    revision = connection.revision if outgoing is None else outgoing.revision
    code, text, is_session = message.code, message.message, not revision.stateless
    error = make_rpc_error(code, text, message.data, session=is_session, peer=connection.peer_name)
    # A user who declines has declined the whole call: its client gets its own error back.
    error.is_foreign = connection.role == CLIENT or not isinstance(error, UserRejected)
    if outgoing is None:
        return drop(connection, "error without an id", error)
    return _fail_request(connection, outgoing, error)


def handle_invalid(connection: "Connection", error: RemoteProtocolError) -> ConnectionEvent:
    """Return the event for bytes that are not a valid message."""
    if error.reply:
        outgoing = None if error.id is None else connection.outgoing.pop(error.id, None)
        if outgoing is None:
            return drop(connection, "malformed response", error)
        return _fail_request(connection, outgoing, error)
    if error.answer is None:
        return drop(connection, "malformed notification", error)
    if connection.role == CLIENT and (connection.revision.stateless or error.id is None):
        # A stateless client sends no answers, and stray output of a server is not a request.
        return drop(connection, "malformed message", error)
    return InvalidMessageReceived(error, jsonrpc.encode_error(error.id, error.answer), error.id)


def drop(
    connection: "Connection", why: str, error: RemoteProtocolError | RPCError | None = None
) -> MessageDropped:
    """Count a message that has no effect."""
    counts = connection.dropped_counts
    connection.dropped_counts = {**counts, why: counts.get(why, 0) + 1}
    return MessageDropped(why, error)
