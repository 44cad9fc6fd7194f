"""Configurations of other programs, as they write them."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import toolpost
from toolpost import Client, Server
from toolpost.errors import ConnectFailed

PROGRAM = """
import os
from toolpost import Server

server = Server("configured", version=os.environ.get("EDITION", "none"))
server.run()
"""

URLS = {
    "Windsurf": {"mcpServers": {"far": {"serverUrl": "http://127.0.0.1/mcp"}}},
    "Gemini CLI": {
        "mcpServers": {"far": {"httpUrl": "http://127.0.0.1/mcp", "timeout": 5000, "trust": True}}
    },
    "opencode": {"mcp": {"far": {"type": "remote", "url": "http://127.0.0.1/mcp", "enabled": True}}},
    "Zed": {"context_servers": {"far": {"url": "http://127.0.0.1/mcp", "settings": {}}}},
}


@pytest.mark.parametrize("config", URLS.values(), ids=URLS)
@pytest.mark.parametrize("whole", [True, False])
def test_the_url_of_a_server(config: dict[str, Any], whole: bool) -> None:
    target = config if whole else next(iter(config.values()))["far"]

    async def main() -> None:
        async with Client(target, http=Server("far").asgi()) as client:
            assert client.server_info is not None
            assert client.server_info.name == "far"

    asyncio.run(main())


def commands(program: str) -> dict[str, dict[str, Any]]:
    """The configurations of a command."""
    python, env = sys.executable, {"EDITION": "first"}
    return {
        "opencode": {"mcp": {"near": {"type": "local", "command": [python, program], "environment": env}}},
        "Copilot CLI": {
            "mcpServers": {
                "near": {"type": "local", "command": python, "args": [program], "env": env, "tools": ["*"]}
            }
        },
        "Zed": {
            "context_servers": {
                "near": {"source": "custom", "command": python, "args": [program], "env": env}
            }
        },
        "old Zed": {
            "context_servers": {"near": {"command": {"path": python, "args": [program], "env": env}}}
        },
        "variables": {
            "mcp": {
                "near": {
                    "type": "local",
                    "command": [python, program],
                    "environment": {"EDITION": "{env:EDITION_FOR_TEST}${env:NOT_SET_HERE:-rst}"},
                }
            }
        },
    }


@pytest.mark.parametrize("program", commands(""))
def test_the_command_of_a_server(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITION_FOR_TEST", "fi")
    server, config = tmp_path / "server.py", tmp_path / "mcp.json"
    server.write_text(PROGRAM)
    config.write_text(json.dumps(commands(str(server))[program]))

    async def main() -> None:
        async with Client(config, timeout=20) as client:
            assert client.server_info is not None
            assert (client.server_info.name, client.server_info.version) == ("configured", "first")

    asyncio.run(main())
    listed = toolpost("ping", "--config", str(config), "near")
    assert listed.code == 0, listed.err


@pytest.mark.parametrize(
    "entry", [{"type": "local", "command": []}, {"command": {"args": []}}, {"httpUrl": 7}]
)
def test_an_entry_that_is_none_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ConnectFailed, match="invalid entry"):
        Client(entry)
