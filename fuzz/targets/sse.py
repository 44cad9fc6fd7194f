"""Event streams. The judge is the standard's text, followed line by line on the whole stream."""

import re
from contextlib import suppress
from typing import Final

from fuzz.cuts import pumped, ways
from toolpost.errors import RemoteProtocolError
from toolpost.protocol import sse
from toolpost.protocol.sse import EventStreamDecoder, ServerSentEvent

__all__ = ["TOKENS", "target"]

TOKENS: Final = (
    *(b"data:", b"data: ", b"event: ", b"id: ", b"retry: ", b"\n\n", b"\r\n\r\n", b"\r", b"\r\n", b": "),
    *(b"\xef\xbb\xbf", b"\0", b"data", b"id", b"\xff", b"99999999999999999999", b"\xc2\x85", b"\xe2\x80\xa8"),
)
NARROW: Final = 32
"""A limit that short inputs reach."""
_END: Final = re.compile(rb"\r\n|\r|\n")


def target(data: bytes) -> None:
    """However the stream is cut, the events are the same, and those of the standard."""
    whole, *others = [_read(cut, sse.MAX_EVENT) for cut in ways(data)]
    assert whole == _judged(data), "not what the standard says"
    assert all(other == whole for other in others), "it depends on the cut"
    narrow, *others = [_read(cut, NARROW) for cut in ways(data)]
    assert all(other == narrow for other in others), "it depends on the cut, with a limit"
    assert narrow == whole or narrow[1], "a limit changes the events"
    _there_and_back(data)
    for long in pumped(data, 64 * 1024):
        _read([long], sse.MAX_EVENT)
        _read([long[at : at + 1024] for at in range(0, len(long), 1024)], sse.MAX_EVENT)


_Seen = tuple[list[ServerSentEvent], bool, str, int | None]


def _read(cut: list[bytes], limit: int) -> _Seen:
    decoder = EventStreamDecoder(limit)
    events: list[ServerSentEvent] = []
    failed = False
    try:
        for piece in cut:
            events += decoder.feed(piece)
        decoder.feed(b"")  # an error may wait behind the events of the last piece
    except RemoteProtocolError:
        failed = True
    return events, failed, decoder.last_event_id, decoder.retry


def _judged(data: bytes) -> _Seen:
    events: list[ServerSentEvent] = []
    last, retry = "", None
    body: list[bytes] = []
    kind, identity = "", ""
    for line in _END.split(data.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        if not line:
            last = identity
            if body:
                events.append(ServerSentEvent(b"\n".join(body), kind or "message", last))
            body, kind = [], ""
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            body.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            identity = value.decode("utf-8", "replace")
        elif name == b"retry" and re.fullmatch(rb"[0-9]{1,18}", value):
            retry = int(value)
    return events, False, last, retry


def _there_and_back(data: bytes) -> None:
    half = len(data) // 2
    text = data[:half].decode("utf-8", "surrogateescape")
    with suppress(ValueError):  # CR, LF, NUL and what is no UTF-8 cannot be written
        written = sse.encode_event(data[half:], event=text, id=text, retry=half)
        decoder = EventStreamDecoder()
        assert decoder.feed(written) == [
            ServerSentEvent(_END.sub(b"\n", data[half:]), text or "message", text)
        ]
        assert (decoder.retry, decoder.last_event_id) == (half, text)
    assert EventStreamDecoder().feed(sse.encode_event(data)) == [ServerSentEvent(_END.sub(b"\n", data))]
    assert EventStreamDecoder().feed(sse.KEEP_ALIVE) == []
