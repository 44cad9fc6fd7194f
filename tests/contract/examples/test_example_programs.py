"""Each example that is a program runs, and prints what its docstring promises."""

import asyncio
import re
import shlex
import socket
import subprocess
import sys

import aiohttp
import pexpect
import pytest
from example_sessions import EXAMPLES, REVISIONS, started

from toolpost import Client, ToolError

CHAT = """\
you: model: I only know how to use my tools: poem, count.
you:   [the model calls poem {'topic': 'rain'}]
  [poet asks the model: 'Write a line about rain']
  [poet asks the model: 'Write a line after: Softly rain comes and goes,']
model: Softly rain comes and goes,
and where it went, the river knows.
you:   [the model calls count {'to': 50}]
model: I can count to ten.
you: """

SEVERAL = """\
weather: ready
notes: ready
bank: no-such-bank: program 'no-such-bank' not found
tools: cities, forecast, warmest, write_note, erase_note
note://trip says Cairo: sun 31°, sun 33°
refused: No forecast for Atlantis. Choose one of Bergen, Cairo, Oslo, Quito.
"""


LOST = "The worker that served this call died, or its store was emptied; the call may or may not have run."
FLEET = [
    "first order:",
    "Worker PID asks: how many pens?",
    "  worker PID is killed before the answer",
    f"  failed: {LOST}",
    "second order, in the same session:",
    "Worker PID asks: how many pens?",
    "  3 pens from worker PID",
    "calls reach the other workers only: True",
]

TRIED = ("call", "list", "read")
"""The commands that end without interaction."""


def commands() -> list[str]:
    """The commands that the docstrings and the list of the examples suggest."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.py"))]
    texts.append((EXAMPLES / "README.md").read_text(encoding="utf-8"))
    told = re.findall(
        rf"(?:^    |`)(toolpost (?:{'|'.join(TRIED)}) .+?)(?:`| {{3,}}|$)", "\n".join(texts), re.MULTILINE
    )
    return sorted({words for words in told if "http://" not in words})


@pytest.mark.parametrize("line", commands())
def test_the_suggested_commands_work(line, tmp_path):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    (tmp_path / "a.md").touch()
    words = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(
        words, cwd=tmp_path, input="", capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr


def test_every_example_is_listed():
    listed = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def ran(example: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / example)]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=50, check=True)


def test_a_session_survives_the_worker_that_asks_its_user():
    done = ran("three_workers.py")
    lines = [re.sub(r"\d{2,}", "PID", line) for line in done.stdout.splitlines()]
    assert lines == FLEET
    assert done.stderr.count("\n") == 3  # the addresses of the workers


def test_the_model_is_asked_in_a_chat():
    done = ran("chat.py", "hello\na poem about rain\nplease count to 50\n\n")
    assert (done.stdout, done.stderr) == (CHAT, "")


@pytest.mark.parametrize("end", ["", "\x04", "\x03"], ids=["an empty line", "the end of input", "Ctrl-C"])
def test_a_chat_ends_without_a_word(end):
    with pexpect.spawn(sys.executable, [str(EXAMPLES / "chat.py")], encoding="utf-8", timeout=50) as chat:
        chat.expect_exact("you: ")
        chat.sendline("count to 3")
        chat.expect_exact("model: 1, 2, 3")
        chat.expect_exact("you: ")
        chat.send(end or "\r")
        chat.expect(pexpect.EOF)
        assert "Traceback" not in (chat.before or "")
        chat.wait()
    assert chat.exitstatus == 0


def test_one_client_uses_several_servers():
    told = ran("several_servers.py").stdout
    lines = [
        line.partition(" (install it")[0] for line in told.splitlines()
    ]  # the hint is not ours to repeat
    assert "\n".join(lines) + "\n" == SEVERAL


def test_an_application_and_its_server_share_their_data():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    words = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_app:app", "--port", str(port)]

    async def main() -> None:
        async with started(words, "Uvicorn running on"):
            origin = f"http://127.0.0.1:{port}"
            old = {"type": "sse", "url": f"{origin}/api/sse"}
            for revision in REVISIONS:
                target = old if revision == REVISIONS[0] else f"{origin}/api/mcp"
                async with Client(target, revision=revision) as mcp:
                    bought = await mcp.call_tool("order", {"item": "ink"}, result_type=dict)
                    assert await fetched(f"{origin}/items/ink") == bought.data
            async with Client(f"{origin}/api/mcp") as mcp:
                assert {"name": "ink", "left": 0} in (await mcp.call_tool("stock")).data
                with pytest.raises(ToolError, match="There is no ink left"):
                    await mcp.call_tool("order", {"item": "ink"})
                with pytest.raises(ToolError, match="There is no cat left"):
                    await mcp.call_tool("order", {"item": "cat"})

    asyncio.run(main())


async def fetched(url: str) -> object:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        return await response.json()
