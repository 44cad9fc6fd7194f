"""JSON as people keep it, with comments and trailing commas, changed in place.

Owns the text: a member is put or dropped, and every other character stays where it was. Knows nothing of
files, nor of what the members mean.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from toolpost.types.base import JSON

__all__ = ["Broken", "drop", "parsed", "put"]

INDENT: Final = "  "
"""What one level is indented by where the text does not show it."""

_SPACE: Final = " \t\r\n"
_INK: Final = re.compile(r"[^ \t\r\n]")
_PIECE: Final = re.compile(
    r""""[^"\\]*(?:\\.[^"\\]*)*"? | //[^\r\n]* | /\*.*?\*/ | /\* | [,\[\]{}] | [^\s"/,\[\]{}]+ | / """,
    re.DOTALL | re.VERBOSE,
)
"""A string, a comment, what separates, or anything else: enough to tell comments and commas apart."""

_REST: Final = re.compile(r"[ \t]*(?P<newline>\r?\n)?")
_DECODER: Final = json.JSONDecoder()


class Broken(Exception):
    """The text is not what it should be. Its message says what is wrong, and where."""


class _Plain(NamedTuple):
    """A text of the same length without comments and trailing commas, and where those commas were."""

    text: str
    commas: list[int]


class _Member(NamedTuple):
    """Where a member of an object stands: its key from `start`, its value from `value` to `end`."""

    key: str
    start: int
    value: int
    end: int


class _Object(NamedTuple):
    """Where an object stands, from its brace to behind its other brace, and what is in it."""

    start: int
    end: int
    members: list[_Member]

    def last(self, key: str) -> int:
        """The index of the member of this name that counts, or -1."""
        return max((at for at, member in enumerate(self.members) if member.key == key), default=-1)


# --------------------------------------------------------------------- reading


def parsed(text: str) -> JSON:
    """The value that a text stands for.

    Raises:
        Broken: it is no JSON, even with comments and trailing commas.
    """
    try:
        return json.loads(_plain(text).text)
    except json.JSONDecodeError as error:
        raise Broken(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except ValueError as error:  # a number has more digits than Python reads
        raise Broken(str(error)) from error
    except RecursionError as error:
        raise Broken("it is nested too deeply") from error


def _plain(text: str) -> _Plain:
    kept: list[str] = []
    commas: list[int] = []
    done = 0
    before, comma = "[", -1  # what stood before, and where a comma is that may be too much
    for found in _PIECE.finditer(text):
        piece, at = found[0], found.start()
        if piece == "/*":
            line, column = text.count("\n", 0, at) + 1, at - _line_start(text, at) + 1
            raise Broken(f"line {line}, column {column}: a comment has no end")
        if piece.startswith(("//", "/*")):
            kept += text[done:at], _INK.sub(" ", piece)
            done = found.end()
            continue
        if piece in "]}" and comma >= 0:
            commas.append(comma)
        comma = at if piece == "," and before not in {"[", "{", ","} else -1
        before = piece
    plain = list("".join([*kept, text[done:]]))
    for comma in commas:
        plain[comma] = " "
    return _Plain("".join(plain), commas)


def _object(plain: str, start: int) -> _Object:
    """The object that begins here, of a text that is known to be JSON."""
    members: list[_Member] = []
    at = _skip(plain, start + 1)
    while plain[at] != "}":
        key, end = _DECODER.raw_decode(plain, at)
        value = _skip(plain, _skip(plain, end) + 1)
        _, end = _DECODER.raw_decode(plain, value)
        members.append(_Member(key, at, value, end))
        at = _skip(plain, end)
        if plain[at] == ",":
            at = _skip(plain, at + 1)
    return _Object(start, at + 1, members)


def _skip(plain: str, at: int) -> int:
    while at < len(plain) and plain[at] in _SPACE:
        at += 1
    return at


# --------------------------------------------------------------------- changing


def put(text: str, path: Sequence[str], value: JSON) -> str:
    """The text with this value at the path, through objects that are made where there are none.

    Raises:
        Broken: it is no JSON, or the path leads through something that is no object.
    """
    text = text if text.strip(_SPACE) else text + "{}\n"
    plain, holder, rest = _reached(text, path)
    if not rest:
        member = holder.members[holder.last(path[-1])]
        margin = _margin(text, member.start)
        written = _written(value, margin, _unit(text, plain.text), _newline(text))
        return text[: member.value] + written + text[member.end :]
    for key in reversed(rest[1:]):
        value = {key: value}
    return _added(text, plain, holder, rest[0], value)


def drop(text: str, path: Sequence[str]) -> str:
    """The text without what is at the path. Where nothing is, it is the same.

    Raises:
        Broken: as for `put`.
    """
    plain, holder, rest = _reached(text, path)
    if rest:
        return text
    at = holder.last(path[-1])
    member = holder.members[at]
    behind = _comma(plain, member.end)
    before = _comma(plain, holder.members[at - 1].end) if behind < 0 and at else -1  # not needed any more
    start, end = member.start, max(member.end, behind + 1)
    line, rest_of_line = _line_start(text, start), _REST.match(text, end)
    assert rest_of_line is not None, "it matches nothing as well"
    end = rest_of_line.end()
    if rest_of_line["newline"] and not text[line:start].strip(_SPACE):
        start = line
    elif rest_of_line["newline"]:
        end = rest_of_line.start("newline")
    changed = text[:start] + text[end:]
    if before >= 0:
        start = start if text[before + 1 : start].strip(_SPACE) or start == line else before + 1
        changed = text[:before] + text[before + 1 : start] + text[end:]
    return _closed(changed, path[:-1])


def _reached(text: str, path: Sequence[str]) -> tuple[_Plain, _Object, Sequence[str]]:
    """The innermost object on the path, and what of the path is not there."""
    value = parsed(text)
    plain = _plain(text)
    start, rest = _skip(plain.text, 0), path
    while True:
        if not isinstance(value, dict):
            where = ".".join(path[: len(path) - len(rest)])
            raise Broken(f'"{where}" is not an object' if where else "it is not an object")
        holder = _object(plain.text, start)
        at = holder.last(rest[0])
        if at < 0:
            return plain, holder, rest
        if len(rest) == 1:
            return plain, holder, ()
        value = cast("dict[str, Any]", value)[rest[0]]
        start, rest = holder.members[at].value, rest[1:]


def _added(text: str, plain: _Plain, holder: _Object, key: str, value: JSON) -> str:
    newline = _newline(text)
    outer = _margin(text, holder.start)
    unit = _unit(text, plain.text)
    margin = outer + unit
    close = holder.end - 1
    inner = text[:close].rstrip(_SPACE)
    tail = text[len(inner) : close]
    if "\n" not in tail:
        tail = newline + outer
    comma = ""
    if holder.members:
        last = holder.members[-1]
        if text[_line_start(text, last.start) : last.start].strip(_SPACE) == "":
            margin = _margin(text, last.start)
        if _comma(plain, last.end) >= 0:
            comma = ","
        else:
            inner = inner[: last.end] + "," + inner[last.end :]
    written = f"{json.dumps(key, ensure_ascii=False)}: {_written(value, margin, unit, newline)}"
    return f"{inner}{newline}{margin}{written}{comma}{tail}{text[close:]}"


def _closed(text: str, path: Sequence[str]) -> str:
    """The text with `{}` where there is an object on the path that holds not even a comment."""
    if not path:
        return text
    _, holder, _ = _reached(text, (*path, ""))
    if text[holder.start + 1 : holder.end - 1].strip(_SPACE):
        return text
    return f"{text[: holder.start]}{{}}{text[holder.end :]}"


def _comma(plain: _Plain, at: int) -> int:
    """Where the comma behind a value is that ends here, or -1."""
    found = _skip(plain.text, at)
    if plain.text[found : found + 1] == ",":
        return found
    return next((comma for comma in plain.commas if at <= comma < found), -1)


def _written(value: JSON, margin: str, unit: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return f"{newline}{margin}".join(lines)


def _unit(text: str, plain: str) -> str:
    """What one level is indented by."""
    start = _skip(plain, 0)
    members = _object(plain, start).members
    margin = _margin(text, members[0].start) if members else ""
    return margin.removeprefix(_margin(text, start)) or INDENT


def _margin(text: str, at: int) -> str:
    """The space at the beginning of the line of this place."""
    start = _line_start(text, at)
    line = text[start:at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1
