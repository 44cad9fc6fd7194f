"""Recordings: a file of JSON lines, a header and then one line for each message of a conversation.

Defines the format, its writer and its reader, and `record`, which records a real conversation. Secrets are
masked before anything is written. `replay` plays a recording.

    {"tape": 1, "by": "toolpost 0.1.0", "target": "weather"}
    {"at": 0.003, "from": "client", "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}
"""

import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from toolpost.channel import Channel
from toolpost.connect import Target, make_connector
from toolpost.errors import AuthError, ChannelClosed, MCPError, TransportError
from toolpost.protocol.methods import Role
from toolpost.testing.channel import TappedChannel, WrappedTarget
from toolpost.testing.masking import Mask
from toolpost.version import __version__

S = TypeVar("S", bound=msgspec.Struct)

TAPE_FORMAT: Final = 1  # the version in the header; a reader refuses others


class TapeHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a file: its format, the program that wrote it, the name of the server."""

    tape: int
    by: str = ""
    target: str = ""


class TapeLine(msgspec.Struct, frozen=True, omit_defaults=True, rename={"sender": "from"}):
    """Every other line of a file. It has one of `message`, `text`, `lost` and `closed`.

    Secrets are masked. Readers ignore unknown members.
    """

    at: float  # seconds since the recording began
    sender: Role
    message: Any = UNSET  # a JSON-RPC message, or a batch of them
    text: str | UnsetType = UNSET  # anything that is not JSON
    lost: int | str | UnsetType = UNSET  # the id of a client request without a response, as over HTTP
    closed: str | UnsetType = UNSET  # why the connection ended
    why: str = ""  # why a request was lost
    link: int = 1  # the number of the connection, if the client had to connect more than once


class Tape:
    """Writes a recording, line by line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, Tape(f"{folder}/session.jsonl", target="weather") as tape:
        ...     tape.write("client", b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        ...     tape.write("server", b'{"jsonrpc":"2.0","id":1,"result":{}}')
        ...     header, lines = read_tape(f"{folder}/session.jsonl")
        >>> header.target, [line.sender for line in lines]
        ('weather', ['client', 'server'])

    Args:
        path: the file, which is overwritten.
        target: the name of the server. A URL must not contain a secret.
        secrets: values to mask, besides those that `Mask` finds.
    """

    def __init__(self, path: str | PathLike[str], *, target: str = "", secrets: Iterable[str] = ()) -> None:
        self.mask = Mask(secrets)
        self._path = Path(path)
        self._began = time.monotonic()
        self._file = self._path.open("wb")
        self._write_row(TapeHeader(TAPE_FORMAT, f"toolpost {__version__}", str(self.mask(target))))

    def write(self, sender: Role, data: bytes, *, link: int = 1) -> None:
        """Write a message, or other data."""
        try:
            content = {"message": self.mask(msgspec.json.decode(data))}
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            content = {"text": self.mask(data.decode(errors="replace"))}
        self._write_line(sender, link, **content)

    def write_loss(self, request_id: int | str, why: str, *, link: int = 1) -> None:
        """Record that a request of the client gets no response."""
        self._write_line("server", link, lost=request_id, why=self.mask(why))

    def write_end(self, sender: Role, why: str, *, link: int = 1) -> None:
        """Record that a sender has closed the connection."""
        self._write_line(sender, link, closed=self.mask(why))

    def close(self) -> None:
        """Close the file. Closing twice is fine; a further write opens it again."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_line(self, sender: Role, link: int, **content: Any) -> None:
        at = round(time.monotonic() - self._began, 6)
        self._write_row(TapeLine(at, sender, link=link, **content))

    def _write_row(self, line: TapeHeader | TapeLine) -> None:
        if self._file.closed:
            self._file = self._path.open("ab")
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()  # keeps the recording of a killed process


def read_tape(path: str | PathLike[str]) -> tuple[TapeHeader, list[TapeLine]]:
    """Read the header and the lines of a recording.

    Raises:
        MCPError: the file is not a recording, or one of its lines is invalid; the message names it.
    """
    rows = Path(path).read_bytes().splitlines()
    hint = "create one with `toolpost.testing.record` or `toolpost tap --record`"
    header = _decode_row(f"{path}, line 1: not a recording", rows[0] if rows else b"", TapeHeader, hint)
    if header.tape != TAPE_FORMAT:
        text = f"{path} has format {header.tape}; this version reads format {TAPE_FORMAT}"
        raise MCPError(text, hint="record it again")
    hint = "fix or remove the line, or record it again"
    return header, [
        _decode_row(f"{path}, line {number}: invalid line", row, TapeLine, hint)
        for number, row in enumerate(rows[1:], 2)
        if row.strip()
    ]


def _decode_row(problem: str, row: bytes, kind: type[S], hint: str) -> S:
    try:
        return msgspec.json.decode(row, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MCPError(f"{problem}: {error}", hint=hint) from None


# --------------------------------------------------------------------- recording


def record(target: Target, path: str | PathLike[str], *, secrets: Iterable[str] = ()) -> Target:
    """Return the target, with its conversations recorded in a file.

    `Mask` masks secrets: members with names such as `password` or `api_key`, strings that look like a
    token, and the values in `secrets`. HTTP headers are not recorded.

    Example:
        >>> import asyncio
        >>> from tempfile import TemporaryDirectory
        >>> from toolpost import Client, Server
        >>> from toolpost.testing import replay
        >>> server = Server("calculator")
        >>> @server.tool
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> async def sum_of(target):
        ...     async with Client(target) as mcp:
        ...         return (await mcp.call_tool("add", {"a": 1, "b": 2})).data
        >>> with TemporaryDirectory() as folder:
        ...     recorded = asyncio.run(sum_of(record(server, f"{folder}/add.jsonl")))
        ...     replayed = asyncio.run(sum_of(replay(f"{folder}/add.jsonl")))
        >>> recorded, replayed
        (3, 3)

    Args:
        target: any target of a client.
        path: the file, which is overwritten when a client connects.
        secrets: values to mask everywhere.

    Raises:
        TypeError: `target` is not a target.
    """
    name, hidden, links = make_connector(target).name, tuple(secrets), count(1)

    @cache
    def open_tape() -> Tape:
        try:
            return Tape(path, target=name, secrets=hidden)
        except OSError as error:  # not a failure of the server
            raise MCPError(f"could not write the recording: {error}") from error

    return WrappedTarget(target, lambda channel: _RecordedChannel(channel, open_tape(), next(links)))


class _RecordedChannel(TappedChannel):
    """A recorded channel to a server."""

    def __init__(self, inner: Channel, tape: Tape, link: int) -> None:
        super().__init__(inner, partial(tape.write, link=link))
        self._tape = tape
        self._link = link
        self._ended = False
        self._closed = False

    async def receive(self) -> bytes:
        try:
            return await super().receive()
        except ChannelClosed as error:
            if not (self._ended or self._closed):
                self._ended = True
                self._tape.write_end("server", error.message, link=self._link)
            raise

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tape.write_end("client", "the client disconnected", link=self._link)
            self._tape.close()  # another channel that still writes opens it again
            await self.inner.close()

    def on_request_lost(self, notify: Callable[[Any, TransportError | AuthError], object]) -> None:
        def record_loss(request_id: Any, error: TransportError | AuthError) -> None:
            self._tape.write_loss(request_id, error.message, link=self._link)
            notify(request_id, error)

        inner: Any = self.inner
        inner.on_request_lost(record_loss)
