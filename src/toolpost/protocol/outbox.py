"""What we say unasked: notices, how far a request has come, lines for a log.

The telling half of `connection`, which owns the state that is read and changed here. Nothing is said that the
revision, the state or the peer does not allow.
"""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Final

from toolpost.errors import LocalProtocolError, NotDeclared
from toolpost.protocol import jsonrpc
from toolpost.protocol.events import Incoming
from toolpost.protocol.methods import SERVER, Row, whereabouts
from toolpost.protocol.params import dressed
from toolpost.protocol.revisions import LATEST, Revision
from toolpost.types.base import JSON, Number, RequestId
from toolpost.types.lifecycle import SUBSCRIPTION_ID, LogLevel
from toolpost.types.notices import LogParams, NoticeParams, ProgressParams

if TYPE_CHECKING:
    from toolpost.protocol.connection import Connection

__all__ = ["LEVELS", "log", "notify", "progress", "unsendable"]

LEVELS: Final[dict[str, int]] = {
    level: rank
    for rank, level in enumerate(
        ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
    )
}
"""Log levels, from talkative to grave."""

# Notices that either side may send before the handshake is complete (LIFE-6).
_EARLY: Final = frozenset(
    {
        "notifications/initialized",
        "notifications/cancelled",
        "notifications/progress",
        "notifications/message",
    }
)


_FOR_LISTENERS: Final = frozenset(
    {
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/cancelled",
    }
)
"""What a stateless client hears on a subscription, and nowhere else."""


def unsendable(connection: "Connection", method: str, revision: Revision) -> LocalProtocolError:
    """The error for a method that we do not send in this revision."""
    return LocalProtocolError(
        f"a {connection.role} cannot send {method} in {revision.date}", hint=whereabouts(method)
    )


def notify(
    connection: "Connection",
    method: str | Row,
    params: NoticeParams | Mapping[str, JSON] | None,
    to: Incoming | None,
) -> bytes:
    """The bytes of a notice."""
    revision = connection.revision if to is None else to.peer.revision
    row = method if isinstance(method, Row) else connection.notice_row(method, revision, connection.role)
    if row is None:
        raise unsendable(connection, str(method), revision)
    if row.result is not None:
        raise LocalProtocolError(f"{row.name} is a request, not a notice")
    if connection.lifecycle.state == "closed":
        connection.lifecycle.allow(row.name)
    if to is None:
        _check_unasked(connection, row, revision)
    elif revision.stateless:
        _check_heard(connection, row, to)
    if row.needs and row.name not in revision.ungated and not connection.party.declares(row.needs):
        raise NotDeclared(
            row.needs, f"this {connection.role} does not declare {row.needs!r}, which {row.name} needs"
        )
    meta = None
    if to is not None and to.row.name == "subscriptions/listen":
        meta = {SUBSCRIPTION_ID: to.id}  # META-19
    return jsonrpc.encode_notice(row.name, dressed(params, meta, revision))


def _check_unasked(connection: "Connection", row: Row, revision: Revision) -> None:
    """A notice that belongs to no request needs a session (a stateless client may still cancel)."""
    if connection.role == SERVER and revision.stateless:
        raise LocalProtocolError(
            f"{row.name} belongs to a request: there is no session with a client",
            hint="name the request: notify(…, to=incoming)",
        )
    if not revision.stateless and row.name not in _EARLY:
        connection.lifecycle.allow(row.name)


def _check_heard(connection: "Connection", row: Row, to: Incoming) -> None:
    """A stateless request hears what belongs to it, until it has its answer (SUB-10, STDIO-11)."""
    if connection.incoming.get(to.id) is not to:
        raise LocalProtocolError(f"{row.name} comes too late: the request {to.id!r} has ended")
    listens = to.row.name == "subscriptions/listen"
    known = LATEST.notices[SERVER].get(row.name) is row
    if known and (row.name in _FOR_LISTENERS) is not listens:
        raise LocalProtocolError(f"{row.name} does not belong to {to.row.name}")


def progress(
    connection: "Connection",
    request_id: RequestId,
    progress: Number,
    total: Number | None,
    message: str | None,
) -> bytes | None:
    """The bytes that tell how far a request of the peer's has come, if that is news."""
    incoming = connection.incoming.get(request_id)
    if incoming is None or incoming.token is None or incoming.row.name == "subscriptions/listen":
        return None
    if not isinstance(progress, int | float):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
        raise LocalProtocolError(f"progress is a number, not {progress!r}")
    if not _finite(progress) or (incoming.progress is not None and progress <= incoming.progress):
        return None
    params = ProgressParams(
        progress_token=incoming.token,
        progress=progress,
        total=total if _finite(total) else None,
        message=message,
    )
    data = jsonrpc.encode_notice("notifications/progress", params)
    incoming.progress = progress
    return data


def _finite(number: Number | None) -> bool:
    """Whether JSON can say the number; an integer may have more digits than a float."""
    return not isinstance(number, float) or isfinite(number)


def log(
    connection: "Connection", level: LogLevel, data: JSON, logger: str | None, to: Incoming | None
) -> bytes | None:
    """The bytes of a line for the client's log, if it wants to hear it."""
    if to is not None and to.peer.revision.stateless:
        listens = to.row.name == "subscriptions/listen"
        over = connection.incoming.get(to.id) is not to
        wanted = None if listens or over else to.peer.log_level
        heard = wanted is not None
    else:
        wanted = connection.log_level
        heard = connection.peer is not None and not connection.revision.stateless
    if level not in LEVELS:
        raise LocalProtocolError(f"there is no log level {level!r}", hint=f"one of {', '.join(LEVELS)}")
    if not heard or (wanted is not None and LEVELS[level] < LEVELS[wanted]):
        return None
    line = LogParams(level=level, data=data, logger=logger)
    return notify(connection, "notifications/message", line, to)
