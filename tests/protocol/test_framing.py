"""Lines in, lines out, however the stream is cut."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolpost.protocol.framing import MAX_LINE, LineBuffer, Oversize, frame

# The same examples on every run; a slow machine is no failure.
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


def reference(stream, limit=MAX_LINE):
    """The lines of a stream and what is left at its end, slowly and with everything at hand."""

    def read(raw):
        line = raw[:-1] if raw.endswith(b"\r") else raw
        if len(line) > limit:
            return Oversize(len(raw))
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
    """Each byte for itself, and an empty chunk behind it, which must change nothing."""
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
    (b"abcdef\r\r\n", [Oversize(8)], None),
    (b"abcdefg\n", [Oversize(7)], None),
    (b"abcdefg\r\n", [Oversize(8)], None),
    (b"abcdef\rg\n", [Oversize(8)], None),
    (b"abcdef", [], b"abcdef"),
    (b"abcdef\r", [], b"abcdef"),
    (b"abcdefg", [], Oversize(7)),
    (b"       \n", [Oversize(7)], None),
    (b"1\nabcdefghijkl\n2\n", [b"1", Oversize(12), b"2"], None),
    (b"1\nabcdefghijkl\nabcdefg\n2", [b"1", Oversize(12), Oversize(7)], b"2"),
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
def test_what_is_framed_comes_back(messages):
    flat = [message.replace(b"\r", b" ").replace(b"\n", b" ") for message in messages]
    assert run([b"".join(map(frame, messages))]) == (flat, None)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_bytes_gives_bytes(kind):
    buffer = LineBuffer()
    lines = [*buffer.feed(kind(b"1\n")), *buffer.feed(kind(b"2")), *buffer.feed(kind(b"\n3\n"))]
    assert lines == [b"1", b"2", b"3"]
    assert all(type(line) is bytes for line in lines)


def test_a_reused_chunk_does_not_change_what_was_kept():
    buffer, chunk = LineBuffer(), bytearray(b"1\n2")
    lines = buffer.feed(memoryview(chunk))
    chunk[:] = b"xxx"
    assert (lines, buffer.end()) == ([b"1"], b"2")


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
    assert buffer.feed(b"\n{}\n") == [Oversize(count * len(chunk)), b"{}"]


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
    assert LineBuffer(LIMIT).feed(b"12345678\n" * count) == [Oversize(8)] * count


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
    assert frame(message) == line


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@steady
@given(json_values)
@pytest.mark.requirement("STDIO-1")
def test_a_pretty_printed_message_means_the_same_on_one_line(value):
    line = frame(json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\r\n").encode())
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line) == value
