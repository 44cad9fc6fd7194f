"""Smuggled, contradictory and endless requests. `test_advisories` has the sources."""

import asyncio
from typing import Any

import pytest

from attacked_server import Victim, attacked, calls
from hosted import call, modern, run
from raw_http import wired

# --------------------------------------------------------------------- smuggling

INNER = modern("tools/call", call("mark", text="smuggled"))
HIDDEN = (
    "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    + "".join(f"{name}: {value}\r\n" for name, value in INNER[0].items())
    + f"Content-Length: {len(INNER[1])}\r\n\r\n"
).encode() + INNER[1]
OUTER = modern("tools/list")
HEAD = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n" + "".join(
    f"{name}: {value}\r\n" for name, value in OUTER[0].items()
)
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(OUTER[1]), OUTER[1])
LONG = len(CHUNKS) + len(HIDDEN)

SMUGGLED = {
    "a length and chunks": (f"Content-Length: {LONG}\r\nTransfer-Encoding: chunked\r\n", CHUNKS),
    "chunks and a length": (f"Transfer-Encoding: chunked\r\nContent-Length: {LONG}\r\n", CHUNKS),
    "chunks behind a space": (f"Content-Length: {LONG}\r\nTransfer-Encoding : chunked\r\n", CHUNKS),
    "chunks behind a tab": (f"Content-Length: {LONG}\r\nTransfer-Encoding:\tchunked\r\n", CHUNKS),
    "chunks of another name": (f"Content-Length: {LONG}\r\nTransfer-Encoding: xchunked\r\n", CHUNKS),
    "chunks twice": (
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        CHUNKS,
    ),
    "chunks, then not": (f"Transfer-Encoding: chunked, identity\r\nContent-Length: {LONG}\r\n", CHUNKS),
    "a folded line": (f"Content-Length: {LONG}\r\nTransfer-Encoding:\r\n chunked\r\n", CHUNKS),
    "two lengths": (f"Content-Length: {LONG}\r\nContent-Length: {len(OUTER[1])}\r\n", OUTER[1]),
    "a list of lengths": (f"Content-Length: {len(OUTER[1])}, {LONG}\r\n", OUTER[1]),
    "a length with a sign": (f"Content-Length: +{len(OUTER[1])}\r\n", OUTER[1]),
    "a length in hex": (f"Content-Length: {len(OUTER[1]):#x}\r\n", OUTER[1]),
    "a length below zero": ("Content-Length: -1\r\n", OUTER[1]),
    "a chunk with a sign": (
        "Transfer-Encoding: chunked\r\n",
        CHUNKS.replace(b"\r\n", b" \r\n", 1).replace(b"", b"+", 1),
    ),
    "a chunk without end": ("Transfer-Encoding: chunked\r\n", b"fffffffffffffffff\r\n" + OUTER[1]),
    "a field with a zero": (f"X: a\0b\r\nContent-Length: {len(OUTER[1])}\r\n", OUTER[1]),
    "a field behind a bare return": (f"X: a\rContent-Length: 0\r\nContent-Length: {LONG}\r\n", OUTER[1]),
}


@pytest.mark.parametrize("name", list(SMUGGLED))
def test_no_second_request_is_hidden_in_a_first(name):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            fields, body = SMUGGLED[name]
            async with wired(site.port) as wire:
                await wire.send(f"{HEAD}{fields}\r\n".encode("latin-1") + body + HIDDEN)
                await wire.half_close()
                said = await _all(wire)
            # No parser may see one request here and two there: it is rejected, or read as one.
            assert server.marks == [], said
            assert said.count(b"HTTP/1.1 ") <= 1, said
            assert b"HTTP/1.1 200" not in said, said
            assert await calls(site)

    run(main)


async def _all(wire: Any) -> bytes:
    try:
        return await wire.reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("name", ["Mcp-Method", "Mcp-Name", "MCP-Protocol-Version"])
@pytest.mark.parametrize(
    "value", ["=?base64?bWFyaw0KWDogMQ==?=", "mark\x00", "mark\x0b", "mark\x7f", "\xffmark", "mark;"]
)
def test_a_header_that_says_something_else_reaches_no_tool(name, value):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            headers, body = modern("tools/call", call("mark", text="x"))
            answer = await site.post({**headers, name: value}, body)
            assert answer.status == 400
            assert b"X: 1\r\n" not in answer.body
            twice = [*headers.items(), (name, headers[name])]
            assert (await site.post(twice, body)).status == 400
            assert server.marks == []

    run(main)


# --------------------------------------------------------------------- slow ones

SLOW = 200


@pytest.mark.parametrize("half", ["nothing", "head", "body"])
def test_many_slow_clients_do_not_delay_others(half):
    headers, body = modern("tools/call", call("mark", text="slow"))
    head = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    begun = {
        "nothing": b"",
        "head": head.encode(),
        "body": f"{head}Content-Length: 999\r\n\r\n".encode() + body[:20],
    }

    async def main():
        server = Victim()
        async with attacked(server) as site:
            wires = [await site.wire() for _ in range(SLOW)]
            for wire in wires:
                await wire.send(begun[half])
            assert all(await asyncio.gather(*(calls(site) for _ in range(20))))
            assert "slow" not in server.marks

    run(main)
