import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import json
import tracemalloc
import uuid
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from toolpost.errors import InvalidParams, LocalProtocolError, RemoteProtocolError, RPCError
from toolpost.protocol.connection import Connection
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest, InvalidMessageReceived, NotificationReceived
from toolpost.protocol.jsonrpc import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    MAX_DEPTH,
    InvalidJSONValue,
    JSONReader,
    JSONRPCErrorResponse,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    decode,
    decode_batch,
    encode,
    encode_batch,
    encode_error,
    encode_notification,
    is_batch,
)
from toolpost.protocol.local_peer import LocalPeer
from toolpost.protocol.revisions import REVISIONS
from toolpost.types.initialize import Implementation, ServerCapabilities
from toolpost.types.tools import CallToolResult

PARSE, INVALID = -32700, -32600
MEGABYTE = 1 << 20

# Where any JSON may stand: the answer to a refusal, whether the message is an answer, the text around.
SLOTS = {
    "params of a request": (INVALID, False, b'{"jsonrpc":"2.0","id":7,"method":"m","params":%s}'),
    "params before the id": (INVALID, False, b'{"params":%s,"id":7,"method":"m","jsonrpc":"2.0"}'),
    "result": (None, True, b'{"jsonrpc":"2.0","id":7,"result":%s}'),
    "data of an error": (None, True, b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"","data":%s}}'),
    "unknown member": (INVALID, False, b'{"jsonrpc":"2.0","id":7,"method":"m","x":%s}'),
    "unknown member of an error": (
        None,
        True,
        b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"","x":%s}}',
    ),
}
# Where only some JSON may stand.
TYPED = {
    "jsonrpc": b'{"jsonrpc":%s,"id":7,"method":"m"}',
    "id of a request": b'{"jsonrpc":"2.0","id":%s,"method":"m"}',
    "id of an answer": b'{"jsonrpc":"2.0","id":%s,"result":{}}',
    "id of an error": b'{"jsonrpc":"2.0","id":%s,"error":{"code":1,"message":""}}',
    "method": b'{"jsonrpc":"2.0","id":7,"method":%s}',
    "error": b'{"jsonrpc":"2.0","id":7,"error":%s}',
    "error code": b'{"jsonrpc":"2.0","id":7,"error":{"code":%s,"message":""}}',
    "error message": b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":%s}}',
    "whole text": b"%s",
}
EVERYWHERE = {name: slot[2] for name, slot in SLOTS.items()} | TYPED

in_every_slot = pytest.mark.parametrize(
    ("code", "reply", "around"), [pytest.param(*slot, id=name) for name, slot in SLOTS.items()]
)
everywhere = pytest.mark.parametrize(
    "around", [pytest.param(around, id=name) for name, around in EVERYWHERE.items()]
)


def encode_request(*members: Any) -> bytes:
    return encode(JSONRPCRequest(*members))


def encode_response(*members: Any) -> bytes:
    return encode(JSONRPCResponse(*members))


def refusal(data: bytes, read: Any = decode, **options: Any) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        read(data, **options)
    return caught.value


def code_of(error: RemoteProtocolError) -> int | None:
    return None if error.answer is None else error.answer.code


# --------------------------------------------------------------------- the judge


class Verdict(NamedTuple):
    """The outcome of parsing a text: the kind of the message and its parts, or the error."""

    kind: str
    code: int | None = None
    reply: bool = False
    id_type: type = type(None)
    id: object = None
    method: str | None = None


class Members(list[tuple[str, Any]]):
    """A JSON object, with its duplicates."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__((whole(name), whole(value)) for name, value in pairs)


def whole(value: Any) -> Any:
    """Replace lone surrogates in a text."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


NOT_JSON = Verdict("refused", PARSE)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def judged(data: bytes) -> Verdict:
    """Return the verdict of a slow, simple and independent reader."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=Members, parse_constant=_no_constant)
    except ValueError:
        return NOT_JSON
    if not isinstance(value, Members):
        return Verdict("refused", INVALID)
    found = dict(value)
    reply = "method" not in found and ("result" in found or "error" in found)
    identity = found.get("id")
    if type(identity) not in (int, str):
        identity = None
    kind = _kind(found)
    if kind is None or len(found) < len(value):
        code = (
            None if reply or kind == "JSONRPCNotification" else INVALID
        )  # neither a response nor a notification is answered
        return Verdict("refused", code, reply, type(identity), identity)
    return Verdict(kind, id_type=type(identity), id=identity, method=found.get("method"))


def _kind(found: dict[str, Any]) -> str | None:
    """The kind of message that these members are; None if they are none."""
    named = type(found.get("id")) in (int, str)
    if found.get("jsonrpc") != "2.0":
        return None
    if "method" in found:
        if not isinstance(found["method"], str) or "result" in found or "error" in found:
            return None
        if "id" not in found:
            return "JSONRPCNotification"
        return "JSONRPCRequest" if named else None
    if "result" in found and "error" in found:  # one that is null is not there
        found = {name: value for name, value in found.items() if name != "error" or value is not None}
        if "error" in found and found["result"] is None:
            del found["result"]
    if ("result" in found) == ("error" in found):
        return None
    if "result" in found:
        return "JSONRPCResponse" if named else None
    error = found["error"]
    sound = (
        isinstance(error, Members)
        and {"code", "message"} <= {name for name, _ in error}
        and all(type(part) is int for name, part in error if name == "code")
        and all(type(part) is str for name, part in error if name == "message")
        and (named or found.get("id") is None)
    )
    return "JSONRPCErrorResponse" if sound else None


def seen(data: bytes) -> Verdict:
    """Return the verdict of our reader."""
    try:
        return _verdict(decode(data))
    except RemoteProtocolError as error:
        return _verdict(error)


def seen_in_batch(data: bytes) -> list[Verdict]:
    """The verdicts of our reader on the items of a batch, or the one on all of it."""
    try:
        return [_verdict(item) for item in decode_batch(data)]
    except RemoteProtocolError as error:
        return [_verdict(error)]


def _verdict(item: JSONRPCMessage | RemoteProtocolError) -> Verdict:
    if isinstance(item, RemoteProtocolError):
        if str(item).startswith("message is not JSON"):
            return NOT_JSON  # the readable parts are reported elsewhere
        return Verdict("refused", code_of(item), item.reply, type(item.id), item.id)
    identity = getattr(item, "id", None)
    method = getattr(item, "method", None)
    return Verdict(type(item).__name__, id_type=type(identity), id=identity, method=method)


# --------------------------------------------------------------------- what is a message


@pytest.mark.requirement("MSG-1", "MSG-5")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1]}}',
            JSONRPCRequest(1, "m", Raw(b'{"a":[1]}')),
            id="request",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"m"}', JSONRPCRequest(1, "m"), id="request, no params"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":null}',
            JSONRPCRequest(1, "m"),
            id="null is no params",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"m","params": null }', JSONRPCRequest(1, "m"), id="spaced null"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"m","params":[]}',
            JSONRPCNotification("m", Raw(b"[]")),
            id="array as params",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"m","params":true}',
            JSONRPCNotification("m", Raw(b"true")),
            id="scalar as params",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"m","params":"null"}',
            JSONRPCNotification("m", Raw(b'"null"')),
            id="text as params",
        ),
        pytest.param(b'{"jsonrpc":"2.0","method":""}', JSONRPCNotification(""), id="the shortest notice"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":0,"method":""}', JSONRPCRequest(0, ""), id="the shortest request"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"result":{ "b" : 2 }}',
            JSONRPCResponse(1, Raw(b'{ "b" : 2 }')),
            id="answer",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"result":null}', JSONRPCResponse(1, Raw(b"null")), id="null as result"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"result":0}', JSONRPCResponse(1, Raw(b"0")), id="scalar as result"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}',
            JSONRPCErrorResponse(1, -32601, "no"),
            id="error",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"error":{"message":"","data":[1,{"a":null}],"code":0,"more":1}}',
            JSONRPCErrorResponse(1, 0, "", [1, {"a": None}]),
            id="error with data",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","error":{"code":1,"message":""}}',
            JSONRPCErrorResponse(None, 1, ""),
            id="error without id",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}',
            JSONRPCErrorResponse(None, 1, ""),
            id="error with the id of JSON-RPC for none",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"error":{"code":18446744073709551616,"message":""}}',
            JSONRPCErrorResponse(1, 2**64, ""),
            id="error code beyond 64 bits",
        ),
        pytest.param(
            b'{"x":{"id":2},"params":{},"method":"m","":0,"id":1,"jsonrpc":"2.0","X":[]}',
            JSONRPCRequest(1, "m", Raw(b"{}")),
            id="any order, and members that nobody knows",
        ),
        pytest.param(
            b' \t\r\n{ "jsonrpc" :\n"2.0" , "id" : 1 , "method" : "m" , "params" : { } }\n ',
            JSONRPCRequest(1, "m", Raw(b"{ }")),
            id="white space wherever it may be",
        ),
        pytest.param(
            b'{"\\u006asonrpc":"\\u0032.0","\\u0069d":"\\u0031","m\\u0065thod":"\\u006d"}',
            JSONRPCRequest("1", "m"),
            id="escapes",
        ),
        pytest.param(
            '{"jsonrpc":"2.0","id":"ид","method":"世界","params":"😀"}'.encode(),
            JSONRPCRequest("ид", "世界", Raw('"😀"'.encode())),
            id="beyond ASCII",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":"\\ud83d\\ude00","method":"m","params":"\\ud83d\\ude00"}',
            JSONRPCRequest("😀", "m", Raw(b'"\\ud83d\\ude00"')),
            id="pairs of surrogates",
        ),
        pytest.param(
            rb'{"jsonrpc":"2.0","id":"\ud83d","method":"\ude00m\ud83d\ud83d\ude00",'
            rb'"params":["\ud800 a","\\\ud800","\\ud800","\uDBFF\uDFFF\uDC00"]}',
            JSONRPCRequest(
                "\ufffd",
                "\ufffdm\ufffd😀",
                Raw(rb'["\ufffd a","\\\ufffd","\\ud800","\uDBFF\uDFFF\ufffd"]'),
            ),
            id="lone surrogates",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"Method":"x","METHOD":"y","method":"m"}',
            JSONRPCRequest(1, "m"),
            id="names differ by case",
        ),
    ],
)
def test_a_message_is_read(text, message):
    assert decode(text) == message


@pytest.mark.requirement("MSG-5")
@pytest.mark.parametrize(
    ("wire", "identity"),
    [
        pytest.param(b"0", 0, id="zero"),
        pytest.param(b"-0", 0, id="minus zero"),
        pytest.param(b"-1", -1, id="negative"),
        pytest.param(b"9223372036854775807", 2**63 - 1, id="largest with a sign"),
        pytest.param(b"18446744073709551615", 2**64 - 1, id="largest without"),
        pytest.param(b"18446744073709551616", 2**64, id="beyond 64 bits"),
        pytest.param(b"-9223372036854775809", -(2**63) - 1, id="beyond 64 bits, negative"),
        pytest.param(b"1" + b"0" * 308, 10**308, id="as large as a float"),
        pytest.param(b"1" + b"0" * 4000, 10**4000, id="of 4001 digits"),
        pytest.param(b'"1"', "1", id="digits in a string"),
        pytest.param(b'""', "", id="empty string"),
        pytest.param(b'"null"', "null", id="string that says null"),
        pytest.param(b'"\\"\\\\\\u0000"', '"\\\x00', id="string of escapes"),
        pytest.param(b'"' + b"x" * MEGABYTE + b'"', "x" * MEGABYTE, id="long string"),
    ],
)
def test_an_id_is_a_string_or_an_integer(wire, identity):
    for message in (
        decode(TYPED["id of a request"] % wire),
        decode(TYPED["id of an answer"] % wire),
        decode(TYPED["id of an error"] % wire),
    ):
        assert not isinstance(message, JSONRPCNotification)
        assert type(message.id) is type(identity)
        assert message.id == identity
    error = refusal(b'{"jsonrpc":"1.0","id":%s,"method":"m"}' % wire)
    assert type(error.id) is type(identity)
    assert error.id == identity
    # … and leaves as it came.
    assert decode(encode_request(identity, "m")) == JSONRPCRequest(identity, "m")
    assert decode(encode_response(identity, {})) == JSONRPCResponse(identity, Raw(b"{}"))
    assert decode(encode_error(identity, RPCError("", code=1))) == JSONRPCErrorResponse(identity, 1, "")


@pytest.mark.requirement("MSG-5")
def test_a_number_and_its_digits_are_different_ids():
    number, digits = (decode(TYPED["id of a request"] % wire) for wire in (b"1", b'"1"'))
    assert number != digits
    assert encode_response(1, {}) != encode_response("1", {})


@pytest.mark.requirement("MSG-5", "MSG-6")
@pytest.mark.parametrize(
    "around", [TYPED["id of a request"], TYPED["id of an answer"], TYPED["id of an error"]]
)
@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"null", id="null"),
        pytest.param(b"true", id="true"),
        pytest.param(b"false", id="false"),
        pytest.param(b"1.0", id="integer written as a fraction"),
        pytest.param(b"-0.0", id="zero written as a fraction"),
        pytest.param(b"1e3", id="integer written with an exponent"),
        pytest.param(b"1E0", id="one with an exponent"),
        pytest.param(b"1.5", id="fraction"),
        pytest.param(b"1e400", id="beyond floats"),
        pytest.param(b"-1e400", id="beyond negative floats"),
        pytest.param(b"[1]", id="array"),
        pytest.param(b'{"id":1}', id="object"),
        pytest.param(b"1" * 5000, id="integer of 5000 digits"),
    ],
)
def test_nothing_else_is_an_id(around, wire):
    if wire == b"null" and around == TYPED["id of an error"]:
        return  # what JSON-RPC itself asks for where no id could be read
    error = refusal(around % wire)
    assert error.id is None
    assert error.reply is (around != TYPED["id of a request"])
    assert code_of(error) == (None if error.reply else INVALID)


@pytest.mark.parametrize(
    ("text", "code", "identity", "reply", "why"),
    [
        pytest.param(b"{}", INVALID, None, False, "jsonrpc", id="nothing in it"),
        pytest.param(b'{"id":7,"method":"m"}', INVALID, 7, False, "jsonrpc", id="no version"),
        pytest.param(
            b'{"jsonrpc":"1.0","id":7,"method":"m"}', INVALID, 7, False, "jsonrpc", id="version 1.0"
        ),
        pytest.param(b'{"jsonrpc":"2","id":7,"method":"m"}', INVALID, 7, False, "jsonrpc", id="version 2"),
        pytest.param(b'{"jsonrpc":"2.0 ","id":7,"method":"m"}', INVALID, 7, False, "jsonrpc", id="spaced"),
        pytest.param(b'{"jsonrpc":2.0,"id":7,"method":"m"}', INVALID, 7, False, "jsonrpc", id="a number"),
        pytest.param(b'{"jsonrpc":null,"id":7,"method":"m"}', INVALID, 7, False, "jsonrpc", id="null"),
        pytest.param(b'{"JSONRPC":"2.0","id":7,"method":"m"}', INVALID, 7, False, "jsonrpc", id="upper case"),
        pytest.param(b'{"jsonrpc":"1.0","id":7,"result":{}}', None, 7, True, "jsonrpc", id="answer 1.0"),
        pytest.param(b'{"jsonrpc":"2.0","id":7}', INVALID, 7, False, "exactly one of", id="only an id"),
        pytest.param(b'{"jsonrpc":"2.0"}', INVALID, None, False, "exactly one of", id="only a version"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"params":{}}', INVALID, 7, False, "exactly one of", id="only params"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"method":1}', INVALID, 7, False, "method", id="method: number"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"method":null}', INVALID, 7, False, "method", id="method: null"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"method":"m","result":{}}',
            INVALID,
            7,
            False,
            "exactly one of",
            id="and result",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"m","error":{"code":1,"message":""}}',
            INVALID,
            None,
            False,
            "exactly one of",
            id="notice and error",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":""}}',
            None,
            7,
            True,
            "exactly one of",
            id="result and error",
        ),
        pytest.param(b'{"jsonrpc":"2.0","result":{}}', None, None, True, '"id"', id="result without id"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"error":"no"}', None, 7, True, "error", id="error: text"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"error":[]}', None, 7, True, "error", id="error: array"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"error":{}}', None, 7, True, "code", id="error: empty"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"error":{"code":1}}', None, 7, True, "message", id="error: no message"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"error":{"message":""}}', None, 7, True, "code", id="error: no code"
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":null}}',
            None,
            7,
            True,
            "message",
            id="error: null message",
        ),
        pytest.param(b"[]", INVALID, None, False, "batch", id="empty array"),
        pytest.param(
            b'[{"jsonrpc":"2.0","id":7,"method":"m"}]', INVALID, None, False, "batch", id="a batch of one"
        ),
        pytest.param(b" \n[1]", INVALID, None, False, "batch", id="an array, spaced"),
        pytest.param(b"null", INVALID, None, False, "object", id="null alone"),
        pytest.param(b"true", INVALID, None, False, "object", id="true alone"),
        pytest.param(b"7", INVALID, None, False, "object", id="number alone"),
        pytest.param(b"-1.5e3", INVALID, None, False, "object", id="fraction alone"),
        pytest.param(b'"2.0"', INVALID, None, False, "object", id="string alone"),
    ],
)
def test_json_that_is_not_a_message_is_an_invalid_request(text, code, identity, reply, why):
    error = refusal(text)
    assert (code_of(error), error.id, error.reply) == (code, identity, reply)
    assert why in str(error)
    if error.answer is not None:
        assert error.answer.message.startswith("Invalid request: ")


@pytest.mark.requirement("MSG-17")
@pytest.mark.parametrize("code", [b"1.0", b"-32601.0", b"1e3", b"true", b"null", b'"1"', b"[]", b"7" * 5000])
def test_an_error_code_is_an_integer(code):
    error = refusal(TYPED["error code"] % code)
    assert (code_of(error), error.id, error.reply) == (None, 7, True)
    assert "code" in str(error)


def test_every_combination_of_members_is_judged_as_a_simple_reader_does():
    members = {
        "jsonrpc": ['"2.0"', '"1.0"', "2.0"],
        "id": ["7", '"7"', "null", "true", "7.0", "[]"],
        "method": ['"m"', "1", "null"],
        "params": ["{}", "null"],
        "result": ["{}", "null"],
        "error": ['{"code":1,"message":""}', "null", "{}", '{"code":1.0,"message":""}'],
    }
    count = 0
    for values in itertools.product(*([None, *values] for values in members.values())):
        parts = [f'"{name}":{value}' for name, value in zip(members, values, strict=True) if value]
        text = "{" + ",".join(parts) + "}"
        assert seen(text.encode()) == judged(text.encode()), text
        count += 1
    assert count == 4 * 7 * 4 * 3 * 3 * 5


# --------------------------------------------------------------------- what is not JSON

NO_JSON = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"NaN", id="NaN"),
    pytest.param(b"Infinity", id="Infinity"),
    pytest.param(b"-Infinity", id="-Infinity"),
    pytest.param(b"nan", id="nan"),
    pytest.param(b"nul", id="half a null"),
    pytest.param(b"True", id="Python"),
    pytest.param(b"01", id="leading zero"),
    pytest.param(b"+1", id="plus"),
    pytest.param(b"1.", id="no fraction"),
    pytest.param(b".5", id="no integer"),
    pytest.param(b"1e", id="no exponent"),
    pytest.param(b"-", id="only a sign"),
    pytest.param(b"0x1", id="hexadecimal"),
    pytest.param(b"1_0", id="underscore"),
    pytest.param(b"'a'", id="single quotes"),
    pytest.param(b'"a', id="open string"),
    pytest.param(b'"a\nb"', id="line break in a string"),
    pytest.param(b'"\x00"', id="null character in a string"),
    pytest.param(b'"\x1f"', id="control character in a string"),
    pytest.param(b'"\\x41"', id="escape of another language"),
    pytest.param(b'"\\u12"', id="short escape"),
    pytest.param(b'"\\u00zz"', id="escape that is not hexadecimal"),
    pytest.param(b"[1,]", id="comma at the end of an array"),
    pytest.param(b"[1 2]", id="no comma in an array"),
    pytest.param(b"[,1]", id="comma at the start of an array"),
    pytest.param(b'{"a":1,}', id="comma at the end of an object"),
    pytest.param(b'{"a" 1}', id="no colon"),
    pytest.param(b'{"a":}', id="no value"),
    pytest.param(b"{a:1}", id="no quotes around a name"),
    pytest.param(b"{1:2}", id="number as a name"),
    pytest.param(b"[", id="open array"),
    pytest.param(b"{", id="open object"),
    pytest.param(b"[}", id="brackets that do not match"),
    pytest.param(b"1/**/", id="comment"),
    pytest.param(b"1\x0b", id="white space of other languages"),
    pytest.param("1\u00a0".encode(), id="white space of Unicode"),
    pytest.param(b"\xef\xbb\xbf1", id="byte order mark"),
    pytest.param(b'"\xff"', id="byte that is never UTF-8"),
    pytest.param(b'"\x80"', id="continuation of nothing"),
    pytest.param(b'"\xc3"', id="start without an end"),
    pytest.param(b'"\xc0\xaf"', id="overlong slash"),
    pytest.param(b'"\xed\xa0\x80"', id="surrogate as UTF-8"),
    pytest.param(b'"\xf4\x90\x80\x80"', id="beyond Unicode"),
    pytest.param('"ä"'.encode("latin-1"), id="Latin 1"),
]


@pytest.mark.requirement("MSG-2")
@everywhere
@pytest.mark.parametrize("piece", NO_JSON)
def test_invalid_json_is_a_parse_error_at_any_position(around, piece):
    error = refusal(around % piece)
    assert str(error).startswith("message is not JSON: ")
    assert error.id in (None, 7)
    if error.answer is None:
        assert error.reply
        assert b"method" not in around
    else:
        assert code_of(error) == PARSE
        assert error.answer.message.startswith("Parse error: ")


@pytest.mark.requirement("MSG-15")
@pytest.mark.parametrize("piece", NO_JSON[1:])
@pytest.mark.parametrize(
    ("around", "code", "reply"),
    [
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":%s}}', PARSE, False, id="request"),
        pytest.param(
            b'{"params":[%s],"method":"m","id":7,"jsonrpc":"2.0"}', PARSE, False, id="id at the end"
        ),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"result":{"a":[%s]}}', None, True, id="answer"),
        pytest.param(b'{"error":{"code":1,"message":%s},"id":7}', None, True, id="error"),
    ],
)
def test_a_fault_that_is_nested_does_not_hide_whose_message_it_is(around, piece, code, reply):
    error = refusal(around % piece)
    assert str(error).startswith("message is not JSON: ")
    assert (code_of(error), error.id, error.reply) == (code, 7, reply)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b" \n\t\r", id="white space"),
        pytest.param(b"\x00", id="null character"),
        pytest.param(b"hello", id="a word"),
        pytest.param(b"Content-Length: 52\r\n", id="the framing of another protocol"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m"', id="no end"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m"}}', id="two ends"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m"} x', id="something behind it"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m"}\x00', id="a null character behind it"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m"},', id="a comma behind it"),
        pytest.param(b'{"jsonrpc":"2.0","method":"m"}\n{"jsonrpc":"2.0","method":"m"}', id="two messages"),
        pytest.param(b'{"jsonrpc":1,"id":7,"method":"m"} x', id="wrong type, and something behind it"),
        pytest.param(b'{"id":[],"method":"m","params":{]}', id="wrong type, and malformed later"),
        pytest.param(b"[1,2", id="array without an end"),
        pytest.param('{"jsonrpc":"2.0","method":"m"}'.encode("utf-16"), id="UTF-16"),
        pytest.param('{"jsonrpc":"2.0","method":"m"}'.encode("utf-32-le"), id="UTF-32"),
        pytest.param(b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"m"}', id="byte order mark before a message"),
    ],
)
def test_a_text_that_is_not_one_json_value_is_a_parse_error(text):
    error = refusal(text)
    assert (code_of(error), error.id, error.reply) == (PARSE, None, False)


@pytest.mark.parametrize("text", ["数据" * 20_000, '"\n' * 40_000, "x" * 200_000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_error_may_say_much(text, ascii_only):
    body = {"code": -32602, "message": text, "more": text}
    data = json.dumps({"jsonrpc": "2.0", "id": 7, "error": body}, ensure_ascii=ascii_only).encode()
    assert decode(data) == JSONRPCErrorResponse(7, -32602, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(b"\xef\xbb\xbf{}", "byte order mark", id="byte order mark"),
        pytest.param(b'{"a":"\xff"}', "not UTF-8: invalid start byte at byte 6", id="not UTF-8"),
        pytest.param(b'{"jsonrpc":tru}', "invalid character (byte 15)", id="malformed"),
    ],
)
def test_a_parse_error_names_the_fault_and_its_position(text, why):
    error = refusal(text)
    assert why in str(error)
    assert error.answer is not None
    assert why in error.answer.message


@pytest.mark.requirement("MSG-2")
@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":"i","method":"m","params":{"a":["b"]},"x":"y"}',
        b'{"jsonrpc":"2.0","id":"i","result":{"a":["b"]}}',
        b'{"jsonrpc":"2.0","id":"i","error":{"code":1,"message":"m","data":"d"}}',
    ],
    ids=["request", "answer", "error"],
)
def test_a_byte_that_is_not_utf8_is_a_parse_error_at_every_position(text):
    decode(text)
    for position, byte in itertools.product(
        range(len(text) + 1), (b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80")
    ):
        broken = text[:position] + byte + text[position:]
        assert seen(broken) == NOT_JSON, broken


# --------------------------------------------------------------------- members that stand there twice

SHORTEST = {
    "request": {"jsonrpc": '"2.0"', "id": "0", "method": '""'},
    "request with params": {"jsonrpc": '"2.0"', "id": "0", "method": '""', "params": "0"},
    "notice": {"jsonrpc": '"2.0"', "method": '""'},
    "notice with params": {"jsonrpc": '"2.0"', "method": '""', "params": "0"},
    "answer": {"jsonrpc": '"2.0"', "id": "0", "result": "0"},
    "error": {"jsonrpc": '"2.0"', "id": "0", "error": '{"code":0,"message":""}'},
    "error without id": {"jsonrpc": '"2.0"', "error": '{"code":0,"message":""}'},
}
LONGER = {
    "jsonrpc": '"\\u0032.0"',
    "id": '"\\u0031\\u0031\\u0031"',
    "method": '"' + "m" * 40 + '"',
    "params": '{"a":"' + "b" * 40 + '"}',
    "result": "[1,2,3,4,5,6,7,8,9]",
    "error": '{"code":123456,"message":"no","data":[1,2,3]}',
}


def written(pairs: list[tuple[str, str]], gap: str = "") -> bytes:
    inner = f"{gap},{gap}".join(f'"{name}"{gap}:{gap}{value}' for name, value in pairs)
    return f"{gap}{{{gap}{inner}{gap}}}{gap}".encode()


@pytest.mark.parametrize("members", list(SHORTEST.values()), ids=list(SHORTEST))
def test_no_member_stands_there_twice(members):
    once = list(members.items())
    for gap in ("", " ", "\n\t"):
        assert seen(written(once, gap)).kind != "refused"
        for name in members:
            escaped = f"\\u{ord(name[0]):04x}{name[1:]}"
            for again, value in itertools.product((name, escaped), (members[name], LONGER[name])):
                for pairs in (
                    [*once, (again, value)],
                    [(again, value), *once],
                    [pair for old in once for pair in ([(again, value), old] if old[0] == name else [old])],
                ):
                    error = refusal(written(pairs, gap))
                    assert "twice" in str(error), pairs
                    assert error.reply is ("method" not in members)


@pytest.mark.parametrize("members", list(SHORTEST.values()), ids=list(SHORTEST))
def test_a_message_of_any_length_has_its_duplicates_found(members):
    # From the shortest message on, byte by byte, over the edge at which the reader starts to look.
    for room in range(30):
        for longer in (
            {**members, "jsonrpc": members["jsonrpc"] + " " * room},
            {**members, "x" * room: "0"},
            {**members, "id": '"' + "i" * room + '"'} if "id" in members else members,
            {**members, "id": "1" + "0" * room} if "id" in members else members,
            {**members, "id": '"' + "\\u0069" * room + '"'} if "id" in members else members,
            {**members, "method": '"' + "m" * room + '"'} if "method" in members else members,
            {**members, "method": '"' + "é" * room + '"'} if "method" in members else members,
            {**members, "params": '"' + "p" * room + '"'} if "params" in members else members,
            {**members, "result": '"' + "r" * room + '"'} if "result" in members else members,
        ):
            pairs = list(longer.items())
            assert seen(written(pairs)) == judged(written(pairs))
            doubled = [[*pairs, pair] for pair in pairs] + [[pair, *pairs] for pair in members.items()]
            for text in map(written, doubled):
                assert "twice" in str(refusal(text)), text
    refused = refusal(written([*members.items(), ("", "0"), ("", "0")]))
    assert "twice" in str(refused)  # not a member of the envelope, but a reader could take either


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """Draw an envelope in any spelling, in half of the cases with a duplicate member."""
    members = dict(draw(st.sampled_from(list(SHORTEST.values()))))
    for name in draw(st.sets(st.sampled_from(sorted(members)))):
        members[name] = LONGER[name]
    for name in draw(st.sets(st.sampled_from(["", "x", "data", "Id", "result ", "params" * 9]))):
        members[name] = draw(st.sampled_from(["0", "null", '[{"id":1},{"id":2}]', '"id"', '",\\"id\\":1"']))
    pairs = list(members.items())
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(members)))
        pairs.append((name, draw(st.sampled_from([members[name], LONGER.get(name, "1")]))))
    pairs = draw(st.permutations(pairs))
    gap = st.sampled_from(["", "", "", " ", "\t", "\r\n", "      "])

    def spelt(name: str) -> str:
        return "".join(draw(st.sampled_from([char, f"\\u{ord(char):04x}"])) for char in name)

    inner = ",".join(
        f'{draw(gap)}"{spelt(name)}"{draw(gap)}:{draw(gap)}{value}{draw(gap)}' for name, value in pairs
    )
    return f"{draw(gap)}{{{inner}}}{draw(gap)}".encode()


@given(envelopes())
def test_an_envelope_is_refused_if_and_only_if_a_member_stands_there_twice(text):
    pairs = json.loads(text, object_pairs_hook=Members)
    doubled = len({name for name, _ in pairs}) < len(pairs)
    assert (seen(text).kind == "refused") is doubled
    assert seen(text) == judged(text)


def test_many_members_are_counted_in_linear_time():
    many = ",".join(f'"{number}":0' for number in range(6_000))
    assert decode(b'{"jsonrpc":"2.0",%s,"method":"m"}' % many.encode()) == JSONRPCNotification("m")
    same = ",".join('"x":0' for _ in range(6_000))
    assert "twice" in str(refusal(b'{"jsonrpc":"2.0",%s,"method":"m"}' % same.encode()))


@pytest.mark.parametrize(
    ("rest", "code", "reply"),
    [
        (b'"id":7,"method":"m"', INVALID, False),
        (b'"method":"m"', None, False),
        (b'"id":7,"result":{}', None, True),
        (b'"id":7,"error":{"code":1,"message":""}', None, True),
    ],
)
@pytest.mark.parametrize("deep", [b"0", b"[" * 80 + b"]" * 80])
def test_unknown_members_are_bounded_before_they_are_distinguished(rest, code, reply, deep):
    crowd = b",".join(b'"%d":0' % number for number in range(600_000))
    data = b'{"jsonrpc":"2.0",%s,%s,"x":%s}' % (crowd, rest, deep)
    tracemalloc.start()
    error = refusal(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (code_of(error), error.reply, error.id) == (code, reply, 7 if b'"id"' in rest else None)
    assert peak < 4 * len(data)  # each member as a value of its own would take forty times as much


@pytest.mark.requirement("MSG-19")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"jsonrpc":"2.0","method":"m","params":' + b"[" * 80 + b"]" * 80 + b"}", id="deep"),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"m","params":' + b"[" * 9999 + b"]" * 9999 + b"}", id="very deep"
        ),
        pytest.param(b'{"jsonrpc":"2.0","method":"m","method":"m"}', id="a member twice"),
    ],
)
def test_a_notification_that_is_rejected_has_no_answer(data):
    error = refusal(data)
    assert (error.answer, error.reply, error.id) == (None, False, None)


# --------------------------------------------------------------------- depth


def levels(text: bytes) -> int:
    """Return the nesting depth of brackets outside strings, byte by byte."""
    depth = deepest = 0
    quoted = escaped = False
    for char in text.decode():
        if escaped:
            escaped = False
        elif quoted:
            escaped, quoted = char == "\\", char != '"'
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def nested(count: int, kind: str) -> bytes:
    """This number of levels of arrays, of objects, or of both in turn."""
    opening = {"arrays": ["["], "objects": ['{"a":'], "both": ["[", '{"a":']}[kind]
    closing = {"[": "]", '{"a":': "}"}
    opened = [opening[level % len(opening)] for level in range(count)]
    return ("".join(opened) + "0" + "".join(closing[level] for level in reversed(opened))).encode()


@in_every_slot
@pytest.mark.parametrize("kind", ["arrays", "objects", "both"])
@pytest.mark.parametrize("depth", [3, 10, MAX_DEPTH])
def test_a_message_nests_as_deeply_as_it_may_and_no_deeper(depth, kind, code, reply, around):
    room = depth - levels(around)
    fits, over = around % nested(room, kind), around % nested(room + 1, kind)
    assert (levels(fits), levels(over)) == (depth, depth + 1)
    decode(fits, depth=depth)
    error = refusal(over, depth=depth)
    assert (code_of(error), error.id, error.reply) == (code, 7, reply)
    assert f"more than {depth} levels" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100, id="brackets"),
        pytest.param('"[{' * 100, id="quotes before brackets"),
        pytest.param("\\" * 99 + "[" * 100, id="backslashes before brackets"),
        pytest.param('\\"[' * 100, id="backslashes and quotes"),
        pytest.param("[" * 100 + "\\", id="a backslash at the end"),
        pytest.param("[" * 100 + '\\"', id="a backslash and a quote at the end"),
        pytest.param("\n[" * 100, id="letters that need a backslash"),
        pytest.param("]}" * 100 + "[{" * 100, id="brackets the wrong way round"),
    ],
)
@pytest.mark.parametrize("value", ["{text}", "[{text},{text}]", '{{"a":{text},{text}:[]}}'])
def test_brackets_in_strings_do_not_nest(text, value):
    written_text = json.dumps(text)
    params = value.format(text=written_text).encode()
    message = SLOTS["params of a request"][2] % params
    depth = levels(message)
    assert depth <= 3
    decode(message, depth=depth)
    refusal(message, depth=depth - 1)


TRICKY = st.text(alphabet='[]{}"\\/u:,a\n', max_size=12)
NESTS = st.recursive(
    TRICKY | st.just(0),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=30,
)


@given(
    value=NESTS,
    indent=st.sampled_from([None, 0, 2]),
    around=st.sampled_from([slot[2] for slot in SLOTS.values()]),
    depth=st.integers(1, 9),
)
def test_depth_is_measured_as_a_slow_reader_measures_it(value, indent, around, depth):
    text = around % json.dumps(value, indent=indent).encode()
    if levels(text) <= depth:
        decode(text, depth=depth)
    else:
        assert "levels" in str(refusal(text, depth=depth))


@everywhere
@pytest.mark.parametrize("kind", ["arrays", "objects", "both"])
def test_a_hundred_thousand_levels_are_a_clean_error(kind, around):
    nest = nested(100_000, kind)
    for text in (nest, nest[:150_000], nest[100_000:]):
        assert seen(around % text).kind == "refused"


@pytest.mark.parametrize("slot", ["params of a request", "result", "data of an error", "unknown member"])
@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_a_message_that_nests_too_deeply_still_has_its_id(depth, slot):
    # Otherwise the request that such an answer belongs to would wait until it times out.
    code, reply, around = SLOTS[slot]
    error = refusal(around % nested(depth, "arrays"))
    assert (code_of(error), error.id, error.reply) == (code, 7, reply)


@everywhere
def test_nesting_beyond_the_parser_is_an_error(around):
    error = refusal(around % nested(100_000, "both"), depth=10**9)
    assert code_of(error) == (None if error.reply else PARSE)
    assert "nested too deeply" in str(error)


def test_many_levels_are_measured_in_linear_time():
    tower = nested(MAX_DEPTH - 2, "arrays")
    towers = b",".join([tower] * (4 * MEGABYTE // len(tower)))
    assert isinstance(decode(SLOTS["params of a request"][2] % (b"[%s]" % towers)), JSONRPCRequest)
    quotes = b'"' + b'\\"[' * MEGABYTE + b'"'
    assert isinstance(decode(SLOTS["params of a request"][2] % quotes), JSONRPCRequest)


@pytest.mark.parametrize("slot", ["params of a request", "result"])
def test_64_megabytes_of_unread_digits_are_forwarded(slot):
    digits = b"7" * (64 * MEGABYTE)
    message = decode(SLOTS[slot][2] % digits)
    raw = (
        getattr(message, "params", UNSET)
        if isinstance(message, JSONRPCRequest)
        else getattr(message, "result", 0)
    )
    assert raw is UNSET or raw == Raw(digits)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(b"7%s", id="integer"),
        pytest.param(b"-7%s", id="negative integer"),
        pytest.param(b"7%s.5", id="number with a fraction"),
        pytest.param(b"1e7%s", id="exponent"),
    ],
)
def test_an_error_is_not_lost_because_its_data_is_out_of_range(number):
    digits = number % (b"7" * (64 * MEGABYTE))
    failure = decode(SLOTS["data of an error"][2] % digits)
    assert isinstance(failure, JSONRPCErrorResponse)
    assert (failure.id, failure.code, failure.data) == (7, 1, digits.decode())


@pytest.mark.parametrize(
    ("around", "code", "reply"),
    [
        pytest.param(TYPED["id of a request"], INVALID, False, id="id of a request"),
        pytest.param(TYPED["id of an answer"], None, True, id="id of an answer"),
        pytest.param(TYPED["error code"], None, True, id="error code"),
        pytest.param(TYPED["method"], INVALID, False, id="method"),
        pytest.param(TYPED["whole text"], INVALID, False, id="whole text"),
    ],
)
def test_64_megabytes_of_digits_are_not_what_is_wanted(around, code, reply):
    error = refusal(around % (b"7" * (64 * MEGABYTE)))
    assert (code_of(error), error.reply) == (code, reply)
    assert error.id == (7 if b'"id":7' in around else None)
    assert len(str(error)) < 1000


# --------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[]", True),
        (b" \t\r\n[1]", True),
        (b"[", True),
        (b"{}", False),
        (b"", False),
        (b"\xef\xbb\xbf[]", False),
    ],
)
def test_a_batch_is_an_array(text, expected):
    assert is_batch(text) is expected


def test_a_batch_is_read_item_by_item():
    messages = decode_batch(
        b' [ {"jsonrpc":"2.0","id":1,"method":"m"} , {"jsonrpc":"2.0","method":"n","params":{}},'
        b'{"jsonrpc":"2.0","id":2,"result":{}},\n{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":""}}]'
    )
    assert messages == [
        JSONRPCRequest(1, "m"),
        JSONRPCNotification("n", Raw(b"{}")),
        JSONRPCResponse(2, Raw(b"{}")),
        JSONRPCErrorResponse(3, 1, ""),
    ]


@pytest.mark.parametrize(
    ("item", "code", "identity", "reply"),
    [
        pytest.param(b"1", INVALID, None, False, id="number"),
        pytest.param(b"[]", INVALID, None, False, id="empty batch"),
        pytest.param(b'[{"jsonrpc":"2.0","id":7,"method":"m"}]', INVALID, None, False, id="batch in a batch"),
        pytest.param(b'{"id":7,"method":"m"}', INVALID, 7, False, id="no version"),
        pytest.param(b'{"id":7,"result":1}', None, 7, True, id="broken answer"),
        pytest.param(b'{"jsonrpc":"2.0","id":7,"id":7,"method":"m"}', INVALID, 7, False, id="duplicate"),
        pytest.param(b'{"jsonrpc":"2.0","method":"\xff"}', PARSE, None, False, id="not UTF-8"),
        pytest.param(SLOTS["result"][2] % nested(64, "both"), None, 7, True, id="too deep"),
    ],
)
def test_one_bad_item_of_a_batch_hurts_only_itself(item, code, identity, reply):
    good = b'{"jsonrpc":"2.0","id":1,"method":"m"}'
    before, error, after = decode_batch(b"[%s,%s,%s]" % (good, item, good))
    assert before == after == JSONRPCRequest(1, "m")
    assert isinstance(error, RemoteProtocolError)
    assert (code_of(error), error.id, error.reply) == (code, identity, reply)


def test_each_item_of_a_batch_may_nest_as_deeply_as_a_message():
    fits, over = (SLOTS["result"][2] % nested(levels, "both") for levels in (MAX_DEPTH - 1, MAX_DEPTH))
    assert isinstance(decode_batch(b"[%s]" % fits)[0], JSONRPCResponse)
    assert isinstance(decode_batch(b"[%s]" % over)[0], RemoteProtocolError)


def test_a_batch_holds_no_more_than_its_limit():
    item = b'{"jsonrpc":"2.0","method":"m"}'
    assert len(decode_batch(encode_batch([item] * MAX_BATCH))) == MAX_BATCH
    for text in (encode_batch([item] * (MAX_BATCH + 1)), encode_batch([]), b"[ ]"):
        error = refusal(text, decode_batch)
        assert (code_of(error), error.id, error.reply) == (INVALID, None, False)
        assert "a batch must hold 1 to" in str(error)


@pytest.mark.parametrize(
    ("text", "code", "identity"),
    [
        pytest.param(b'{"jsonrpc":"2.0","id":7,"method":"m"}', INVALID, 7, id="a message"),
        pytest.param(b"7", INVALID, None, id="number"),
        pytest.param(b'"[]"', INVALID, None, id="string"),
        pytest.param(b"null", INVALID, None, id="null"),
        pytest.param(b"", PARSE, None, id="nothing"),
        pytest.param(b"[1,", PARSE, None, id="no end"),
        pytest.param(b"[1,]", PARSE, None, id="comma at the end"),
        pytest.param(b"[1] x", PARSE, None, id="something behind it"),
        pytest.param(b"\xef\xbb\xbf[1]", PARSE, None, id="byte order mark"),
        pytest.param(b"[\xff]", PARSE, None, id="byte that is never UTF-8"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, PARSE, None, id="a hundred thousand levels"),
        pytest.param(b"[" * 100_000, PARSE, None, id="open levels"),
        pytest.param(b"{x", PARSE, None, id="no array and no JSON"),
        pytest.param(b'"', PARSE, None, id="open string"),
        pytest.param(b'{"\xff":1}', PARSE, None, id="no array and not UTF-8"),
    ],
)
def test_an_invalid_batch_is_rejected_as_a_whole(text, code, identity):
    error = refusal(text, decode_batch)
    assert (code_of(error), error.id, error.reply) == (code, identity, False)


@pytest.mark.parametrize("revision", list(REVISIONS.values()), ids=lambda revision: revision.date)
def test_batches_are_understood_only_where_the_revision_has_them(revision):
    party = LocalPeer(Implementation("server", "1"), ServerCapabilities())
    server = Connection(party, peer=Peer(revision))
    ping = encode_request(1, "ping", UNSET)
    events = server.receive(encode_batch([ping, encode_notification("notifications/x")]))
    if revision.batches:
        assert [type(event) for event in events] == [InboundRequest, NotificationReceived]
    else:
        [refused] = events
        assert isinstance(refused, InvalidMessageReceived)
        assert refused.data is not None
        assert json.loads(refused.data)["error"]["code"] == INVALID
    # Before the negotiation no revision has them.
    [early] = Connection(party).receive(encode_batch([ping]))
    assert isinstance(early, InvalidMessageReceived)


# --------------------------------------------------------------------- fuzz

SEEDS = [
    b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":[1,"b",null,-0.5e1]}}',
    b'{ "jsonrpc" : "2.0" , "id" : "x\\u0041" , "method" : "tools/call" }',
    b'{"jsonrpc":"2.0","method":"n","params":null}',
    b'{"jsonrpc":"2.0","id":-12,"result":{"x":true}}',
    b'{"jsonrpc":"2.0","id":"7","error":{"code":-32600,"message":"no","data":{"k":[0]}}}',
    b'{"jsonrpc":"2.0","error":{"code":1,"message":"\\ud83d\\ude00"}}',
    '{"jsonrpc":"2.0","id":"ключ","method":"世界","params":"😀"}'.encode(),
]
TOKENS = [
    *(bytes([byte]) for byte in b'"\\{}[],:. \t\n019-+eEtrufalsn/\x00\x7f\x80\xc3\xff'),
    b"null",
    b"true",
    b'"2.0"',
    b'"id":1,',
    b'"method":"",',
    b'"result":0,',
    b'"error":{},',
    b"\\u0069",
    b"\\ud800",
    b"NaN",
    b"\xef\xbb\xbf",
]


def test_every_message_with_one_byte_more_less_or_other_is_judged_as_a_simple_reader_does():
    for seed in SEEDS:
        assert seen(seed).kind != "refused"
        for position in range(len(seed) + 1):
            broken = {seed[:position], seed[:position] + seed[position + 1 :]}
            for token in TOKENS:
                broken.add(seed[:position] + token + seed[position:])
                broken.add(seed[:position] + token + seed[position + 1 :])
            for text in broken:
                assert seen(text) == judged(text), text


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 5))):
        position, length = draw(st.integers(0, 100)), draw(st.integers(0, 12))
        token = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
        text = text[:position] + token + text[position + length :]
    return text


@given(damaged() | st.binary())
def test_damaged_messages_and_random_bytes_are_judged_as_a_simple_reader_does(text):
    assert seen(text) == judged(text)


@given(st.lists(damaged(), max_size=5))
def test_damaged_batches_are_judged_as_a_simple_reader_does(texts):
    batch = encode_batch(texts)
    if judged(batch) == NOT_JSON:
        assert NOT_JSON in seen_in_batch(batch)
    elif all(judged(text) != NOT_JSON for text in texts):
        assert seen_in_batch(batch) == ([judged(text) for text in texts] or [Verdict("refused", INVALID)])
    else:  # damage that heals within the array, such as `{},{}`
        assert len(seen_in_batch(batch)) == max(1, len(json.loads(batch)))


# --------------------------------------------------------------------- typed values


class Pair(msgspec.Struct):
    left: int
    right: list[str] = []


def test_a_reader_gives_a_typed_value():
    read = JSONReader(Pair)
    assert read(b'{"left":1,"right":["a"],"more":0}') == Pair(1, ["a"])
    assert read(Raw(b'{"left":2}')) == Pair(2)
    assert JSONReader(dict[str, Any])(UNSET) == {}


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        pytest.param(Pair, b'{"left":"1"}', "$.left", id="wrong type"),
        pytest.param(Pair, b'{"left":1,"right":["a",0]}', "$.right[1]", id="wrong type further in"),
        pytest.param(Pair, b"{}", "left", id="missing"),
        pytest.param(Pair, b"[]", "object", id="array"),
        pytest.param(Pair, b"null", "object", id="null"),
        pytest.param(Pair, UNSET, "left", id="absent"),
        pytest.param(dict, b"{", "truncated", id="not JSON"),
        pytest.param(dict, b"", "truncated", id="nothing"),
        pytest.param(float, b"1e400", "out of range", id="beyond floats"),
        pytest.param(object, b"[" * 100_000 + b"]" * 100_000, "", id="a hundred thousand levels"),
        pytest.param(
            CallToolResult, b'{"content":[1]}', "$.content[0]", id="a kind that is open, but not so"
        ),
        pytest.param(str, b'"\xff"', "", id="not UTF-8"),
    ],
)
def test_values_of_another_type_are_invalid(kind, text, why):
    with pytest.raises(InvalidJSONValue) as caught:
        JSONReader(kind)(text)
    assert why in str(caught.value)


def test_a_reader_is_made_when_it_is_first_needed():
    impossible = JSONReader[Any](Pair | CallToolResult)  # pyright: ignore[reportArgumentType] - that is the point
    with pytest.raises(TypeError):
        impossible(b"{}")
    read = JSONReader(Pair)
    unprepared = read.decode
    assert read(b'{"left":1}') == unprepared(b'{"left":1}') == Pair(1)
    first = read.decode
    assert first != unprepared
    read(b'{"left":1}')
    assert read.decode is first


def test_a_kind_that_is_unknown_is_read_and_written():
    text = b'{"content":[{"type":"hologram","depth":3}]}'
    assert encode(JSONReader(CallToolResult)(text)) == text


# --------------------------------------------------------------------- writing


@pytest.mark.requirement("MSG-1", "MSG-10", "MSG-15", "MSG-16", "MSG-17", "MSG-20")
@pytest.mark.parametrize(
    ("write", "text"),
    [
        pytest.param(lambda: encode_request(1, "m"), b'{"jsonrpc":"2.0","id":1,"method":"m"}', id="request"),
        pytest.param(
            lambda: encode_request("1", "m", {}),
            b'{"jsonrpc":"2.0","id":"1","method":"m","params":{}}',
            id="request with params",
        ),
        pytest.param(
            lambda: encode_request(0, "m", Raw(b'{ "a": 1 }')),
            b'{"jsonrpc":"2.0","id":0,"method":"m","params":{ "a": 1 }}',
            id="request with raw params",
        ),
        pytest.param(
            lambda: encode_request(-(2**70), "m"),
            b'{"jsonrpc":"2.0","id":-1180591620717411303424,"method":"m"}',
            id="request with a long id",
        ),
        pytest.param(lambda: encode_notification("n"), b'{"jsonrpc":"2.0","method":"n"}', id="notice"),
        pytest.param(
            lambda: encode_notification("n", {"a": [1, 2.5, None, True, "é"]}),
            '{"jsonrpc":"2.0","method":"n","params":{"a":[1,2.5,null,true,"é"]}}'.encode(),
            id="notice with params",
        ),
        pytest.param(lambda: encode_response(1, {}), b'{"jsonrpc":"2.0","id":1,"result":{}}', id="answer"),
        pytest.param(
            lambda: encode_response("", None),
            b'{"jsonrpc":"2.0","id":"","result":null}',
            id="answer of nothing",
        ),
        pytest.param(
            lambda: encode_response(1, Raw(b"[1]")),
            b'{"jsonrpc":"2.0","id":1,"result":[1]}',
            id="answer that was written",
        ),
        pytest.param(
            lambda: encode_error(1, InvalidParams("no")),
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}',
            id="error",
        ),
        pytest.param(
            lambda: encode_error("x", InvalidParams("no", {"a": 1})),
            b'{"jsonrpc":"2.0","id":"x","error":{"code":-32602,"message":"no","data":{"a":1}}}',
            id="error with data",
        ),
        pytest.param(
            lambda: encode_error(0, RPCError("no", False, code=5)),
            b'{"jsonrpc":"2.0","id":0,"error":{"code":5,"message":"no","data":false}}',
            id="error with data that is false",
        ),
        pytest.param(
            lambda: encode_error(1, RPCError("no", code=5), 0),
            b'{"jsonrpc":"2.0","id":1,"error":{"code":0,"message":"no"}}',
            id="error with the code of another revision",
        ),
        pytest.param(
            lambda: encode_error(None, RPCError("no", hint="say yes", peer="somebody")),
            b'{"jsonrpc":"2.0","error":{"code":-32603,"message":"no"}}',
            id="error without id, and without what is for people here",
        ),
        pytest.param(lambda: encode_batch([b"{}", b"[]"]), b"[{},[]]", id="batch"),
    ],
)
def test_a_message_is_written(write, text):
    assert write() == text


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.integers() | TEXTS


@given(identity=IDS, method=TEXTS, value=JSON_VALUES, code=st.integers(), message=TEXTS)
def test_encoding_and_decoding_round_trip(identity, method, value, code, message):
    raw = Raw(encode(value))
    assert json.loads(bytes(raw)) == value
    params = UNSET if value is None else raw
    assert decode(encode_request(identity, method, value)) == JSONRPCRequest(identity, method, params)
    assert decode(encode_notification(method, value)) == JSONRPCNotification(method, params)
    assert decode(encode_response(identity, value)) == JSONRPCResponse(identity, raw)
    error = RPCError(message, value, code=code)
    assert decode(encode_error(identity, error)) == JSONRPCErrorResponse(identity, code, message, value)
    assert decode(encode_error(None, error)) == JSONRPCErrorResponse(None, code, message, value)
    batch = encode_batch([encode_request(identity, method), encode_notification(method)])
    assert decode_batch(batch) == [JSONRPCRequest(identity, method), JSONRPCNotification(method)]


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(10**400, b"1" + b"0" * 400, id="large integer"),
        pytest.param((1, 2), b"[1,2]", id="tuple"),
        pytest.param({1}, b"[1]", id="set"),
        pytest.param({1: 2}, b'{"1":2}', id="number as a name"),
        pytest.param(Point(1), b'{"x":1}', id="data class"),
        pytest.param(Colour.RED, b'"red"', id="enumeration"),
        pytest.param(dt.date(2020, 1, 2), b'"2020-01-02"', id="date"),
        pytest.param(decimal.Decimal("1.50"), b'"1.50"', id="decimal"),
        pytest.param(uuid.UUID(int=0), b'"00000000-0000-0000-0000-000000000000"', id="UUID"),
        pytest.param(b"\x00\xff", b'"AP8="', id="bytes"),
        # JSON has no such numbers; null is what JavaScript writes for them.
        pytest.param([float("nan"), float("inf"), float("-inf")], b"[null,null,null]", id="no numbers"),
    ],
)
def test_values_of_python_have_one_form_in_json(value, text):
    assert encode(value) == text


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def tower() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(object, "of type object is", id="foreign object"),
        pytest.param(lambda: {object()}, "of type object is", id="foreign object in a set"),
        pytest.param(lambda: {"a": [object]}, "of type type is", id="class"),
        pytest.param(lambda: iter([]), "iterator is not", id="iterator"),
        pytest.param(lambda: 1j, "of type complex is", id="complex number"),
        pytest.param(lambda: [UNSET], "of type UnsetType is", id="what is not set, in an array"),
        pytest.param(lambda: {(1,): 2}, "of type tuple is", id="tuple as a name"),
        pytest.param(lambda: {None: 2}, "of type NoneType is", id="None as a name"),
        pytest.param(lambda: "\ud800", "surrogates not allowed", id="lone surrogate"),
        pytest.param(lambda: {"\udc00": 1}, "surrogates not allowed", id="lone surrogate in a name"),
        pytest.param(lambda: 10**5000, "digits", id="integer of 5001 digits"),
        pytest.param(itself, "nested too deeply", id="a list that contains itself"),
        pytest.param(tower, "nested too deeply", id="a hundred thousand levels"),
    ],
)
def test_unencodable_values_are_local_errors(make, why):
    value = make()
    for write in (
        lambda: encode(value),
        lambda: encode_request(1, "m", [value]),
        lambda: encode_notification("m", [value]),
        lambda: encode_response(1, [value]),
        lambda: encode_error(1, RPCError("", [value])),
    ):
        with pytest.raises(LocalProtocolError, match="encoded as JSON") as caught:
            write()
        assert why in str(caught.value)
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "write",
    [
        lambda: encode_request("\ud800", "m"),
        lambda: encode_request(10**5000, "m"),
        lambda: encode_notification("\ud800"),
        lambda: encode_error(1, RPCError("\ud800")),
    ],
    ids=["id", "long id", "method", "error message"],
)
def test_envelopes_that_json_cannot_say_are_errors_of_ours(write):
    with pytest.raises(LocalProtocolError):
        write()


def test_a_batch_has_a_length():
    item = encode_notification("x", {"text": "a" * (MAX_BATCH_BYTES // 2)})
    with pytest.raises(RemoteProtocolError, match="batch too large") as refused:
        decode_batch(encode_batch([item, item]))
    assert refused.value.answer is not None
    assert refused.value.answer.code == -32600
    assert len(decode_batch(encode_batch([item]))) == 1


@pytest.mark.parametrize(
    ("params", "has_duplicate"),
    [
        (b'{"a":1,"b":{"a":1}}', False),
        (b'{ "a": 1, "b": [{"a": 1.0}, {"a": "\\u00e9"}] }', False),
        (b'{"a":"\\u0022"}', False),
        (b'{"a":1e400}', False),
        (b'{"a":1,"a":1}', True),
        (b'{"b":{"a":1, "a":2}}', True),
        (b'{"b":[{"a":1,"\\u0061":2}]}', True),
        (b'{"a":"\\u0022","b":{"c":1,"c":1}}', True),
        (b'{"a":1e400,"a":1}', True),
    ],
)
def test_an_object_in_parameters_has_each_key_once(params, has_duplicate):
    data = b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % params
    if has_duplicate:
        with pytest.raises(RemoteProtocolError, match="appears twice in an object"):
            decode(data)
    else:
        assert decode(data) == JSONRPCRequest(1, "m", Raw(params))


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":0,"id":1,"method":"m","params":{}}',
        b'{"jsonrpc":"2.0","id":0,"method":"","method":"m"}',
        b'{"jsonrpc":"2.0","method":"m","params":{},"params":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":0,"result":0}',
        b'{"jsonrpc":"2.0","id":0,"\\u0069d":1,"result":0}',
    ],
)
def test_the_shortest_duplicate_members_are_found(data):
    with pytest.raises(RemoteProtocolError, match="appears twice"):
        decode(data)
