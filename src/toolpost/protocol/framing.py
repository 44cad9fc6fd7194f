"""Lines: where one message ends and the next begins on a stream of bytes.

Owns the newline framing of stdio, which sockets may use as well, and what can still be told of a line that
was dropped because of its length: it costs its sender that one line, and nobody has to wait for it. Knows
nothing of where the bytes come from.
"""

from typing import Final

from msgspec import Struct

from toolpost.errors import RemoteProtocolError
from toolpost.protocol.jsonrpc import make_invalid_request, outline_envelope

MAX_LINE: Final = 4 * 1024 * 1024
"""The longest line in bytes that is read. Room for 3 MiB of picture in base64; a hundred peers that
never send a newline hold 400 MiB and not all there is. The official TypeScript SDK takes posted messages up
to the same size."""

READ_SIZE: Final = 64 * 1024
"""How many bytes are read from a connection or a pipe at a time: as a pipe of Linux holds. asyncio would ask
for four times as much, and glibc maps buffers above 128 KiB for each read and unmaps them again."""

EDGE_BYTES: Final = 4096
"""How many bytes are kept of either end of a line that is dropped: the id stands in one of them, in front of
the result or behind it."""

_LF: Final = 0x0A
_CR: Final = 0x0D
_CLOSE: Final = ord("}")
_JSON_SPACE: Final = b" \t\r"  # and LF, which no line holds


class OversizedLine(Struct, frozen=True):
    """Stands where a line was that is over the limit.

    Args:
        size: how many bytes it had.
        limit: how many it may have.
        head: how it began.
        tail: how it ended.
    """

    size: int
    limit: int
    head: bytes
    tail: bytes

    def make_error(self) -> RemoteProtocolError:
        """What is wrong with it: the id, the answer that it deserves, and whether it was one itself.

        Where neither end tells what it was, it has an answer and no id.
        """
        why = f"a message of {self.size} bytes is too long, the limit is {self.limit}"
        return make_invalid_request(why, outline_envelope(self.head, self.tail))


class LineBuffer:
    """Turns chunks of a byte stream into whole lines; however the stream is cut, the lines are the same.

    A line ends with LF, and one CR before it belongs to the line end. Lines of nothing but JSON white space
    are left out. Memory stays within the limit and one chunk; the work is linear.

    Args:
        limit: the longest line to accept, in bytes without the line end.
    """

    __slots__ = ("_edge", "_head", "_limit", "_open", "_oversized_bytes")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._edge = max(1, min(EDGE_BYTES, limit))
        self._open = bytearray()  # the line that has not ended yet; its end, once it is over the limit
        self._head = b""  # how it began, once it is over the limit
        self._oversized_bytes = 0  # its size, once it is over the limit

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes | OversizedLine]:
        """The lines that this chunk completes, in order and without their ends."""
        if not isinstance(data, bytes):
            data = bytes(data)
        end = data.find(b"\n")
        if end < 0:
            self._append(data)
            return []
        if end == len(data) - 1 and not self._open and not self._oversized_bytes:
            # Nearly every chunk is one whole message: a slice, and nothing else is copied.
            line = self._finish_line(data[:end])
            return [] if line is None else [line]
        first, *middle, rest = data.split(b"\n")
        self._append(first)
        lines = [self.end(), *map(self._finish_line, middle)]
        self._append(rest)
        return [line for line in lines if line is not None]

    def end(self) -> bytes | OversizedLine | None:
        """The line that was still open when the stream ended, or None. The buffer is empty afterwards.

        A peer that forgets its last newline is still understood.
        """
        if self._oversized_bytes:
            dropped = OversizedLine(
                self._oversized_bytes, self._limit, self._head, bytes(self._open[-self._edge :])
            )
            self._oversized_bytes = 0
            self._open.clear()
            return dropped
        line = bytes(self._open)
        self._open.clear()
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
            if size - (piece[-1] == _CR) > self._limit:
                self._oversized_bytes = size
                self._head = bytes(self._open[: self._edge])
                self._open = self._open[-self._edge :]

    def _finish_line(self, line: bytes) -> bytes | OversizedLine | None:
        """What a complete line, given without its LF, counts as; None for white space."""
        size = len(line)
        if size and size <= self._limit and line[-1] == _CLOSE:  # nearly all: no white space, no CR behind it
            return line
        if size - line.endswith(b"\r") > self._limit:
            return OversizedLine(size, self._limit, line[: self._edge], line[-self._edge :])
        line = line.removesuffix(b"\r")
        return line if line.strip(_JSON_SPACE) else None


def frame(message: bytes) -> bytes:
    """The message as one line, with its LF.

    JSON allows raw line breaks only as white space between values, never inside strings. So in a JSON text
    that somebody else wrote they become spaces, and the text means the same (STDIO-1).
    """
    if _LF in message or _CR in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return message + b"\n"
