"""The number of our function calls per tool call, by transport: fewer steps are simpler and faster.

Counted are calls of functions and coroutines of `toolpost`, not the times that a coroutine goes on. The call
is an ordinary one: headers, ids and tokens differ each time, the tool takes a context and awaits once.
"""

import asyncio
import dis
import functools
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import toolpost
from revision_dates import LATEST, LATEST_SESSION
from toolpost import Context, Server
from toolpost.errors import ChannelClosed
from toolpost.server.runtime.conversation import ServerConversation
from toolpost.types import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION

SOURCE = str(Path(toolpost.__file__).parent)
WARM_UP = 20
LIMITS = {"stateless": 45, "session": 55, "conversation": 45}
ABOUT = {"name": "caller", "version": "1"}


def make_server() -> Server:
    server = Server("counted", version="1")

    @server.tool
    async def work(a: int, b: int, ctx: Context) -> int:
        await asyncio.sleep(0)
        return a + b

    return server


async def count(call: Callable[[int], Awaitable[object]]) -> list[str]:
    """Return our functions that one call enters, in order, after warm-up calls."""
    for number in range(1, WARM_UP):
        await call(number)
    codes: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and frame.f_lasti <= find_start(code):
            codes.append(code)

    sys.setprofile(note)
    try:
        await call(WARM_UP)
    finally:
        sys.setprofile(None)
    return [f"{Path(code.co_filename).relative_to(SOURCE)}:{code.co_qualname}" for code in codes]


@functools.cache
def find_start(code: CodeType) -> int:
    """Return the first instruction of a function; a resumed coroutine continues after it."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def make_call(number: int, meta: dict[str, Any]) -> bytes:
    params = {
        "name": "work",
        "arguments": {"a": 1, "b": number},
        "_meta": {"progressToken": number, **meta},
    }
    return encode({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


def make_opening() -> bytes:
    params = {"protocolVersion": LATEST_SESSION.date, "capabilities": {}, "clientInfo": ABOUT}
    return encode({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})


# --------------------------------------------------------------------- over ASGI


async def post(app: Any, number: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[Any, bytes]:
    """The headers and the body of the response to a POST."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "root_path": "",
        "query_string": b"",
        "client": ("127.0.0.1", 40000 + number),
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"content-length", b"%d" % len(body)),
            (b"user-agent", b"caller/1"),
            (b"x-request-id", b"%032x" % number),
            (b"traceparent", b"00-%032x-%016x-01" % (number, number)),
            *headers,
        ],
    }
    await app(scope, receive, send)
    start, *rest = sent
    assert start["status"] == 200, sent
    return dict(start["headers"]), b"".join(event["body"] for event in rest)


def check_answer(number: int, data: bytes) -> None:
    answer = json.loads(data)
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (number, str(1 + number))


async def count_stateless() -> list[str]:
    app = make_server().asgi()
    meta = {PROTOCOL_VERSION: LATEST.date, CLIENT_INFO: ABOUT, CLIENT_CAPABILITIES: {}}
    headers = [
        (b"mcp-protocol-version", LATEST.date.encode()),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", b"work"),
    ]

    async def call(number: int) -> None:
        check_answer(number, (await post(app, number, make_call(number, meta), headers))[1])

    async with app.lifespan():
        return await count(call)


async def count_session() -> list[str]:
    app = make_server().asgi()
    async with app.lifespan():
        opened, _ = await post(app, 0, make_opening(), [])
        headers = [
            (b"mcp-protocol-version", LATEST_SESSION.date.encode()),
            (b"mcp-session-id", opened[b"mcp-session-id"]),
        ]

        async def call(number: int) -> None:
            check_answer(number, (await post(app, number, make_call(number, {}), headers))[1])

        return await count(call)


# --------------------------------------------------------------------- over a channel


class QueueChannel:
    """The server's end of a channel; the test has the other one."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(self) -> bytes:
        data = await self.received.get()
        if data is None:
            raise ChannelClosed("the test is over")
        return data

    async def send(self, data: bytes, related: object = None) -> None:
        self.sent.put_nowait(data)

    async def close(self) -> None:
        pass

    async def ask(self, data: bytes) -> bytes:
        self.received.put_nowait(data)
        return await self.sent.get()


async def count_conversation() -> list[str]:
    channel = QueueChannel()
    running = asyncio.create_task(ServerConversation(make_server(), channel).run())
    await channel.ask(make_opening())
    channel.received.put_nowait(encode({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    async def call(number: int) -> None:
        check_answer(number, await channel.ask(make_call(number, {})))

    names = await count(call)
    channel.received.put_nowait(None)
    await running
    return names


COUNTS = {"stateless": count_stateless, "session": count_session, "conversation": count_conversation}


@pytest.mark.parametrize("way", LIMITS)
def test_a_call_takes_few_steps(way):
    names = asyncio.run(COUNTS[way]())
    shown = "\n".join(f"{number:3} {name}" for number, name in zip(itertools.count(1), names, strict=False))
    print(f"{way}: {len(names)} calls, {LIMITS[way]} allowed\n{shown}")  # noqa: T201 - shown if it fails
    assert 10 < len(names) <= LIMITS[way]
