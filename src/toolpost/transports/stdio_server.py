"""Our own stdin and stdout as a channel: how a server talks to the client that started it.

Owns descriptors 0 and 1 while it is open. Whoever else in this process reads or writes them meets /dev/null
and stderr, so that a stray `print` or a C library cannot break the stream. Bytes only: the locale does not
matter. Knows nothing of the client; it ends when stdin ends or the parent process is gone.

PART watchdog: Ends a process that was told to leave and cannot: a function may block the loop, or refuse to
be cancelled.

Owns one thread, which looks at stdin, at the parent process and at the clock, and at nothing else: it works
while the loop does not. A process that ends by itself never hears of it.
"""

import asyncio
import contextlib
import io
import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from toolpost.errors import ConnectFailed, LocalProtocolError
from toolpost.protocol.framing import MAX_LINE, OversizedLine, frame
from toolpost.transports.message_queue import DirectReceiver, MessageQueue
from toolpost.transports.pipes import LineFeed, PipeWriter, ThreadWriter, open_writer

PARENT_CHECK_INTERVAL: Final = 2.0
"""Seconds between two looks at who our parent is: soon enough for a person, too rare to measure."""

LAST_WRITE_TIMEOUT: Final = 2.0
"""Seconds that closing waits for a client to read the last answers."""


class StdioServerChannel:
    """The channel over our own stdin and stdout. `open_stdio` makes it."""

    __slots__ = ("_closing", "_feed", "_loop", "_parent", "_queue", "_redirect", "_timer", "_writer")

    local = True
    """Who has started this process is at the other end."""

    def __init__(self, max_line: int, parent_check: float | None) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._redirect = _StdioRedirect()
        self._queue = MessageQueue()
        self._closing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writer = _open_stdout(loop, self._redirect.stdout, self._queue.end)
        stdin = _reopen_nonblocking(self._redirect.stdin, os.O_RDONLY)
        self._feed = LineFeed(
            loop,
            os.dup(self._redirect.stdin) if stdin is None else stdin,
            self._queue,
            limit=max_line,
            ended=self._on_stdin_end,
        )
        self._parent = os.getppid()
        if parent_check is not None and os.name == "posix":
            self._watch_parent(parent_check)

    async def receive(self) -> bytes:
        """The next message of the client, waiting for it if need be. Cancelling it loses no message.

        Raises:
            ChannelClosed: stdin was closed, nobody reads our stdout, or the parent process is gone.
            LocalProtocolError: another task is receiving already.
        """
        return await self._queue.receive()

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Hand one message over; wait while the client does not read.

        Raises:
            ChannelClosed: nobody reads our stdout any more, or the channel was closed; nothing was sent.
        """
        await self._writer.send(frame(data))

    def offer(self, data: bytes) -> bool:
        """Hand one message over, if that needs no waiting; False if `send` has to be asked, and why not."""
        return self._writer.offer(frame(data))

    def serve(self, taker: DirectReceiver | None) -> None:
        """Let whoever receives take messages at once while it waits for them; None for nobody."""
        self._queue.receiver = taker

    def on_oversized(self, tell: Callable[[OversizedLine], object]) -> None:
        """Tell somebody else than the log of messages that are dropped because of their length."""
        self._queue.on_oversized = tell

    async def wait_until_ended(self) -> None:
        """Wait until the client has gone, whoever receives what it has said until then."""
        await self._queue.wait_until_ended()

    async def close(self) -> None:
        """Write what was sent, then give the descriptors back. Closing twice is fine.

        Cancelling it drops what the client has not read yet; the descriptors are given back all the same.
        """
        if self._closing is not None:
            await asyncio.wait({self._closing})
            return
        self._closing = self._loop.create_future()
        reason = "the channel was closed"
        self._queue.close(reason)
        self._feed.close()
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._writer.finish(reason)
            await asyncio.wait({self._writer.closed}, timeout=LAST_WRITE_TIMEOUT)
        finally:
            self._writer.abort(reason)
            self._redirect.undo()
            self._closing.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _on_stdin_end(self) -> None:
        self._queue.end("the client is gone: stdin was closed")

    def _watch_parent(self, seconds: float) -> None:
        """End the channel when we were adopted: somebody else may hold our stdin open for ever."""
        if os.getppid() == self._parent:
            self._timer = self._loop.call_later(seconds, self._watch_parent, seconds)
        else:
            self._feed.close()
            self._queue.end("the client is gone: the parent process has ended")


def open_stdio(
    max_line: int = MAX_LINE, *, parent_check: float | None = PARENT_CHECK_INTERVAL
) -> StdioServerChannel:
    """Take over stdin and stdout until the channel is closed; also an async context manager.

    What is printed meanwhile goes to stderr, line by line, and reading stdin finds nothing. It has to be
    called in a running event loop.

    Args:
        max_line: the longest message to accept, in bytes. Longer ones are dropped.
        parent_check: seconds between two looks whether the parent process still lives; None never looks.

    Raises:
        ConnectFailed: this process has no stdin or no stdout.
        LocalProtocolError: they were taken over already.
    """
    return StdioServerChannel(max_line, parent_check)


class _StdioRedirect:
    """Descriptors 0 and 1, taken from everybody else in this process until `undo`.

    Attributes:
        stdin: a copy of what 0 was.
        stdout: a copy of what 1 was.
    """

    __slots__ = ("_buffering", "stdin", "stdout")

    is_active = False

    def __init__(self) -> None:
        if _StdioRedirect.is_active:
            raise LocalProtocolError("stdin and stdout are in use by another channel of this process")
        if any(stream is None or stream.closed for stream in (sys.__stdin__, sys.__stdout__)):
            # The numbers 0 and 1 may be anything by now, so they are not even looked at.
            raise ConnectFailed(
                "this process has no stdin or no stdout",
                hint="let an MCP client start it, or connect both of them",
            )
        self.stdin = os.dup(0)
        self.stdout = os.dup(1)
        _StdioRedirect.is_active = True
        _redirect_descriptor(0, os.devnull)
        _redirect_descriptor(1, os.devnull if sys.__stderr__ is None else 2)
        # What was printed and not flushed yet goes to stderr as well, and from here on each line at once.
        self._buffering = [(stream, stream.line_buffering) for stream in _get_stdout_streams()]
        for stream, _ in self._buffering:
            _flush_stream(stream, line_buffering=True)

    def undo(self) -> None:
        """Give the descriptors back; 1 only if somebody still reads it, else the next `print` would fail."""
        for stream, buffering in self._buffering:
            if not _flush_stream(stream, line_buffering=buffering):
                _redirect_descriptor(1, os.devnull)
                _flush_stream(stream, line_buffering=buffering)
        os.dup2(self.stdin, 0)
        if not _has_no_reader(self.stdout):
            os.dup2(self.stdout, 1)
        os.close(self.stdin)
        os.close(self.stdout)
        _StdioRedirect.is_active = False


def _redirect_descriptor(fd: int, target: int | str) -> None:
    """Make the descriptor mean the same as another one, or as a file."""
    if isinstance(target, int):
        os.dup2(target, fd)
    else:
        opened = os.open(target, os.O_RDWR)
        os.dup2(opened, fd)
        os.close(opened)


def _get_stdout_streams() -> list[io.TextIOWrapper]:
    """What `print` writes to: the stream that Python made, and the one that a program put in its place."""
    streams = dict.fromkeys((sys.stdout, sys.__stdout__))
    return [stream for stream in streams if isinstance(stream, io.TextIOWrapper) and not stream.closed]


def _flush_stream(stream: io.TextIOWrapper, *, line_buffering: bool) -> bool:
    """Flush the stream where its descriptor points now. Whether that went well."""
    try:
        stream.reconfigure(line_buffering=line_buffering)
    except (OSError, ValueError):
        return False
    return True


def _has_no_reader(fd: int) -> bool:
    """Whether nobody is left to read what we would write."""
    if sys.platform == "win32":  # pragma: no cover - it cannot be asked there
        return False
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _reopen_nonblocking(fd: int, flags: int) -> int | None:
    """A way of our own to the same pipe or terminal that does not block; None where there is none.

    O_NONBLOCK belongs to all processes that share a descriptor's description, and to stderr if that is the
    same terminal. A description of our own lets us set it without doing so to them.
    """
    if sys.platform == "linux" and (stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd)):
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_NOCTTY)
    return None


def _open_stdout(loop: asyncio.AbstractEventLoop, fd: int, broken: Callable[[str], None]) -> PipeWriter:
    gone = "the client is gone: stdout was closed"
    own = _reopen_nonblocking(fd, os.O_WRONLY)
    if own is not None:
        return open_writer(loop, own, gone, broken)
    # A socket can be told with each write not to block; what is left might.
    kind = open_writer if stat.S_ISSOCK(os.fstat(fd).st_mode) else ThreadWriter
    return kind(loop, os.dup(fd), gone, broken)


# --------------------------------------------------------------------- watchdog

EXIT_GRACE_PERIOD: Final = 10.0
"""Seconds between being told to leave and being made to: more than all that ends in order may take."""

WATCHDOG_INTERVAL: Final = 1.0
"""Seconds between two looks at the parent process."""

_log: Final = logging.getLogger("toolpost.server")


class Watchdog:
    """Watches over the end of this process while it serves stdin and stdout.

    Args:
        grace: seconds that the process has to end by itself.
    """

    def __init__(self, grace: float = EXIT_GRACE_PERIOD) -> None:
        self._grace = grace
        self._finished = threading.Event()
        self._exit_requested = threading.Event()
        self._parent = os.getppid()

    def request_exit(self, *_: object) -> None:
        """The process is to leave; may be called by a signal."""
        self._exit_requested.set()

    def __enter__(self) -> Self:
        if hasattr(select, "poll"):
            stdin = os.dup(0)
            threading.Thread(target=self._watch, args=(stdin,), name="toolpost-watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()

    def _watch(self, stdin: int) -> None:
        hangup = select.poll()
        hangup.register(stdin, 0)  # nothing but the end of it
        try:
            while not (
                self._finished.is_set() or self._exit_requested.is_set() or os.getppid() != self._parent
            ):
                if hangup.poll(WATCHDOG_INTERVAL * 1000):
                    break
        finally:
            os.close(stdin)
        if not self._finished.wait(self._grace):
            _log.error("the process does not end by itself within %s s, and is ended", self._grace)
            os._exit(0)
