"""A server with one of everything that the command line has to handle."""

import asyncio
import itertools
import struct
import zlib
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from toolpost import Accepted, Audio, Context, Image, Server, ToolError

server = Server("shop", version="1.2", instructions="Ask for the menu first.")


def _dot() -> bytes:
    """The smallest picture: one white dot."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    chunks = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(b"\0\xff")), chunk(b"IEND", b"")]
    return b"".join([b"\x89PNG\r\n\x1a\n", *chunks])


DOT = _dot()
numbers = itertools.count()
paid: list[bool] = []


@dataclass
class Address:
    """An address."""

    city: str
    zip: int | None = None


@dataclass
class Line:
    """What is ordered."""

    name: str
    amount: int


@server.tool
def order(
    dish: str,
    amount: int = 1,
    price: float = 2.5,
    size: Literal["small", "large"] = "small",
    rush: bool = False,
    extras: list[str] | None = None,
    day: date | None = None,
) -> list[Line]:
    """Order something to eat.

    Args:
        dish: What you want.
        amount: How many of it.
    """
    return [Line(f"{size} {dish}", amount), *(Line(extra, 1) for extra in extras or [])]


@server.tool
def echo(
    text: str = "",
    flag: bool | None = None,
    numbers: list[float] | None = None,
    address: Address | None = None,
    lines: list[Line] | None = None,
    either: int | str | None = None,
    anything: Any = None,
    json: str = "",
    max_results: int | None = None,
) -> dict[str, Any]:
    """Say what was understood."""
    return {key: value for key, value in locals().items() if value not in (None, "")}


@server.tool
def ship(address: Address, kind: Literal["ship", "train"], careful: bool, tags: list[str]) -> str:
    """Send something: all of it is needed."""
    return f"{kind} to {address.city}, careful: {careful}, tags: {tags}"


@server.tool
def hello(name: str) -> str:
    """Greet."""
    return f"Hello, {name}!"


@server.tool
def picture() -> Image:
    """Draw."""
    return Image(DOT)


@server.tool
def sound() -> Audio:
    """Play."""
    return Audio(b"RIFF", mime_type="audio/wav")


@server.tool
def fail() -> str:
    """Do nothing but fail."""
    raise ToolError("the oven is cold")


@server.tool
async def cook(ctx: Context, steps: int = 3) -> str:
    """Take a while, and report progress."""
    for step in range(steps):
        await ctx.progress(step + 1, steps, f"step {step + 1}")
        await ctx.warning(f"it is hot, {step + 1}")
    return "done"


@server.tool
async def ask(ctx: Context) -> str:
    """Ask the user, in the middle of something."""
    await ctx.progress(1, 2)
    answer = await ctx.elicit("How many?", int)
    return f"{answer.data} it is" if isinstance(answer, Accepted) else f"no: {type(answer).__name__}"


@server.tool
async def send_away(ctx: Context) -> str:
    """Send the user to a page."""
    answer = await ctx.elicit_url("Please pay.", "http://127.0.0.1:9/pay")
    return type(answer).__name__


@server.tool
async def folders(ctx: Context) -> list[str]:
    """What folders are open."""
    return [root.uri for root in await ctx.roots()]


@server.tool
async def pay(ctx: Context) -> str:
    """Take money, elsewhere."""
    if not paid:
        paid.append(True)
        raise ctx.url_required("Please pay.", "http://127.0.0.1:9/pay")
    return "paid"


@server.tool
async def wait(ctx: Context) -> str:
    """Wait without limit."""
    await ctx.warning("waiting")
    await asyncio.Event().wait()
    return "never"


@server.tool
def restock() -> str:
    """Change the list of tools, and a resource."""
    number = next(numbers)

    @server.tool(name=f"new_{number}")
    def new() -> str:
        return "new"

    server.notify_resource_updated("shop://menu")
    return f"restocked, {number}"


@server.tool
def blink() -> str:
    """Say what a terminal would obey."""
    return "\x1b[5mblink\x1b[0m"


@server.resource("shop://menu", mime_type="text/plain")
def menu() -> str:
    """What there is to eat."""
    return "soup\nbread\n"


@server.resource("shop://dot.png", mime_type="image/png")
def dot() -> bytes:
    """A dot."""
    return DOT


@server.resource("shop://dish/{name}")
def dish(name: str) -> str:
    """A dish."""
    return f"{name} is good"


@server.prompt
def praise(dish: str, style: str = "plain") -> str:
    """Praise a dish."""
    return f"Praise {dish} in a {style} style."


@praise.complete("dish")
def dishes(value: str) -> list[str]:
    """The dishes that begin so."""
    return [each for each in ("soup", "souffle", "bread") if each.startswith(value)]


if __name__ == "__main__":
    server.run()
