"""An outlet for lines that nobody may have to wait for: a thread writes them, and drops what is too much.

Owns the thread and the queue before it. A host that never reads the stderr of its server must not be able to
stop what goes between the two. Knows nothing of what the lines say.
"""

import os
import threading
from typing import Final

__all__ = ["BackgroundWriter"]

MAX_BACKLOG: Final = 4 * 1024 * 1024
"""How many bytes may wait for a reader. What comes then is dropped and counted: memory is for messages."""

CLOSE_TIMEOUT: Final = 2.0
"""Seconds that the reader has for the rest at the end."""


class BackgroundWriter:
    """Writes lines to a file descriptor, in their order, from a thread of its own.

    Args:
        descriptor: where to; it is not closed here.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._condition = threading.Condition()
        self._queue: list[bytes] = []
        self._backlog = 0
        self._dropped = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="toolpost-outlet", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        """Have a text written, with a line end behind it. Never waits."""
        data = f"{text}\n".encode("utf-8", "backslashreplace")
        with self._condition:
            if self._backlog + len(data) > MAX_BACKLOG:
                self._dropped += 1
                return
            self._add(self._take_drop_message() + data)

    def close(self) -> None:
        """Write the rest, if somebody reads it, and end."""
        with self._condition:
            self._add(self._take_drop_message())
            self._is_closed = True
        self._thread.join(CLOSE_TIMEOUT)

    def _add(self, data: bytes) -> None:
        self._queue.append(data)
        self._backlog += len(data)
        self._condition.notify()

    def _take_drop_message(self) -> bytes:
        """A line for what was dropped, if anything was."""
        dropped, self._dropped = self._dropped, 0
        return f"… {dropped} not shown: nobody read them in time\n".encode() if dropped else b""

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._is_closed:
                    self._condition.wait()
                data, self._queue = b"".join(self._queue), []
                over = self._is_closed
            try:
                write_all(self._descriptor, data)
            except OSError:
                return  # nobody reads any more; what is put from now on piles up to the limit and no further
            if over:
                return
            with self._condition:
                self._backlog -= len(data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, waiting where that is needed, whatever mode the descriptor is in.

    Raises:
        OSError: nobody reads it any more.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            import select  # noqa: PLC0415 - hardly anybody hands on a descriptor that does not wait

            select.select([], [descriptor], [])
