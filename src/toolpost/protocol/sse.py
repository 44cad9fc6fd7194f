"""Event streams: the `text/event-stream` format of the WHATWG HTML standard (§9.2), in both directions.

Owns how an event is written, and how it is found again in bytes that arrive in any pieces. Knows nothing of
HTTP, of JSON or of the meaning of events; the data of an event stays bytes.
"""

from typing import Final, NamedTuple

from toolpost.errors import RemoteProtocolError

MAX_EVENT: Final = 4 * 1024 * 1024  # bytes of an event or comment: its lines, without line ends
_MAX_RETRY_DIGITS: Final = 18  # fits 64 bits; parsing a number takes quadratic time
_BOM: Final = b"\xef\xbb\xbf"
_COLON: Final = 0x3A
_LF: Final = 0x0A  # a search for a number is far cheaper than one for bytes
_CR: Final = 0x0D

KEEP_ALIVE: Final = b": \n\n"
"""A comment, which readers skip (HTTPM-8); the blank line is for those that look at blocks of the stream."""


# --------------------------------------------------------------------- writing


def encode_event(
    data: bytes,
    *,
    event: str | None = None,
    id: str | None = None,  # noqa: A002 - the format's word
    retry: int | None = None,
) -> bytes:
    """Encode one event; each CR, LF or CRLF in `data` reaches the reader as LF.

    Raises ValueError if `event`, `id` or `retry` (milliseconds) cannot be written.
    """
    if _LF in data or _CR in data:
        # A reader sees no difference between CR, LF and CRLF.
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    fields = b"" if id is None else _encode_field("id", id)
    if event is not None:
        fields += _encode_field("event", event)
    if retry is not None:
        if type(retry) is not int or retry < 0:
            raise ValueError(f"the retry of an event must be a whole number of milliseconds, not {retry!r}")
        fields += b"retry: %d\n" % retry
    return b"%bdata: %b\n\n" % (fields, data)


def encode_message(data: bytes, stream: bytes, number: int) -> bytes:
    """Encode a message of a stream whose name is safe: the id of the event has the name and the number."""
    if _LF in data or _CR in data:
        return encode_event(data, event="message", id=f"{stream.decode()}.{number}")
    return b"id: %b.%d\nevent: message\ndata: %b\n\n" % (stream, number, data)


def encode_priming_event(stream: bytes, retry: int) -> bytes:
    """Encode the first event of such a stream: only an id, and a delay in milliseconds (HTTPL-3)."""
    return b"id: %b.0\nretry: %d\ndata: \n\n" % (stream, retry)


def _encode_field(name: str, value: str) -> bytes:
    """Encode a field whose value must not be able to leave its line."""
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError(f"the {name} of an event must not contain CR, LF or NUL: {value[:80]!r}")
    try:
        return f"{name}: {value}\n".encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the {name} of an event must be valid UTF-8 text: {value[:80]!r}") from error


# --------------------------------------------------------------------- reading


class ServerSentEvent(NamedTuple):
    """One event as it was dispatched."""

    data: bytes
    """Its data lines, joined by LF. Empty for a priming event."""
    event: str = "message"
    id: str = ""
    """The last event id when it was dispatched, which an earlier event may have brought."""


class EventStreamDecoder:
    """Turns chunks of an event stream into events; however the stream is cut, the events are the same.

    An event counts once its blank line is there; a rest without one at the end is lost, as the standard
    demands. Memory stays within a small multiple of the limit and the chunk; the work is linear.
    `last_event_id` is the id to resume after, `retry` the last delay in milliseconds, if the peer sent one.
    """

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._limit = limit
        self._fault = ""  # why there will be no more events
        self._start: bytes | None = b""  # the first bytes while they may still become a BOM
        self._after_cr = False  # the last chunk ended with CR: an LF that follows belongs to it
        self._open = bytearray()  # the line that has not ended yet
        self._size = 0  # bytes of the whole field lines of the event that has not ended yet
        self._data: bytearray | None = None  # its data
        self._type = ""  # its type
        self._id = ""  # the last id read, be its event dispatched or not

    def feed(self, data: bytes | bytearray | memoryview) -> list[ServerSentEvent]:
        """Return the events that this chunk completes, in order.

        Raises RemoteProtocolError if an event or a comment is over the limit, after the events before it were
        returned. From then on each call raises: where the next event starts is not known any more.
        """
        if self._fault:
            raise RemoteProtocolError(
                f"this event stream can no longer be read: {self._fault}",
                hint="open a new stream and read it with a new Decoder",
            )
        chunk = self._strip_continuation(bytes(data))
        if not chunk:
            return []
        # As long as everything at hand is within the limit, no part of it can be over.
        near = self._size + len(self._open) + len(chunk) > self._limit
        lines = chunk.splitlines()  # of bytes: CR, LF and CRLF end a line, and nothing else does
        rest = b"" if chunk[-1] in b"\r\n" else lines.pop()
        if lines and self._open:
            lines[0] = b"%b%b" % (self._open, lines[0])
            self._open.clear()
        events: list[ServerSentEvent] = []
        for line in lines:
            if not line:
                self._dispatch(events)
            elif near and not self._fits(line[0], len(line)):
                break
            elif line[0] != _COLON:
                self._read_field(line)
        else:
            if rest and self._fits((self._open or rest)[0], len(self._open) + len(rest)):
                self._open += rest
        if self._fault and not events:
            raise RemoteProtocolError(
                self._fault, hint="make the peer send smaller events, or raise the limit of the Decoder"
            )
        return events

    def _strip_continuation(self, chunk: bytes) -> bytes:
        """Remove the bytes that only the chunks before it explain: a BOM, the LF of a CRLF."""
        if self._start is not None:
            chunk = self._start + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._start = chunk
                return b""
            self._start = None
            chunk = chunk.removeprefix(_BOM)
        if chunk:
            if self._after_cr:
                chunk = chunk.removeprefix(b"\n")
            self._after_cr = chunk.endswith(b"\r")
        return chunk

    def _fits(self, first: int, size: int) -> bool:
        """Return whether a line that starts with this byte and has this size keeps within the limit.

        A comment counts for itself, so that no number of keep-alives adds up to an event that is too large.
        """
        kind, total = ("a comment", size) if first == _COLON else ("an event", self._size + size)
        if total > self._limit:
            self._fault = f"the peer sent {kind} of more than {self._limit} bytes, which is the limit"
        return not self._fault

    def _read_field(self, line: bytes) -> None:
        """Read one field. Without a colon the whole line is the name; unknown names are ignored."""
        self._size += len(line)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n"
                self._data += value
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id" and 0 not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self.retry = int(value)  # counts at once, with or without an event

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        """End the event at its blank line; without a data line there is none.

        The id counts now and not sooner, even without data: a client that resumes after it must have had the
        whole event. The id stays for later events; data and type do not.
        """
        self.last_event_id = self._id
        if self._data is not None:
            events.append(ServerSentEvent(bytes(self._data), self._type or "message", self._id))
        self._data = None
        self._type = ""
        self._size = 0
