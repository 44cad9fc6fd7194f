"""Tools of every kind, and tools that break in every way."""

import asyncio
import enum
import gc
import logging
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from toolpost import Audio, Context, File, Image, RPCError, Server, SyncContext, ToolError
from toolpost.errors import InvalidParams
from toolpost.types import (
    CallToolResult,
    EmbeddedResource,
    Icon,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    ToolAnnotations,
)

PNG = b"\x89PNG\r\n\x1a\n"
WAV = b"RIFF\0\0\0\0WAVE"

server = Server(
    "kitchen",
    version="1.2.3",
    title="The kitchen",
    description="Cooks.",
    instructions="Be kind.",
    website_url="https://example.com",
    icons=[Icon("https://example.com/icon.png", mime_type="image/png", sizes=["48x48"])],
)


@dataclass
class Order:
    """What is cooked."""

    dish: str
    portions: int = 1


class Size(enum.Enum):
    """How much."""

    SMALL = "small"
    LARGE = "large"


# --------------------------------------------------------------------- that work


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the one
        b: the other
    """
    return a + b


@server.tool(
    name="shout",
    title="Shout it",
    description="Says it louder.",
    annotations=ToolAnnotations(read_only_hint=True),
    icons=[Icon("https://example.com/shout.png")],
    meta={"com.example/cost": 3},
)
async def louder(text: Annotated[str, "what to say"]) -> str:
    return text.upper()


@server.tool
async def order(
    dish: str, portions: Annotated[int, Meta(ge=1, le=9)] = 1, *, size: Size = Size.SMALL
) -> Order:
    return Order(f"{size.value} {dish}", portions)


@server.tool
def names(count: int = 2) -> list[str]:
    return ["ann", "bob", "eve"][:count]


@server.tool
def table() -> dict[str, int]:
    return {"legs": 4}


@server.tool
def maybe(there: bool) -> Order | None:
    return Order("soup") if there else None


@server.tool
def nothing() -> None:
    """Do nothing."""


@server.tool
def untyped(kind: Literal["text", "object", "list"]):
    return {"text": "plain", "object": {"a": 1}, "list": [1, 2]}[kind]


@server.tool
def picture() -> Image:
    return Image(PNG)


@server.tool
def sound() -> Audio:
    return Audio(WAV)


@server.tool
def several() -> list[str | Image | File]:
    return ["text", Image(PNG), File(b"abc", name="a.txt", mime_type="text/plain")]


@server.tool
def blocks() -> list[ImageContent | ResourceLink | EmbeddedResource]:
    return [
        ImageContent("AAAA", "image/png"),
        ResourceLink("file:///a.txt", name="a.txt"),
        EmbeddedResource(ResourceContents("file:///b.txt", text="b", mime_type="text/plain")),
    ]


@server.tool
def raw_bytes() -> bytes:
    return b"\0\1"


@server.tool
def whole() -> CallToolResult:
    return CallToolResult(content=[TextContent("whole")], meta={"com.example/x": 1})


@server.tool
async def who(ctx: Context) -> dict[str, Any]:
    info = ctx.client.info
    return {
        "client": info and info.name,
        "revision": ctx.revision,
        "method": ctx.request.method,
        "meta": sorted(ctx.request.meta or ()),
        "headers": dict(ctx.request.headers),
    }


@server.tool
def counter(ctx: SyncContext) -> int:
    count = ctx.state.get("count", 0) + 1
    ctx.state.set("count", count)
    return count


class Method:
    """Methods are functions too."""

    def __init__(self, by: int) -> None:
        self.by = by

    def times(self, n: int) -> int:
        """Multiply."""
        return n * self.by


server.tool(Method(3).times)


# --------------------------------------------------------------------- that break


class Custom(BaseException):
    """Neither an Exception nor a known BaseException."""


class Unwritable:
    """Has no JSON."""


RAISES: dict[str, BaseException] = {
    "ToolError": ToolError("the oven is cold"),
    "ValueError": ValueError("secret path /etc"),
    "KeyError": KeyError("secret"),
    "TimeoutError": TimeoutError("its own"),
    "StopIteration": StopIteration(),
    "StopAsyncIteration": StopAsyncIteration(),
    "ExceptionGroup": ExceptionGroup("several", [ValueError("one")]),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "CancelledError": asyncio.CancelledError(),
    "GeneratorExit": GeneratorExit(),
    "MemoryError": MemoryError(),
    "Custom": Custom("odd"),
}


@server.tool
async def raises(what: str) -> str:
    raise RAISES[what]


@server.tool
def raises_sync(what: str) -> str:
    raise RAISES[what]


@server.tool
async def refuses(code: int) -> str:
    raise RPCError("not like this", {"why": "because"}, code=code)


@server.tool
def refuses_params() -> str:
    raise InvalidParams("no such thing")


@server.tool
def recursion() -> int:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    gc.disable()  # what is collected at the bottom would fail there as well, and be taken for a leak
    try:
        return deeper(0)
    finally:
        gc.enable()


@server.tool
async def lies() -> Order:
    return "not an order"  # pyright: ignore[reportReturnType] - that is the point


@server.tool
def unwritable():
    return Unwritable()


@server.tool
def endless():
    value: list[Any] = []
    value.append(value)
    return value


@server.tool
def surrogate() -> str:
    return "\ud800"


@server.tool(timeout=0.05)
async def late() -> str:
    await asyncio.Event().wait()
    return "never"


@server.tool(timeout=0.05)
def late_sync(ctx: SyncContext) -> str:
    while not ctx.cancelled:
        time.sleep(0.001)
    return "never"


@server.tool(timeout=60)
async def own_timeout() -> str:
    raise TimeoutError("its own")


if __name__ == "__main__":
    logging.getLogger("toolpost").setLevel(logging.CRITICAL)  # what breaks here breaks on purpose
    server.run()
