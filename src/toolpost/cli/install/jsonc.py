"""Edits JSON with comments and trailing commas in place: sets or drops a member, and keeps everything else.

Works on strings; independent of files and of the meaning of members.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from toolpost.client.mcp_json import ConfigSyntaxError, StrippedText, strip_comments
from toolpost.types.base import JSON

INDENT: Final = "  "  # the indentation of a level, if the text shows none
_SPACE: Final = " \t\r\n"
_LINE_REST: Final = re.compile(r"[ \t]*(?P<newline>\r?\n)?")
_DECODER: Final = json.JSONDecoder()


class _MemberSpan(NamedTuple):
    """The position of a member of an object: its key from `start`, its value from `value` to `end`."""

    key: str
    start: int
    value: int
    end: int


class _ObjectSpan(NamedTuple):
    """The position of an object including its braces, and its members."""

    start: int
    end: int
    members: list[_MemberSpan]

    def find_last(self, key: str) -> int:
        """Return the index of the last member of this name, which wins, or -1."""
        return max((at for at, member in enumerate(self.members) if member.key == key), default=-1)


def parse(text: str) -> JSON:
    """Parse a text."""
    try:
        return json.loads(strip_comments(text).text)
    except json.JSONDecodeError as error:
        raise ConfigSyntaxError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except ValueError as error:  # a number with too many digits
        raise ConfigSyntaxError(str(error)) from error
    except RecursionError as error:
        raise ConfigSyntaxError("nested too deeply") from error


def _scan_object(plain: str, start: int) -> _ObjectSpan:
    """Return the object that begins here, in valid JSON."""
    members: list[_MemberSpan] = []
    at = _skip_space(plain, start + 1)
    while plain[at] != "}":
        key, end = _DECODER.raw_decode(plain, at)
        value = _skip_space(plain, _skip_space(plain, end) + 1)
        _, end = _DECODER.raw_decode(plain, value)
        members.append(_MemberSpan(key, at, value, end))
        at = _skip_space(plain, end)
        if plain[at] == ",":
            at = _skip_space(plain, at + 1)
    return _ObjectSpan(start, at + 1, members)


def _skip_space(plain: str, at: int) -> int:
    while at < len(plain) and plain[at] in _SPACE:
        at += 1
    return at


def put(text: str, path: Sequence[str], value: JSON) -> str:
    """Return the text with this value at the path; missing objects are created."""
    text = text if text.strip(_SPACE) else text + "{}\n"
    plain, holder, rest = _find_holder(text, path)
    if not rest:
        member = holder.members[holder.find_last(path[-1])]
        margin = _get_indent(text, member.start)
        newline = "\r\n" if "\r\n" in text else "\n"
        written = _format_value(value, margin, _detect_indent(text, plain.text), newline)
        return text[: member.value] + written + text[member.end :]
    for key in reversed(rest[1:]):
        value = {key: value}
    return _insert_member(text, plain, holder, rest[0], value)


def drop(text: str, path: Sequence[str]) -> str:
    """Return the text without the value at the path."""
    plain, holder, rest = _find_holder(text, path)
    if rest:
        return text
    at = holder.find_last(path[-1])
    member = holder.members[at]
    behind = _find_comma(plain, member.end)
    before = _find_comma(plain, holder.members[at - 1].end) if behind < 0 and at else -1  # to be dropped, too
    start, end = member.start, max(member.end, behind + 1)
    line, rest_of_line = _find_line_start(text, start), _LINE_REST.match(text, end)
    assert rest_of_line is not None, "the pattern matches an empty string"
    end = rest_of_line.end()
    if rest_of_line["newline"] and not text[line:start].strip(_SPACE):
        start = line
    elif rest_of_line["newline"]:
        end = rest_of_line.start("newline")
    changed = text[:start] + text[end:]
    if before >= 0:
        start = start if text[before + 1 : start].strip(_SPACE) or start == line else before + 1
        changed = text[:before] + text[before + 1 : start] + text[end:]
    return _collapse_empty(changed, path[:-1])


def _find_holder(text: str, path: Sequence[str]) -> tuple[StrippedText, _ObjectSpan, Sequence[str]]:
    """Return the innermost object on the path, and the rest of the path, which is missing."""
    value = parse(text)
    plain = strip_comments(text)
    start, rest = _skip_space(plain.text, 0), path
    while True:
        if not isinstance(value, dict):
            where = ".".join(path[: len(path) - len(rest)])
            raise ConfigSyntaxError(f'"{where}" is not an object' if where else "the file is not an object")
        holder = _scan_object(plain.text, start)
        at = holder.find_last(rest[0])
        if at < 0:
            return plain, holder, rest
        if len(rest) == 1:
            return plain, holder, ()
        value = cast("dict[str, Any]", value)[rest[0]]
        start, rest = holder.members[at].value, rest[1:]


def _insert_member(text: str, plain: StrippedText, holder: _ObjectSpan, key: str, value: JSON) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    outer = _get_indent(text, holder.start)
    unit = _detect_indent(text, plain.text)
    margin = outer + unit
    close = holder.end - 1
    inner = text[:close].rstrip(_SPACE)
    tail = text[len(inner) : close]
    if "\n" not in tail:
        tail = newline + outer
    comma = ""
    if holder.members:
        last = holder.members[-1]
        if text[_find_line_start(text, last.start) : last.start].strip(_SPACE) == "":
            margin = _get_indent(text, last.start)
        if _find_comma(plain, last.end) >= 0:
            comma = ","
        else:
            inner = inner[: last.end] + "," + inner[last.end :]
    written = f"{json.dumps(key, ensure_ascii=False)}: {_format_value(value, margin, unit, newline)}"
    return f"{inner}{newline}{margin}{written}{comma}{tail}{text[close:]}"


def _collapse_empty(text: str, path: Sequence[str]) -> str:
    """Return the text with `{}` for an object at the path if it is empty and has no comment."""
    if not path:
        return text
    _, holder, _ = _find_holder(text, (*path, ""))
    if text[holder.start + 1 : holder.end - 1].strip(_SPACE):
        return text
    return f"{text[: holder.start]}{{}}{text[holder.end :]}"


def _find_comma(plain: StrippedText, at: int) -> int:
    """Return the position of the comma after a value that ends here, or -1."""
    found = _skip_space(plain.text, at)
    if plain.text[found : found + 1] == ",":
        return found
    return next((comma for comma in plain.commas if at <= comma < found), -1)


def _format_value(value: JSON, margin: str, unit: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return f"{newline}{margin}".join(lines)


def _detect_indent(text: str, plain: str) -> str:
    start = _skip_space(plain, 0)
    members = _scan_object(plain, start).members
    margin = _get_indent(text, members[0].start) if members else ""
    return margin.removeprefix(_get_indent(text, start)) or INDENT


def _get_indent(text: str, at: int) -> str:
    """Return the indentation of the line at this position."""
    start = _find_line_start(text, at)
    line = text[start:at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _find_line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1
