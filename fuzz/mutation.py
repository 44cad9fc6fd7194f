"""Mutates inputs: bytes, words of the format, parts of JSON. The same seed gives the same mutations.

Used alone in the short runs of the tests, and as an additional mutator of atheris, which does not support
JSON or words.
"""

import json
import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

__all__ = ["MAX_SIZE", "Mutator"]

MAX_SIZE: Final = 4096
"""Bytes of an input: most bugs need fewer, and short inputs are faster and easier to read."""

_ODD_BYTES: Final = b"\0\t\n\r\x1b \"'%&,./:;=?[\\]{}\x7f\x80\xbf\xc0\xed\xef\xfe\xff0129aZ"
_ODD_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.0, -0.0, 0.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 1e308, "", "1"),
    *(" ", "\0", "\ud800", "é", "\u2028", "null", "[1]", "x" * 100, [], {}, [[]], [{}], [None] * 30),
    *({"": None}, {"a": {"a": {}}}, {"_meta": None}, {"$ref": "#"}),
)
Move: TypeAlias = Callable[["Mutator", bytes], bytes]


class Mutator:
    """Mutates inputs.

    Args:
        tokens: words of the format.
        others: inputs to take parts from.
        seed: the seed of the random numbers.
    """

    def __init__(self, tokens: tuple[bytes, ...], others: list[bytes], seed: int = 0) -> None:
        self.tokens = tokens
        self.others = others or [b""]
        self.dice = random.Random(seed)

    def mutate(self, data: bytes) -> bytes:
        """Return the input with one to four changes of its bytes, or of its JSON, which stays valid."""
        moves = self.dice.choice((_ON_BYTES, _ON_JSON, _ON_BYTES + _ON_JSON))
        for _ in range(self.dice.randint(1, 4)):
            data = self.dice.choice(moves)(self, data)[:MAX_SIZE]
        return data

    def part(self, data: bytes) -> tuple[int, int]:
        """Return a random range of the input; short ones are likelier."""
        start = self.dice.randint(0, len(data))
        return start, min(len(data), start + self.dice.choice((0, 1, 1, 2, 4, 16, 256)))

    def changed(self, value: Any) -> Any:
        """Return a JSON value with one part changed."""
        members = self._members(value)
        if not members or self.dice.random() < 0.1:
            around: tuple[Any, ...] = ([value], {"a": value}, [value, value])
            return self.dice.choice(_ODD_VALUES + around)
        key = self.dice.choice(members)
        match self.dice.randrange(8):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[self._name()] = value[key]
            case 2:
                value[key] = value[self.dice.choice(members)]
            case _:
                value[key] = self.changed(value[key])
        return cast("Any", value)

    @staticmethod
    def _members(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return list(cast("dict[str, Any]", value))
        return list(range(len(cast("list[Any]", value)))) if isinstance(value, list) else []

    def _name(self) -> str:
        return self.dice.choice(self.tokens).decode("latin-1").strip('":{')


def _set_byte(mutator: Mutator, data: bytes) -> bytes:
    at = mutator.dice.randint(0, len(data))
    return data[:at] + bytes([mutator.dice.choice(_ODD_BYTES)]) + data[at + 1 :]


def _flip(mutator: Mutator, data: bytes) -> bytes:
    if not data:
        return data
    at = mutator.dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << mutator.dice.randrange(8)]) + data[at + 1 :]


def _cut(mutator: Mutator, data: bytes) -> bytes:
    start, end = mutator.part(data)
    return data[:start] + data[end:]


def _repeat(mutator: Mutator, data: bytes) -> bytes:
    start, end = mutator.part(data)
    return data[:end] + data[start:end] * mutator.dice.choice((1, 1, 2, 100)) + data[end:]


def _say(mutator: Mutator, data: bytes) -> bytes:
    start, end = mutator.part(data)
    return data[:start] + mutator.dice.choice(mutator.tokens) + data[mutator.dice.choice((start, end)) :]


def _splice(mutator: Mutator, data: bytes) -> bytes:
    other = mutator.dice.choice(mutator.others)
    return data[: mutator.part(data)[0]] + other[mutator.part(other)[0] :]


def _borrow(mutator: Mutator, data: bytes) -> bytes:
    other = mutator.dice.choice(mutator.others)
    start, end = mutator.part(other)
    at = mutator.part(data)[0]
    return data[:at] + other[start:end] + data[at:]


def _add_line(mutator: Mutator, data: bytes) -> bytes:
    return data + b"\n" + mutator.dice.choice(mutator.others)


def _change_json(mutator: Mutator, data: bytes) -> bytes:
    """Change a value in one of the lines that are JSON."""
    lines = data.split(b"\n")
    at = mutator.dice.randrange(len(lines))
    try:
        value = mutator.changed(json.loads(lines[at]))
        text = json.dumps(value, ensure_ascii=mutator.dice.random() < 0.5, separators=(",", ":"))
    except (ValueError, RecursionError):
        return _say(mutator, data)
    lines[at] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


_ON_BYTES: Final[tuple[Move, ...]] = (
    *(_set_byte, _flip, _cut, _repeat, _say, _say, _splice, _borrow),
    _add_line,
)
_ON_JSON: Final[tuple[Move, ...]] = (*(_change_json,) * 9, _add_line)
