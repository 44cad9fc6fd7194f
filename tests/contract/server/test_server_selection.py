"""Selections of a server's entries: they follow changes, share everything else, and change nothing."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from revision_dates import DATES
from toolpost import Client, Context, Handler, Server
from toolpost.errors import CapabilityNotDeclared, InvalidParams, ResourceNotFound
from toolpost.types import PromptReference


async def soon(condition: Any) -> None:
    """Return as soon as the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)


def whole() -> Server:
    """A server with one entry for all and one for few, of each kind."""
    server = Server("whole", instructions="Be kind.", page_size=2)
    for who in ("all", "few"):
        server.tool(name=f"{who}_tool")(lambda who=who: who)
        server.resource(f"{who}://fixed", name=f"{who}_fixed")(lambda who=who: who)

        @server.resource(f"{who}://rows/{{n}}", name=f"{who}_rows")
        def row(n: int) -> str:
            return str(n)

        @server.prompt(name=f"{who}_prompt")
        def prompt(word: str) -> str:
            return word

        @prompt.complete("word")
        def complete(typed: str) -> list[str]:
            return [typed + "!"]

    return server


def for_all(handle: Any) -> bool:
    return handle.name.startswith(("all", "later_all"))


@pytest.mark.parametrize("revision", DATES)
def test_only_selected_entries_are_listed_and_served(revision):
    async def main() -> None:
        server = whole()
        async with (
            Client(server.select(for_all), revision=revision) as part,
            Client(server, revision=revision) as client,
        ):
            assert part.server_info == client.server_info
            assert part.instructions == "Be kind."
            assert [tool.name for tool in await part.list_tools()] == ["all_tool"]
            assert [tool.name for tool in await client.list_tools()] == ["all_tool", "few_tool"]
            assert [resource.uri for resource in await part.list_resources()] == ["all://fixed"]
            assert [template.name for template in await part.list_resource_templates()] == ["all_rows"]
            assert [prompt.name for prompt in await part.list_prompts()] == ["all_prompt"]
            assert (await part.call_tool("all_tool")).text == "all"
            assert (await part.read_resource("all://fixed")).contents[0].text == "all"
            assert (await part.read_resource("all://rows/7")).contents[0].text == "7"
            assert (await part.get_prompt("all_prompt", {"word": "x"})).messages
            assert (await part.complete(PromptReference("all_prompt"), "word", "x")).values == ["x!"]
            with pytest.raises(InvalidParams, match="Unknown tool"):
                await part.call_tool("few_tool")
            for uri in ("few://fixed", "few://rows/7"):
                with pytest.raises((ResourceNotFound, InvalidParams)):
                    await part.read_resource(uri)
                with pytest.raises(Exception, match="few"):
                    await part.subscribe(uri)
            with pytest.raises(InvalidParams, match="Unknown prompt"):
                await part.get_prompt("few_prompt", {"word": "x"})
            with pytest.raises(InvalidParams, match="Unknown prompt"):
                await part.complete(PromptReference("few_prompt"), "word", "x")

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_changes_of_the_whole_server_appear_and_are_reported(revision):
    async def main() -> None:
        server = whole()
        heard: list[tuple[str, Any]] = []

        async def note(method: str, params: Any) -> None:
            heard.append((method, params))

        async def told(method: str) -> Any:
            await soon(lambda: [said for said, _ in heard] == [method])
            return heard.pop()[1]

        changed = "notifications/tools/list_changed"
        part = server.select(for_all)
        async with Client(part, revision=revision, on_notification=note) as client:
            before = [tool.name for tool in await client.list_tools()]
            handle = server.tool(name="later_all")(lambda: "late")
            await told(changed)
            assert [tool.name for tool in await client.list_tools()] == [*before, "later_all"]
            assert (await client.call_tool("later_all")).text == "late"
            handle.disable()
            await told(changed)
            assert [tool.name for tool in await client.list_tools()] == before
            handle.enable()
            await told(changed)
            handle.remove()
            await told(changed)
            assert [tool.name for tool in await client.list_tools()] == before
            await client.subscribe("all://fixed")
            server.notify_resource_updated("few://fixed")
            server.notify_resource_updated("all://fixed")
            assert (await told("notifications/resources/updated")).uri == "all://fixed"

    asyncio.run(main())


@pytest.mark.parametrize("revision", DATES)
def test_capabilities_follow_from_the_selection(revision):
    async def main() -> None:
        server = whole()
        part = server.select(lambda handle: handle.name in {"few_tool", "late"})
        assert part.capabilities().prompts is None
        assert part.capabilities().completions is None
        assert part.local_peer.has_capability("tools")
        async with Client(part, revision=revision) as client:
            assert await client.list_prompts() == []
            with pytest.raises(CapabilityNotDeclared):
                await client.get_prompt("few_prompt")
        late = server.prompt(name="late")(lambda: "x")
        assert part.local_peer.has_capability("prompts")
        late.remove()
        assert part.local_peer.has_capability("prompts"), "what was declared once stays so"

    asyncio.run(main())


def test_pages_are_those_of_the_selection():
    async def main() -> None:
        server = Server("s", page_size=2)
        for number in range(10):
            server.tool(name=f"t{number}")(lambda: "")
        part = server.select(lambda handle: handle.name in {"t1", "t4", "t5", "t9"})
        assert len(part.tools) == 4
        assert "t1" in part.tools
        assert "t2" not in part.tools
        async with Client(part) as client:
            pages = [[tool.name for tool in page.tools] async for page in client.list_tools_pages()]
        assert pages == [["t1", "t4"], ["t5", "t9"]]

    asyncio.run(main())


def test_a_selection_of_a_selection():
    server = whole()
    part = server.select(lambda handle: "tool" in handle.name).select(for_all)
    assert [tool.name for tool in part.tools] == ["all_tool"]
    assert part.tools.get("few_tool") is None
    assert part.prompts.get("all_prompt") is None
    server.tool(name="all_tool_2")(lambda: "")
    assert len(part.tools) == 2


def test_a_selection_takes_no_entries_but_lets_them_go():
    server = whole()
    part = server.select(for_all)
    with pytest.raises(TypeError, match="cannot add to a selection"):
        part.tool(name="x")(lambda: "")
    part.tools.remove("all_tool")
    assert "all_tool" not in server.tools


def test_an_unused_selection_is_dropped():
    server = whole()
    part = server.select(for_all)
    gone = weakref.ref(part.tools)
    del part
    gc.collect()
    assert gone() is None
    server.tool(name="x")(lambda: "")


def test_everything_else_is_shared():
    lives: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncGenerator[str]:
        lives.append("+")
        yield "life"
        lives.append("-")

    async def main() -> None:
        server = Server("s", lifespan=lifespan)
        part = server.select(lambda handle: True)

        @server.tool
        async def look(ctx: Context) -> str:
            return f"{ctx.lifespan}, {ctx.server is part}"

        async with Client(server) as one, Client(part) as two:
            assert (await one.call_tool("look")).text == "life, False"
            assert (await two.call_tool("look")).text == "life, True"
        assert part.store is server.store
        assert part.middleware is server.middleware
        assert lives == ["+", "-"]

    asyncio.run(main())


# --------------------------------------------------------------------- declared before it is there


def test_declared_lists_exist_from_the_start_and_are_empty():
    async def main(revision: str, kind: type[Handler]) -> None:
        server = kind("s", declares=("tools", "resources", "prompts"))
        async with Client(server, revision=revision) as client:
            assert client.capabilities.tools is not None
            assert client.capabilities.resources is not None
            assert client.capabilities.prompts is not None
            assert await client.list_tools() == []
            assert await client.list_resources() == []
            assert await client.list_resource_templates() == []
            assert await client.list_prompts() == []

    for revision in DATES:
        for kind in (Server, Handler):
            asyncio.run(main(revision, kind))


def test_only_declared_lists_are_declared():
    for kind in (Server, Handler):
        declared = kind("s", declares=["prompts"]).capabilities()
        assert declared.prompts is not None
        assert (declared.tools, declared.resources) == (None, None)
        none = kind("s").capabilities()
        assert (none.tools, none.resources, none.prompts) == (None, None, None)
    part = Server("s", declares=["tools"]).select(lambda handle: False)
    assert part.capabilities().tools is not None


@pytest.mark.parametrize("revision", DATES)
def test_a_tool_that_comes_later_reaches_a_client_that_was_there_before(revision):
    async def main() -> None:
        server = Server("s", declares=["tools"])
        heard = asyncio.Event()
        async with Client(server, revision=revision, on_notification=lambda *_: heard.set()) as client:
            server.tool(name="late")(lambda: "here")
            await heard.wait()
            assert [tool.name for tool in await client.list_tools()] == ["late"]
            assert (await client.call_tool("late")).text == "here"

    asyncio.run(main())
