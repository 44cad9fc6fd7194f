"""Envelopes and batches. The judge is the JSON decoder of the standard library, asked to be strict."""

import json
import re
from typing import Any, Final, NoReturn, cast

from fuzz.cuts import pumped
from toolpost.errors import RemoteProtocolError, RPCError
from toolpost.protocol import jsonrpc
from toolpost.protocol.jsonrpc import (
    JSONRPCErrorResponse,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

__all__ = ["TOKENS", "check_refusal", "target"]

TOKENS: Final = (
    *(b'"jsonrpc":"2.0"', b'"id":', b'"method":', b'"params":', b'"result":', b'"error":', b'"code":'),
    *(
        b'"message":',
        b'"data":',
        b"null",
        b"true",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b'"',
        b"\\u0000",
        b"\\ud800",
    ),
    *(b"1e400", b"-0", b"1.0", b"9223372036854775808", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\", b"NaN"),
)
MAX_TOLD: Final = 600
"""Characters that a refusal may have: a peer's text must not come back in full."""
SHALLOW: Final = 4
"""A second limit of the depth, which short inputs reach."""
ENOUGH: Final = 40
"""Digits of a number up to which it is certainly read."""


def target(data: bytes) -> None:
    """Whatever is accepted is JSON, is what the text says, and can be written and read again."""
    _single(data)
    _batch(data)
    for long in pumped(data):
        _decoded(long)


def _decoded(data: bytes, depth: int = jsonrpc.MAX_DEPTH) -> JSONRPCMessage | None:
    try:
        return jsonrpc.decode(data, depth=depth)
    except RemoteProtocolError as error:
        check_refusal(error)
        return None


def check_refusal(error: RemoteProtocolError) -> None:
    """Return if a refusal is short and its answer can be sent."""
    assert len(str(error)) <= MAX_TOLD, "a refusal repeats too much"
    assert error.answer is None or not error.reply, "an answer is not answered"
    if error.answer is not None:
        answer = jsonrpc.decode(jsonrpc.encode_error(error.id, error.answer))
        assert isinstance(answer, JSONRPCErrorResponse)
        assert (answer.id, type(answer.id)) == (error.id, type(error.id))


class _Members(list[tuple[str, Any]]):
    """The members of an object, duplicates and all."""


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _parsed(data: bytes) -> Any:
    """What the standard library reads; numbers stay text, so that none is too large."""
    return json.loads(
        data.decode(),
        object_pairs_hook=_Members,
        parse_int=_Digits,
        parse_float=_Float,
        parse_constant=_refuse,
    )


class _Digits(str):
    __slots__ = ()


class _Float(str):
    __slots__ = ()


def _depth(value: Any) -> int:
    if isinstance(value, _Members):
        return 1 + max((_depth(item) for _, item in value), default=0)
    return 1 + max(map(_depth, cast("list[Any]", value)), default=0) if isinstance(value, list) else 0


def _single(data: bytes) -> None:
    message = _decoded(data)
    shallow = _decoded(data, SHALLOW)
    if message is None:
        assert shallow is None
        assert not _is_plain(data), "a plain request was refused"
        return
    document = _parsed(data)  # raises where we read what is no JSON
    assert isinstance(document, _Members)
    names = [name for name, _ in document]
    assert len(names) == len(set(names)), "a member twice"
    assert (shallow is not None) == (_depth(document) <= SHALLOW), "the depth"
    _check_said(message, dict(document))
    again = jsonrpc.decode(_written(message))
    assert again == message, "what was read is written differently"


def _check_said(message: JSONRPCMessage, members: dict[str, Any]) -> None:
    if isinstance(message, JSONRPCRequest | JSONRPCNotification):
        assert message.method == _read_text(members["method"])
    if not isinstance(message, JSONRPCNotification) and message.id is not None:
        said = members["id"]
        assert isinstance(said, _Digits) == isinstance(message.id, int)
        assert str(message.id) == _read_text(said) or said == "-0"
    if isinstance(message, JSONRPCErrorResponse):
        error = dict(members["error"])  # the last of a name counts, for them and for us
        assert message.message == _read_text(error["message"])


def _read_text(text: str) -> str:
    """The text as it is read: half a character is U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _written(message: JSONRPCMessage) -> bytes:
    match message:
        case JSONRPCRequest():
            return jsonrpc.encode(message)
        case JSONRPCNotification():
            return jsonrpc.encode_notification(message.method, message.params)
        case JSONRPCResponse():
            return jsonrpc.encode(message)
        case JSONRPCErrorResponse():
            error = RPCError(message.message, message.data, code=message.code)
            return jsonrpc.encode_error(message.id, error)


def _is_plain(data: bytes) -> bool:
    """Whether the text is a request in its simplest form, which has to be understood."""
    try:
        document = _parsed(data)
        text = data.decode()
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, _Members) or len(document) != 3 or "\\u" in text:
        return False
    members = dict(document)
    identity = members.get("id")
    named = isinstance(identity, str) and not isinstance(identity, _Float) and len(identity) < ENOUGH
    small = not isinstance(identity, _Digits) or len(identity) < len(str(2**63))
    method = members.get("method")
    word = isinstance(method, str) and not isinstance(method, _Digits | _Float)
    version = members.get("jsonrpc")
    return version == "2.0" and type(version) is str and named and small and word


def _batch(data: bytes) -> None:
    try:
        items = jsonrpc.decode_batch(data)
    except RemoteProtocolError as error:
        check_refusal(error)
        return
    assert jsonrpc.is_batch(data)
    assert 0 < len(items) <= jsonrpc.MAX_BATCH
    for item in items:
        if isinstance(item, RemoteProtocolError):
            check_refusal(item)
    if all(not isinstance(item, RemoteProtocolError) for item in items):
        assert len(_parsed(data)) == len(items)
