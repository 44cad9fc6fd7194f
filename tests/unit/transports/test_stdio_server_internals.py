"""Our server on real pipes: messages sent ahead, and messages that are too long."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from toolpost import Stdio
from toolpost.protocol.line_framing import MAX_LINE
from toolpost.protocol.methods import DATES
from toolpost.transports.stdio_client import open_child

PROGRAM = str(Path(__file__).parents[2] / "support" / "programs" / "stdio_server.py")


def hello(date, capabilities=None) -> list[dict[str, Any]]:
    """Return everything that a client can send before it has received anything."""
    about = {"name": "eager", "version": "1"}
    opening = {"protocolVersion": date, "capabilities": capabilities or {}, "clientInfo": about}
    return [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "prompts/list"},
    ]


def test_a_channel_may_send_ahead_as_well():
    async def main():
        channel = await open_child(Stdio(sys.executable, [PROGRAM, str(MAX_LINE)], inherit_env=True))
        try:
            for message in hello(DATES[0]):
                await channel.send(json.dumps(message).encode())
            answers = [json.loads(await channel.receive()) for _ in range(3)]
        finally:
            await channel.close()
        assert [answer["id"] for answer in answers] == [1, 2, 3]
        assert all("result" in answer for answer in answers)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_function_does_not_wait_for_an_answer_that_is_too_long():
    opening, initialized, *_ = hello(DATES[3], {"sampling": {}})
    call = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "ask"}}

    async def main() -> None:
        channel = await open_child(Stdio(sys.executable, [PROGRAM, "4000"], inherit_env=True))
        try:
            for each in (opening, initialized, call):
                await channel.send(json.dumps(each).encode())
            await channel.receive()
            asked = json.loads(await channel.receive())
            assert asked["method"] == "sampling/createMessage"
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"model": "x" * 5000}}
            await channel.send(json.dumps(answer).encode())
            ended = json.loads(await channel.receive())
            assert (ended["id"], ended["result"]["isError"]) == (4, True)
        finally:
            await channel.close()

    asyncio.run(main())
