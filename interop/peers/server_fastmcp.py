"""The kitchen as a server of PyPI's `fastmcp`: the same names as in `kitchen.py`, made with their API.

Its argument is stdio, http, sse or alone: HTTP without sessions, and without event streams.
"""

import asyncio
import sys
from collections import Counter
from typing import Annotated, Any

import anyio
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.event_store import EventStore
from fastmcp.utilities.types import Image
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    ToolListChangedNotification,
)
from pydantic import BaseModel, Field

from port import serve

PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452")

server = FastMCP("kitchen", version="1.0", instructions="Order something.")
dropped: list[str] = []
runs: Counter[str] = Counter()


class Order(BaseModel):
    """What was ordered."""

    dish: str
    portions: int


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def order(dish: str, portions: int = 1) -> Order:
    """Order a dish."""
    return Order(dish=dish, portions=portions)


@server.tool
def echo(text: str) -> str:
    """Say the same."""
    return text


@server.tool
def media() -> Image:
    """A picture."""
    return Image(data=PIXEL, format="png")


@server.tool
def fail() -> str:
    """Fail."""
    raise ToolError("the oven is off")


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count, with progress and a log."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"at {n}")
    await ctx.info("counted")
    await ctx.warning("counted enough")
    return "done"


@server.tool
async def slow() -> str:
    """Wait until somebody cancels."""
    try:
        await anyio.sleep_forever()
    except asyncio.CancelledError:
        dropped.append("slow")
        raise
    return "never"


@server.tool
async def cancelled() -> str:
    """How many calls were cancelled."""
    return str(len(dropped))


@server.tool
async def pause(key: str, ctx: Context) -> str:
    """Let the client come back for the answer; it tells how often this was called with the key."""
    runs[key] += 1
    await ctx.close_sse_stream()
    return f"run {runs[key]}"


@server.tool
async def hold(key: str, ctx: Context) -> str:
    """Give somebody time to cut the connection; the answer tells how often this was called with the key."""
    runs[key] += 1
    await ctx.report_progress(1, 2)
    await anyio.sleep(0.5)
    await ctx.report_progress(2, 2)
    return f"run {runs[key]}"


@server.tool(output_schema=None)
async def ask_user(ctx: Context) -> Any:
    """Ask the user what they want: in a session during the call, without one by a result that asks."""
    if ctx.request_context.protocol_version != "2026-07-28":
        wanted = (await ctx.elicit("What shall it be?", Order)).data
    elif ctx.input_responses is None:
        form = ElicitRequestFormParams(
            message="What shall it be?", requested_schema=Order.model_json_schema(), mode="form"
        )
        return InputRequiredResult(input_requests={"order": ElicitRequest(params=form)})
    else:
        wanted = Order.model_validate(ctx.input_responses["order"].content)
    return f"{wanted.portions} x {wanted.dish}"


@server.tool(output_schema=None)
async def ask_model(ctx: Context) -> Any:
    """Ask the client's model."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text="What is good today?"))
    params = CreateMessageRequestParams(messages=[question], max_tokens=100, system_prompt="Be brief.")
    if ctx.request_context.protocol_version != "2026-07-28":
        said = await ctx.session.create_message(
            params.messages, max_tokens=params.max_tokens, system_prompt=params.system_prompt
        )
    elif ctx.input_responses is None:
        return InputRequiredResult(input_requests={"model": CreateMessageRequest(params=params)})
    else:
        said = ctx.input_responses["model"]
    return said.content.text


@server.tool(output_schema=None)
async def ask_roots(ctx: Context) -> Any:
    """Ask for the client's roots."""
    if ctx.request_context.protocol_version != "2026-07-28":
        named = await ctx.session.list_roots()
    elif ctx.input_responses is None:
        return InputRequiredResult(input_requests={"roots": ListRootsRequest()})
    else:
        named = ctx.input_responses["roots"]
    return " ".join(str(root.uri) for root in named.roots)


@server.tool
async def grow(ctx: Context) -> str:
    """Offer one tool more."""
    server.tool(lambda: "extra", name="extra")
    await ctx.send_notification(ToolListChangedNotification())
    return "grown"


def _mirrored(name: str) -> Any:
    return Field(json_schema_extra={"x-mcp-header": name})


@server.tool
def deliver(
    place: Annotated[str, _mirrored("Place")],
    floor: Annotated[int, _mirrored("Floor")],
    fragile: Annotated[bool, _mirrored("Fragile")],
) -> str:
    """Deliver something; where to is in headers too."""
    return f"{place} {floor}" if fragile else "thrown"


@server.tool
async def touch_tools(ctx: Context) -> str:
    """Say that the list of tools has changed."""
    await ctx.send_notification(ToolListChangedNotification())
    return "touched"


@server.tool
async def touch() -> str:
    """They have no subscriptions, so nobody hears of it."""
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


@server.prompt
def greet(name: str, mood: str = "good") -> str:
    """Greet somebody."""
    return f"Hello {name}, in a {mood} mood"


@server.completion
def complete(ref: Any, argument: Any, context: Any) -> list[str]:  # noqa: ARG001 - their signature
    """The names that begin like this."""
    return [name for name in ("ann", "anton", "bob") if name.startswith(argument.value)]


async def main(over: str) -> None:
    """Serve."""
    if over == "stdio":
        await server.run_stdio_async(show_banner=False, log_level="ERROR")
        return
    await serve(
        server.http_app(
            transport="sse" if over == "sse" else "http",
            stateless_http=over == "alone",
            json_response=over == "alone",
            event_store=EventStore() if over == "http" else None,
            retry_interval=100 if over == "http" else None,
        )
    )


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
