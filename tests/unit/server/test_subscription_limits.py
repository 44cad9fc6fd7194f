"""Limits of one client: resources that it watches, notifications being served."""

import asyncio
import logging
from typing import Any

import pytest

from toolpost import Context, Handler
from toolpost.errors import RateLimited
from toolpost.protocol.methods import DATES
from toolpost.server import context, rate_limit
from toolpost.server.middleware import RateLimit
from toolpost.server.runtime import notifications
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.testing import ScriptedChannel
from toolpost.types import Resource, ResourceContents

SESSION, STATELESS = DATES[-2], DATES[-1]
FACTS = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Watched(Handler):
    """Resources that can be watched."""

    def __init__(self, **options: Any) -> None:
        super().__init__("watched", **options)
        self.watched: list[str] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.heard_of = 0

    async def init(self, ctx: Context) -> None:
        self.begun.set()
        await self.go.wait()

    async def list_resources(self, cursor: str | None) -> list[Resource]:
        return []

    async def read_resource(self, uri: str, ctx: Context) -> list[ResourceContents]:
        return []

    async def subscribe(self, uri: str, ctx: Context) -> None:
        self.watched.append(uri)

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        self.watched.remove(uri)

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        self.heard_of += 1
        await asyncio.Event().wait()


class Talk:
    """A client, by its messages."""

    def __init__(self, server: Handler) -> None:
        self.channel = ScriptedChannel()
        self.serving = asyncio.create_task(ServerConversation(server, self.channel).run())
        self.asked = 0

    def say(self, method: str, params: Any = None, **more: Any) -> None:
        said = {"jsonrpc": "2.0", "method": method, **more}
        self.channel.feed(said if params is None else {**said, "params": params})

    async def ask(self, method: str, params: Any = None) -> Any:
        self.asked += 1
        self.say(method, params, id=self.asked)
        return await self.channel.next_sent()

    async def greet(self) -> None:
        about = {"name": "raw", "version": "1"}
        await self.ask("initialize", {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": about})
        self.say("notifications/initialized")

    async def end(self) -> None:
        self.channel.end()
        await self.serving


# --------------------------------------------------------------------- resources that are watched


@pytest.mark.parametrize(
    ("name", "most", "uris"),
    [
        ("MAX_SUBSCRIBED_URIS", 3, ["a://1", "a://2", "a://3"]),
        ("MAX_SUBSCRIBED_URI_CHARS", 20, ["a://1", f"a://{'x' * 10}"]),
    ],
)
def test_a_session_watches_so_many_resources(monkeypatch, name, most, uris):
    monkeypatch.setattr(context, name, most)

    async def main() -> None:
        server = Watched()
        server.go.set()
        talk = Talk(server)
        await talk.greet()
        for uri in [*uris, uris[0]]:  # the same one again does not count
            assert "result" in await talk.ask("resources/subscribe", {"uri": uri})
        server.watched.remove(uris[0])
        refused = await talk.ask("resources/subscribe", {"uri": "a://9"})
        assert (refused["error"]["code"], str(most) in refused["error"]["message"]) == (-32600, True)
        assert server.watched == [*uris[1:], uris[0]]  # what was begun for it has ended
        await talk.ask("resources/unsubscribe", {"uri": uris[0]})
        assert "result" in await talk.ask("resources/subscribe", {"uri": "a://9"})
        await talk.end()
        assert server.watched == []

    asyncio.run(main())


@pytest.mark.parametrize(("name", "most"), [("MAX_SUBSCRIBED_URIS", 2), ("MAX_SUBSCRIBED_URI_CHARS", 14)])
def test_a_subscription_names_so_many_resources(monkeypatch, name, most):
    monkeypatch.setattr(notifications, name, most)

    async def main() -> None:
        server = Watched()
        talk = Talk(server)

        async def wish(*uris: str) -> Any:
            params = {"notifications": {"resourceSubscriptions": uris}, "_meta": FACTS}
            return await talk.ask("subscriptions/listen", params)

        refused = await wish("a://1", "a://2", "a://3")
        assert (refused["error"]["code"], str(most) in refused["error"]["message"]) == (-32602, True)
        assert server.watched == []
        told = await wish("a://1", "a://1")
        assert told["params"]["notifications"]["resourceSubscriptions"] == ["a://1"]
        server.notify_resource_updated("a://2")
        server.notify_resource_updated("a://1")
        assert (await talk.channel.next_sent())["params"]["uri"] == "a://1"
        server.end_subscriptions()
        assert (await talk.channel.next_sent())["id"] == 2
        await talk.end()
        assert server.watched == []

    asyncio.run(main())


# --------------------------------------------------------------------- what a client says unasked


def test_notifications_that_are_being_served_are_bounded(caplog):
    async def main() -> None:
        server = Watched(max_in_flight=5)
        server.go.set()
        talk = Talk(server)
        await talk.greet()
        for _ in range(20):
            talk.say("notifications/roots/list_changed")
        assert "result" in await talk.ask("ping")  # the conversation goes on
        assert server.heard_of == 5
        await talk.end()

    with caplog.at_level(logging.DEBUG, "toolpost.server"):
        asyncio.run(main())
    told = [record for record in caplog.records if "5 notifications are being handled" in record.message]
    assert len(told) == 16
    assert [record.levelno for record in told[:5]] == [logging.WARNING] * 4 + [logging.DEBUG]


def test_a_client_that_sends_too_much_before_the_handshake_is_disconnected():
    async def main() -> None:
        server = Watched(max_in_flight=5)
        talk = Talk(server)
        greeting = asyncio.create_task(talk.greet())
        await server.begun.wait()
        for number in range(5):
            talk.say("ping", id=f"early {number}")
        await asyncio.sleep(0)
        assert not talk.serving.done()
        talk.say("ping", id="one too many")
        await talk.serving
        assert talk.channel.sent == []
        greeting.cancel()
        await asyncio.gather(greeting, return_exceptions=True)

    asyncio.run(main())


# --------------------------------------------------------------------- the rate


def test_the_rates_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(rate_limit, "MAX_CLIENTS", 10)
    now = [0.0]
    rate: Any = RateLimit(1, 10.0, clock=lambda: now[0])
    for number in range(100):
        now[0] += 0.01
        rate._take(f"client {number}")
    assert len(rate._buckets_by_key) <= 10
    with pytest.raises(RateLimited):
        rate._take("client 99")
    now[0] += 10
    rate._take("client 99")  # a client whose limit is full again is forgotten
    assert [*rate._buckets_by_key] == ["client 99"]
