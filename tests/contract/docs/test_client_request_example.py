"""The elicitation example: the same result for every client, and one booking each.

Over stdio and over HTTP, in every revision; and with two processes behind a proxy that alternates between
them.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Stdio
from toolpost.types import CreateMessageParams, ElicitParams, TextContent

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "asking.py"
RESULT = "Room 7, 3 days of art: Walk, eat, sleep."
SAID = {
    "How many days in Oslo?": 3,
    "What do you like: food, art or hills?": "art",
    "Plan 3 days in Oslo for a traveller who likes art.": "Walk, eat, sleep.",
}


def host() -> dict[str, Any]:
    """Return the callbacks of a client: a user who fills in forms, and a model."""

    def elicit(params: ElicitParams) -> dict[str, Any]:
        return {"value": SAID[params.message]}

    def sample(params: CreateMessageParams) -> str:
        content = params.messages[0].content
        assert isinstance(content, TextContent)
        return str(SAID[content.text.removeprefix("Ask the user, and answer in one word: ")])

    return {"on_elicitation": elicit, "on_sampling": sample}


async def planned(target: Any, revision: str) -> str:
    async with Client(target, revision=revision, **host()) as mcp:
        assert mcp.revision == revision
        return (await mcp.call_tool("plan_trip", {"city": "Oslo"})).text


@asynccontextmanager
async def serving(ledger: Path, key: str = "") -> AsyncGenerator[str]:
    """The example over HTTP, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        "127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TRIPS_LEDGER": str(ledger), "TRIPS_KEY": key},
    )
    assert process.stderr is not None
    try:
        line = ""
        while "serves MCP at" not in line:
            line = (await process.stderr.readline()).decode()
            assert line, "the server has stopped"
        yield line.split()[-1]
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.parametrize("revision", DATES)
def test_over_stdio_in_every_revision(revision, tmp_path):
    ledger = tmp_path / "ledger"
    command = Stdio(sys.executable, [str(EXAMPLE)], env={**os.environ, "TRIPS_LEDGER": str(ledger)})
    assert asyncio.run(planned(command, revision)) == RESULT
    assert ledger.read_text() == "Oslo 3\n"


@pytest.mark.parametrize("revision", DATES)
def test_over_http_in_every_revision(revision, tmp_path):
    ledger = tmp_path / "ledger"

    async def main() -> str:
        async with serving(ledger) as url:
            old = {"url": url.replace("/mcp", "/sse"), "type": "sse"}
            return await planned(old if revision == DATES[0] else url, revision)

    assert asyncio.run(main()) == RESULT
    assert ledger.read_text() == "Oslo 3\n"


# --------------------------------------------------------------------- two processes


class Turns:
    """A proxy that hands each request to the next server in turn, and remembers which got which method."""

    def __init__(self, *urls: str) -> None:
        self._ports = [int(url.split(":")[2].partition("/")[0]) for url in urls]
        self.served: list[tuple[int, str]] = []
        self._relays: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        for relay in self._relays:
            relay.cancel()  # what a client that has left would still have brought
        await asyncio.gather(*self._relays, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relays.add(asyncio.ensure_future(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one request and its response, then close the connection."""
        async with closing(writer):
            await self._hand_on(reader, writer)

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        turn = len(self.served) % len(self._ports)
        self.served.append((turn, fields.get("mcp-method", "")))
        inner, outer = await asyncio.open_connection("127.0.0.1", self._ports[turn])
        first, _, rest = head.partition("\r\n")
        kept = [line for line in rest.split("\r\n") if not line.lower().startswith("connection:")]
        async with closing(outer):
            outer.write("\r\n".join([first, "Connection: close", *kept]).encode() + body)
            while data := await inner.read(65536):
                writer.write(data)
            await writer.drain()


@asynccontextmanager
async def closing(writer: asyncio.StreamWriter) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.requirement("MRTR-7", "MRTR-9")
def test_every_retry_may_reach_another_process(tmp_path):
    ledger, key = tmp_path / "ledger", "a key that both of the processes have"

    async def main() -> tuple[str, list[tuple[int, str]]]:
        async with serving(ledger, key) as one, serving(ledger, key) as two:
            turns = Turns(one, two)
            async with turns as url:
                return await planned(url, DATES[-1]), turns.served

    result, served = asyncio.run(main())
    assert result == RESULT
    assert ledger.read_text() == "Oslo 3\n"
    calls = [turn for turn, method in served if method == "tools/call"]
    assert len(calls) == 4  # three questions, one result
    assert calls in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_a_process_with_another_key_takes_nothing_of_it(tmp_path):
    ledger = tmp_path / "ledger"

    async def main() -> None:
        async with serving(ledger, "a" * 32) as one, serving(ledger, "b" * 32) as two, Turns(one, two) as url:
            await planned(url, DATES[-1])

    with pytest.raises(Exception, match="requestState is not valid for this request"):
        asyncio.run(main())
