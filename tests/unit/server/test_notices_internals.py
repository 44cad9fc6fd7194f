"""Functions for notifications of clients."""

import asyncio
import logging
from typing import Any

import pytest

from toolpost import Client, Context, Server, SyncContext
from toolpost.errors import LocalProtocolError
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.testing import ScriptedChannel


async def soon(condition: Any) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)


@pytest.mark.parametrize("revision", DATES)
def test_custom_notifications_of_clients_are_received(revision):
    async def main() -> None:
        server = Server("s")
        seen: list[Any] = []

        @server.on_notification("example/plain")
        async def plain(ctx: Context, params: dict[str, Any]) -> None:
            seen.append((params, await ctx.state.get("n")))
            if REVISIONS[revision].stateless:
                await ctx.info("nobody hears it")
                with pytest.raises(LocalProtocolError):
                    await ctx.roots()

        @server.on_notification("example/typed")
        def typed(ctx: SyncContext, params: dict[str, Any]) -> None:
            seen.append(params)

        async with Client(server, revision=revision) as client:
            await client.notify("example/plain", {"n": 1})
            await soon(lambda: len(seen) == 1)
            await client.notify("example/typed", {"n": 2})
            await soon(lambda: len(seen) == 2)
            await client.notify("example/nobody")
            await client.ping()
        assert seen == [({"n": 1}, None), {"n": 2}]

    asyncio.run(main())


def test_a_flood_of_notifications_is_bounded(caplog):
    async def main() -> None:
        server = Server("s", max_in_flight=4)
        running = 0

        @server.on_notification("example/x")
        async def stuck(ctx: Context) -> None:
            nonlocal running
            running += 1
            await asyncio.Event().wait()

        channel = ScriptedChannel()
        channel.feed(*[{"jsonrpc": "2.0", "method": "example/x"}] * 9)
        serving = asyncio.create_task(ServerConversation(server, channel).run())
        await soon(lambda: "dropped" in caplog.text)
        channel.end()
        await serving
        assert running == 4

    with caplog.at_level(logging.DEBUG, "toolpost.server"):
        asyncio.run(main())
    told = [record.levelname for record in caplog.records if "dropped" in record.message]
    assert told == ["WARNING"] * 4 + ["DEBUG"]


def test_params_that_no_value_of_ours_can_hold_are_dropped():
    async def main() -> None:
        server = Server("s")
        seen: list[Any] = []

        @server.on_notification("example/x")
        async def hear(ctx: Context, params: Any) -> None:
            seen.append(params)

        channel = ScriptedChannel()
        channel.feed('{"jsonrpc":"2.0","method":"example/x","params":{"n":1e400}}')
        channel.feed('{"jsonrpc":"2.0","method":"example/x","params":{"n":1}}')
        serving = asyncio.create_task(ServerConversation(server, channel).run())
        await soon(lambda: seen)
        channel.end()
        await serving
        assert seen == [{"n": 1}]

    asyncio.run(main())
