"""Notifications that we send: change notices, progress, log messages.

The sending half of `connection`, which owns the state that is read and changed here. Refuses what the
revision, the state or the peer does not allow.
"""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Final, get_args

from toolpost.errors import CapabilityNotDeclared, LocalProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import prepare_params
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.methods import LOG_MESSAGE, PROGRESS, SERVER, SUBSCRIPTIONS_LISTEN, Row, suggest_method
from toolpost.protocol.revisions import LATEST, Revision
from toolpost.types.base import JSON, Number, RequestId
from toolpost.types.initialize import SUBSCRIPTION_ID, LogLevel
from toolpost.types.notifications import LogParams, NotificationParams, ProgressParams

if TYPE_CHECKING:
    from toolpost.protocol.connection import Connection

LOG_LEVEL_RANKS: Final[dict[str, int]] = {level: rank for rank, level in enumerate(get_args(LogLevel))}
"""Log levels, the least severe first."""


def make_unsendable_error(connection: "Connection", method: str, revision: Revision) -> LocalProtocolError:
    """Return the error for a method that we do not send in this revision."""
    return LocalProtocolError(
        f"a {connection.role} cannot send {method} in {revision.date}", hint=suggest_method(method)
    )


def build_notification(
    connection: "Connection",
    method: str | Row,
    params: NotificationParams | Mapping[str, JSON] | None,
    to: InboundRequest | None,
) -> bytes:
    """Return the bytes of a notification."""
    revision = connection.revision if to is None else to.peer.revision
    row = method if isinstance(method, Row) else None
    if isinstance(method, str):
        row = connection.find_notification_row(method, revision, connection.role)
    if row is None:
        raise make_unsendable_error(connection, str(method), revision)
    if row.result is not None:
        raise LocalProtocolError(f"{row.name} is a request, not a notice")
    if connection.lifecycle.state == "closed":
        connection.lifecycle.check_outgoing(row.name)
    if to is None:
        _check_unrelated(connection, row, revision)
    elif revision.stateless:
        _check_related(connection, row, to)
    if row.needs and row.name not in revision.ungated and not connection.local_peer.has_capability(row.needs):
        raise CapabilityNotDeclared(
            row.needs, f"this {connection.role} does not declare {row.needs!r}, which {row.name} needs"
        )
    meta = None
    if to is not None and to.row.name == SUBSCRIPTIONS_LISTEN:
        meta = {SUBSCRIPTION_ID: to.id}  # META-19
    return jsonrpc.encode_notification(row.name, prepare_params(params, meta, revision))


def _check_unrelated(connection: "Connection", row: Row, revision: Revision) -> None:
    """Refuse a notification without a request where there is no session (a stateless client may cancel)."""
    if connection.role == SERVER and revision.stateless:
        raise LocalProtocolError(
            f"{row.name} belongs to a request: there is no session with a client",
            hint="name the request: notify(…, to=incoming)",
        )
    if not revision.stateless and not row.early:
        connection.lifecycle.check_outgoing(row.name)


def _check_related(connection: "Connection", row: Row, to: InboundRequest) -> None:
    """Refuse a notification that does not belong to a stateless request, or is late (SUB-10, STDIO-11)."""
    if connection.incoming.get(to.id) is not to:
        raise LocalProtocolError(f"{row.name} comes too late: the request {to.id!r} has ended")
    listens = to.row.name == SUBSCRIPTIONS_LISTEN
    known = LATEST.notifications[SERVER].get(row.name) is row
    if known and row.listened is not listens:
        raise LocalProtocolError(f"{row.name} does not belong to {to.row.name}")


def build_progress(
    connection: "Connection",
    request_id: RequestId,
    progress: Number,
    total: Number | None,
    message: str | None,
) -> bytes | None:
    """Return the bytes of a progress notification, or None if it is not wanted or not an increase."""
    incoming = connection.incoming.get(request_id)
    if incoming is None or incoming.token is None or incoming.row.name == SUBSCRIPTIONS_LISTEN:
        return None
    if not isinstance(progress, int | float):  # pyright: ignore[reportUnnecessaryIsInstance] - authors err
        raise LocalProtocolError(f"progress is a number, not {progress!r}")
    if not _is_finite(progress) or (incoming.progress is not None and progress <= incoming.progress):
        return None
    shown = total if _is_finite(total) else None
    params = ProgressParams(incoming.token, progress, shown, message)
    data = jsonrpc.encode_notification(PROGRESS, params)
    incoming.progress = progress
    return data


def _is_finite(number: Number | None) -> bool:
    """Return whether JSON can hold the number; an integer may have more digits than a float."""
    return not isinstance(number, float) or isfinite(number)


def build_log_message(
    connection: "Connection", level: LogLevel, data: JSON, logger: str | None, to: InboundRequest | None
) -> bytes | None:
    """Return the bytes of a log message, or None if the client does not want it."""
    if to is not None and to.peer.revision.stateless:
        listens = to.row.name == SUBSCRIPTIONS_LISTEN
        over = connection.incoming.get(to.id) is not to
        wanted = None if listens or over else to.peer.log_level
        heard = wanted is not None
    else:
        wanted = connection.log_level
        heard = connection.peer is not None and not connection.revision.stateless
    if level not in LOG_LEVEL_RANKS:
        names = ", ".join(LOG_LEVEL_RANKS)
        raise LocalProtocolError(f"there is no log level {level!r}", hint=f"one of {names}")
    if not heard or (wanted is not None and LOG_LEVEL_RANKS[level] < LOG_LEVEL_RANKS[wanted]):
        return None
    return build_notification(connection, LOG_MESSAGE, LogParams(level, data, logger), to)
