"""`toolpost listen`."""

import asyncio
import json
import signal
import subprocess
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager

import pytest

import exit_codes
from command_line import SHOP, TALKER, TOOLPOST, toolpost
from revision_dates import DATES
from running_server import run, running
from toolpost import Client


def test_the_log_of_a_server_is_shown():
    said = toolpost("listen", "--count", "2", *TALKER)
    assert said.code == exit_codes.OK
    assert [line.partition(" ")[2] for line in said.out.splitlines()] == [
        'warning: oven: {"hot":true}',
        "info: tick",
    ]
    assert said.err == "Listening to python talker.py: list of tools, log. Press Ctrl-C to stop.\n"


def test_programs_get_a_line_for_each():
    said = toolpost("listen", "--json", "--count", "1", "--log-level", "info", *TALKER, "silent")
    told = json.loads(said.out)
    assert told.pop("time")
    assert told == {"kind": "log", "level": "warning", "logger": "oven", "data": {"hot": True}}
    assert "log only" in said.err


def test_it_ends_after_a_while():
    assert toolpost("listen", "--for", "0", *SHOP).code == exit_codes.OK


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--prompts", *TALKER], "'prompts.list_changed'"),
        (["--uri", "shop://menu", *TALKER], "'resources.subscribe'"),
    ],
)
def test_a_server_without_change_notifications_is_reported(words, problem):
    said = toolpost("listen", *words)
    assert said.code == exit_codes.FAILED
    assert problem in said.err


@asynccontextmanager
async def listening(*words: str):
    process = await asyncio.create_subprocess_exec(*TOOLPOST, "listen", *words, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert (await process.stderr.readline()).startswith(b"Listening to ")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("revision", DATES)
def test_changes_are_shown_on_every_revision(revision):
    async def main() -> None:
        words = ["--json", "--revision", revision, "--tools", "--uri", "shop://menu", "--count", "2"]
        async with running(SHOP[-1]) as server, listening(*words, server.url) as process:
            async with Client(server.url) as client:
                await client.call_tool("restock")
            assert process.stdout is not None
            told = [json.loads(line) for line in (await process.stdout.read()).splitlines()]
            assert sorted((each["kind"], each.get("uri")) for each in told) == [
                ("resource", "shop://menu"),
                ("tools", None),
            ]
            assert await process.wait() == exit_codes.OK

    run(main)


def test_changes_are_printed_until_ctrl_c():
    async def main() -> None:
        async with running(SHOP[-1]) as server, listening("--resources", "--tools", server.url) as process:
            async with Client(server.url) as client:
                await client.call_tool("restock")
            assert process.stdout is not None
            assert (await process.stdout.readline()).endswith(b" list of tools changed\n")
            process.send_signal(signal.SIGINT)
            assert await process.wait() == exit_codes.INTERRUPTED

    run(main)


def test_a_lost_connection_is_reported():
    async def main() -> None:
        async with running(SHOP[-1]) as server, listening(server.url) as process:
            await server.end(signal.SIGKILL)
            assert process.stderr is not None
            assert b"not receiving change notifications at the moment" in await process.stderr.readline()

    run(main)


def test_nothing_of_it_is_left(tmp_path):
    done = subprocess.run(
        [*TOOLPOST, "listen", "--for", "0", *SHOP], capture_output=True, check=True, cwd=tmp_path
    )
    assert done.stdout == b""
    assert list(tmp_path.iterdir()) == []
