"""Variants of one input: cut into pieces, or with one part repeated.

Deterministic: an input that has failed once fails again.
"""

import random
import zlib
from collections.abc import Iterator
from typing import Final

__all__ = ["pieces", "pumped", "ways"]

PUMPED: Final = 256 * 1024
"""Bytes of a pumped input: quadratic work on it exceeds the time limit of a target."""

BYTE_BY_BYTE: Final = 512
"""Up to this length, an input is also cut after each byte."""

RARELY: Final = 64
"""One of this many inputs is pumped: that is slow, and bad growth affects many inputs."""


def pieces(data: bytes) -> list[bytes]:
    """Return the input in pieces of different sizes, some of them empty."""
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
    """Yield the whole input, then its pieces in one or two ways."""
    yield [data]
    yield pieces(data)
    if len(data) <= BYTE_BY_BYTE:
        yield [data[at : at + 1] for at in range(len(data))]


def pumped(data: bytes, size: int = PUMPED) -> Iterator[bytes]:
    """For some inputs, return the input with a part repeated up to this size."""
    mark = zlib.crc32(data)
    if data and mark % RARELY == 0:
        dice = random.Random(mark)
        start = dice.randrange(len(data))
        part = data[start : start + dice.choice((1, 2, 3, 8, 32))]
        yield data[:start] + part * (size // len(part)) + data[start + len(part) :]
