"""`toolpost gateway`: the servers of an `mcp.json` as one endpoint: checked, reloaded, guarded, recorded."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import toolpost
from raw_http import wired
from running_server import RUN, Running, run, running, write
from toolpost import Client, Stdio
from toolpost.errors import RPCError
from toolpost.types import ElicitResult

PROGRAM = Path(__file__).parents[2] / "support" / "programs" / "numbered.py"
EXAMPLES = Path(__file__).parents[3] / "examples"


def entry(*words: str, **settings: Any) -> dict[str, Any]:
    """Return the entry of a server whose tools have these names."""
    found: dict[str, Any] = {"command": sys.executable, "args": [str(PROGRAM), *words]}
    return found | ({"toolpost": settings} if settings else {})


class Place:
    """A folder with an `mcp.json`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "mcp.json"
        self.servers: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}

    def save(self, **servers: Any) -> None:
        """Change entries, and write the file; None removes an entry."""
        self.servers = {name: each for name, each in (self.servers | servers).items() if each is not None}
        content = {"mcpServers": self.servers} | ({"toolpost": self.settings} if self.settings else {})
        write(self.file, json.dumps(content, indent=1))

    def client(self, *words: str, **options: Any) -> Client:
        """Return a client that starts the gateway over stdio."""
        covered = [name for name in os.environ if name.startswith("COV")]
        target = Stdio(RUN[0], [*RUN[1:-1], "gateway", str(self.file), *words], inherit_env=covered)
        return Client(target, **options)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


async def names(client: Client) -> list[str]:
    return [tool.name for tool in await client.list_tools()]


async def until_listed(client: Client, wanted: set[str]) -> None:
    """Wait until these are the tools: servers that start slowly appear later."""
    while set(await names(client)) != wanted:  # noqa: ASYNC110 - another process changes them
        await asyncio.sleep(0.01)


async def until_served(client: Client, prefixes: set[str]) -> None:
    """Wait until there are tools with each of these prefixes."""
    while {name.partition("_")[0] for name in await names(client)} != prefixes:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)


# --------------------------------------------------------------------- one endpoint


def test_a_strangers_file_is_one_endpoint(place):
    """Three servers, over stdio and HTTP, in the forms of three programs."""

    async def main() -> None:
        async with running(str(EXAMPLES / "images.py")) as images:
            place.save(
                weather={
                    "command": sys.executable,
                    "args": [str(EXAMPLES / "weather.py")],
                    "alwaysAllow": ["x"],
                },
                notes={"type": "local", "command": [sys.executable, str(EXAMPLES / "notes.py")]},
                images={"type": "streamable-http", "serverUrl": images.url},
            )
            async with place.client() as client:
                await until_served(client, {"weather", "notes", "images"})
                told = await client.call_tool("weather_forecast", {"city": "Oslo", "days": 1})
                assert told.data["city"] == "Oslo"
                assert (await client.call_tool("images_sunset", {"width": 2, "height": 2})).content
                assert "notes_tidy_up" in [prompt.name for prompt in await client.list_prompts()]
                assert "notes://index" in [resource.uri for resource in await client.list_resources()]

    run(main)


def test_a_server_that_cannot_be_started_costs_only_itself(place):
    place.save(good=entry("pid"), bad={"command": "no-such-program-here"})

    async def main() -> None:
        async with place.client() as client:
            await until_listed(client, {"good_pid"})

    run(main)


def test_settings_of_an_entry_shape_its_tools(place):
    place.save(
        a=entry("pid", "whoami", name="", only=["p*"]),
        b=entry("pid", "other", name="second", hide=["other"], tools={"pid": {"name": "number"}}),
    )

    async def main() -> None:
        async with place.client() as client:
            await until_listed(client, {"pid", "second_number"})

    run(main)


def test_lazy_servers_are_not_started(place, tmp_path):
    for number in range(20):
        place.servers[f"s{number}"] = entry("pid", start="lazy")
    place.save()

    async def main() -> None:
        async with running(str(place.file), subcommand="gateway") as gateway:
            assert await upstream_states(gateway) == dict.fromkeys(place.servers, "idle")
            assert read_children(gateway.process.pid) == ""

    run(main)


def read_children(process: int) -> str:
    return Path(f"/proc/{process}/task/{process}/children").read_text()


async def upstream_states(gateway: Running) -> dict[str, str]:
    return (await get(gateway, "/health"))[1]["upstreams"]


async def get(gateway: Running, path: str) -> tuple[int, Any]:
    port = int(gateway.url.rpartition(":")[2].partition("/")[0])
    async with wired(port) as wire:
        await wire.ask("GET", path)
        answer = await wire.answer()
        return answer.status, json.loads(answer.body)


def test_health_tells_the_state_of_each_upstream(place):
    place.save(good=entry("pid", required=True), bad={"command": "no-such-program-here"})

    async def main() -> None:
        async with running(str(place.file), subcommand="gateway") as gateway:
            async with Client(gateway.url) as client:
                await until_listed(client, {"good_pid"})
            assert await upstream_states(gateway) == {"good": "ready", "bad": "backoff"}
            assert (await get(gateway, "/health/ready"))[0] == 200
            place.save(bad={"command": "no-such-program-here", "toolpost": {"required": True}})
            await gateway.hears("Reloaded")
            assert (await get(gateway, "/health/ready"))[0] == 503

    run(main)


# --------------------------------------------------------------------- reload


def test_a_changed_entry_restarts_that_upstream_only(place):
    place.save(a=entry("pid"), b=entry("pid"))

    async def main() -> None:
        async with (
            running(str(place.file), subcommand="gateway") as gateway,
            Client(gateway.url, revision="2025-11-25") as client,
        ):
            await until_listed(client, {"a_pid", "b_pid"})
            first = [(await client.call_tool(name)).data for name in ("a_pid", "b_pid")]
            place.save(a=entry("pid", "whoami"))
            assert "changed a." in await gateway.hears("Reloaded mcp.json")
            await until_listed(client, {"a_pid", "a_whoami", "b_pid"})
            second = [(await client.call_tool(name)).data for name in ("a_pid", "b_pid")]
            assert first[0] != second[0]
            assert first[1] == second[1]
            place.save(b=None, c=entry("whoami"))
            assert "removed b, added c" in await gateway.hears("Reloaded mcp.json")
            await until_listed(client, {"a_pid", "a_whoami", "c_whoami"})

    run(main)


def test_a_broken_file_is_refused_and_the_old_one_goes_on(place):
    place.save(a=entry("pid"))

    async def main() -> None:
        async with running(str(place.file), subcommand="gateway") as gateway, Client(gateway.url) as client:
            await until_listed(client, {"a_pid"})
            first = (await client.call_tool("a_pid")).data
            write(place.file, place.file.read_text().replace('"a": {', '"a" {'))
            told = await gateway.hears("Still running with the previous configuration.")
            assert "mcp.json:3: the file is not valid JSON" in told
            place.settings = {"policy": [{"tools": "*", "than": "deny"}]}
            place.save()
            told = await gateway.hears("Still running with the previous configuration.")
            assert "unknown setting 'than'; did you mean then?" in told
            assert (await client.call_tool("a_pid")).data == first
            place.settings = {"policy": [{"tools": "*", "then": "deny"}]}
            place.save()
            await gateway.hears("changed the policy")
            with pytest.raises(RPCError, match="the policy does not allow it"):
                await client.call_tool("a_pid")

    run(main)


# --------------------------------------------------------------------- rules, rates, records


def test_policies_rates_and_the_audit_log(place, tmp_path):
    place.settings = {
        "policy": [
            {"upstream": "b", "then": "hide"},
            {"tools": "*wipe", "destructive": True, "then": "ask"},
            {"tools": "*"},
        ],
        "rate": {"calls": 3, "by": "upstream"},
        "audit": {"path": "calls.jsonl", "arguments": True},
    }
    place.save(a=entry("pid", "wipe"), b=entry("pid"))
    asked: list[str] = []

    async def answer(question: Any) -> ElicitResult:
        asked.append(question.message)
        return ElicitResult(action="accept", content={})

    async def main() -> None:
        async with place.client(on_elicitation=answer) as client:
            with pytest.raises(RPCError, match="Unknown tool: b_pid"):
                await client.call_tool("b_pid")  # before anything is listed
            await until_listed(client, {"a_pid", "a_wipe"})
            for name in ("a_pid", "a_wipe"):
                await client.call_tool(name)
            with pytest.raises(RPCError, match="Too many requests"):
                await client.call_tool("a_pid", retry=False)
            with pytest.raises(RPCError, match="Unknown tool: b_pid"):
                await client.call_tool("b_pid")

    run(main)
    assert [question.partition("?")[0] for question in asked] == ["Allow the tool a_wipe"]
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [(line["name"], line["outcome"], line.get("rule")) for line in lines] == [
        ("b_pid", "error", lines[0].get("rule")),  # none, if the server has not started yet
        ("a_pid", "ok", 3),
        ("a_wipe", "input_required", 2),
        ("a_wipe", "ok", 2),
        ("a_pid", "error", None),
        ("b_pid", "error", 1),
    ]


# --------------------------------------------------------------------- checks


def test_check_starts_nothing_and_says_what_is_wrong(place, tmp_path):
    marker = tmp_path / "started"
    place.save(good={"command": sys.executable, "args": ["-c", f"open({str(marker)!r}, 'w')"]})
    done = toolpost("gateway", str(place.file), "--check")
    assert (done.code, "no problems found" in done.out) == (0, True)
    assert not marker.exists()
    place.settings = {"polcy": []}
    place.save(bad={"command": "no-such-program-here"})
    done = toolpost("gateway", str(place.file), "--check")
    assert done.code == 1
    assert "unknown setting 'polcy'; did you mean policy?" in done.out
    assert "server 'bad': the command 'no-such-program-here' was not found" in done.out
    found = toolpost("gateway", str(place.file), "--check", "--json").json
    assert [server["server"] for server in found["servers"]] == ["good", "bad"]
    assert [problem["level"] for problem in found["problems"]] == ["error", "error"]


def test_a_broken_file_is_not_served(place):
    place.settings = {"polcy": []}
    place.save(good=entry("pid"))
    done = toolpost("gateway", str(place.file))
    assert done.code == 2
    assert f"Error: {place.file}:" in done.err


def test_a_missing_file(tmp_path):
    done = toolpost("gateway", str(tmp_path / "none.json"))
    assert (done.code, "No such file" in done.err) == (2, True)


def test_secrets_are_in_no_output(place):
    place.save(
        a={"url": "https://a.example/mcp?key=s3cret", "headers": {"X-Key": "s3cret"}},
        b={"command": "nope", "env": {"KEY": "s3cret"}},
    )
    done = toolpost("gateway", str(place.file), "--check")
    assert "s3cret" not in done.out + done.err
