"""`Server.factory`: a different server for each client."""

import asyncio
from typing import Any

import pytest

from server_per_client import STATELESS, House
from toolpost import Client, Context, Extension, Server
from toolpost.principal import Principal
from toolpost.protocol.methods import DATES
from toolpost.server import per_client as module
from toolpost.server.per_client import PerClientServer
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.testing import ScriptedChannel
from toolpost.types import Params, Result


def test_the_choice_is_remembered_by_the_facts_of_a_stateless_client(monkeypatch):
    monkeypatch.setattr(module, "MAX_REMEMBERED_CLIENTS", 2)

    async def main() -> None:
        house = House()
        async with Client(house.factory, name="a", revision=STATELESS) as client:
            for _ in range(3):
                await client.list_tools()
            assert house.calls == [("a", None)]
            async with Client(house.factory, name="a", revision=STATELESS, on_roots=[]) as other:
                assert (await other.call_tool("who")).text == "one, life of one"
            assert house.calls == [("a", None)] * 2
            async with Client(house.factory, name="b", revision=STATELESS) as third:
                await third.list_tools()
            await client.list_tools()
        assert house.calls == [("a", None), ("a", None), ("b", None), ("a", None)]

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_the_principal_is_passed_on(revision):
    async def main() -> None:
        house = House()
        channel = ScriptedChannel()
        facts = {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "two", "version": "1"},
        }
        session = {
            "protocolVersion": revision,
            "capabilities": {},
            "clientInfo": {"name": "two", "version": "1"},
        }
        stateless = revision == STATELESS
        channel.feed(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "server/discover" if stateless else "initialize",
                "params": {"_meta": facts} if stateless else session,
            }
        )
        async with house.factory.hold_lifespan() as lifespan:
            talk = ServerConversation(house.factory, channel, lifespan, principal="ann")
            serving = asyncio.create_task(talk.run())
            assert "result" in await channel.next_sent()
            channel.end()
            await serving
        assert house.calls == [("two", Principal("ann"))]

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_methods_of_an_extension_reach_the_chosen_server(revision):
    extension = Extension("com.example/double", since=DATES[0])

    @extension.method("example/double", Params, Result)
    async def double(ctx: Context, params: Params) -> Result:
        return Result(meta={"com.example/answer": ctx.server.info.name})

    async def main() -> Any:
        server = Server("own", extensions=[extension])

        async def choose(*facts: Any) -> Server:
            return server

        factory = Server.factory(choose, extensions=[extension])
        assert isinstance(factory, PerClientServer)
        async with Client(factory, revision=revision, extensions=[extension]) as client:
            return await client.request("example/double", {"n": 1})

    assert asyncio.run(main()).meta["com.example/answer"] == "own"
