"""`Server.factory`: a different server for each client."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

import pytest

from revision_dates import DATES
from server_per_client import STATELESS, House
from toolpost import Client, Context, Handler, Header, MCPError, RPCError, Server
from toolpost.errors import (
    CapabilityNotDeclared,
    InternalError,
    InvalidParams,
    InvalidRequest,
    UnsupportedRevision,
)
from toolpost.testing import REVISIONS, ScriptedChannel
from toolpost.types import Implementation

SESSIONS = [date for date in DATES if not REVISIONS[date].stateless]


async def soon(condition: Any) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)


@pytest.mark.parametrize("revision", DATES)
def test_each_client_talks_to_the_server_that_was_chosen_for_it(revision):
    async def main() -> None:
        house = House()
        async with (
            Client(house.factory, name="one", revision=revision) as one,
            Client(house.factory, name="two", revision=revision) as two,
        ):
            assert one.server_info == house.one.info
            assert two.server_info == house.two.info
            assert one.instructions == "Be one."
            assert two.instructions == "Be two."
            assert [tool.name for tool in await one.list_tools()] == ["one_0", "one_1", "one_2", "who"]
            assert [tool.name for tool in await two.list_tools()] == ["two_0", "who"]
            assert (await one.call_tool("who")).text == "one, life of one"
            assert (await two.call_tool("who")).text == "two, life of two"
            with pytest.raises(InvalidParams, match="Unknown tool"):
                await two.call_tool("one_0")
            assert [prompt.name for prompt in await two.list_prompts()] == ["greet"]
            assert await one.list_prompts() == []
            with pytest.raises(CapabilityNotDeclared):
                await one.get_prompt("greet")
            assert house.lives == ["+one", "+two"]
        assert sorted(house.lives[2:]) == ["-one", "-two"]
        assert "one tools/call" in house.passed
        assert "two prompts/list" in house.passed
        assert sorted(house.calls) == [("one", None), ("two", None)]

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_clients_may_get_selections_of_one_server(revision):
    async def main() -> None:
        whole = Server("whole")
        for name in ("read", "write"):
            whole.tool(name=name)(lambda: "")
        careful = whole.select(lambda handle: handle.name == "read")

        async def choose(info: Implementation | None, *facts: Any) -> Server:
            return whole if info is not None and info.name == "admin" else careful

        factory = Server.factory(choose)
        async with (
            Client(factory, name="admin", revision=revision) as admin,
            Client(factory, name="guest", revision=revision) as guest,
        ):
            assert [tool.name for tool in await admin.list_tools()] == ["read", "write"]
            assert [tool.name for tool in await guest.list_tools()] == ["read"]
            with pytest.raises(InvalidParams, match="Unknown tool"):
                await guest.call_tool("write")

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_the_chosen_server_presents_its_own_name(revision):
    """Also when the chosen server serves others directly, and its pages are kept as bytes."""

    async def main() -> None:
        house = House()
        async with (
            Client(house.factory, name="one", revision=revision) as through,
            Client(house.one, name="one", revision=revision) as directly,
        ):
            for method in ("tools/list", "ping" if revision != STATELESS else "server/discover"):
                there = await through.request(method, {})
                here = await directly.request(method, {})
                assert there.raw == here.raw

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("rpc", InvalidParams, "not you, rpc"),
        ("tool", InvalidRequest, "house rejected this client: not you, tool (ask at the door)"),
        ("bug", InternalError, "could not be served"),
        ("odd", InternalError, "could not be served"),
    ],
)
def test_a_client_may_be_refused(revision, name, kind, text, caplog):
    async def main() -> RPCError:
        house = House()
        with pytest.raises(MCPError) as caught:
            async with Client(house.factory, name=name, revision=revision) as client:
                await client.list_tools()
        async with Client(house.factory, name="two", revision=revision) as client:
            assert (await client.call_tool("who")).text == "two, life of two"
        error: Any = caught.value
        while not isinstance(error, RPCError):
            error = error.__cause__
        return error

    with caplog.at_level(logging.ERROR, "toolpost.server"):
        error = asyncio.run(main())
    assert type(error) is kind
    assert text in str(error)
    assert ("secret" in caplog.text) is (name == "bug")
    assert ("serves requests itself" in caplog.text) is (name == "odd")


@pytest.mark.parametrize("revision", SESSIONS)
def test_a_rejected_client_may_try_again_in_the_same_conversation(revision):
    def hello(name: str, request_id: int) -> dict[str, Any]:
        params = {
            "protocolVersion": revision,
            "capabilities": {},
            "clientInfo": {"name": name, "version": "1"},
        }
        return {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params}

    async def main() -> None:
        house = House()
        channel = ScriptedChannel()
        serving = asyncio.create_task(house.factory.serve(channel))
        channel.feed({"jsonrpc": "2.0", "id": 0, "method": "ping"}, hello("rpc", 1), hello("two", 2))
        assert (await channel.next_sent())["result"] == {}
        assert (await channel.next_sent())["error"]["message"] == "not you, rpc"
        assert (await channel.next_sent())["result"]["serverInfo"]["name"] == "two"
        channel.end()
        await serving

    asyncio.run(main())


def test_a_chosen_server_that_refuses_leaves_the_choice_open():
    class Closed(Handler):
        async def init(self, ctx: Context) -> None:
            raise InvalidParams("closed")

    async def main() -> None:
        chosen: list[Handler] = [Closed(), Server("open")]

        async def choose(*facts: Any) -> Handler:
            return chosen.pop(0)

        factory = Server.factory(choose)
        channel = ScriptedChannel()
        serving = asyncio.create_task(factory.serve(channel))
        params = {
            "protocolVersion": SESSIONS[-1],
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        }
        for request_id in (1, 2):
            channel.feed({"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params})
        assert (await channel.next_sent())["error"]["message"] == "closed"
        assert (await channel.next_sent())["result"]["serverInfo"]["name"] == "open"
        channel.end()
        await serving

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_changes_of_the_selected_server_are_reported(revision):
    async def main() -> None:
        house = House()
        heard: dict[str, list[str]] = {"one": [], "two": []}

        def note(name: str) -> Any:
            async def notice(method: str, params: Any) -> None:
                heard[name].append(method)

            return notice

        async with (
            Client(house.factory, name="one", revision=revision, on_notification=note("one")) as one,
            Client(house.factory, name="two", revision=revision, on_notification=note("two")),
        ):
            house.one.tool(name="new")(lambda: "fresh")
            await soon(lambda: heard["one"])
            assert (await one.call_tool("new")).text == "fresh"
            house.factory.end_subscriptions()
        assert heard == {"one": ["notifications/tools/list_changed"], "two": []}

    asyncio.run(main())


def test_concurrent_requests_get_the_same_server():
    async def main() -> None:
        made: list[Server] = []

        async def choose(*facts: Any) -> Server:
            server = Server("fresh")
            made.append(server)
            await asyncio.sleep(0)

            @server.tool
            async def number() -> str:
                return str(made.index(server))

            return server

        async with Client(Server.factory(choose), revision=STATELESS, probe_timeout=10) as client:
            said = await asyncio.gather(*(client.call_tool("number") for _ in range(5)))
        assert len({result.text for result in said}) == 1

    asyncio.run(main())


CROWD = 400
"""Client names: more than a factory remembers."""


def test_a_crowd_of_client_names_is_served():
    lives: list[str] = []
    everybody = asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncGenerator[None]:
        lives.append(f"+{server.info.name}")
        if len(lives) == CROWD:
            everybody.set()
        await everybody.wait()
        yield
        lives.append(f"-{server.info.name}")

    async def choose(info: Implementation | None, *facts: Any) -> Server:
        assert info is not None
        server = Server(info.name, lifespan=lifespan)
        await asyncio.sleep(0)
        server.tool(name="who")(lambda: server.info.name)
        return server

    async def call(name: str, app: Any) -> str:
        async with Client("http://127.0.0.1/mcp", http=app, name=name, revision=STATELESS) as client:
            return (await client.call_tool("who")).text

    async def main() -> None:
        names = [f"client {number}" for number in range(CROWD)]
        app = Server.factory(choose).asgi()
        async with app.lifespan():
            assert await asyncio.gather(*(call(name, app) for name in names)) == names
        begun, ended = (sorted(each[1:] for each in lives if each[0] == sign) for sign in "+-")
        assert begun == ended

    asyncio.run(main())


def test_a_server_that_is_forgotten_has_no_listeners():
    ended = asyncio.Event()

    class Watched(Server):
        async def unsubscribe(self, uri: str, ctx: Context) -> None:
            ended.set()

    async def choose(info: Implementation | None, *facts: Any) -> Server:
        server = Watched("watched") if info is not None and info.name == "first" else Server("other")
        server.resource("a://b", name="b")(lambda: "")
        return server

    async def main() -> None:
        factory = Server.factory(choose)
        async with (
            Client(factory, name="first", revision=STATELESS) as client,
            client.listen(uris=["a://b"]),
            AsyncExitStack() as others,
        ):
            for number in range(300):
                other = Client(factory, name=f"{number}", revision=STATELESS)
                await (await others.enter_async_context(other)).list_resources()
            await ended.wait()

    asyncio.run(main())


@pytest.mark.parametrize("revision", SESSIONS[1:])
def test_clients_without_parameter_headers_are_served_without_sessions(revision):
    server = Server("regions")

    @server.tool
    def query(region: Annotated[str, Header("Region")]) -> str:
        return region

    async def choose(*facts: Any) -> Server:
        return server

    async def main() -> None:
        app = Server.factory(choose).asgi(stateless=True)
        async with Client("http://127.0.0.1/mcp", http=app, revision=revision) as client:
            assert (await client.call_tool("query", {"region": "eu"})).text == "eu"

    asyncio.run(main())


@pytest.mark.requirement("ERR-10")
def test_entries_that_the_chosen_server_lacks_are_not_found():
    async def main() -> None:
        house = House()
        channel = ScriptedChannel()
        facts = {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "one", "version": "1"},
        }
        for number, method in enumerate(("prompts/list", "tools/list", "example/unknown")):
            channel.feed({"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": facts}})
        serving = asyncio.create_task(house.factory.serve(channel))
        answers = {answer["id"]: answer for answer in [await channel.next_sent() for _ in range(3)]}
        channel.end()
        await serving
        assert answers[0]["error"]["code"] == answers[2]["error"]["code"] == -32601
        assert "does not offer prompts" in answers[0]["error"]["message"]
        assert answers[1]["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "one"

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_a_chosen_server_has_to_speak_the_revision(revision):
    others = [date for date in DATES if date != revision]

    async def main() -> None:
        async def choose(*facts: Any) -> Server:
            return Server("picky", revisions=others)

        with pytest.raises(MCPError) as caught:
            async with Client(Server.factory(choose), revision=revision) as client:
                await client.list_tools()
        error: Any = caught.value
        while error is not None and not isinstance(error, UnsupportedRevision):
            error = error.__cause__
        assert error is not None or "revision" in str(caught.value)

    asyncio.run(main())


def test_a_factory_may_serve_again():
    async def main(house: House) -> None:
        async with Client(house.factory, name="one", revision=STATELESS) as client:
            assert (await client.call_tool("who")).text == "one, life of one"

    house = House()
    asyncio.run(main(house))
    asyncio.run(main(house))
    assert house.lives == ["+one", "-one", "+one", "-one"]


@pytest.mark.parametrize("chosen", [None, "none", Server])
def test_an_invalid_choice_is_logged(chosen, caplog):
    async def choose(*facts: Any) -> Any:
        return chosen

    async def main() -> None:
        with pytest.raises(MCPError):
            await Client(Server.factory(choose)).connect()

    with caplog.at_level(logging.ERROR, "toolpost.server"):
        asyncio.run(main())
    assert f"choose must return a server that serves requests itself, not {chosen!r}" in caplog.text
