"""Shows the messages that pass a tap, and records them on a tape, without secrets in either.

Lines are written by a thread of their own, which drops them when the reader falls behind.
"""

import contextlib
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import msgspec

from toolpost.cli.errors import usage_error
from toolpost.cli.output import is_plain
from toolpost.cli.tap.message import MessageFormatter, ObservedMessage, create_note
from toolpost.protocol.framing import OversizedLine
from toolpost.protocol.methods import Role
from toolpost.testing.masking import Mask
from toolpost.testing.tape import Tape

MAX_BACKLOG: Final = 4 * 1024 * 1024  # bytes that may wait for a reader; more are dropped and counted
CLOSE_TIMEOUT: Final = 2.0  # seconds that the reader has for the rest at the end


class BackgroundWriter:
    """Writes lines to a file descriptor in a thread of its own, which never closes it.

    A host that does not read the stderr of its server must not be able to stop the messages between the two.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # nothing in it is the end
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
        """Write the rest, if anybody reads it, and end."""
        with self._lock:
            self._queue.put(self._take_drop_message())
            self._queue.put(b"")
        self._thread.join(CLOSE_TIMEOUT)

    def _take_drop_message(self) -> bytes:
        """A line for what was dropped, if anything was."""
        dropped, self._dropped = self._dropped, 0
        return f"… {dropped} not shown: nobody read them in time\n".encode() if dropped else b""

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # nobody reads it; the queue fills up to its limit
            while data := self._queue.get():
                write_all(self._descriptor, data)
                with self._lock:
                    self._backlog -= len(data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, also to a descriptor that does not block."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


MAX_NAME_ATTEMPTS: Final = 10_000


class TapRecorder:
    """Shows messages, and records them on a tape if there is one. Masks secrets in both."""

    def __init__(
        self,
        formatter: MessageFormatter,
        write: Callable[[str], object],
        tape: Tape | None = None,
        mask: Mask | None = None,
    ) -> None:
        self._formatter = formatter
        self._write = write
        self._tape = tape
        self._mask = mask or Mask()
        self._began = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def show(self, seen: ObservedMessage) -> None:
        """Show a message."""
        body: Any = None
        if seen.kind == "junk":
            body = self._mask(seen.body[:1024].decode("utf-8", "replace"))
        elif self._formatter.full and seen.body:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                body = self._mask(msgspec.json.decode(seen.body))
        seen.summary = self._mask(seen.summary)
        seen.violations = self._mask(seen.violations)
        self._write(self._formatter.format_message(seen, body))

    def show_note(self, by: Role, text: str, *, failed: bool = False) -> None:
        """Show that something happened to the connection."""
        self.show(create_note(by, text, self.now(), failed=failed))

    def record(self, by: Role, data: bytes | OversizedLine, link: int = 1) -> None:
        """Write a message to the tape, until that fails."""
        if self._tape is None:
            return
        try:
            if isinstance(data, bytes):
                self._tape.write(by, data, link=link)
            elif (refusal := data.make_error()).reply and refusal.id is not None:
                self._tape.write_loss(refusal.id, refusal.message, link=link)
        except OSError as error:
            self._tape = None
            self.show_note(by, f"nothing is recorded any more: {error.strerror}", failed=True)

    def record_end(self, by: Role, why: str) -> None:
        """Write the end of the conversation to the tape."""
        if self._tape is not None:
            self._tape.write_end(by, why)


@contextlib.contextmanager
def open_recorder(
    *, json: bool, full: bool, to: str | None, record: str | None, target: str, secrets: list[str]
) -> Generator[TapRecorder]:
    """A recorder that shows messages in the file `to`, or on stderr, and keeps them in the file `record`."""
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
                path = find_unused_path(path)
                tape = stack.enter_context(Tape(path, target=target, secrets=secrets))
        except OSError as error:
            raise usage_error(f"{error.filename} cannot be written: {error.strerror}") from error
        writer = BackgroundWriter(descriptor)
        stack.callback(writer.close)
        formatter = MessageFormatter(json=json, full=full, colour=colour)
        recorder = TapRecorder(formatter, writer.put, tape, Mask(secrets))
        if path is not None and path != Path(record or ""):
            recorder.show_note("client", f"{record} is there already: this is recorded in {path}")
        yield recorder


def find_unused_path(path: Path) -> Path:
    """The path, or the first beside it that is free: a host may start its server again and again."""
    for number in range(MAX_NAME_ATTEMPTS):
        name = path.with_stem(f"{path.stem}-{number}") if number else path
        if not os.path.lexists(name):
            return name
    raise FileExistsError(17, "there are too many recordings of this name", str(path))
