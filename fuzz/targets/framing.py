"""Lines. The judge splits the whole stream at once."""

from typing import Final

from fuzz.cuts import pumped, ways
from fuzz.targets.jsonrpc import check_refusal
from toolpost.protocol.line_framing import MAX_LINE, LineBuffer, OversizedLine, flatten

__all__ = ["TOKENS", "target"]

TOKENS: Final = (b"\n", b"\r\n", b"\r", b"\r\r\n", b" ", b"\t\n", b'{"id":7,"result":[', b'],"id":7}', b"\0")
LIMITS: Final = (1, 32)
"""Limits that short inputs reach."""


def target(data: bytes) -> None:
    """However the stream is cut, the lines are the same, and those over the limit count the same."""
    for limit in (*LIMITS, MAX_LINE):
        whole, *others = [_read(cut, limit) for cut in ways(data)]
        assert all(other == whole for other in others), "it depends on the cut"
        assert whole == _judged(data, limit)
        for line in whole:
            if isinstance(line, OversizedLine):
                check_refusal(line.make_error())
    if data.strip(b" \t\r\n"):
        assert LineBuffer().feed(flatten(data) + b"\n") == [data.replace(b"\r", b" ").replace(b"\n", b" ")]
    for long in pumped(data, 64 * 1024):
        _read([long], LIMITS[-1])
        _read([long[at : at + 1024] for at in range(0, len(long), 1024)], MAX_LINE)


def _read(cut: list[bytes], limit: int) -> list[bytes | OversizedLine]:
    buffer = LineBuffer(limit)
    lines = [line for piece in cut for line in buffer.feed(piece)]
    last = buffer.end()
    assert buffer.end() is None, "something is left"
    return lines if last is None else [*lines, last]


def _judged(data: bytes, limit: int) -> list[bytes | OversizedLine]:
    edge = min(limit, 4096)
    lines: list[bytes | OversizedLine] = []
    for line in data.split(b"\n"):
        plain = line.removesuffix(b"\r")
        if len(plain) > limit:
            lines.append(OversizedLine(len(line), limit, line[:edge], line[-edge:]))
        elif plain.strip(b" \t\r"):
            lines.append(plain)
    return lines
