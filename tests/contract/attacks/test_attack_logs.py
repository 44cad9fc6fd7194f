"""A peer cannot flood the log: what it sends is shortened, and repeated warnings are throttled."""

import asyncio
import json
import logging
from typing import Any

import pytest

from hosted import BOTH, legacy, message, serving
from hosted import run as run_bounded
from raw_server import Asked, RawServer
from toolpost import Client, Context, Handler
from toolpost.errors import RateLimited
from toolpost.types import Raw

MANY = 500
LONG = "x" * 100_000
SESSION = "2025-11-25"


def check(caplog: pytest.LogCaptureFixture, text: str) -> None:
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.INFO]
    assert 0 < sum(text in each for each in told) < 20
    assert max(map(len, told)) < 2000


def test_bad_items_of_a_list_do_not_flood_the_log(caplog):
    bad = {"name": "x" * 1000, "inputSchema": "y" * 1000}

    async def tools(_: Asked) -> Raw:
        return Raw(json.dumps({"tools": [bad] * MANY}).encode())

    async def main() -> None:
        async with Client(RawServer({"tools/list": tools})) as client:
            assert await client.list_tools() == []
            assert client.stats.skipped == MANY

    with caplog.at_level(logging.INFO, "toolpost"):
        asyncio.run(main())
    check(caplog, "skipped: ")


class Slow(Handler):
    """A server that waits while it handles a notification."""

    def __init__(self) -> None:
        super().__init__("slow", max_in_flight=1)
        self.go = asyncio.Event()

    async def handle_notification(self, method: str, params: Any, ctx: Context) -> None:
        await self.go.wait()


def test_notifications_with_long_names_do_not_flood_the_log(caplog):
    async def main() -> None:
        server = Slow()
        async with serving(server.asgi()) as site:
            session = await site.open()
            for number in range(50):
                sent = message(f"acme/{number}{'x' * 100_000}", {})
                answer = await site.post({**legacy(session), "Accept": BOTH}, sent)
                assert answer.status == 202
            server.go.set()

    with caplog.at_level(logging.INFO, "toolpost"):
        run_bounded(main)
    check(caplog, "dropped acme/")


def test_requests_that_a_client_refuses_do_not_flood_the_log(caplog):
    async def tools(asked: Asked) -> Raw:
        for number in range(MANY):
            sent = {"jsonrpc": "2.0", "id": f"{number}{LONG}", "method": f"acme/{number}{LONG}"}
            await asked.server.channel.send(json.dumps(sent).encode())
        return Raw(b'{"tools":[]}')

    async def main() -> None:
        async with Client(RawServer({"tools/list": tools}), revision=SESSION) as client:
            await client.list_tools()
            assert client.stats.discarded == {"rejected message": MANY}

    with caplog.at_level(logging.INFO, "toolpost"):
        asyncio.run(main())
    assert sum(map(len, caplog.messages)) < 2000


def test_errors_with_long_messages_do_not_flood_the_log(caplog):
    async def refuse(_: Asked) -> Raw:
        raise RateLimited(LONG, {"retryAfter": 0})

    async def main() -> None:
        async with Client(RawServer({"tools/list": refuse}), revision=SESSION) as client:
            with pytest.raises(RateLimited):
                await client.list_tools()

    with caplog.at_level(logging.INFO, "toolpost"):
        asyncio.run(main())
    check(caplog, "retrying")
