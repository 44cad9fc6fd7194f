"""The heads of HTTP requests on uvicorn: bounded while they come, and none that asks for another protocol.

Owns what has to be seen to before the parser of uvicorn is done with a head: it takes any size, and leaves
out the body of a request that offers an upgrade, as the HTTP client of Java does. Lets go of a connection
that is lost. Knows no message.
"""

import re
from typing import TYPE_CHECKING, Final, cast

from toolpost.transports.gate import MAX_HEADERS, Refusal

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["heads"]

_END: Final = b"\r\n\r\n"
_UPGRADE: Final = re.compile(rb"(?<=\r\n)upgrade(?=:)", re.IGNORECASE)
_UNKNOWN: Final = b"ignored"  # as long as the other: whoever counts bytes counts the same


def heads() -> "type[asyncio.Protocol] | None":
    """The protocol for uvicorn; None where it uses another parser, which has a bound and ignores upgrades."""
    try:
        from uvicorn.protocols.http.httptools_impl import (  # noqa: PLC0415 - only who serves needs it
            HttpToolsProtocol,
        )
    except ImportError:
        return None

    class Heads(HttpToolsProtocol):
        """Looks at what comes before the parser does."""

        _size = 0
        _within = False

        def data_received(self, data: bytes) -> None:
            if not self._within:
                self._size += len(data)
                data = _plain(data)
            super().data_received(data)
            if self._size > MAX_HEADERS and not self.transport.is_closing():
                _refuse(self.transport, self.cycle)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.timeout_keep_alive_task is not None:  # it would hold all of this until its time has come
                self.timeout_keep_alive_task.cancel()

        def on_headers_complete(self) -> None:
            self._size, self._within = 0, True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._size, self._within = 0, False
            super().on_message_complete()

    return Heads


def _plain(data: bytes) -> bytes:
    """What comes of a head, without an offer to go on in another protocol: a server may ignore it."""
    end = data.find(_END)
    if _UPGRADE.search(data, 0, len(data) if end < 0 else end) is None:  # nearly always
        return data
    head, mark, rest = data.partition(_END)
    return _UPGRADE.sub(_UNKNOWN, head) + mark + rest


def _refuse(transport: "asyncio.Transport", last: "RequestResponseCycle") -> None:
    """End a connection; say why, unless an earlier request is still being answered."""
    answering = cast("RequestResponseCycle | None", last)  # there is none before the first request
    if answering is None or answering.response_complete:
        body = Refusal(431, f"The headers have more than {MAX_HEADERS} bytes together.").body
        transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
            b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
    transport.close()
