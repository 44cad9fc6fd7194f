"""The file in which a conversation is kept: JSON lines, a header and then one line for each thing said.

Owns the format, its writer and its reader. Secrets are masked before anything is written. Knows nothing of
channels, and does not care whether what was said makes sense.

    {"tape": 1, "by": "toolpost 0.1.0", "target": "weather"}
    {"at": 0.003, "from": "client", "message": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}
"""

import time
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from toolpost.errors import MCPError
from toolpost.testing.masking import Mask
from toolpost.version import __version__

__all__ = ["TAPE_FORMAT", "Sender", "Tape", "TapeHeader", "TapeLine", "read_tape"]

TAPE_FORMAT: Final = 1
"""What the header of a file says that is written here. A reader refuses others."""

Sender = Literal["client", "server"]
"""Who said something."""


class TapeHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a file.

    Args:
        tape: the number of the format.
        by: the program that wrote it.
        target: the name of the server.
    """

    tape: int
    by: str = ""
    target: str = ""


class TapeLine(msgspec.Struct, frozen=True, omit_defaults=True, rename={"sender": "from"}):
    """Every other line of a file. It has one of `message`, `text`, `lost` and `closed`.

    Readers ignore members that they do not know, so that a writer may add what it likes to know.

    Args:
        at: seconds since the file was begun.
        sender: who said it; in the file the member is called `from`.
        message: a JSON-RPC message, or a batch of them, with secrets masked.
        text: what is no JSON, with secrets masked.
        lost: the id of a request of the client's that will not be answered. Over HTTP one may be lost alone.
        closed: why nothing more came; in the words of whoever wrote the file.
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
            message = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            text = str(self.mask(data.decode(errors="replace")))
            self._write_row(TapeLine(self._elapsed(), sender, text=text, link=link))
        else:
            self._write_row(TapeLine(self._elapsed(), sender, self.mask(message), link=link))

    def write_loss(self, request_id: int | str, why: str, *, link: int = 1) -> None:
        """Keep that a request of the client will not be answered."""
        self._write_row(
            TapeLine(self._elapsed(), "server", lost=request_id, why=str(self.mask(why)), link=link)
        )

    def write_end(self, sender: Sender, why: str, *, link: int = 1) -> None:
        """Keep that nothing more will come of somebody."""
        self._write_row(TapeLine(self._elapsed(), sender, closed=str(self.mask(why)), link=link))

    def close(self) -> None:
        """Close the file. Closing twice is fine; what is written afterwards opens it again."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _elapsed(self) -> float:
        return round(time.monotonic() - self._began, 6)

    def _write_row(self, line: TapeHeader | TapeLine) -> None:
        if self._file.closed:
            self._file = self._path.open("ab")
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()  # whoever is killed has kept what was said until then


def read_tape(path: str | PathLike[str]) -> tuple[TapeHeader, list[TapeLine]]:
    """The header and the lines of a file.

    Raises:
        MCPError: it is none of ours, or one of its lines cannot be read; the text says which.
    """
    with Path(path).open("rb") as file:
        rows = file.read().splitlines()
    header = _decode_row(path, 1, rows[0] if rows else b"", TapeHeader)
    if header.tape != TAPE_FORMAT:
        raise MCPError(
            f"{path} has format {header.tape}; here format {TAPE_FORMAT} is read", hint="record it anew"
        )
    return header, [
        _decode_row(path, number, row, TapeLine) for number, row in enumerate(rows[1:], 2) if row.strip()
    ]


def _decode_row(path: str | PathLike[str], number: int, row: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(row, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        what, hint = _ROW_ERRORS[kind]
        raise MCPError(f"{path}, line {number}: {what}: {error}", hint=hint) from None


_ROW_ERRORS: Final = {
    TapeHeader: (
        "this is no recording",
        "`toolpost.testing.record` and `toolpost tap --record` write them",
    ),
    TapeLine: ("this line of the recording cannot be read", "mend or remove it, or record it anew"),
}
"""What is said of a line that is none, and what to do."""
