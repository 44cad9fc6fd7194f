"""Handling of received messages: one function per kind of message.

The receiving half of `connection`, which owns the state that is read and changed here. Every message becomes
exactly one event, and none of these functions raises.
"""

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from toolpost.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MCPError,
    MethodNotFound,
    RemoteProtocolError,
    RPCError,
    make_rpc_error,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import NO_META, SESSION_ERA, STATELESS_ERA, Peer, read_meta
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
from toolpost.protocol.methods import CLIENT, INITIALIZE, INITIALIZED, SERVER, SUBSCRIPTIONS_LISTEN, Row
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


class _ServerInfoMeta(Struct, rename={"info": SERVER_INFO}):
    info: Implementation | None = None


class _ResultWithServerInfo(Struct, rename={"meta": "_meta"}):
    meta: _ServerInfoMeta | None = None


# A server with a session still reads the notifications of stateless clients, and the other way round.
_NOTIFICATION_ROWS: Final = {
    by: {**LATEST_SESSION.notifications[by], **LATEST.notifications[by]} for by in (CLIENT, SERVER)
}

MAX_IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024
"""How many bytes the unanswered requests of one peer may have, small ones not counted."""

MAX_INPUT_RESPONSES: Final = 256
"""How many input responses a request may carry: more than a person is asked in one round."""

MAX_EARLY_CANCELLATIONS: Final = 64
"""How many cancellations to remember whose requests may still be on their way."""

SMALL_REQUEST_BYTES: Final = 64 * 1024
"""Requests up to this size are bounded by their number alone."""

_RESULT_TYPE_READER: Final = JSONReader(_ResultWithType)
_CREATED_TASK_READER: Final = JSONReader(_CreatedTask)
_SERVER_INFO_READER: Final = JSONReader(_ResultWithServerInfo)


def handle_message(
    connection: "Connection", message: JSONRPCResponse | JSONRPCNotification | JSONRPCErrorResponse
) -> ConnectionEvent:
    """Return the event for a message that is not a request."""
    if isinstance(message, JSONRPCNotification):
        return _handle_notification(connection, message)
    outgoing = None if message.id is None else connection.outgoing.pop(message.id, None)
    if outgoing is None and message.id is not None:
        return _drop_unexpected_response(connection, message.id)
    if isinstance(message, JSONRPCErrorResponse):
        return _handle_error(connection, message, outgoing)
    assert outgoing is not None, "a result has an id"
    row, raw = outgoing.row, message.result
    try:
        result = _decode_result(outgoing, raw)
        if isinstance(result, InitializeResult):
            _complete_initialize(connection, result)
        elif isinstance(result, DiscoverResult):
            _adopt_discovered_server(connection, result, raw)
        elif isinstance(result, InputRequiredResult):
            _check_input_requests(row, result)
    except InvalidJSONValue as error:
        wrong = RemoteProtocolError(f"{row.name} was answered with an invalid result: {error}")
        return _fail_request(connection, outgoing, wrong)
    except RemoteProtocolError as error:
        return _fail_request(connection, outgoing, error)
    return ResponseReceived(outgoing, result)


def handle_request(
    connection: "Connection", message: JSONRPCRequest, decoded: "DecodedRequest | None" = None
) -> ConnectionEvent:
    """Return the event for a request; `decoded` if that was done before, as HTTP does."""
    method = message.method
    if connection.role == CLIENT and connection.revision.stateless:
        return _drop(connection, "request to a stateless client")  # it must not answer (MSG-21, MSG-22)
    try:
        if connection.lifecycle.state == "closed":
            connection.lifecycle.check_incoming(method)
        raw = message.params
        decoded = decoded or _decode_session_request(connection, message)
        row, params, meta, peer = decoded or _decode_request(connection, message)
        if connection.incoming or connection.early_cancellations:
            _check_in_flight_limits(connection, message)
        if row.can_require_input:  # its parameters are `InputResponseParams`
            if len(params.input_responses or ()) > MAX_INPUT_RESPONSES:
                raise InvalidParams(
                    f"Invalid params: inputResponses has more than {MAX_INPUT_RESPONSES} members"
                )
        elif isinstance(params, InitializeParams):
            peer = _accept_initialize(connection, params)
    except DECODE_ERRORS as error:
        refusal = InvalidParams(f"Invalid params for {method}: {describe_decode_error(error)}")
        return InvalidMessageReceived(refusal, jsonrpc.encode_error(message.id, refusal), message.id)
    except RPCError as error:
        return InvalidMessageReceived(error, jsonrpc.encode_error(message.id, error), message.id)
    token = None if meta.progress_token is UNSET else meta.progress_token
    incoming = InboundRequest(message.id, row, params, peer, raw, token)
    connection.incoming[message.id] = incoming
    return incoming


DecodedRequest: TypeAlias = tuple[Row, Any, RequestMeta, Peer]
"""The row, parameters, `_meta` and sender of a request."""


def _decode_request(connection: "Connection", message: JSONRPCRequest) -> DecodedRequest:
    """Decode any request, with errors that say what is wrong."""
    method, raw = message.method, message.params
    meta = read_meta(raw)
    peer = _identify_peer(connection, method, meta)
    row = None if connection.extra else connection.local_peer.served_rows[peer.revision.date].get(method)
    if row is None:
        row = _find_served_row(connection, method, peer.revision)
    return row, row.read_params.decode(b"{}" if raw is UNSET else raw), meta, peer


def _decode_session_request(connection: "Connection", message: JSONRPCRequest) -> DecodedRequest | None:
    """Decode an ordinary request of a session in one pass; None if it needs the general way."""
    peer = connection.peer
    if peer is None or connection.extra or message.params is UNSET:
        return None
    if connection.role != SERVER or connection.lifecycle.state != "ready":
        return None
    row = connection.local_peer.served_rows[peer.revision.date].get(message.method)
    if row is None or row.params is InitializeParams:
        return None
    try:
        params: Any = row.read_whole.decode(message.params)
    except DECODE_ERRORS:
        return None
    meta: RequestMeta = params.meta or NO_META
    return None if meta.protocol_version is not UNSET else (row, params, meta, peer)


def _identify_peer(connection: "Connection", method: str, meta: RequestMeta) -> Peer:
    """Return the sender of a request."""
    peer, ready = connection.peer, connection.lifecycle.state == "ready"
    if ready and peer is not None and meta.protocol_version is UNSET and method != INITIALIZE:
        return peer
    stateless = connection.role == SERVER and (
        meta.protocol_version is not UNSET
        or (not connection.local_peer.has_sessions and method != INITIALIZE)
    )
    return (STATELESS_ERA if stateless else SESSION_ERA).identify_peer(connection, method, meta)


def _check_in_flight_limits(connection: "Connection", message: JSONRPCRequest) -> None:
    """Refuse an id in use, a request cancelled before it came, and more requests than we allow in flight."""
    if connection.early_cancellations and message.id in connection.early_cancellations:
        del connection.early_cancellations[message.id]
        raise InternalError("The request was cancelled before it came")
    if message.id in connection.incoming:
        raise InvalidRequest(f"Invalid request: id {shorten(repr(message.id))} is in use by another request")
    if len(connection.incoming) >= connection.limit:
        raise InternalError(f"Too many requests in flight, at most {connection.limit} are allowed")
    size = _measure_request(message.id, message.params)
    held = connection.incoming.values()
    if (
        size > SMALL_REQUEST_BYTES
        and size + sum(_measure_request(other.id, other.raw) for other in held) > MAX_IN_FLIGHT_BYTES
    ):
        raise InternalError(f"Too many bytes in flight, at most {MAX_IN_FLIGHT_BYTES} are allowed")


def _measure_request(request_id: RequestId, params: Raw | Unset) -> int:
    size = 0 if params is UNSET else memoryview(params).nbytes
    return size + len(request_id) if isinstance(request_id, str) else size


def _find_served_row(connection: "Connection", method: str, revision: Revision) -> Row:
    """Return the row of a request from the peer; MethodNotFound if we do not offer it (ERR-10)."""
    row = connection.find_request_row(method, revision, connection.peer_role)
    if row is None:
        raise MethodNotFound(f"Method not found: {shorten(method)}")
    if row.needs and method not in revision.ungated and not connection.local_peer.has_capability(row.needs):
        raise MethodNotFound(
            f"Method not found: {method} (this {connection.role} does not offer {row.needs})"
        )
    return row


def _accept_initialize(connection: "Connection", params: InitializeParams) -> Peer:
    """Accept the client that opens a session, and return it."""
    revision = negotiate(params.protocol_version, connection.local_peer.supported)
    if revision is None:
        raise connection.local_peer.make_unsupported_error(params.protocol_version)
    connection.lifecycle.move(INITIALIZE)
    return Peer(revision, params.capabilities, params.client_info)


def _handle_notification(connection: "Connection", message: JSONRPCNotification) -> ConnectionEvent:
    method = message.method
    row = connection.find_notification_row(method, connection.revision, connection.peer_role)
    if row is None:
        row = _NOTIFICATION_ROWS[connection.peer_role].get(method)
    if row is None:
        return NotificationReceived(method, None, None, message.params)
    try:
        params = row.read_params(message.params)
    except InvalidJSONValue as error:
        return _drop(connection, "malformed notice", RemoteProtocolError(f"invalid {method}: {error}"))
    if isinstance(params, CancelledParams):
        return _handle_cancellation(connection, params)
    if isinstance(params, ProgressParams):
        return _handle_progress(connection, params)
    if method == INITIALIZED and not connection.lifecycle.move("initialized"):
        return _drop(connection, "unexpected notifications/initialized")
    return NotificationReceived(method, params, row, message.params)


def _handle_cancellation(connection: "Connection", params: CancelledParams) -> ConnectionEvent:
    request_id = params.request_id
    if request_id is None:
        return _drop(connection, "cancellation of nothing")
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
        withdrawn = connection.early_cancellations = connection.early_cancellations or {}
        withdrawn[request_id] = None
        if len(withdrawn) > MAX_EARLY_CANCELLATIONS:
            del withdrawn[next(iter(withdrawn))]
    return _drop(connection, "cancellation of no request in flight")


def _handle_progress(connection: "Connection", params: ProgressParams) -> ConnectionEvent:
    outgoing = connection.outgoing.get(params.progress_token)
    if outgoing is None or outgoing.token is None:
        return _drop(connection, "progress of no request in flight")
    if outgoing.progress is not None and params.progress <= outgoing.progress:
        return _drop(connection, "progress that does not increase")
    outgoing.progress = params.progress
    return ProgressReceived(outgoing, params)


_ENVELOPE_START: Final = b'{"jsonrpc":"2.0","id"'
_MAX_ID_DIGITS: Final = 18
"""How many digits an id of ours has at most."""
_ZERO: Final = ord("0")


def read_plain_response(connection: "Connection", data: bytes) -> ResponseReceived | None:
    """Read a result in an envelope as nearly everybody writes it, without decoding that; None if it is other.

    The result is one whole JSON value, so the envelope has no other member.
    """
    envelope, _, rest = data.partition(b',"result":')
    before, _, digits = envelope.rpartition(b":")
    if (
        before != _ENVELOPE_START
        or not digits.isdigit()
        or len(digits) > _MAX_ID_DIGITS
        or digits[0] == _ZERO
        or rest[:1] != b"{"
        or rest[-2:] != b"}}"
        or not data.isascii()
    ):
        return None
    outgoing, depth = connection.outgoing.get(int(digits)), connection.depth
    if outgoing is None or outgoing.task:
        return None
    if len(rest) > 2 * depth and rest.count(b"[") + rest.count(b"{") >= depth:
        return None  # it may nest too deeply
    raw = rest[:-1]
    try:
        result = outgoing.row.results["complete"].decode(raw)
    except DECODE_ERRORS:
        return None
    if outgoing.revision.stateless and result.result_type != "complete":
        return None
    if isinstance(result, InitializeResult | DiscoverResult):
        return None  # the connection learns from these
    vars(result)["raw"] = raw
    del connection.outgoing[outgoing.id]
    return ResponseReceived(outgoing, result)


def _decode_result(outgoing: OutboundRequest, raw: Raw) -> Result:
    """Decode the result of a request. Nearly all are complete, so that is tried first."""
    if not outgoing.task:
        try:
            result = outgoing.row.results["complete"].decode(raw)
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


def _check_input_requests(row: Row, result: InputRequiredResult) -> None:
    """Refuse a result that requires input but asks for none (MRTR-5)."""
    if not result.input_requests and result.request_state is None:
        raise RemoteProtocolError(f"{row.name} was answered with a wish for input, but asks for none")


def _fail_request(connection: "Connection", outgoing: OutboundRequest, error: MCPError) -> ErrorReceived:
    """Return the event for a failed request of ours; a handshake may be tried again."""
    if outgoing.row.name == INITIALIZE:
        connection.lifecycle.move("refused")
    return ErrorReceived(outgoing, error)


def _complete_initialize(connection: "Connection", result: InitializeResult) -> None:
    """Remember the server of the session (LIFE-12)."""
    revision = find_newest([result.protocol_version], era="session", among=connection.local_peer.supported)
    if revision is None:
        raise RemoteProtocolError(
            f"the server wants to speak {shorten(result.protocol_version)}, which we do not",
            hint=f"we speak {', '.join(connection.local_peer.supported)}",
        )
    connection.lifecycle.move("answered")
    connection.peer = Peer(revision, result.capabilities, result.server_info)


def _adopt_discovered_server(connection: "Connection", result: DiscoverResult, raw: Raw) -> None:
    """Remember the server of a stateless conversation, if we share a revision."""
    revision = find_newest(result.supported_versions, era="stateless", among=connection.local_peer.supported)
    if revision is not None and connection.revision.stateless:
        connection.peer = Peer(revision, result.capabilities, _read_server_info(raw))


def _read_server_info(raw: Raw) -> Implementation | None:
    """Return the name of a server, or None; an unreadable one is no error (DISC-3)."""
    try:
        tagged = _SERVER_INFO_READER(raw).meta
    except InvalidJSONValue:
        return None
    return None if tagged is None else tagged.info


def _handle_error(
    connection: "Connection", message: JSONRPCErrorResponse, outgoing: OutboundRequest | None
) -> ConnectionEvent:
    revision = connection.revision if outgoing is None else outgoing.revision
    error = make_rpc_error(
        message.code,
        message.message,
        message.data,
        session=not revision.stateless,
        peer=connection.peer_name,
    )
    if outgoing is None:
        return _drop(connection, "error without an id", error)
    return _fail_request(connection, outgoing, error)


def handle_invalid(connection: "Connection", error: RemoteProtocolError) -> ConnectionEvent:
    """Return the event for bytes that are not a valid message."""
    if error.reply:
        outgoing = None if error.id is None else connection.outgoing.pop(error.id, None)
        if outgoing is None:
            return _drop(connection, "malformed answer", error)
        return _fail_request(connection, outgoing, error)
    if error.answer is None:
        return _drop(connection, "malformed notice", error)
    if connection.role == CLIENT and (connection.revision.stateless or error.id is None):
        # A stateless client sends no answers, and stray output of a server is not a request.
        return _drop(connection, "malformed message", error)
    return InvalidMessageReceived(error, jsonrpc.encode_error(error.id, error.answer), error.id)


def _drop_unexpected_response(connection: "Connection", request_id: RequestId) -> MessageDropped:
    """Drop a response without a request: late if the id was ours, unknown otherwise."""
    late = isinstance(request_id, int) and 0 < request_id < connection.next_id
    return _drop(connection, "late answer" if late else "answer to an unknown request")


def _drop(
    connection: "Connection", why: str, error: RemoteProtocolError | RPCError | None = None
) -> MessageDropped:
    connection.dropped_counts[why] = connection.dropped_counts.get(why, 0) + 1
    return MessageDropped(why, error)
