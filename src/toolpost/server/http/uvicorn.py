"""HTTP connections on uvicorn.

uvicorn's parser accepts heads and trailers of any size and at any pace, and drops the body of a request that
offers an upgrade, as Java's HTTP client does: the protocol here bounds and repairs that, and closes
connections whose client does not read.
"""

import contextlib
import logging
import re
import socket
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

from toolpost.protocol.line_framing import READ_SIZE
from toolpost.server.http.disconnect_timer import CONNECTION_MONITOR
from toolpost.server.http.exchange import HttpExchange, HTTPRefusal
from toolpost.server.http.security import MAX_HEADERS

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

logger: Final = logging.getLogger("toolpost.http")

HEAD_TIMEOUT: Final = 30.0  # seconds from the start of a connection or the end of a response to a whole head
STALL_TIMEOUT: Final = 60.0  # seconds for which a client may stop reading its response
CHUNK_FRAMING: Final = 12  # bytes of a chunk that are not body, such as b"1000000\\r\\n…\\r\\n"; not counted
MAX_PIPELINED: Final = 8  # how many pipelined requests are read on: without reading, no disconnect is noticed
_HEAD_END: Final = b"\r\n\r\n"
_UPGRADE_LINE: Final = b"\r\nupgrade:"
_UPGRADE_NAME: Final = re.compile(rb"(?<=\r\n)upgrade(?=:)", re.IGNORECASE)
_HEADER_NAME: Final = itemgetter(0)
_FORWARDED_HEADERS: Final = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
_IGNORED_NAME: Final = b"ignored"  # as long as "upgrade", so that sizes stay the same
_REASON_PHRASES: Final = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


def make_bounded_protocol(  # noqa: C901 - the class can only be made where uvicorn is installed
    head: float = HEAD_TIMEOUT, stalled: float = STALL_TIMEOUT, forwarded: Any = None
) -> "type[asyncio.Protocol] | None":
    """Return the protocol for uvicorn; None without httptools, as uvicorn's other parser is already bounded.

    `head` and `stalled` are the timeouts in seconds. `forwarded` is the application for requests with
    headers of a proxy, so that others need not check whether their sender is one.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 - optional
    except ImportError:
        return None

    class BoundedHttpProtocol(HttpToolsProtocol):
        """Checks data before the parser does, and the time while no request is served."""

        # With more than 30 attributes in all, each connection would need a dict.
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
            self._watcher: HttpExchange | None = None
            # The request that is served. With pipelined ones, `cycle` is the last of them, the only one to
            # which uvicorn reports a disconnect.
            self._served: RequestResponseCycle | None = None

        def connection_made(self, transport: "asyncio.Transport") -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn has it
            super().connection_made(transport)
            _set_nodelay(transport)
            if getattr(transport, "max_size", 0) > READ_SIZE:  # other loops have no such attribute
                cast("Any", transport).max_size = READ_SIZE
            self._direct = self.app
            self._head_timer = self.loop.call_later(head, self._on_head_timeout)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for timer in (self.timeout_keep_alive_task, self._head_timer, self._stall_timer):
                _cancel_timer(timer)  # it would keep the connection in memory
            served, self._served = self._served, None
            if served is not None:
                served.scope.pop(CONNECTION_MONITOR, None)  # breaks a reference cycle
                served.disconnected = not served.response_complete
                served.message_event.set()
            watcher, self._watcher = self._watcher, None
            if watcher is not None:
                watcher.on_disconnect()

        # ------------------------------------------------------------- as in `ConnectionMonitor`

        def watch_disconnect(self, exchange: HttpExchange) -> bool:
            served = self._served
            if served is None or served.more_body or served.body:
                return False  # it has disconnected, or the rest of the body has to be read first
            self.flow.resume_reading()  # without reading, no disconnect is noticed
            self._watcher = exchange
            return True

        def unwatch_disconnect(self, exchange: HttpExchange) -> None:
            if self._watcher is exchange:
                self._watcher = None

        # ------------------------------------------------------------- reading

        def data_received(self, data: bytes) -> None:
            self._size += len(data)
            if not self._is_in_body:
                data = _strip_upgrade(data)
            super().data_received(data)
            if self._head_timer is None and _is_idle(self.cycle):
                # A part of a head, or of an unwanted body: uvicorn has stopped its own timer.
                self._head_timer = self.loop.call_later(head, self._on_head_timeout)
            if self._size > MAX_HEADERS and not self.transport.is_closing():
                self._refuse(431, f"The request headers exceed {MAX_HEADERS} bytes.")

        def on_headers_complete(self) -> None:
            parser: Any = self.parser
            if parser.should_upgrade():  # `_strip_upgrade` has missed it; the parser would skip the body
                raise ValueError("an offer to upgrade")
            self._size, self._is_in_body = 0, True
            if self._head_timer is not None:
                self._head_timer = _cancel_timer(self._head_timer)
            if forwarded is not None:
                handed_on = not _FORWARDED_HEADERS.isdisjoint(map(_HEADER_NAME, self.headers))
                self.app = forwarded if handed_on else self._direct
            scope: Any = self.scope
            scope[CONNECTION_MONITOR] = self
            super().on_headers_complete()
            self.headers = []  # for trailers, which are no headers of the request
            if not self.pipeline:
                self._served = self.cycle
            elif self._watcher is not None and len(self.pipeline) < MAX_PIPELINED:
                self.flow.resume_reading()

        def on_body(self, body: bytes) -> None:
            self._size = max(self._size - len(body) - CHUNK_FRAMING, 0)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._size, self._is_in_body = 0, False
            super().on_message_complete()

        def _on_head_timeout(self) -> None:
            """Close the connection: the headers are not complete in time."""
            self._head_timer = None
            if self._size and not self.transport.is_closing():
                self._refuse(408, f"The request headers were not received within {head:g} s.")
            else:
                self._close_when_written()

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, f"{msg} Send the headers of a request with an Upgrade header in one piece.")

        def _refuse(self, status: int, why: str) -> None:
            """Close the connection, with an error response unless another one is sent or still due."""
            if _is_idle(self.cycle) and not self._is_in_body:
                body = HTTPRefusal(status, why).body
                self.transport.write(
                    b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
                    b"content-length: %d\r\n\r\n%s" % (status, _REASON_PHRASES[status], len(body), body)
                )
            self._close_when_written()

        # ------------------------------------------------------------- writing

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
            """Close as soon as the client has read everything; abort if it does not read."""
            self.transport.close()
            if self._stall_timer is None and self.transport.get_write_buffer_size():
                self._watch_stall()

        def _watch_stall(self) -> None:
            _cancel_timer(self._stall_timer)
            self._unread = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(stalled, self._check_stall)

        def _check_stall(self) -> None:
            """Abort the connection if the client has read nothing since the last check."""
            if self.transport.get_write_buffer_size() < self._unread:
                self._watch_stall()
                return
            self._stall_timer = None
            logger.debug("connection closed: the client has not read its response for %g s", stalled)
            self.transport.abort()

    return BoundedHttpProtocol


def _set_nodelay(transport: "asyncio.Transport") -> None:
    """Send each part of a response at once; asyncio does so for some sockets only."""
    with contextlib.suppress(OSError):  # it may be closed already
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _cancel_timer(timer: "asyncio.TimerHandle | None") -> None:
    if timer is not None:
        timer.cancel()


def _is_idle(last: "RequestResponseCycle") -> bool:
    cycle = cast("RequestResponseCycle | None", last)  # None before the first request
    return cycle is None or cycle.response_complete


def _strip_upgrade(data: bytes) -> bytes:
    """Rename the upgrade header in a part of a head: a server may ignore the offer."""
    end = data.find(_HEAD_END)
    if _UPGRADE_LINE not in (data if end < 0 else data[:end]).lower():
        return data
    head, mark, rest = data.partition(_HEAD_END)
    return _UPGRADE_NAME.sub(_IGNORED_NAME, head) + mark + rest
