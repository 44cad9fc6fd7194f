"""Several servers as one: one namespace, and an unavailable server does not affect the others."""

from functools import partial

from raw_server import run
from toolpost import Client, ClientGroup, Server


def shop(name: str, *tools: str) -> Server:
    server = Server(name, version="1")
    for tool in tools:

        @server.tool(name=tool)
        def call(text: str = "") -> str:
            return f"{name} {text}"

    return server


def test_names_of_tools_that_were_are_forgotten_if_there_are_many(monkeypatch):
    monkeypatch.setattr("toolpost.client.group.MAX_TOOL_NAMES", 10)

    async def main() -> None:
        server = Server("a", version="1")
        tools = [server.tool(name=f"t{number}")(lambda: None) for number in range(20)]
        async with ClientGroup({"a": server}) as group:
            assert len(await group.list_tools()) == 20
            for tool in tools[:19]:
                tool.remove()
            assert [tool.name for tool in await group.list_tools()] == ["t19"]
            assert list(group._tools_by_name) == ["t19"]

    run(main())


def test_clients_are_made_as_one_likes():
    async def main() -> None:
        mine = Client(shop("b", "y"), name="mine")
        make = partial(Client, name="made")
        group = ClientGroup({"a": shop("a", "x"), "b": mine}, client_factory=make)
        assert group["b"] is mine
        assert list(group) == ["a", "b"]
        assert len(group) == 2
        assert "a: closed, b: closed" in repr(group)
        async with group:
            assert group["a"]._local_peer.info.name == "made"
            assert (await group.call_tool("y")).data == "b "

    run(main())
