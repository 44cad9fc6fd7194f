"""`Handler` with all of its methods overridden."""

import asyncio
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, InputRequired, Server
from toolpost.errors import MethodNotFound
from toolpost.types import (
    CompleteParams,
    CompleteResult,
    Completion,
    GetPromptResult,
    Icon,
    ListPromptsResult,
    Prompt,
    PromptMessage,
    PromptReference,
    Resource,
    ResourceContents,
    ResourceTemplate,
    TextContent,
    Tool,
)


class Whole(Handler):
    """Everything but tools."""

    def __init__(self) -> None:
        super().__init__("whole")
        self.watched: list[str] = []
        self.cursors: list[str | None] = []

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
        self.cursors.append(cursor)
        page = int(cursor or 0)
        return ListPromptsResult(
            prompts=[Prompt(f"p{page}")], next_cursor=None if page == 2 else str(page + 1)
        )

    async def get_prompt(self, name: str, arguments: dict[str, str], ctx: Context) -> GetPromptResult:
        return GetPromptResult(messages=[PromptMessage("user", TextContent(f"{name} {arguments}"))])

    async def complete(self, params: CompleteParams, ctx: Context) -> CompleteResult:
        return CompleteResult(completion=Completion(values=[params.argument.value * 2]))


@pytest.mark.parametrize("revision", DATES)
def test_overridden_methods_are_served(revision):
    async def main() -> None:
        server = Whole()
        async with Client(server, revision=revision) as client:
            assert [item.uri for item in await client.list_resources()] == ["a://b"]
            assert [item.name for item in await client.list_resource_templates()] == ["x"]
            assert (await client.read_resource("a://b")).contents[0].text == "read"
            assert [item.name for item in await client.list_prompts()] == ["p0", "p1", "p2"]
            await client.request("prompts/list", {"cursor": ""})
            assert server.cursors == [None, "1", "2", None]
            got = await client.get_prompt("p1", {"a": "b"})
            assert got.messages[0].content == TextContent("p1 {'a': 'b'}")
            assert (await client.complete(PromptReference("p1"), "x", "ab")).values == ["abab"]
            await client.subscribe("a://b")
            await client.unsubscribe("a://b")
        assert server.watched == ["+a://b", "-a://b"]
        assert server.capabilities().tools is None

    asyncio.run(main())


class Half(Handler):
    """Lists tools but does not serve them, and calls the base class for its prompts."""

    async def list_tools(self, cursor: str | None) -> list[Tool]:
        return [Tool("t", {"type": "object"})]

    async def get_prompt(
        self, name: str, arguments: dict[str, str], ctx: Context
    ) -> GetPromptResult | InputRequired:
        return await super().get_prompt(name, arguments, ctx)


@pytest.mark.requirement("ERR-10")
@pytest.mark.parametrize("revision", DATES)
def test_other_methods_are_not_found(revision):
    async def main() -> None:
        async with Client(Half("half"), revision=revision) as client:
            with pytest.raises(MethodNotFound, match="half has no call_tool"):
                await client.call_tool("t")
            with pytest.raises(MethodNotFound, match="half has no get_prompt"):
                await client.get_prompt("p")
            assert await client.list_prompts() == []  # as clients understand this error for a list

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("list_tools", 1),
        ("call_tool", 3),
        ("list_resources", 1),
        ("list_resource_templates", 1),
        ("read_resource", 2),
        ("subscribe", 2),
        ("list_prompts", 1),
        ("get_prompt", 3),
        ("complete", 2),
    ],
)
def test_a_default_says_that_it_is_one(name, given):
    async def main() -> None:
        await getattr(Handler("h"), name)(*[None] * given)

    with pytest.raises(MethodNotFound, match=f"h has no {name}"):
        asyncio.run(main())


@pytest.mark.parametrize("kind", [Handler, Server])
def test_an_option_that_there_is_not_is_refused(kind):
    with pytest.raises(TypeError, match="colour"):
        kind("s", colour="red")


def test_a_handler_that_serves_no_list_of_templates_has_an_empty_one():
    class Fixed(Handler):
        async def list_resources(self, cursor: str | None) -> list[Resource]:
            return []

    async def main() -> None:
        async with Client(Fixed("f")) as client:
            assert await client.list_resource_templates() == []

    asyncio.run(main())


@pytest.mark.parametrize("raw", [None, {}, {"a": 1}])
def test_arguments_are_a_dict(raw):
    class Echo(Half):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
            raise MethodNotFound(repr(arguments))

    async def main() -> None:
        async with Client(Echo("e"), revision=DATES[-2]) as client:
            with pytest.raises(MethodNotFound) as caught:
                await client.request("tools/call", {"name": "t", "arguments": raw})
            assert str(raw or {}) in str(caught.value)

    asyncio.run(main())


@pytest.mark.requirement("TOOL-12")
def test_arguments_that_are_not_an_object_are_rejected():
    class Echo(Half):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
            raise AssertionError

    async def main() -> None:
        async with Client(Echo("e"), revision=DATES[-2]) as client:
            with pytest.raises(Exception, match="must be an object"):
                await client.request("tools/call", {"name": "t", "arguments": [1]})

    asyncio.run(main())


@pytest.mark.requirement("ICON-4")
def test_a_server_shows_no_icon_that_clients_refuse():
    with pytest.raises(ValueError, match="javascript"):
        Handler("h", icons=[Icon("javascript:alert(1)")])
