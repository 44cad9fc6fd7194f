"""HTTP+SSE, the transport of the first revision: one stream, and posts beside it."""

from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from hosted import Stage, call, hosted, kept, kitchen, message, opening, run
from toolpost.protocol.methods import DATES
from toolpost.transports import http_session
from waiting import until

JSON = {"Content-Type": "application/json"}
GET = {"Accept": "text/event-stream"}
READY = message("notifications/initialized")


class Talk:
    """A client: its stream, and where it posts to."""

    def __init__(self, site: Any, wire: Any, endpoint: str) -> None:
        self.site = site
        self.wire = wire
        self.endpoint = endpoint

    @property
    def session(self) -> str:
        return parse_qs(urlsplit(self.endpoint).query)["session_id"][0]

    async def post(self, body: bytes, headers: Any = JSON) -> Any:
        return await self.site.ask("POST", self.endpoint, headers, body)

    async def say(self, body: bytes) -> None:
        posted = await self.post(body)
        assert (posted.status, posted.body) == (202, b"")

    async def hear(self) -> Any:
        event = await self.wire.event()
        assert event.kind == "message"
        return event.json

    async def ask(self, body: bytes) -> Any:
        await self.say(body)
        return await self.hear()

    async def greet(self, revision: str = DATES[0], capabilities: Any = None) -> None:
        welcome = await self.ask(opening(revision, capabilities))
        assert welcome["result"]["protocolVersion"] == revision
        await self.say(READY)


async def talk(site: Any, target: str = "/sse", prefix: str = "") -> Talk:
    wire, head = await site.begin("GET", GET, target=prefix + target)
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    assert "mcp-session-id" not in head.headers
    first = await wire.event()
    assert first.kind == "endpoint"
    return Talk(site, wire, first.data)


@asynccontextmanager
async def talking(**web: Any):
    stage = Stage()
    async with hosted(kitchen(stage), **web) as site:
        yield stage, await talk(site)
        stage.go.set()


@pytest.mark.parametrize("how", ["close", "abort"])
def test_who_leaves_ends_the_session(how):
    async def main():
        async with talking() as (stage, client):
            await client.greet()
            await client.say(message("tools/call", call("wait"), 5))
            await stage.begun.wait()
            await getattr(client.wire, how)()
            await stage.ended.wait()
            assert stage.log == ["cancelled"]
            await until(
                lambda: not [name for name in kept(client.site.app._host.store) if client.session in name]
            )
            assert (await client.post(message("ping", id=6))).status == 404

    run(main)


def test_who_says_more_than_it_hears_is_cut_off(monkeypatch):
    """A client that never reads its stream must not fill our memory."""
    monkeypatch.setattr(http_session, "WAITING", 10)

    async def main():
        async with hosted(kitchen(limit=5)) as site:
            client = await talk(site)
            await client.greet()
            wire = await site.wire()
            status, number = 202, 0
            while status == 202:
                number += 1
                assert number < 10_000  # some are refused because others are being served
                await wire.ask(
                    "POST", client.endpoint, JSON, message("tools/call", call("big", size=500_000), number)
                )
                status = (await wire.answer()).status
            assert status == 404

    run(main)
