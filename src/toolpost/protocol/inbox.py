"""What a message means to the conversation it arrives in: one function per kind of message.

The receiving half of `connection`, which owns the state that is read and changed here. Every message comes
out as exactly one event, and none of them raises.
"""

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from toolpost.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MCPError,
    MethodNotFound,
    RemoteProtocolError,
    RPCError,
    from_wire,
)
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import NO_META, SESSION, STATELESS, Peer, read_meta
from toolpost.protocol.events import (
    CancelReceived,
    Dropped,
    Event,
    FailureReceived,
    Incoming,
    NoticeReceived,
    Outgoing,
    ProgressReceived,
    Refused,
    ReplyReceived,
)
from toolpost.protocol.jsonrpc import (
    MISFITS,
    Failure,
    Notice,
    Reader,
    Reply,
    Request,
    Unfit,
    fault,
    shorten,
)
from toolpost.protocol.methods import CLIENT, SERVER, Row
from toolpost.protocol.revisions import LATEST, LATEST_SESSION, Revision, negotiate, newest
from toolpost.types.base import UNSET, Raw, RequestId, Result, Struct, Unset
from toolpost.types.inputs import InputRequiredResult
from toolpost.types.lifecycle import (
    SERVER_INFO,
    DiscoverResult,
    Implementation,
    InitializeParams,
    InitializeResult,
    RequestMeta,
)
from toolpost.types.notices import CancelledParams, ListenResult, ProgressParams

if TYPE_CHECKING:
    from toolpost.protocol.connection import Connection

__all__ = ["broken", "requested", "take"]


class _Kind(Struct, rename="camel"):
    result_type: str = "complete"


class _Made(Struct):
    task: Raw | Unset = UNSET


class _Tag(Struct, rename={"info": SERVER_INFO}):
    info: Implementation | None = None


class _Tagged(Struct, rename={"meta": "_meta"}):
    meta: _Tag | None = None


# A server with a session still reads what its stateless clients say, and the other way round.
_NOTICES: Final = {by: {**LATEST_SESSION.notices[by], **LATEST.notices[by]} for by in (CLIENT, SERVER)}

MAX_HELD: Final = 64 * 1024 * 1024
"""How many bytes the requests of one peer that wait for an answer may have, besides those that are small."""

MAX_ANSWERS: Final = 256
"""How many answers a request may bring: more than a person is asked in one round, and each costs memory."""

MAX_WITHDRAWN: Final = 64
"""How many cancellations are remembered whose requests may still be on their way."""

SMALL: Final = 64 * 1024
"""Up to here a request is bounded by the number of requests alone."""

_KIND: Final = Reader(_Kind)
_META: Final = Reader(cast("type[RequestMeta | None]", RequestMeta | None))
_MADE: Final = Reader(_Made)
_TAGGED: Final = Reader(_Tagged)


def take(connection: "Connection", message: Reply | Notice | Failure) -> Event:
    """What a message means that is no request."""
    if isinstance(message, Reply):
        return _replied(connection, message)
    if isinstance(message, Notice):
        return _noticed(connection, message)
    return _failed(connection, message)


def requested(
    connection: "Connection", message: Request, meta: RequestMeta | None, peer: Peer | None
) -> Event:
    """What a request means; `meta` and `peer` where they were read and settled before."""
    method = message.method
    if connection.role == CLIENT and connection.revision.stateless:
        return _drop(connection, "request to a stateless client")  # it must not answer (MSG-21, MSG-22)
    try:
        if connection.lifecycle.state == "closed":
            connection.lifecycle.admit(method)
        raw = message.params
        plain = _plain(connection, message) if peer is None else None
        row, params, meta, peer = plain or _read(connection, message, meta, peer)
        if connection.incoming or connection.withdrawn:
            _check_room(connection, message)
        if row.asks:  # its parameters are `AnswerParams`; to ask them takes 0.14 us more
            if len(params.input_responses or ()) > MAX_ANSWERS:
                raise InvalidParams(f"Invalid params: inputResponses has more than {MAX_ANSWERS} members")
        elif isinstance(params, InitializeParams):
            peer = _greeted(connection, params)
    except MISFITS as error:
        refusal = InvalidParams(f"Invalid params for {method}: {fault(error)}")
        return Refused(refusal, jsonrpc.encode_failure(message.id, refusal), message.id)
    except RPCError as error:
        return Refused(error, jsonrpc.encode_failure(message.id, error), message.id)
    token = None if meta.progress_token is UNSET else meta.progress_token
    incoming = Incoming(message.id, row, params, peer, raw, token)
    connection.incoming[message.id] = incoming
    return incoming


_Read: TypeAlias = tuple[Row, Any, RequestMeta, Peer]


def _read(connection: "Connection", message: Request, meta: RequestMeta | None, peer: Peer | None) -> _Read:
    """The row and the parameters of a request, what it says of itself, and who sends it."""
    method, raw = message.method, message.params
    meta = read_meta(raw) if meta is None else meta
    peer = _sender(connection, method, meta) if peer is None else peer
    row = None if connection.extra else connection.party.served[peer.revision.date].get(method)
    if row is None:
        row = _row_of(connection, method, peer.revision)
    return row, row.read_params.decode(b"{}" if raw is UNSET else raw), meta, peer


def _plain(connection: "Connection", message: Request) -> _Read | None:
    """The same of a request as nearly all are in a session: it is read once, which takes 0.5 us less.

    None if it has to be looked at more closely.
    """
    peer = connection.peer
    if peer is None or connection.extra or message.params is UNSET:
        return None
    if connection.role != SERVER or connection.lifecycle.state != "ready":
        return None
    row = connection.party.served[peer.revision.date].get(message.method)
    if row is None or row.params is InitializeParams:
        return None
    try:
        params: Any = row.read_params.decode(message.params)
        meta = NO_META if params.meta is UNSET else _META.decode(params.meta)
    except MISFITS:
        return None
    return None if meta is None or meta.protocol_version is not UNSET else (row, params, meta, peer)


def _sender(connection: "Connection", method: str, meta: RequestMeta) -> Peer:
    """Who sends a request."""
    peer, ready = connection.peer, connection.lifecycle.state == "ready"
    if ready and peer is not None and meta.protocol_version is UNSET and method != "initialize":
        return peer  # as in most sessions, for which nothing else has to be looked at
    stateless = connection.role == SERVER and (
        meta.protocol_version is not UNSET or (not connection.party.sessions and method != "initialize")
    )
    return (STATELESS if stateless else SESSION).admit(connection, method, meta)


def _check_room(connection: "Connection", message: Request) -> None:
    """Refuse an id in use, what was cancelled before it came, and what comes faster than it is answered."""
    if connection.withdrawn and message.id in connection.withdrawn:
        del connection.withdrawn[message.id]
        raise InternalError("The request was cancelled before it came")
    if message.id in connection.incoming:
        raise InvalidRequest(f"Invalid request: id {shorten(repr(message.id))} is in use by another request")
    if len(connection.incoming) >= connection.limit:
        raise InternalError(f"Too many requests in flight, at most {connection.limit} are allowed")
    size = _size(message.id, message.params)
    held = connection.incoming.values()
    if size > SMALL and size + sum(_size(other.id, other.raw) for other in held) > MAX_HELD:
        raise InternalError(f"Too many bytes in flight, at most {MAX_HELD} are allowed")


def _size(request_id: RequestId, params: Raw | Unset) -> int:
    size = 0 if params is UNSET else memoryview(params).nbytes
    return size + len(request_id) if isinstance(request_id, str) else size


def _row_of(connection: "Connection", method: str, revision: Revision) -> Row:
    """The row of a request that the peer sent.

    Raises:
        MethodNotFound: the revision lacks it, or we did not declare what it needs (ERR-10).
    """
    row = connection.request_row(method, revision, connection.other)
    if row is None:
        raise MethodNotFound(f"Method not found: {shorten(method)}")
    if row.needs and method not in revision.ungated and not connection.party.declares(row.needs):
        raise MethodNotFound(
            f"Method not found: {method} (this {connection.role} does not offer {row.needs})"
        )
    return row


def _greeted(connection: "Connection", params: InitializeParams) -> Peer:
    """The client that opens a session."""
    revision = negotiate(params.protocol_version, connection.party.supported)
    if revision is None:
        raise connection.party.refusal(params.protocol_version)
    if not connection.lifecycle.move("initialize"):
        raise InvalidRequest("Invalid request: the session is initialized already")
    return Peer(revision, params.capabilities, params.client_info)


def _noticed(connection: "Connection", message: Notice) -> Event:
    method = message.method
    row = connection.notice_row(method, connection.revision, connection.other)
    if row is None:
        row = _NOTICES[connection.other].get(method)
    if row is None:
        return NoticeReceived(method, None, None, message.params)
    try:
        params = row.read_params(message.params)
    except Unfit as error:
        return _drop(connection, "malformed notice", RemoteProtocolError(f"invalid {method}: {error}"))
    if isinstance(params, CancelledParams):
        return _cancelled(connection, params)
    if isinstance(params, ProgressParams):
        return _progressed(connection, params)
    if method == "notifications/initialized" and not connection.lifecycle.move("initialized"):
        return _drop(connection, "unexpected notifications/initialized")
    return NoticeReceived(method, params, row, message.params)


def _cancelled(connection: "Connection", params: CancelledParams) -> Event:
    request_id = params.request_id
    if request_id is None:
        return _drop(connection, "cancellation of nothing")
    incoming = connection.incoming.get(request_id)
    if incoming is not None and incoming.row.name != "initialize":  # LIFE-16
        del connection.incoming[request_id]
        return CancelReceived(incoming, params.reason)
    outgoing = connection.outgoing.get(request_id)
    if outgoing is not None and outgoing.row.name == "subscriptions/listen":
        # A stateless server ends a subscription this way, or by answering, or both (CANC-13).
        del connection.outgoing[request_id]
        return ReplyReceived(outgoing, ListenResult())
    if connection.unordered:
        withdrawn = connection.withdrawn = connection.withdrawn or {}
        withdrawn[request_id] = None
        if len(withdrawn) > MAX_WITHDRAWN:
            del withdrawn[next(iter(withdrawn))]
    return _drop(connection, "cancellation of no request in flight")


def _progressed(connection: "Connection", params: ProgressParams) -> Event:
    outgoing = connection.outgoing.get(params.progress_token)
    if outgoing is None or outgoing.token is None:
        return _drop(connection, "progress of no request in flight")
    if outgoing.progress is not None and params.progress <= outgoing.progress:
        return _drop(connection, "progress that does not increase")
    outgoing.progress = params.progress
    return ProgressReceived(outgoing, params)


def _replied(connection: "Connection", message: Reply) -> Event:
    outgoing = connection.outgoing.pop(message.id, None)
    if outgoing is None:
        return _unexpected(connection, message.id)
    row = outgoing.row
    try:
        result = _result(outgoing, message.result)
        if isinstance(result, InitializeResult):
            _welcomed(connection, result)
        elif isinstance(result, DiscoverResult):
            _discovered(connection, result, message.result)
        elif isinstance(result, InputRequiredResult):
            _check_asked(row, result)
    except Unfit as error:
        wrong = RemoteProtocolError(f"{row.name} was answered with an invalid result: {error}")
        return _lost(connection, outgoing, wrong)
    except RemoteProtocolError as error:
        return _lost(connection, outgoing, error)
    return ReplyReceived(outgoing, result)


def _result(outgoing: Outgoing, raw: Raw) -> Result:
    """The result of a request. Nearly all are complete and say so themselves: 0.4 µs less for each.

    One that says nothing is looked at once more: null is no kind.
    """
    if not outgoing.task:
        try:
            result = outgoing.row.read_result(raw, "complete")
        except RemoteProtocolError:
            pass  # of another kind, or wrong
        else:
            if not outgoing.revision.stateless or result.result_type == "complete":
                return result
    return outgoing.row.read_result(raw, _kind_of(outgoing, raw))


def _kind_of(outgoing: Outgoing, raw: Raw) -> str | None:
    """The kind of a result: a stateless one names it, one in a session may be a task that was wished for."""
    if outgoing.revision.stateless:
        return _KIND(raw).result_type
    return None if outgoing.task and _MADE(raw).task is not UNSET else "complete"


def _check_asked(row: Row, result: InputRequiredResult) -> None:
    """Refuse a wish for input that wishes nothing (MRTR-5)."""
    if not result.input_requests and result.request_state is None:
        raise RemoteProtocolError(f"{row.name} was answered with a wish for input, but asks for none")


def _lost(connection: "Connection", outgoing: Outgoing, error: MCPError) -> FailureReceived:
    """A request of ours that failed; a handshake may be tried again."""
    if outgoing.row.name == "initialize":
        connection.lifecycle.move("refused")
    return FailureReceived(outgoing, error)


def _welcomed(connection: "Connection", result: InitializeResult) -> None:
    """The server that a session was opened with (LIFE-12)."""
    revision = newest([result.protocol_version], era="session", among=connection.party.supported)
    if revision is None:
        raise RemoteProtocolError(
            f"the server wants to speak {shorten(result.protocol_version)}, which we do not",
            hint=f"we speak {', '.join(connection.party.supported)}",
        )
    connection.lifecycle.move("answered")
    connection.peer = Peer(revision, result.capabilities, result.server_info)


def _discovered(connection: "Connection", result: DiscoverResult, raw: Raw) -> None:
    """The server behind a stateless conversation, if it speaks a revision that we do."""
    revision = newest(result.supported_versions, era="stateless", among=connection.party.supported)
    if revision is not None and connection.revision.stateless:
        connection.peer = Peer(revision, result.capabilities, _tag(raw))


def _tag(raw: Raw) -> Implementation | None:
    """The name tag of a server. One that cannot be read does not hide the server (DISC-3)."""
    try:
        tagged = _TAGGED(raw).meta
    except Unfit:
        return None
    return None if tagged is None else tagged.info


def _failed(connection: "Connection", message: Failure) -> Event:
    if message.id is None:
        return _drop(connection, "error without an id", _error(connection, message, connection.revision))
    outgoing = connection.outgoing.pop(message.id, None)
    if outgoing is None:
        return _unexpected(connection, message.id)
    return _lost(connection, outgoing, _error(connection, message, outgoing.revision))


def _error(connection: "Connection", message: Failure, revision: Revision) -> RPCError:
    session = not revision.stateless
    return from_wire(message.code, message.message, message.data, session=session, peer=connection.peer_name)


def broken(connection: "Connection", error: RemoteProtocolError) -> Event:
    """What to do about a message that is none."""
    if error.reply:
        outgoing = None if error.id is None else connection.outgoing.pop(error.id, None)
        if outgoing is None:
            return _drop(connection, "malformed answer", error)
        return _lost(connection, outgoing, error)
    if error.answer is None:
        return _drop(connection, "malformed notice", error)
    if connection.role == CLIENT and (connection.revision.stateless or error.id is None):
        # A stateless client writes no answers, and stray text of a server's is no question.
        return _drop(connection, "malformed message", error)
    return Refused(error, jsonrpc.encode_failure(error.id, error.answer), error.id)


def _unexpected(connection: "Connection", request_id: RequestId) -> Dropped:
    """An answer that nobody waits for: late if we once did ask, unknown otherwise."""
    late = isinstance(request_id, int) and 0 < request_id < connection.next_id
    return _drop(connection, "late answer" if late else "answer to an unknown request")


def _drop(connection: "Connection", why: str, error: RemoteProtocolError | RPCError | None = None) -> Dropped:
    connection.dropped[why] = connection.dropped.get(why, 0) + 1
    return Dropped(why, error)
