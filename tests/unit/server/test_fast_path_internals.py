"""Calls that want nothing but their arguments: the same answers as on the ordinary path, and run once.

Each tool stands in two servers. One has middleware that does nothing, so that all of its calls take the
ordinary path; whatever a client is told has to be the same.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from math import inf, nan
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from toolpost import Client, Context, Image, Server
from toolpost.errors import InvalidParams, ToolError, UrlElicitationRequired
from toolpost.protocol.methods import DATES
from toolpost.protocol.revisions import REVISIONS
from toolpost.server.middleware import Call, Next
from toolpost.server.runtime import conversation, fast_path
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.transports.memory import memory_pair
from toolpost.types import CallToolResult, TextContent

WHO = {"name": "c", "version": "1"}


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: float = 0.5


class Row(msgspec.Struct):
    name: str
    tags: list[str] = []


# --------------------------------------------------------------------- tools


async def whole(a: int, b: int = 2) -> int:
    return a + b


async def truth() -> bool:
    return True


async def ratio() -> float:
    return 0.1


async def huge() -> int:
    return 2**70


async def text() -> str:
    return 'a "quoted" \\ text\n\u2028 世界 \x00'


async def nothing() -> None:
    return None


async def perhaps(there: bool) -> int | None:
    return 3 if there else None


async def file() -> bytes:
    return b"\x00\xff"


async def many() -> list[int]:
    return [1, 2, 3]


async def table() -> dict[str, float]:
    return {"a": 1.5, 'quo"te': 2.0, "\u2028": 3e100}


async def point() -> Point:
    return Point(1)


async def rows() -> list[Row]:
    return [Row("a", ["x"]), Row('"b"')]


async def colour() -> Colour:
    return Colour.RED


async def day() -> date:
    return date(2026, 7, 28)


async def price() -> Decimal:
    return Decimal("1.10")


async def word() -> Literal["yes", "no"]:
    return "yes"


async def untyped():
    return {"a": [1, None]}


async def anything() -> Any:
    return Point(2)


async def own() -> CallToolResult:
    return CallToolResult(content=[TextContent("mine")], structured_content={"a": 1}, is_error=True)


async def promised_own() -> int:
    return CallToolResult(content=[TextContent("mine")], structured_content=5)  # pyright: ignore[reportReturnType] - on purpose


async def picture() -> Image:
    return Image(b"\x89PNG", mime_type="image/png")


async def wrong() -> int:
    return "three"  # pyright: ignore[reportReturnType] - on purpose


async def no_number() -> float:
    return nan


async def too_much() -> list[float]:
    return [1.0, inf]


async def half_a_letter() -> str:
    return "\ud800"


async def refuses() -> int:
    raise ToolError("not today")


async def breaks() -> int:
    raise ValueError("secret")


async def protocol_error() -> int:
    raise InvalidParams("Invalid params: no")


async def stops() -> int:
    raise StopAsyncIteration


async def cancels() -> int:
    raise asyncio.CancelledError


async def exits() -> int:
    raise SystemExit(3)


async def visits() -> int:
    asks = {"mode": "url", "message": "go", "url": "https://example.com/", "elicitationId": "1"}
    raise UrlElicitationRequired("go", {"elicitations": [asks]})


async def turns() -> int:
    await asyncio.sleep(0)
    return 7


async def late() -> int:
    await asyncio.sleep(0)
    raise ToolError("late")


async def timed() -> int:
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
    return 8


async def out_of_time() -> int:
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        return 9
    return 0


async def grouped() -> int:
    async with asyncio.TaskGroup() as group:
        one = group.create_task(asyncio.sleep(0, 10))
    return one.result()


async def late_picture() -> Image:
    await asyncio.sleep(0)
    return Image(b"\x89PNG", mime_type="image/png")


TOOLS = [
    *(whole, truth, ratio, huge, text, nothing, perhaps, file, many, table, point, rows, colour, day, price),
    *(
        word,
        untyped,
        anything,
        own,
        promised_own,
        picture,
        wrong,
        no_number,
        too_much,
        half_a_letter,
        refuses,
    ),
    *(breaks, protocol_error, stops, cancels, exits, visits, turns, late, timed, out_of_time, grouped),
    late_picture,
]
CALLS: list[tuple[str, Any]] = [
    *((tool.__name__, {}) for tool in TOOLS if tool not in {whole, perhaps}),
    *(("perhaps", {"there": there}) for there in (True, False)),
    *(("whole", given) for given in ({"a": 1}, {"a": "1"}, {"a": "x"}, {}, {"a": 1, "c": 2}, None, [], 5)),
    ("nobody", {}),
]


async def through(call: Call, next: Next) -> Any:  # noqa: A002 - the word for it
    return await next(call)


def served(**options: Any) -> Server:
    server = Server("s", version="1", **options)
    for tool in TOOLS:
        server.tool(tool)
    return server


@asynccontextmanager
async def opened(server: Server, revision: str):
    """What asks a server over a channel: a function from a message to its answer."""
    ours, theirs = memory_pair()
    async with server.hold_lifespan() as lifespan:
        serving = asyncio.create_task(ServerConversation(server, theirs, lifespan).run())

        async def ask(message: dict[str, Any]) -> bytes:
            await ours.send(json.dumps({"jsonrpc": "2.0", **message}).encode())
            return await ours.receive()

        if not REVISIONS[revision].stateless:
            hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": WHO}
            await ask({"id": "i", "method": "initialize", "params": hello})
            await ours.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        try:
            yield ask
        finally:
            await ours.close()
            await serving


def asked(revision: str, name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    """A call as a client of this revision writes it."""
    params = {"name": name, "arguments": arguments, **more}
    if REVISIONS[revision].stateless:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": revision,
            "io.modelcontextprotocol/clientInfo": WHO,
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}, "url": {}}},
        }
    return {"method": "tools/call", "params": params}


def run(main: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


# --------------------------------------------------------------------- the same as ever


@pytest.mark.parametrize("revision", DATES)
def test_a_client_is_told_the_same(revision: str):
    async def main():
        async with opened(served(), revision) as ask, opened(served(middleware=[through]), revision) as other:
            for number, (name, arguments) in enumerate(CALLS):
                message = {"id": number, **asked(revision, name, arguments)}
                if name == "visits" and REVISIONS[revision].stateless:
                    ours, theirs = [json.loads(await one(message))["result"] for one in (ask, other)]
                    assert ours["inputRequests"] == theirs["inputRequests"]  # the state is sealed
                else:
                    assert await ask(message) == await other(message), name

    run(main)


@pytest.mark.parametrize("identity", [0, -1, 2**62, "", 'a\u2028"b', "7"])
def test_an_answer_has_the_id_of_its_request(identity: Any):
    async def main():
        async with opened(served(), DATES[-1]) as ask:
            answer = json.loads(await ask({"id": identity, **asked(DATES[-1], "whole", {"a": 1})}))
            assert answer["id"] == identity
            assert type(answer["id"]) is type(identity)
            assert answer["result"]["structuredContent"] == 3

    run(main)


def test_what_is_large_is_written_once(monkeypatch: pytest.MonkeyPatch):
    """The value is neither read again nor written again: it stands in the answer as it was checked."""
    server = Server("s")
    table = [{"name": f"row {number}", "tags": ["a", "b"]} for number in range(1000)]

    @server.tool
    async def large() -> list[Row]:
        return msgspec.convert(table, list[Row])

    read: list[Any] = []
    monkeypatch.setattr("msgspec.json.decode", lambda *args, **_: read.append(args))

    async def main():
        async with opened(server, DATES[-1]) as ask:
            answer = json.loads(await ask({"id": 1, **asked(DATES[-1], "large", {})}))["result"]
            assert answer["structuredContent"] == table
            assert json.loads(answer["content"][0]["text"]) == table

    run(main)
    assert not read


def test_a_form_is_made_anew_for_what_the_server_says_of_itself():
    server = served()

    async def main():
        async with opened(server, DATES[-1]) as ask:
            first = await ask({"id": 1, **asked(DATES[-1], "whole", {"a": 1})})
            tool = server.tools.get("whole")
            assert tool is not None
            form = tool.result_templates[DATES[-1]]
            server.tool(name="another")(whole)
            async with opened(server, DATES[-1]) as again:
                assert await again({"id": 1, **asked(DATES[-1], "whole", {"a": 1})}) == first
            assert tool.result_templates[DATES[-1]] is not form

    run(main)


@pytest.mark.parametrize("value", [nan, inf])
def test_what_pydantic_writes_is_json_or_is_not_sent(value: float):
    class Odd(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
        x: float
        note: str = "NaN"

    server = Server("s")

    async def odd(value: str) -> Odd:
        return Odd(x=float(value))

    odd.__annotations__["return"] = Odd
    server.tool(odd)

    async def main():
        async with opened(server, DATES[-1]) as ask:
            good = json.loads(await ask({"id": 1, **asked(DATES[-1], "odd", {"value": "1.5"})}))
            assert good["result"]["structuredContent"] == {"x": 1.5, "note": "NaN"}
            bad = json.loads(await ask({"id": 2, **asked(DATES[-1], "odd", {"value": str(value)})}))
            assert bad["result"]["isError"]

    run(main)


def test_an_answer_is_one_line():
    server = Server("s")

    @server.tool
    async def lines() -> dict[str, Any]:
        return {"a": msgspec.Raw(b'{\n "b" :\r 1 }')}

    async def main():
        async with opened(server, DATES[-1]) as ask:
            answer = await ask({"id": 1, **asked(DATES[-1], "lines", {})})
            assert b"\n" not in answer
            assert b"\r" not in answer
            assert json.loads(answer)["result"]["structuredContent"] == {"a": {"b": 1}}

    run(main)


# --------------------------------------------------------------------- who is bare


def test_who_wants_more_takes_the_ordinary_path(monkeypatch: pytest.MonkeyPatch):
    """A context, a time limit, a thread, scopes, middleware: each has something to do with the call."""
    called: list[str] = []
    inner = fast_path.call_bare

    def seen(tool: Any, *rest: Any) -> Any:
        called.append(tool.name)
        return inner(tool, *rest)

    monkeypatch.setattr(conversation, "call_bare", seen)
    server = Server("s")

    @server.tool
    async def plain() -> int:
        return 1

    @server.tool
    async def speaks(ctx: Context) -> int:
        await ctx.log("info", "hello")
        return 1

    @server.tool
    def blocks() -> int:
        return 1

    @server.tool(timeout=5)
    async def timed() -> int:
        return 1

    @server.tool(scopes=["a"])
    async def guarded() -> int:
        return 1

    names = ["plain", "speaks", "blocks", "timed", "guarded"]

    async def main():
        async with Client(server) as client:
            for name in names:
                assert (await client.call_tool(name)).data == 1

    run(main)
    assert called == ["plain"]
