"""Messages are handled in order, at the speed of their reader, however they are nested."""

import asyncio
import json
import subprocess
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from toolpost import Client, Server

WHO = {"name": "c", "version": "1"}
HELLO: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": "i",
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": WHO},
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


def run(main: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


@pytest.mark.parametrize("method", ["ping", "nonsense"])
def test_all_is_answered_that_was_asked_before_the_end(method: str, tmp_path: Path):
    """Requests from a file, answers read late: none is lost with the end of stdin."""
    program = tmp_path / "server.py"
    program.write_text("from toolpost import Server\nServer('s').run()\n")
    count = 10_000
    asked = (json.dumps({"jsonrpc": "2.0", "id": n, "method": method}) for n in range(count))
    data = "".join(f"{each}\n" for each in [*map(json.dumps, HELLO), *asked]).encode()
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin

        def write() -> None:
            stdin.write(data)
            stdin.close()

        writing = threading.Thread(target=write)
        writing.start()
        writing.join(0.2)  # a server that waits for us has not taken it all
        answers = process.stdout.read().splitlines()
        writing.join()
    assert len(answers) == count + 1


def test_a_long_chain_of_servers_in_one_process():
    async def main():
        clients: list[Client] = []

        def link(number: int) -> Server:
            server = Server(f"s{number}")

            @server.tool
            async def go() -> str:
                return (await clients[number + 1].call_tool("go")).text if number < 119 else "deep"

            return server

        async with AsyncExitStack() as stack:
            for number in range(120):
                clients += [await stack.enter_async_context(Client(link(number)))]
            assert (await clients[0].call_tool("go")).text == "deep"

    run(main)
