"""Servers in one process as parts of another one: names, tags, edits, middleware, lifespans and changes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest

from toolpost import Accepted, Change, Client, Context, Edit, Server, TaskOptions
from toolpost.errors import InvalidParams, RPCError
from toolpost.server.middleware import Call, Next
from toolpost.types import CallToolResult, ProgressParams, TextContent, Tool

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")


def make_weather(**options: Any) -> Server:
    server = Server("weather", instructions="Ask for a city.", **options)

    @server.tool(tags=["public"])
    async def forecast(city: str, ctx: Context, days: int = 3) -> dict[str, Any]:
        """Return the forecast."""
        await ctx.progress(1, 2, "half")
        return {"city": city, "days": days, "server": ctx.server.info.name}

    @server.tool(tags=["admin"])
    def purge() -> str:
        return "purged"

    @server.resource("weather://now")
    def now() -> str:
        return "sunny"

    @server.resource("weather://{day}/report")
    def report(day: str) -> str:
        return f"rain on {day}"

    @server.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    @greet.complete("name")
    def complete_name(typed: str) -> list[str]:
        return [f"{typed}nn"]

    return server


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_mounted_server_is_a_part_of_the_outer_one(revision: str):
    async def main() -> None:
        seen: list[ProgressParams] = []
        outer = Server("all", instructions="Everything.")
        outer.mount(make_weather(), "weather")
        async with Client(outer, revision=revision) as client:
            assert [tool.name for tool in await client.list_tools()] == ["weather_forecast", "weather_purge"]
            result = await client.call_tool("weather_forecast", {"city": "Oslo"}, progress=seen.append)
            assert json.loads(result.text) == {"city": "Oslo", "days": 3, "server": "weather"}
            assert [made.message for made in seen] == ["half"]
            assert (await client.read_resource("weather://now")).contents[0].text == "sunny"
            assert (await client.read_resource("weather://monday/report")).contents[
                0
            ].text == "rain on monday"
            assert (await client.get_prompt("weather_greet", {"name": "Ann"})).messages[
                0
            ].content == TextContent("Hello Ann")
            if revision != "2024-11-05":
                assert (await client.complete("weather_greet", "name", "A")).values == ["Ann"]
            assert client.instructions is not None
            assert client.instructions.startswith("Everything.\n\n## weather\n\nAsk for a city.")
            with pytest.raises(RPCError):
                await client.call_tool("forecast", {"city": "Oslo"})

    asyncio.run(main())


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_a_mounted_tool_asks_the_client_of_the_outer_server(revision: str):
    async def main() -> None:
        shop = Server("shop")

        @shop.tool
        async def buy(ctx: Context) -> str:
            answer = await ctx.elicit("How many?", int)
            assert isinstance(answer, Accepted)
            price = await ctx.step("price", lambda: 2)
            more = await ctx.elicit(f"{price} each?", bool)
            return f"{answer.data} {isinstance(more, Accepted)}"

        middle, outer = Server("middle"), Server("outer")
        middle.mount(shop)
        outer.mount(middle, "x")
        answers = iter([{"value": 3}, {"value": True}])
        async with Client(outer, revision=revision, on_elicitation=lambda _: next(answers)) as client:
            assert (await client.call_tool("x_buy")).text == "3 True"

    asyncio.run(main())


def test_a_mounted_server_keeps_its_middleware_observers_lifespan_and_timeouts():
    async def main() -> None:
        events: list[str] = []

        @asynccontextmanager
        async def life(server: Server) -> AsyncGenerator[str]:
            events.append(f"open {server.info.name}")
            yield f"life of {server.info.name}"
            events.append(f"close {server.info.name}")

        def name_layer(name: str) -> Any:
            async def layer(call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
                if call.method == "tools/call" and call.incoming:
                    events.append(f"{name}: {call.params.name}")
                if call.method == "elicitation/create":
                    events.append(f"{name}: asks")
                return await next(call)

            return layer

        inner = Server(
            "inner",
            lifespan=life,
            middleware=[name_layer("inner")],
            observers=[lambda ctx: events.append(f"observed {ctx.server.info.name}")],
        )

        @inner.tool
        async def look(ctx: Context) -> str:
            await ctx.elicit("Really?", bool)
            return str(ctx.lifespan)

        @inner.tool(timeout=0.001)
        async def wait() -> None:
            await asyncio.Event().wait()

        middle = Server("middle", lifespan=life)
        middle.mount(inner, "in", around=[name_layer("around")])
        outer = Server("outer", lifespan=life, middleware=[name_layer("outer")])
        outer.mount(middle, "mid")
        async with Client(outer, revision="2025-11-25", on_elicitation=lambda _: {"value": True}) as client:
            assert events == ["open outer", "open middle", "open inner"]
            events.clear()
            answered = await client.call_tool("mid_in_look")
            assert events[:4] == ["outer: mid_in_look", "observed inner", "around: look", "inner: look"]
            assert answered.text == "life of inner"
            assert "outer: asks" in events
            assert "inner: asks" in events
            late = await client.call_tool("mid_in_wait", raise_on_error=False)
            assert "timed out after 0.001" in late.text
            events.clear()
        assert events == ["close inner", "close middle", "close outer"]

    asyncio.run(main())


def test_a_server_that_is_mounted_while_the_outer_one_serves_is_there_at_once():
    async def main() -> None:
        @asynccontextmanager
        async def life(_: Server) -> AsyncGenerator[str]:
            yield "open"

        outer, late = Server("outer", declares=["tools"]), Server("late", lifespan=life)
        late.tool(name="look")(_look)
        async with (
            Client(outer) as client,
            client.listen(tools=True) as stream,
            aclosing(cast("AsyncGenerator[Change]", aiter(stream))) as changes,
        ):
            mount = outer.mount(late)
            await anext(changes)
            assert (await client.call_tool("look")).text == "open"
            mount.remove()
            await anext(changes)
            assert await client.list_tools() == []
            assert mount.state == "removed"
            with pytest.raises(InvalidParams, match="Unknown tool: look"):
                await client.call_tool("look")

    asyncio.run(main())


async def _look(ctx: Context) -> str:
    return str(ctx.lifespan)


def test_changes_of_a_mounted_server_are_announced_once():
    async def main() -> None:
        weather, middle, outer = make_weather(), Server("middle"), Server("outer")
        middle.mount(weather)
        outer.mount(middle)
        async with (
            Client(outer) as client,
            client.listen(tools=True, uris=["weather://now"]) as stream,
            aclosing(cast("AsyncGenerator[Change]", aiter(stream))) as changes,
        ):
            a = weather.tool(name="a")(lambda: 1)
            weather.tool(name="b")(lambda: 2)
            assert await anext(changes) == Change("tools")
            assert {"a", "b"} <= {tool.name for tool in await client.list_tools()}
            a.disable()
            assert await anext(changes) == Change("tools")
            assert "a" not in {tool.name for tool in await client.list_tools()}
            weather.notify_resource_updated("weather://now")
            assert await anext(changes) == Change("resource", "weather://now")
            assert client.stats.notifications <= 5  # the acknowledgement, and one or two for the first change

    asyncio.run(main())


def test_names_that_are_taken_are_refused_and_later_ones_get_the_name_of_their_server():
    async def main() -> None:
        weather, outer = make_weather(), Server("outer")
        outer.mount(weather)
        with pytest.raises(ValueError, match="cannot mount weather: a tool named 'forecast' is already"):
            outer.mount(make_weather())
        assert len(outer.mounts) == 1
        mount = outer.mount(make_weather(), "other")
        outer.tool(name="late")(lambda: 0)
        weather.tool(name="late")(lambda: 1)
        async with Client(outer) as client:
            assert [tool.name for tool in await client.list_tools()] == [
                "forecast", "purge", "other_forecast", "other_purge", "late", "weather_late"
            ]  # fmt: skip
            assert (await client.call_tool("weather_late")).text == "1"
            uris = [each.uri for each in await client.list_resources()]
            assert uris == ["weather://now", "other+weather://now"]
            read = await client.read_resource("other+weather://now")
            assert (read.contents[0].uri, read.contents[0].text) == ("other+weather://now", "sunny")
            read = await client.read_resource("other+weather://friday/report")
            assert read.contents[0].uri == "other+weather://friday/report"
        assert outer.mounts[0].problems == [
            "tools: 'late' is the name of another one, of outer; it is shown as 'weather_late'"
        ]
        assert mount.problems == []

    asyncio.run(main())


def test_a_server_cannot_be_a_part_of_itself():
    first, second = Server("first"), Server("second")
    with pytest.raises(ValueError, match="a part of itself"):
        first.mount(first)
    first.mount(second)
    with pytest.raises(ValueError, match="a part of itself"):
        second.mount(first)
    with pytest.raises(ValueError, match="a part of itself"):
        second.mount(first.select(lambda _: True))


def test_names_that_are_too_long_end_in_a_hash_and_keep_the_whole_name_as_title():
    async def main() -> None:
        inner, outer = Server("inner"), Server("outer")
        inner.tool(name="x" * 60)(lambda: 1)
        outer.mount(inner, "weather report", max_name=32)
        async with Client(outer) as client:
            (tool,) = await client.list_tools()
            assert len(tool.name) == 32
            assert tool.name.startswith("weather_report_xxx")
            assert tool.title == "weather report_" + "x" * 60
            assert (await client.call_tool(tool.name)).text == "1"

    asyncio.run(main())


def test_what_is_not_selected_cannot_be_listed_called_read_or_completed():
    async def main() -> None:
        outer = Server("outer")
        outer.mount(make_weather(), "a", only=["fore*", "weather://now"])
        outer.mount(
            make_weather(), "b", hide=lambda name: name in {"forecast", "weather://now", "now", "report"}
        )
        async with Client(outer) as client:
            assert [tool.name for tool in await client.list_tools()] == ["a_forecast", "b_purge"]
            assert [each.name for each in await client.list_prompts()] == ["b_greet"]
            assert [each.uri for each in await client.list_resources()] == ["weather://now"]
            assert await client.list_resource_templates() == []
            for name in ("a_purge", "b_forecast"):
                with pytest.raises(InvalidParams):
                    await client.call_tool(name, {"city": "x"})
            with pytest.raises(InvalidParams):
                await client.get_prompt("a_greet", {"name": "x"})
            with pytest.raises(RPCError):
                await client.read_resource("weather://monday/report")

    asyncio.run(main())


def test_tags_select_entries_and_edits_add_some():
    async def main() -> None:
        outer = Server("outer")
        outer.mount(make_weather(), tools={"purge": Edit(tags=["dangerous"])})
        outer.prompt(name="tagged", tags=["public"])(lambda: "x")
        public = outer.select(lambda entry: not entry.tags & {"dangerous"})
        async with Client(public) as client:
            assert [tool.name for tool in await client.list_tools()] == ["forecast"]
        async with Client(outer.select(lambda entry: "public" in entry.tags)) as client:
            assert [each.name for each in await client.list_prompts()] == ["tagged"]
            assert await client.list_resources() == []
        with pytest.raises(TypeError, match="tags must be a list"):
            outer.tool(tags="admin")

    asyncio.run(main())


def make_search(seen: list[dict[str, Any]]) -> Server:
    server = Server("shop")
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "q": {"$ref": "#/$defs/Query"},
            "tenant": {"type": "string"},
            "limit": {"type": "integer", "x-mcp-header": "Limit"},
        },
        "required": ["q", "tenant", "limit"],
        "$defs": {"Query": {"type": "string", "minLength": 1}},
    }

    def search(arguments: dict[str, Any]) -> str:
        seen.append(arguments)
        return "found"

    server.add_tool(Tool("search", schema), search)
    return server


SEARCH = Edit(
    name="find",
    title="Find",
    description="Find a thing.",
    arguments={
        "q": Edit.Argument("query", description="What to find."),
        "tenant": Edit.Constant("eu"),
        "limit": Edit.Argument("most", default=5),
    },
    result=lambda result: CallToolResult(content=[*result.content, TextContent("edited")]),
)


def test_an_edit_changes_what_clients_see_and_their_calls_are_translated():
    async def main() -> None:
        seen: list[dict[str, Any]] = []
        outer = Server("outer")
        outer.mount(make_search(seen), "shop", tools={"search": SEARCH})
        async with Client(outer) as client:
            (tool,) = await client.list_tools()
            assert (tool.name, tool.title, tool.description) == ("shop_find", "Find", "Find a thing.")
            assert tool.input_schema == {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "minLength": 1, "description": "What to find."},
                    "most": {"type": "integer", "x-mcp-header": "Limit", "default": 5},
                },
                "required": ["query"],
                "$defs": {"Query": {"type": "string", "minLength": 1}},
            }
            result = await client.call_tool("shop_find", {"query": "pen", "tenant": "us", "q": "ink"})
            assert result.text == "found\nedited"
            assert seen == [{"q": "pen", "tenant": "eu", "limit": 5}]

    asyncio.run(main())


def test_edited_header_parameters_are_checked_under_their_new_name():
    async def main() -> None:
        seen: list[dict[str, Any]] = []
        outer = Server("outer")
        outer.mount(make_search(seen), tools={"search": SEARCH})
        app = outer.asgi()
        async with app.lifespan(), Client("http://127.0.0.1/mcp", http=app) as client:
            await client.list_tools()
            await client.call_tool("find", {"query": "pen", "most": 9})
            assert seen == [{"q": "pen", "tenant": "eu", "limit": 9}]

    asyncio.run(main())


def test_an_edit_that_does_not_fit_is_reported_and_a_constant_hides_the_tool():
    async def main() -> None:
        outer = Server("outer")
        first = outer.mount(make_search([]), "a", tools={"search": Edit(arguments={"x": Edit.Argument("y")})})
        second = outer.mount(make_search([]), "b", tools={"search": Edit(arguments={"x": Edit.Constant(1)})})
        async with Client(outer) as client:
            (tool,) = await client.list_tools()
            assert tool.name == "a_search"
            assert set(tool.input_schema["properties"]) == {"q", "tenant", "limit"}
        why = "unknown argument 'x' (expected one of: q, tenant, limit)"
        assert first.problems == [f"the edit of 'search' does not fit, so the tool is shown as it is: {why}"]
        assert second.problems == [f"the edit of 'search' does not fit, so the tool is hidden: {why}"]

    asyncio.run(main())


def test_a_mounted_tool_can_run_as_a_task():
    async def main() -> None:
        inner, outer = Server("inner"), Server("outer")

        @inner.tool(task=TaskOptions(required=True))
        async def slow(ctx: Context) -> str:
            await ctx.progress(1, 2, "working")
            return f"done by {ctx.server.info.name}"

        outer.mount(inner, "in")
        for revision in ("2025-11-25", "2026-07-28"):
            async with Client(outer, revision=revision, tasks=True) as client:
                assert (await client.call_tool("in_slow")).text == "done by inner"

    asyncio.run(main())


def test_fifty_mounts_and_five_levels_are_one_look_up():
    async def main() -> None:
        outer = Server("outer", page_size=1000)
        for number in range(50):
            part = Server(f"part{number}")
            for index in range(10):
                part.tool(name=f"t{index}")(lambda number=number, index=index: f"{number}.{index}")
            outer.mount(part, f"p{number}")
        for _ in range(5):
            deeper = Server("deeper", page_size=1000)
            deeper.mount(outer)
            outer = deeper
        async with Client(outer) as client:
            assert len(await client.list_tools()) == 500
            assert (await client.call_tool("p49_t9")).text == "49.9"

    asyncio.run(main())


def test_arguments_of_mount_are_checked():
    outer = Server("outer")
    with pytest.raises(TypeError, match="only must be a list of names"):
        outer.mount(make_weather(), only="search_*")
    with pytest.raises(TypeError, match=r"tools\['forecast'\] must be an Edit"):
        outer.mount(make_weather(), tools=cast("Any", {"forecast": {"name": "x"}}))
    with pytest.raises(TypeError, match="timeout= has no effect for a server in this process"):
        outer.mount(make_weather(), timeout=3)
    with pytest.raises(TypeError, match="has no keyword 'prefix'"):
        cast("Any", outer).mount(make_weather(), prefix="x")
