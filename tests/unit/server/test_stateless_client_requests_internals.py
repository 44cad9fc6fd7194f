"""A call that asks where there is no session: it answers with questions, and runs again with the answers."""

import asyncio
from typing import Any

import pytest

from toolpost import (
    Client,
    Context,
    Handler,
    RPCError,
    Server,
)
from toolpost.protocol.methods import DATES
from toolpost.server import states, steps
from toolpost.types import CreateMessageResult, ElicitResult, TextContent

NEW = DATES[-1]


def answering(**given: Any) -> dict[str, Any]:
    """Callbacks of a client: the user says this, the model that."""
    seen: list[str] = []

    async def elicit(params):
        seen.append(params.message)
        said = given.get("user", 1)
        said = said(params.message) if callable(said) else said
        return said if isinstance(said, ElicitResult) else {"value": said}

    async def sample(params):
        seen.append("sample")
        return CreateMessageResult("assistant", TextContent("A poem."), "model")

    options: dict[str, Any] = {"on_elicitation": elicit, "on_sampling": sample, "on_roots": ["file:///a"]}
    return {"options": options, "seen": seen}


def called(server: Handler, revision: str, tool: str = "ask", *, said: Any = None, **arguments: Any) -> Any:
    """What a tool says to a client, and what the client was asked."""
    host = answering(**(said or {}))

    async def main():
        async with Client(server, revision=revision, **host["options"]) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(main()), host["seen"]


def test_a_server_that_ends_does_not_wait_for_ever_for_a_step(monkeypatch):
    monkeypatch.setattr(steps, "PATIENCE", 0.01)
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
            return "x" * (states.MAX_JOURNAL + 1)

        await ctx.step("much", much)
        return str(await ctx.elicit("Go on?", int))

    with pytest.raises(RPCError, match="which is too much"):
        called(server, NEW)


def test_all_journals_together_have_a_bound(monkeypatch):
    monkeypatch.setattr(states, "MAX_HELD", 250_000)
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
                    told.append(error.message[-17:])
            return told

    assert asyncio.run(main()) == ["Accepted(data=1)", "Accepted(data=1)", "which is too much"]
