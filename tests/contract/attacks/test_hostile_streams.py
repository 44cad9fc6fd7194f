"""Servers that misuse sessions and streams: invalid ids, delays, and endpoints."""

import asyncio
from typing import Any

import pytest

from byte_server import said
from hostile_transports import REVISIONS, SESSION, meeting, run, serve
from scripted import Heard, answer, chunk, event, scripted, stream
from toolpost import Client, Http
from toolpost.errors import MCPError

GOOD = (
    b'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"x"}],"resultType":"complete"}}'
)

# --------------------------------------------------------------------- sessions and streams


@pytest.mark.parametrize("retry", ["0", "1", "-1", "00", "0.5", "1e9"])
def test_a_server_that_ends_each_stream_at_once_is_not_asked_all_the_time(retry):
    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if heard.method == "GET" or message.get("params", {}).get("name") == "polled":
            gets.append(heard.method)
            await heard.write(stream(f"retry: {retry}\nid: 1\ndata:\n\n".encode()))
            return True
        return False

    gets: list[str] = []

    async def main():
        began = asyncio.get_running_loop().time()
        async with meeting("stream session", special) as client:
            with pytest.raises(MCPError):
                await client.call_tool("polled", timeout=0.5)
            assert (await client.call_tool("good", timeout=10)).text == "ok"
        # The stream of the session and that of the call, each about ten times a second after a quicker start.
        assert len(gets) < 30 + 30 * (asyncio.get_running_loop().time() - began)

    run(main)


@pytest.mark.parametrize("retry", ["9" * 18, "9" * 5000, "9999999999999"])
def test_an_extreme_sse_retry_delays_no_other_request(retry):
    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if heard.method == "GET" or message.get("params", {}).get("name") == "polled":
            await heard.write(stream(f"retry: {retry}\nid: 1\ndata:\n\n".encode()))
            return True
        return False

    async def main():
        async with meeting("stream session", special) as client:
            with pytest.raises(MCPError):
                await client.call_tool("polled", timeout=0.2)
            assert (await client.call_tool("good", timeout=10)).text == "ok"

    run(main)


@pytest.mark.parametrize("name", ["a b", "caf\xe9", "a\x7fb", "a\tb", "x" * 5000, ""])
def test_a_session_with_a_name_that_no_header_can_carry_is_not_opened(name):
    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if message.get("method") != "initialize":
            return False
        body = b'{"jsonrpc":"2.0","id":%d,"result":{}}' % message["id"]
        await heard.write(
            answer(200, body).replace(
                b"\r\n\r\n", b"\r\nMcp-Session-Id: %b\r\n\r\n" % name.encode("latin-1"), 1
            )
        )
        return True

    async def main():
        async with scripted(serve("body session", special)) as server:
            with pytest.raises(MCPError):
                await Client(Http(server.url), revision=REVISIONS["session"], timeout=5).connect()
            assert all("mcp-session-id" not in heard.headers for heard in server.heard)

    run(main)


def test_a_session_is_named_once_for_all():
    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if message.get("params", {}).get("name") != "renamed":
            return False
        body = GOOD.replace(b"@ID@", str(message["id"]).encode())
        await heard.write(answer(200, body, Mcp_Session_Id="session-of-somebody-else", Set_Cookie="a=b"))
        return True

    async def main():
        async with scripted(serve("body session", special)) as server:
            async with Client(Http(server.url), revision=REVISIONS["session"], timeout=10) as client:
                assert (await client.call_tool("renamed")).text == "x"
                assert (await client.call_tool("good")).text == "ok"
            named = {heard.headers.get("mcp-session-id") for heard in server.heard}
            assert named == {None, SESSION}
            assert all("cookie" not in heard.headers for heard in server.heard)

    run(main)


# --------------------------------------------------------------------- HTTP+SSE


@pytest.mark.parametrize(
    "place",
    [
        "http://evil.example/",
        "//evil.example/",
        "file:///etc/passwd",
        "javascript:1",
        "http://127.0.0.1:9/",
        "x" * 9000,
    ],
    ids=["host", "no scheme", "file", "script", "port", "long"],
)
def test_messages_are_posted_nowhere_else(place):
    async def script(heard: Heard) -> None:
        await heard.write(stream(event(place.encode(), event="endpoint"), end=False))
        await heard.gone()

    async def main():
        async with scripted(script) as server:
            with pytest.raises(MCPError):
                await Client(Http(server.url, sse=True), connect_timeout=0.5).connect()
            assert [heard.method for heard in server.heard if heard.method != "GET"] == []

    run(main)


def test_a_second_place_to_post_to_is_not_used():
    again = event(b"http://evil.example/", event="endpoint") + event(b"/other", event="endpoint")

    async def special(heard: Heard, message: dict[str, Any]) -> bool:
        if heard.method == "GET":
            streams.append(heard)
        elif message.get("method") == "tools/call":
            await streams[0].write(chunk(again))
        return False

    streams: list[Heard] = []

    async def main():
        async with scripted(serve("sse session", special)) as server:
            address = Http(server.url, sse=True)
            async with Client(address, revision=REVISIONS["session"], timeout=10) as client:
                assert (await client.call_tool("good")).text == "ok"
                assert (await client.call_tool("say", said(GOOD))).text == "x"
            assert {heard.path for heard in server.heard if heard.method == "POST"} == {"/post"}

    run(main)
