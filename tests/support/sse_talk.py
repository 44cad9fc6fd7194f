"""A client of HTTP+SSE, byte by byte."""

from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hosted import Stage, hosted, kitchen, message, opening
from revision_dates import DATES

__all__ = ["GET", "JSON", "READY", "Talk", "talk", "talking"]


JSON = {"Content-Type": "application/json"}
GET = {"Accept": "text/event-stream"}
READY = message("notifications/initialized")


class Talk:
    """A client: its stream, and the path for its messages."""

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
