"""JSON-RPC 2.0: envelopes to bytes and back, and the one place where JSON is parsed and written.

Reads an envelope once; params, result and error data stay raw until their type is known. A message that
breaks a rule is a `RemoteProtocolError` with the error response it deserves and the id, as far as they can be
read, in linear time. Knows no method, revision or transport.
"""

import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

import msgspec
from msgspec import UNSET, Raw, Struct

from toolpost.errors import InvalidRequest, LocalProtocolError, ParseError, RemoteProtocolError, RPCError
from toolpost.types.base import JSON, RequestId, Unset, dec_hook, enc_hook

MAX_DEPTH: Final = 64  # levels of a message: real schemas stay below 30, and code that walks values recurses
MAX_ID_DIGITS: Final = 18  # digits of an id that came back as text
MAX_BATCH: Final = 100  # messages of a batch: one line must not start unbounded work
MAX_BATCH_BYTES: Final = 1024 * 1024  # bytes of a batch: its items are parsed before they are counted
MAX_UNKNOWN_BYTES: Final = 64 * 1024  # bytes of unknown members in an envelope
MAX_DECODE_ERROR_TEXT: Final = 300  # characters of an error about a value

T = TypeVar("T")


@final
class JSONRPCRequest(Struct, frozen=True, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A request."""

    id: RequestId
    method: str
    params: Raw | Unset = UNSET


@final
class JSONRPCNotification(Struct, frozen=True, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A notification."""

    method: str
    params: Raw | Unset = UNSET


@final
class JSONRPCResponse(Struct, frozen=True, gc=False, tag_field="jsonrpc", tag="2.0"):
    """The result of a request."""

    id: RequestId
    result: Raw


@final
class JSONRPCErrorResponse(Struct, frozen=True):
    """The error of a request; without an id if the peer could not read ours."""

    id: RequestId | None
    code: int
    message: str
    data: JSON = None
    """As the peer attached it; as text if it is JSON that Python cannot hold (1e400)."""


JSONRPCMessage: TypeAlias = JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCErrorResponse

# Raised by msgspec for bytes that are not JSON, or not of the wanted type.
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# --------------------------------------------------------------------- reading


class _ErrorObject(Struct):
    code: int | float
    message: str
    data: Raw | Unset = UNSET


class _Envelope(Struct, gc=False):
    jsonrpc: str | Unset = UNSET
    # Wider than the rule, because msgspec would read 1.0 as the integer 1.
    id: int | str | float | bool | Unset | None = UNSET
    method: str | Unset = UNSET
    params: Raw | Unset = UNSET
    result: Raw | Unset = UNSET
    error: Raw | Unset = UNSET


class _UniqueName(str):
    """A member name that equals no other, so that a dict keeps duplicates."""

    __slots__ = ()
    __hash__ = object.__hash__  # by identity, so that a dict never compares them


_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_decode_error_object: Final = msgspec.json.Decoder(_ErrorObject).decode
_decode_value: Final = msgspec.json.Decoder().decode
_encode_value: Final = msgspec.json.Encoder().encode
_decode_names: Final = msgspec.json.Decoder(
    dict[_UniqueName, Raw], dec_hook=lambda _kind, value: _UniqueName(value)
).decode
_decode_items: Final = msgspec.json.Decoder(list[Raw]).decode

_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE: Final = b"%b(?!%b)|(?<!%b)%b" % (_HIGH, _LOW, _HIGH, _LOW)  # compiled when first needed

_DUPLICATE_IN_RESPONSE: Final = len('{"jsonrpc":"2.0","id":0,"id":,"result":}')
"""The shortest response with a duplicate member, without the values of its members."""
_NULL: Final = b"null"
_RAW_NULL: Final = Raw(b"null")
_ESCAPED_QUOTE: Final = b"\\u0022"


def decode(data: bytes, *, depth: int = MAX_DEPTH) -> JSONRPCMessage:
    """Decode one message; raise RemoteProtocolError, whose `answer` may be sent, if it is invalid."""
    try:
        if not data.isascii():
            str(data, "utf-8")  # msgspec checks UTF-8 in decoded values only, not in raw ones
        # To remove brackets is faster than to count them.
        brackets = len(data) - len(data.replace(b"[", b"").replace(b"{", b""))
        if brackets > depth and is_deep(data, depth):
            raise make_invalid_request(f"message is nested more than {depth} levels deep", data)
        envelope = _decode_envelope(data)
        if envelope.jsonrpc != "2.0":
            raise make_invalid_request('member "jsonrpc" must be "2.0"', data)
        if envelope.method is UNSET:
            return _read_response(data, envelope)
        return _read_request(data, envelope, envelope.method)
    except DECODE_ERRORS as error:
        repaired = _replace_lone_surrogates(data)
        if repaired != data:
            return decode(repaired, depth=depth)
        raise _make_decode_error(data, error) from error


def _replace_lone_surrogates(data: bytes) -> bytes:
    """Replace halves of escaped characters by U+FFFD: programs in JavaScript cut texts there."""
    if b"\\u" not in data or b"\0" in data:  # JSON has no null character, so it can stand for "\\\\"
        return data
    return re.sub(_LONE_SURROGATE, rb"\\ufffd", data.replace(rb"\\", b"\0")).replace(b"\0", rb"\\")


def _read_request(data: bytes, envelope: _Envelope, method: str) -> JSONRPCRequest | JSONRPCNotification:
    """Return the request or notification in an envelope that has a method."""
    identity, params = envelope.id, envelope.params
    kind = type(identity)
    if kind is not int and kind is not str and identity is not UNSET:
        raise make_invalid_request('member "id" must be a string or an integer', data)
    if envelope.result is not UNSET or envelope.error is not UNSET:
        raise make_invalid_request("a message must have exactly one of method, result and error", data)
    if len(data) > MAX_UNKNOWN_BYTES:
        _check_unknown_members(data, len(data) - len(str(identity)) - len(method) - len(params or b""))
    _check_unique_keys(data)
    if params == _RAW_NULL:
        params = UNSET  # not in the specification, but common
    if identity is UNSET:
        return JSONRPCNotification(method, params)
    return JSONRPCRequest(identity, method, params)  # pyright: ignore[reportArgumentType] - checked above


def _read_response(data: bytes, envelope: _Envelope) -> JSONRPCResponse | JSONRPCErrorResponse:
    """Return the response in an envelope that has no method."""
    result, error, given = envelope.result, envelope.error, envelope.id
    if result is not UNSET and error is not UNSET:  # some servers send the other member as null
        result, error = (result, UNSET) if bytes(error) == _NULL else (_skip_null(result), error)
    identity = given if type(given) is int or type(given) is str else None
    if identity is not None and result is not UNSET and error is UNSET:
        rest = len(data) - len(result)  # besides the id, which is short
        if rest >= _DUPLICATE_IN_RESPONSE:
            _check_unique_members(data, envelope, result, rest)
        return JSONRPCResponse(identity, result)
    if (result is UNSET) == (error is UNSET):
        raise make_invalid_request("a message must have exactly one of method, result and error", data)
    if identity is None and (error is UNSET or (given is not UNSET and given is not None)):
        raise make_invalid_request('the "id" of a response must be a string or an integer', data)
    assert error is not UNSET, "it has a result or an error"
    try:
        failure = _decode_error_object(error)
    except msgspec.ValidationError as wrong:
        raise make_invalid_request(f"not a JSON-RPC message: {wrong} in the error", data) from wrong
    if type(failure.code) is not int:
        raise make_invalid_request("an error code must be an integer", data)
    _check_unique_members(data, envelope, error, len(data) - len(error))
    return JSONRPCErrorResponse(identity, failure.code, failure.message, _decode_error_data(failure.data))


def restore_id(identity: RequestId | None) -> RequestId | None:
    """Return an id of ours, which is an integer, also if a peer has sent it back as text."""
    if not isinstance(identity, str) or len(identity) > MAX_ID_DIGITS or not identity.isascii():
        return identity
    return int(identity) if identity.isdecimal() else identity


def _skip_null(value: Raw) -> Raw | Unset:
    return UNSET if bytes(value) == _NULL else value


def _decode_error_data(data: Raw | Unset) -> JSON:
    """Decode the data of an error; data that cannot be decoded stays text."""
    if data is UNSET:
        return None
    try:
        return _decode_value(data)
    except msgspec.DecodeError:
        return str(data, "utf-8")


def _check_unique_members(data: bytes, envelope: _Envelope, part: Raw, rest: int) -> None:
    """Refuse duplicate members of a response; `part` is its result or error, `rest` the bytes besides it."""
    # Two quotes for each known member, and for each string among their values.
    quotes = 4 + 2 + bytes(part).count(b'"')
    if envelope.id is not UNSET:
        quotes += 4 if type(envelope.id) is str else 2
    if quotes == data.count(b'"'):
        return  # the rest is white space
    _check_unknown_members(data, rest)
    names = _decode_names(data)
    if len(names) > len({str(name) for name in names}):
        raise make_invalid_request("a member of the message appears twice", data)


def _check_unknown_members(data: bytes, rest: int) -> None:
    """Refuse many unknown members before they become values; `rest` are the bytes besides known values."""
    if rest > MAX_UNKNOWN_BYTES:
        raise make_invalid_request(f"unknown members exceed {MAX_UNKNOWN_BYTES} bytes", data)


def _check_unique_keys(data: bytes) -> None:
    """Refuse a request with a key twice in an object: a gateway could read another value than we do."""
    try:
        # Decoding keeps one of two values, so what is encoded again is shorter, and has fewer quotes.
        again = _encode_value(_decode_value(data))
        if again == data:
            return  # compact, as most programs write it
        # Only this escape becomes a quote when it is encoded.
        if _ESCAPED_QUOTE not in data and data.count(b'"') == again.count(b'"'):
            return
    except (*DECODE_ERRORS, OverflowError):  # a number or a text that Python cannot hold
        pass
    import json  # noqa: PLC0415 - start-up time; ordinary requests do not come here

    try:
        json.loads(data, object_pairs_hook=_check_keys, parse_int=str, parse_float=str)
    except _KeyTwiceError as error:
        raise make_invalid_request(
            f"the key {shorten(str(error))!r} appears twice in an object", data
        ) from error


class _KeyTwiceError(Exception):
    """An object has a key twice."""


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    keys = set[str]()
    for key, _ in pairs:
        if key in keys:
            raise _KeyTwiceError(key)
        keys.add(key)


def is_batch(data: bytes) -> bool:
    """Return whether the text is a JSON array."""
    return data[:1] != b"{" and data.lstrip(b" \t\r\n")[:1] == b"["


def decode_batch(data: bytes) -> list[JSONRPCMessage | RemoteProtocolError]:
    """Decode a batch: its messages, or an error in their place. Raises if the batch itself is invalid."""
    if len(data) > MAX_BATCH_BYTES:
        raise make_invalid_request(f"batch too large: {len(data)} bytes (limit: {MAX_BATCH_BYTES})")
    try:
        items = _decode_items(_replace_lone_surrogates(data))
    except DECODE_ERRORS as error:
        raise _make_decode_error(data, error) from error
    if not 0 < len(items) <= MAX_BATCH:
        raise make_invalid_request(f"a batch must hold 1 to {MAX_BATCH} messages, not {len(items)}")
    messages: list[JSONRPCMessage | RemoteProtocolError] = []
    for item in items:
        try:
            messages.append(decode(bytes(item)))
        except RemoteProtocolError as error:
            messages.append(error)
    return messages


# --------------------------------------------------------------------- errors of invalid messages


class _LooseEnvelope(Struct):
    """An envelope whose members may be anything."""

    jsonrpc: Raw | Unset = UNSET
    id: Raw | Unset = UNSET
    method: Raw | Unset = UNSET
    result: Raw | Unset = UNSET
    error: Raw | Unset = UNSET


_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_decode_string: Final = msgspec.json.Decoder(str).decode
_decode_id: Final = msgspec.json.Decoder(int | str | float).decode

_NOT_MARKS: Final = bytes(code for code in range(256) if code not in b'[]{}"')
_NESTING_STEPS: Final = bytes(1 if code in b"[{" else 0xFF for code in range(256))  # 0xFF is a signed -1
_BOM: Final = b"\xef\xbb\xbf"


def is_deep(data: bytes, depth: int) -> bool:
    """Return whether brackets outside strings nest deeper than `depth`: linear passes, no recursion."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Quotes are removed in pairs, so that strings stay strings.
    marks = data.translate(None, _NOT_MARKS).replace(b'""', b"")
    if b'"' in marks:
        marks = b"".join(marks.split(b'"')[::2])
    return max(accumulate(memoryview(marks.translate(_NESTING_STEPS)).cast("b")), default=0) > depth


def _summarize_message(data: bytes) -> tuple[RequestId | None, bool, bool]:
    """Return the id of an invalid message, whether it is a response, and whether it is a notification."""
    identity, is_response, is_notification = None, False, False
    try:
        try:
            sketch = msgspec.json.decode(data, type=_LooseEnvelope)
        except RecursionError:
            sketch = msgspec.json.decode(outline_envelope(data, data), type=_LooseEnvelope)
        answered = sketch.result is not UNSET or sketch.error is not UNSET
        is_response = answered and sketch.method is UNSET
        if sketch.id is not UNSET:
            identity = _decode_id(sketch.id)
        elif not answered:
            _decode_string(sketch.method or b"")  # raises where there is none
            is_notification = _decode_string(sketch.jsonrpc or b"") == "2.0"
    except DECODE_ERRORS:
        pass  # the error response goes without an id (MSG-15)
    return None if isinstance(identity, float) else identity, is_response, is_notification


def outline_envelope(head: bytes, tail: bytes) -> bytes:
    """Return an envelope with null for all nested values, from its first and its last bytes."""
    opening, closing = head.find(b"{"), tail.rfind(b"}")
    starts = (head.find(b"{", opening + 1), head.find(b"[", opening + 1))
    ends = (tail.rfind(b"}", 0, closing), tail.rfind(b"]", 0, closing))
    return head[: min((at for at in starts if at >= 0), default=0)] + b"null" + tail[max(ends) + 1 :]


def make_invalid_request(why: str, data: bytes = b"") -> RemoteProtocolError:
    """Return the error for JSON that breaks a rule. Responses and notifications get no answer (MSG-19)."""
    identity, is_response, is_notification = _summarize_message(data)
    answer = None if is_response or is_notification else InvalidRequest(f"Invalid request: {why}")
    return RemoteProtocolError(why, answer=answer, id=identity, reply=is_response)


def _make_decode_error(data: bytes, error: Exception) -> RemoteProtocolError:
    """Return the error for bytes that are not a message or not JSON, with the id if it can be read."""
    if isinstance(error, msgspec.ValidationError):
        try:
            str(data, "utf-8")
            _decode_raw(data)
        except DECODE_ERRORS as worse:
            error = worse
        else:
            if data.lstrip()[:1] == b"[":
                return make_invalid_request("a batch is not allowed here")
            return make_invalid_request(f"not a JSON-RPC message: {error}", data)
    if not data.strip():
        why = "the message is empty"
    elif data.startswith(_BOM):
        why = "it starts with a byte order mark"
    elif isinstance(error, UnicodeDecodeError):
        why = f"not UTF-8: {error.reason} at byte {error.start}"
    elif isinstance(error, RecursionError):
        why = "nested too deeply"
    else:
        why = str(error)
    identity, is_response, _ = _summarize_message(outline_envelope(data, data))
    answer = None if is_response else ParseError(f"Parse error: {why}")
    return RemoteProtocolError(f"message is not JSON: {why}", answer=answer, id=identity, reply=is_response)


# --------------------------------------------------------------------- typed values


def shorten(text: str, limit: int = 80) -> str:
    """Shorten a string for an error: a value of a peer must not come back in full."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class InvalidJSONValue(ValueError):
    """A JSON value has the wrong type; the text names the path."""


def describe_decode_error(error: Exception) -> str:
    """Return the text of one of `DECODE_ERRORS`, which describes an invalid JSON value."""
    return shorten(str(error), MAX_DECODE_ERROR_TEXT)


class JSONReader(Generic[T]):
    """Reads JSON values of one type. Its decoder is made on first use: a process needs few of them.

    `decode` raises as msgspec does (`DECODE_ERRORS`); calling the reader raises `InvalidJSONValue`.
    """

    __slots__ = ("decode", "kind")

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.decode: Callable[[Raw | bytes], T] = self._prepare

    def _prepare(self, raw: Raw | bytes) -> T:
        self.decode = msgspec.json.Decoder(self.kind, dec_hook=dec_hook).decode
        return self.decode(raw)

    def __call__(self, raw: Raw | bytes | Unset) -> T:
        """Return the value; absent JSON is an empty object."""
        try:
            return self.decode(b"{}" if raw is UNSET else raw)
        except DECODE_ERRORS as error:
            raise InvalidJSONValue(describe_decode_error(error)) from error


MEMBERS_READER: Final = JSONReader(dict[str, Raw])  # the members of an object, not decoded


# --------------------------------------------------------------------- writing


class _ErrorOut(Struct, tag_field="jsonrpc", tag="2.0"):
    id: RequestId | Unset
    error: _ErrorObject


_ENCODER: Final = msgspec.json.Encoder(enc_hook=enc_hook)


def encode(value: Any) -> bytes:
    """Encode a value of our structs and plain values; NaN and the infinities become null.

    Raises LocalProtocolError if JSON cannot hold it.
    """
    try:
        return _ENCODER.encode(value)
    except RecursionError as error:
        raise LocalProtocolError("the value is nested too deeply to be encoded as JSON") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"the value cannot be encoded as JSON: {error}") from error


def encode_notification(method: str, params: Any = UNSET) -> bytes:
    """Encode a notification."""
    return encode(JSONRPCNotification(method, params))


def encode_error(id: RequestId | None, error: RPCError, code: int | None = None) -> bytes:  # noqa: A002 - the protocol's word
    """Encode an error response; `code` if the revision has another than the error's own."""
    data = UNSET if error.data is None else error.data
    body = _ErrorObject(error.code if code is None else code, error.message, data)
    return encode(_ErrorOut(UNSET if id is None else id, body))


def encode_batch(messages: list[bytes]) -> bytes:
    """Join encoded messages to a batch."""
    return b"[" + b",".join(messages) + b"]"
