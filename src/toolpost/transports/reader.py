"""What a descriptor brings, cut into messages: read by the event loop where it can, by a thread where not.

Owns reading one descriptor, and stops while nobody takes what is there. A daemon thread reads what the loop
cannot watch: regular files, and everything on Windows. Knows nothing of processes.
"""

import asyncio
import os
import select
import stat
from collections.abc import Callable
from threading import Thread
from typing import Final

from toolpost.protocol.framing import LineBuffer
from toolpost.transports.mailbox import MessageQueue

__all__ = ["LineFeed", "LoopReader", "ThreadReader", "open_reader"]

READ_CHUNK: Final = 64 * 1024
"""How much is read at once: what a pipe of Linux holds, and small enough that malloc does not map it anew."""

READ_HIGH_WATER: Final = 256 * 1024
"""How many bytes may wait in a mailbox before its pipe is left alone: a few full pipes."""

DRAIN_ROUNDS: Final = 16
"""How often to read for the end of a pipe: 1 MiB in all, the largest pipe that Linux gives to a user."""


class LoopReader:
    """Reads a descriptor whenever the event loop sees that there is something.

    It reads once per event, so that it does not block even where the descriptor would.

    Args:
        loop: the running event loop.
        fd: what to read; it is ours from here on.
        take: gets each chunk, and empty bytes at the end.

    Raises:
        NotImplementedError: this loop cannot watch descriptors.
        PermissionError: this descriptor cannot be watched.
    """

    __slots__ = ("_fd", "_loop", "_over", "_take", "_watched")

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, take: Callable[[bytes], None]) -> None:
        loop.add_reader(fd, self._read)
        self._loop = loop
        self._fd = fd
        self._take = take
        self._watched = True
        self._over = False

    def pause(self) -> None:
        """Read no more until `resume`."""
        if self._watched:
            self._watched = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read again."""
        if not self._watched and not self._over:
            self._watched = True
            self._loop.add_reader(self._fd, self._read)

    def drain(self) -> bool:
        """Read at once what is there, of a descriptor that does not block. Whether that is possible."""
        for _ in range(DRAIN_ROUNDS):
            if self._over or not self._read():
                break
        return True

    def close(self) -> None:
        """Stop, and close the descriptor."""
        self._over = True
        self.pause()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bool:
        """Take one chunk. Whether there was any, and not the end."""
        try:
            chunk = os.read(self._fd, READ_CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:  # a terminal that was hung up, a connection that was reset
            chunk = b""
        if not chunk:
            self._over = True
            self.pause()
        self._take(chunk)
        return bool(chunk)


class ThreadReader:
    """Reads a descriptor in a daemon thread, one chunk ahead at most.

    A thread that is stuck in a read cannot be woken. After `close` it keeps its descriptor until the read
    returns, and closes it then.

    Args:
        loop: the running event loop, in which `take` is called.
        fd: what to read; it is the thread's from here on.
        take: gets each chunk, and empty bytes at the end.
    """

    __slots__ = ("_fd", "_go_on", "_loop", "_over", "_owed", "_paused", "_take")

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, take: Callable[[bytes], None]) -> None:
        from queue import SimpleQueue  # noqa: PLC0415 - 0.6 ms of a start; pipes need none

        self._loop = loop
        self._fd = fd
        self._take = take
        self._go_on: SimpleQueue[bool] = SimpleQueue()
        self._paused = False
        self._owed = False  # the thread waits for a word of ours
        self._over = False
        Thread(target=self._run, name="toolpost-reader", daemon=True).start()

    def pause(self) -> None:
        """Take no more until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Take again."""
        self._paused = False
        if self._owed:
            self._owed = False
            self._go_on.put(True)

    def drain(self) -> bool:
        """Whether what is there can be read at once: a thread cannot."""
        return self._over

    def close(self) -> None:
        """Take no more; the thread ends as soon as it can."""
        self._over = True
        self._go_on.put(False)

    def _run(self) -> None:
        more = True
        try:
            while more:
                chunk = self._read()
                self._loop.call_soon_threadsafe(self._deliver_chunk, chunk)
                more = bool(chunk) and self._go_on.get()
        except RuntimeError:  # the loop was closed: there is nobody to read for
            pass
        finally:
            os.close(self._fd)

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._fd, READ_CHUNK)
            except BlockingIOError:  # whoever shares this descriptor made it so
                more = select.poll()
                more.register(self._fd, select.POLLIN)
                more.poll()
            except OSError:  # there will be no more, as above
                return b""

    def _deliver_chunk(self, chunk: bytes) -> None:
        if self._over:
            return
        self._over = not chunk
        self._take(chunk)
        self._owed = True
        if not self._paused:
            self.resume()


def open_reader(
    loop: asyncio.AbstractEventLoop, fd: int, take: Callable[[bytes], None]
) -> LoopReader | ThreadReader:
    """A reader for this descriptor, which is the reader's from here on: in the loop if it can be watched."""
    mode = os.fstat(fd).st_mode
    # Some systems watch regular files as well, and never tell their end.
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
        try:
            return LoopReader(loop, fd, take)
        except (NotImplementedError, PermissionError):
            pass
    return ThreadReader(loop, fd, take)


class LineFeed:
    """Cuts what a pipe brings into messages for a mailbox, and stops the pipe while the mailbox is full.

    Args:
        loop: the running event loop.
        fd: the descriptor to read, ours from here on.
        box: where the messages go.
        limit: the longest message.
        ended: is called at the end of the stream, behind its last message.
    """

    __slots__ = ("_fed", "_lines", "_on_end", "_pipe", "_queue", "_wanted")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        box: MessageQueue,
        *,
        limit: int,
        ended: Callable[[], None],
    ) -> None:
        self._queue = box
        self._lines = LineBuffer(limit)
        self._on_end = ended
        self._fed = 0  # bytes since the mailbox was last seen empty
        self._wanted = True
        self._pipe = open_reader(loop, fd, self._take)

    def drain(self) -> bool:
        """Take at once what is there. Whether that is possible."""
        return self._pipe.drain()

    def finish(self) -> None:
        """Hand over the line that was begun, as if the stream had ended here."""
        line = self._lines.end()
        if line is not None and self._wanted:
            self._queue.put(line)

    def discard(self) -> None:
        """Go on reading, so that the peer is not stuck, and drop what comes."""
        self._wanted = False
        self._queue.on_room = None
        self._pipe.resume()

    def close(self) -> None:
        """Stop reading."""
        self._pipe.close()

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            self.finish()
            self._on_end()
        elif self._wanted:
            if not self._queue.arrived:
                self._fed = 0
            self._fed += len(chunk)
            for line in self._lines.feed(chunk):
                self._queue.put(line)
            if self._fed > READ_HIGH_WATER and self._queue.arrived:
                self._pipe.pause()
                self._queue.on_room = self._on_room

    def _on_room(self) -> None:
        if not self._queue.arrived:
            self._queue.on_room = None
            self._pipe.resume()
