"""Lines in, lines out, however the stream is cut."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolpost.errors import InvalidRequest
from toolpost.protocol.line_framing import EDGE_BYTES, MAX_LINE, LineBuffer, OversizedLine, flatten

# The same examples on every run; slowness is not a failure.
steady = settings(derandomize=True, deadline=None, max_examples=300)

LIMIT = 6
FRAGMENTS = [
    b"\n",
    b"\r",
    b"\r\n",
    b" ",
    b"\t",
    b"{}",
    b"ab",
    b"1",
    b"\x0b",
    b"\0",
    b"\xff",
    b"abcdef",
    b"abcdefg",
]
streams = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map(b"".join)


def dropped(line, limit=LIMIT):
    """Return the placeholder for a line over the limit, given with its CR."""
    edge = min(EDGE_BYTES, limit)
    return OversizedLine(len(line), limit, line[:edge], line[-edge:])


def reference(stream, limit=MAX_LINE):
    """Return the lines of a stream and its unfinished rest: a slow reference implementation."""

    def read(raw):
        line = raw[:-1] if raw.endswith(b"\r") else raw
        if len(line) > limit:
            return dropped(raw, limit)
        return None if all(byte in b" \t\r\n" for byte in line) else line

    *whole, left = [read(raw) for raw in stream.split(b"\n")]
    return [line for line in whole if line is not None], left


def run(chunks, limit=MAX_LINE):
    buffer = LineBuffer(limit)
    lines = [line for chunk in chunks for line in buffer.feed(chunk)]
    return lines, buffer.end()


def cut(stream, points):
    edges = [0, *sorted(point % (len(stream) + 1) for point in points), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def bytewise(stream):
    """Return each byte as a chunk, followed by an empty chunk, which must change nothing."""
    return [chunk for byte in stream for chunk in (bytes([byte]), b"")]


TABLE = [
    # stream, lines, what end() gives
    (b"", [], None),
    (b"\n", [], None),
    (b"\n\n\n", [], None),
    (b"{}\n", [b"{}"], None),
    (b"{}\r\n", [b"{}"], None),
    (b"{}\r\r\n", [b"{}\r"], None),
    (b"\r{}\n", [b"\r{}"], None),
    (b"1\n2\n3\n", [b"1", b"2", b"3"], None),
    (b"1\r\n2\n3\r\n", [b"1", b"2", b"3"], None),
    (b"1\r2\n", [b"1\r2"], None),
    (b" \t\r\n{}\n \n", [b"{}"], None),
    (b" {} \n", [b" {} "], None),
    (b"\x0b\n\x0c\n\xa0\n", [b"\x0b", b"\x0c", b"\xa0"], None),  # white space elsewhere, not in JSON
    (b"\0\n", [b"\0"], None),
    (b"{}", [], b"{}"),
    (b"{}\r", [], b"{}"),
    (b"1\n2", [b"1"], b"2"),
    (b"1\n \t", [b"1"], None),
    (b"\r", [], None),
    ("é\u2028\x85\n".encode(), ["é\u2028\x85".encode()], None),  # line ends elsewhere, not here
]


@pytest.mark.parametrize(("stream", "lines", "left"), TABLE)
@pytest.mark.requirement("STDIO-1")
def test_lines_are_found_wherever_the_stream_is_cut(stream, lines, left):
    assert reference(stream) == (lines, left)
    assert run(bytewise(stream)) == (lines, left)
    for point in range(len(stream) + 1):
        assert run([stream[:point], stream[point:]]) == (lines, left)


OVERSIZE = [
    # stream, lines under LIMIT, what end() gives
    (b"abcdef\n", [b"abcdef"], None),
    (b"abcdef\r\n", [b"abcdef"], None),
    (b"abcdef\r\r\n", [OversizedLine(8, LIMIT, b"abcdef", b"cdef\r\r")], None),
    (b"abcdefg\n", [OversizedLine(7, LIMIT, b"abcdef", b"bcdefg")], None),
    (b"abcdefg\r\n", [OversizedLine(8, LIMIT, b"abcdef", b"cdefg\r")], None),
    (b"abcdef\rg\n", [OversizedLine(8, LIMIT, b"abcdef", b"cdef\rg")], None),
    (b"abcdef", [], b"abcdef"),
    (b"abcdef\r", [], b"abcdef"),
    (b"abcdefg", [], dropped(b"abcdefg")),
    (b"       \n", [dropped(b"       ")], None),
    (b"1\nabcdefghijkl\n2\n", [b"1", dropped(b"abcdefghijkl"), b"2"], None),
    (b"1\nabcdefghijkl\nabcdefg\n2", [b"1", dropped(b"abcdefghijkl"), dropped(b"abcdefg")], b"2"),
    (b"1\n" + b"abcdefghijklm" * 9 + b"\n2\n", [b"1", dropped(b"abcdefghijklm" * 9), b"2"], None),
]


@pytest.mark.parametrize(("stream", "lines", "left"), OVERSIZE)
def test_a_line_over_the_limit_costs_only_itself(stream, lines, left):
    assert reference(stream, LIMIT) == (lines, left)
    assert run(bytewise(stream), LIMIT) == (lines, left)
    for point in range(len(stream) + 1):
        assert run([stream[:point], stream[point:]], LIMIT) == (lines, left)


@steady
@given(streams)
def test_any_stream_gives_the_same_lines_at_every_cut(stream):
    for limit in (LIMIT, MAX_LINE):
        expected = reference(stream, limit)
        assert run([stream], limit) == expected
        assert run(bytewise(stream), limit) == expected
        for point in range(len(stream) + 1):
            assert run([stream[:point], stream[point:]], limit) == expected


@steady
@given(st.lists(streams, max_size=40).map(b"\n".join), st.lists(st.integers(0, 10_000), max_size=60))
def test_a_long_stream_gives_the_same_lines_in_any_pieces(stream, points):
    for limit in (LIMIT, MAX_LINE):
        assert run(cut(stream, points), limit) == reference(stream, limit)


@steady
@given(st.lists(st.binary(max_size=20).filter(lambda message: message.strip(b" \t\r\n"))))
def test_framed_messages_come_back(messages):
    flat = [message.replace(b"\r", b" ").replace(b"\n", b" ") for message in messages]
    assert run([b"".join(flatten(message) + b"\n" for message in messages)]) == (flat, None)


@pytest.mark.parametrize("left", [b"{}", b" ", b"abcdefg"])
def test_the_buffer_is_empty_after_the_end(left):
    buffer = LineBuffer(LIMIT)
    assert buffer.end() is None
    assert buffer.feed(left) == []
    buffer.end()
    assert buffer.end() is None
    assert buffer.feed(b"1\n") == [b"1"]


def test_a_line_without_end_is_dropped_in_bounded_memory():
    limit, chunk, count = 64 * 1024, b"x" * 4096, 4096
    buffer = LineBuffer(limit)
    tracemalloc.start()
    try:
        for _ in range(count):
            assert buffer.feed(chunk) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit
    edge = b"x" * EDGE_BYTES
    assert buffer.feed(b"\n{}\n") == [OversizedLine(count * len(chunk), limit, edge, edge), b"{}"]


def test_the_longest_line_byte_by_byte_is_linear():
    # Most of the line is there at once: work that grows with it would be done half a million times.
    steps = 512 * 1024
    buffer = LineBuffer()
    buffer.feed(b"x" * (MAX_LINE - steps))
    for _ in range(steps):
        buffer.feed(b"x")
    assert buffer.feed(b"\n") == [b"x" * MAX_LINE]


def test_many_lines_in_one_chunk_are_linear():
    count = 300_000
    assert LineBuffer().feed(b"12345678\n" * count) == [b"12345678"] * count


def test_many_oversize_lines_in_one_chunk_are_linear():
    count = 300_000
    assert LineBuffer(LIMIT).feed(b"12345678\n" * count) == [dropped(b"12345678")] * count


def test_a_limit_of_nothing_drops_all_in_bounded_memory():
    buffer = LineBuffer(0)
    for _ in range(10):
        assert buffer.feed(b"abc") == []
    assert len(buffer._open) <= 2
    assert buffer.feed(b"\n\n") == [OversizedLine(30, 0, b"a", b"c")]


# --------------------------------------------------------------------- what was dropped

LONG = b'{"content":[{"type":"text","text":"%s"}],"id":7,"method":"no"}' % (b'x}]\\"id\\":8,' * 1000)

TOLD = [
    # the line around something long; its id, whether it is an answer, whether it may be answered
    (b'{"jsonrpc":"2.0","id":5,"result":%s}', 5, True, False),
    (b'{"jsonrpc": "2.0", "id": "a", "result": %s}', "a", True, False),
    (b'{"result":%s,"jsonrpc":"2.0","id":5}', 5, True, False),
    (b' { "result" : %s , "id" : 5 , "jsonrpc" : "2.0" } \r', 5, True, False),
    (b'{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"no","data":%s}}', 5, True, False),
    (b'{"error":{"code":1,"message":"no","data":%s},"id":5,"jsonrpc":"2.0"}', 5, True, False),
    (b'{"jsonrpc":"2.0","id":5,"result":[%s]}', 5, True, False),
    (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":%s}', 5, False, True),
    (b'{"method":"tools/call","params":%s,"jsonrpc":"2.0","id":5}', 5, False, True),
    (b'{"jsonrpc":"2.0","method":"notifications/message","params":%s}', None, False, False),
    # Not enough is seen of these, and nothing is made up.
    (b'{"jsonrpc":"2.0","_":{},"id":5,"result":%s}', None, False, True),
    (b'{"jsonrpc":"2.0","_":%s,"id":5,"result":{}}', None, False, True),
    (b'{"jsonrpc":"2.0","result":%s}', None, True, False),
    (b'{"jsonrpc":"2.0","id":"{","result":%s}', None, False, True),
    (b'{"result":%s,"jsonrpc":"2.0","id":"}"}', None, False, True),
    (b'[{"jsonrpc":"2.0","id":5,"result":%s}]', None, False, True),
    (b'"%s"', None, False, True),
    (b"Loading: %s", None, False, True),
]


def refused(chunks, limit):
    """Return the error for a line over the limit."""
    ((lost,), _) = run(chunks, limit)
    assert isinstance(lost, OversizedLine)
    return lost.make_error()


@pytest.mark.requirement("MSG-15")
@pytest.mark.parametrize(("around", "identity", "reply", "answered"), TOLD)
@pytest.mark.parametrize("limit", [500, 10_000])
def test_the_ends_of_a_dropped_line_identify_it(around, identity, reply, answered, limit):
    line = around % LONG
    for chunks in ([line + b"\n"], cut(line + b"\n", range(0, 14_000, 1000))):
        error = refused(chunks, limit)
        assert (error.id, error.reply, error.answer is not None) == (identity, reply, answered)
        assert error.message == f"message too long: {len(line)} bytes (limit: {limit})"
        if error.answer is not None:
            assert isinstance(error.answer, InvalidRequest)
            assert error.message in error.answer.message


@steady
@given(
    st.lists(
        st.sampled_from([b"{", b"}", b"[", b"]", b'"', b"\\", b"id", b":", b",", b"5", b"\xff"]), min_size=3
    )
)
def test_nothing_that_is_dropped_fails_to_be_refused(pieces):
    error = refused([b"".join(pieces) + b"\n"], 2)
    assert error.answer is not None or error.reply or error.id is None


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (b"{}", b"{}\n"),
        (b"", b"\n"),
        (b'{\n"a": 1\n}', b'{ "a": 1 }\n'),
        (b'{\r\n"a": 1\r\n}', b'{  "a": 1  }\n'),
        (b"[1,\r2]", b"[1, 2]\n"),
        (b"{}\n", b"{} \n"),
        (b'"\\n\\r"', b'"\\n\\r"\n'),  # escaped: no raw line break at all
        ('"é\u2028\x85"'.encode(), '"é\u2028\x85"\n'.encode()),
    ],
)
@pytest.mark.requirement("STDIO-1")
def test_a_framed_message_is_one_line(message, line):
    assert flatten(message) + b"\n" == line


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@steady
@given(json_values)
@pytest.mark.requirement("STDIO-1")
def test_a_pretty_printed_message_means_the_same_on_one_line(value):
    line = flatten(json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\r\n").encode())
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line) == value
