"""Routing of HTTP requests: to the stateless era, to a session, or rejected.

Pure functions over headers and messages, in the order of checks of the specification and its official suite.
Owns which error has which status; knows no socket, session table or tool.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from toolpost.errors import (
    HeaderMismatch,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    ParseError,
    UnsupportedRevision,
)
from toolpost.protocol import headers
from toolpost.protocol.eras import STATELESS_ERA, Peer, has_protocol_version, read_meta
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import (
    MEMBERS_READER,
    InvalidJSONValue,
    JSONReader,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, INITIALIZE, Row
from toolpost.protocol.receive import decode_ordinary_request
from toolpost.protocol.revisions import LATEST, OLDEST_HTTP, REVISIONS, Revision
from toolpost.types.base import UNSET, Raw, Struct


class StatelessRoute(Struct):
    """A message of the stateless era, and the client that sent it if it is a request.

    `incoming` is an ordinary request, which is decoded already.
    """

    peer: Peer | None = None
    incoming: InboundRequest | None = None


class SessionRoute(Struct):
    """A message of the session era; `session` is its session id, if any."""

    revision: Revision
    session: str | None = None
    is_initialize: bool = False


RawHeaders: TypeAlias = Mapping[bytes, bytes]
"""Headers as they came, by their names in lower case."""
_VERSION: Final = headers.VERSION.encode()
_METHOD: Final = headers.METHOD.encode()
_NAME: Final = headers.NAME.encode()
_SESSION: Final = headers.SESSION.encode()
_REVISIONS: Final = {date.encode(): revision for date, revision in REVISIONS.items()}
_MESSAGES_WITH_METHOD: Final = (JSONRPCRequest, JSONRPCNotification)

_STATUS_BY_CODE: Final[dict[int, int]] = {
    ParseError.code: 400,
    InvalidRequest.code: 400,
    HeaderMismatch.code: 400,
    MissingCapability.code: 400,
    UnsupportedRevision.code: 400,
    MethodNotFound.code: 404,
}


def get_http_status(code: int) -> int:
    """Return the HTTP status of a stateless error response; 200 if the specification fixes none."""
    return _STATUS_BY_CODE.get(code, 200)


def classify(
    sent: RawHeaders, message: JSONRPCMessage | None, party: LocalPeer
) -> StatelessRoute | SessionRoute:
    """Route a POST by its headers and its message, which is None for a batch.

    Raises RPCError if it is rejected, with status 400.
    """
    version = sent.get(_VERSION, b"")
    stateless = party.stateless_revisions.get(version)
    if stateless is not None and isinstance(message, JSONRPCRequest):
        is_repeated = sent.get(_METHOD) == message.method.encode()
        incoming = decode_ordinary_request(party, stateless, message) if is_repeated else None
        if incoming is not None:
            return StatelessRoute(incoming.peer, incoming)
    known = _REVISIONS.get(version.strip(b" \t"))
    # An unknown version can only be newer than ours.
    modern = known.stateless if known is not None else _VERSION in sent
    if not modern and isinstance(message, _MESSAGES_WITH_METHOD):
        modern = has_protocol_version(message.params)
    if modern:
        return _route_to_stateless(sent, message, party)
    return _route_to_session(sent, known, message, party)


def _route_to_session(
    sent: RawHeaders, named: Revision | None, message: JSONRPCMessage | None, party: LocalPeer
) -> SessionRoute:
    """Route a message of the session era. The session may have ended."""
    opening = isinstance(message, JSONRPCRequest) and message.method == INITIALIZE
    session = str(sent[_SESSION], "latin-1") if _SESSION in sent else None
    if session is not None and not headers.is_valid_session_id(session):
        raise InvalidRequest("Invalid request: the session id is too long or contains invalid characters")
    if named is not None and not opening and named.date not in party.supported:
        raise party.make_unsupported_error(named.date)
    if named is None and not opening and OLDEST_HTTP.date not in party.supported:
        raise HeaderMismatch(f"{headers.VERSION}: the header is missing")  # HTTPM-19
    revision = named or OLDEST_HTTP
    if message is None and not revision.batches:
        raise InvalidRequest("Invalid request: this protocol revision does not support batches")
    return SessionRoute(revision, session, opening)


def _route_to_stateless(sent: RawHeaders, message: JSONRPCMessage | None, party: LocalPeer) -> StatelessRoute:
    """Route a request of the stateless era, after checks of headers and `_meta`."""
    if not isinstance(message, _MESSAGES_WITH_METHOD):
        raise InvalidRequest("Invalid request: the body must be a single request or notification")
    if _VERSION not in sent:
        raise HeaderMismatch(f"{headers.VERSION}: the header is missing")
    version = str(sent[_VERSION], "latin-1").strip(" \t")
    meta = read_meta(message.params)
    is_request = isinstance(message, JSONRPCRequest)
    if is_request:
        STATELESS_ERA.check_meta(meta)
    if meta.protocol_version not in (UNSET, version):
        raise HeaderMismatch(
            f"{headers.VERSION}: the header is {headers.quote_value(version)}, "
            f"but the body has {headers.quote_value(meta.protocol_version)}"
        )
    if not is_request:
        if version not in party.supported or not REVISIONS[version].stateless:
            raise party.make_unsupported_error(version)
        if _METHOD in sent:
            _check_method(sent, message.method)
        return StatelessRoute()
    peer = STATELESS_ERA.read_peer(party, meta)
    _check_method(sent, message.method)
    return StatelessRoute(peer)


def _check_method(sent: RawHeaders, method: str) -> None:
    """Refuse a `Mcp-Method` that is not exactly the method of the body (HDR-1)."""
    value = str(sent[_METHOD], "latin-1") if _METHOD in sent else None
    if value is None or value.strip(" \t") != method:
        shown = "missing" if value is None else headers.quote_value(value)
        raise HeaderMismatch(
            f"{headers.METHOD}: the header is {shown}, but the body has {headers.quote_value(method)}"
        )


# --------------------------------------------------------------------- mirrored parameters

_STRING_READER: Final = JSONReader(str)
HeaderAnnotations: TypeAlias = Mapping[str, tuple[str, ...]]  # as `headers.find_annotations` returns them


def verify_headers(
    sent: RawHeaders, incoming: InboundRequest, annotated: HeaderAnnotations | None = None
) -> None:
    """Raise HeaderMismatch if a header does not repeat the body of a stateless request (HDR-23 … HDR-26).

    `annotated` has the annotated parameters of the tool that is called.
    """
    named = incoming.row.named
    # HDR-23 demands the header for methods of the protocol; a client of an extension may not know of it.
    if named is not None and not (incoming.row.extension and _NAME not in sent):
        sent_name, name = sent.get(_NAME), getattr(incoming.params, named)
        # Most names are identifiers: nothing to strip, nothing in Base64.
        if not (name.isidentifier() and name.isascii() and sent_name == name.encode()):
            headers.check_name(sent_name, name)
    if annotated:
        try:
            mirrored = {
                name: str(sent[raw], "latin-1") for name in annotated if (raw := name.encode()) in sent
            }
            headers.verify_arguments(annotated, incoming.params.arguments, mirrored)
        except InvalidJSONValue as error:
            raise HeaderMismatch(f"cannot compare headers and arguments: {error}") from error


def mirror_headers(
    message: JSONRPCRequest | JSONRPCNotification,
    annotated: HeaderAnnotations | None = None,
    row: Row | None = None,
) -> dict[str, str]:
    """Return the headers of a stateless message of a client (HDR-1 … HDR-5, HTTPM-14, HTTPM-15).

    Raises ValueError if no header can carry a mirrored value.
    """
    method = message.method
    if headers.encode_value(method) != method:
        raise ValueError(f"the method {headers.quote_value(method)} cannot be a header value")
    try:
        meta = read_meta(message.params)
    except InvalidParams as error:
        raise ValueError(error.message) from error
    version = LATEST.date if meta.protocol_version is UNSET else meta.protocol_version
    mirrored = {headers.VERSION: version, headers.METHOD: method}
    row = row or LATEST.requests[CLIENT].get(method)
    if row is not None and row.member is not None:
        members = MEMBERS_READER(message.params)
        mirrored[headers.NAME] = headers.encode_value(_STRING_READER(members.get(row.member, Raw(b"null"))))
        if annotated:
            mirrored |= headers.mirror_arguments(annotated, members.get("arguments", UNSET))
    return mirrored
