"""The long-lived request that notifies a stateless client of changes."""

import asyncio
from typing import Any

import pytest

from toolpost import Context, Handler, Server
from toolpost.errors import InvalidParams
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.testing import ScriptedChannel
from toolpost.types import Resource, ResourceContents

[STATELESS] = [date for date in DATES if REVISIONS[date].stateless]
FACTS = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
}
ALL = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["a://b", "no://where"],
}


class Watched(Handler):
    """Resources only, some of which can be watched."""

    def __init__(self) -> None:
        super().__init__("watched")
        self.log: list[str] = []

    async def list_resources(self, cursor: str | None) -> list[Resource]:
        return []

    async def read_resource(self, uri: str, ctx: Context) -> list[ResourceContents]:
        return []

    async def subscribe(self, uri: str, ctx: Context) -> None:
        if not uri.startswith("a:"):
            raise InvalidParams("no")
        self.log.append(f"+{uri}")

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        self.log.append(f"-{uri}")


class Talk:
    """A client that listens."""

    def __init__(self, server: Handler) -> None:
        self.channel = ScriptedChannel()
        self.serving = asyncio.create_task(ServerConversation(server, self.channel).run())

    async def listen(self, wishes: dict[str, Any], request_id: int = 7) -> dict[str, Any]:
        params = {"notifications": wishes, "_meta": FACTS}
        self.channel.feed(
            {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}
        )
        acknowledged = await self.channel.next_sent()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        return acknowledged["params"]["notifications"]

    async def end(self) -> None:
        self.channel.end()
        await self.serving


@pytest.mark.requirement("SUB-1", "SUB-5")
def test_only_supported_filters_are_acknowledged():
    async def main() -> None:
        server = Watched()
        talk = Talk(server)
        assert await talk.listen(ALL) == {"resourcesListChanged": True, "resourceSubscriptions": ["a://b"]}
        server.broadcaster.broadcast_list_changed("tools")
        server.notify_resource_updated("a://c")
        server.notify_resource_updated("a://b")
        said = await talk.channel.next_sent()
        assert (said["method"], said["params"]["uri"]) == ("notifications/resources/updated", "a://b")
        assert talk.channel.related[-1] == 7
        server.end_subscriptions()
        assert (await talk.channel.next_sent())["id"] == 7
        await talk.end()
        assert server.log == ["+a://b", "-a://b"]

    asyncio.run(main())


@pytest.mark.requirement("SUB-5")
def test_a_server_that_serves_nothing_acknowledges_nothing():
    async def main() -> None:
        talk = Talk(Handler("bare"))
        assert await talk.listen(ALL) == {}
        await talk.end()

    asyncio.run(main())


def test_a_subscription_ends_with_its_cancellation():
    async def main() -> None:
        server = Watched()
        talk = Talk(server)
        await talk.listen(ALL)
        talk.channel.feed({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        async with asyncio.timeout(10):
            while len(server.log) < 2:  # noqa: ASYNC110 - the condition has no event
                await asyncio.sleep(0)
        server.notify_resource_updated("a://b")
        await talk.listen({}, 8)
        assert [message.get("method") for message in talk.channel.sent] == [
            "notifications/subscriptions/acknowledged"
        ] * 2
        await talk.end()

    asyncio.run(main())


def test_changed_lists_are_reported():
    async def main() -> None:
        server = Server("s")
        server.tool(name="a")(lambda: "")
        server.prompt(name="a")(lambda: "")
        talk = Talk(server)
        assert await talk.listen(ALL) == {"toolsListChanged": True, "promptsListChanged": True}
        server.prompt(name="b")(lambda: "")
        assert (await talk.channel.next_sent())["method"] == "notifications/prompts/list_changed"
        await talk.end()

    asyncio.run(main())
