"""Several servers as one: one namespace, and an unavailable server does not affect the others."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from raw_server import Clock, RawServer, run
from toolpost import ClientGroup, Server
from toolpost.errors import ConnectFailed, LocalProtocolError, ToolError

SCRIPT = """
import os, sys
from toolpost import Server

server = Server(sys.argv[1], version="1")

@server.tool
def search(text: str) -> str:
    return f"{sys.argv[1]} found {text}"

@server.tool(name=f"only_{sys.argv[1]}")
def only() -> int:
    return os.getpid()

server.run()
"""


def shop(name: str, *tools: str) -> Server:
    server = Server(name, version="1")
    for tool in tools:

        @server.tool(name=tool)
        def call(text: str = "") -> str:
            return f"{name} {text}"

    return server


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """An `mcp.json` of two servers that run and one that cannot."""
    script = tmp_path / "shop.py"
    script.write_text(SCRIPT)

    def entry(name: str) -> dict[str, object]:
        return {"command": sys.executable, "args": [str(script), name]}

    servers = {"east": entry("east"), "west": entry("west"), "dead": {"command": "no-such-program-anywhere"}}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.mark.requirement("TOOL-9", "TOOL-10")
def test_a_configuration_is_one_namespace_and_a_dead_server_leaves_the_others_alone(config):
    async def main() -> None:
        async with ClientGroup(config) as group:
            assert group.states == {"east": "ready", "west": "ready", "dead": "closed"}
            assert "no-such-program" in str(group.failures["dead"])
            names = [tool.name for tool in await group.list_tools()]
            assert names == ["east_search", "only_east", "west_search", "only_west"]
            assert (await group.call_tool("west_search", {"text": "x"})).data == "west found x"
            assert (await group.call_tool("only_east", result_type=int)).data > 0
            assert (await group["east"].call_tool("search", {"text": "y"})).data == "east found y"
            with pytest.raises(LocalProtocolError, match="several servers have it: east_search, west_search"):
                await group.call_tool("search", {"text": "x"})
            with pytest.raises(LocalProtocolError, match=r"no server has a tool 'x' \(not connected: dead\)"):
                await group.call_tool("x")

    run(main())


def test_a_killed_server_affects_no_other_and_returns_with_its_tools(config):
    async def main() -> None:
        async with ClientGroup(config) as group:
            before = [tool.name for tool in await group.list_tools()]
            lost = group["west"].events()
            os.kill((await group.call_tool("only_west", result_type=int)).data, signal.SIGKILL)
            assert (await anext(lost)).state == "backoff"
            assert [tool.name for tool in await group.list_tools()] == ["east_search", "only_east"]
            assert (await group.call_tool("east_search", {"text": "x"})).data == "east found x"
            assert (await group.call_tool("west_search", {"text": "x"})).data == "west found x"
            assert [tool.name for tool in await group.list_tools()] == before

    run(main())


def test_a_server_that_was_never_there_is_there_once_it_can_be():
    class Late(RawServer):
        ready = False

        async def serve(self, channel: object) -> None:
            if not self.ready:
                raise OSError("not yet")
            await super().serve(channel)  # type: ignore[arg-type] - as it came

    async def main() -> None:
        late = Late()
        async with ClientGroup({"a": shop("a", "x"), "late": late}) as group:
            await asyncio.sleep(100)
            assert group.states["late"] == "closed"
            assert "late" in group.failures
            late.ready = True
            await asyncio.sleep(100)
            assert group.states["late"] == "ready"
            assert group.failures == {}
            await group["late"].ping()

    run(main(), Clock)


def test_an_unavailable_server_is_reconnected_in_the_background():
    async def main() -> None:
        class Flaky(RawServer):
            ready = True

            async def serve(self, channel: object) -> None:
                if not self.ready:
                    raise OSError("not now")
                await super().serve(channel)  # type: ignore[arg-type] - as it came

        flaky = Flaky()
        async with ClientGroup({"a": shop("a", "x"), "flaky": flaky}) as group:
            flaky.ready = False
            await flaky.channel.close()
            await asyncio.sleep(500)
            assert group.states["flaky"] == "backoff"
            assert "flaky" in group.failures
            flaky.ready = True
            await asyncio.sleep(100)
            assert group.states["flaky"] == "ready"
            assert group.failures == {}

    run(main(), Clock)


def test_an_ambiguous_name_is_prefixed_even_if_a_server_is_away():
    async def main() -> None:
        group = ClientGroup({"a": shop("a", "x"), "b": shop("b", "x"), "c": shop("c", "x")})
        async with group:
            await group["c"].close()
            await group.list_tools()
            await group["c"].connect()
            assert [tool.name for tool in await group.list_tools()] == ["a_x", "b_x", "c_x"]

    run(main())


def test_an_entry_that_is_none_is_left_out_and_one_that_is_switched_off_too():
    async def main() -> None:
        entries = {"bad": {}, "off": {"command": "x", "disabled": True}, "a": shop("a", "x")}
        async with ClientGroup(entries) as group:  # type: ignore[arg-type] - that is what it is about
            assert list(group) == ["a"]
            assert "server 'bad'" in str(group.failures["bad"])

    run(main())


def test_an_assigned_name_stays():
    async def main() -> None:
        late = shop("b", "x", "b_x", "y")
        async with ClientGroup({"a": shop("a", "x"), "b": late}) as group:
            await group["b"].close()
            assert [tool.name for tool in await group.list_tools()] == ["x"]
            await group["b"].connect()
            names = [tool.name for tool in await group.list_tools()]
            assert names == ["x", "b__x", "b_x", "y"]
            assert (await group.call_tool("b__x", {"text": "1"})).data == "b 1"
            assert (await group.call_tool("x", {"text": "1"})).data == "a 1"

    run(main())


def test_a_server_that_cannot_list_its_tools_is_left_out():
    async def main() -> None:
        async with ClientGroup({"a": shop("a", "x"), "bad": RawServer()}) as group:
            assert [tool.name for tool in await group.list_tools()] == ["x"]
            assert "tools/list" in str(group.failures["bad"])

    run(main())


def test_a_group_without_any_server_reports_why_and_leaves_nothing_running():
    async def main() -> None:
        group = ClientGroup({"a": ["no-such-program-a"], "b": ["no-such-program-b"]})
        with pytest.raises(
            ConnectFailed, match=r"could not connect to any server: a: .*program-a.*; b: .*program-b"
        ):
            await group.connect()
        await group.close()

    run(main())


def test_a_tool_that_fails_fails_as_ever():
    async def main() -> None:
        server = Server("a", version="1")

        @server.tool
        def fail() -> None:
            raise ToolError("no")

        async with ClientGroup({"a": server}) as group:
            with pytest.raises(ToolError, match="no"):
                await group.call_tool("fail")
            assert (await group.call_tool("fail", raise_on_error=False)).is_error

    run(main())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[", "not a valid mcp.json"),
        ('{"mcpServers": {}}', "no servers are defined"),
        ('{"mcpServers": []}', "no servers are defined"),
        ('{"mcpServers": [1]}', "must be an object of servers by name"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_is_none_says_so(tmp_path, text, match):
    path = tmp_path / "mcp.json"
    if text is not None:
        path.write_text(text)

    async def main() -> None:
        with pytest.raises(ConnectFailed, match=match):
            await ClientGroup(str(path)).connect()

    run(main())


def test_an_invalid_target_is_named():
    with pytest.raises(TypeError) as caught:
        ClientGroup({"odd": 3})  # type: ignore[dict-item] - that is what it is about
    assert "server 'odd'" in caught.value.__notes__


def test_a_caller_that_no_longer_waits_leaves_nothing_behind():
    async def main() -> None:
        class Never(RawServer):
            async def serve(self, channel: object) -> None:
                begun.set()
                await asyncio.Event().wait()

        begun = asyncio.Event()
        group = ClientGroup({"a": shop("a", "x"), "never": Never()})

        async def use() -> None:
            async with group:
                pass

        task = asyncio.create_task(use())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(group.states.values()) == {"closed"}

    run(main(), Clock)
