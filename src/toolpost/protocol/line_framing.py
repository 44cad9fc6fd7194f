"""Newline framing: where one message ends and the next begins on a stream of bytes.

Owns the lines of stdio, which sockets may use as well, and the error for a line that is too long, which costs
its sender that one line only. Knows nothing of where the bytes come from.
"""

from typing import Final, final

from msgspec import Struct

from toolpost.errors import RemoteProtocolError
from toolpost.protocol.jsonrpc import make_invalid_request, outline_envelope

MAX_LINE: Final = 4 * 1024 * 1024  # bytes: room for a large picture in base64, as in the TypeScript SDK
READ_SIZE: Final = 64 * 1024
"""Bytes to read at a time: a whole pipe of Linux. asyncio's default is so large that glibc maps and unmaps
memory for each read."""
EDGE_BYTES: Final = 4096  # bytes to keep of either end of a line that is too long: one of them has the id

CR: Final = 0x0D
LF: Final = 0x0A
_CLOSE: Final = ord("}")
_JSON_SPACE: Final = b" \t\r"  # and LF, which no line holds


@final
class OversizedLine(Struct, frozen=True):
    """Stands for a line over the limit; `head` and `tail` are its ends, `}` while it is still open."""

    size: int
    limit: int
    head: bytes
    tail: bytes
    is_reported: bool = False
    """Whether the line was already reported while it was open."""

    def make_error(self) -> RemoteProtocolError:
        """Return the error, with the id and the answer as far as the ends of the line show them."""
        why = f"message too long: {self.size} bytes (limit: {self.limit})"
        return make_invalid_request(why, outline_envelope(self.head, self.tail))


class LineBuffer:
    """Turns chunks of a byte stream into whole lines; however the stream is cut, the lines are the same.

    A line ends with LF, and one CR before it belongs to the line end. Lines of nothing but JSON white space
    are left out. Memory stays within the limit, which is for a line without its end, and one chunk.
    """

    __slots__ = ("_edge", "_head", "_limit", "_open", "_oversized_bytes", "start")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._edge = max(1, min(EDGE_BYTES, limit))
        self._open = bytearray()  # the line that has not ended yet; its end, once it is over the limit
        self._head = b""  # how it began, once it is over the limit
        self._oversized_bytes = 0  # its size, once it is over the limit
        self.start: OversizedLine | None = None  # of the line that has not ended yet, over the limit

    def feed(self, data: bytes) -> list[bytes | OversizedLine]:
        """Return the lines that this chunk completes, in order and without their ends."""
        end, limit = data.find(b"\n"), self._limit
        if end < 0:
            self._append(data)
            return []
        if end == len(data) - 1:
            complete, rest = [data[:end]], b""
        else:
            *complete, rest = data.split(b"\n")
        lines: list[bytes | OversizedLine] = []
        for line in complete:
            if self._open:
                self._append(line)
                whole = self.end()
            elif line and line[-1] == _CLOSE and len(line) <= limit:  # nearly all: no white space, no CR
                whole = line
            else:
                whole = self._finish_line(line)
            if whole is not None:
                lines.append(whole)
        self._append(rest)
        return lines

    def end(self) -> bytes | OversizedLine | None:
        """Return the line that was still open at the end of the stream, or None, and empty the buffer."""
        line, size = bytes(self._open), self._oversized_bytes
        self._open.clear()
        self._oversized_bytes = 0
        self.start = None
        if size:
            return OversizedLine(size, self._limit, self._head, line[-self._edge :])
        return self._finish_line(line)

    def _append(self, piece: bytes) -> None:
        """Add a piece to the open line, or only its size and its end once the line is over the limit."""
        if self._oversized_bytes:
            self._oversized_bytes += len(piece)
            self._open += piece[-self._edge :]
            if len(self._open) > 2 * self._edge:
                del self._open[: -self._edge]
        elif piece:
            size = len(self._open) + len(piece)
            self._open += piece
            # A CR in the last place may yet turn out to belong to the line end.
            if size - (piece[-1] == CR) > self._limit:
                self._oversized_bytes = size
                self._head = bytes(self._open[: self._edge])
                self._open = self._open[-self._edge :]
                self.start = OversizedLine(size, self._limit, self._head, b"}")

    def _finish_line(self, line: bytes) -> bytes | OversizedLine | None:
        """Return a complete line, given without its LF; None for white space."""
        size = len(line)
        if size - line.endswith(b"\r") > self._limit:
            return OversizedLine(size, self._limit, line[: self._edge], line[-self._edge :])
        line = line.removesuffix(b"\r")
        return line if line.strip(_JSON_SPACE) else None


def flatten(message: bytes) -> bytes:
    """Return the message on one line: raw line breaks are white space between JSON values (STDIO-1)."""
    return message.replace(b"\r", b" ").replace(b"\n", b" ")
