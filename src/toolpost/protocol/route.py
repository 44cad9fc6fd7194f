"""Where an HTTP request goes: to the stateless era, to a session, or nowhere.

Pure functions over headers and messages, in the order of checks that the specification and its official
suite agree on. Owns which error has which status; knows no socket, no session table and no tool.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from toolpost.errors import (
    HeaderMismatch,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    ParseError,
    RPCError,
    UnsupportedRevision,
)
from toolpost.protocol import headers
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import STATELESS, Peer, is_marked, read_meta
from toolpost.protocol.events import Incoming
from toolpost.protocol.jsonrpc import Message, Notice, Reader, Request, Unfit
from toolpost.protocol.methods import CLIENT
from toolpost.protocol.revisions import LATEST, OLDEST_HTTP, REVISIONS, Revision
from toolpost.types.base import JSON, UNSET, Raw, RequestId, Struct, Unset
from toolpost.types.lifecycle import RequestMeta

__all__ = ["Reject", "Route", "ToSession", "ToStateless", "classify", "mirrored", "status", "verify"]


class ToStateless(Struct):
    """A request that carries its own facts; a notice has no peer to tell of."""

    peer: Peer | None = None
    meta: RequestMeta | None = None


class ToSession(Struct):
    """A message of the session era. `opening` is an `initialize`; without `session` there may be none."""

    revision: Revision
    session: str | None = None
    opening: bool = False


class Reject(Struct):
    """A request that goes nowhere."""

    status: int
    error: RPCError
    id: RequestId | None = None


Route: TypeAlias = ToStateless | ToSession | Reject

_STATUS: Final[dict[int, int]] = {
    ParseError.code: 400,
    InvalidRequest.code: 400,
    HeaderMismatch.code: 400,
    MissingCapability.code: 400,
    UnsupportedRevision.code: 400,
    MethodNotFound.code: 404,
}


def status(code: int) -> int:
    """The HTTP status of a stateless answer with this error; what the specification does not fix is 200."""
    return _STATUS.get(code, 200)


def classify(sent: Mapping[str, str], message: Message | None, connection: Connection) -> Route:
    """Where a POST goes.

    Args:
        sent: the headers of the request, by their names in lower case.
        message: what the body holds; None for a batch.
        connection: of the server, fresh.
    """
    version = sent.get(headers.VERSION)
    known = None if version is None else REVISIONS.get(version.strip(" \t"))
    # A version that nobody knows can only be newer than we are.
    modern = version is not None and (known is None or known.stateless)
    if isinstance(message, Request | Notice):
        modern = modern or is_marked(message.params)
    try:
        if modern:
            return _to_stateless(sent, message, connection)
        return _to_session(sent, known, message, connection)
    except RPCError as error:
        known_id = None if message is None or isinstance(message, Notice) else message.id
        refused = 404 if isinstance(error, MethodNotFound) else 400
        return Reject(refused, error, known_id)


def _to_session(
    sent: Mapping[str, str], named: Revision | None, message: Message | None, connection: Connection
) -> ToSession:
    """A message of the session era. Whether its session lives is for others to say."""
    opening = isinstance(message, Request) and message.method == "initialize"
    session = sent.get(headers.SESSION)
    if session is not None and not headers.session_id_ok(session):
        raise InvalidRequest("Invalid request: the session id has characters that it may not have")
    if named is not None and not opening and named.date not in connection.party.supported:
        supported = connection.party.supported
        raise UnsupportedRevision(
            f"Unsupported protocol version: {named.date}; this server speaks {', '.join(supported)}",
            {"supported": list(supported), "requested": named.date},
        )
    return ToSession(named or OLDEST_HTTP, session, opening)


def _to_stateless(sent: Mapping[str, str], message: Message | None, connection: Connection) -> ToStateless:
    """A request of the stateless era, checked as far as headers and `_meta` go."""
    if not isinstance(message, Request | Notice):
        raise InvalidRequest("Invalid request: only a single request or notification may be posted")
    version = sent.get(headers.VERSION)
    if version is None:
        raise HeaderMismatch(f"{headers.VERSION}: the header is missing")
    version = version.strip(" \t")
    if isinstance(message, Notice):
        _check_supported(version, connection)
        if headers.METHOD in sent:
            _check_method(sent, message.method)
        return ToStateless()
    meta = read_meta(message.params)
    STATELESS.require(meta)
    if meta.protocol_version != version:
        raise HeaderMismatch(
            f"{headers.VERSION}: the header says {headers.show(version)}, "
            f"the body says {headers.show(meta.protocol_version)}"
        )
    peer = STATELESS.admit(connection, message.method, meta)
    _check_method(sent, message.method)
    return ToStateless(peer, meta)


def _check_supported(version: str, connection: Connection) -> None:
    supported = connection.party.supported
    if version not in supported:
        raise UnsupportedRevision(
            f"Unsupported protocol version: {version}", {"supported": list(supported), "requested": version}
        )


def _check_method(sent: Mapping[str, str], method: str) -> None:
    """`Mcp-Method` repeats the method of the body, letter for letter (HDR-1)."""
    said = sent.get(headers.METHOD)
    if said is None:
        raise HeaderMismatch(f"{headers.METHOD}: the header is missing; the body says {headers.show(method)}")
    if said.strip(" \t") != method:
        raise HeaderMismatch(
            f"{headers.METHOD}: the header says {headers.show(said)}, the body says {headers.show(method)}"
        )


# --------------------------------------------------------------------- what a request mirrors

_MEMBERS: Final = Reader(dict[str, Raw])
_TEXT: Final = Reader(str)
_ARGUMENTS: Final = Reader(dict[str, JSON])

Annotated: TypeAlias = Mapping[str, tuple[str, ...]]
"""The annotated parameters of a tool, as `headers.annotations` found them."""


def verify(sent: Mapping[str, str], incoming: Incoming, annotated: Annotated | None = None) -> None:
    """Return if the headers repeat what the body of a stateless request says.

    Args:
        sent: the headers of the request, by their names in lower case.
        incoming: the request.
        annotated: the annotated parameters of the tool that it calls.

    Raises:
        HeaderMismatch: a header is missing or says something else (HDR-23 … HDR-26).
    """
    named = incoming.row.named
    if named is not None:
        headers.same_name(sent.get(headers.NAME), getattr(incoming.params, named))
    if annotated:
        headers.verify(annotated, _arguments(incoming.params.arguments), sent)


def mirrored(message: Request | Notice, annotated: Annotated | None = None) -> dict[str, str]:
    """The headers that a client sends with a stateless message (HDR-1 … HDR-5, HTTPM-14, HTTPM-15).

    Args:
        message: the request or notice.
        annotated: the annotated parameters of the tool that it calls, where they are known.

    Raises:
        ValueError: no header can carry an annotated argument.
    """
    meta = read_meta(message.params)
    version = LATEST.date if meta.protocol_version is UNSET else meta.protocol_version
    said = {headers.VERSION: version, headers.METHOD: message.method}
    row = LATEST.requests[CLIENT].get(message.method)
    if row is not None and row.named is not None:
        members = _MEMBERS(message.params)
        said[headers.NAME] = headers.encode_value(_TEXT(members[row.named]))
        if annotated:
            said |= headers.mirror(annotated, _arguments(members.get("arguments", UNSET)))
    return said


def _arguments(raw: Raw | Unset) -> dict[str, JSON]:
    """The arguments of a call; what is no object has no annotated parameters, and others will refuse it."""
    try:
        return _ARGUMENTS(raw)
    except Unfit:
        return {}
