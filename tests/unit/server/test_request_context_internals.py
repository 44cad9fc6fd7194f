"""The context of a request: its facts and its methods, in every revision."""

import asyncio
from typing import Any

from toolpost import Context, Server
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.testing import ScriptedChannel

[STATELESS] = [date for date in DATES if REVISIONS[date].stateless]
FACTS = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def counting() -> Server:
    """A server that counts in its state."""
    server = Server("s")

    @server.tool
    async def count(ctx: Context) -> int:
        assert ctx.state is ctx.state
        count = await ctx.state.get("n", 0) + 1
        await ctx.state.set("n", count)
        return count

    return server


def test_state_without_a_session_is_the_principals_where_there_is_one():
    async def main() -> None:
        server = counting()

        async def count(principal: str) -> int:
            channel = ScriptedChannel()
            params = {"name": "count", "_meta": FACTS}
            channel.feed({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            serving = asyncio.create_task(ServerConversation(server, channel, principal=principal).run())
            answer = await channel.next_sent()
            channel.end()
            await serving
            return answer["result"]["structuredContent"]["result"]

        counted = [await count(principal) for principal in ("ann", "bob", "ann", "cat", "ann", "bob")]
        assert counted == [1, 1, 2, 1, 3, 2]

    asyncio.run(main())


def test_the_client_need_not_wear_a_name_tag():
    async def main() -> Any:
        server = Server("s")

        @server.tool
        async def who(ctx: Context) -> str:
            return f"{ctx.client!r} {ctx.client.capabilities.roots}"

        channel = ScriptedChannel()
        params = {"name": "who", "_meta": FACTS}
        channel.feed({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        serving = asyncio.create_task(ServerConversation(server, channel).run())
        answer = await channel.next_sent()
        channel.end()
        await serving
        return answer["result"]["content"][0]["text"]

    assert asyncio.run(main()) == "<Client> None"
