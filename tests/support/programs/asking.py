"""Tools that ask the client, notify it, and take their time."""

import asyncio
import enum
import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from toolpost import Accepted, Cancelled, Context, Declined, Server, SyncContext, ToolError
from toolpost.errors import MCPError
from toolpost.types import TextContent, Tool

server = Server("asking", max_in_flight=100)
started: list[str] = []
ended: list[str] = []


class Colour(enum.Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Form:
    """What is wanted."""

    name: str
    age: int
    colour: Colour = Colour.RED
    friendly: bool = True


def _told(answer: Accepted[Any] | Declined | Cancelled) -> str:
    return repr(answer.data) if isinstance(answer, Accepted) else type(answer).__name__


@server.tool
async def how_many(ctx: Context) -> str:
    return _told(await ctx.elicit("How many?", int))


@server.tool
def how_many_sync(ctx: SyncContext) -> str:
    return _told(ctx.elicit("How many?", int))


@server.tool
async def form(ctx: Context) -> str:
    return _told(await ctx.elicit("Who?", Form))


@server.tool
async def visit(ctx: Context) -> str:
    return _told(await ctx.elicit_url("Log in", "https://example.com/login"))


@server.tool
def visit_sync(ctx: SyncContext) -> str:
    return _told(ctx.elicit_url("Log in", "https://example.com/login"))


@server.tool
async def nested(ctx: Context) -> str:
    return _told(await ctx.elicit("What?", dict[str, Any]))


@server.tool
async def poem(ctx: Context, about: str) -> str:
    answer = await ctx.sample(about, system="Be brief.", model="small", max_tokens=9, temperature=0.5)
    assert isinstance(answer.content, TextContent)
    return f"{answer.model}: {answer.content.text}"


@server.tool
def poem_sync(ctx: SyncContext, about: str) -> str:
    answer = ctx.sample(["one", about])
    assert isinstance(answer.content, TextContent)
    return answer.content.text


@server.tool
async def with_tools(ctx: Context) -> str:
    tool = Tool("t", {"type": "object"})
    return str((await ctx.sample("go", tools=[tool], tool_choice="auto")).content)


@server.tool
async def places(ctx: Context) -> list[str]:
    return [root.uri for root in await ctx.roots()]


@server.tool
def places_sync(ctx: SyncContext) -> list[str]:
    return [root.uri for root in ctx.roots()]


@server.tool
async def impatient(ctx: Context) -> str:
    try:
        return _told(await ctx.elicit("Quick!", str, timeout=0.01))
    except TimeoutError:
        return "no answer"


@server.tool
async def excused(ctx: Context) -> str:
    try:
        return _told(await ctx.elicit("Well?", str))
    except MCPError as error:
        raise ToolError(f"cannot ask: {error}") from error


@server.tool
async def own(ctx: Context, method: str) -> Any:
    await ctx.notify("example/notice", {"n": 1})
    result = await ctx.request(method, {"n": 2})
    return (result.raw or b"").decode()


# --------------------------------------------------------------------- telling


@server.tool
async def steps(ctx: Context, count: int) -> str:
    for step in range(count):
        await ctx.progress(step + 1, count, f"step {step + 1}")
        await ctx.progress(step)  # goes back: not reported
    return "done"


@server.tool
def steps_sync(ctx: SyncContext, count: int) -> str:
    for step in range(count):
        ctx.progress(step + 1, count)
    return "done"


@server.tool
async def lines(ctx: Context) -> str:
    await ctx.debug("d")
    await ctx.info({"i": 1})
    await ctx.warning("w")
    await ctx.error("e")
    await ctx.log("emergency", "m", logger="tests")
    return "done"


@server.tool
def lines_sync(ctx: SyncContext) -> str:
    ctx.debug("d")
    ctx.info("i")
    ctx.warning("w")
    ctx.error("e")
    return "done"


# --------------------------------------------------------------------- taking time


@server.tool
async def wait(name: str, ctx: Context) -> str:
    started.append(name)
    await ctx.progress(1)
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)
    return "never"


@server.tool
def wait_sync(name: str, ctx: SyncContext) -> str:
    started.append(name)
    ctx.progress(1)
    while not ctx.cancelled:
        time.sleep(0.001)
    ended.append(name)
    return "never"


@server.tool
async def stubborn(name: str, ctx: Context) -> str:
    started.append(name)
    await ctx.progress(1)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await ctx.progress(2)
        await ctx.info("too late")
        ended.append(name)
    return "answered all the same"


@server.tool
def seen(which: Literal["started", "ended"]) -> list[str]:
    return {"started": started, "ended": ended}[which]


if __name__ == "__main__":
    logging.getLogger("toolpost").setLevel(logging.CRITICAL)  # what breaks here breaks on purpose
    server.run()
