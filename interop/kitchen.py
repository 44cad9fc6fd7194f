"""Our server for the clients of peers, with one of each server feature.

The peers' servers in `peers/` have the same features and names. Arguments are the revisions (default: all),
and the transport: `--http` or `--sse`, `--alone` for HTTP without sessions and event streams for older
clients, `--worker=PORT` for one of `three_kitchens`; stdio by default. `--whole` puts lists on one page, for
clients that read no other. `--tasks` adds tools that run as tasks.
"""

import asyncio
import os
import runpy
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from toolpost import Accepted, Audio, Context, File, Header, Image, Server, TaskOptions, ToolError
from toolpost.protocol.methods import DATES
from toolpost.types import CreateMessageResult, PromptMessage, ResourceLink, TextContent

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf"
    "c000000301010018dd8db00000000049454e44ae426082"
)
SOUND = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28)

server = Server(
    "kitchen",
    version="1.0",
    title="The kitchen",
    instructions="Order something.",
    page_size=100 if "--whole" in sys.argv else 4,  # so that every client must paginate
    revisions=[one for one in sys.argv[1:] if one in DATES] or DATES,
    store=os.environ.get("STORE", "memory://"),
)
if "TRIPS_LEDGER" not in os.environ:  # else all workers have the same
    # Unnamed, so that nothing is left behind if a peer kills this process.
    ledger = tempfile.TemporaryFile()  # noqa: SIM115 - as above
    os.environ["TRIPS_LEDGER"] = f"/dev/fd/{ledger.fileno()}"
trips = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "asking.py"))


def note(what: str) -> int:
    """Note that something has happened; return how often it has."""
    path = Path(os.environ["TRIPS_LEDGER"])
    with path.open("a", encoding="utf-8") as file:
        file.write(f"<{what}>\n")
    return count_notes(what)


def count_notes(what: str) -> int:
    """Return how often something has happened."""
    return read_ledger().count(f"<{what}>")


def read_ledger() -> str:
    """Return all notes, and all bookings."""
    path = Path(os.environ["TRIPS_LEDGER"])
    return path.read_text(encoding="utf-8") if path.exists() else ""


@dataclass
class Order:
    """What was ordered."""

    dish: str
    portions: int


@dataclass
class Menu:
    """What there is to order."""

    best: Order
    others: list[Order]


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def order(dish: Annotated[str, "what to eat"], portions: int = 1) -> Order:
    """Order a dish."""
    return Order(dish, portions)


@server.tool
def menu(guests: list[Order]) -> Menu:
    """Offer what others ordered."""
    return Menu(guests[0], guests[1:])


@server.tool
def echo(text: str) -> str:
    """Say the same."""
    return text


@server.tool
def media() -> list[Image | Audio | File | ResourceLink]:
    """One block of each kind."""
    return [
        Image(PIXEL),
        Audio(SOUND),
        File(b"hello", name="hello.txt", mime_type="text/plain"),
        ResourceLink(uri="config://app", name="config"),
    ]


@server.tool
def fail() -> str:
    """Fail."""
    raise ToolError("the oven is off")


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count, with progress and a log."""
    for n in range(1, to + 1):
        await ctx.progress(n, to, f"at {n}")
    await ctx.info("counted")
    await ctx.warning({"counted": to})
    # Both Node clients handle notifications one turn of their loop late, and drop progress after the
    # response: they lose what shares a chunk with the response. So progress gets its own chunk.
    await asyncio.sleep(0.1)
    return "done"


@server.tool
async def slow() -> str:
    """Wait until somebody cancels."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("slow")
        raise
    return "never"


@server.tool
async def cancelled() -> str:
    """How many calls were cancelled."""
    return str(count_notes("slow"))


@server.tool
async def pause(key: str, ctx: Context) -> str:
    """Let the client come back for the answer; it tells how often this was called with the key."""
    run = note(key)
    await ctx.close_stream()
    return f"run {run}"


@server.tool
async def hold(key: str, ctx: Context) -> str:
    """Give somebody time to cut the connection; the answer tells how often this was called with the key."""
    run = note(key)
    await ctx.progress(1, 2)
    await asyncio.sleep(0.5)
    await ctx.progress(2, 2)
    await asyncio.sleep(0.1)  # as in `count`
    return f"run {run}"


@server.tool
def deliver(
    place: Annotated[str, Header("Place")],
    floor: Annotated[int, Header("Floor")],
    fragile: Annotated[bool, Header("Fragile")],
) -> str:
    """Deliver something; where to is in headers too."""
    return f"{place} {floor}" if fragile else "thrown"


@server.tool
async def ask_user(ctx: Context) -> str:
    """Ask the user how many portions they want."""
    answer = await ctx.elicit("What shall it be?", Order)
    return f"{answer.data.portions} x {answer.data.dish}" if isinstance(answer, Accepted) else "nothing"


@server.tool
async def ask_model(ctx: Context) -> str:
    """Ask the client's model."""
    answer: CreateMessageResult = await ctx.sample("What is good today?", max_tokens=100, system="Be brief.")
    content = answer.content
    return content.text if isinstance(content, TextContent) else "no text"


@server.tool
async def ask_roots(ctx: Context) -> str:
    """Ask for the client's roots."""
    return " ".join(root.uri for root in await ctx.roots())


server.tool(trips["plan_trip"].fn)  # the example that asks twice, books between, and asks the model


@server.tool
def bookings(city: str) -> int:
    """How often a trip to a city was booked."""
    return read_ledger().count(city)


@server.tool
async def grow() -> str:
    """Offer one tool more, at all workers."""
    await server.broadcast("grow")
    return "grown"


@server.on_broadcast("grow")
def add_extra(_: Any) -> None:
    """Offer one tool more."""

    def extra() -> str:
        return "extra"

    server.tool(name=f"extra{len(server.tools)}")(extra)


@server.tool
async def touch(ctx: Context) -> str:
    """Say that the configuration has changed."""
    await ctx.notify_resource_updated("config://app")
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


@server.prompt
def talk(topic: str) -> list[PromptMessage]:
    """A conversation."""
    return [
        PromptMessage("user", TextContent(f"Let us talk about {topic}")),
        PromptMessage("assistant", TextContent("Gladly")),
    ]


@greet.complete("name")
def names(value: str) -> list[str]:
    """The names that begin like this."""
    return [name for name in ("ann", "anton", "bob") if name.startswith(value)]


@profile.complete("name")
def users(value: str) -> list[str]:
    """The users that begin like this."""
    return [name for name in ("ann", "anton", "bob") if name.startswith(value)]


if "--tasks" in sys.argv:

    @server.tool(task=TaskOptions(required=True, after=0, poll=0.1))
    async def simmer(portions: int) -> str:
        """Cook for a while."""
        await asyncio.sleep(0.2)
        return f"simmered {portions}"

    @server.tool(task=TaskOptions(after=0, poll=0.1))
    async def order_later(ctx: Context) -> str:
        """Ask in the task."""
        await ctx.background()
        answer = await ctx.elicit("What to eat?", Order)
        return f"{answer.data.portions} {answer.data.dish}" if isinstance(answer, Accepted) else "none"

    @server.tool(task=TaskOptions(after=0, poll=0.1))
    async def wait_for_ever(ctx: Context) -> str:
        """Wait until the client cancels the task."""
        await ctx.progress(1, 2)
        await asyncio.Event().wait()
        return ""

    @server.tool(task=TaskOptions(after=0, poll=0.1))
    async def burn(ctx: Context) -> str:
        """Fail."""
        await ctx.background()
        raise ToolError("burnt")

    @server.tool(task=True)
    async def stir() -> str:
        """Need no task."""
        return "stirred"


def run_worker(port: int) -> None:
    """Serve on a port, and close each connection after its response."""
    import uvicorn  # noqa: PLC0415 - not in every environment

    app: Any = server.asgi()

    async def closing(scope: Any, receive: Any, send: Any) -> None:
        async def send_last(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await app(scope, receive, send_last)

    uvicorn.run(closing, port=port, log_level="error")


if __name__ == "__main__":
    if sys.argv[-1].startswith("--worker="):
        run_worker(int(sys.argv[-1].partition("=")[2]))
    elif "--alone" in sys.argv:
        server.run(http="127.0.0.1:0", stateless=True, json_only=True)
    elif {"--http", "--sse"} & set(sys.argv):
        server.run(http="127.0.0.1:0")
    else:
        server.run()
