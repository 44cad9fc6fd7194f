"""Every command that takes a target, on npm's `server-everything`: a server by other authors.

Each test starts the real processes, over stdio or over HTTP.
"""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator
from typing import Any

import pexpect
import pytest

import external_programs
from revision_dates import DATES
from toolpost import Client, Stdio

pytestmark = pytest.mark.timeout(300)  # the first of them may have to install it

TOOLPOST = (sys.executable, "-m", "toolpost")
PLAIN = {**os.environ, **external_programs.QUIETLY, "NO_COLOR": "1", "COLUMNS": "100", "PYTHONUTF8": "1"}
SESSIONS = DATES[:-1]

Line = Callable[..., list[str]]


@pytest.fixture(scope="module")
def command() -> list[str]:
    return [*external_programs.everything(), "stdio"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with subprocess.Popen(
        [*external_programs.everything(), "streamableHttp"],
        env={**PLAIN, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        try:
            told = server.stderr.readline()
            assert "listening" in told, told + server.stderr.read()
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()


@pytest.fixture(params=["stdio", "http"])
def line(request, command: list[str], url: str) -> Line:
    """Return a function that builds a command line for the server over stdio or HTTP."""
    if request.param == "stdio":
        return lambda word, *more: [*TOOLPOST, word, *more, "--", *command]
    return lambda word, *more: [*TOOLPOST, word, url, *more]


@pytest.fixture
def toolpost(line: Line, tmp_path) -> Callable[..., str]:
    """Return the stdout of a command, which must not print errors."""

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            line(*words), cwd=tmp_path, env=PLAIN, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


# --------------------------------------------------------------------- each command


def test_list(toolpost):
    told = toolpost("list")
    assert told.startswith("Everything Reference Server 2.0.0, revision 2025-11-25\n")
    for name in ("get-structured-content", "demo://resource/static/document/features.md", "args-prompt"):
        assert name in told
    assert "demo://resource/dynamic/text/{resourceId}" in told


@pytest.mark.parametrize("line", ["http"], indirect=True)  # one way is enough
@pytest.mark.parametrize("revision", [SESSIONS[0], SESSIONS[2]])
def test_list_in_an_older_revision(toolpost, revision):
    told = json.loads(toolpost("list", "--json", "--tools", "--revision", revision))
    assert told["revision"] == revision
    assert "echo" in [tool["name"] for tool in told["tools"]]


CALLS = {
    "text": (["echo", "--message", "grüße"], "Echo: grüße\n"),
    "numbers": (["get-sum", "--a", "2", "--b", "3"], "The sum of 2 and 3 is 5.\n"),
    "a choice": (
        ["get-structured-content", "--location", "Chicago"],
        "temperature  36\nconditions   Light rain / drizzle\nhumidity     82\n",
    ),
    "all arguments at once": (["--args", '{"message": "hi"}', "echo"], "Echo: hi\n"),
    "progress": (
        ["trigger-long-running-operation", "--duration", "0.1", "--steps", "2"],
        "Long running operation completed. Duration: 0.1 seconds, Steps: 2.\n",
    ),
}


@pytest.mark.parametrize(("words", "told"), CALLS.values(), ids=CALLS)
def test_call(toolpost, words, told):
    assert toolpost("call", *words) == told


def test_call_saves_a_picture(toolpost, tmp_path):
    assert "Saved get-tiny-image.png (image/png, 4033 bytes)" in toolpost("call", "get-tiny-image")
    assert (tmp_path / "get-tiny-image.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("line", ["http"], indirect=True)  # one way is enough
def test_call_shows_the_parameters_of_a_tool(toolpost):
    told = toolpost("call", "get-annotated-message", "--help")
    assert re.search(r"--message-?[tT]ype", told)
    assert "error|success|debug" in told


@pytest.mark.parametrize("line", ["http"], indirect=True)  # one way is enough
def test_call_reports_what_is_wrong(toolpost):
    toolpost("call", "get-sum", "--a", "2", "--b", "many", code=2)
    toolpost("call", "get-sun", "--a", "2", code=2)
    toolpost("call", "--args", '{"resourceType": "Text", "resourceId": -1}', "get-resource-reference", code=1)


def test_read(toolpost):
    assert toolpost("read", "demo://resource/static/document/features.md").startswith("# Everything Server")
    toolpost("read", "demo://resource/nowhere", code=1)


def test_prompt(toolpost):
    assert toolpost("prompt", "args-prompt", "--city", "Oslo") == "user:\nWhat's weather in Oslo?\n"


@pytest.mark.parametrize("line", ["http"], indirect=True)  # one way is enough
def test_complete(toolpost):
    assert toolpost("complete", "prompt", "completable-prompt", "department", "E") == "Engineering\n"
    known = ["--context", "department=Engineering"]
    assert toolpost("complete", *known, "prompt", "completable-prompt", "name", "A") == "Alice\n"


def test_ping(toolpost):
    told = toolpost("ping", "--count", "2", "--interval", "0")
    assert len(re.findall(r": [\d.]+ m?s", told)) == 2


def test_listen(toolpost):
    """It writes a line when a client watches a resource; it adds tools before a client can listen."""
    told = toolpost("listen", "--count", "1", "--uri", "demo://resource/dynamic/text/1")
    assert "Received Subscribe Resource request" in told


def test_doctor(toolpost):
    told = json.loads(toolpost("doctor", "--json"))
    verdicts = {check["name"]: check["verdict"] for check in told["checks"]}
    assert "fail" not in verdicts.values()
    assert {"answer", "capabilities", "tools", "resources", "prompts", "ping"} <= verdicts.keys()
    [revisions] = [check["text"] for check in told["checks"] if check["name"] == "revisions"]
    assert all(revision in revisions for revision in SESSIONS)


def test_bench(toolpost):
    told = json.loads(
        toolpost("bench", "--json", "--for", "0.3", "--args", '{"message": "x"}', "echo", "--rate", "50")
    )
    assert told["answered"] > 0
    assert told["failed"] == 0


# --------------------------------------------------------------------- between a host and the server


async def used(target: Any) -> None:
    """Call a tool, as a host would."""
    async with Client(target) as mcp:
        assert (await mcp.call_tool("echo", {"message": "tapped"})).text == "Echo: tapped"


def test_tap_a_process(command, tmp_path):
    seen, kept = tmp_path / "seen.txt", tmp_path / "kept.jsonl"
    words = ["-m", "toolpost", "tap", "--to", str(seen), "--record", str(kept), "--", *command]
    asyncio.run(used(Stdio(sys.executable, words, env={"PYTHONUTF8": "1"})))
    check_tapped(seen.read_text(encoding="utf-8"), kept.read_text(encoding="utf-8"))


def test_tap_a_url(url, tmp_path):
    kept = tmp_path / "kept.jsonl"

    async def main() -> str:
        words = ["tap", url, "--listen", "127.0.0.1:0", "--record", str(kept)]
        tap = await asyncio.create_subprocess_exec(*TOOLPOST, *words, env=PLAIN, stdout=PIPE, stderr=PIPE)
        assert tap.stdout is not None
        assert tap.stderr is not None
        seen = asyncio.create_task(tap.stderr.read())
        try:
            found = re.search(r"http://127\.0\.0\.1:\d+\S*", (await tap.stdout.readline()).decode())
            assert found is not None
            await used(found[0])
        finally:
            tap.terminate()
            told = await seen
            await tap.communicate()
        return told.decode()

    check_tapped(asyncio.run(main()), kept.read_text(encoding="utf-8"))


def check_tapped(seen: str, kept: str) -> None:
    assert "initialize" in seen
    assert "tools/call" in seen
    assert "Echo: tapped" in kept
    assert all(isinstance(json.loads(line), dict) for line in kept.splitlines())


# --------------------------------------------------------------------- on a terminal


def spawned(words: list[str]) -> pexpect.spawn:
    return pexpect.spawn(
        words[0], words[1:], env=PLAIN, encoding="utf-8", timeout=60, dimensions=(60, 120), echo=False
    )


def test_missing_arguments_are_prompted_for(line):
    with spawned(line("call", "get-sum", "--a", "2")) as terminal:
        terminal.expect_exact("b (number): ")
        terminal.sendline("3")
        terminal.expect_exact("The sum of 2 and 3 is 5.")
        terminal.expect(pexpect.EOF)
        terminal.wait()
    assert terminal.exitstatus == 0


def test_the_server_asks_the_user(line):
    with spawned(line("call", "trigger-elicitation-request")) as terminal:
        terminal.expect_exact("text> ")
        terminal.sendline("Ann")
        while terminal.expect([r"> ", r"Send it\?"]) == 0:
            terminal.sendline()  # as it is, or left out
        terminal.sendline("y")
        terminal.expect_exact("Name: Ann")
        terminal.expect(pexpect.EOF)
        terminal.wait()
    assert terminal.exitstatus == 0
