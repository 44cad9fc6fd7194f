"""Edits JSON with comments and trailing commas in place: sets or drops a member, and keeps everything else.

Works on strings; independent of files and of the meaning of members.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from toolpost.client.mcp_json import ConfigSyntaxError, strip_comments
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


def put(text: str, path: Sequence[str], value: JSON) -> str:
    """Return the text with this value at the path; missing objects are created."""
    text = text if text.strip(_SPACE) else text + "{}\n"
    place = _Place(text, path)
    member = place.member
    if member is not None:
        written = place.format_value(value, _get_indent(text, member.start))
        return text[: member.value] + written + text[member.end :]
    for key in reversed(place.rest[1:]):
        value = {key: value}
    return place.insert_member(place.rest[0], value)


def drop(text: str, path: Sequence[str]) -> str:
    """Return the text without the value at the path."""
    place = _Place(text, path)
    member = place.member
    if member is None:
        return text
    earlier = place.members[: place.members.index(member)]
    behind = place.find_comma(member.end)
    before = place.find_comma(earlier[-1].end) if behind < 0 and earlier else -1  # to be dropped, too
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


class _Place:
    """The innermost object on a path in a text: `members` from `start` to `end`, braces included.

    `rest` is the path from there. `member` is the last one of its first name, which wins; None if the rest of
    the path is missing.
    """

    def __init__(self, text: str, path: Sequence[str]) -> None:
        self.text = text
        self._plain, self._commas = strip_comments(text)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._root = self.start = self._skip_space(0)
        value = parse(text)
        for depth, key in enumerate(path):
            if not isinstance(value, dict):
                where = ".".join(path[:depth])
                problem = f'"{where}" is not an object' if where else "the file is not an object"
                raise ConfigSyntaxError(problem)
            self.start = self.member.value if depth and self.member is not None else self.start
            self.members, self.end = self._scan_object(self.start)
            self.rest = path[depth:]
            self.member = next((each for each in reversed(self.members) if each.key == key), None)
            if self.member is None:
                return
            value = cast("dict[str, Any]", value)[key]

    def insert_member(self, key: str, value: JSON) -> str:
        """Return the text with one more member of the object."""
        text, newline = self.text, self._newline
        outer = _get_indent(text, self.start)
        margin = outer + self._detect_indent()
        close = self.end - 1
        inner = text[:close].rstrip(_SPACE)
        tail = text[len(inner) : close]
        if "\n" not in tail:
            tail = newline + outer
        comma = ""
        if self.members:
            last = self.members[-1]
            if text[_find_line_start(text, last.start) : last.start].strip(_SPACE) == "":
                margin = _get_indent(text, last.start)
            if self.find_comma(last.end) >= 0:
                comma = ","
            else:
                inner = inner[: last.end] + "," + inner[last.end :]
        written = f"{json.dumps(key, ensure_ascii=False)}: {self.format_value(value, margin)}"
        return f"{inner}{newline}{margin}{written}{comma}{tail}{text[close:]}"

    def format_value(self, value: JSON, margin: str) -> str:
        """Format a value in the style of the text."""
        lines = json.dumps(value, indent=self._detect_indent(), ensure_ascii=False).split("\n")
        return f"{self._newline}{margin}".join(lines)

    def find_comma(self, at: int) -> int:
        """Return the position of the comma after a value that ends here, or -1."""
        found = self._skip_space(at)
        if self._plain[found : found + 1] == ",":
            return found
        return next((comma for comma in self._commas if at <= comma < found), -1)

    def _detect_indent(self) -> str:
        members, _ = self._scan_object(self._root)
        margin = _get_indent(self.text, members[0].start) if members else ""
        return margin.removeprefix(_get_indent(self.text, self._root)) or INDENT

    def _scan_object(self, start: int) -> tuple[list[_MemberSpan], int]:
        """Return the members of the object that begins here, and its end."""
        members: list[_MemberSpan] = []
        at = self._skip_space(start + 1)
        while self._plain[at] != "}":
            key, end = _DECODER.raw_decode(self._plain, at)
            value = self._skip_space(self._skip_space(end) + 1)
            _, end = _DECODER.raw_decode(self._plain, value)
            members.append(_MemberSpan(key, at, value, end))
            at = self._skip_space(end)
            if self._plain[at] == ",":
                at = self._skip_space(at + 1)
        return members, at + 1

    def _skip_space(self, at: int) -> int:
        while at < len(self._plain) and self._plain[at] in _SPACE:
            at += 1
        return at


def _collapse_empty(text: str, path: Sequence[str]) -> str:
    """Return the text with `{}` for an object at the path if it is empty and has no comment."""
    if not path:
        return text
    place = _Place(text, (*path, ""))
    if text[place.start + 1 : place.end - 1].strip(_SPACE):
        return text
    return f"{text[: place.start]}{{}}{text[place.end :]}"


def _get_indent(text: str, at: int) -> str:
    """Return the indentation of the line at this position."""
    start = _find_line_start(text, at)
    line = text[start:at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _find_line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1
