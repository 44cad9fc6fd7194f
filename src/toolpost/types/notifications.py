"""Parameters of notifications, and the filter of `subscriptions/listen`.

`toolpost.protocol.methods` has the direction and the revisions of each notification.
"""

from toolpost.types.base import JSON, MetaStruct, Number, Params, ProgressToken, RequestId, Result, WireStruct
from toolpost.types.initialize import LogLevel

__all__ = [
    "AcknowledgedParams", "CancelledParams", "ElicitationCompleteParams", "ListenParams", "ListenResult",
    "LogParams", "NotificationParams", "ProgressParams", "ResourceUpdatedParams", "SubscriptionFilter",
]  # fmt: skip


class NotificationParams(MetaStruct):
    """The parameters of a notification; many have none of their own."""


class CancelledParams(NotificationParams):
    """The request to cancel, and why."""

    request_id: RequestId | None = None
    reason: str | None = None


class ProgressParams(NotificationParams):
    """The progress of a request."""

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None


class LogParams(NotificationParams):
    """A log message for the client."""

    level: LogLevel
    data: JSON
    logger: str | None = None


class ResourceUpdatedParams(NotificationParams):
    """The resource that has changed."""

    uri: str


class ElicitationCompleteParams(NotificationParams):
    """The URL elicitation that is complete (2025-11-25)."""

    elicitation_id: str


class SubscriptionFilter(WireStruct, kw_only=True):
    """The notifications that a client subscribes to (2026-07-28)."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


class ListenParams(Params):
    """The parameters of `subscriptions/listen`."""

    notifications: SubscriptionFilter


class ListenResult(Result):
    """The end of a subscription, which its `_meta` names."""


class AcknowledgedParams(NotificationParams):
    """The part of the filter that the server honours."""

    notifications: SubscriptionFilter
