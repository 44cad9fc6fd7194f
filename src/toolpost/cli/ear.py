"""An ear at a pair of pipes: it finds the messages in what goes by, and has them judged and told.

Owns a thread and the queue before it, so that the bytes are passed on meanwhile. Whoever hands it pieces
waits only if it is far behind, which bounds its memory; of a line that is too long only the ends are kept.
"""

import queue
import threading
from typing import Final

from toolpost.cli.teller import TapRecorder
from toolpost.cli.witness import MessageInspector
from toolpost.protocol.framing import LineBuffer, OversizedLine
from toolpost.protocol.methods import CLIENT, SERVER, Role

__all__ = ["InspectionThread"]

MAX_QUEUED_CHUNKS: Final = 256
"""How many pieces may wait, each of at most what a pipe holds: 16 MiB."""

QUEUE_DRAIN_TIMEOUT: Final = 10.0
"""Seconds for what is in the queue, at the end."""


class InspectionThread(threading.Thread):
    """Hears both sides of one conversation.

    Args:
        teller: tells what was heard.
    """

    def __init__(self, teller: TapRecorder) -> None:
        super().__init__(name="toolpost-ear", daemon=True)
        self._recorder = teller
        self._inspector = MessageInspector()
        self._buffers: dict[Role, LineBuffer] = {CLIENT: LineBuffer(), SERVER: LineBuffer()}
        self._chunks: queue.Queue[tuple[float, Role, bytes] | None] = queue.Queue(MAX_QUEUED_CHUNKS)

    def feed(self, by: Role, data: bytes) -> None:
        """Take a piece of what somebody says; an empty one is the end. May be called by any thread."""
        self._chunks.put((self._recorder.now(), by, data))

    def close(self) -> None:
        """Hear the rest, and end."""
        self._chunks.put(None)
        self.join(QUEUE_DRAIN_TIMEOUT)

    def run(self) -> None:
        """Hear piece after piece, until there is an end."""
        while (piece := self._chunks.get()) is not None:
            at, by, data = piece
            lines = self._buffers[by].feed(data) if data else [self._buffers[by].end()]
            for line in lines:
                if line is not None:
                    self._inspect(by, line, at)
            if not data and by == CLIENT:  # the end of a server is told with its exit code
                self._recorder.show_note(by, "the client has closed its end")

    def _inspect(self, by: Role, line: bytes | OversizedLine, at: float) -> None:
        try:
            self._recorder.record(by, line)
            if isinstance(line, OversizedLine):
                self._recorder.show(self._inspector.inspect_oversize(by, line, at))
                return
            for seen in self._inspector.inspect(by, line, at):
                self._recorder.show(seen)
        except Exception as error:  # noqa: BLE001 - a full disk, a fault of ours: it must not stop what goes by
            self._recorder.show_note(by, f"a message could not be kept or shown: {error!r}", failed=True)
