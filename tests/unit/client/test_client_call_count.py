"""The number of our function calls per tool call over HTTP: the path must stay short."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import recording
import toolpost
from toolpost import Client
from toolpost.protocol.revisions import LATEST, LATEST_SESSION

MAX_CALLS = 43
MAX_CALLS_WITH_META = 51
"""With `meta=`, its keys are checked, and merged with what the era demands."""

PROGRAM = """
from toolpost import Server

server = Server("adder")


@server.tool
def add(a: int, b: int) -> int:
    return a + b


server.run(http="127.0.0.1:0")
"""

SOURCES = str(Path(toolpost.__file__).parent)
LIBRARY_ADAPTERS = str(Path(SOURCES, "transports", "backends"))


@contextlib.contextmanager
def serve() -> Generator[str]:
    """A server in another process; its URL."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()


async def count_calls(client: Client, meta: Mapping[str, Any] | None) -> list[str]:
    """Return the names of our functions that one call entered or resumed."""
    names: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file, caller = frame.f_code.co_filename, frame.f_back
        if caller is not None and caller.f_code.co_filename == recording.__file__:
            return  # the plugin that listens to every test
        if event == "call" and file.startswith(SOURCES) and not file.startswith(LIBRARY_ADAPTERS):
            names.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = await client.call_tool("add", {"a": 1, "b": 2}, meta=meta)
    finally:
        sys.setprofile(before)
    assert result.data == 3
    return names


@pytest.mark.parametrize("revision", [LATEST.date, LATEST_SESSION.date])
def test_a_call_over_http_takes_few_calls_of_our_own(revision):
    async def main(url: str) -> None:
        async with Client(url, revision=revision) as client:
            for meta, limit in ((None, MAX_CALLS), ({"com.example/a": 1}, MAX_CALLS_WITH_META)):
                for _ in range(3):
                    await client.call_tool("add", {"a": 1, "b": 2}, meta=meta)
                # The least of a few: a response may come in one piece or in two.
                names = min([await count_calls(client, meta) for _ in range(5)], key=len)
                assert len(names) <= limit, "\n".join(names)

    with serve() as url:
        asyncio.run(main(url))
