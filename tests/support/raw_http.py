"""HTTP/1.1 as bytes: sends a request as given, and returns the response unchanged.

Uses neither our client nor a library that would correct mistakes, so a test can send invalid requests and
sees the exact response.
"""

import asyncio
import json
import socket
import struct
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

__all__ = ["Answer", "Event", "Wire", "wired"]


class Answer(NamedTuple):
    """A response; of an event stream, only the head."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """The last value of each header, by name in lower case."""
        return dict(self.fields)

    @property
    def json(self) -> Any:
        """The decoded body."""
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)

    @property
    def code(self) -> int:
        """The code of the JSON-RPC error in the body."""
        return self.json["error"]["code"]

    @property
    def text(self) -> str:
        """The message of the JSON-RPC error in the body."""
        return self.json["error"]["message"]


class Event(NamedTuple):
    """One event of a stream, or a comment."""

    data: str = ""
    kind: str | None = None
    id: str | None = None
    retry: int | None = None
    comment: bool = False

    @property
    def json(self) -> Any:
        """The decoded data."""
        return json.loads(self.data)


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self.reader = reader
        self.writer = writer
        self.authority = authority
        self.comments = 0
        self._left: int | None = None  # of a body with a length; None for chunks
        self._text = b""
        self._over = False

    # ----------------------------------------------------------------- out

    async def send(self, data: bytes) -> None:
        """Send these bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(
        self,
        method: str,
        target: str,
        headers: Any = (),
        body: bytes | None = None,
        *,
        host: str | None = "",
        length: bool = True,
    ) -> None:
        """Send a request.

        Args:
            method: the verb.
            target: path and query.
            headers: pairs, or a mapping.
            body: the body.
            host: another value of Host; None leaves the header out.
            length: whether to send the length of the body.
        """
        pairs = list(headers.items() if isinstance(headers, dict) else headers)
        lines = [f"{method} {target} HTTP/1.1"]
        if host is not None:
            lines.append(f"Host: {host or self.authority}")
        lines += [f"{name}: {value}" for name, value in pairs]
        if body is not None and length:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    async def half_close(self) -> None:
        """Close the sending side, but continue to read."""
        self.writer.write_eof()

    async def close(self) -> None:
        """Close cleanly."""
        self.writer.close()
        with_error = await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)
        del with_error

    async def abort(self) -> None:
        """Abort the connection: the other end gets a reset."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        await self.close()

    # ----------------------------------------------------------------- in

    async def head(self) -> Answer:
        """Read the head of a response, without its body or events."""
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        answer = Answer(int(status.split(" ", 2)[1]), fields)
        chunked = answer.headers.get("transfer-encoding") == "chunked"
        self._left = None if chunked else int(answer.headers.get("content-length", "0"))
        self._text, self._over = b"", False
        return answer

    async def answer(self, *, head: bool = False) -> Answer:
        """Read a whole response.

        Args:
            head: whether the request was HEAD, so that there is no body.
        """
        begun = await self.head()
        if begun.status == 204 or head:
            return begun
        return begun._replace(body=await self.rest())

    async def rest(self) -> bytes:
        """Read the rest of the body."""
        if self._left is not None:
            return await self.reader.readexactly(self._left)
        parts: list[bytes] = []
        while part := await self._chunk():
            parts.append(part)
        return b"".join(parts)

    async def _chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def event(self) -> Any:
        """Return the next event of a stream, or None at its end. Comments are counted."""
        while (event := await self.block()) is not None and event.comment:
            self.comments += 1
        return event

    async def block(self) -> Event | None:
        """Return the next event or comment of a stream, or None at its end."""
        while b"\n\n" not in self._text:
            part = b"" if self._over else await self._chunk()
            if not part:
                assert self._text == b"", "a stream that ends in the middle of an event"
                self._over = True
                return None
            self._text += part
        block, self._text = self._text.split(b"\n\n", 1)
        return _event(block.decode())

    async def events(self) -> list[Event]:
        """Return the remaining events."""
        found: list[Event] = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found

    async def ended(self) -> bool:
        """Return whether the other end closes without further data."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


def _event(block: str) -> Event:
    fields: dict[str, Any] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    if set(fields) == {""}:
        return Event(comment=True)
    assert set(fields) <= {"data", "event", "id", "retry"}, block
    assert "data" in fields, block
    retry = fields.get("retry", [None])[-1]
    return Event(
        "\n".join(fields["data"]),
        fields.get("event", [None])[-1],
        fields.get("id", [None])[-1],
        None if retry is None else int(retry),
    )


@asynccontextmanager
async def wired(port: int):
    """Open a connection to a server on this machine."""
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port), f"127.0.0.1:{port}")
    try:
        yield wire
    finally:
        await wire.close()
