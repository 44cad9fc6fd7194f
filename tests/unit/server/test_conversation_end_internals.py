"""The end of conversations, and leftovers of requests: races that a peer can cause."""

import asyncio
import json
import logging
from typing import Any

import pytest

from toolpost import Client, Context, Handler, Server
from toolpost.protocol.methods import DATES
from toolpost.server.middleware import Call, Next
from toolpost.server.runtime import conversation, dispatch
from toolpost.testing import ScriptedChannel

ABOUT = {"protocolVersion": DATES[3], "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


HELLO = message(id=1, method="initialize", params=ABOUT)


def test_a_function_that_refuses_to_end_does_not_hold_up_the_others(monkeypatch, caplog):
    monkeypatch.setattr(conversation, "CANCEL_TIMEOUT", 0.01)
    server = Server("s")
    began, let_go = asyncio.Event(), asyncio.Event()

    @server.tool
    async def stay() -> str:
        began.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return ""

    async def main() -> None:
        async with Client(server) as client:
            call = asyncio.ensure_future(client.call_tool("stay"))
            await began.wait()
        await asyncio.gather(call, return_exceptions=True)
        let_go.set()

    with caplog.at_level(logging.ERROR, "toolpost.server"):
        asyncio.run(main())
    assert "did not stop when it was cancelled" in caplog.text


class SlowInit(Handler):
    async def init(self, ctx: Context) -> None:
        await asyncio.Event().wait()


async def never_answer(call: Call, next: Next) -> None:  # noqa: A002 - the word for it
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "server", [SlowInit("slow"), Server("slow", middleware=[never_answer])], ids=["init", "middleware"]
)
def test_a_handshake_that_takes_too_long_is_refused(monkeypatch, server):
    monkeypatch.setattr(dispatch, "HANDSHAKE_TIMEOUT", 0.01)

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(server.serve(channel))
        channel.feed(HELLO)
        answer = await channel.next_sent()
        assert "handshake timed out" in answer["error"]["message"]
        channel.end()
        await serving

    asyncio.run(main())
