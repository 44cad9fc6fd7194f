"""A conversation that ends leaves nothing behind, at whichever moment."""

import asyncio
import gc

from toolpost import Context, Server
from toolpost.testing import ScriptedChannel

server = Server("s")


@server.tool
async def ask(ctx: Context) -> str:
    return str(await ctx.elicit("?", str))


@server.tool
async def tidy() -> str:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)
    return ""


async def begun(channel, tool):
    serving = asyncio.create_task(server.serve(channel))
    who = {"name": "c", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": who}
    channel.feed({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    channel.feed({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await channel.next_sent()
    channel.writable.clear()  # a client that does not read
    channel.feed(
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    )
    for _ in range(20):
        await asyncio.sleep(0)
    return serving


def test_a_question_that_could_not_be_sent_leaves_no_unseen_exception():
    async def main():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        channel = ScriptedChannel()
        serving = await begun(channel, "ask")
        channel.end()
        await serving
        gc.collect()
        assert told == []

    asyncio.run(main())


def test_serving_that_is_cancelled_while_it_ends_still_closes_the_channel():
    async def main():
        channel = ScriptedChannel()
        serving = await begun(channel, "tidy")
        channel.end()
        for _ in range(5):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])
        assert channel.closed
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
