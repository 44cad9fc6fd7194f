"""One message as it went by, and what was found out about it.

A plain record: a witness fills it, and whoever shows messages reads it.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from toolpost.protocol.methods import Role
from toolpost.types.base import RequestId

__all__ = ["MessageKind", "ObservedMessage"]

MessageKind: TypeAlias = Literal["request", "notice", "result", "error", "junk", "note"]


class ObservedMessage(Struct, kw_only=True):
    """One message as it went by.

    Attributes:
        at: seconds since the start.
        by: who said it.
        size: its bytes, without the end of the line.
        kind: "junk" is no message at all, "note" is something that happened to the connection.
        id: of a request or an answer.
        method: of an answer that of its request; empty if nobody knows.
        summary: what it is about in a few words: the tool, the URI, the text of an error.
        duration: the seconds between a request and this answer.
        violations: the rules that it breaks.
        failed: whether it is an error, or the result of a tool that says so.
        body: the message itself; of one that is too long its beginning.
    """

    at: float
    by: Role
    size: int
    kind: MessageKind = "junk"
    id: RequestId | None = None
    method: str = ""
    summary: str = ""
    duration: float | None = None
    violations: list[str] = field(default_factory=list[str])
    failed: bool = False
    body: bytes = b""
