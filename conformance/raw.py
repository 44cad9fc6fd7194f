"""One HTTP exchange as raw bytes, with a timeout.

Implements the parts of HTTP/1.1 that three servers on loopback use, and event streams. `answers` interprets
the responses.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Reply", "exchange"]

PATIENCE: Final = 3.0
"""Timeout of one exchange in seconds: loopback needs milliseconds."""


@dataclass
class Reply:
    """A response.

    Attributes:
        status: the HTTP status; 0 without a response.
        headers: the headers, by lowercase name.
        body: the whole body, or the beginning of a stream.
        ended: whether the body was read to its end.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    ended: bool = False

    @property
    def kind(self) -> str:
        """The media type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def messages(self) -> list[Any]:
        """Return the JSON values in the body; an empty list if there are none."""
        if self.kind == "text/event-stream":
            events = (_data(event) for event in self.body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1])
            return [value for data in events if data for value in _parse(data)]
        return _parse(self.body)


async def exchange(port: int, request: bytes, *, until: str = "answer") -> Reply:
    """Send a request to a server on loopback and return its response.

    Args:
        port: its port.
        request: the bytes of the request.
        until: how much of an event stream to read: its "head", its first "message", the "answer", which is
            the first message that is a response or a request that waits for one, or all until its "end".
    """
    reply = Reply()
    with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, ValueError):
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
            try:
                writer.write(request)
                await _read(reader, reply, head_only=request.startswith(b"HEAD "), until=until)
            finally:
                writer.close()
                await writer.wait_closed()
    return reply


async def _read(reader: asyncio.StreamReader, reply: Reply, *, head_only: bool, until: str) -> None:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        reply.headers[name.lower()] = value.strip()
    reply.status = int(status.partition(" ")[2][:3])
    if head_only or reply.status == 204:
        reply.ended = True
        return
    stream = reply.kind == "text/event-stream"
    if stream and until == "head":
        return
    async for chunk in _chunks(reader, reply.headers):
        reply.body += chunk
        if stream and _enough(reply.messages, until):
            return
    reply.ended = True


async def _chunks(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """Yield the body in chunks."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while data := await reader.read(65536):
            yield data


def _enough(messages: list[Any], until: str) -> bool:
    if until == "end":
        return False
    if until == "message":
        return bool(messages)
    return any(_waits_or_answers(message) for message in messages)


def _waits_or_answers(message: Any) -> bool:
    return not isinstance(message, dict) or any(name in message for name in ("id", "result", "error"))


def _data(event: bytes) -> bytes:
    """Return the data lines of an event, joined."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def _parse(data: bytes) -> list[Any]:
    try:
        return [json.loads(data)]
    except (ValueError, RecursionError):
        return []
