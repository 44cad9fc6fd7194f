"""Every kind of target, and the errors for invalid ones."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from raw_server import Clock, RawServer, run
from toolpost import Channel, Client, Http, Stdio, SyncClient
from toolpost.errors import ConnectFailed
from toolpost.testing import ScriptedChannel, memory_pair
from wire_server import OLD, Wire

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
    """Return the command of a server that exits at a request that it does not know."""
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


def test_an_unknown_program_name_lists_the_other_targets():
    async def main() -> None:
        with pytest.raises(ConnectFailed) as caught:
            await Client("nonsense").connect()
        text = str(caught.value)
        assert text.startswith("nonsense: program 'nonsense' not found (install it")
        assert "A target can also be a command as a list, a Stdio, a server" in text
        with pytest.raises(ConnectFailed) as caught:
            await Client(["nonsense"]).connect()
        assert "a string is" not in str(caught.value)

    run(main())


@pytest.mark.parametrize("kind", [str, Path, lambda name: [name]])
def test_a_script_is_not_a_program(kind):
    async def main() -> None:
        with pytest.raises(ConnectFailed, match=r"with Python: \[sys\.executable, 'hello2\.py'\]"):
            await Client(kind("hello2.py")).connect()

    run(main())


@pytest.mark.parametrize("code", ["", "print('hello')"])
def test_a_script_that_forgets_to_serve_is_reminded(code):
    async def main() -> None:
        target = Stdio(sys.executable, ["-c", code], name="hello")
        with pytest.raises(ConnectFailed) as caught:
            await Client(target).connect()
        assert str(caught.value) == (
            "hello: could not connect: the server process exited with code 0; it wrote nothing to "
            "stderr (does the script call `server.run()`?)"
        )

    run(main())


def test_a_script_that_dies_is_named_once(tmp_path):
    script = tmp_path / "dies.py"
    script.write_text("raise SystemExit('no table')")

    async def main() -> None:
        with pytest.raises(ConnectFailed) as caught:
            await Client(Stdio(sys.executable, [str(script)], name="python dies.py")).connect()
        assert str(caught.value) == (
            "python dies.py: could not connect: the server process exited with code 1; "
            "last lines of stderr:\n    no table"
        )
        entry = {"command": sys.executable, "args": [str(script)]}
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"one": entry}}))
        with pytest.raises(ConnectFailed) as caught:
            await Client(config).connect()
        label = Stdio.from_target(entry).label
        assert str(caught.value).startswith(f"{config}: could not connect: {label}: the server")

    run(main())


# --------------------------------------------------------------------- mcp.json


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        (None, {}, "^PATH does not exist"),
        ("{", {}, "^PATH is not a valid mcp.json"),
        ("[]", {}, "^PATH is not a valid mcp.json"),
        ("{} /* no end", {}, "^PATH is not a valid mcp.json: line 1, column 4: a comment has no end"),
        ("{}", {}, '^PATH: invalid entry for a command.* {"command": "…"}'),
        ('{"mcpServers": {}}', {}, '^PATH: no servers are defined .*"mcpServers": {"name": {"command"'),
        ('{"mcpServers": [1]}', {}, "^PATH: 'mcpServers' must be an object"),
        ('{"servers": 5}', {}, "^PATH: 'servers' must be an object"),
        ('{"mcpServers": {"a": {}, "b": {}}}', {}, "^PATH: several servers are defined .* one of: a, b"),
        ('{"mcpServers": {"a": {}}}', {"server": "c"}, "^PATH: unknown server 'c' .* one of: a"),
        ('{"mcpServers": {"a": 7}}', {}, "^PATH: server 'a' must be an object"),
        (
            '{"mcpServers": null, "servers": {"a": {"args": []}}}',
            {},
            "^PATH, server 'a': invalid entry for a command",
        ),
        ('{"mcpServers": {"a": {"url": 5}}}', {}, "^PATH, server 'a': invalid entry for an HTTP server"),
        (
            '{"mcpServers": {"a": {"url": "ftp://a"}}}',
            {},
            "^PATH, server 'a': the URL of a server must start",
        ),
        (
            '{"mcpServers": {"a": {"url": "http://a", "type": "x"}}}',
            {},
            "^PATH, server 'a': unknown transport type 'x'",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(text, options, error, tmp_path):
    path = tmp_path / "mcp.json"
    if text is not None:
        path.write_text(text)

    async def main() -> None:
        with pytest.raises(ConnectFailed, match=error.replace("PATH", re.escape(str(path)))):
            await Client(path, **options).connect()

    run(main())


@pytest.mark.parametrize(
    "target",
    [
        "http://host/mcp",
        {"url": "http://host/mcp", "headers": {"a": "1", "B": "2"}},
        {"mcpServers": {"x": {"url": "http://host/mcp", "type": "streamable-http"}}},
        Http("http://host/mcp", headers={"A": "1"}),
    ],
)
def test_a_url_is_reached_over_http_with_the_headers_of_all(target):
    async def main() -> None:
        http = Wire()
        async with Client(target, headers={"b": "3", "Authorization": "Bearer x"}, http=http) as client:
            assert client.era == "stateless"
        ((method, url, headers, message),) = http.sent
        assert (method, url, message) == ("POST", "http://host/mcp", "server/discover")
        assert (headers["b"], headers["authorization"]) == ("3", "Bearer x")
        given = target.headers if isinstance(target, Http) else "headers" in target and target["headers"]
        assert headers.get("a") == ("1" if given else None)

    run(main())


@pytest.mark.parametrize("target", [{"url": "http://host/sse", "type": "sse"}, "http://host/sse"])
def test_the_way_of_the_first_revision_is_taken_where_it_is_named_or_found(target):
    async def main() -> None:
        http = Wire("server/discover", "initialize")
        with pytest.raises(ConnectFailed):  # our backend accepts nothing there either
            await Client(target, http=http, connect_timeout=30).connect()
        assert ("GET", "http://host/sse") in {(method, url) for method, url, _, _ in http.sent}
        probed = "server/discover" in {message for *_, message in http.sent}
        assert probed is isinstance(target, str)

    run(main(), Clock)


def test_an_address_that_is_none_is_refused_when_the_client_is_made():
    for target in ("http://", "https://user@host/mcp", {"url": "http://host/mcp", "headers": {"a b": "c"}}):
        with pytest.raises(ConnectFailed):
            Client(target)


@pytest.mark.parametrize("make", [Client, SyncClient])
@pytest.mark.parametrize("target", [["python", "x.py"], "python x.py", {"command": "python"}, RawServer()])
@pytest.mark.parametrize("options", [{"headers": {"a": "b"}}, {"http": "aiohttp"}])
def test_options_for_http_are_for_urls(make, target, options):
    (name,) = options
    with pytest.raises(TypeError, match=f"^{name}= requires an HTTP target; .* is not one$"):
        make(target, **options)


def test_headers_are_a_mapping():
    with pytest.raises(TypeError, match=r"^headers must be a mapping"):
        Client("http://host/mcp", headers=[("a", "b")])  # type: ignore[arg-type] - a fault


def test_options_for_http_are_for_urls_also_in_a_file(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('{"command": "python"}')

    async def main() -> None:
        with pytest.raises(TypeError, match="headers= requires an HTTP target"):
            await Client(path, headers={}).connect()

    run(main())


@pytest.mark.parametrize("target", [None, 7, object()])
def test_nonsense_fails_when_the_client_is_made(target):
    with pytest.raises(TypeError, match=r"cannot connect to .*; pass a command as a list"):
        Client(target)


@pytest.mark.parametrize("target", [RawServer, ScriptedChannel, Stdio, str])
def test_a_class_is_not_a_target(target):
    name = target.__name__
    with pytest.raises(TypeError, match=rf"^{name} is a class; pass an instance: {name}\(…\)"):
        Client(target)


# --------------------------------------------------------------------- channels and servers


def test_a_channel_is_used_once():
    async def main() -> None:
        ours, theirs = memory_pair()
        server = RawServer()
        serving = asyncio.create_task(server.serve(theirs))
        client = Client(ours)
        async with client:
            await client.ping()
        await serving
        with pytest.raises(ConnectFailed, match="this channel was already used"):
            await client.connect()

    run(main())


def test_a_server_object_is_served_for_each_connection():
    async def main() -> None:
        server = RawServer()
        assert [await use(server) for _ in range(2)] == ["raw", "raw"]
        assert server.served == 2

    run(main())


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


def test_a_configuration_may_have_comments_and_trailing_commas(tmp_path):
    path = tmp_path / "mcp.json"
    text = """{
      // the servers of this folder
      "servers": {
        "hello": { /* ours */ "command": PYTHON, "args": ["examples/hello.py"],
          "env": {"URL": "http://a//b",}, },
      },
    }"""
    path.write_text("\ufeff" + text.replace("PYTHON", json.dumps(sys.executable)), encoding="utf-8")

    async def main() -> None:
        async with Client(path) as client:
            assert [tool.name for tool in await client.list_tools()] == ["greet"]

    asyncio.run(main())
