"""Shows the messages of a tap line by line, and records them on a tape, without secrets.

A line is text or a JSON object. A background thread writes the lines, and drops them when the reader falls
behind.
"""

import contextlib
import dataclasses
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import click
import msgspec
from msgspec import Struct, field

from toolpost.cli.errors import usage_error
from toolpost.cli.output import escape_control_characters, find_unused_path, is_plain
from toolpost.protocol.jsonrpc import shorten
from toolpost.protocol.line_framing import OversizedLine
from toolpost.protocol.methods import CLIENT, Role
from toolpost.testing.masking import Mask
from toolpost.testing.tape import Tape
from toolpost.types.base import RequestId

MessageKind: TypeAlias = Literal["request", "notification", "result", "error", "junk", "note"]


class ObservedMessage(Struct, kw_only=True):
    """One message, seen `at` seconds after the start.

    "junk" is not a message, a "note" is an event of the connection. A response has the method of its request;
    `duration` are the seconds in between. `failed` marks an error, or the result of a failed tool. The body
    of a message that is too long is its beginning.
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
    """Create a note about the connection."""
    return ObservedMessage(at=at, by=by, size=0, kind="note", summary=text, failed=failed)


MAX_JUNK_TEXT: Final = 120  # characters of junk that are shown
MAX_FULL_TEXT: Final = 256 * 1024  # characters of a message that `--full` shows
SUMMARY_WIDTH: Final = 56  # columns before duration and size: most lines stay below 100
MAX_ID: Final = 12  # characters of an id: the beginning distinguishes long ones
_COLOURS: Final = {
    "request": "cyan",
    "notification": "blue",
    "result": "green",
    "error": "red",
    "junk": "magenta",
}
_MARGIN: Final = " " * 13


def format_as_json(seen: ObservedMessage, body: Any = None) -> str:
    """Format a message as a JSON object; `body` is that of `format_as_text`."""
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
    if seen.kind == "junk" or body is not None:
        shown["message"] = body
    return msgspec.json.encode(shown).decode()


def format_as_text(seen: ObservedMessage, body: Any = None, *, colour: bool = False) -> str:
    """Format a message as a line; `body` is the decoded message to show in full, or junk as a string."""
    name = _flatten(shorten("" if seen.id is None else str(seen.id), MAX_ID))
    arrow = "→" if seen.by == CLIENT else "←"
    word, about = shorten(seen.method) or seen.kind, seen.summary
    if seen.kind == "junk":
        word = f"not a message: {shorten(str(body), MAX_JUNK_TEXT)!r}"
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
    if colour:
        time, tail = click.style(time, dim=True), click.style(tail, dim=True)
        arrow = click.style(arrow, bold=True)
        word = click.style(word, fg="red" if seen.failed else _COLOURS.get(seen.kind, "yellow"))
    lines = [f"{time} {arrow} {name:>3} {word}{about}{space} {tail}".rstrip()]
    for each in seen.violations:
        text = f"{_MARGIN} ! {_flatten(each)}"
        lines.append(click.style(text, fg="yellow", bold=True) if colour else text)
    if body is not None and seen.kind != "junk":
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


# --------------------------------------------------------------------- writing lines and tapes

MAX_BACKLOG: Final = 4 * 1024 * 1024  # bytes to buffer; more are dropped and counted
CLOSE_TIMEOUT: Final = 2.0  # seconds for the reader to consume the rest at the end


class BackgroundWriter:
    """Writes lines to a file descriptor in a background thread. Does not close it.

    A host that does not read the server's stderr must not block the messages.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # empty bytes end the thread
        self._backlog = 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="toolpost-outlet", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        """Queue a line, or drop it if the reader is too far behind. Never waits."""
        data = f"{text}\n".encode("utf-8", "backslashreplace")
        with self._lock:
            if self._backlog + len(data) > MAX_BACKLOG:
                self._dropped += 1
                return
            data = self._take_drop_message() + data
            self._backlog += len(data)
            self._queue.put(data)

    def close(self) -> None:
        """Write the rest within a timeout, and end the thread."""
        with self._lock:
            self._queue.put(self._take_drop_message())
            self._queue.put(b"")
        self._thread.join(CLOSE_TIMEOUT)

    def _take_drop_message(self) -> bytes:
        """Return a line with the number of dropped lines, if there are any; reset the number."""
        dropped, self._dropped = self._dropped, 0
        return f"… {dropped} lines dropped: the reader was too slow\n".encode() if dropped else b""

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the reader is gone; the queue fills up to its limit
            while data := self._queue.get():
                write_all(self._descriptor, data)
                with self._lock:
                    self._backlog -= len(data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all the data, also to a non-blocking descriptor."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


@dataclass
class TapRecorder:
    """Shows messages, and records them on a tape if there is one. Masks secrets in both."""

    write: Callable[[str], object]
    tape: Tape | None = None
    mask: Mask = dataclasses.field(default_factory=Mask)
    format: Callable[[ObservedMessage, Any], str] = format_as_text
    full: bool = False
    began: float = dataclasses.field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def show(self, seen: ObservedMessage) -> None:
        """Show a message."""
        body: Any = None
        if seen.kind == "junk":
            body = self.mask(seen.body[:1024].decode("utf-8", "replace"))
        elif self.full and seen.body:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                body = self.mask(msgspec.json.decode(seen.body))
        seen.summary = self.mask(seen.summary)
        seen.violations = self.mask(seen.violations)
        self.write(self.format(seen, body))

    def show_note(self, by: Role, text: str, *, failed: bool = False) -> None:
        """Show a note about the connection."""
        self.show(create_note(by, text, self.now(), failed=failed))

    def record(self, by: Role, data: bytes | OversizedLine, link: int = 1) -> None:
        """Write a message to the tape, until that fails."""
        if self.tape is None:
            return
        try:
            if isinstance(data, bytes):
                self.tape.write(by, data, link=link)
            elif (refusal := data.make_error()).reply and refusal.id is not None:
                self.tape.write_loss(refusal.id, refusal.message, link=link)
        except OSError as error:
            self.tape = None
            self.show_note(by, f"recording stopped: {error.strerror}", failed=True)


@contextlib.contextmanager
def open_recorder(
    *, json: bool, full: bool, to: str | None, record: str | None, target: str, secrets: list[str]
) -> Generator[TapRecorder]:
    """Open a recorder that shows messages in the file `to`, or on stderr, and records them in `record`."""
    path = None if record is None else Path(record)
    with contextlib.ExitStack() as stack:
        try:
            descriptor = sys.stderr.fileno()
            colour = not is_plain(sys.stderr)
            if to is not None:
                file = stack.enter_context(Path(to).open("ab"))
                descriptor, colour = file.fileno(), False
            tape = None
            if path is not None:
                path = find_unused_path(path)  # a host may start its server more than once
                tape = stack.enter_context(Tape(path, target=target, secrets=secrets))
        except OSError as error:
            raise usage_error(f"could not write {error.filename}: {error.strerror}") from error
        writer = BackgroundWriter(descriptor)
        stack.callback(writer.close)
        form = format_as_json if json else partial(format_as_text, colour=colour)
        recorder = TapRecorder(writer.put, tape, Mask(secrets), form, full)
        if path is not None and path != Path(record or ""):
            recorder.show_note("client", f"{record} exists; recording to {path}")
        yield recorder
