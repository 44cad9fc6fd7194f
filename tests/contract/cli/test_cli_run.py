"""`toolpost run`: the server in a file, served."""

import json
import signal
import socket
import subprocess
from pathlib import Path

import pexpect
import pytest

from exit_codes import UNREACHABLE, USAGE
from revision_dates import DATES
from running_server import PATIENCE, RUN, run, running, started
from toolpost import Client, PausedCall, ToolResult
from weather_files import NEIGHBOUR, WEATHER


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """A file with a server in it, and another one that it imports."""
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    path = tmp_path / "weather.py"
    path.write_text(WEATHER)
    return path


# --------------------------------------------------------------------- processes


@pytest.mark.parametrize("revision", [DATES[0], DATES[-1]])
def test_a_file_is_served_over_stdio(weather: Path, revision: str):
    async def main():
        async with Client(started(str(weather), "--", "-x", "y"), revision=revision) as client:
            assert (await client.call_tool("forecast", {"city": "Oslo"})).text == "sunshine in Oslo"
            facts = json.loads((await client.call_tool("facts")).text)
            assert facts == ["weather", "", str(weather.parent), str(weather), "-x", "y"]

    run(main)


def test_stdout_has_nothing_but_messages(weather: Path):
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    done = subprocess.run(
        [*RUN, str(weather)],
        input=f"{json.dumps(ping)}\n".encode(),
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1]
    assert done.stderr.decode().splitlines() == ["written by hand", "printed", "printed and kept"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_file_is_served_over_http_until_a_signal_arrives(weather: Path, number: int):
    async def main():
        options = ["--path", "/here", "--health", "/alive", "--allowed-host", "other.example"]
        async with running(f"{weather}:server", *options) as server:
            assert server.url.endswith("/here")
            for revision in DATES[1:]:
                async with Client(server.url, revision=revision) as client:
                    assert (await client.call_tool("forecast", {"city": "Oslo"})).text == "sunshine in Oslo"
            async with Client(server.url, headers={"Host": "other.example"}) as client:
                assert await client.list_tools()
            assert await server.end(number) == 0
            assert server.output.startswith(f"weather serves MCP at {server.url} (auth: none, workers: 1, ")

    run(main)


def test_several_workers_serve_all_clients(weather: Path):
    async def main():
        async with running(str(weather), "--workers", "2") as server:
            assert "clients up to 2025-11-25 get no sessions" in server.output
            pids: set[int] = set()
            while len(pids) < 2:
                async with Client(server.url) as client:
                    pids.add((await client.call_tool("pid")).data)
            assert server.process.pid not in pids
            async with Client(server.url, revision=DATES[-2]) as client:
                assert (await client.call_tool("forecast", {"city": "Oslo"})).text == "sunshine in Oslo"

            others = False
            while not others:  # each connection belongs to one of them
                async with Client(server.url) as client:
                    paused = await client.begin_call("two")
                    assert isinstance(paused, PausedCall)
                async with Client(server.url) as client:
                    result = await client.resume(paused, {key: {"value": True} for key in paused.questions})
                    assert isinstance(result, ToolResult)
                    others = result.data
            assert await server.end() == 0

    run(main)


UNFIT = """
from toolpost import Server

server = Server("unfit")


@server.tool
def tell(what: "Nowhere") -> None: ...
"""
FAILING = """
from contextlib import asynccontextmanager
from toolpost import Server


@asynccontextmanager
async def life(server):
    raise OSError("no database")
    yield


server = Server("failing", lifespan=life)
"""


@pytest.mark.parametrize(
    ("text", "code", "line", "told"),
    [
        (UNFIT, UNREACHABLE, "line 7, in <module>", "Error: could not load it.py:"),
        (FAILING, UNREACHABLE, "line 8, in life", "Error: could not serve it.py:"),
        ("x = 1", USAGE, "", "Error: it.py has no server; it defines x (of type int)\nHint: write `"),
    ],
)
def test_an_error_in_the_file_shows_its_own_lines(tmp_path, text, code, line, told):
    (tmp_path / "it.py").write_text(text)
    done = subprocess.run(
        [*RUN, "it.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b"")
    assert said.startswith(told)
    lines = [each.strip() for each in said.splitlines() if each.startswith("  File ")]
    assert lines == ([f'File "{tmp_path / "it.py"}", {line}'] if line else [])


def test_an_address_that_is_taken_is_reported(weather: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*RUN, str(weather), "--http", address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == UNREACHABLE
    assert f"Error: cannot listen on {address}: Address already in use" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_on_a_terminal_it_explains_itself(weather: Path):
    child = pexpect.spawn(RUN[0], [*RUN[1:], str(weather)], timeout=PATIENCE, encoding="utf-8")
    try:
        child.expect("weather is serving MCP over stdio")
        child.expect("toolpost list")
        child.sendline('{"jsonrpc": "2.0", "id": 1, "method": "ping"}')
        child.expect('"result":{}')
        child.sendintr()
        child.expect(pexpect.EOF)
        assert "Traceback" not in (child.before or "")
    finally:
        child.close()
    assert child.exitstatus == 0
