"""Attacks that once succeeded: memory, terminals, reconnects, odd numbers, drives."""

import asyncio
from pathlib import PureWindowsPath
from typing import Any

import pytest

import byte_server
from attacked_server import Victim, attacked
from byte_server import said
from hosted import call, modern
from hosted import run as run_server
from hostile_transports import REVISIONS, child, events, meeting, run
from scripted import Heard, chunk, stream
from toolpost import Client
from toolpost.errors import MCPError, RemoteProtocolError, RequestFailed

GOOD = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"x"}],"resultType":"complete"}}'
PINGS = """
n = 0
while True:
    write(b"".join(b'{"jsonrpc":"2.0","id":"%d","method":"ping"}\n' % k for k in range(n, n + 1000)))
    n += 1000
"""


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_peer_that_pings_and_does_not_read_does_not_fill_the_memory(way):
    async def special(heard: Heard, sent: dict[str, Any]) -> bool:
        if sent.get("params", {}).get("name") == "do":
            await heard.write(stream(end=False))
            for n in range(0, 10**9, 100):
                pings = [b'{"jsonrpc":"2.0","id":"%d","method":"ping"}' % k for k in range(n, n + 100)]
                await heard.write(chunk(events(*pings)))
        if "result" in sent:
            await heard.gone()
            return True
        return False

    async def storm(client: Client) -> None:
        with pytest.raises(MCPError):
            await client.call_tool("do", {"code": PINGS}, timeout=4)
        assert len(asyncio.all_tasks()) < 2500  # at most 1024 requests in flight, with their state

    async def main():
        if way == "http":
            async with meeting("stream session", special) as client:
                await storm(client)
        else:
            target = child(term_wait=0.05, stdin_wait=0.05)
            async with Client(target, revision=REVISIONS["session"]) as client:
                await storm(client)

    run(main, 30)


def test_the_last_stderr_of_a_process_cannot_move_the_cursor():
    words = "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\r\\x00 done"

    async def main():
        async with Client(child(), revision=REVISIONS["session"], timeout=10) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool("do", {"code": f"os.write(2, '{words}'.encode()); os._exit(5)"})
        assert "done" in str(caught.value)
        assert not set(str(caught.value)) & set("\x1b\x07\x9b\r\0")

    run(main)


def test_the_name_of_a_server_cannot_move_the_cursor_or_fill_the_screen(monkeypatch):
    monkeypatch.setitem(byte_server.NAME, "name", "\x1b[2J" + "x" * 100_000)

    async def main():
        async with meeting("body session", timeout=10) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool(
                    "say", said('{"jsonrpc":"2.0","id":@ID@,"error":{"code":1,"message":"m"}}')
                )
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 1000

    run(main)


def test_a_server_that_ends_each_stream_after_a_change_is_polled_slowly():
    async def special(heard: Heard, _: dict[str, Any]) -> bool:
        if _.get("params", {}).get("name") == "silent":
            await heard.gone()
            return True
        if heard.method != "GET":
            return False
        gets.append(heard)
        news = events(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        await heard.write(stream(b"retry: 0\nid: 1\n" + news))
        return True

    gets: list[Heard] = []

    async def main():
        began = asyncio.get_running_loop().time()
        async with meeting("stream session", special) as client:
            with pytest.raises(MCPError):
                await client.call_tool("silent", timeout=1)
        assert len(gets) < 5 + 3 * (asyncio.get_running_loop().time() - began)

    run(main)


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_an_invalid_response_is_reported_on_a_stream_too(era):
    async def main():
        async with meeting(f"stream {era}", timeout=10) as client:
            with pytest.raises((RequestFailed, RemoteProtocolError), match="JSON is malformed"):
                await client.call_tool("say", said(GOOD.replace('"x"', "NaN")))

    run(main)


@pytest.mark.parametrize("number", ["1e999", "9" * 4200])
def test_a_number_out_of_range_is_an_invalid_argument_and_not_a_crash(number, caplog):
    async def main():
        async with attacked() as site:
            headers, body = modern("tools/call", call("mark", text="@"))
            answer = await site.post(headers, body.replace(b'"@"', number.encode()))
            assert "text" in answer.json["result"]["content"][0]["text"]
            assert "failed unexpectedly" not in answer.json["result"]["content"][0]["text"]

    run_server(main)
    assert caplog.records == []


@pytest.mark.parametrize("uri", ["tree://all/C:%5cwindows", "tree://all/C:/windows", "tree://all/C:x"])
def test_a_drive_leads_out_of_a_folder(uri):
    async def main():
        server = Victim()
        async with attacked(server) as site:
            await site.post(*modern("resources/read", {"uri": uri}))
            assert all(PureWindowsPath("D:/all", part).is_relative_to("D:/all") for part in server.found)

    run_server(main)
