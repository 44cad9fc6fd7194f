"""The timeout of a request pauses while a person or a model answers the server."""

import asyncio
from typing import Any

import pytest

from raw_server import Asked, Clock, RawServer, run
from toolpost.client.client import Client
from toolpost.errors import RequestTimeout
from toolpost.protocol.methods import DATES
from toolpost.types import CallToolResult, ElicitParams, Result, TextContent

SESSION = DATES[3]
FORM = ElicitParams(
    message="?", requested_schema={"type": "object", "properties": {"n": {"type": "integer"}}}
)
DONE = CallToolResult(content=[TextContent("done")])


async def slow(_: ElicitParams) -> dict[str, Any]:
    await asyncio.sleep(1000)
    return {"n": 1}


def test_an_ask_that_the_server_takes_back_lets_the_clock_go_on():
    async def call(asked: Asked) -> Result:
        connection = asked.server.connection
        outgoing = connection.request("elicitation/create", FORM)
        await asked.server.channel.send(outgoing.data)
        await asyncio.sleep(100)
        await asked.server.channel.send(connection.cancel(outgoing.id) or b"")
        await asyncio.sleep(1000)
        return DONE

    async def main() -> None:
        server = RawServer({"tools/call": call})
        async with Client(server, revision=SESSION, timeout=10, on_elicitation=slow) as client:
            with pytest.raises(RequestTimeout, match=r"within 10 s"):
                await client.call_tool("t")

    run(main(), Clock)
