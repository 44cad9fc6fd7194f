"""A server that reports changes in both eras, and the notifications that a client receives."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from endpoint import DISCOVERED, WELCOME, Endpoint, HttpLike, client_of
from raw_server import Clock, run
from revision_dates import DATES
from toolpost import Change, Client
from toolpost.errors import RequestFailed

__all__ = ["ACK", "ERAS", "TAG", "TOOLS", "UPDATED", "Telling", "both", "collect", "settled"]


ERAS = [DATES[3], DATES[-1]]
TAG = "io.modelcontextprotocol/subscriptionId"
ACK = "notifications/subscriptions/acknowledged"
TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


class Telling(Endpoint):
    """A server that reports changes in either era."""

    def __init__(self, **table: Any) -> None:
        self.listens: list[Any] = []
        self.refuse: tuple[str, ...] = ()
        super().__init__(
            **{
                "server__discover": DISCOVERED,
                "initialize": WELCOME,
                "subscriptions__listen": self.listen,
                "tools__list": {"resultType": "complete", "tools": [], "ttlMs": 60_000},
                **table,
            }
        )

    def listen(self, channel: HttpLike, message: Any) -> None:
        wanted = dict(message["params"]["notifications"])
        if self.refuse:
            uris = [uri for uri in wanted["resourceSubscriptions"] if uri not in self.refuse]
            wanted["resourceSubscriptions"] = uris
        self.listens.append(message["id"])
        channel.say(ACK, notifications=wanted, _meta={TAG: message["id"]})

    def change(self, method: str, **params: Any) -> None:
        """Report a change, on the stream of this era."""
        tag = {"_meta": {TAG: self.listens[-1]}} if self.listens else {}
        self.now.say(method, **params, **tag)

    def cut(self) -> None:
        """Cut only the stream of the last listen."""
        self.now.tell(self.listens[-1], RequestFailed("the stream was cut off"))


async def collect(changes: Any, count: int) -> list[Change]:
    """Return this number of changes, and leave the loop."""
    heard: list[Change] = []
    async for change in changes:
        heard.append(change)
        if len(heard) == count:
            break
    return heard


async def settled(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(1000):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


def both(main: Callable[[Telling, Client], Any], **options: Any) -> Any:
    """Run a test with a client of each era."""

    def test(date: str) -> None:
        async def go() -> None:
            server = Telling()
            async with client_of(server, revision=date, **options) as client:
                await main(server, client)

        run(go(), Clock)

    test.__name__ = main.__name__
    return pytest.mark.parametrize("date", ERAS)(test)
