"""Other forms of one input that follow from its bytes alone: cut into pieces, or with one part repeated.

Nothing here is random: an input that has failed once fails again.
"""

import random
import zlib
from collections.abc import Iterator
from typing import Final

__all__ = ["pieces", "pumped", "ways"]

PUMPED: Final = 256 * 1024
"""Bytes of a pumped input. Quadratic work on so many ends in the time limit of whoever runs the target."""

BYTE_BY_BYTE: Final = 512
"""Up to this length an input is also cut behind each byte."""

RARELY: Final = 64
"""One input of so many is pumped: that is slow, and what grows badly does so for many inputs."""


def pieces(data: bytes) -> list[bytes]:
    """The input in pieces of uneven sizes, some of them empty."""
    dice = random.Random(zlib.crc32(data))
    widest = dice.choice((2, 3, 8, 64))
    cut: list[bytes] = []
    at = 0
    while at < len(data):
        size = dice.randint(0, widest)
        cut.append(data[at : at + size])
        at += size
    return cut


def ways(data: bytes) -> Iterator[list[bytes]]:
    """The input whole, then in pieces in one or two ways."""
    yield [data]
    yield pieces(data)
    if len(data) <= BYTE_BY_BYTE:
        yield [data[at : at + 1] for at in range(len(data))]


def pumped(data: bytes, size: int = PUMPED) -> Iterator[bytes]:
    """For few inputs, the input with a part of it repeated until it has this size."""
    mark = zlib.crc32(data)
    if data and mark % RARELY == 0:
        dice = random.Random(mark)
        start = dice.randrange(len(data))
        part = data[start : start + dice.choice((1, 2, 3, 8, 32))]
        yield data[:start] + part * (size // len(part)) + data[start + len(part) :]
