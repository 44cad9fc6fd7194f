"""The server's side of stdio: our own stdin and stdout as a channel to the client that started us.

While the channel is open, all other code in this process finds /dev/null at descriptor 0 and stderr at
descriptor 1, so that a stray `print` or a C library cannot break the stream. `Watchdog` ends a process that
cannot end itself. `pipes` reads the lines; the messages in them are for `protocol`.
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
from functools import partial
from typing import Final, Self

from toolpost.errors import ConnectFailed, LocalProtocolError
from toolpost.protocol.line_framing import MAX_LINE
from toolpost.transports.memory import MessageQueue, QueueChannel
from toolpost.transports.pipes import PIPE_NETWORK, LineFeed, LineWriter

PARENT_CHECK_INTERVAL: Final = 2.0  # seconds between two checks whether our parent process still lives
LAST_WRITE_TIMEOUT: Final = 2.0  # seconds that closing waits for a client to read the last answers


class StdioServerChannel(QueueChannel):
    """Takes over stdin and stdout until it is closed; also an async context manager.

    Make it in a running event loop. Meanwhile `print` writes to stderr, line by line, and stdin is empty.
    """

    local = True  # the other end is the process that started us
    network = PIPE_NETWORK

    def __init__(
        self, max_line: int = MAX_LINE, *, parent_check: float | None = PARENT_CHECK_INTERVAL
    ) -> None:
        super().__init__(MessageQueue())
        self._loop = loop = asyncio.get_running_loop()
        self._redirect = StdioRedirect()
        self._timer: asyncio.TimerHandle | None = None
        self._writer = LineWriter(
            loop,
            _reopen_nonblocking(self._redirect.stdout, os.O_WRONLY),
            "the client is gone: stdout was closed",
            self._queue.end,
        )
        self.offer = self._writer.offer  # as `send`, if that needs no waiting
        self._feed = LineFeed(
            loop,
            _reopen_nonblocking(self._redirect.stdin, os.O_RDONLY),
            self._queue,
            limit=max_line,
            ended=partial(self._queue.end, "the client is gone: stdin was closed"),
        )
        self._parent = os.getppid()
        if parent_check is not None and os.name == "posix":
            self._watch_parent(parent_check)

    async def send(self, data: bytes, related: int | str | None = None) -> None:  # noqa: ARG002 - one stream
        """Hand one message over; wait while the client does not read."""
        await self._writer.send(data)

    @property
    def has_reader(self) -> bool:
        """Whether the client may still read, even if it writes no more."""
        return not _has_no_reader(self._redirect.stdout)

    async def wait_until_ended(self) -> None:
        """Wait until the client has gone, also while its last messages are not received yet."""
        await self._queue.ended.wait()

    async def _shut_down(self) -> None:
        """Write all sent messages, unless cancelled; then give the descriptors back."""
        self._feed.close()
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._writer.finish(self._closed_reason)
            await asyncio.wait({self._writer.closed}, timeout=LAST_WRITE_TIMEOUT)
        finally:
            self._writer.abort(self._closed_reason)
            self._redirect.undo()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _watch_parent(self, seconds: float) -> None:
        """End the channel when we were adopted: another process may hold our stdin open."""
        if os.getppid() == self._parent:
            self._timer = self._loop.call_later(seconds, self._watch_parent, seconds)
        else:
            self._feed.close()
            self._queue.end("the client is gone: the parent process has ended")


class StdioRedirect:
    """Takes descriptors 0 and 1 from all other code in this process until `undo`; keeps copies of both."""

    is_active = False

    def __init__(self) -> None:
        if StdioRedirect.is_active:
            raise LocalProtocolError("stdin and stdout are in use by another channel of this process")
        if any(stream is None or stream.closed for stream in (sys.__stdin__, sys.__stdout__)):
            # The numbers 0 and 1 may belong to any file by now.
            raise ConnectFailed(
                "this process has no stdin or no stdout",
                hint="start it from an MCP client, or connect both",
            )
        self.stdin = os.dup(0)
        self.stdout = os.dup(1)
        StdioRedirect.is_active = True
        redirect_descriptor(0, os.devnull)
        redirect_descriptor(1, os.devnull if sys.__stderr__ is None else 2)
        # Output that is not flushed yet goes to stderr as well, and from here on each line at once.
        self._buffering = [(stream, stream.line_buffering) for stream in _get_stdout_streams()]
        for stream, _ in self._buffering:
            _flush_stream(stream, line_buffering=True)

    def undo(self) -> None:
        """Give the descriptors back; 1 only if it still has a reader, else the next `print` would fail."""
        for stream, buffering in self._buffering:
            if not _flush_stream(stream, line_buffering=buffering):
                redirect_descriptor(1, os.devnull)
                _flush_stream(stream, line_buffering=buffering)
        os.dup2(self.stdin, 0)
        if not _has_no_reader(self.stdout):
            os.dup2(self.stdout, 1)
        os.close(self.stdin)
        os.close(self.stdout)
        StdioRedirect.is_active = False


def redirect_descriptor(fd: int, target: int | str) -> None:
    """Point a descriptor to the file of another one, or to a path."""
    if isinstance(target, int):
        os.dup2(target, fd)
    else:
        opened = os.open(target, os.O_RDWR)
        os.dup2(opened, fd)
        os.close(opened)


def _get_stdout_streams() -> list[io.TextIOWrapper]:
    """Return the streams that `print` may write to: Python's own, and one that a program put in its place."""
    streams = dict.fromkeys((sys.stdout, sys.__stdout__))
    return [stream for stream in streams if isinstance(stream, io.TextIOWrapper) and not stream.closed]


def _flush_stream(stream: io.TextIOWrapper, *, line_buffering: bool) -> bool:
    """Flush a stream to where its descriptor points now. Return whether that worked."""
    try:
        stream.reconfigure(line_buffering=line_buffering)
    except (OSError, ValueError):
        return False
    return True


def _has_no_reader(fd: int) -> bool:
    if sys.platform == "win32":  # pragma: no cover - there is no poll
        return False
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _reopen_nonblocking(fd: int, flags: int) -> int:
    """Open the same pipe or terminal again, non-blocking; return a copy where that is not possible.

    O_NONBLOCK applies to all processes that share the open file, and to stderr if that is the same terminal.
    A file opened by us alone lets us set it without changing theirs.
    """
    if sys.platform == "linux" and (stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd)):
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(fd)


# --------------------------------------------------------------------- the end of the process

EXIT_GRACE_PERIOD: Final = 10.0  # seconds from the request to exit until the process is ended
WATCHDOG_INTERVAL: Final = 1.0  # seconds between two checks of the parent process
_log: Final = logging.getLogger("toolpost.server")


class Watchdog:
    """Ends this process if it does not end within `grace` seconds after its client has gone.

    A function may block the loop, or refuse to be cancelled. The thread watches stdin, the parent process and
    the clock only, so it works while the loop does not.
    """

    def __init__(self, grace: float = EXIT_GRACE_PERIOD) -> None:
        self._grace = grace
        self._finished = threading.Event()
        self._exit_requested = threading.Event()
        self._parent = os.getppid()

    def request_exit(self, *_: object) -> None:
        """Start the grace period; may be called by a signal handler."""
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
        hangup.register(stdin, 0)  # only its end
        try:
            while not (
                self._finished.is_set() or self._exit_requested.is_set() or os.getppid() != self._parent
            ):
                if hangup.poll(WATCHDOG_INTERVAL * 1000):
                    break
        finally:
            os.close(stdin)
        if not self._finished.wait(self._grace):
            _log.error("the process did not exit within %s s; ending it", self._grace)
            os._exit(0)
