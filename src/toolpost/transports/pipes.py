"""Reads lines from a descriptor and writes lines to one, without blocking the event loop.

The loop does both where it can watch the descriptor. A daemon thread does it for regular files, and for
everything on Windows. Reading pauses while the message queue is full, and senders wait while the peer does
not read. Knows nothing of processes.
"""

import asyncio
import os
import select
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Final

from toolpost.errors import ChannelClosed
from toolpost.protocol.framing import READ_SIZE, LineBuffer
from toolpost.transports.memory import MessageQueue, SendLimiter

READ_HIGH_WATER: Final = 256 * 1024
"""How many bytes may wait in a message queue before its pipe is left alone: a few full pipes."""

WRITE_HIGH_WATER: Final = 256 * 1024
"""How many bytes may wait to be written before senders have to wait too: a few full pipes."""

DRAIN_ROUNDS: Final = 16
"""How often to read for the end of a pipe: 1 MiB in all, the largest pipe that Linux gives to a user."""


# --------------------------------------------------------------------- reading


class LoopReader:
    """Reads a descriptor, which it owns, whenever the event loop reports data.

    It reads once per event, so that it does not block even where the descriptor would. `take` gets each
    chunk, and empty bytes at the end. Raises NotImplementedError or PermissionError if the loop cannot watch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, take: Callable[[bytes], None]) -> None:
        loop.add_reader(fd, self._read)
        self._loop = loop
        self._fd = fd
        self._take = take
        self._watched = True
        self._over = False

    def pause(self) -> None:
        """Stop reading until `resume`."""
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
        """Read at once what a descriptor that does not block has. Return whether that is possible."""
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
        """Take one chunk. Return whether there was one before the end."""
        try:
            chunk = os.read(self._fd, READ_SIZE)
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
    """Reads a descriptor, which it owns, in a daemon thread, one chunk ahead at most.

    A thread that is stuck in a read cannot be woken: it closes its descriptor when the read returns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, take: Callable[[bytes], None]) -> None:
        from queue import SimpleQueue  # noqa: PLC0415 - start-up time; pipes need none

        self._loop = loop
        self._fd = fd
        self._take = take
        self._go_on: SimpleQueue[bool] = SimpleQueue()
        self._paused = False
        self._owed = False  # the thread waits for an item in `_go_on`
        self._over = False
        Thread(target=self._run, name="toolpost-reader", daemon=True).start()

    def pause(self) -> None:
        """Stop taking chunks until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Take chunks again."""
        self._paused = False
        if self._owed:
            self._owed = False
            self._go_on.put(True)

    def drain(self) -> bool:
        """Return whether everything was read: a thread cannot be asked to read at once."""
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
        except RuntimeError:  # the loop was closed
            pass
        finally:
            os.close(self._fd)

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._fd, READ_SIZE)
            except BlockingIOError:
                _wait_until_ready(self._fd, select.POLLIN)
            except OSError:  # as in `LoopReader`
                return b""

    def _deliver_chunk(self, chunk: bytes) -> None:
        if self._over:
            return
        self._over = not chunk
        self._take(chunk)
        self._owed = True
        if not self._paused:
            self.resume()


def _wait_until_ready(fd: int, event: int) -> None:
    """Block until a descriptor is ready that another process has made non-blocking."""
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()


def open_reader(
    loop: asyncio.AbstractEventLoop, fd: int, take: Callable[[bytes], None]
) -> LoopReader | ThreadReader:
    """Return a reader that owns this descriptor: in the loop if the loop can watch it."""
    mode = os.fstat(fd).st_mode
    # Some systems can watch regular files too, and never report their end.
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
        try:
            return LoopReader(loop, fd, take)
        except (NotImplementedError, PermissionError):
            pass
    return ThreadReader(loop, fd, take)


class LineFeed:
    """Splits what a descriptor brings into messages for a queue, and pauses reading while the queue is full.

    `ended` is called at the end of the stream, after its last message.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        queue: MessageQueue,
        *,
        limit: int,
        ended: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._lines = LineBuffer(limit)
        self._on_end = ended
        self._fed = 0  # bytes since the queue was last empty
        self._wanted = True
        self._pipe = open_reader(loop, fd, self._take)

    def drain(self) -> bool:
        """Read at once what is there. Return whether that is possible."""
        return self._pipe.drain()

    def finish(self) -> None:
        """Hand over the unfinished line, as if the stream had ended here."""
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


# --------------------------------------------------------------------- writing


class PipeWriter(ABC):
    """Writes lines to a descriptor, which it owns; lines that queue up are written together.

    `gone` is the reason to give when the peer does not read any more; `broken` is called with the reason when
    writing failed. `closed` is done when the descriptor was given up: all was written, or that failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._gone_reason = gone
        self._on_broken = broken
        self._pending: list[bytes] = []
        self._unwritten = 0  # bytes that were accepted and not written yet
        self._busy = False  # what is pending will be written without another call of `_accept`
        self._reason: str | None = None
        self._limiter = SendLimiter(self._has_room)
        self.closed: asyncio.Future[None] = loop.create_future()

    async def send(self, line: bytes) -> None:
        """Write or queue the line, when there is room. A send that was cancelled or raises sent nothing."""
        if self._limiter.queue or self._unwritten > WRITE_HIGH_WATER:
            await self._limiter.wait()
        if self._reason is None:
            self._add(line)
        if self._limiter.queue:
            self._limiter.admit_next()
        if self._reason is not None:
            raise ChannelClosed(self._reason, sent=False)

    def offer(self, line: bytes) -> bool:
        """Write or queue the line if there is room. Return False if `send` has to do it, or to raise."""
        if self._limiter.queue or self._unwritten > WRITE_HIGH_WATER or self._reason is not None:
            return False
        self._add(line)
        return self._reason is None

    def _add(self, line: bytes) -> None:
        self._unwritten += len(line)
        self._pending.append(line)
        if not self._busy:
            self._accept()

    def finish(self, reason: str) -> None:
        """Take no more lines, and give the descriptor up as soon as all is written."""
        if self._reason is None:
            self._reason = reason
            self._limiter.admit_next()
            if not self._unwritten:
                self.abort(reason)

    def abort(self, reason: str) -> None:
        """Give the descriptor up now, whatever is waiting."""
        self._reason = self._reason or reason
        self._pending.clear()
        self._unwritten = 0
        if not self.closed.done():
            self.closed.set_result(None)
            self._release()
        self._limiter.admit_next()

    def _fail(self, error: OSError) -> None:
        gone = isinstance(error, (BrokenPipeError, ConnectionResetError))
        reason = self._gone_reason if gone else f"writing failed: {error.strerror}"
        self.abort(reason)
        self._on_broken(reason)

    def _has_room(self) -> bool:
        return self._unwritten <= WRITE_HIGH_WATER or self._reason is not None

    @abstractmethod
    def _accept(self) -> None:
        """Write what is pending, or start to; stay busy until that is done."""

    @abstractmethod
    def _release(self) -> None:
        """Close the descriptor."""


class LoopWriter(PipeWriter):
    """Writes without blocking: at once if the peer reads, else when the event loop reports room.

    The descriptor must not block, or be a socket: MSG_DONTWAIT keeps each of its writes from blocking, since
    other processes may share it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
    ) -> None:
        super().__init__(loop, fd, gone, broken)
        self._rest: bytes | memoryview = b""
        self._watched = False
        self._socket: socket.socket | None = None
        self._write: Callable[[bytes | memoryview], int] = partial(os.write, fd)
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            self._socket = shared = socket.socket(fileno=fd)
            self._write = lambda data: shared.send(data, socket.MSG_DONTWAIT)

    def _accept(self) -> None:
        # The first line of a turn of the loop is written at once; those after it go together.
        self._busy = True
        self._flush()

    def _flush(self) -> None:
        rest = self._rest
        if not rest:
            if not self._pending:
                self._unwatch()
                self._busy = False
                if self._reason is not None:
                    self.abort(self._reason)
                return
            rest = b"".join(self._pending)
            self._pending.clear()
        try:
            written = self._write(rest)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as error:
            self._fail(error)
            return
        self._unwritten -= written
        if written < len(rest):
            self._rest = memoryview(rest)[written:]
            if not self._watched:
                self._watched = True
                self._loop.add_writer(self._fd, self._flush)
        else:
            self._rest = b""
            if not self._watched:
                self._loop.call_soon(self._flush)
        self._limiter.admit_next()

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            if not self._loop.is_closed():
                self._loop.remove_writer(self._fd)

    def _release(self) -> None:
        self._rest = b""
        self._unwatch()
        if self._socket is not None:
            self._socket.close()
        else:
            os.close(self._fd)


class ThreadWriter(PipeWriter):
    """Writes in a daemon thread, for descriptors that may block.

    A thread that is stuck in a write cannot be woken: it closes its descriptor when the write returns.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
    ) -> None:
        from queue import SimpleQueue  # noqa: PLC0415 - start-up time; pipes need none

        super().__init__(loop, fd, gone, broken)
        self._jobs: SimpleQueue[bytes | None] = SimpleQueue()
        Thread(target=self._run, name="toolpost-writer", daemon=True).start()

    def _accept(self) -> None:
        self._busy = True
        self._jobs.put(b"".join(self._pending))
        self._pending.clear()

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                error = self._write(memoryview(job))
                self._loop.call_soon_threadsafe(self._on_written, len(job), error)
        except RuntimeError:  # the loop was closed
            pass
        finally:
            os.close(self._fd)

    def _write(self, rest: memoryview) -> OSError | None:
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                _wait_until_ready(self._fd, select.POLLOUT)
            except OSError as error:
                return error
        return None

    def _on_written(self, size: int, error: OSError | None) -> None:
        self._busy = False
        if self.closed.done():
            return
        self._unwritten -= size
        if error is not None:
            self._fail(error)
        elif self._pending:
            self._accept()
        elif self._reason is not None:
            self.abort(self._reason)
        self._limiter.admit_next()

    def _release(self) -> None:
        self._jobs.put(None)


def open_writer(
    loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
) -> LoopWriter | ThreadWriter:
    """Return a writer that owns this descriptor, which must not block: in the loop if that can watch it."""
    try:
        loop.add_writer(fd, int)
        loop.remove_writer(fd)
    except (NotImplementedError, PermissionError):
        return ThreadWriter(loop, fd, gone, broken)
    return LoopWriter(loop, fd, gone, broken)
