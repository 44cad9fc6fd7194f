"""The explicit form of a server, with everything overridden."""

import asyncio

import pytest

from toolpost import Client, Context, Handler, ResourceContents
from toolpost.protocol.methods import DATES
from toolpost.types import (
    CompleteParams,
    CompleteResult,
    Completion,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptMessage,
    PromptReference,
    Resource,
    ResourceTemplate,
    TextContent,
)


class Whole(Handler):
    """Everything but tools."""

    def __init__(self) -> None:
        super().__init__("whole")
        self.watched: list[str] = []

    async def list_resources(self, cursor: str | None) -> list[Resource]:
        return [Resource("a://b", name="b")]

    async def list_resource_templates(self, cursor: str | None) -> list[ResourceTemplate]:
        return [ResourceTemplate("a://{x}", name="x")]

    async def read_resource(self, uri: str, ctx: Context) -> list[ResourceContents]:
        return [ResourceContents(uri, text="read")]

    async def subscribe(self, uri: str, ctx: Context) -> None:
        self.watched.append(f"+{uri}")

    async def unsubscribe(self, uri: str, ctx: Context) -> None:
        self.watched.append(f"-{uri}")

    async def list_prompts(self, cursor: str | None) -> ListPromptsResult:
        page = int(cursor or 0)
        return ListPromptsResult(
            prompts=[Prompt(f"p{page}")], next_cursor=None if page == 2 else str(page + 1)
        )

    async def get_prompt(self, name: str, arguments: dict[str, str], ctx: Context) -> GetPromptResult:
        return GetPromptResult(messages=[PromptMessage("user", TextContent(f"{name} {arguments}"))])

    async def complete(self, params: CompleteParams, ctx: Context) -> CompleteResult:
        return CompleteResult(completion=Completion(values=[params.argument.value * 2]))


@pytest.mark.parametrize("revision", DATES)
def test_what_is_overridden_is_served(revision):
    async def main() -> None:
        server = Whole()
        async with Client(server, revision=revision) as client:
            assert [item.uri for item in await client.list_resources()] == ["a://b"]
            assert [item.name for item in await client.list_resource_templates()] == ["x"]
            assert (await client.read_resource("a://b")).contents[0].text == "read"
            assert [item.name for item in await client.list_prompts()] == ["p0", "p1", "p2"]
            got = await client.get_prompt("p1", {"a": "b"})
            assert got.messages[0].content == TextContent("p1 {'a': 'b'}")
            assert (await client.complete(PromptReference("p1"), "x", "ab")).values == ["abab"]
            await client.subscribe("a://b")
            await client.unsubscribe("a://b")
        assert server.watched == ["+a://b", "-a://b"]
        assert server.capabilities().tools is None

    asyncio.run(main())
