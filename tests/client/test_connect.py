"""Every kind of target, and what is said about those that are none."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from raw_server import Clock, RawServer, run

from toolpost.channel import Channel
from toolpost.client.client import Client
from toolpost.connect import SERVER_PATIENCE, way_to
from toolpost.errors import ChannelClosed, ConnectFailed
from toolpost.protocol.methods import DATES
from toolpost.testing import ScriptedChannel, pair
from toolpost.transports.command import Stdio

OLD = DATES[0]
PROGRAM = f"""
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {{"protocolVersion": "{OLD}", "capabilities": {{}}}}
        result["serverInfo"] = {{"name": "child", "version": "1"}}
    elif message["method"] == "ping":
        result = {{}}
    elif message["method"] == "server/discover":
        sys.exit("this is an old server")
    else:
        continue
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A server that exits when it is asked what it does not know."""
    script = tmp_path / "server.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script)]


async def use(target: Any, **options: Any) -> str:
    async with Client(target, **options) as client:
        await client.ping()
        assert client.server_info is not None
        return client.server_info.name


# --------------------------------------------------------------------- commands


@pytest.mark.requirement("STDIO-5")
def test_a_command_is_started_in_every_form(command, tmp_path):
    entry = {"command": command[0], "args": command[1:]}
    several = tmp_path / "several.json"
    several.write_text(json.dumps({"mcpServers": {"one": entry, "two": {"url": "https://a.example"}}}))
    single = tmp_path / "single.json"
    single.write_text(json.dumps({"servers": {"one": entry}}))

    async def main() -> None:
        for target, options in (
            (command, {}),
            (tuple(command), {}),
            (f"{command[0]} {command[1]}", {}),
            (Stdio(command[0], command[1:]), {}),
            (entry, {}),
            ({"mcpServers": {"one": entry}}, {}),
            (several, {"server": "one"}),
            (str(single), {}),
        ):
            assert await use(target, revision=OLD, **options) == "child"

    run(main())


def test_a_command_that_exits_on_the_probe_is_started_again(command):
    async def main() -> None:
        assert await use(command) == "child"

    run(main())


def test_a_command_that_does_not_exist_is_an_error():
    async def main() -> None:
        with pytest.raises(ConnectFailed, match="no-such-command"):
            await Client(["no-such-command-anywhere"]).connect()

    run(main())


# --------------------------------------------------------------------- mcp.json


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        (None, {}, "cannot be reached"),
        ("{", {}, "is not the JSON of an mcp.json"),
        ("[]", {}, "is not the JSON of an mcp.json"),
        ('{"mcpServers": {}}', {}, "pass server=, one of: none"),
        ('{"mcpServers": {"a": {}, "b": {}}}', {}, "pass server=, one of: a, b"),
        ('{"mcpServers": {"a": {}, "b": {}}}', {"server": "c"}, "has no server 'c'"),
        ('{"mcpServers": {"a": 7}}', {}, "has no server 'a'"),
        ('{"mcpServers": null, "servers": {"a": {"args": []}}}', {}, "describes no command"),
        ('{"mcpServers": {"a": {"url": "https://a.example"}}}', {}, "HTTP has not landed yet"),
        ("{}", {}, "describes no command"),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(text, options, error, tmp_path):
    path = tmp_path / "mcp.json"
    if text is not None:
        path.write_text(text)

    async def main() -> None:
        with pytest.raises(ConnectFailed, match=error):
            await Client(path, **options).connect()

    run(main())


# --------------------------------------------------------------------- URLs, nonsense


@pytest.mark.parametrize(
    "target", ["http://localhost:1/mcp", "HTTPS://a.example", {"url": "https://a.example"}]
)
def test_a_url_is_understood_and_refused(target):
    async def main() -> None:
        with pytest.raises(ConnectFailed, match="HTTP has not landed yet"):
            await Client(target).connect()

    run(main())


@pytest.mark.parametrize("target", [None, 7, object()])
def test_nonsense_fails_when_the_client_is_made(target):
    with pytest.raises(TypeError, match="is nothing to connect to: give a command as a list"):
        Client(target)


# --------------------------------------------------------------------- channels and servers


def test_a_channel_is_used_once():
    async def main() -> None:
        ours, theirs = pair()
        server = RawServer()
        serving = asyncio.create_task(server.serve(theirs))
        client = Client(ours)
        async with client:
            await client.ping()
        await serving
        with pytest.raises(ConnectFailed, match="this channel was used before"):
            await client.connect()

    run(main())


def test_a_server_object_is_served_for_each_connection():
    async def main() -> None:
        server = RawServer()
        assert [await use(server) for _ in range(2)] == ["raw", "raw"]
        assert server.served == 2

    run(main())


def test_a_way_has_a_name():
    class Named(RawServer):
        name = "weather"

    assert way_to(Named()).name == "weather"
    assert way_to(RawServer()).name == "RawServer"
    assert way_to(ScriptedChannel()).name == "ScriptedChannel"
    assert way_to("x/mcp.json", "one").name == "x/mcp.json, one"
    assert way_to("x/mcp.json").name == "x/mcp.json"
    assert way_to(["python", "-m", "server"]).name == "python server"


def test_a_server_that_fails_says_why(caplog):
    class Broken:
        async def serve(self, channel: Channel) -> None:
            await channel.receive()
            raise LookupError("no such table")

    async def main() -> None:
        with pytest.raises(ConnectFailed, match=r"the server failed: LookupError\('no such table'\)"):
            await Client(Broken()).connect()

    run(main())
    assert "no such table" in caplog.text


def test_a_server_that_just_ends_is_an_error():
    class Short:
        async def serve(self, channel: Channel) -> None:
            await channel.receive()

    async def main() -> None:
        with pytest.raises(ConnectFailed, match="closed"):
            await Client(Short(), revision=OLD).connect()

    run(main())


def test_a_server_that_does_not_end_is_cancelled(caplog):
    ended: list[str] = []

    class Stubborn(RawServer):
        async def serve(self, channel: Channel) -> None:
            await super().serve(channel)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("at last")

    async def main() -> None:
        client = Client(Stubborn())
        async with client:
            served = client._talk.link._channel
        with pytest.raises(ChannelClosed):
            await served.receive()
        assert ended == ["at last"]
        assert asyncio.get_running_loop().time() == SERVER_PATIENCE

    run(main(), Clock)
    assert "is cancelled" in caplog.text
