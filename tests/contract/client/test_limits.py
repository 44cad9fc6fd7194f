"""Messages over the limit are dropped and counted, and no caller waits for them."""

import asyncio
import sys
from typing import Any

import pytest

from raw_server import run
from revision_dates import DATES
from toolpost import Client, Stdio
from toolpost.errors import ConnectFailed, RemoteProtocolError

LOST = {"message over the limit": 1}


# --------------------------------------------------------------------- over real pipes

SERVER = """
import json, sys

def say(number, result, last=False):
    front, back = {"jsonrpc": "2.0", "id": number}, {"result": result}
    return json.dumps(back | front if last else front | back) + "\\n"

for line in sys.stdin:
    asked = json.loads(line)
    number, method = asked.get("id"), asked["method"]
    if number is None:
        continue
    if method == "tools/call":
        given = asked["params"]["arguments"]
        text = {"content": [{"type": "text", "text": "x" * given["size"]}], "resultType": "complete"}
        out = say(number, text, given.get("last")) + given.get("then", "") + "\\n"
    else:
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "long", "version": "1"}}
        about |= {"protocolVersion": sys.argv[1], "supportedVersions": [sys.argv[1]]}
        about |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        about["instructions"] = "x" * int(sys.argv[2])
        out = say(number, about)
    sys.stdout.write(out)
    sys.stdout.flush()
"""


def long_server(date: str, *, instructions: int = 0, **options: Any) -> Client:
    """A client of a server that sends as much as requested."""
    stdio = Stdio(sys.executable, ["-c", SERVER, date, str(instructions)], **options)
    return Client(stdio, revision=date)


@pytest.mark.parametrize("date", [DATES[0], *DATES[-2:]])
@pytest.mark.parametrize("last", [False, True])
def test_an_oversized_response_fails_only_its_call(date, last):
    async def main() -> None:
        async with long_server(date, max_line=100_000) as client:
            long = client.call_tool("say", {"size": 1_000_000, "last": last})
            short = client.call_tool("say", {"size": 50_000})
            first, second = await asyncio.gather(long, short, return_exceptions=True)
            assert isinstance(first, RemoteProtocolError)
            assert "limit: 100000" in str(first)
            assert not isinstance(second, BaseException)
            assert len(second.text) == 50_000
            assert client.stats.discarded == LOST
            assert client.pending == {}

    run(main())


def test_an_answer_as_long_as_a_large_picture_is_read_as_it_is():
    async def main() -> None:
        async with long_server(DATES[-1], max_line=64 * 1024 * 1024) as client:
            result = await client.call_tool("say", {"size": 28_000_000})  # 20 MB in base64
            assert len(result.text) == 28_000_000
            assert client.stats.discarded == {}

    run(main())


def test_a_dropped_message_is_reported_in_order():
    # Both arrive together: the answer must be taken before the only request in flight is looked for.
    async def main() -> None:
        async with long_server(DATES[-1], max_line=2000) as client:
            result = await client.call_tool("say", {"size": 10, "then": "x" * 3000})
            assert len(result.text) == 10
            await client.call_tool("say", {"size": 10})
            assert client.stats.discarded == LOST

    run(main())


@pytest.mark.parametrize("date", DATES[-2:])
def test_an_oversized_handshake_is_reported_at_once(date):
    async def main() -> None:
        client = long_server(date, instructions=5000, max_line=2000)
        with pytest.raises(ConnectFailed, match="limit: 2000"):
            await client.connect()

    run(main())
