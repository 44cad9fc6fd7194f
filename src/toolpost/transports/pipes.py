"""Reads lines from a descriptor and writes lines to one, without blocking the event loop.

The loop does both where it can watch the descriptor. A daemon thread does it for regular files, and for
everything on Windows. Reading pauses while the message queue is full, and senders wait while the peer does
not read. Knows nothing of processes.
"""

import asyncio
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any, Final

from msgspec.structs import replace

from toolpost.errors import ChannelClosed, RemoteProtocolError
from toolpost.protocol.line_framing import CR, LF, READ_SIZE, LineBuffer, OversizedLine, flatten
from toolpost.transports.memory import MessageQueue, SendLimiter

READ_HIGH_WATER: Final = 256 * 1024  # bytes that may wait in a queue before reading pauses: a few full pipes
WRITE_HIGH_WATER: Final = 256 * 1024  # bytes that may wait to be written before senders have to wait, too
PIPE_NETWORK: Final[Mapping[str, str | int]] = {"network.transport": "pipe"}  # for telemetry
DRAIN_ROUNDS: Final = 16  # reads for the end of a pipe: 1 MiB in all, the largest pipe of a user of Linux


class _FileThread:
    """Makes blocking calls on a descriptor, which it owns, in a daemon thread; the loop gets the results.

    A thread that is stuck in a call cannot be woken: it closes the descriptor when the call returns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        from queue import SimpleQueue  # noqa: PLC0415 - start-up time; pipes need none

        if sys.platform != "win32":  # pragma: no branch - nothing has changed it there
            os.set_blocking(fd, True)
        self._loop = loop
        self._fd = fd
        self._calls: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        Thread(target=self._run, name="toolpost-file", daemon=True).start()

    def start(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Make a call after those before it; the loop passes its result to `done`."""
        self._calls.put((call, done))

    def close(self) -> None:
        """Close the descriptor after the call that is under way."""
        self._calls.put(None)

    def _run(self) -> None:
        try:
            while (item := self._calls.get()) is not None:
                call, done = item
                self._loop.call_soon_threadsafe(done, call())
        except RuntimeError:  # the loop was closed
            pass
        finally:
            os.close(self._fd)


def _can_watch(
    fd: int, add: Callable[[int, Callable[[], object]], object], remove: Callable[[int], object]
) -> bool:
    """Return whether the loop can watch a descriptor, with these two of its methods."""
    mode = os.fstat(fd).st_mode
    # Some systems can watch regular files too, and never report their end.
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
        return False
    try:
        add(fd, int)
        remove(fd)
    except (NotImplementedError, PermissionError):
        return False
    return True


class LineFeed:
    """Reads a descriptor, which it owns, and puts its lines into a queue. Pauses while the queue is full.

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
        self._loop = loop
        self._fd = fd
        self._queue = queue
        self._lines = LineBuffer(limit)
        self._reported: RemoteProtocolError | None = None  # the error of an open line over the limit
        self._on_end = ended
        self._fed = 0  # bytes since the queue was last empty
        self._wanted = True
        self._paused = False
        self._over = False
        self._thread: _FileThread | None = None
        self._is_thread_reading = False
        if not _can_watch(fd, loop.add_reader, loop.remove_reader):
            self._thread = _FileThread(loop, fd)
        self._resume()

    def drain(self) -> bool:
        """Read at once all that has arrived. Return whether that is possible: a thread cannot do it."""
        if self._thread is not None:
            return self._over
        for _ in range(DRAIN_ROUNDS):
            if self._over or not self._read():
                break
        return True

    def finish(self) -> None:
        """Hand over the unfinished line, as if the stream had ended here."""
        line = self._lines.end()
        if line is not None and self._wanted:
            self._put(line)

    def discard(self) -> None:
        """Go on reading, so that the peer is not stuck, and drop what comes."""
        self._wanted = False
        self._queue.on_room = None
        self._resume()

    def close(self) -> None:
        """Stop reading, and close the descriptor."""
        self._over = True
        if self._fd < 0:
            return
        self._pause()
        if self._thread is not None:
            self._thread.close()
        else:
            os.close(self._fd)
        self._fd = -1

    def _pause(self) -> None:
        self._paused = True
        if self._thread is None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)

    def _resume(self) -> None:
        self._paused = False
        if self._over:
            return
        if self._thread is None:
            self._loop.add_reader(self._fd, self._read)
        elif not self._is_thread_reading:
            self._is_thread_reading = True
            self._thread.start(partial(_read_chunk, self._fd), self._take_from_thread)

    def _read(self) -> bool:
        """Take one chunk; one that is ready does not block. Return whether there was one before the end."""
        chunk = _read_chunk(self._fd)
        if chunk is not None:
            self._take(chunk)
        return bool(chunk)

    def _take_from_thread(self, chunk: bytes) -> None:
        self._is_thread_reading = False
        if not self._over:
            self._take(chunk)
            if not self._paused:
                self._resume()

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            self._over = True
            self._pause()
            self.finish()
            self._on_end()
        elif self._wanted:
            if not self._queue.arrived:
                self._fed = 0
            self._fed += len(chunk)
            put = self._queue.put if self._reported is None else self._put
            for line in self._lines.feed(chunk):
                put(line)
            start = self._lines.start
            if start is not None and self._reported is None and (error := start.make_error()).reply:
                self._reported = error  # the line may never end, and its call would wait
                self._queue.put(start)
            if self._fed > READ_HIGH_WATER and self._queue.arrived:
                self._pause()
                self._queue.on_room = self._on_room

    def _put(self, line: bytes | OversizedLine) -> None:
        start, self._reported = self._reported, None
        if start is None:
            self._queue.put(line)
        elif start.id is None and isinstance(line, OversizedLine) and line.make_error().id is not None:
            self._queue.put(replace(line, is_reported=True))  # only its end says whose answer it was

    def _on_room(self) -> None:
        if not self._queue.arrived:
            self._queue.on_room = None
            self._resume()


def _read_chunk(fd: int) -> bytes | None:
    """Return the next bytes of a descriptor; none at its end, None if it would have to wait."""
    try:
        return os.read(fd, READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:  # a terminal that was hung up, a connection that was reset
        return b""


class LineWriter:
    """Writes messages as lines to a descriptor, which it owns; those that queue up are written together.

    The loop writes if the descriptor does not block, or is a socket. `gone` is the reason to give when the
    peer does not read any more; `broken` is called with the reason when writing failed. `closed` is done when
    the descriptor was given up: all was written, or that failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._gone_reason = gone
        self._on_broken = broken
        self._pending: list[bytes] = []
        self._rest: bytes | memoryview = b""  # the bytes being written
        self._unwritten = 0  # bytes that were accepted and not written yet
        self._busy = False  # pending lines will be written without another call of `_flush`
        self._watched = False
        self._reason: str | None = None
        self._limiter = SendLimiter(lambda: self._unwritten <= WRITE_HIGH_WATER or self._reason is not None)
        self.closed: asyncio.Future[None] = loop.create_future()
        self._write: Callable[[bytes | memoryview], int] = partial(os.write, fd)
        self._release: Callable[[], None] = partial(os.close, fd)
        self._thread: _FileThread | None = None
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        if not _can_watch(fd, loop.add_writer, loop.remove_writer) or (os.get_blocking(fd) and not is_socket):
            self._thread = _FileThread(loop, fd)
            self._release = self._thread.close
        elif is_socket:
            # Other processes may share the socket: each of our writes does not block, and theirs may.
            shared = socket.socket(fileno=fd)
            self._write = lambda data: shared.send(data, socket.MSG_DONTWAIT)
            self._release = shared.close

    async def send(self, message: bytes) -> None:
        """Write or queue a message, when there is room. A send that was cancelled or raises sent nothing."""
        if self._limiter.queue or self._unwritten > WRITE_HIGH_WATER:
            await self._limiter.wait()
        if self._reason is None:
            self._add(message)
        if self._limiter.queue:
            self._limiter.admit_next()
        if self._reason is not None:
            raise ChannelClosed(self._reason, sent=False)

    def offer(self, message: bytes) -> bool:
        """Write or queue a message if there is room. Return False if `send` has to do it, or to raise."""
        if self._limiter.queue or self._unwritten > WRITE_HIGH_WATER or self._reason is not None:
            return False
        self._add(message)
        return self._reason is None

    def finish(self, reason: str) -> None:
        """Take no more lines, and give the descriptor up as soon as all is written."""
        if self._reason is None:
            self._reason = reason
            self._limiter.admit_next()
            if not self._unwritten:
                self.abort(reason)

    def abort(self, reason: str) -> None:
        """Give the descriptor up now, and drop pending lines."""
        self._reason = self._reason or reason
        self._pending.clear()
        self._rest = b""
        self._unwritten = 0
        if not self.closed.done():
            self.closed.set_result(None)
            self._unwatch()
            self._release()
        self._limiter.admit_next()

    def _add(self, message: bytes) -> None:
        if LF in message or CR in message:  # as numbers: bytes are searched for far more slowly
            message = flatten(message)
        self._unwritten += len(message) + 1
        self._pending.append(message)
        if not self._busy:
            # The first line of a turn of the loop is written at once; those after it go together.
            self._busy = True
            self._flush()

    def _flush(self) -> None:
        if not self._rest:
            if not self._pending:
                self._unwatch()
                self._busy = False
                if self._reason is not None:
                    self.abort(self._reason)
                return
            self._pending.append(b"")  # each message is a line, with its end (STDIO-1)
            self._rest = b"\n".join(self._pending)
            self._pending.clear()
        if self._thread is None:
            self._on_written(self._try_to_write(self._rest))
        else:
            self._thread.start(partial(self._try_to_write, self._rest), self._on_written)

    def _try_to_write(self, data: bytes | memoryview) -> int | OSError:
        try:
            return self._write(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            return error

    def _on_written(self, size: int | OSError) -> None:
        if self.closed.done():
            return
        if isinstance(size, OSError):
            gone = isinstance(size, (BrokenPipeError, ConnectionResetError))
            reason = self._gone_reason if gone else f"writing failed: {size.strerror}"
            self.abort(reason)
            self._on_broken(reason)
            return
        self._unwritten -= size
        self._rest = memoryview(self._rest)[size:] if size < len(self._rest) else b""
        if self._rest and self._thread is None and not self._watched:
            self._watched = True
            self._loop.add_writer(self._fd, self._flush)
        if not self._watched:
            self._loop.call_soon(self._flush)
        if self._limiter.queue:
            self._limiter.admit_next()

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            if not self._loop.is_closed():
                self._loop.remove_writer(self._fd)
