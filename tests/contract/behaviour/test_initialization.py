"""Initialization of a conversation: the facts that both sides exchange."""

from contextlib import asynccontextmanager

import pytest

from features import on
from toolpost import Client, Context, Server
from toolpost.errors import CapabilityNotDeclared, ConnectFailed, InvalidParams


@pytest.mark.requirement("LIFE-2", "LIFE-3", "LIFE-4", "LIFE-7", "LIFE-9", "LIFE-14")
async def test_both_sides_agree(link, revision):
    client = await link()
    assert client.revision == revision
    assert client.server_info is not None
    assert (client.server_info.name, client.server_info.version) == ("kitchen", "1.2.3")
    assert client.server_info.title == "The kitchen"
    assert client.instructions == "Be kind."
    await client.ping()


@pytest.mark.requirement("LIFE-15", "RES-1", "PRM-10")
async def test_an_unsupported_feature_is_not_declared_and_fails_at_once(link):
    client = await link()
    assert client.capabilities.resources is None
    assert client.capabilities.prompts is None
    with pytest.raises(CapabilityNotDeclared, match="resources"):
        await client.read_resource("x://a")
    assert await client.list_resources() == []
    with pytest.raises(CapabilityNotDeclared, match="prompts"):
        await client.get_prompt("x")


@on("memory")
@pytest.mark.requirement("LIFE-12", "LIFE-18")
async def test_without_a_common_revision_the_client_disconnects(link, revision):
    server = Server("narrow", revisions=[revision])
    others = [date for date in Server("all").revisions if date != revision]
    with pytest.raises(ConnectFailed):
        async with Client(server, revision=others[0]):
            pass
    async with Client(server) as client:
        assert client.revision == revision


@on("memory")
async def test_a_lifespan_is_entered_once_and_left_after_the_last(link, revision):
    events = []

    @asynccontextmanager
    async def lifespan(server):
        events.append("in")
        yield {"db": 1}
        events.append("out")

    server = Server("lively", lifespan=lifespan)

    @server.tool
    async def db(ctx: Context) -> int:
        return ctx.lifespan["db"]

    for _ in range(2):
        async with Client(server, revision=revision) as one, Client(server, revision=revision) as two:
            assert (await one.call_tool("db")).text == (await two.call_tool("db")).text == "1"
            assert events[-1] == "in"
        assert events[-1] == "out"
    assert events == ["in", "out"] * 2


@on("memory")
async def test_the_first_tool_may_be_registered_late(link, revision):
    server = Server("late")
    client = await link.fresh(server)
    if client.era == "stateless":
        server.tool(name="x")(lambda: "here")
        await client.close()
        await client.connect()
        assert (await client.call_tool("x")).text == "here"
    with pytest.raises((CapabilityNotDeclared, InvalidParams)):
        await client.call_tool("nope")
