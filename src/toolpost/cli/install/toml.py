"""TOML, changed in place: a key is put or dropped, and every other line stays as it was.

Owns the text, and the few ways of writing a value that a configuration of ours needs. What is written in a
way that it cannot change (a table within braces) is for whoever compares the result with what was wanted.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from toolpost.cli.install.jsonc import ConfigSyntaxError
from toolpost.types.base import JSON

TABLE_DEPTH: Final = 2
"""How many words the header of a new table has at most; what is below stands on one line in it."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_QUOTES: Final = ('"""', "'''", '"', "'")
_TOKEN: Final = re.compile(r"\"\"\"|'''|[\"'#\[\]{}\n]")


class _Statement(NamedTuple):
    """A statement with all its lines, where it stands, and the path of the table that it is in."""

    start: int
    end: int
    table: tuple[str, ...]
    key: str | None
    """The first word of its key; None for a header, a comment and an empty line."""

    is_header: bool


def parse(text: str) -> dict[str, JSON]:
    """The value that a text stands for.

    Raises:
        ConfigSyntaxError: it is no TOML.
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOML's own, or a number has more digits than Python reads
        raise ConfigSyntaxError(str(error)) from error
    except RecursionError as error:
        raise ConfigSyntaxError("it is nested too deeply") from error


def put(text: str, path: Sequence[str], value: JSON) -> str:
    """The text with this value at the path: a mapping as a table, anything else as a key of one.

    Raises:
        ConfigSyntaxError: it is no TOML.
    """
    parse(text)
    if isinstance(value, Mapping) and (len(path) <= TABLE_DEPTH or _find_statements(text, path)):
        for key, inner in cast("Mapping[str, Any]", value).items():
            text = put(text, (*path, key), inner)
        return text
    table, key = path[:-1], path[-1]
    newline = "\r\n" if "\r\n" in text else "\n"
    written = f"{_format_key(key)} = {_format_value(value)}{newline}"
    lines = _find_statements(text, table)
    if not lines:
        gap = "" if not text or text.endswith(("\n\n", "\r\n\r\n")) else newline
        gap = gap if not text or text.endswith("\n") else newline + gap
        return f"{text}{gap}[{'.'.join(map(_format_key, table))}]{newline}{written}"
    for line in lines:
        if line.key == key:
            return text[: line.start] + written + text[line.end :]
    end = max(line.end for line in lines if line.is_header or line.key is not None)
    gap = "" if text[:end].endswith("\n") else newline
    return text[:end] + gap + written + text[end:]


def drop(text: str, path: Sequence[str]) -> str:
    """The text without what is at the path, with the tables below it. Where nothing is, it is the same.

    Raises:
        ConfigSyntaxError: it is no TOML.
    """
    parse(text)
    table = tuple(path)
    gone: list[tuple[int, int]] = []
    for line in _iterate_statements(text):
        below = line.table[: len(table)] == table and (line.is_header or line.key is not None)
        if below or (line.table == table[:-1] and line.key == table[-1]):
            gone.append((line.start, line.end))
    for start, end in reversed(gone):
        text = text[:start] + text[end:]
    if gone and gone[-1][0] >= len(text.rstrip()):  # it was the last: nothing is left to be kept apart from
        text = text.rstrip() + text[len(text.rstrip()) :][: 2 if "\r\n" in text else 1]
    return text


def _find_statements(text: str, table: Sequence[str]) -> list[_Statement]:
    return [line for line in _iterate_statements(text) if line.table == tuple(table)]


def _iterate_statements(text: str) -> Iterator[_Statement]:
    """The statements of a text that is known to be TOML."""
    table: tuple[str, ...] = ()
    for start, end in _split_statements(text):
        statement = text[start:end]
        word = statement.lstrip()[:1]
        if word in {"", "#"}:
            yield _Statement(start, end, table, None, is_header=False)
            continue
        value = tomllib.loads(statement)
        if word == "[":
            table = tuple(_read_header_path(value))
        yield _Statement(start, end, table, None if word == "[" else next(iter(value)), is_header=word == "[")


def _read_header_path(value: Any) -> Iterator[str]:
    """The words of a header, from the tables that it alone makes."""
    while value:
        ((word, value),) = cast("dict[str, Any]", value).items()
        yield word
        value = cast("list[Any]", value)[0] if isinstance(value, list) else value


def _split_statements(text: str) -> Iterator[tuple[int, int]]:
    """Where each statement begins and ends: at a line end outside of brackets and strings."""
    start = depth = at = 0
    while found := _TOKEN.search(text, at):
        piece, at = found[0], found.end()
        if piece in _QUOTES:
            at = _skip_string(text, at, piece)
        elif piece == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif piece in "[{":
            depth += 1
        elif piece in "]}":
            depth -= 1
        elif depth == 0:
            yield start, at
            start = at
    if start < len(text):
        yield start, len(text)


def _skip_string(text: str, at: int, quotes: str) -> int:
    """Where a string ends that these quotes have begun."""
    while not text.startswith(quotes, at):
        at += 2 if quotes[0] == '"' and text[at] == "\\" else 1
    at += len(quotes)
    while len(quotes) == 3 and text.startswith(quotes[0], at):  # one or two more may stand before the last
        at += 1
    return at


def _format_key(word: str) -> str:
    return word if _BARE_KEY.fullmatch(word) else _format_value(word)


def _format_value(value: JSON) -> str:
    """A value on one line: what JSON writes, but for tables."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return "{ " + ", ".join(f"{_format_key(key)} = {_format_value(item)}" for key, item in pairs) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_value, cast("list[Any]", value))) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
