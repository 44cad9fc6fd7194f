"""A server with subscriptions, and the notifications that a client gets."""

import asyncio
from typing import Any

import msgspec

from raw_server import Asked, RawServer
from toolpost.types import (
    AcknowledgedParams,
    ListenResult,
    Result,
    SubscriptionFilter,
)

__all__ = ["ACKNOWLEDGED", "LISTS", "TOOLS_CHANGED", "UPDATED", "Heard", "Listened", "watching"]


UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS_CHANGED = "notifications/tools/list_changed"
LISTS = SubscriptionFilter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)


class Listened(RawServer):
    """A server that keeps its subscription streams, so that a test can send on them."""

    def __init__(self, refuse: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__({"subscriptions/listen": self.listen}, **options)
        self.refuse = refuse
        self.listens: list[Asked] = []
        self.ends: list[asyncio.Event] = []
        self.silent = False

    async def listen(self, asked: Asked) -> Result:
        wanted: SubscriptionFilter = asked.params.notifications
        honoured = msgspec.structs.replace(
            wanted,
            resource_subscriptions=[
                uri for uri in wanted.resource_subscriptions or () if uri not in self.refuse
            ],
        )
        self.listens.append(asked)
        self.ends.append(asyncio.Event())
        if not self.silent:
            await asked.say(ACKNOWLEDGED, AcknowledgedParams(notifications=honoured))
        await self.ends[-1].wait()
        return ListenResult()

    @property
    def filters(self) -> list[SubscriptionFilter]:
        return [asked.params.notifications for asked in self.listens]


class Heard:
    """The notifications of a client, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def __call__(self, method: str, params: Any) -> None:
        self.queue.put_nowait((method, getattr(params, "uri", None)))


def watching(*uris: str, lists: bool = True) -> SubscriptionFilter:
    if lists:
        return msgspec.structs.replace(LISTS, resource_subscriptions=list(uris) or None)
    return SubscriptionFilter(resource_subscriptions=list(uris))
