"""What a connection tells its owner: the requests in flight, and everything that can arrive.

Plain records. Who makes them and why is told in `connection`.
"""

from typing import Any, Final, TypeAlias

from toolpost.errors import InvalidParams, MCPError
from toolpost.protocol.eras import Peer
from toolpost.protocol.jsonrpc import Reader, Unfit
from toolpost.protocol.methods import Row
from toolpost.protocol.revisions import Revision
from toolpost.types.base import UNSET, Meta, Number, ProgressToken, Raw, RequestId, Result, Struct, Unset
from toolpost.types.notices import ProgressParams

__all__ = [
    "CancelReceived",
    "Dropped",
    "Event",
    "FailureReceived",
    "Incoming",
    "NoticeReceived",
    "Outgoing",
    "ProgressReceived",
    "Refused",
    "ReplyReceived",
]


class _MetaOf(Struct, rename={"meta": "_meta"}):
    meta: Meta | None = None


_META: Final = Reader(_MetaOf)

# --------------------------------------------------------------------- what is in flight


class Incoming(Struct, eq=False):
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
            return _META(self.raw).meta or {}
        except Unfit as error:
            raise InvalidParams(f"Invalid params: _meta cannot be read: {error}") from error


class Outgoing(Struct, eq=False, gc=False):
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
    """Whether its result may be a `Plain`."""


# --------------------------------------------------------------------- events


class NoticeReceived(Struct):
    """The peer says something. `row` is None for a method that we do not know."""

    method: str
    params: Any
    row: Row | None = None
    raw: Raw | Unset = UNSET


class CancelReceived(Struct):
    """The peer no longer wants an answer to `request`."""

    request: Incoming
    reason: str | None = None


class ProgressReceived(Struct):
    """A request of ours has come further."""

    request: Outgoing
    params: ProgressParams


class ReplyReceived(Struct):
    """A request of ours was answered."""

    request: Outgoing
    result: Result


class FailureReceived(Struct):
    """A request of ours was refused, or answered with something that is no answer."""

    request: Outgoing
    error: MCPError


class Refused(Struct):
    """The peer broke a rule. `data` is the answer to send, if it may have one."""

    error: MCPError
    data: bytes | None = None
    id: RequestId | None = None


class Dropped(Struct):
    """A message that means nothing (any more). `error` tells more where there is more to tell."""

    why: str
    error: MCPError | None = None


Event: TypeAlias = (
    Incoming
    | NoticeReceived
    | CancelReceived
    | ProgressReceived
    | ReplyReceived
    | FailureReceived
    | Refused
    | Dropped
)
