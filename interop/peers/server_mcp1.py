"""The kitchen as a server of PyPI's `mcp` 1.x: the same names as in `kitchen.py`, made with their API.

Its argument is stdio, http, sse or alone: HTTP without sessions, and without event streams.
"""

import asyncio
import sys
from collections import Counter
from functools import partial
from typing import Any

import anyio
from mcp.server.fastmcp import Context, FastMCP, Image
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from mcp.types import Completion, SamplingMessage, TextContent
from pydantic import AnyUrl, BaseModel

from port import Events, serve

PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452")

server = FastMCP(
    "kitchen", instructions="Order something.", log_level="ERROR", event_store=Events(), retry_interval=100
)
dropped: list[str] = []
runs: Counter[str] = Counter()
watched: set[str] = set()


class Order(BaseModel):
    """What was ordered."""

    dish: str
    portions: int


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def order(dish: str, portions: int = 1) -> Order:
    """Order a dish."""
    return Order(dish=dish, portions=portions)


@server.tool()
def echo(text: str) -> str:
    """Say the same."""
    return text


@server.tool()
def media() -> Image:
    """A picture."""
    return Image(data=PIXEL, format="png")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("the oven is off")


@server.tool()
async def count(to: int, ctx: Context[Any, Any, Any]) -> str:
    """Count, with progress and a log."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"at {n}")
    await ctx.info("counted")
    await ctx.warning("counted enough")
    return "done"


@server.tool()
async def slow() -> str:
    """Wait until somebody cancels."""
    try:
        await anyio.sleep_forever()
    except asyncio.CancelledError:
        dropped.append("slow")
        raise
    return "never"


@server.tool()
async def cancelled() -> str:
    """How many calls were cancelled."""
    return str(len(dropped))


@server.tool()
async def pause(key: str, ctx: Context[Any, Any, Any]) -> str:
    """Let the client come back for the answer; it tells how often this was called with the key."""
    runs[key] += 1
    await ctx.close_sse_stream()
    return f"run {runs[key]}"


@server.tool()
async def hold(key: str, ctx: Context[Any, Any, Any]) -> str:
    """Give somebody time to cut the connection; the answer tells how often this was called with the key."""
    runs[key] += 1
    await ctx.report_progress(1, 2)
    await anyio.sleep(0.5)
    await ctx.report_progress(2, 2)
    return f"run {runs[key]}"


@server.tool()
async def ask_user(ctx: Context[Any, Any, Any]) -> str:
    """Ask the user what they want."""
    answer = await ctx.elicit("What shall it be?", Order)
    return f"{answer.data.portions} x {answer.data.dish}" if answer.action == "accept" else "nothing"


@server.tool()
async def ask_model(ctx: Context[Any, Any, Any]) -> str:
    """Ask the client's model."""
    question = TextContent(type="text", text="What is good today?")
    said = await ctx.session.create_message(
        [SamplingMessage(role="user", content=question)], max_tokens=100, system_prompt="Be brief."
    )
    return said.content.text


@server.tool()
async def ask_roots(ctx: Context[Any, Any, Any]) -> str:
    """Ask for the client's roots."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def grow(ctx: Context[Any, Any, Any]) -> str:
    """Offer one tool more."""
    server.add_tool(lambda: "extra", name="extra")
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
async def touch_tools(ctx: Context[Any, Any, Any]) -> str:
    """Say that the list of tools has changed."""
    await ctx.session.send_tool_list_changed()
    return "touched"


@server.tool()
async def touch(ctx: Context[Any, Any, Any]) -> str:
    """Say that the configuration has changed."""
    if "config://app" in watched:
        await ctx.session.send_resource_updated(AnyUrl("config://app"))
    return "touched"


@server.resource("config://app", mime_type="application/json")
def config() -> str:
    """The configuration."""
    return '{"heat": 3}'


@server.resource("logo://png", mime_type="image/png")
def logo() -> bytes:
    """The logo."""
    return PIXEL


@server.resource("users://{name}/profile", mime_type="text/plain")
async def profile(name: str) -> str:
    """The profile of a user."""
    return f"profile of {name}"


@server.prompt()
def greet(name: str, mood: str = "good") -> str:
    """Greet somebody."""
    return f"Hello {name}, in a {mood} mood"


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Completion:  # noqa: ARG001 - their signature
    """The names that begin like this."""
    return Completion(values=[name for name in ("ann", "anton", "bob") if name.startswith(argument.value)])


async def main(over: str) -> None:
    """Serve. `FastMCP` declares no changes of lists; subscriptions cannot be declared at all."""
    low = server._mcp_server  # noqa: SLF001 - the only way to these handlers

    @low.set_logging_level()
    async def set_level(level: Any) -> None:
        del level  # their context writes every line to the session, whatever the level

    @low.subscribe_resource()
    async def watch(uri: AnyUrl) -> None:
        watched.add(str(uri))

    options = partial(low.create_initialization_options, NotificationOptions(tools_changed=True))
    if over != "stdio":
        low.create_initialization_options = options
        server.settings.stateless_http = server.settings.json_response = over == "alone"
        await serve(server.sse_app() if over == "sse" else server.streamable_http_app())
        return
    async with stdio_server() as (reading, writing):
        await low.run(reading, writing, options())


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
