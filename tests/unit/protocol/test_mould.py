"""Calls that are known again: whatever a mould reads is what the ordinary way reads in the same text."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.errors import RemoteProtocolError
from toolpost.protocol import jsonrpc
from toolpost.protocol.eras import Peer
from toolpost.protocol.events import InboundRequest
from toolpost.protocol.jsonrpc import JSONRPCRequest
from toolpost.protocol.methods import CLIENT
from toolpost.protocol.mould import MAX_DIGITS, MAX_SIZE, Mould
from toolpost.protocol.revisions import LATEST
from toolpost.types.base import UNSET
from toolpost.types.initialize import CLIENT_INFO

ROW = LATEST.requests[CLIENT]["tools/call"]
PEER = Peer(LATEST)


def ordinary(data: bytes) -> InboundRequest | None:
    """The call in a text, read as a whole; None if there is none."""
    try:
        message = jsonrpc.decode(data)
        if not isinstance(message, JSONRPCRequest) or message.method != ROW.name:
            return None
        return InboundRequest(message.id, ROW, ROW.read_params(message.params), PEER, message.params)
    except (RemoteProtocolError, jsonrpc.InvalidJSONValue):
        return None


def mould_of(data: bytes) -> Mould | None:
    like = ordinary(data)
    assert like is not None
    return Mould.from_call(data, like)


def said(number: Any = 1, arguments: Any = None, **more: Any) -> dict[str, Any]:
    params = {"name": "add", "arguments": {"a": 1} if arguments is None else arguments, **more}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def text(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def check(mould: Mould, data: bytes) -> bool:
    """Whether a mould reads a text, which it reads rightly."""
    read = mould.read(data)
    if read is None:
        return False
    whole = ordinary(data)
    assert whole is not None, data
    assert (read.id, type(read.id), read.row, read.token) == (whole.id, int, ROW, None)
    assert (read.params.name, read.params.arguments) == (whole.params.name, whole.params.arguments)
    assert (read.params.task, read.params.request_state, read.params.input_responses) == (None, None, None)
    assert read.peer is PEER
    assert read.raw is UNSET
    return True


# --------------------------------------------------------------------- what is read

LAYOUTS = {
    "as Python writes it": json.dumps(said(7, {"a": 1})).encode(),
    "without spaces": text(said(7, {"a": 1})),
    "the id behind": text(
        {"method": "tools/call", "params": said(7, {"a": 1})["params"], "jsonrpc": "2.0", "id": 7}
    ),
    "with facts": text(said(7, {"a": 1}, _meta={CLIENT_INFO: {"id": 7, "arguments": {"a": 1}}})),
    "facts first": text(
        {
            "jsonrpc": "2.0",
            "id": 7,
            "method": "tools/call",
            "params": {
                "_meta": {CLIENT_INFO: {"arguments": {"a": 1}, "id": 7}},
                "name": "add",
                "arguments": {"a": 1},
            },
        }
    ),
    "ids in arguments": text(said(7, {"id": 7})),
    "no arguments to speak of": text(said(7, {})),
    "with white space around": b" \n" + text(said(7, {"a": 1})) + b"\n",
    "words that are not plain": json.dumps(
        said(7, {"a": 1}, _meta={CLIENT_INFO: {"é": "ü"}}), ensure_ascii=False
    ).encode(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_call_is_read_by_the_mould_of_another(layout: str):
    data = LAYOUTS[layout]
    mould, like = mould_of(data), ordinary(data)
    assert mould is not None
    assert like is not None
    assert check(mould, data)
    old = bytes(like.params.arguments)
    at = data.rindex(old) if layout != "with facts" else data.index(old)
    for value in (
        b"{}",
        b'{"b":[1,2,{"c":null}]}',
        b'"text"',
        b"[]",
        b'{"a":"' + b"x" * 500 + b'"}',
        b" {} ",
    ):
        other = data[:at] + value + data[at + len(old) :]
        assert check(mould, other), other


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [1, 42, 10**MAX_DIGITS - 1])
def test_any_number_is_an_id(layout: str, number: int):
    data = LAYOUTS[layout]
    mould = mould_of(data)
    assert mould is not None
    label = b'"id": ' if b'"id": ' in data else b'"id":'
    places = [at for at in range(len(data)) if data.startswith(label + b"7", at)]
    other = [data[: at + len(label)] + b"%d" % number + data[at + len(label) + 1 :] for at in places]
    found = [call for call in map(ordinary, other) if call is not None and call.id == number]
    assert found
    assert any(check(mould, data) for data in other)


@given(
    st.integers(1, 10**18),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=12,
    ),
    st.sampled_from(list(LAYOUTS)),
    st.booleans(),
)
def test_whatever_is_read_is_read_as_the_ordinary_way_reads_it(
    number: int, value: Any, layout: str, plain: bool
):
    mould = mould_of(LAYOUTS[layout])
    assert mould is not None
    raw = json.dumps(value, ensure_ascii=plain).encode()
    pieces = [mould._first, mould._middle, mould._last]
    holes = [b"%d" % number, raw] if mould._leading else [raw, b"%d" % number]
    data = pieces[0] + holes[0] + pieces[1] + holes[1] + pieces[2]
    assert check(mould, data) == (number < 10**MAX_DIGITS and raw.isascii())


@given(st.randoms(use_true_random=False), st.sampled_from(list(LAYOUTS)))
def test_a_text_that_was_tampered_with_is_never_read_as_something_else(rng: random.Random, layout: str):
    data = bytearray(LAYOUTS[layout])
    mould = mould_of(bytes(data))
    assert mould is not None
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.choice(b'{}[],:"0179 \\x-.e\xff')
        elif kind == 1:
            del data[at : at + rng.randint(1, 4)]
        elif kind == 2:
            data[at:at] = rng.choice([b",", b'"id":9,', b"{}", b"0", b"1", b'"arguments":{},', b"]", b"}"])
        else:
            end = rng.randrange(len(data) + 1)
            data[at:at] = data[min(at, end) : max(at, end)]
    check(mould, bytes(data))


def test_what_breaks_out_of_its_place_is_read_as_a_whole():
    mould = mould_of(text(said(7, {"a": 1}, _meta={})))
    assert mould is not None
    first, middle, last = mould._first, mould._middle, mould._last
    for number, value in (
        (b"7", b'{"a":1},"name":"sub"'),
        (b"7", b'{"a":1}},"id":8,"x":{"y":{"z":1}'),
        (b'7,"method":"ping"', b"{}"),
        (b"07", b"{}"),
        (b"0", b"{}"),
        (b"-7", b"{}"),
        (b"7.0", b"{}"),
        (b"7e3", b"{}"),
        (b"", b"{}"),
        (b"7", b""),
        (b"7", b"{"),
        (b"7", b'{"a":NaN}'),
        (b"7", b'{"a":"\xff"}'),
        (b"7", '{"a":"é"}'.encode()),
        (b"9" * (MAX_DIGITS + 1), b"{}"),
        (b"7", b"[" * 100 + b"]" * 100),
        ("٧".encode(), b"{}"),
    ):
        assert mould.read(first + number + middle + value + last) is None, (number, value)
    whole = first + b"7" + middle + b"{}" + last
    assert mould.read(whole) is not None
    for broken in (whole[:-1], whole[1:], whole + b"}", b"[" + whole + b"]", whole + whole, middle, b""):
        assert mould.read(broken) is None, broken


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_text_that_is_cut_off_is_read_as_a_whole(layout: str):
    data = LAYOUTS[layout]
    mould = mould_of(data)
    assert mould is not None
    for at in range(1, len(data)):
        assert mould.read(data[at:]) is None
        assert mould.read(data[:at]) is None


def test_what_is_flat_may_be_long():
    mould = mould_of(text(said(7, {"a": 1})))
    assert mould is not None
    assert check(mould, text(said(8, {"a": ["x"] * 1000})))


# --------------------------------------------------------------------- what has a mould

NONE = {
    "no arguments": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}},
    "an id that is a text": said("1"),
    "an id that is too large": said(10**MAX_DIGITS),
    "no id to speak of": said(0),
    "an id below": said(-1),
    "an answer": said(inputResponses={"a": {}}),
    "a state": said(requestState="s"),
    "a task": said(task={"ttl": 1}),
    "much to be kept": said(_meta={CLIENT_INFO: "y" * MAX_SIZE}),
    "what may be secret": said(_meta={"token": "secret"}),
    "what may be secret, elsewhere": said(token="secret"),
    "what may be secret, outside": {**said(), "token": "secret"},
    "facts that are none": said(_meta=5),
    "a progress token": said(_meta={"progressToken": 1}),
}


@pytest.mark.parametrize("what", NONE)
def test_what_is_no_plain_call_has_no_mould(what: str):
    assert mould_of(text(NONE[what])) is None


def test_what_stands_where_nobody_looks_has_no_mould():
    for data in (
        text(said()).replace(b'"arguments":', b'"arguments"  :  '),
        text(said()).replace(b'"id":', b'"\\u0069d":'),
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"add","arguments":{"id":1}},"i\\u0064":1}',
        text(said(1, {"a": 1}, _meta={CLIENT_INFO: [{"arguments": {"a": 1}}] * 9})).replace(
            b'"name":"add","arguments":{"a":1},"_meta":', b'"_meta":'
        )[:-2]
        + b',"name":"add","arguments":{"a":1}}}',
    ):
        assert mould_of(data) is None, data


def test_of_a_member_that_stands_there_twice_the_last_counts():
    data = (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call",'
        b'"params":{"arguments":{"a":1},"name":"add","arguments":{"a":1}}}'
    )
    mould = mould_of(data)
    assert mould is not None
    assert check(mould, data.replace(b'{"a":1}}}', b'{"b":2}}}'))
    assert mould.read(data.replace(b'{"a":1},"name"', b'{"b":2},"name"')) is None


def test_a_call_that_is_not_in_the_text_has_no_mould():
    like = ordinary(text(said(1)))
    assert like is not None
    for data in (
        text(said(1)).replace(b"tools/call", b"tools/list"),
        text(said(1)).replace(b'"2.0"', b'"1.0"'),
        text(said(1)).replace(b'"add"', b'"sub"'),
        text(said(1)).replace(b'"add"', b"5"),
        b'"id":1,"arguments":{"a":1}',
        b'{"arguments":{"a":1},"id":1}',
    ):
        assert Mould.from_call(data, like) is None, data
