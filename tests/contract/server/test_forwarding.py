"""A gateway built on public names only: it forwards requests and results undecoded."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from toolpost import Change, Client, Context, ForwardedResult, Handler, ProxyEntry, Server
from toolpost.errors import LocalProtocolError, MethodNotFound
from toolpost.types import (
    CallToolParams,
    CallToolResult,
    ProgressParams,
    ResourceLink,
    ServerCapabilities,
    TextContent,
    Tool,
)

REVISIONS = ("2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28")


class Gateway(Handler):
    """Forwards everything to one server."""

    def __init__(self, upstream: Client) -> None:
        super().__init__("gateway")
        self.upstream = upstream

    def capabilities(self) -> ServerCapabilities:
        return self.upstream.capabilities

    async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
        async def report(made: ProgressParams) -> None:
            await ctx.progress(made.progress, made.total, made.message)

        return await self.upstream.forward(method, params, progress=report)


def make_shop() -> Server:
    server = Server("shop")

    @server.tool
    async def price(item: str, ctx: Context) -> dict[str, Any]:
        await ctx.progress(1, 2, "looking")
        return {"item": item, "price": 2.50}

    @server.tool
    async def page() -> CallToolResult:
        return CallToolResult(content=[TextContent("see"), ResourceLink("https://example.com/a", "a")])

    @server.resource("shop://hours")
    def hours() -> str:
        return "9 to 5"

    @server.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    return server


@pytest.mark.parametrize("above", REVISIONS)
@pytest.mark.parametrize("below", REVISIONS)
def test_a_gateway_forwards_between_all_revisions(above: str, below: str):
    async def main() -> None:
        seen: list[tuple[float, float | None, str | None]] = []

        async def hear(made: ProgressParams) -> None:
            seen.append((made.progress, made.total, made.message))

        async with (
            Client(make_shop(), revision=above) as upstream,
            Client(Gateway(upstream), revision=below) as client,
        ):
            assert [tool.name for tool in await client.list_tools()] == ["price", "page"]
            result = await client.call_tool("price", {"item": "pen"}, progress=hear)
            assert json.loads(result.text) == {"item": "pen", "price": 2.5}
            assert seen == [(1, 2, "looking")]
            kinds = [type(block) for block in (await client.call_tool("page")).content]
            assert kinds == [TextContent, TextContent if "2024-11-05" in (above, below) else ResourceLink]
            assert (await client.read_resource("shop://hours")).contents[0].text == "9 to 5"
            prompt = await client.get_prompt("greet", {"name": "Ann"})
            assert prompt.messages[0].content == TextContent("Hello Ann")
            with pytest.raises(MethodNotFound):
                await client.request("shop/unknown", {"a": 1})

    asyncio.run(main())


def test_a_forwarded_result_is_passed_on_as_it_came():
    """Numbers keep their digits, members that no struct knows stay, and so does their order."""
    raw = b'{"content":[{"type":"text","text":"x","z":1.50}],"later":{"b":1e2,"a":0.10}}'

    class Upstream(Handler):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
            raise AssertionError("it is forwarded")

        async def forward_request(self, method: str, params: bytes, ctx: Context) -> ForwardedResult:
            return ForwardedResult(raw, "complete", "2025-11-25")

    async def main() -> None:
        class Odd(Upstream):
            call_tool = Handler.call_tool

        async with Client(Odd("odd", declares=["tools"]), revision="2025-11-25") as client:
            assert (await client.forward("tools/call", b'{"name":"a"}')).raw == raw
        async with Client(Odd("odd", declares=["tools"]), revision="2026-07-28") as client:
            got = await client.forward("tools/call", b'{"name":"a"}')
            assert got.raw.startswith(raw[:-1])
            assert json.loads(got.raw)["resultType"] == "complete"
            assert got.result_type == "complete"

    asyncio.run(main())


def test_parameters_to_forward_are_an_object():
    async def main() -> None:
        async with Client(make_shop()) as client:
            with pytest.raises(LocalProtocolError, match="not a JSON object"):
                await client.forward("tools/list", b"[1]")

    asyncio.run(main())


def make_entries(upstream: Client, *names: str) -> list[ProxyEntry]:
    async def serve(ctx: Context, params: CallToolParams) -> ForwardedResult:
        called = json.loads(ctx.request.params)
        return await upstream.forward("tools/call", json.dumps({**called, "name": "price"}).encode())

    return [ProxyEntry(name, Tool(name, {"type": "object"}), serve) for name in names]


def test_entries_from_elsewhere_are_replaced_as_one_change():
    async def main() -> None:
        gateway = Server("gateway")
        gateway.tool(name="own")(lambda: "own")
        async with (
            Client(make_shop()) as upstream,
            Client(gateway) as client,
            client.listen(tools=True) as stream,
            aclosing(cast("AsyncGenerator[Change]", aiter(stream))) as changes,
        ):
            gateway.tools.replace("shop", make_entries(upstream, "one", "two", "three"))
            await anext(changes)
            assert [tool.name for tool in await client.list_tools()] == ["own", "one", "two", "three"]
            result = await client.call_tool("two", {"item": "ink"})
            assert result.data == {"item": "ink", "price": 2.5}
            gateway.tools.replace("shop", make_entries(upstream, "one", "two", "three"))  # nothing new
            gateway.tools.replace("shop", make_entries(upstream, "three", "four"))
            await anext(changes)
            assert [tool.name for tool in await client.list_tools()] == ["own", "three", "four"]
            with pytest.raises(ValueError, match="'own' is already registered"):
                gateway.tools.replace("shop", make_entries(upstream, "five", "own"))
            assert [tool.name for tool in await client.list_tools()] == ["own", "three", "four"]
            assert client.stats.notifications == 3  # the acknowledgement, and one for each change

    asyncio.run(main())


def test_an_entry_is_listed_with_the_bytes_that_came():
    async def main() -> None:
        gateway = Server("gateway")
        item = b'{"name":"raw","inputSchema":{"type":"object"},"later":1.50}'

        async def serve(ctx: Context, params: Any) -> Any:
            raise AssertionError("never called")

        gateway.tools.replace("x", [ProxyEntry("raw", item, serve)])
        for revision in REVISIONS:
            async with Client(gateway, revision=revision) as client:
                assert item in (await client.forward("tools/list")).raw

    asyncio.run(main())


def test_resources_templates_and_prompts_come_from_elsewhere_too():
    async def main() -> None:
        gateway = Server("gateway")
        async with Client(make_shop()) as upstream:

            def forward(method: str, **params: Any) -> Any:
                async def serve(ctx: Context, given: Any) -> ForwardedResult:
                    return await upstream.forward(method, json.dumps(params).encode())

                return serve

            hours = forward("resources/read", uri="shop://hours")
            greet = forward("prompts/get", name="greet", arguments={"name": "Bo"})
            gateway.resources.replace(
                "shop", [ProxyEntry("shop://hours", b'{"uri":"shop://hours","name":"h"}', hours)]
            )
            gateway.templates.replace(
                "shop", [ProxyEntry("day://{d}", b'{"uriTemplate":"day://{d}","name":"d"}', hours)]
            )
            gateway.prompts.replace("shop", [ProxyEntry("hi", b'{"name":"hi"}', greet)])
            async with Client(gateway) as client:
                assert (await client.read_resource("shop://hours")).contents[0].text == "9 to 5"
                assert (await client.read_resource("day://monday")).contents[0].text == "9 to 5"
                assert (await client.get_prompt("hi")).messages[0].content == TextContent("Hello Bo")
                assert [each.name for each in await client.list_resource_templates()] == ["d"]

    asyncio.run(main())
