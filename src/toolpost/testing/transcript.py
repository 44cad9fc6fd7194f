"""What was said in a conversation, both ways and in order, to be read by people and compared by tests.

Owns the readable form, in which ids are stable and what differs from run to run is left out, and the pattern
that it is compared with. Knows nothing of whether what was said is allowed.
"""

import re
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolpost.channel import Channel
from toolpost.connect import Target
from toolpost.testing.channel import Sender, TappedChannel, WrappedTarget, other_end, with_traits
from toolpost.testing.masking import Mask
from toolpost.testing.playback import get_member, matches_pattern
from toolpost.testing.tape import TapeLine

ELLIPSIS: Final = "…"

MAX_STRING_LENGTH: Final = 200  # how many characters of a string are shown: pictures and sound are longer
MAX_LINE_LENGTH: Final = 500  # characters of a message that a failed comparison shows
CONTEXT_LINES: Final = 100  # messages that it shows before and after the first mismatch
_ARROWS: Final = {"client": "→", "server": "←"}
_TYPED_ARROW: Final = re.compile(r"\A(\d*)(->|<-)")  # with the number of a connection in front of it
_PROTOCOL_PREFIX: Final = "io.modelcontextprotocol/"
_UNPREDICTABLE_MEMBERS: Final = frozenset({"cursor", "elicitationId", "nextCursor", "requestState"})
"""Members whose values nobody can foresee."""


class TranscriptEntry(NamedTuple):
    """Something that was said."""

    sender: Sender
    message: Any  # decoded; a text if it was no JSON
    at: float = 0.0  # seconds since the first
    link: int = 1  # the number of the connection: there may be several clients, and each may connect again


class Transcript:
    """What is said by the clients of the targets that it is put around.

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
        ...     <- 2 result {..."structuredContent":3...}
        ... ''')

    Args:
        secrets: values that are not to be shown, besides what `Mask` finds by itself.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.entries: list[TranscriptEntry] = []
        """All that was said, in order."""
        self._mask = Mask(secrets)
        self._links = 0
        self._began = time.monotonic()

    def wrap(self, target: Target) -> Target:
        """The target, overheard: what a client of it says and hears is added here."""
        return WrappedTarget(target, self.wrap_channel)

    def wrap_channel(self, channel: Channel, *, end: Sender = "client") -> Channel:
        """A channel, overheard.

        Args:
            channel: the channel.
            end: whose it is.
        """
        self._links += 1
        return with_traits(TappedChannel, channel)(channel, partial(self.add, link=self._links), end)

    def add(self, sender: Sender, data: bytes, *, link: int = 1) -> None:
        """Add something that was said."""
        try:
            message = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            message = data.decode(errors="replace")
        if not self.entries:
            self._began = time.monotonic()
        at = time.monotonic() - self._began
        batch: list[Any] = cast("list[Any]", message) if isinstance(message, list) else [message]
        self.entries += [TranscriptEntry(sender, each, at, link) for each in batch]

    @classmethod
    def from_lines(cls, lines: Iterable[TapeLine]) -> "Transcript":
        """What a recording holds, as a transcript."""
        transcript = cls()
        for line in lines:
            if line.message is not msgspec.UNSET or line.text is not msgspec.UNSET:
                message = line.text if line.message is msgspec.UNSET else line.message
                transcript.entries.append(TranscriptEntry(line.sender, message, line.at, line.link))
        return transcript

    def messages(self, method: str | None = None, *, sender: Sender | None = None) -> list[Any]:
        """The messages, decoded; those of one method, or of one sender, if that is said."""
        found = [each.message for each in self.entries if sender in {None, each.sender}]
        return [each for each in found if method is None or get_member(each, "method") == method]

    def lines(self, *, times: bool = False, width: int | None = None) -> list[str]:
        """The readable form: one line for each message.

        Requests of the client are numbered from 1, those of the server from s1. Left out is what the protocol
        itself puts into `_meta`; what cannot be foreseen, such as a cursor, is an ellipsis.

        Args:
            times: begin each line with the seconds since the first.
            width: the number of characters that a line may have.
        """
        pen = _LineFormatter()
        found: list[str] = []
        for said in self.entries:
            line = pen.format_line(said._replace(message=self._mask(said.message)))
            line = f"{said.at:8.3f} {line}" if times else line
            found.append(line if width is None else _truncate(line, width))
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __len__(self) -> int:
        return len(self.entries)

    def assert_like(self, pattern: str) -> None:
        """Return if the readable form fits a pattern.

        Args:
            pattern: one line for each message. An ellipsis, `…` or `...`, stands for anything within a line,
                and alone on a line for any number of lines. `->` is an arrow as well. Indentation and empty
                lines do not count.

        Raises:
            AssertionError: it does not; the text shows where, and the conversation around it.
        """
        __tracebackhide__ = True
        wanted = [_parse_pattern_line(line.strip()) for line in pattern.splitlines() if line.strip()]
        lines = self.lines()
        place = _find_mismatch(wanted, lines)
        if place is None:
            return
        expected = wanted[place[0]] if place[0] < len(wanted) else "nothing more"
        heard = lines[place[1]] if place[1] < len(lines) else "nothing more"
        near = range(max(0, place[1] - CONTEXT_LINES), min(len(lines), place[1] + CONTEXT_LINES))
        shown = [f"{'>' if at == place[1] else ' '} {_truncate(lines[at], MAX_LINE_LENGTH)}" for at in near]
        shown = [ELLIPSIS] * (near.start > 0) + shown + [ELLIPSIS] * (near.stop < len(lines))
        whole = "\n".join(shown)
        raise AssertionError(f"expected: {expected}\nheard:    {heard}\nin:\n{whole}")


# --------------------------------------------------------------------- the readable form


class _LineFormatter:
    """Writes lines, and knows the numbers of the requests that were made so far."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Sender, Any], str] = {}
        self._tokens: dict[tuple[int, Sender, Any], str] = {}
        self._counts = {"client": 0, "server": 0}

    def format_line(self, said: TranscriptEntry) -> str:
        arrow = _ARROWS[said.sender] if said.link == 1 else f"{said.link}{_ARROWS[said.sender]}"
        members: Any = said.message
        if not isinstance(members, dict):
            return f"{arrow} not JSON-RPC: {_encode_json(_normalize(members))}"
        members = cast("dict[str, Any]", members)
        if "method" in members:
            number = self._assign_number(said, members) if "id" in members else ""
            params = self._renumber_params(said, _normalize(members.get("params")))
            words = (arrow, number, str(members["method"]), _encode_json(params) if params else "")
            return " ".join(filter(None, words))
        number = self._numbers.get((said.link, other_end(said.sender), _id_key(members.get("id"))), "?")
        kind = "error" if "error" in members else "result"
        return f"{arrow} {number} {kind} {_encode_json(_normalize(members.get(kind)))}"

    def _assign_number(self, said: TranscriptEntry, members: dict[str, Any]) -> str:
        self._counts[said.sender] += 1
        number = f"{'s' if said.sender == 'server' else ''}{self._counts[said.sender]}"
        self._numbers[said.link, said.sender, _id_key(members["id"])] = number
        token = get_member(members, "params", "_meta", "progressToken")
        if token is not None:
            self._tokens[said.link, said.sender, _id_key(token)] = number
        return number

    def _renumber_params(self, said: TranscriptEntry, params: Any) -> Any:
        """The params of a notice about a request, with the number that it has here."""
        if get_member(params, "requestId") is not None:
            number = self._numbers.get((said.link, said.sender, _id_key(params["requestId"])), "?")
            return {**params, "requestId": number}
        if get_member(params, "progressToken") is not None:
            key = (said.link, other_end(said.sender), _id_key(params["progressToken"]))
            return {**params, "progressToken": self._tokens.get(key, "?")}
        return params


def _id_key(request_id: Any) -> Any:
    return (type(request_id), request_id if isinstance(request_id, int | str) else repr(request_id))


def _normalize(value: Any) -> Any:
    """A value without what differs from run to run."""
    if isinstance(value, str):
        return value if len(value) <= MAX_STRING_LENGTH else value[:MAX_STRING_LENGTH] + ELLIPSIS
    if isinstance(value, list):
        return [_normalize(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return dict(_normalize_members(cast("dict[str, Any]", value)))


def _normalize_members(members: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in members.items():
        if name in _UNPREDICTABLE_MEMBERS and isinstance(value, str):
            yield name, ELLIPSIS
        elif name == "_meta" and isinstance(value, dict):
            facts = cast("dict[str, Any]", value).items()
            own = {
                key: each
                for key, each in facts
                if key != "progressToken" and not key.startswith(_PROTOCOL_PREFIX)
            }
            if own:
                yield name, _normalize(own)
        else:
            yield name, _normalize(value)


def _truncate(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + ELLIPSIS


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --------------------------------------------------------------------- the pattern


def _parse_pattern_line(line: str) -> str:
    """A line of a pattern with the signs that are meant."""
    line = line.replace("...", ELLIPSIS)
    return _TYPED_ARROW.sub(lambda found: found[1] + ("→" if found[2] == "->" else "←"), line)


def _find_mismatch(wanted: list[str], lines: list[str]) -> tuple[int, int] | None:
    """Where lines do not fit a pattern, furthest down that it does; None if they fit."""
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
            star = (star[0], star[1] + 1)  # let it stand for one line more
            at, line = star[0] + 1, star[1]
        else:
            return furthest
    return None
