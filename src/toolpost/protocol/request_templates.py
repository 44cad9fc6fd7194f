"""Fast path of a client: templates of requests that were sent before, and a reader of plain tool results.

A request like an earlier one differs in id, parameters and progress token alone, so the bytes around them are
checked and written once, until something changes. A plain response is recognized by how it begins. Everything
else is left to `connection`.
"""

from typing import TYPE_CHECKING, Any, Final

from toolpost.protocol import jsonrpc
from toolpost.protocol.downgrade import downgrade_value
from toolpost.protocol.eras import ERAS, Peer
from toolpost.protocol.events import OutboundRequest, ResponseReceived
from toolpost.protocol.jsonrpc import DECODE_ERRORS
from toolpost.protocol.methods import CLIENT, PLAIN_RESULT_READER, TOOLS_CALL
from toolpost.types.base import UNSET, Raw

if TYPE_CHECKING:
    from toolpost.protocol.connection import Connection

LARGE_PARAMS_BYTES: Final = 16 * 1024
"""From this size on, a view of the parameters is cheaper than a copy."""

MAX_CALL_TEMPLATES: Final = 256
"""How many tools have a template: more than a server has."""


class RequestTemplate:
    """The common bytes of requests of one method.

    They go from the same client to the same server in the same state, have no `_meta` of their own and are
    not run as a task. Nothing else decides whether they may be sent.
    """

    __slots__ = (
        "_kind",
        "_meta",
        "_party",
        "_peer",
        "_progress_template",
        "_state",
        "_tasks",
        "_template",
        "call_templates",
        "revision",
        "row",
    )

    def __init__(self, connection: "Connection", outgoing: OutboundRequest, peer: Peer) -> None:
        revision = self.revision = outgoing.revision
        self.row = outgoing.row
        self._peer = peer
        self._party = connection.local_peer
        self._state = connection.lifecycle.state
        self._kind: type[Any] = outgoing.row.params
        self._tasks = revision.tasks and "task" in self._kind.__struct_fields__
        facts = ERAS[revision.era].stamp_request(connection.local_peer, revision, None, None)
        written = jsonrpc.encode(facts or {})[1:-1]
        self._template = self._build_template(written) if written else None
        self._meta = b'%b,"progressToken":' % written if written else b'"progressToken":'
        self._progress_template = self._build_template(self._meta, b"%d")
        self.call_templates: dict[str, bytes] = {}
        """By tool name: a call with blanks for id, arguments and progress token."""

    @classmethod
    def from_request(
        cls, connection: "Connection", outgoing: OutboundRequest, params: Any
    ) -> "RequestTemplate | None":
        """Make the template of a request, or None.

        There is none for requests of servers, whose parameters decide which capability they need; before the
        revision is negotiated; and where extensions have rows, which come before those of the protocol.
        """
        peer, state = connection.peer, connection.lifecycle.state
        settled = state == "ready" or (outgoing.revision.stateless and state != "closed")
        if connection.role != CLIENT or connection.extra or peer is None or not settled:
            return None
        kind: type[Any] = outgoing.row.params
        unlike = type(params) is not kind or params.meta is not UNSET or outgoing.task
        return None if unlike else cls(connection, outgoing, peer)

    def _build_template(self, meta: bytes, token: bytes = b"", params: bytes = b"%b%b") -> bytes:
        """Return a request with blanks: id, parameters, a comma behind them, and the token if any."""
        method = jsonrpc.encode(self.row.name).replace(b"%", b"%%")
        before = b'{"jsonrpc":"2.0","id":%d,"method":' + method + b',"params":' + params
        return before + b'"_meta":{' + meta.replace(b"%", b"%%") + token + b"}}}"

    def add_call_template(self, name: str) -> bytes:
        """Add a tool to `call_templates`, and return its template."""
        if len(self.call_templates) >= MAX_CALL_TEMPLATES:
            self.call_templates.clear()
        named = b'{"name":%b,"arguments":' % jsonrpc.encode(name)
        form = self.call_templates[name] = self._build_template(
            self._meta, b"%d", named.replace(b"%", b"%%") + b"%b,"
        )
        return form

    def is_current(self, connection: "Connection") -> bool:
        """Return whether nothing has changed since it was made."""
        return (
            connection.peer is self._peer
            and connection.lifecycle.state == self._state
            and connection.local_peer is self._party
            and not connection.extra
        )

    def is_applicable(self, connection: "Connection", params: Any) -> bool:
        """Return whether it holds for a request with these parameters."""
        return (
            type(params) is self._kind
            and params.meta is UNSET
            and not (self._tasks and params.task is not None)
            and self.is_current(connection)
        )

    def write(self, request_id: int, params: Any, *, progress: bool) -> bytes:
        """Return the bytes of a request; LocalProtocolError if the parameters cannot be encoded."""
        members = jsonrpc.encode(downgrade_value(params, self.revision))
        form = self._progress_template if progress else self._template
        if form is None:
            return jsonrpc.encode_request(request_id, self.row.name, Raw(members))
        size = len(members)
        opened = (members if size < LARGE_PARAMS_BYTES else memoryview(members))[:-1]
        comma = b"," if size > 2 else b""
        return form % ((request_id, opened, comma, request_id) if progress else (request_id, opened, comma))


# --------------------------------------------------------------------- calls of tools

_ENVELOPE_START: Final = b'{"jsonrpc":"2.0","id"'
_RESULT_MEMBER: Final = b',"result":'
_MAX_ID_DIGITS: Final = 18
"""How many digits an id of ours has at most."""
_ZERO: Final = ord("0")
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")


def make_tool_call(connection: "Connection", name: str, arguments: Raw) -> OutboundRequest | None:
    """Make a tool call with progress, whose result may be plain; None if there is no template for it."""
    like = connection.templates.get(TOOLS_CALL)
    if like is None or not like.is_current(connection):
        return None
    if type(name) is not str:
        return None  # the general way reports it
    form = like.call_templates.get(name) or like.add_call_template(name)
    request_id = connection.next_id
    connection.next_id += 1
    data = form % (request_id, arguments, request_id)
    outgoing = connection.outgoing[request_id] = OutboundRequest(
        request_id, like.row, data, like.revision, request_id, plain=True
    )
    return outgoing


def read_plain_response(connection: "Connection", data: bytes) -> ResponseReceived | None:
    """Read the response to such a call as a `PlainToolResult`; None if it is not plain or not for one.

    `partition` is measurably faster here than `find` plus `startswith`.
    """
    envelope, _, rest = data.partition(_RESULT_MEMBER)
    before, _, digits = envelope.rpartition(b":")
    if (
        before != _ENVELOPE_START
        or not digits.isdigit()
        or len(digits) > _MAX_ID_DIGITS
        or digits[0] == _ZERO
        or data[-1] != _CLOSE
        or rest[0] != _OPEN
        or rest[-2] != _CLOSE
        or not data.isascii()
    ):
        return None
    outgoing = connection.outgoing.get(int(digits))
    depth = connection.depth
    if outgoing is None or not outgoing.plain:
        return None
    if len(rest) > 2 * depth and rest.count(b"[") + rest.count(b"{") >= depth:
        return None  # it may nest too deeply
    raw = rest[:-1]
    try:
        result = PLAIN_RESULT_READER.decode(raw)  # one whole value, so there is no other member
    except DECODE_ERRORS:
        return None
    if outgoing.revision.stateless and result.result_type != "complete":
        return None
    vars(result)["raw"] = raw
    del connection.outgoing[outgoing.id]
    return ResponseReceived(outgoing, result)
