"""HTTP connections on uvicorn: heads are bounded in size and in time, and who does not read is let go.

Owns what has to be seen to before the parser of uvicorn is done with a head: it takes any size and any time,
and leaves out the body of a request that offers an upgrade, as the HTTP client of Java does. Owns the clock
over a connection on which nothing goes on. Knows no message.

PART workers: Several processes that do the same work: started together, replaced when one dies, ended
together.

Owns the processes and the signals of the one that started them. Knows nothing of the work.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

from toolpost.read_size import limit_read_size
from toolpost.server.http.disconnect import CONNECTION_MONITOR, DisconnectWatcher
from toolpost.server.http.security import MAX_HEADERS, HTTPRefusal

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

logger: Final = logging.getLogger("toolpost.http")

HEAD_TIMEOUT: Final = 30.0
"""Seconds from the beginning of a connection, or from the first byte behind a response, to a whole head."""

STALL_TIMEOUT: Final = 60.0
"""Seconds for which a client may take nothing of a response that waits for it."""

MAX_PIPELINED: Final = 8
"""Requests behind the one that is served, up to which we read on: we would not hear that a client goes."""

_HEAD_END: Final = b"\r\n\r\n"
_UPGRADE_LINE: Final = b"\r\nupgrade:"
_UPGRADE_NAME: Final = re.compile(rb"(?<=\r\n)upgrade(?=:)", re.IGNORECASE)
_HEADER_NAME: Final = itemgetter(0)
_FORWARDED_HEADERS: Final = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
_IGNORED_NAME: Final = b"ignored"  # as long as the other: whoever counts bytes counts the same
_REASON_PHRASES: Final = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


def make_bounded_protocol(  # noqa: C901 - the class can only be made where uvicorn is installed
    head: float = HEAD_TIMEOUT, stalled: float = STALL_TIMEOUT, forwarded: Any = None
) -> "type[asyncio.Protocol] | None":
    """The protocol for uvicorn; None where it uses another parser, which has a bound and ignores upgrades.

    Args:
        head: seconds that a client has for a head.
        stalled: seconds for which a client may take nothing of what waits for it.
        forwarded: the application for requests that a proxy has handed on, if it is another one: to ask for
            each request whether its sender is such a proxy takes 3 us.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import (  # noqa: PLC0415 - only who serves needs it
            HttpToolsProtocol,
        )
    except ImportError:
        return None

    class BoundedHttpProtocol(HttpToolsProtocol):
        """Looks at what comes before the parser does, and at the clock while nothing is being answered."""

        # With more than 30 attributes in all, a connection would have a dict of its own, of 1.2 KiB.
        __slots__ = (
            "_direct",
            "_head_timer",
            "_is_in_body",
            "_served",
            "_size",
            "_stall_timer",
            "_unread",
            "_watcher",
        )

        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self._size = self._unread = 0
            self._is_in_body = False
            self._head_timer: asyncio.TimerHandle | None = None
            self._stall_timer: asyncio.TimerHandle | None = None
            self._direct: Any = None
            self._watcher: DisconnectWatcher | None = None
            # The request that is being served. If others wait behind it, `cycle` is the last of them: uvicorn
            # tells no other that the client has gone.
            self._served: RequestResponseCycle | None = None

        def connection_made(self, transport: "asyncio.Transport") -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn has it
            super().connection_made(transport)
            _set_nodelay(transport)
            limit_read_size(transport)
            self._direct = self.app
            self._head_timer = self.loop.call_later(head, self._on_head_timeout)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for timer in (self.timeout_keep_alive_task, self._head_timer, self._stall_timer):
                _cancel_timer(timer)  # it would hold all of this until its time has come
            served, self._served = self._served, None
            if served is not None:
                served.scope.pop(CONNECTION_MONITOR, None)  # it would hold us, and we hold it
                served.disconnected = not served.response_complete
                served.message_event.set()
            guest, self._watcher = self._watcher, None
            if guest is not None:
                guest.on_disconnect()

        # As `ConnectionMonitor` promises.
        def watch_disconnect(self, guest: DisconnectWatcher) -> bool:
            served = self._served
            if served is None or served.more_body or served.body:
                return False  # it has gone, or whoever waits for that reads the rest first
            self.flow.resume_reading()  # or we would not hear of it
            self._watcher = guest
            return True

        def take_body(self, receive: Any) -> bytes | None:
            served = self._served
            # Somebody in between may read the body, or change it, and then it is another function.
            if served is None or getattr(receive, "__self__", None) is not served or served.more_body:
                return None
            self.flow.resume_reading()
            body, served.body = served.body, bytearray()
            return bytes(body)

        def unwatch_disconnect(self, guest: DisconnectWatcher) -> None:
            if self._watcher is guest:  # and not the next one on this connection
                self._watcher = None

        # ------------------------------------------------------------- what comes

        def data_received(self, data: bytes) -> None:
            if not self._is_in_body:
                self._size += len(data)
                data = _strip_upgrade(data)
            super().data_received(data)
            if self._head_timer is None and _is_idle(self.cycle):
                # A part of a head, or of a body that nobody wants: uvicorn has stopped its own clock.
                self._head_timer = self.loop.call_later(head, self._on_head_timeout)
            if self._size > MAX_HEADERS and not self.transport.is_closing():
                self._refuse(431, f"The headers have more than {MAX_HEADERS} bytes together.")

        def on_headers_complete(self) -> None:
            self._size, self._is_in_body = 0, True
            if self._head_timer is not None:
                self._head_timer = _cancel_timer(self._head_timer)
            if forwarded is not None:
                handed_on = not _FORWARDED_HEADERS.isdisjoint(map(_HEADER_NAME, self.headers))
                self.app = forwarded if handed_on else self._direct
            scope: Any = self.scope
            scope[CONNECTION_MONITOR] = self
            super().on_headers_complete()
            if not self.pipeline:
                self._served = self.cycle
            elif self._watcher is not None and len(self.pipeline) < MAX_PIPELINED:
                self.flow.resume_reading()

        def on_message_complete(self) -> None:
            self._size, self._is_in_body = 0, False
            super().on_message_complete()

        def _on_head_timeout(self) -> None:
            """The client has not sent a whole head in time."""
            self._head_timer = None
            if self._size and not self.transport.is_closing():
                self._refuse(408, f"The headers did not come within {head:g} s.")
            else:
                self._close_when_written()

        def _refuse(self, status: int, why: str) -> None:
            """End the connection; say why, unless an earlier request is still being answered."""
            if _is_idle(self.cycle):
                body = HTTPRefusal(status, why).body
                self.transport.write(
                    b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
                    b"content-length: %d\r\n\r\n%s" % (status, _REASON_PHRASES[status], len(body), body)
                )
            self._close_when_written()

        # ------------------------------------------------------------- what goes

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_stall()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stall_timer = _cancel_timer(self._stall_timer)

        def on_response_complete(self) -> None:
            if self.pipeline:
                self._served = self.pipeline[-1][0]
            super().on_response_complete()
            if self.transport.is_closing():
                self._close_when_written()

        def timeout_keep_alive_handler(self) -> None:
            self._close_when_written()

        def _close_when_written(self) -> None:
            """Close, once the client has taken what is there for it, if it takes it."""
            self.transport.close()
            if self._stall_timer is None and self.transport.get_write_buffer_size():
                self._watch_stall()

        def _watch_stall(self) -> None:
            _cancel_timer(self._stall_timer)
            self._unread = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(stalled, self._check_stall)

        def _check_stall(self) -> None:
            """Cut off a client that has taken nothing since we last looked."""
            if self.transport.get_write_buffer_size() < self._unread:
                self._watch_stall()
                return
            self._stall_timer = None
            logger.debug("a client has not read its response for %g s, and is cut off", stalled)
            self.transport.abort()

    return BoundedHttpProtocol


def _set_nodelay(transport: "asyncio.Transport") -> None:
    """Let no part of a response wait until another was acknowledged; asyncio does so for some sockets."""
    with contextlib.suppress(OSError):  # it may be gone already
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _cancel_timer(timer: "asyncio.TimerHandle | None") -> None:
    if timer is not None:
        timer.cancel()


def _is_idle(last: "RequestResponseCycle") -> bool:
    """Whether no request is being answered."""
    cycle = cast("RequestResponseCycle | None", last)  # there is none before the first request
    return cycle is None or cycle.response_complete


def _strip_upgrade(data: bytes) -> bytes:
    """What comes of a head, without an offer to go on in another protocol: a server may ignore it."""
    end = data.find(_HEAD_END)
    if _UPGRADE_LINE not in (data if end < 0 else data[:end]).lower():  # nearly always
        return data
    head, mark, rest = data.partition(_HEAD_END)
    return _UPGRADE_NAME.sub(_IGNORED_NAME, head) + mark + rest


# --------------------------------------------------------------------- workers

server_logger: Final = logging.getLogger("toolpost.server")

MIN_WORKER_LIFETIME: Final = 1.0
"""Seconds that a worker has to live: one that dies sooner would die again, and is not replaced."""

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class WorkerProcesses:
    """Processes that fork from this one.

    Args:
        count: how many.
        work: what each of them does, until SIGTERM tells it to stop.
    """

    def __init__(self, count: int, work: Callable[[], None]) -> None:
        self._count = count
        self._work = work
        self._started_at: dict[int, float] = {}
        self._stopping = False

    def run(self) -> None:
        """Let them work until a signal tells us to stop.

        Raises:
            RuntimeError: one has died as soon as it was started.
        """
        # Who holds only the reading end of it learns of our death, however sudden.
        ours, theirs = os.pipe()
        before = {number: signal.signal(number, self._stop) for number in _STOP_SIGNALS}
        try:
            for _ in range(self._count):
                self._start(ours, theirs)
            self._replace_dead(ours, theirs)
        finally:
            self._stop()
            for pid in list(self._started_at):
                os.waitpid(pid, 0)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(ours)
            os.close(theirs)

    def _replace_dead(self, ours: int, theirs: int) -> None:
        """Replace those who die, until all are gone because they were told to."""
        while self._started_at:
            pid, status = os.wait()
            started = self._started_at.pop(pid, None)
            if started is None or self._stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            if time.monotonic() - started < MIN_WORKER_LIFETIME:
                raise RuntimeError(f"a worker has ended with code {code} as soon as it was started")
            server_logger.error("worker %d has ended with code %d, and is replaced", pid, code)
            self._start(ours, theirs)

    def _start(self, ours: int, theirs: int) -> None:
        # A signal that came here would be heard by a process that does not know yet who it is.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        pid = os.fork()
        if pid:
            self._started_at[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            if self._stopping:
                self._stop()
            return
        code = 1
        try:
            for number in _STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            os.close(theirs)
            threading.Thread(target=_exit_with_parent, args=(ours,), daemon=True).start()
            self._work()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 - what is raised here must not reach the code of the parent
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for pid in self._started_at:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _exit_with_parent(ours: int) -> None:
    os.read(ours, 1)
    os.kill(os.getpid(), signal.SIGTERM)
