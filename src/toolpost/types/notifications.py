"""Notices: what either side says without waiting for an answer, and the filter of `subscriptions/listen`.

Which notice may go where, and when, is not said here.
"""

from msgspec import field

from toolpost.types.base import JSON, Meta, Number, Params, ProgressToken, RequestId, Result, WireStruct
from toolpost.types.initialize import LogLevel

__all__ = [
    "AcknowledgedParams",
    "CancelledParams",
    "ElicitationCompleteParams",
    "ListenParams",
    "ListenResult",
    "LogParams",
    "NotificationParams",
    "ProgressParams",
    "ResourceUpdatedParams",
    "SubscriptionFilter",
]


class NotificationParams(WireStruct, kw_only=True):
    """The parameters of a notice; many have none of their own."""

    meta: Meta | None = field(name="_meta", default=None)


class CancelledParams(NotificationParams):
    """A request is no longer wanted."""

    request_id: RequestId | None = None
    reason: str | None = None


class ProgressParams(NotificationParams):
    """How far a request has come."""

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None


class LogParams(NotificationParams):
    """A line for the client's log."""

    level: LogLevel
    data: JSON
    logger: str | None = None


class ResourceUpdatedParams(NotificationParams):
    """A resource has changed."""

    uri: str


class ElicitationCompleteParams(NotificationParams):
    """A URL elicitation is done (2025-11-25)."""

    elicitation_id: str


class SubscriptionFilter(WireStruct, kw_only=True):
    """What a client wants to hear of (2026-07-28)."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


class ListenParams(Params):
    """The parameters of `subscriptions/listen`."""

    notifications: SubscriptionFilter


class ListenResult(Result):
    """The end of a subscription; its `_meta` names which."""


class AcknowledgedParams(NotificationParams):
    """The part of the filter that the server honours."""

    notifications: SubscriptionFilter
