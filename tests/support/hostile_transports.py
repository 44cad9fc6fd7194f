"""Serves `byte_server` over each transport, for our client."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import byte_server
from scripted import Heard, answer, chunk, event, scripted, stream
from toolpost import Client, Http, Stdio

__all__ = [
    "LIMIT",
    "PROGRAM",
    "REVISIONS",
    "SESSION",
    "TAKEN",
    "WAYS",
    "child",
    "events",
    "meeting",
    "run",
    "serve",
]

LIMIT = 256 * 1024
"""Bytes of the largest response that the clients here read."""

SHORT = 0.4
"""Seconds that the clients here wait for a response."""

PROGRAM = str(Path(__file__).with_name("byte_server.py"))
REVISIONS = {"session": "2025-11-25", "stateless": "2026-07-28"}
SESSION = "session-1"
TAKEN = answer(202, kind=None)
WAYS = [
    "stdio session",
    "stdio stateless",
    "body session",
    "body stateless",
    "stream session",
    "stream stateless",
    "sse session",
]
"""A transport, or the form of an HTTP response, and an era."""


def run(main: Callable[[], Awaitable[object]], seconds: float = 20) -> None:
    """Run a test in a new event loop, with a timeout."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await main()

    asyncio.run(bounded())


def child(era: str = "session", **options: Any) -> Stdio:
    """The server as a process."""
    given: dict[str, Any] = {"max_line": LIMIT, "stderr": "discard", **options}
    return Stdio(sys.executable, ["-I", "-S", PROGRAM, era], **given)


def events(*messages: bytes) -> bytes:
    """Encode messages as events."""
    return b"".join(event(b"\ndata: ".join(each.split(b"\n")), event="message") for each in messages)


def serve(way: str, special: Callable[[Heard, dict[str, Any]], Awaitable[object]] | None = None) -> Any:
    """Create the server as a script for HTTP.

    Args:
        way: one of `WAYS`.
        special: gets every request first; returns True if it has responded.
    """
    form, era = way.split(" ")
    streams: list[Heard] = []

    async def script(heard: Heard) -> None:
        message = json.loads(heard.body) if heard.body else {}
        if special is not None and await special(heard, message):
            return
        if heard.method == "GET" and form == "sse":
            streams.append(heard)
            await heard.write(stream(event(b"/post", event="endpoint"), end=False))
            await heard.gone()
        elif heard.method == "GET":
            await heard.write(answer(405, kind=None))
        elif heard.method == "DELETE":
            await heard.write(answer(200, kind=None))
        else:
            said = byte_server.answers(message, stateless=era == "stateless")
            opens: Any = {"Mcp_Session_Id": SESSION} if message.get("method") == "initialize" else {}
            if form == "sse":
                await heard.write(TAKEN)
                await streams[-1].write(b"".join(chunk(events(each)) for each in said))
            elif not said and "id" not in message:
                await heard.write(TAKEN)
            elif form == "body":
                await heard.write(answer(200, b"\n".join(said), **opens))
            else:
                await heard.write(stream(*map(events, said), **opens))

    return script


@asynccontextmanager
async def meeting(
    way: str, special: Callable[[Heard, dict[str, Any]], Awaitable[object]] | None = None, **options: Any
) -> AsyncGenerator[Client]:
    """Return a connected client."""
    form, era = way.split(" ")
    options = {"timeout": SHORT, "revision": REVISIONS[era], **options}
    if form == "stdio":
        async with Client(child(era), **options) as client:
            yield client
        return
    library = options.pop("library", None)
    async with scripted(serve(way, special)) as server:
        address = Http(server.url, sse=form == "sse", max_answer=LIMIT, http=library)
        async with Client(address, **options) as client:
            yield client
