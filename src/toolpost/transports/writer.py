"""Lines into a descriptor, without blocking the event loop and without one line breaking into another.

Owns writing to one descriptor, and lets senders wait while its reader does not read. A daemon thread writes
where the loop cannot: regular files, and everything on Windows. Knows nothing of processes, nor of messages.
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
from toolpost.transports.mailbox import SendLimiter

__all__ = ["LoopWriter", "PipeWriter", "ThreadWriter", "open_writer"]

WRITE_HIGH_WATER: Final = 256 * 1024
"""How many bytes may wait to be written before senders have to wait too: a few full pipes."""


class PipeWriter(ABC):
    """Writes lines into a descriptor, one behind the other; what queues up is written together.

    Args:
        loop: the running event loop.
        fd: where to write; it is ours from here on.
        gone: what to say when nobody reads any more.
        broken: is called with the reason when writing failed.

    Attributes:
        closed: done when the descriptor was given up, because all was written or because that failed.
    """

    __slots__ = (
        "_busy",
        "_fd",
        "_gone_reason",
        "_limiter",
        "_loop",
        "_on_broken",
        "_pending",
        "_reason",
        "_unwritten",
        "closed",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._gone_reason = gone
        self._on_broken = broken
        self._pending: list[bytes] = []
        self._unwritten = 0  # bytes that were accepted and not written yet
        self._busy = False  # what is pending will be written, whoever adds to it
        self._reason: str | None = None
        self._limiter = SendLimiter(self._has_room)
        self.closed: asyncio.Future[None] = loop.create_future()

    async def send(self, line: bytes) -> None:
        """Write the line or take it on, and before that wait for room. A cancelled send has sent nothing.

        Raises:
            ChannelClosed: nothing can be written any more; the line was not sent.
        """
        if self._limiter.queue or self._unwritten > WRITE_HIGH_WATER:
            await self._limiter.wait()
        if self._reason is None:
            self._unwritten += len(line)
            self._pending.append(line)
            if not self._busy:
                self._accept()
        if self._limiter.queue:
            self._limiter.admit_next()
        if self._reason is not None:
            raise ChannelClosed(self._reason, sent=False)

    def offer(self, line: bytes) -> bool:
        """Write the line or take it on, if there is room; False if `send` has to be asked, and why not."""
        if self._limiter.queue or self._unwritten > WRITE_HIGH_WATER or self._reason is not None:
            return False
        self._unwritten += len(line)
        self._pending.append(line)
        if not self._busy:
            self._accept()
        return self._reason is None

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
        """Nobody reads, or the disk is full: say so to whoever sends."""
        gone = isinstance(error, (BrokenPipeError, ConnectionResetError))
        reason = self._gone_reason if gone else f"writing failed: {error.strerror}"
        self.abort(reason)
        self._on_broken(reason)

    def _has_room(self) -> bool:
        return self._unwritten <= WRITE_HIGH_WATER or self._reason is not None

    @abstractmethod
    def _accept(self) -> None:
        """Write what is pending, or see to it that it will be; busy until that is done."""

    @abstractmethod
    def _release(self) -> None:
        """Close the descriptor."""


class LoopWriter(PipeWriter):
    """Writes without blocking: at once if the peer reads, else when the event loop sees room.

    The descriptor must not block, or be a socket: those are asked not to block with each write, because
    other processes may hold the same one.
    """

    __slots__ = ("_rest", "_socket", "_watched", "_write")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
    ) -> None:
        super().__init__(loop, fd, gone, broken)
        self._rest: bytes | memoryview = b""
        self._watched = False
        self._socket: socket.socket | None = None
        self._write: Callable[[bytes | memoryview], int] = partial(os.write, fd)
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            self._socket = socket.socket(fileno=fd)
            self._write = self._send_now

    def _accept(self) -> None:
        # The first line of a turn of the loop is written at once; those behind it go together.
        self._busy = True
        self._flush()

    def _flush(self) -> None:
        rest = self._rest
        if not rest:
            if not self._pending:
                self._on_all_written()
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

    def _on_all_written(self) -> None:
        """All is written: the next line goes out at once again."""
        self._unwatch()
        self._busy = False
        if self._reason is not None:
            self.abort(self._reason)

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

    def _send_now(self, data: bytes | memoryview) -> int:
        assert self._socket is not None
        return self._socket.send(data, socket.MSG_DONTWAIT)


class ThreadWriter(PipeWriter):
    """Writes in a daemon thread, for descriptors that may block.

    A thread that is stuck in a write cannot be woken. After `abort` it keeps its descriptor until the write
    returns, and closes it then.
    """

    __slots__ = ("_jobs",)

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, gone: str, broken: Callable[[str], None]
    ) -> None:
        from queue import SimpleQueue  # noqa: PLC0415 - 0.6 ms of a start; pipes need none

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
        except RuntimeError:  # the loop was closed: nobody waits for the answer
            pass
        finally:
            os.close(self._fd)

    def _write(self, rest: memoryview) -> OSError | None:
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # whoever shares this descriptor made it so
                room = select.poll()
                room.register(self._fd, select.POLLOUT)
                room.poll()
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
    """A writer for this descriptor, which must not block: in the loop if it can be watched.

    Args:
        loop: the running event loop.
        fd: where to write; it is the writer's from here on.
        gone: what to say when nobody reads any more.
        broken: is called with the reason when writing failed.
    """
    try:
        loop.add_writer(fd, int)
        loop.remove_writer(fd)
    except (NotImplementedError, PermissionError):
        return ThreadWriter(loop, fd, gone, broken)
    return LoopWriter(loop, fd, gone, broken)
