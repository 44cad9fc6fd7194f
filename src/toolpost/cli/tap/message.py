"""One message as it passed, with what the inspector found out about it, and how it is shown.

`MessageFormatter` makes a line for a person or a JSON object for a program; `recorder` writes it.
"""

from typing import Any, Final, Literal, TypeAlias

import click
import msgspec
from msgspec import Struct, field

from toolpost.cli.output import escape_control_characters
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.methods import CLIENT, Role
from toolpost.types.base import RequestId

MessageKind: TypeAlias = Literal["request", "notification", "result", "error", "junk", "note"]


class ObservedMessage(Struct, kw_only=True):
    """One message as it went by, at so many seconds since the start.

    "junk" is no message at all, a "note" is something that happened to the connection. The method of an
    answer is that of its request; `duration` are the seconds in between. `failed` is an error, or the result
    of a tool that says so. The body of a message that is too long is its beginning.
    """

    at: float
    by: Role
    size: int
    kind: MessageKind = "junk"
    id: RequestId | None = None
    method: str = ""
    summary: str = ""
    duration: float | None = None
    violations: list[str] = field(default_factory=list[str])
    failed: bool = False
    body: bytes = b""


def create_note(by: Role, text: str, at: float, *, failed: bool = False) -> ObservedMessage:
    """Something that happened to the connection."""
    return ObservedMessage(at=at, by=by, size=0, kind="note", summary=text, failed=failed)


MAX_JUNK_TEXT: Final = 120  # how many characters are shown of what is no message
MAX_FULL_TEXT: Final = 256 * 1024  # how many characters of a message are shown in full
SUMMARY_WIDTH: Final = 56  # columns before duration and size, so that most lines stay below 100
MAX_ID: Final = 12  # characters of an id: some are long, and the beginning tells them apart

_COLOURS: Final = {
    "request": "cyan",
    "notification": "blue",
    "result": "green",
    "error": "red",
    "junk": "magenta",
}
_MARGIN: Final = " " * 13


class MessageFormatter:
    """Formats messages as text, with the whole message if `full`, or as JSON objects."""

    def __init__(self, *, json: bool = False, full: bool = False, colour: bool = False) -> None:
        self._json = json
        self.full = full
        self._colour = colour and not json

    def format_message(self, seen: ObservedMessage, body: Any = None) -> str:
        """The text of a message; `body` is the decoded message without secrets, or junk as a string."""
        return self._format_json(seen, body) if self._json else self._format_text(seen, body)

    def _format_json(self, seen: ObservedMessage, body: Any) -> str:
        members = {
            "at": round(seen.at, 6),
            "from": seen.by,
            "kind": seen.kind,
            "id": seen.id,
            "method": seen.method or None,
            "summary": seen.summary or None,
            "ms": None if seen.duration is None else round(1000 * seen.duration, 3),
            "bytes": None if seen.kind == "note" else seen.size,
            "failed": seen.failed or None,
            "violations": seen.violations or None,
        }
        shown: dict[str, Any] = {name: value for name, value in members.items() if value is not None}
        if seen.kind == "junk" or (self.full and body is not None):
            shown["message"] = body
        return msgspec.json.encode(shown).decode()

    def _format_text(self, seen: ObservedMessage, body: Any) -> str:
        name = _flatten(shorten("" if seen.id is None else str(seen.id), MAX_ID))
        arrow = "→" if seen.by == CLIENT else "←"
        word, about = shorten(seen.method) or seen.kind, seen.summary
        if seen.kind == "junk":
            word = f"no message: {shorten(str(body), MAX_JUNK_TEXT)!r}"
        if seen.failed:
            about = f"✗ {about}"
        if seen.kind == "note":
            word, about = about, ""
        duration = seen.duration or 0
        took = f"{duration:.2f} s" if duration >= 1 else f"{1000 * duration:.1f} ms"
        took = "" if seen.duration is None else took
        size = "" if seen.kind == "note" else _format_size(seen.size)
        time = f"{seen.at:9.3f}"
        word, about = _flatten(word), _flatten(f"  {about}" if about else "")
        space = " " * (SUMMARY_WIDTH - len(word) - len(about))
        tail = f"{took:>9}  {size:>9}"
        if self._colour:
            time, tail = click.style(time, dim=True), click.style(tail, dim=True)
            arrow = click.style(arrow, bold=True)
            word = click.style(word, fg="red" if seen.failed else _COLOURS.get(seen.kind, "yellow"))
        lines = [f"{time} {arrow} {name:>3} {word}{about}{space} {tail}".rstrip()]
        for each in seen.violations:
            text = f"{_MARGIN} ! {_flatten(each)}"
            lines.append(click.style(text, fg="yellow", bold=True) if self._colour else text)
        if self.full and body is not None and seen.kind != "junk":
            text = shorten(msgspec.json.format(msgspec.json.encode(body), indent=2).decode(), MAX_FULL_TEXT)
            lines += [f"{_MARGIN} {line}" for line in escape_control_characters(text).splitlines()]
        return "\n".join(lines)


def _flatten(text: str) -> str:
    return escape_control_characters(text).replace("\n", "\\n").replace("\t", " ")


def _format_size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    kibi = count / 1024
    return f"{kibi:.1f} KiB" if kibi < 1024 else f"{kibi / 1024:.1f} MiB"
