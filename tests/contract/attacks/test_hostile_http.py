"""Servers with broken, endless or redirecting HTTP: the call fails in time, and the error says why.

All rows of a table are in flight at once, each on a connection of its own, and a good call goes with them.
Counts how much the server could send before the client stopped reading.
"""

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hostile_transports import meeting, run
from scripted import Heard, answer, chunk
from toolpost import Client
from toolpost.errors import MCPError, RequestFailed, RequestTimeout

LIBRARIES = ["aiohttp", "httpx2"]
GOOD = (
    b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"x"}],"resultType":"complete"}}'
)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BLOCK = 64 * 1024
MOST = 24 * 1024 * 1024
"""The most bytes of an endless response that are read, or buffered by sockets and libraries."""


def packed(times: int = 1) -> bytes:
    """Return 16 MiB of spaces and a valid response, compressed."""
    data = b" " * (16 * 1024 * 1024) + GOOD
    for _ in range(times):
        data = gzip.compress(data)
    return data


GZIP = packed()
DEFLATE = zlib.compress(b" " * (16 * 1024 * 1024))


def coded(name: str, data: bytes) -> bytes:
    return OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n%b" % (name.encode(), len(data), data)


def moved(status: int, to: str) -> bytes:
    return answer(status, kind=None, Location=to)


NONE = "not valid HTTP|not speak HTTP|closed the connection|cut off"
FIXED: dict[str, tuple[bytes, str]] = {
    # no HTTP
    "words": (b"hello, who is there?\r\n\r\n", NONE),
    "an old HTTP": (b"<html>hello</html>", NONE),
    "nothing": (b"", NONE),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Ty", NONE),
    "a status in words": (b"HTTP/1.1 fine OK\r\nContent-Length: 0\r\n\r\n", NONE),
    "a field without a colon": (OK + b"nonsense\r\nContent-Length: 2\r\n\r\n{}", NONE),
    "a field with a zero": (OK + b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}", NONE),
    "a field of a mebibyte": (OK + b"X: " + b"a" * 2**20 + b"\r\nContent-Length: 2\r\n\r\n{}", NONE),
    "50 000 fields": (OK + b"X: a\r\n" * 50_000 + b"Content-Length: 2\r\n\r\n{}", NONE),
    # where the body ends
    "a length below zero": (OK + b"Content-Length: -1\r\n\r\n{}", NONE),
    "a length in words": (OK + b"Content-Length: two\r\n\r\n{}", NONE),
    "two lengths": (OK + b"Content-Length: 2\r\nContent-Length: 99\r\n\r\n{}", NONE),
    "a length beyond all": (OK + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}", NONE),
    "less than was promised": (OK + b"Content-Length: 1000\r\n\r\n" + GOOD, NONE),
    "more than was promised": (
        OK + b"Content-Length: 20\r\n\r\n" + GOOD,
        f"{NONE}|did not answer tools/call with JSON-RPC",
    ),
    "chunks that are none": (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", NONE),
    "a chunk below zero": (OK + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", NONE),
    "a chunk beyond all": (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}", NONE),
    "chunks without an end": (OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(GOOD), NONE),
    "an extension without end": (OK + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"x" * 2**20, NONE),
    # what it is
    "a page": (answer(200, GOOD, "text/html"), "content type 'text/html'"),
    "plain text": (answer(200, GOOD, "text/plain"), "content type 'text/plain'"),
    "a lookalike": (answer(200, GOOD, "application/jsonp"), "application/jsonp"),
    "of no type": (answer(200, GOOD, None), "no content type"),
    "accepted": (answer(202, kind=None), "202 Accepted"),
    "no content": (b"HTTP/1.1 204 X\r\nConnection: close\r\n\r\n", "204 No Content"),
    "reset": (b"HTTP/1.1 205 X\r\nContent-Length: 0\r\n\r\n", "205 Reset Content"),
    "not modified": (b"HTTP/1.1 304 X\r\nConnection: close\r\n\r\n", "304 Not Modified"),
    "a code of its own": (answer(799, kind=None), "799"),
    "an error page with escapes": (
        answer(500, b"\x1b[2J\x1b]0;x\x07no", "text/plain"),
        r"500 Internal Server Error: ",
    ),
    # what is packed
    "a bomb": (coded("gzip", GZIP), "more than|limit|cut off"),
    "a bomb of another make": (coded("deflate", DEFLATE), "more than|limit|cut off"),
    "a bomb in a bomb": (coded("gzip, gzip", packed(2)), "more than|limit|cut off|JSON-RPC|not valid HTTP"),
    "what was never packed": (coded("gzip", GOOD), "cut off|cannot be read"),
    "packed in an unknown way": (coded("rot13", b"\x01\x02"), "JSON-RPC|cut off"),
    # elsewhere
    "to another port": (moved(307, "http://127.0.0.1:9/mcp"), "redirects to another place"),
    "to another host": (moved(308, "http://localhost.example/mcp"), "redirects to another place"),
    "to the same name with a user": (moved(307, "http://user:pass@127.0.0.1/"), "redirects to another place"),
    "without a scheme": (moved(307, "//evil.example/mcp"), "redirects to another place"),
    "to a file": (moved(307, "file:///etc/passwd"), "redirects to another place"),
    "to a script": (moved(307, "javascript:alert(1)"), "redirects to another place|URL is not supported"),
    "nowhere": (answer(307, kind=None), "redirects"),
    "with another verb": (moved(303, "/mcp"), "303 See Other, which drops the message"),
    "in a circle": (moved(307, "/mcp"), "redirects more than 5 times"),
}


def by_name(table: dict[str, Any], play: Callable[[Heard, Any, bytes], Awaitable[None]]) -> Any:
    """Return a handler that plays the row of a table for calls of its tools."""

    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if message.get("method") != "tools/call" or message["params"]["name"] not in table:
            return False
        await play(heard, table[message["params"]["name"]], str(message["id"]).encode())
        return True

    return special


async def _fails(client: Client, name: str, why: str, timeout: float = 10) -> bool:
    with pytest.raises(MCPError) as caught:
        await client.call_tool(name, timeout=timeout)
    text = str(caught.value)
    assert text.isprintable(), text
    assert len(text) < 1000
    assert any(part in text for part in why.split("|")), f"{name}: {caught.value!r}"
    return True


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("era", ["session", "stateless"])
def test_a_response_that_is_none_fails_its_call_alone(library, era):
    async def play(heard: Heard, row: tuple[bytes, str], key: bytes) -> None:
        await heard.write(row[0].replace(b"@ID@", key))
        if b" X\r\nContent-Length" not in row[0]:  # the others may be followed by another request
            heard.close()

    async def main():
        way = f"body {era}"
        async with meeting(way, by_name(FIXED, play), library=library) as client:
            rows = [_fails(client, name, why) for name, (_, why) in FIXED.items()]
            told = await asyncio.gather(*rows, client.call_tool("good", timeout=10), return_exceptions=True)
            assert [each for each in told if isinstance(each, BaseException)] == []
            assert (await client.call_tool("good", timeout=10)).text == "ok"

    run(main)


# --------------------------------------------------------------------- without end


class Endless:
    """A response that continues as long as the client reads it."""

    def __init__(self, head: bytes, block: bytes) -> None:
        self.head = head
        self.block = block
        self.sent = 0

    async def play(self, heard: Heard) -> None:
        await heard.write(self.head)
        while True:
            await heard.write(self.block)
            self.sent += len(self.block)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def endless() -> dict[str, Endless]:
    text = b"x" * BLOCK
    return {
        "a body": Endless(OK + b"\r\n", text),
        "chunks": Endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", chunk(text)),
        "a length that is true": Endless(OK + b"Content-Length: 99999999999\r\n\r\n", text),
        "an event": Endless(STREAM + chunk(b"data: "), chunk(text)),
        "an event of many lines": Endless(STREAM, chunk(b"data: x\n" * 8000)),
        "a name of a field": Endless(STREAM, chunk(text)),
        "an id": Endless(STREAM + chunk(b"id: "), chunk(text)),
        "fields": Endless(OK, b"X-Field: value\r\n" * 1000),
        "one field": Endless(OK + b"X-Field: ", text),
        "a refusal": Endless(b"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\n\r\n", text),
        "a status line": Endless(b"HTTP/1.1 200 ", text),
    }


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("era", ["session", "stateless"])
def test_a_response_without_end_is_not_read_to_its_end(library, era):
    async def main():
        table = endless()
        special = by_name(table, lambda heard, row, _: row.play(heard))
        async with meeting(f"body {era}", special, library=library) as client:
            for name in table:
                with pytest.raises(RequestFailed):
                    await client.call_tool(name, timeout=10)
            assert {name: row.sent for name, row in table.items() if row.sent > MOST} == {}
            assert (await client.call_tool("good", timeout=10)).text == "ok"

    run(main, 40)


def for_ever() -> dict[str, Endless]:
    return {
        "comments": Endless(STREAM, chunk(b": still here\n\n" * 10)),
        "events of another kind": Endless(STREAM, chunk(b"event: x\ndata: y\n\n" * 10)),
        "empty events": Endless(STREAM, chunk(b"id: 1\ndata:\n\n" * 10)),
        "wishes to wait": Endless(STREAM, chunk(b"retry: 1\n\n" * 10)),
        "continue": Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        "hints": Endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    }


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", list(for_ever()))
def test_an_endless_response_ends_with_the_timeout(library, name):
    async def main():
        table = for_ever()
        special = by_name(table, lambda heard, row, _: row.play(heard))
        async with meeting("body stateless", special, library=library) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool(name, timeout=0.3)
            assert isinstance(caught.value, RequestTimeout | RequestFailed)
            assert (await client.call_tool("good", timeout=10)).text == "ok"

    run(main)


@pytest.mark.parametrize("way", ["body session", "body stateless", "sse session"])
def test_a_server_that_takes_the_call_and_never_speaks(way):
    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if message.get("params", {}).get("name") != "silent":
            return False
        await heard.gone()
        return True

    async def main():
        async with meeting(way, special) as client:
            with pytest.raises(RequestTimeout, match="no response to tools/call within"):
                await client.call_tool("silent", timeout=0.1)
            assert (await client.call_tool("good", timeout=10)).text == "ok"

    run(main)
