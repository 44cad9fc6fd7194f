"""Configurations and texts of a server that try to run programs or read files on the client's machine."""

import contextlib
import json
import os
import sys
from typing import Any

import pytest

from hostile_transports import LIMIT, PROGRAM, REVISIONS, run, serve
from scripted import Heard, scripted
from toolpost import Client, Http
from toolpost.errors import ConnectFailed, MCPError

TELL = "import json; open({!r}, 'w').write(json.dumps([sys.argv[2:], dict(os.environ)]))"
LURES = [
    "; touch {0}",
    "$(touch {0})",
    "`touch {0}`",
    "| tee {0}",
    "> {0}",
    "& touch {0} &",
    "|| touch {0}",
    "\ntouch {0}\n",
    "'; touch {0}; '",
    '"; touch {0}; "',
    "${{HOME}}",
    "$HOME",
    "~",
    "*",
    "%PATH%",
    "!!",
    "{{a,b}}",
    "--upload-pack=touch {0}",
]


def entry(*args: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", PROGRAM, "session", *args], **more}


@pytest.mark.parametrize("form", ["mapping", "file"])
def test_a_configuration_is_run_by_no_shell(form, tmp_path):
    bait, told = tmp_path / "bait", tmp_path / "told.json"
    args = [lure.format(bait) for lure in LURES]
    env = {f"V{n}": value for n, value in enumerate(args) if "\0" not in value}

    async def main():
        target: Any = {"mcpServers": {"x": entry(*args, env=env)}}
        if form == "file":
            path = tmp_path / "mcp.json"
            path.write_text(json.dumps(target))
            target = path
        async with Client(target, revision=REVISIONS["session"], timeout=10) as client:
            await client.call_tool("do", {"code": TELL.format(str(told))})
        got, environment = json.loads(told.read_text())
        assert got == args
        # Variables are put in where a configuration names them, by us; what they hold is not read again.
        filled = {name: value.replace("${HOME}", os.environ["HOME"]) for name, value in env.items()}
        assert {name: environment[name] for name in env} == filled
        assert not bait.exists()

    run(main)


@pytest.mark.parametrize("lure", LURES)
def test_a_command_line_is_split_and_nothing_else(lure, tmp_path):
    bait = tmp_path / "bait"
    told = lure.format(bait)

    async def main():
        try:
            client = Client(
                f"{sys.executable} -I -S -c pass {told}", revision=REVISIONS["session"], connect_timeout=5
            )
            await client.connect()
        except (MCPError, ValueError):
            pass  # it is not a server, or not a command line
        assert not bait.exists()

    run(main)


@pytest.mark.parametrize(
    "command", ["echo hi; touch {0}", "touch {0} &&", "$(touch {0})", "sh -c 'touch {0}'", "\0", ""]
)
def test_a_command_is_the_name_of_a_program(command, tmp_path):
    bait = tmp_path / "bait"

    async def main():
        with pytest.raises((MCPError, ValueError)):
            await Client({"command": command.format(bait), "args": []}, connect_timeout=5).connect()
        assert not bait.exists()

    run(main)


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "AWS_SECRET_ACCESS_KEY"]
)
def test_our_environment_is_not_passed_on(name, tmp_path, monkeypatch):
    told = tmp_path / "told.json"

    async def main():
        monkeypatch.setenv(name, "/nowhere/secret")
        async with Client(
            {"mcpServers": {"x": entry()}}, revision=REVISIONS["session"], timeout=10
        ) as client:
            await client.call_tool("do", {"code": TELL.format(str(told))})
        assert name not in json.loads(told.read_text())[1]

    run(main)


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "http://127.0.0.1:9/mcp", "headers": {"X": "a\r\nX-Evil: 1"}},
        {"url": "http://127.0.0.1:9/mcp", "headers": {"X\r\nX-Evil": "1"}},
        {"url": "http://127.0.0.1:9/mcp", "headers": {"Transfer-Encoding": "chunked"}},
        {"url": "http://127.0.0.1:9/mcp", "headers": {"Content-Length": "0"}},
        {"url": "http://127.0.0.1:9/mcp\r\nX-Evil: 1"},
        {"url": "http://127.0.0.1:9/m cp"},
        {"url": "file:///etc/passwd"},
        {"url": "javascript:alert(1)"},
        {"url": "http://"},
        {"url": "http://[::1"},
    ],
    ids=str,
)
def test_an_address_that_could_become_two_is_refused(entry):
    with pytest.raises((ConnectFailed, ValueError)):
        Client({"mcpServers": {"x": entry}})


# --------------------------------------------------------------------- what we repeat in headers


@pytest.mark.parametrize("library", ["aiohttp", "httpx2"])
@pytest.mark.parametrize(
    "name",
    [
        "a\r\nX-Evil: 1",
        "a\nX-Evil: 1",
        "a\0b",
        "\u010d\u010a",
        " a ",
        "\u00e9",
        "=?base64?eA==?=",
        "a" * 5000,
    ],
)
def test_no_name_becomes_a_header_of_its_own(name, library):
    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        assert "x-evil" not in heard.headers
        return False

    async def main():
        async with scripted(serve("body stateless", special)) as server:
            address = Http(server.url, max_answer=LIMIT, http=library)
            async with Client(address, revision=REVISIONS["stateless"], timeout=10) as client:
                await client.call_tool(name)
                with contextlib.suppress(MCPError):  # the server has none
                    await client.read_resource(f"x://{name}")
            asked = [heard for heard in server.heard if heard.headers.get("mcp-method") == "tools/call"]
            assert len(asked) == 1
            assert json.loads(asked[0].body)["params"]["name"] == name
            assert asked[0].headers["mcp-name"].isprintable()

    run(main)
