"""Requests in flight, and the events that a `Connection` returns for received messages.

Plain records; `connection` explains when they occur.
"""

from typing import Any, Final, TypeAlias

from toolpost.errors import InvalidParams, MCPError
from toolpost.protocol.eras import Peer
from toolpost.protocol.jsonrpc import InvalidJSONValue, JSONReader
from toolpost.protocol.methods import Row
from toolpost.protocol.revisions import Revision
from toolpost.types.base import UNSET, Meta, Number, ProgressToken, Raw, RequestId, Result, Struct, Unset
from toolpost.types.notifications import ProgressParams


class _ParamsWithMeta(Struct, rename={"meta": "_meta"}):
    meta: Meta | None = None


_META_READER: Final = JSONReader(_ParamsWithMeta)

# --------------------------------------------------------------------- requests in flight


class InboundRequest(Struct, eq=False):
    """A request of the peer that we have to answer."""

    id: RequestId
    row: Row
    params: Any
    peer: Peer
    raw: Raw | Unset = UNSET
    token: ProgressToken | None = None
    progress: Number | None = None

    @property
    def meta(self) -> Meta:
        """All of its `_meta`; InvalidParams if Python cannot hold a value of it (1e400)."""
        try:
            return _META_READER(self.raw).meta or {}
        except InvalidJSONValue as error:
            raise InvalidParams(f"Invalid params: _meta is not valid: {error}") from error


class OutboundRequest(Struct, eq=False, gc=False):
    """A request of ours that the peer has to answer; `data` is what to send, made of the `params` given."""

    id: RequestId
    row: Row
    data: bytes
    revision: Revision
    token: ProgressToken | None = None
    progress: Number | None = None
    task: bool = False
    """Whether it asks to be run as a task, and may be answered with one."""
    params: Any = None


# --------------------------------------------------------------------- events


class NotificationReceived(Struct):
    """A notification. `row` is None for an unknown method."""

    method: str
    params: Any
    row: Row | None = None
    raw: Raw | Unset = UNSET


class CancellationReceived(Struct):
    """The peer no longer wants an answer to `request`."""

    request: InboundRequest
    reason: str | None = None


class ProgressReceived(Struct):
    """A request of ours made progress."""

    request: OutboundRequest
    params: ProgressParams


class ResponseReceived(Struct):
    """A request of ours was answered."""

    request: OutboundRequest
    result: Result


class ErrorReceived(Struct):
    """A request of ours got an error, or an invalid response."""

    request: OutboundRequest
    error: MCPError


class InvalidMessageReceived(Struct):
    """The peer broke a rule. `data` is the error response to send, if any."""

    error: MCPError
    data: bytes | None = None
    id: RequestId | None = None


class MessageDropped(Struct):
    """A message without effect, or too late. `error` has the details, if any."""

    reason: str
    error: MCPError | None = None


ConnectionEvent: TypeAlias = (
    InboundRequest
    | NotificationReceived
    | CancellationReceived
    | ProgressReceived
    | ResponseReceived
    | ErrorReceived
    | InvalidMessageReceived
    | MessageDropped
)
