"""Lone surrogates, as JavaScript writes them in a string that it cut: read as U+FFFD, in both directions."""

import asyncio

from hosted import OLD, hosted, modern, run
from toolpost import Client, Server
from toolpost.testing import ScriptedChannel

TOOLS = rb"""{"tools":[
    {"name":"cut","description":"a cat \ud83d","inputSchema":{"type":"object"}},
    {"name":"turned","description":"\ude00\ud83d","inputSchema":{"type":"object"}},
    {"name":"whole","description":"\ud83d\ude00","inputSchema":{"type":"object"}},
    {"name":"escaped","description":"\\ud83d","inputSchema":{"type":"object"}}
]}"""
HELLO = b'{"protocolVersion":"%b","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'


def test_a_list_with_half_an_emoji_is_read():
    async def serve(channel: ScriptedChannel) -> None:
        for result in (HELLO % OLD.encode(), TOOLS.replace(b"\n", b"")):
            while "id" not in (asked := await channel.next_sent()):
                pass
            channel.feed(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (asked["id"], result))

    async def main() -> None:
        channel = ScriptedChannel()
        serving = asyncio.ensure_future(serve(channel))
        async with Client(channel, revision=OLD) as client:
            tools = {tool.name: tool.description for tool in await client.list_tools()}
            assert tools == {
                "cut": "a cat \ufffd",
                "turned": "\ufffd\ufffd",
                "whole": "\U0001f600",
                "escaped": r"\ud83d",
            }
            await serving

    run(main)


def test_an_argument_with_half_an_emoji_is_read():
    server = Server("echo")

    @server.tool
    def echo(text: str) -> str:
        return text

    async def main() -> None:
        async with hosted(server) as site:
            headers, body = modern("tools/call", {"name": "echo", "arguments": {"text": "cut \ud83d"}})
            assert rb"\ud83d" in body
            answer = await site.post(headers, body)
            assert answer.json["result"]["content"][0]["text"] == "cut \ufffd"

    run(main)


def test_names_that_become_the_same_are_refused():
    async def main() -> None:
        async with hosted(Server("echo")) as site:
            headers, body = modern("ping")
            answer = await site.post(headers, body[:-1] + rb',"\ud83d":1,"\ud83e":2}')
            assert answer.status == 400
            assert "appears twice" in answer.json["error"]["message"]

    run(main)
