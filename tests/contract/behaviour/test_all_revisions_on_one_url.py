"""One running server, and clients of every era at the same time, over every HTTP transport."""

import asyncio

import pytest

from connected_clients import PATIENCE, hosted, listeners, until
from revision_dates import DATES
from toolpost import Client, Server

pytestmark = pytest.mark.requirement("HTTPL-1", "HTTPM-1", "SSE-12", "SUB-1")


def weather() -> Server:
    server = Server("weather")

    @server.tool
    def forecast(city: str) -> str:
        return f"Sunshine in {city}"

    return server


async def test_clients_of_every_era_share_a_server_and_each_learns_of_a_change(runner):
    server = weather()
    heard: dict[str, list[str]] = {}

    def client(name, target, **options):
        heard[name] = []
        return Client(
            target, timeout=PATIENCE, on_notification=lambda method, _: heard[name].append(method), **options
        )

    async with hosted(server) as origin:
        url, sse = f"{origin}/mcp", {"url": f"{origin}/sse", "type": "sse"}
        async with (
            client("stateless", url) as modern,
            client("session", url, revision=DATES[-2]) as session,
            client("older", url, revision=DATES[1]) as older,
            client("HTTP+SSE", sse, revision=DATES[0]) as oldest,
        ):
            clients = [modern, session, older, oldest]
            assert [one.revision for one in clients] == [DATES[-1], DATES[-2], DATES[1], DATES[0]]
            told = await asyncio.gather(*(one.call_tool("forecast", {"city": "Oslo"}) for one in clients))
            assert [one.text for one in told] == ["Sunshine in Oslo"] * 4
            await until(lambda: listeners(server) >= 4)
            server.tool(name="tide")(lambda: "high")
            await until(lambda: all("notifications/tools/list_changed" in heard[name] for name in heard))
            for one in clients:
                assert [tool.name for tool in await one.list_tools()] == ["forecast", "tide"]
