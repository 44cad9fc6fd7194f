"""What to say of bytes that are no message: how deep they are, what is wrong, whom they came from.

Every refusal is a `RemoteProtocolError` with the answer that the peer deserves, if any, and the id as far
as it can be read. Works in linear time on whatever arrives; what a right message is, `jsonrpc` knows.
"""

from itertools import accumulate
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from toolpost.errors import InvalidRequest, ParseError, RemoteProtocolError
from toolpost.types.base import RequestId, Unset

__all__ = [
    "is_deeper_than",
    "make_invalid_request",
    "make_parse_error",
    "make_shape_error",
    "outline_envelope",
]


class _LooseEnvelope(Struct):
    """What can be read of an envelope whatever its members are."""

    jsonrpc: Raw | Unset = UNSET
    id: Raw | Unset = UNSET
    method: Raw | Unset = UNSET
    result: Raw | Unset = UNSET
    error: Raw | Unset = UNSET


_RAW_DECODER: Final = msgspec.json.Decoder(Raw)
_STRING_DECODER: Final = msgspec.json.Decoder(str)
_ID_DECODER: Final = msgspec.json.Decoder(int | str | float)

_NOT_MARKS: Final = bytes(code for code in range(256) if code not in b'[]{}"')
_NESTING_STEPS: Final = bytes(
    1 if code in b"[{" else 0xFF for code in range(256)
)  # up, or down: 0xFF is a signed -1
_BOM: Final = b"\xef\xbb\xbf"


def is_deeper_than(data: bytes, depth: int) -> bool:
    """Whether brackets outside strings nest deeper than `depth`: linear passes, no recursion."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Quotes go in pairs, so what was inside a string stays inside.
    marks = data.translate(None, _NOT_MARKS).replace(b'""', b"")
    if b'"' in marks:
        marks = b"".join(marks.split(b'"')[::2])
    return max(accumulate(memoryview(marks.translate(_NESTING_STEPS)).cast("b")), default=0) > depth


class _MessageSummary(Struct):
    """What can be seen of a message that cannot be used."""

    id: RequestId | None = None
    is_response: bool = False
    is_notification: bool = False


def _summarize_message(data: bytes) -> _MessageSummary:
    """Whose message it is, as far as that can be read."""
    seen = _MessageSummary()
    try:
        try:
            sketch = msgspec.json.decode(data, type=_LooseEnvelope)
        except RecursionError:
            sketch = msgspec.json.decode(outline_envelope(data, data), type=_LooseEnvelope)
        answered = sketch.result is not UNSET or sketch.error is not UNSET
        seen.is_response = answered and sketch.method is UNSET
        if sketch.id is not UNSET:
            found = _ID_DECODER.decode(sketch.id)
            seen.id = None if isinstance(found, float) else found
        elif not answered:
            _STRING_DECODER.decode(sketch.method or b"")  # raises where there is none
            seen.is_notification = _STRING_DECODER.decode(sketch.jsonrpc or b"") == "2.0"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # no more can be read: the answer goes without an id (MSG-15)
    return seen


def outline_envelope(head: bytes, tail: bytes) -> bytes:
    """An envelope with null for all that nests in it, from how it begins and how it ends."""
    opening, closing = head.find(b"{"), tail.rfind(b"}")
    starts = (head.find(b"{", opening + 1), head.find(b"[", opening + 1))
    ends = (tail.rfind(b"}", 0, closing), tail.rfind(b"]", 0, closing))
    return head[: min((at for at in starts if at >= 0), default=0)] + b"null" + tail[max(ends) + 1 :]


def make_invalid_request(why: str, data: bytes = b"") -> RemoteProtocolError:
    """The error for a message that is JSON but breaks a rule, with the id as far as it can be read.

    An answer is not answered, and neither is a notice (MSG-19).
    """
    seen = _summarize_message(data)
    answer = None if seen.is_response or seen.is_notification else InvalidRequest(f"Invalid request: {why}")
    return RemoteProtocolError(why, answer=answer, id=seen.id, reply=seen.is_response)


def make_shape_error(data: bytes, error: Exception) -> RemoteProtocolError:
    """The error for a text that stopped being a message somewhere, and may stop being JSON later."""
    try:
        str(data, "utf-8")
        _RAW_DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as worse:
        return make_parse_error(data, worse)
    if data.lstrip()[:1] == b"[":
        return make_invalid_request("a batch cannot stand here")
    return make_invalid_request(f"not a JSON-RPC message: {error}", data)


def make_parse_error(data: bytes, error: Exception) -> RemoteProtocolError:
    """The error for bytes that are no JSON. If the fault is nested, the envelope tells whose they are."""
    if not data.strip():
        why = "the message is empty"
    elif data.startswith(_BOM):
        why = "text starts with a byte order mark"
    elif isinstance(error, UnicodeDecodeError):
        why = f"not UTF-8: {error.reason} at byte {error.start}"
    elif isinstance(error, RecursionError):
        why = "nested too deeply"
    else:
        why = str(error)
    seen = _summarize_message(outline_envelope(data, data))
    answer = None if seen.is_response else ParseError(f"Parse error: {why}")
    return RemoteProtocolError(
        f"message is not JSON: {why}", answer=answer, id=seen.id, reply=seen.is_response
    )
