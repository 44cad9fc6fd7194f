"""Event streams: the `text/event-stream` format of the WHATWG HTML standard (§9.2), in both directions.

Owns how an event is written, and how it is found again in bytes that arrive in any pieces. Knows nothing of
HTTP, of JSON or of what the events mean; the data of an event stays bytes.
"""

from typing import Final, NamedTuple

from toolpost.errors import RemoteProtocolError

MAX_EVENT: Final = 4 * 1024 * 1024
"""The largest event or comment: the bytes of its lines with field names and without line ends. Room for 3 MiB
of picture in base64, and a bound for a peer that never ends its event; as much as `framing` gives a line."""

# Fits 64 bits and is already thirty million years. To turn digits into a number takes quadratic time, so the
# peer does not choose how many there are.
_MAX_RETRY_DIGITS: Final = 18

_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A
_CR: Final = 0x0D
_COLON: Final = 0x3A
_FORBIDDEN: Final = frozenset("\r\n\0")


# --------------------------------------------------------------------- writing


def encode_event(
    data: bytes,
    *,
    event: str | None = None,
    id: str | None = None,  # noqa: A002 - the format's word
    retry: int | None = None,
) -> bytes:
    """The bytes of one event. Nothing in `data` can end it or start another field.

    `encode_event(b"", id=...)` is a priming event: it brings the reader an id and nothing else (HTTPL-3).

    Args:
        data: the body. The format has only lines, so each CR, LF or CRLF in it reaches the reader as LF.
        event: the type; a reader takes `message` where there is none.
        id: what the reader names in `Last-Event-ID` when it comes back; the empty one makes it name none.
        retry: how many milliseconds the reader waits before it comes back.

    Raises:
        ValueError: `event`, `id` or `retry` cannot be written; the text says which one and why.
    """
    if _LF in data or _CR in data:
        data = _normalize_newlines(data).replace(b"\n", b"\ndata: ")
    if event is None and id is None and retry is None:
        return b"".join((b"data: ", data, b"\n\n"))
    fields: list[bytes] = []
    if id is not None:
        fields.append(_encode_field("id", id))
    if event is not None:
        fields.append(_encode_field("event", event))
    if retry is not None:
        # A bool is an int to Python, and a float would lose its fraction without a word.
        if type(retry) is not int or retry < 0:
            raise ValueError(f"the retry of an event must be a whole number of milliseconds, not {retry!r}")
        fields.append(b"retry: %d\n" % retry)
    return b"".join((*fields, b"data: ", data, b"\n\n"))


def encode_comment(text: str = "") -> bytes:
    """A comment, which readers skip: it keeps a quiet connection alive (HTTPM-8).

    Nothing in `text` can end the comment; a line break in it starts one more comment line. The blank line
    behind it is for readers that look at the stream in blocks.
    """
    lines = _normalize_newlines(text.encode("utf-8", "replace")).replace(b"\n", b"\n: ")
    return b": %b\n\n" % lines


def _normalize_newlines(text: bytes) -> bytes:
    """The text with LF for each CRLF and each CR: a reader sees no difference between the three."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _encode_field(name: str, value: str) -> bytes:
    """One line with a field whose value must not be able to leave the line."""
    if not _FORBIDDEN.isdisjoint(value):
        raise ValueError(f"the {name} of an event must not hold CR, LF or NUL: {value[:80]!r}")
    try:
        return f"{name}: {value}\n".encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the {name} of an event must be text that UTF-8 can hold: {value[:80]!r}"
        ) from error


# --------------------------------------------------------------------- reading


class ServerSentEvent(NamedTuple):
    """One event as it was dispatched.

    Attributes:
        data: its data lines, joined by LF. Empty for a priming event.
        event: its type.
        id: the last event id when it was dispatched, which an earlier event may have brought.
    """

    data: bytes
    event: str = "message"
    id: str = ""


class EventStreamDecoder:
    """Turns chunks of an event stream into events; however the stream is cut, the events are the same.

    There is nothing to call at the end of the stream: an event counts only once its blank line is there, and
    what is left without one is lost, as the standard demands. Memory stays within a small multiple of the
    limit and the chunk; the work is linear.

    Args:
        limit: the largest event or comment to accept, in bytes as `MAX_EVENT` counts them.

    Attributes:
        last_event_id: the id to resume after; empty where there is none.
        retry: the milliseconds to wait before coming back, if the peer ever said so.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_fault",
        "_id",
        "_limit",
        "_open",
        "_size",
        "_start",
        "_type",
        "last_event_id",
        "retry",
    )

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._limit = limit
        self._fault = ""  # why there will be no more events
        self._start: bytes | None = b""  # the first bytes while they may still become a BOM
        self._after_cr = False  # the last chunk ended with CR: an LF that follows belongs to it
        self._open = bytearray()  # the line that has not ended yet
        self._size = 0  # bytes of the whole field lines of the event that has not ended yet
        self._data: bytes | bytearray | None = None  # its data; a bytearray from the second line on
        self._type = ""  # its type
        self._id = ""  # the last id read, be its event dispatched or not

    def feed(self, data: bytes | bytearray | memoryview) -> list[ServerSentEvent]:
        """The events that this chunk completes, in order.

        Raises:
            RemoteProtocolError: an event or a comment is over the limit. Events that the same chunk completed
                before it are handed out first, and the error waits for the next call. From then on each call
                raises: where the next event starts is not known any more.
        """
        if self._fault:
            raise RemoteProtocolError(
                f"this event stream cannot be read any further: {self._fault}",
                hint="open a new stream and read it with a new Decoder",
            )
        chunk = self._strip_continuation(data if isinstance(data, bytes) else bytes(data))
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
                self._fault, hint="let the peer send less at once, or give the Decoder a higher limit"
            )
        return events

    def _strip_continuation(self, chunk: bytes) -> bytes:
        """The chunk without the bytes that only the chunks before it explain: a BOM, the LF of a CRLF."""
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
        """Whether a line that starts with this byte and has this size keeps within the limit.

        A comment counts for itself, so that no number of keep-alives adds up to an event that is too large.
        """
        kind, total = ("a comment", size) if first == _COLON else ("an event", self._size + size)
        if total > self._limit:
            self._fault = f"the peer sent {kind} of more than {self._limit} bytes, which is the limit here"
        return not self._fault

    def _read_field(self, line: bytes) -> None:
        """Note one field. Names are compared byte for byte; unknown ones are ignored."""
        self._size += len(line)
        # Without a colon the whole line is the name, and the value is empty.
        name, _, value = line.partition(b":")
        # One space behind the colon belongs to the format, a second one to the value.
        if value[:1] == b" ":
            value = value[1:]
        match name:
            case b"data":
                self._add_data(value)
            case b"event":
                self._type = value.decode("utf-8", "replace")
            case b"id":
                # Not cut at the NUL but ignored as a whole: the id before it stays.
                if 0 not in value:
                    self._id = value.decode("utf-8", "replace")
            case b"retry":
                # Counts at once, with or without an event. Only digits: no sign, no white space, not nothing.
                if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                    self.retry = int(value)
            case _:
                pass

    def _add_data(self, value: bytes) -> None:
        """Add one line to the data of the event. Nearly every event has only one, and that is not copied."""
        if self._data is None:
            self._data = value
            return
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        self._data += b"\n"
        self._data += value

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        """End the event at its blank line.

        The id counts now and not sooner, even where there is no data: who resumes after it must have had the
        whole event. Without a data line there is no event; with an empty one there is, and it has empty data.
        The id stays for later events; data and type do not.
        """
        self.last_event_id = self._id
        if self._data is not None:
            events.append(ServerSentEvent(bytes(self._data), self._type or "message", self._id))
        self._data = None
        self._type = ""
        self._size = 0
