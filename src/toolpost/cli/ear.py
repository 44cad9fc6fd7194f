"""An ear at a pair of pipes: it finds the messages in what goes by, and has them judged and told.

Owns a thread and the queue before it, so that the bytes are passed on meanwhile. Whoever hands it pieces
waits only if it is far behind, which bounds its memory; of a line that is too long only the ends are kept.
"""

import queue
import threading
from typing import Final

from toolpost.cli.teller import Teller
from toolpost.cli.witness import Witness
from toolpost.protocol.framing import LineBuffer, Oversize
from toolpost.protocol.methods import CLIENT, SERVER, Role

__all__ = ["Ear"]

MAX_QUEUED: Final = 256
"""How many pieces may wait, each of at most what a pipe holds: 16 MiB."""

PATIENCE: Final = 10.0
"""Seconds for what is in the queue, at the end."""


class Ear(threading.Thread):
    """Hears both sides of one conversation.

    Args:
        teller: tells what was heard.
    """

    def __init__(self, teller: Teller) -> None:
        super().__init__(name="toolpost-ear", daemon=True)
        self._teller = teller
        self._witness = Witness()
        self._lines: dict[Role, LineBuffer] = {CLIENT: LineBuffer(), SERVER: LineBuffer()}
        self._pieces: queue.Queue[tuple[float, Role, bytes] | None] = queue.Queue(MAX_QUEUED)

    def listen(self, by: Role, data: bytes) -> None:
        """Take a piece of what somebody says; an empty one is the end. May be called by any thread."""
        self._pieces.put((self._teller.now(), by, data))

    def close(self) -> None:
        """Hear the rest, and end."""
        self._pieces.put(None)
        self.join(PATIENCE)

    def run(self) -> None:
        """Hear piece after piece, until there is an end."""
        while (piece := self._pieces.get()) is not None:
            at, by, data = piece
            lines = self._lines[by].feed(data) if data else [self._lines[by].end()]
            for line in lines:
                if line is not None:
                    self._hear(by, line, at)
            if not data and by == CLIENT:  # the end of a server is told with its exit code
                self._teller.note(by, "the client has closed its end")

    def _hear(self, by: Role, line: bytes | Oversize, at: float) -> None:
        try:
            self._teller.keep(by, line)
            if isinstance(line, Oversize):
                self._teller.tell(self._witness.overheard(by, line, at))
                return
            for seen in self._witness.hear(by, line, at):
                self._teller.tell(seen)
        except Exception as error:  # noqa: BLE001 - a full disk, a fault of ours: it must not stop what goes by
            self._teller.note(by, f"a message could not be kept or shown: {error!r}", failed=True)
