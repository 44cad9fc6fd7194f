"""Recordings: a file of JSON lines, a header and then one line for each message of a conversation.

Owns the format, its writer and its reader, and `record`, which writes a real conversation. Secrets are masked
before anything is written. `replay` plays a recording.

    {"tape": 1, "by": "toolpost 0.1.0", "target": "weather"}
    {"at": 0.003, "from": "client", "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from toolpost.channel import Channel
from toolpost.connect import Target, make_connector
from toolpost.errors import AuthError, ChannelClosed, MCPError, TransportError
from toolpost.testing.channel import Sender, TappedChannel, WrappedTarget, with_traits
from toolpost.testing.masking import Mask
from toolpost.version import __version__

TAPE_FORMAT: Final = 1  # the format in the header. A reader refuses others


class TapeHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a file: its format, the program that wrote it, the name of the server."""

    tape: int
    by: str = ""
    target: str = ""


class TapeLine(msgspec.Struct, frozen=True, omit_defaults=True, rename={"sender": "from"}):
    """Every other line of a file. It has one of `message`, `text`, `lost` and `closed`.

    Readers ignore members that they do not know.

    Args:
        at: seconds since the recording began.
        sender: `from` in the file.
        message: a JSON-RPC message, or a batch of them, with secrets masked.
        text: what is not JSON, with secrets masked.
        lost: the id of a client request that will not be answered. Over HTTP one may be lost alone.
        closed: why nothing more came.
        why: why a request was lost.
        link: the number of the connection, if the client had to connect more than once.
    """

    at: float
    sender: Sender
    message: Any = UNSET
    text: str | UnsetType = UNSET
    lost: int | str | UnsetType = UNSET
    closed: str | UnsetType = UNSET
    why: str = ""
    link: int = 1


class Tape:
    """Writes a file, line by line as things are said.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, Tape(f"{folder}/talk.jsonl", target="weather") as tape:
        ...     tape.write("client", b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        ...     tape.write("server", b'{"jsonrpc":"2.0","id":1,"result":{}}')
        ...     header, lines = read_tape(f"{folder}/talk.jsonl")
        >>> header.target, [line.sender for line in lines]
        ('weather', ['client', 'server'])

    Args:
        path: the file; what was in it is lost.
        target: the name of the server, for people. A URL must not hold a secret.
        secrets: values that must not stand in the file, besides what `Mask` finds by itself.
    """

    def __init__(self, path: str | PathLike[str], *, target: str = "", secrets: Iterable[str] = ()) -> None:
        self.mask = Mask(secrets)
        self._path = Path(path)
        self._began = time.monotonic()
        self._file = self._path.open("wb")
        self._write_row(TapeHeader(TAPE_FORMAT, f"toolpost {__version__}", str(self.mask(target))))

    def write(self, sender: Sender, data: bytes, *, link: int = 1) -> None:
        """Keep what was said, message or not."""
        try:
            said = {"message": self.mask(msgspec.json.decode(data))}
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            said = {"text": self.mask(data.decode(errors="replace"))}
        self._write_line(sender, link, **said)

    def write_loss(self, request_id: int | str, why: str, *, link: int = 1) -> None:
        """Keep that a request of the client will not be answered."""
        self._write_line("server", link, lost=request_id, why=self.mask(why))

    def write_end(self, sender: Sender, why: str, *, link: int = 1) -> None:
        """Keep that nothing more will come of a sender."""
        self._write_line(sender, link, closed=self.mask(why))

    def close(self) -> None:
        """Close the file. Closing twice is fine; what is written afterwards opens it again."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_line(self, sender: Sender, link: int, **said: Any) -> None:
        at = round(time.monotonic() - self._began, 6)
        self._write_row(TapeLine(at, sender, link=link, **said))

    def _write_row(self, line: TapeHeader | TapeLine) -> None:
        if self._file.closed:
            self._file = self._path.open("ab")
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()  # so that a killed process keeps its recording


def read_tape(path: str | PathLike[str]) -> tuple[TapeHeader, list[TapeLine]]:
    """The header and the lines of a file.

    Raises:
        MCPError: it is none of ours, or one of its lines cannot be read; the text says which.
    """
    rows = Path(path).read_bytes().splitlines()
    header = _decode_row(path, 1, rows[0] if rows else b"", TapeHeader)
    if header.tape != TAPE_FORMAT:
        text = f"{path} has format {header.tape}; here format {TAPE_FORMAT} is read"
        raise MCPError(text, hint="record it anew")
    lines = [row for row in enumerate(rows[1:], 2) if row[1].strip()]
    return header, [_decode_row(path, number, row, TapeLine) for number, row in lines]


def _decode_row(path: str | PathLike[str], number: int, row: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(row, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        what, hint = _ROW_ERRORS[kind]
        raise MCPError(f"{path}, line {number}: {what}: {error}", hint=hint) from None


_ROW_ERRORS: Final = {
    TapeHeader: ("this is no recording", "`toolpost.testing.record` and `toolpost tap --record` write them"),
    TapeLine: ("this line of the recording cannot be read", "mend or remove it, or record it anew"),
}


# --------------------------------------------------------------------- recording


def record(target: Target, path: str | PathLike[str], *, secrets: Iterable[str] = ()) -> Target:
    """The target, with all that is said to it and by it kept in a file.

    Secrets are masked as `Mask` finds them: members whose names say so (`password`, `api_key`, …), what looks
    like a token, and the values that are named here. HTTP headers are not kept at all.

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
        ...     told = asyncio.run(sum_of(record(server, f"{folder}/add.jsonl")))
        ...     told_again = asyncio.run(sum_of(replay(f"{folder}/add.jsonl")))
        >>> told, told_again
        (3, 3)

    Args:
        target: whatever a client takes.
        path: the file, which is begun when a client connects; what was in it is lost.
        secrets: values to mask wherever they stand.

    Raises:
        TypeError: it is no target.
    """
    make_tape = partial(Tape, path, target=make_connector(target).name, secrets=tuple(secrets))
    return WrappedTarget(target, _ChannelRecorder(make_tape))


class _ChannelRecorder:
    """Wraps channels, all of them for the tape that `make_tape` makes for the first."""

    def __init__(self, make_tape: Callable[[], Tape]) -> None:
        self._make_tape = make_tape
        self._tape: Tape | None = None
        self._link_count = 0
        self._open_count = 0

    def __call__(self, channel: Channel) -> Channel:
        if self._tape is None:
            try:
                self._tape = self._make_tape()
            except OSError as error:  # not to be taken for one of the server
                raise MCPError(f"the recording cannot be written: {error}") from error
        self._link_count += 1
        self._open_count += 1
        kind = _RecordedLossyChannel if hasattr(channel, "on_request_lost") else _RecordedChannel
        return with_traits(kind, channel)(channel, self._tape, self._link_count, self._release_tape)

    def _release_tape(self) -> None:
        self._open_count -= 1
        if not self._open_count and self._tape is not None:
            self._tape.close()


class _RecordedChannel(TappedChannel):
    """A recorded channel to a server."""

    def __init__(self, inner: Channel, tape: Tape, link: int, left: Callable[[], None]) -> None:
        super().__init__(inner, partial(tape.write, link=link))
        self._tape = tape
        self._link = link
        self._on_close = left
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
            self._tape.write_end("client", "the client left", link=self._link)
            try:
                await self.inner.close()
            finally:
                self._on_close()


class _RecordedLossyChannel(_RecordedChannel):
    """A recorded channel that can lose a single request."""

    def on_request_lost(self, tell: Callable[[Any, TransportError | AuthError], object]) -> None:
        def record_loss(request_id: Any, error: TransportError | AuthError) -> None:
            self._tape.write_loss(request_id, error.message, link=self._link)
            tell(request_id, error)

        inner: Any = self.inner
        inner.on_request_lost(record_loss)
