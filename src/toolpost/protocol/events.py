"""What a connection tells its owner: the requests in flight, and everything that can arrive.

Plain records. Who makes them and why is told in `connection`.
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

# --------------------------------------------------------------------- what is in flight


class InboundRequest(Struct, eq=False):
    """A request of the peer that waits for our answer."""

    id: RequestId
    row: Row
    params: Any
    peer: Peer
    raw: Raw | Unset = UNSET
    token: ProgressToken | None = None
    progress: Number | None = None

    @property
    def meta(self) -> Meta:
        """Its `_meta`, whole.

        Raises:
            InvalidParams: it holds what no value of ours can hold (1e400).
        """
        try:
            return _META_READER(self.raw).meta or {}
        except InvalidJSONValue as error:
            raise InvalidParams(f"Invalid params: _meta cannot be read: {error}") from error


class OutboundRequest(Struct, eq=False, gc=False):
    """A request of ours that waits for the peer's answer; `data` is what to send."""

    id: RequestId
    row: Row
    data: bytes
    revision: Revision
    token: ProgressToken | None = None
    progress: Number | None = None
    task: bool = False
    """Whether it wants to be run as a task, and may be answered with one."""
    plain: bool = False
    """Whether its result may be a `PlainToolResult`."""


# --------------------------------------------------------------------- events


class NotificationReceived(Struct):
    """The peer says something. `row` is None for a method that we do not know."""

    method: str
    params: Any
    row: Row | None = None
    raw: Raw | Unset = UNSET


class CancellationReceived(Struct):
    """The peer no longer wants an answer to `request`."""

    request: InboundRequest
    reason: str | None = None


class ProgressReceived(Struct):
    """A request of ours has come further."""

    request: OutboundRequest
    params: ProgressParams


class ResponseReceived(Struct):
    """A request of ours was answered."""

    request: OutboundRequest
    result: Result


class ErrorReceived(Struct):
    """A request of ours was refused, or answered with something that is no answer."""

    request: OutboundRequest
    error: MCPError


class InvalidMessageReceived(Struct):
    """The peer broke a rule. `data` is the answer to send, if it may have one."""

    error: MCPError
    data: bytes | None = None
    id: RequestId | None = None


class MessageDropped(Struct):
    """A message that means nothing (any more). `error` tells more where there is more to tell."""

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
