"""Proxied entries: mistakes are rejected immediately, and change nothing."""

import asyncio
from typing import Any

import pytest

from toolpost import Client, Context, ForwardedResult, Handler, ProxyEntry, Server
from toolpost.types import PromptReference, Tool


async def serve(ctx: Context, params: Any) -> Any:
    raise AssertionError("never called")


def make_entry(name: str, description: str | None = None) -> ProxyEntry:
    return ProxyEntry(name, Tool(name, {"type": "object"}, description=description), serve)


def make_gateway() -> Server:
    gateway = Server("gateway")
    gateway.tool(name="own")(lambda: "own")
    return gateway


async def list_names(server: Server) -> list[str]:
    async with Client(server) as client:
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.parametrize(
    ("owner", "entries", "why"),
    [
        (None, [make_entry("one")], "an owner is required"),
        ("shop", [make_entry("one"), make_entry("one", "again")], "'shop' has two tools named 'one'"),
    ],
)
def test_a_replacement_that_cannot_be_meant_changes_nothing(
    owner: object, entries: list[ProxyEntry], why: str
):
    gateway = make_gateway()
    with pytest.raises(ValueError, match=why):
        gateway.tools.replace(owner, entries)
    assert asyncio.run(list_names(gateway)) == ["own"]


@pytest.mark.parametrize("item", [b'{"name":"one"', b"[1]", b"", b'{"name":"one"}}'])
def test_bytes_that_would_make_a_list_invalid_are_refused(item: bytes):
    with pytest.raises(ValueError, match="not a JSON object"):
        ProxyEntry("one", item, serve)


def test_entries_that_a_selection_replaces_are_those_of_the_whole_server():
    async def main() -> None:
        gateway = make_gateway()
        part = gateway.select(lambda entry: entry.name != "own")
        assert await list_names(gateway) == ["own"]
        part.tools.replace("shop", [make_entry("one")])
        assert await list_names(gateway) == ["own", "one"]
        assert await list_names(part) == ["one"]

    asyncio.run(main())


def test_a_function_reads_a_resource_from_elsewhere():
    async def read(ctx: Context, params: Any) -> ForwardedResult:
        raw = b'{"contents":[{"uri":"shop://hours","text":"9 to 5"}]}'
        return ForwardedResult(raw, "complete", "2025-11-25")

    async def main() -> None:
        gateway = Server("gateway")
        item = b'{"uri":"shop://hours","name":"hours"}'
        gateway.resources.replace("shop", [ProxyEntry("shop://hours", item, read)])

        @gateway.tool
        async def hours(ctx: Context) -> str:
            return (await ctx.read_resource("shop://hours"))[0].text or ""

        async with Client(gateway) as client:
            assert (await client.call_tool("hours")).text == "9 to 5"

    asyncio.run(main())


def test_a_prompt_from_elsewhere_has_no_completions():
    async def main() -> None:
        gateway = Server("gateway")
        gateway.prompts.replace("shop", [ProxyEntry("hi", b'{"name":"hi"}', serve)])

        @gateway.prompt
        def own(name: str) -> str:
            return name

        own.complete("name")(lambda value: ["Ann"])
        async with Client(gateway) as client:
            assert (await client.complete(PromptReference("hi"), "name", "A")).values == []

    asyncio.run(main())


def test_a_forwarded_result_whose_meta_is_null_has_none():
    class Odd(Handler):
        async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
            return ForwardedResult(b'{"content":[],"_meta":null}', "complete", "2025-11-25")

    async def main() -> None:
        for revision in ("2025-11-25", "2026-07-28"):
            async with Client(Odd("odd", declares=["tools"]), revision=revision) as client:
                assert (await client.call_tool("any")).content == []

    asyncio.run(main())


def test_an_entry_can_be_disabled_and_enabled_before_it_is_registered():
    async def main() -> None:
        gateway, one, two = make_gateway(), make_entry("one"), make_entry("two")
        one.remove()  # from nowhere
        one.disable()
        two.disable()
        two.enable()
        gateway.tools.replace("shop", [one, two])
        assert await list_names(gateway) == ["own", "two"]
        one.enable()
        assert await list_names(gateway) == ["own", "one", "two"]

    asyncio.run(main())
