"""Raw passage: requests and results that a gateway forwards without decoding them.

Members of a result that belong to one connection (`_meta` of the server, `resultType`, cache hints) are
replaced for the other one; all other members stay as they came, byte by byte. A result is decoded only if
the revision of its receiver lacks something that the revision of its sender has.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from toolpost.errors import InvalidParams, LocalProtocolError, ResourceNotFound, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import CORE_RESULT_TYPES, check_extension_result
from toolpost.protocol.jsonrpc import MEMBERS_READER, InvalidJSONValue, JSONReader
from toolpost.protocol.methods import CLIENT, RESOURCES_READ, Row
from toolpost.protocol.revisions import LATEST, REVISIONS
from toolpost.types.base import Params, Raw, Result, Struct
from toolpost.types.initialize import SERVER_INFO

if TYPE_CHECKING:
    from toolpost.protocol.events import InboundRequest
    from toolpost.protocol.local_peer import LocalPeer

_OPTIONAL_MEMBERS_READER: Final = JSONReader(cast("type[dict[str, Raw] | None]", dict[str, Raw] | None))
_STATELESS_MEMBERS: Final = ("resultType", "ttlMs", "cacheScope")
"""The members of results that the session era does not have."""


class ForwardedResult(Struct, frozen=True):
    """The result of a forwarded request, not decoded.

    Attributes:
        raw: its bytes, as the server sent them.
        result_type: "complete", or what the server needs first, such as "input_required".
        revision: the protocol revision in which the server answered.

    Examples:
        >>> server = Server("shop")
        >>> @server.tool
        ... def price(item: str) -> float:
        ...     return 2.5
        >>> async def main():
        ...     async with Client(server) as mcp:
        ...         return await mcp.forward("tools/call", b'{"name":"price","arguments":{"item":"pen"}}')
        >>> import asyncio
        >>> asyncio.run(main()).result_type
        'complete'
    """

    raw: bytes
    result_type: str
    revision: str


class _AnyResults(dict[str | None, JSONReader[Result]]):
    """Accepts a result of any type."""

    def get(self, kind: str | None, default: Any = None) -> JSONReader[Result]:  # noqa: ARG002 - there is always one
        """Return the reader that only reads the type."""
        return self["complete"]


def make_raw_row(method: str, known: Row | None = None) -> Row:
    """Return a row for a request whose parameters and result are not decoded."""
    known = known or LATEST.requests[CLIENT].get(method)
    # Peers choose the names of unknown methods, so those are not kept.
    return _build_raw_row(method, known) if known is None else _get_raw_row(method, known)


def _build_raw_row(method: str, known: Row | None) -> Row:
    row = Row(method, Params, Result, repeatable=known is not None and known.repeatable)
    if known is not None:
        row.named, row.member = known.named, known.member
    row.results = _AnyResults(row.results)
    return row


_get_raw_row: Final = lru_cache(maxsize=256)(_build_raw_row)


def read_members(params: bytes | Raw) -> dict[str, Raw]:
    """Return the members of parameters, not decoded. Raises LocalProtocolError if they are not an object."""
    try:
        return MEMBERS_READER(Raw(params))
    except InvalidJSONValue as error:
        raise LocalProtocolError(f"the parameters to forward are not a JSON object: {error}") from error


def read_forwarded(method: str, forwarded: ForwardedResult) -> Result:
    """Return a forwarded result, decoded. Raises LocalProtocolError if it is not complete."""
    if forwarded.result_type != "complete":
        kind = jsonrpc.shorten(forwarded.result_type)
        raise LocalProtocolError(f"unexpected result type for {method}: {kind!r}")
    return LATEST.requests[CLIENT][method].read_result(Raw(forwarded.raw), "complete")


def restamp_result(
    party: "LocalPeer", incoming: "InboundRequest", forwarded: ForwardedResult
) -> "Result | Raw":
    """Return a forwarded result for the client of `incoming`; a `Result` if it has to be translated."""
    source, target = REVISIONS[forwarded.revision], incoming.peer.revision
    complete = forwarded.result_type == "complete"
    if forwarded.result_type not in CORE_RESULT_TYPES:
        check_extension_result(party, incoming, forwarded.result_type)
    elif not complete and not (target.stateless and incoming.row.can_require_input):
        why = f"an 'input_required' result of {incoming.row.name} cannot be sent in {target.date}"
        raise LocalProtocolError(f"the upstream server needs input first, and {why}")
    known = target.requests[CLIENT].get(incoming.row.name)
    understands_all = source.content <= target.content and target.structured in ("any", source.structured)
    if complete and known is not None and not understands_all:
        result = known.read_result(Raw(forwarded.raw), "complete")
        if result.meta:
            result.meta = {key: value for key, value in result.meta.items() if key != SERVER_INFO} or None
        return result
    members = MEMBERS_READER(Raw(forwarded.raw))
    meta: dict[str, Any] = _OPTIONAL_MEMBERS_READER(members["_meta"]) or {} if "_meta" in members else {}
    meta.pop(SERVER_INFO, None)
    spliced: dict[str, Any] = {**members}
    if target.stateless:
        meta |= party.stamps[target.date]
        spliced["resultType"] = forwarded.result_type
        if complete and known is not None and known.is_cacheable:
            spliced = {"ttlMs": 0, "cacheScope": "private", **spliced}
    else:
        for name in _STATELESS_MEMBERS:
            spliced.pop(name, None)
    spliced.pop("_meta", None)
    if meta:
        spliced["_meta"] = meta
    return Raw(jsonrpc.encode(spliced))


def find_error_code(method: str, error: RPCError) -> int:
    """Return the code of an error; that of the session era if a stateless server has no such resource."""
    if method != RESOURCES_READ or error.code != InvalidParams.code:
        return error.code
    is_missing = error.message.lower().startswith(("resource not found", "unknown resource"))
    return ResourceNotFound.code if is_missing else error.code
