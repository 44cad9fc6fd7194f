"""A call that asks without a session: it returns questions, and runs again with the answers."""

import asyncio

import pytest

from stateless_calls import NEW, answering, called
from toolpost import (
    Client,
    Context,
    RPCError,
    Server,
)
from toolpost.server.elicitation import input_required, journal


def test_a_server_that_ends_does_not_wait_for_ever_for_a_step(monkeypatch):
    monkeypatch.setattr(input_required, "STEP_SHUTDOWN_TIMEOUT", 0.01)
    server = Server("s")
    ended: list[str] = []

    async def main():
        begun = asyncio.Event()

        async def endless() -> int:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")
            return 1

        @server.tool
        async def ask(ctx: Context) -> str:
            return str(await ctx.step("endless", endless))

        async with Client(server, revision=NEW) as client:
            call = asyncio.ensure_future(client.call_tool("ask"))
            await begun.wait()
            call.cancel()
            await asyncio.wait([call])

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_a_journal_has_a_bound():
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        def much() -> str:
            return "x" * (journal.MAX_JOURNAL_BYTES + 1)

        await ctx.step("much", much)
        return str(await ctx.elicit("Go on?", int))

    with pytest.raises(RPCError, match="too large"):
        called(server, NEW)


def test_all_journals_together_have_a_bound(monkeypatch):
    monkeypatch.setattr(journal, "MAX_STORED_JOURNAL_BYTES", 250_000)
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        def much() -> str:
            return "x" * 100_000

        await ctx.step("much", much)
        return str(await ctx.elicit("Go on?", int))

    async def main() -> list[str]:
        async with Client(server, revision=NEW, **answering()["options"]) as client:
            told: list[str] = []
            for _ in range(3):
                try:
                    told.append((await client.call_tool("ask")).text)
                except RPCError as error:
                    told.append(error.message[:48])
            return told

    assert asyncio.run(main()) == [
        "Accepted(data=1)",
        "Accepted(data=1)",
        "Internal error: answers and step results are too",
    ]
