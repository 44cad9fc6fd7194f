"""A function that cancels its own task, or raises CancelledError, is answered."""

import asyncio

import pytest

from hosted import call, hosted, legacy, modern, run
from revision_dates import DATES
from session_site import tool
from toolpost import Client, RPCError, Server, ToolError

NAMES = ["at_once", "later"]


def server() -> Server:
    odd = Server("odd")

    @odd.tool
    async def at_once() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"

    @odd.tool
    async def later() -> str:
        await asyncio.sleep(0)
        return await at_once()

    @odd.tool
    async def raising() -> str:
        raise asyncio.CancelledError

    return odd


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_over_http_a_function_that_cancels_itself_is_answered(name, stateless):
    async def main():
        async with hosted(server(), stateless=stateless) as site:
            session = None if stateless else await site.open()
            sent = modern("tools/call", call(name), 1)
            for headers, body in ((legacy(session), tool(name, 1)), sent, sent):
                answer = await site.post(headers, body)
                assert answer.code == -32603, answer
                assert answer.json["id"] == 1

    run(main)


@pytest.mark.parametrize("revision", DATES)
def test_in_memory_a_function_that_cancels_itself_is_answered(revision):
    async def main():
        async with Client(server(), revision=revision, timeout=None) as client:
            for name in NAMES:
                with pytest.raises(RPCError) as caught:
                    await client.call_tool(name)
                assert caught.value.code == -32603
            with pytest.raises(ToolError, match="'raising' failed"):
                await client.call_tool("raising")

    run(main)
