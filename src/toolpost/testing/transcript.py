"""The messages of a conversation in order, to read and to compare in tests.

Defines the readable form, with stable ids and without values that differ from run to run, and the patterns
that it is compared with. Does not validate messages.
"""

import re
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from toolpost.channel import Channel
from toolpost.connect import Target
from toolpost.json_schema import get_member
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import Role
from toolpost.testing.channel import TappedChannel, WrappedTarget, decode_or_text, other_end
from toolpost.testing.masking import Mask
from toolpost.testing.playback import matches_pattern
from toolpost.testing.tape import TapeLine

ELLIPSIS: Final = "…"

MAX_STRING_LENGTH: Final = 200  # characters of a string to show: pictures and sound are longer
MAX_LINE_LENGTH: Final = 500  # characters of a message that a failed comparison shows
CONTEXT_LINES: Final = 100  # messages that it shows before and after the mismatch
_ARROWS: Final = {"client": "→", "server": "←"}
_TYPED_ARROWS: Final = {"->": "→", "<-": "←"}
_TYPED_ARROW: Final = re.compile(r"\A(\d*)(->|<-)")  # the number of a connection may stand before it
_PROTOCOL_PREFIX: Final = "io.modelcontextprotocol/"
_UNPREDICTABLE_MEMBERS: Final = frozenset({"cursor", "elicitationId", "nextCursor", "requestState"})
"""Members whose values are unpredictable."""


class Transcript:
    """The messages between clients and the targets that it wraps.

    Example:
        >>> import asyncio
        >>> from toolpost import Client, Server
        >>> server, transcript = Server("calculator"), Transcript()
        >>> @server.tool
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> async def main():
        ...     async with Client(transcript.wrap(server)) as mcp:
        ...         await mcp.call_tool("add", {"a": 1, "b": 2})
        >>> asyncio.run(main())
        >>> transcript.assert_like('''
        ...     -> 1 server/discover
        ...     <- 1 result ...
        ...     -> 2 tools/call {"name":"add","arguments":{"a":1,"b":2}}
        ...     <- 2 result {..."structuredContent":{"result":3}...}
        ... ''')

    Args:
        secrets: values to mask, besides those that `Mask` finds.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.entries: list[TapeLine] = []
        """All messages, in order; data that is not JSON is a string."""
        self._mask = Mask(secrets)
        self._links = 0
        self._began = time.monotonic()

    def wrap(self, target: Target) -> Target:
        """Return the target, with the messages of its clients added here."""
        return WrappedTarget(target, self.wrap_channel)

    def wrap_channel(self, channel: Channel, *, end: Role = "client") -> Channel:
        """Return a channel, with its messages added here.

        Args:
            channel: the channel.
            end: the side that uses it.
        """
        self._links += 1
        return TappedChannel(channel, partial(self.add, link=self._links), end)

    def add(self, sender: Role, data: bytes, *, link: int = 1) -> None:
        """Add a message, or a batch."""
        message = decode_or_text(data)
        if not self.entries:
            self._began = time.monotonic()
        at = time.monotonic() - self._began
        batch: list[Any] = cast("list[Any]", message) if isinstance(message, list) else [message]
        self.entries += [TapeLine(at, sender, each, link=link) for each in batch]

    @classmethod
    def from_lines(cls, lines: Iterable[TapeLine]) -> "Transcript":
        """Return the transcript of a recording."""
        transcript = cls()
        for line in lines:
            message = line.text if line.message is UNSET else line.message
            if message is not UNSET:
                transcript.entries.append(replace(line, message=message))
        return transcript

    def messages(self, method: str | None = None, *, sender: Role | None = None) -> list[Any]:
        """Return the messages, decoded; only those of one method or one sender if it is given."""
        found = [each.message for each in self.entries if sender in {None, each.sender}]
        return [each for each in found if method is None or get_member(each, "method") == method]

    def lines(self, *, times: bool = False, width: int | None = None) -> list[str]:
        """Return the readable form: one line for each message.

        Requests of the client are numbered from 1, those of the server from s1. The protocol's own members of
        `_meta` are omitted; unpredictable values, such as cursors, are an ellipsis.

        Args:
            times: begin each line with the seconds since the first.
            width: the maximum length of a line.
        """
        formatter = _LineFormatter()
        found: list[str] = []
        for entry in self.entries:
            line = formatter.format_line(replace(entry, message=self._mask(entry.message)))
            line = f"{entry.at:8.3f} {line}" if times else line
            found.append(line if width is None else shorten(line, width))
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __len__(self) -> int:
        return len(self.entries)

    def assert_like(self, pattern: str) -> None:
        """Check that the readable form matches a pattern.

        Args:
            pattern: one line for each message. An ellipsis, `…` or `...`, matches anything within a line, and
                alone on a line any number of lines. `->` is an arrow as well. Indentation and empty lines are
                ignored.

        Raises:
            AssertionError: it does not match; the message shows the mismatch and the lines around it.
        """
        __tracebackhide__ = True
        wanted = [line.strip().replace("...", ELLIPSIS) for line in pattern.splitlines() if line.strip()]
        wanted = [_TYPED_ARROW.sub(lambda found: found[1] + _TYPED_ARROWS[found[2]], line) for line in wanted]
        lines = self.lines()
        mismatch = _find_mismatch(wanted, lines)
        if mismatch is None:
            return
        expected = wanted[mismatch[0]] if mismatch[0] < len(wanted) else "end of transcript"
        actual = lines[mismatch[1]] if mismatch[1] < len(lines) else "end of transcript"
        near = range(max(0, mismatch[1] - CONTEXT_LINES), min(len(lines), mismatch[1] + CONTEXT_LINES))
        shown = [f"{'>' if at == mismatch[1] else ' '} {shorten(lines[at], MAX_LINE_LENGTH)}" for at in near]
        shown = [ELLIPSIS] * (near.start > 0) + shown + [ELLIPSIS] * (near.stop < len(lines))
        whole = "\n".join(shown)
        raise AssertionError(f"expected: {expected}\nactual:   {actual}\nin:\n{whole}")


# --------------------------------------------------------------------- the readable form


class _LineFormatter:
    """Formats lines, and numbers the requests."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Role, str], str] = {}  # by connection, sender, and `repr` of the id
        self._tokens: dict[tuple[int, Role, str], str] = {}
        self._counts = {"client": 0, "server": 0}

    def format_line(self, entry: TapeLine) -> str:
        arrow = _ARROWS[entry.sender] if entry.link == 1 else f"{entry.link}{_ARROWS[entry.sender]}"
        members: Any = entry.message
        if not isinstance(members, dict):
            return f"{arrow} not JSON-RPC: {_encode_json(_normalize(members))}"
        members = cast("dict[str, Any]", members)
        if "method" in members:
            number = self._assign_number(entry, members) if "id" in members else ""
            params = self._renumber_params(entry, _normalize(members.get("params")))
            words = (arrow, number, str(members["method"]), _encode_json(params) if params else "")
            return " ".join(filter(None, words))
        number = self._numbers.get((entry.link, other_end(entry.sender), repr(members.get("id"))), "?")
        kind = "error" if "error" in members else "result"
        return f"{arrow} {number} {kind} {_encode_json(_normalize(members.get(kind)))}"

    def _assign_number(self, entry: TapeLine, members: dict[str, Any]) -> str:
        self._counts[entry.sender] += 1
        number = f"{'s' if entry.sender == 'server' else ''}{self._counts[entry.sender]}"
        self._numbers[entry.link, entry.sender, repr(members["id"])] = number
        token = get_member(members, "params", "_meta", "progressToken")
        if token is not None:
            self._tokens[entry.link, entry.sender, repr(token)] = number
        return number

    def _renumber_params(self, entry: TapeLine, params: Any) -> Any:
        """Return the params of a notification about a request, with the number of that request here."""
        if get_member(params, "requestId") is not None:
            number = self._numbers.get((entry.link, entry.sender, repr(params["requestId"])), "?")
            return {**params, "requestId": number}
        if get_member(params, "progressToken") is not None:
            key = (entry.link, other_end(entry.sender), repr(params["progressToken"]))
            return {**params, "progressToken": self._tokens.get(key, "?")}
        return params


def _normalize(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_STRING_LENGTH else value[:MAX_STRING_LENGTH] + ELLIPSIS
    if isinstance(value, list):
        return [_normalize(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    members = {name: _normalize(each) for name, each in cast("dict[str, Any]", value).items()}
    for name in _UNPREDICTABLE_MEMBERS & members.keys():
        members[name] = ELLIPSIS if isinstance(members[name], str) else members[name]
    if isinstance(meta := members.get("_meta"), dict):
        own = {
            name: value
            for name, value in cast("dict[str, Any]", meta).items()
            if name != "progressToken" and not name.startswith(_PROTOCOL_PREFIX)
        }
        members["_meta"] = own
        if not own:
            del members["_meta"]
    return members


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --------------------------------------------------------------------- the pattern


def _find_mismatch(wanted: list[str], lines: list[str]) -> tuple[int, int] | None:
    """Return the line of the pattern and of the text after the longest match; None if all match."""
    at, line, furthest = 0, 0, (0, 0)
    star: tuple[int, int] | None = None
    while at < len(wanted) or line < len(lines):
        furthest = max(furthest, (at, line))
        if at < len(wanted) and wanted[at] == ELLIPSIS:
            star = (at, line)
            at += 1
        elif at < len(wanted) and line < len(lines) and matches_pattern(wanted[at], lines[line], ELLIPSIS):
            at, line = at + 1, line + 1
        elif star is not None and star[1] < len(lines):
            star = (star[0], star[1] + 1)  # match one more line
            at, line = star[0] + 1, star[1]
        else:
            return furthest
    return None
