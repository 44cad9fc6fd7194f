"""An upstream server for gateways, with one tool for each thing that a gateway passes on, and its site."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from toolpost import Accepted, Client, Context, Image, Server, ToolError
from toolpost.server.middleware import Middleware
from toolpost.types import CallToolResult, TextContent

URL = "http://127.0.0.1/mcp"

PIXEL = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89\0\0\0\nIDATx\x9cc\0\1\0"
    b"\0\5\0\1\r\n-\xb4\0\0\0\0IEND\xaeB`\x82"
)


class Kitchen(Server):
    """The server; `cancelled` and `started` are events of its tool `wait`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("kitchen", instructions="Cook something.", **options)
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.runs = 0
        add_tools(self)
        add_questions(self)
        add_others(self)


def add_tools(server: Kitchen) -> None:
    @server.tool
    async def add(a: int, b: int, ctx: Context) -> int:
        await ctx.progress(1, 2, "half")
        await ctx.warning("adding")
        return a + b

    @server.tool(wrap_result=False)
    async def value(number: int) -> Any:
        return [[1, None], 2.5, "x", None, True, {"a": 1}][number]

    @server.tool
    async def fail(ctx: Context) -> str:
        raise ToolError("burnt")

    @server.tool
    async def wait() -> str:
        server.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.cancelled.set()
        raise AssertionError

    @server.tool
    async def picture() -> CallToolResult:
        return CallToolResult(content=[Image(PIXEL).content(), TextContent("a pixel")])

    @server.tool
    async def remember(word: str, ctx: Context) -> str:
        before = await ctx.state.get("word")
        await ctx.state.set("word", word)
        return str(before)


def add_questions(server: Kitchen) -> None:
    @server.tool
    async def ask(name: str, ctx: Context) -> str:
        server.runs += 1
        count = await ctx.elicit(f"How many {name}?", int)
        assert isinstance(count, Accepted)
        sure = await ctx.elicit(f"{count.data} {name}, really?", bool)
        return f"{count.data} {name} {isinstance(sure, Accepted)}"

    @server.tool
    async def sample(ctx: Context) -> str:
        answered = await ctx.sample("Say something.")
        content: Any = answered.content
        return f"model: {content.text}"

    @server.tool
    async def list_roots(ctx: Context) -> str:
        return " ".join(root.uri for root in await ctx.roots())


def add_others(server: Kitchen) -> None:
    @server.resource("kitchen://menu")
    def menu() -> str:
        return "soup"

    @server.resource("kitchen://{dish}/recipe")
    def recipe(dish: str) -> str:
        return f"boil {dish}"

    @server.prompt
    def praise(dish: str) -> str:
        return f"Praise the {dish}"

    @praise.complete("dish")
    def complete_dish(typed: str) -> list[str]:
        return [f"{typed}p"]


@asynccontextmanager
async def open_gateway(
    server: Server,
    name: str | None = "k",
    *,
    middleware: list[Middleware] | None = None,
    **options: Any,
) -> AsyncGenerator[Server]:
    """A gateway to a server over HTTP; its mount is the only one."""
    app = server.asgi()
    async with app.lifespan():
        gateway = Server("gateway", instructions="Everything.", middleware=middleware or [])
        gateway.mount(URL, name, http=app, **options)
        yield gateway


async def wait_for_tools(client: Client, *names: str) -> None:
    """Wait until these tools are listed, and no others."""
    async with client.listen(tools=True) as changes:
        if {tool.name for tool in await client.list_tools()} == {*names}:
            return
        async for _ in changes:
            if {tool.name for tool in await client.list_tools()} == {*names}:
                return
