"""The command line of the MCP Inspector lists and calls our examples, over stdio and over HTTP."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from example_sessions import EXAMPLES, serving

import external_programs
from toolpost import Client

pytestmark = pytest.mark.timeout(300)  # the first of them may have to install it


class Inspector:
    """The Inspector, which reads and writes nothing of the user's own.

    Args:
        home: a folder for it.
    """

    def __init__(self, home: Path) -> None:
        self._command = external_programs.inspector()
        self._env = {**os.environ, **external_programs.QUIETLY, "HOME": str(home), "NO_COLOR": "1"}

    async def __call__(self, target: list[str], method: str, *words: str) -> dict[str, Any]:
        """Return the response of a server to a method."""
        return json.loads(await self._run(*target, "--method", method, *words))

    async def do(self, *words: str) -> dict[str, Any]:
        """Return what its other command line prints, which keeps a connection."""
        command = (*external_programs.inspector_connections(), "--format", "json", "--connection", "ours")
        return json.loads(await self._run(*words, command=command))

    async def verify_skills(self, target: list[str]) -> dict[str, Any]:
        """Return the report on each skill by name; there is one per line."""
        told = await self._run(*target, "--method", "skills/list", "--verify", "--protocol-era", "modern")
        return {report["name"]: report for report in map(json.loads, told.splitlines())}

    async def _run(self, *words: str, command: Sequence[str] = ()) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *(command or self._command),
            *words,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()
        return told


@pytest.fixture
def inspect(tmp_path):
    return Inspector(tmp_path)


async def weather(inspect: Inspector, target: list[str]) -> None:
    listed = await inspect(target, "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == ["cities", "forecast", "warmest"]
    arguments = ("--tool-name", "forecast", "--tool-arg", "city=Oslo", "days=1")
    told = await inspect(target, "tools/call", *arguments)
    day = {"day": 1, "sky": "snow", "high": -2}
    assert told["structuredContent"] == {"city": "Oslo", "unit": "celsius", "days": [day]}


async def notes(inspect: Inspector, target: list[str]) -> None:
    listed = await inspect(target, "resources/list")
    assert [resource["uri"] for resource in listed["resources"]] == ["notes://index"]
    listed = await inspect(target, "resources/templates/list")
    assert [template["uriTemplate"] for template in listed["resourceTemplates"]] == ["note://{name}"]
    read = await inspect(target, "resources/read", "--uri", "note://ideas")
    assert read["contents"][0]["text"] == "A lamp that wakes me gently."
    listed = await inspect(target, "prompts/list")
    assert [prompt["name"] for prompt in listed["prompts"]] == ["tidy_up"]
    arguments = ("--prompt-name", "tidy_up", "--prompt-args", "name=ideas")
    filled = await inspect(target, "prompts/get", *arguments)
    assert filled["messages"][0]["content"]["text"].endswith("A lamp that wakes me gently.")


async def images(inspect: Inspector, target: list[str]) -> None:
    arguments = ("--tool-name", "sunset", "--tool-arg", "width=2", "height=2")
    told = await inspect(target, "tools/call", *arguments)
    assert [block["type"] for block in told["content"]] == ["text", "image"]


@pytest.mark.parametrize("visit", [weather, notes, images])
def test_over_stdio(inspect, visit):
    asyncio.run(visit(inspect, [sys.executable, str(EXAMPLES / f"{visit.__name__}.py")]))


@pytest.mark.parametrize(("visit", "path"), [(weather, "/mcp"), (weather, "/sse"), (notes, "/mcp")])
def test_over_http(inspect, visit, path):
    async def main() -> None:
        async with serving(f"{visit.__name__}.py") as url:
            await visit(inspect, [url.replace("/mcp", path)])

    asyncio.run(main())


def test_a_gateway_in_front_of_three_servers(inspect, tmp_path):
    """One command makes one endpoint of a stranger's file."""
    path = tmp_path / "mcp.json"

    async def main() -> None:
        async with serving("images.py") as url:
            servers = {
                "weather": {"command": sys.executable, "args": [str(EXAMPLES / "weather.py")]},
                "notes": {"command": sys.executable, "args": [str(EXAMPLES / "notes.py")]},
                "images": {"type": "http", "url": url},
            }
            await asyncio.to_thread(path.write_text, json.dumps({"mcpServers": servers}))
            target = [str(Path(sys.executable).with_name("toolpost")), "gateway", str(path)]
            arguments = ("--tool-name", "weather_forecast", "--tool-arg", "city=Oslo", "days=1")
            told = await inspect(target, "tools/call", *arguments)
            assert told["structuredContent"]["city"] == "Oslo"
            arguments = ("--tool-name", "images_sunset", "--tool-arg", "width=2", "height=2")
            told = await inspect(target, "tools/call", *arguments)
            assert [block["type"] for block in told["content"]] == ["text", "image"]
            read = await inspect(target, "resources/read", "--uri", "note://ideas")
            assert read["contents"][0]["text"] == "A lamp that wakes me gently."
            filled = await inspect(
                target, "prompts/get", "--prompt-name", "notes_tidy_up", "--prompt-args", "name=ideas"
            )
            assert filled["messages"][0]["content"]["text"].endswith("A lamp that wakes me gently.")

    asyncio.run(main())


def test_it_verifies_our_skills(inspect):
    found = asyncio.run(inspect.verify_skills([sys.executable, str(EXAMPLES / "how_to.py")]))
    assert found["code-review"]["outcome"] == "verified"
    assert [file["status"] for file in found["code-review"]["files"]] == ["verified"] * 3
    assert found["release-notes"]["outcome"] == "unverifiable"  # it is dynamic


@pytest.mark.parametrize(("era", "revision"), [("legacy", "2025-11-25"), ("modern", "2026-07-28")])
def test_it_runs_and_watches_our_tasks(inspect, era: str, revision: str):
    async def main() -> None:
        async with serving("tasks.py") as url, Client(url, revision=revision) as client:
            await inspect.do("connect", url, "--era", era)
            try:
                wish = ["--task"] if era == "legacy" else []
                told = await inspect.do("tools/call", "count_stars", *wish)
                assert told["structuredContent"] == {"result": 100_000_000_000}
                task = await client.start_task("count_stars")
                assert (await inspect.do("tasks/get", task.id))["task"]["taskId"] == task.id
                assert (await inspect.do("tasks/result", task.id))["content"][0]["text"] == "100000000000"
            finally:
                await inspect.do("daemon", "stop")

    asyncio.run(main())


@pytest.mark.parametrize("example", ["approval", "files", "images", "long_job", "notes", "weather"])
def test_it_finds_no_fault_with_our_schemas(inspect, example):
    """With `--strict` it ends with an error if hosts might not understand one."""
    listed = asyncio.run(inspect([sys.executable, str(EXAMPLES / f"{example}.py")], "tools/list", "--strict"))
    assert listed["tools"]
