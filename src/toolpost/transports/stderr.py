"""What a server says on stderr: handed on line by line, and the last lines kept for when it dies.

Owns one pipe and where its lines go. It always reads: a server that writes much must not get stuck. What is
said there is no error by itself (STDIO-4), and this module does not try to understand it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from toolpost.errors import ConnectFailed
from toolpost.protocol.framing import LineBuffer, OversizedLine
from toolpost.transports.command import Stdio
from toolpost.transports.reader import LoopReader, ThreadReader, open_reader

__all__ = ["ServerStderr"]

MAX_KEPT_LINES: Final = 20
"""How many of the last lines are kept: a traceback of Python with its cause."""

MAX_KEPT_LINE_LENGTH: Final = 500
"""How much of each of them, in characters."""

MAX_STDERR_LINE: Final = 64 * 1024
"""The longest line that is handed on, in bytes. A note stands in place of a longer one."""

_log = logging.getLogger("toolpost.child")


class ServerStderr:
    """The lines that a server writes to stderr.

    Args:
        stdio: says where they go.
        fd: what to read; it is ours from `listen` on.

    Attributes:
        last_lines: the last of them.

    Raises:
        ConnectFailed: the file for them cannot be opened.
    """

    __slots__ = ("_fd", "_file", "_forward", "_lines", "_pipe", "last_lines")

    def __init__(self, stdio: Stdio, fd: int) -> None:
        self.last_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._fd = fd
        self._lines = LineBuffer(MAX_STDERR_LINE)
        self._pipe: LoopReader | ThreadReader | None = None
        self._file: TextIO | None = None
        self._forward = self._open_target(stdio)

    def listen(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """Start to read, and call `ended` when there is no more."""
        self._pipe = open_reader(loop, self._fd, partial(self._take, ended))

    def drain(self) -> bool:
        """Take at once what is there. Whether that is possible."""
        return self._pipe is None or self._pipe.drain()

    def close(self) -> None:
        """Stop reading, and close the file if it is ours."""
        if self._pipe is not None:
            self._pipe.close()
        self._finish()
        if self._file is not None:
            self._file.close()

    def _open_target(self, stdio: Stdio) -> Callable[[str], object]:
        target = stdio.stderr
        if target == "log":
            return partial(_log.info, "%s: %s", stdio.label)
        if isinstance(target, str):
            return str  # kept, and handed to nobody
        if isinstance(target, Path):
            try:
                target = self._file = target.open("a", buffering=1, encoding="utf-8")
            except OSError as error:
                raise ConnectFailed(
                    f"stderr has nowhere to go: {error}",
                    hint="correct the path in `stderr`",
                    peer=stdio.label,
                ) from error
        if callable(target):
            return target
        write = target.write
        return lambda line: write(f"{line}\n")

    def _take(self, ended: Callable[[], None], chunk: bytes) -> None:
        for line in self._lines.feed(chunk):
            self._take_line(line)
        if not chunk:
            self._finish()
            ended()

    def _finish(self) -> None:
        line = self._lines.end()
        if line is not None:
            self._take_line(line)

    def _take_line(self, line: bytes | OversizedLine) -> None:
        if isinstance(line, bytes):
            text = line.decode("utf-8", "replace")
        else:
            text = f"(a line of {line.size} bytes was left out)"
        # What is kept is shown to people, whose terminal must not take orders from it.
        seen = "".join(filter(str.isprintable, text[: 4 * MAX_KEPT_LINE_LENGTH].replace("\t", " ")))
        self.last_lines.append(
            seen if len(seen) <= MAX_KEPT_LINE_LENGTH else f"{seen[:MAX_KEPT_LINE_LENGTH]}…"
        )
        try:
            self._forward(text)
        except Exception:  # noqa: BLE001 - a function of the user; its failure must not stop the reading
            _log.exception("a line of stderr could not be handed on")
