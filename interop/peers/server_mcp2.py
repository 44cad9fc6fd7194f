"""The kitchen as a server of PyPI's `mcp` 2.x: the same names as in `kitchen.py`, made with their API.

Its argument is stdio, http, sse or alone: HTTP without sessions, and without event streams.
"""

import asyncio
import sys
from collections import Counter
from functools import partial
from typing import Annotated, Any

import anyio
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context, Elicit, Image, ListRoots, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp_types import (
    Completion,
    CreateMessageResult,
    EmptyResult,
    ListRootsResult,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field

from port import Events, serve

PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452")

server = MCPServer("kitchen", version="1.0", instructions="Order something.", log_level="ERROR")
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
async def count(to: int, ctx: Context[Any]) -> str:
    """Count, with progress and a log."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"at {n}")
    await ctx.log("info", "counted")
    await ctx.log("warning", {"counted": to})
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
async def pause(key: str, ctx: Context[Any]) -> str:
    """Let the client come back for the answer; it tells how often this was called with the key."""
    runs[key] += 1
    await ctx.close_sse_stream()
    return f"run {runs[key]}"


@server.tool()
async def hold(key: str, ctx: Context[Any]) -> str:
    """Give somebody time to cut the connection; the answer tells how often this was called with the key."""
    runs[key] += 1
    await ctx.report_progress(1, 2)
    await anyio.sleep(0.5)
    await ctx.report_progress(2, 2)
    return f"run {runs[key]}"


def _order() -> Elicit[Order]:
    return Elicit("What shall it be?", Order)


def _said() -> Sample:
    question = TextContent(type="text", text="What is good today?")
    return Sample([SamplingMessage(role="user", content=question)], max_tokens=100, system_prompt="Be brief.")


def _roots() -> ListRoots:
    return ListRoots()


@server.tool()
async def ask_user(wanted: Annotated[Order, Resolve(_order)]) -> str:
    """Ask the user what they want."""
    return f"{wanted.portions} x {wanted.dish}"


@server.tool()
async def ask_model(said: Annotated[CreateMessageResult, Resolve(_said)]) -> str:
    """Ask the client's model."""
    return said.content.text


@server.tool()
async def ask_roots(roots: Annotated[ListRootsResult, Resolve(_roots)]) -> str:
    """Ask for the client's roots."""
    return " ".join(str(root.uri) for root in roots.roots)


@server.tool()
async def grow(ctx: Context[Any]) -> str:
    """Offer one tool more."""
    server.add_tool(lambda: "extra", name="extra")
    await ctx.notify_tools_changed()
    if ctx.protocol_version != "2026-07-28":  # their bus reaches listeners of the stateless era only
        await ctx.session.send_tool_list_changed()
    return "grown"


def _mirrored(name: str) -> Any:
    return Field(json_schema_extra={"x-mcp-header": name})


@server.tool()
def deliver(
    place: Annotated[str, _mirrored("Place")],
    floor: Annotated[int, _mirrored("Floor")],
    fragile: Annotated[bool, _mirrored("Fragile")],
) -> str:
    """Deliver something; where to is in headers too."""
    return f"{place} {floor}" if fragile else "thrown"


@server.tool()
async def touch_tools(ctx: Context[Any]) -> str:
    """Say that the list of tools has changed."""
    await ctx.notify_tools_changed()
    if ctx.protocol_version != "2026-07-28":  # as in `grow`
        await ctx.session.send_tool_list_changed()
    return "touched"


@server.tool()
async def touch(ctx: Context[Any]) -> str:
    """Say that the configuration has changed."""
    await ctx.notify_resource_updated("config://app")
    if "config://app" in watched:
        await ctx.session.send_resource_updated("config://app")
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


async def _watch(ctx: Any, params: Any) -> EmptyResult:  # noqa: ARG001 - their signature
    watched.add(str(params.uri))
    return EmptyResult()


async def _unwatch(ctx: Any, params: Any) -> EmptyResult:  # noqa: ARG001 - their signature
    watched.discard(str(params.uri))
    return EmptyResult()


async def _set_level(ctx: Any, params: Any) -> EmptyResult:  # noqa: ARG001 - their signature
    return EmptyResult()  # their context writes every line to a session, whatever the level


async def main(over: str) -> None:
    """Serve. `MCPServer` declares neither changes of lists nor subscriptions in a session."""
    low = server._lowlevel_server  # noqa: SLF001 - the only way to these handlers
    low.add_request_handler("resources/subscribe", SubscribeRequestParams, _watch)
    low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _unwatch)
    low.add_request_handler("logging/setLevel", SetLevelRequestParams, _set_level)
    options = partial(low.create_initialization_options, NotificationOptions(tools_changed=True))
    if over != "stdio":
        low.create_initialization_options = options
        apps = {
            "http": lambda: server.streamable_http_app(event_store=Events(), retry_interval=100),
            "alone": lambda: server.streamable_http_app(stateless_http=True, json_response=True),
            "sse": server.sse_app,
        }
        await serve(apps[over]())
        return
    async with stdio_server() as (reading, writing):
        await low.run(reading, writing, options())


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
