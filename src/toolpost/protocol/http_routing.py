"""Routing of HTTP requests: to the stateless era, to a session, or rejected.

Pure functions over headers and messages, in the order of checks of the specification and its official suite.
Owns which error has which status; knows no socket, session table or tool.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

from toolpost.errors import (
    HeaderMismatch,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    ParseError,
    RPCError,
    UnsupportedRevision,
)
from toolpost.protocol import headers
from toolpost.protocol.eras import STATELESS_ERA, Peer, has_protocol_version, read_meta
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import (
    DECODE_ERRORS,
    InvalidJSONValue,
    JSONReader,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.methods import CLIENT, INITIALIZE, Row
from toolpost.protocol.receive import DecodedRequest
from toolpost.protocol.revisions import LATEST, OLDEST_HTTP, REVISIONS, Revision
from toolpost.types.base import UNSET, Raw, RequestId, Struct, Unset
from toolpost.types.initialize import RequestMeta


class StatelessRoute(Struct):
    """A message of the stateless era; a request that was decoded with its `_meta`, if it is ordinary."""

    decoded: DecodedRequest | None = None
    peer: Peer | None = None


class SessionRoute(Struct):
    """A message of the session era; `session` is its session id, if any."""

    revision: Revision
    session: str | None = None
    is_initialize: bool = False


class RejectedRoute(Struct):
    """A rejected request."""

    status: int
    error: RPCError
    id: RequestId | None = None


Route: TypeAlias = StatelessRoute | SessionRoute | RejectedRoute


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
    sent: Mapping[str, str],
    message: JSONRPCMessage | None,
    party: LocalPeer,
    extra: Mapping[str, Row] | None = None,
) -> Route:
    """Route a POST by its headers, named in lower case, and its message, which is None for a batch."""
    version = sent.get(headers.VERSION)
    known = None if version is None else REVISIONS.get(version.strip(" \t"))
    if known is not None and known.stateless and isinstance(message, JSONRPCRequest):
        decoded = _decode_stateless(sent, known, message, party, extra)
        if decoded is not None:
            return StatelessRoute(decoded, decoded[3])
    # An unknown version can only be newer than ours.
    modern = version is not None and (known is None or known.stateless)
    if not modern and isinstance(message, _MESSAGES_WITH_METHOD):
        modern = has_protocol_version(message.params)
    try:
        if modern:
            return _route_to_stateless(sent, message, party)
        return _route_to_session(sent, known, message, party)
    except RPCError as error:
        # The id of a posted response is one of ours, so an error must not carry it.
        return RejectedRoute(400, error, message.id if isinstance(message, JSONRPCRequest) else None)


def _decode_stateless(
    sent: Mapping[str, str],
    revision: Revision,
    message: JSONRPCRequest,
    party: LocalPeer,
    extra: Mapping[str, Row] | None,
) -> DecodedRequest | None:
    """Decode an ordinary stateless request in one pass; None if it needs the general way, with its errors."""
    method, version = message.method, revision.date
    if version not in party.supported or sent.get(headers.METHOD) != method:
        return None
    row = None if extra and method in extra else party.served_rows[version].get(method)
    if row is None or message.params is UNSET:
        return None
    try:
        params = row.read_whole.decode(message.params)
    except DECODE_ERRORS:
        return None
    meta: RequestMeta | None = params.meta
    if meta is None or meta.protocol_version != version or meta.client_capabilities is UNSET:
        return None
    peer = Peer(revision, meta.client_capabilities, meta.client_info or None, meta.log_level or None)
    return row, params, meta, peer


def _route_to_session(
    sent: Mapping[str, str], named: Revision | None, message: JSONRPCMessage | None, party: LocalPeer
) -> SessionRoute:
    """Route a message of the session era. The session may have ended."""
    opening = isinstance(message, JSONRPCRequest) and message.method == INITIALIZE
    session = sent.get(headers.SESSION)
    if session is not None and not headers.is_valid_session_id(session):
        raise InvalidRequest("Invalid request: the session id has characters that it may not have")
    if named is not None and not opening and named.date not in party.supported:
        raise party.make_unsupported_error(named.date)
    if named is None and not opening and OLDEST_HTTP.date not in party.supported:
        raise HeaderMismatch(f"{headers.VERSION}: the header is missing")  # HTTPM-19
    revision = named or OLDEST_HTTP
    if message is None and not revision.batches:
        raise InvalidRequest("Invalid request: a batch is not part of this protocol revision")
    return SessionRoute(revision, session, opening)


def _route_to_stateless(
    sent: Mapping[str, str], message: JSONRPCMessage | None, party: LocalPeer
) -> StatelessRoute:
    """Route a request of the stateless era, after checks of headers and `_meta`."""
    if not isinstance(message, _MESSAGES_WITH_METHOD):
        raise InvalidRequest("Invalid request: only a single request or notification may be posted")
    version = sent.get(headers.VERSION)
    if version is None:
        raise HeaderMismatch(f"{headers.VERSION}: the header is missing")
    version = version.strip(" \t")
    meta = read_meta(message.params)
    asks = isinstance(message, JSONRPCRequest)
    if asks:
        STATELESS_ERA.check_meta(meta)
    if meta.protocol_version not in (UNSET, version):
        raise HeaderMismatch(
            f"{headers.VERSION}: the header says {headers.quote_value(version)}, "
            f"the body says {headers.quote_value(meta.protocol_version)}"
        )
    if not asks:
        _check_supported(version, party)
        if headers.METHOD in sent:
            _check_method(sent, message.method)
        return StatelessRoute()
    peer = STATELESS_ERA.read_peer(party, meta)
    _check_method(sent, message.method)
    return StatelessRoute(peer=peer)


def _check_supported(version: str, party: LocalPeer) -> None:
    if version not in party.supported or not REVISIONS[version].stateless:
        raise party.make_unsupported_error(version)


def _check_method(sent: Mapping[str, str], method: str) -> None:
    """Refuse a `Mcp-Method` that is not exactly the method of the body (HDR-1)."""
    said = sent.get(headers.METHOD)
    if said is None:
        raise HeaderMismatch(
            f"{headers.METHOD}: the header is missing; the body says {headers.quote_value(method)}"
        )
    if said.strip(" \t") != method:
        raise HeaderMismatch(
            f"{headers.METHOD}: the header says {headers.quote_value(said)}, "
            f"the body says {headers.quote_value(method)}"
        )


# --------------------------------------------------------------------- mirrored parameters

_MEMBERS_READER: Final = JSONReader(dict[str, Raw])
_STRING_READER: Final = JSONReader(str)
# One level of JSON: the members of an object stay raw.
_LEVEL_READER: Final = JSONReader[Any](cast("Any", dict[str, Raw] | str | int | float | bool | None))
_JSONLevel: TypeAlias = dict[str, Any] | list[Any] | str | float | None

HeaderAnnotations: TypeAlias = Mapping[str, tuple[str, ...]]
"""The annotated parameters of a tool, as `headers.annotations` found them."""


def verify_headers(
    sent: Mapping[str, str], incoming: InboundRequest, annotated: HeaderAnnotations | None = None
) -> None:
    """Raise HeaderMismatch if a header does not repeat the body of a stateless request (HDR-23 … HDR-26).

    `annotated` has the annotated parameters of the tool that is called.
    """
    named = incoming.row.named
    if named is not None:
        headers.check_name(sent.get(headers.NAME), getattr(incoming.params, named))
    if annotated:
        try:
            arguments = _read_annotated_arguments(incoming.params.arguments, annotated)
        except InvalidJSONValue as error:
            raise HeaderMismatch(f"Headers and arguments cannot be compared: {error}") from error
        headers.verify_arguments(annotated, arguments, sent)


def mirror_headers(
    message: JSONRPCRequest | JSONRPCNotification,
    annotated: HeaderAnnotations | None = None,
    extra: Mapping[str, Row] | None = None,
) -> dict[str, str]:
    """Return the headers of a stateless message of a client (HDR-1 … HDR-5, HTTPM-14, HTTPM-15).

    Raises ValueError if no header can carry a mirrored value.
    """
    method = message.method
    if headers.encode_value(method) != method:
        raise ValueError(f"no header can carry the method {headers.quote_value(method)}")
    try:
        meta = read_meta(message.params)
    except InvalidParams as error:
        raise ValueError(error.message) from error
    version = LATEST.date if meta.protocol_version is UNSET else meta.protocol_version
    said = {headers.VERSION: version, headers.METHOD: method}
    row = LATEST.requests[CLIENT].get(method) or (extra or {}).get(method)
    if row is not None and row.member is not None:
        members = _MEMBERS_READER(message.params)
        said[headers.NAME] = headers.encode_value(_STRING_READER(members.get(row.member, Raw(b"null"))))
        if annotated:
            said |= headers.mirror_arguments(
                annotated, _read_annotated_arguments(members.get("arguments", UNSET), annotated)
            )
    return said


def _read_annotated_arguments(raw: Raw | Unset, annotated: HeaderAnnotations) -> dict[str, Any]:
    """Read the arguments of a call along the annotated paths; all else stays raw.

    Raises InvalidJSONValue if a value on such a path cannot be read.
    """
    arguments = _read_level(raw, "the arguments")
    if not isinstance(arguments, dict):
        return {}
    for path in annotated.values():
        part: _JSONLevel = arguments
        for name in path:
            if not isinstance(part, dict):
                break
            if isinstance(below := part.get(name), Raw):
                part[name] = below = _read_level(below, f"the argument {headers.quote_value(name)}")
            part = below
    return arguments


def _read_level(raw: Raw | Unset, what: str) -> _JSONLevel:
    if raw is not UNSET and bytes(memoryview(raw)[:1]) == b"[":
        return []
    try:
        return _LEVEL_READER(raw)
    except InvalidJSONValue as error:
        raise InvalidJSONValue(f"{what} cannot be read: {error}") from error
