"""Events in, events out, however the stream is cut; and no text can become a field."""

import tracemalloc
from itertools import pairwise, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolpost.errors import RemoteProtocolError
from toolpost.protocol.sse import (
    KEEP_ALIVE,
    MAX_EVENT,
    EventStreamDecoder,
    ServerSentEvent,
    encode_event,
    encode_message,
)

# The same examples on every run; slowness is not a failure.
steady = settings(derandomize=True, deadline=None, max_examples=300)

BOM = b"\xef\xbb\xbf"
LIMIT = 12
FRAGMENTS = [
    *(b"\n", b"\r", b"\r\n", b"\n\n", b":", b" ", b": ", b"\0", b"x", b"12", b"\xff", BOM, b"\xef", b"\xbb"),
    *(b"data", b"data: ", b"data:1\n", b"event", b"event:e\n", b"id", b"id: 7\n", b"retry", b"retry:5\n"),
    *("é\u2028\x85".encode(), b"Data: no", b": ping\n"),
]
streams = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(b"".join)


def split_lines(stream):
    """Return the lines of a stream and its unfinished rest, byte by byte."""
    stream = stream.removeprefix(BOM)
    lines, line, previous = [], b"", b""
    for byte in (stream[at : at + 1] for at in range(len(stream))):
        if byte in {b"\r", b"\n"}:
            if (previous, byte) != (b"\r", b"\n"):
                lines.append(line)
            line = b""
        else:
            line += byte
        previous = byte
    return lines, line


def reference(stream, limit=MAX_EVENT):
    """(events, last event id, retry, whether the limit was broken): the steps of the standard, one by one."""
    lines, left = split_lines(stream)
    events, data, kind, last_id, known_id, retry, size = [], b"", b"", b"", b"", None, 0
    for number, line in enumerate([*lines, left]):
        whole = number < len(lines)
        comment_line = line.startswith(b":")
        if (len(line) if comment_line else size + len(line)) > limit:
            return events, known_id.decode(errors="replace"), retry, True
        if not whole or comment_line:
            continue
        if not line:
            known_id = last_id
            if data:
                name = kind.decode(errors="replace") or "message"
                events.append(ServerSentEvent(data[:-1], name, known_id.decode(errors="replace")))
            data, kind, size = b"", b"", 0
            continue
        size += len(line)
        field, value = line.split(b":", 1) if b":" in line else (line, b"")
        value = value.removeprefix(b" ")
        if field == b"data":
            data += value + b"\n"
        elif field == b"event":
            kind = value
        elif field == b"id" and b"\0" not in value:
            last_id = value
        elif field == b"retry" and 0 < len(value) <= 18 and all(byte in b"0123456789" for byte in value):
            retry = int(value)
    return events, known_id.decode(errors="replace"), retry, False


def run(chunks, limit=MAX_EVENT):
    decoder, events, broken = EventStreamDecoder(limit), [], False
    try:
        for chunk in [*chunks, b""]:  # the empty one brings out an error that had to wait
            events += decoder.feed(chunk)
    except RemoteProtocolError:
        broken = True
    return events, decoder.last_event_id, decoder.retry, broken


def feed_all(chunks, limit):
    """The decoder after chunks that complete no event, and the error that stopped it."""
    decoder = EventStreamDecoder(limit)
    try:
        for chunk in chunks:
            assert decoder.feed(chunk) == []
    except RemoteProtocolError as error:
        return decoder, error
    return decoder, None


def cut(stream, points):
    edges = [0, *sorted(point % (len(stream) + 1) for point in points), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def bytewise(stream):
    """Return each byte as a chunk, followed by an empty chunk, which must change nothing."""
    return [chunk for byte in stream for chunk in (bytes([byte]), b"")]


def assert_same_everywhere(stream, expected, limit=MAX_EVENT):
    assert run([stream], limit) == expected
    assert run(bytewise(stream), limit) == expected
    for point in range(len(stream) + 1):
        assert run([stream[:point], stream[point:]], limit) == expected


# --------------------------------------------------------------------- reading

TABLE = [
    # stream, events
    (b"", []),
    (b"\n\n", []),
    (b"data: 1\n\n", [ServerSentEvent(b"1")]),
    (b"data:1\n\n", [ServerSentEvent(b"1")]),
    (b"data:  1\n\n", [ServerSentEvent(b" 1")]),
    (b"data: 1 \n\n", [ServerSentEvent(b"1 ")]),
    (b"data:\t1\n\n", [ServerSentEvent(b"\t1")]),
    (b"data::1\n\n", [ServerSentEvent(b":1")]),
    (b"data: a: b\n\n", [ServerSentEvent(b"a: b")]),
    (b"data: \xff\0\n\n", [ServerSentEvent(b"\xff\0")]),
    # line ends
    (b"data: 1\r\r", [ServerSentEvent(b"1")]),
    (b"data: 1\r\n\r\n", [ServerSentEvent(b"1")]),
    (b"data: 1\n\r\n", [ServerSentEvent(b"1")]),
    (b"data: 1\r\n\r", [ServerSentEvent(b"1")]),
    (b"data: 1\r\n\n", [ServerSentEvent(b"1")]),
    (b"data: 1\n\rdata: 2\r\ndata: 3\r\r\n", [ServerSentEvent(b"1"), ServerSentEvent(b"2\n3")]),
    (b"data: 1\r\ndata: 2\n\n", [ServerSentEvent(b"1\n2")]),
    (b"data: a\x0bb\x0cc\x1c\x85\xe2\x80\xa8d\n\n", [ServerSentEvent(b"a\x0bb\x0cc\x1c\x85\xe2\x80\xa8d")]),
    # several lines
    (b"data: 1\ndata: 2\ndata: 3\n\n", [ServerSentEvent(b"1\n2\n3")]),
    (b"data\n\n", [ServerSentEvent(b"")]),
    (b"data:\n\n", [ServerSentEvent(b"")]),
    (b"data: \n\n", [ServerSentEvent(b"")]),
    (b"data\ndata\n\n", [ServerSentEvent(b"\n")]),
    (b"data: 1\ndata\n\n", [ServerSentEvent(b"1\n")]),
    # no blank line, no event
    (b"data: 1", []),
    (b"data: 1\n", []),
    (b"data: 1\n\ndata: 2\n", [ServerSentEvent(b"1")]),
    # type
    (b"event: endpoint\ndata: /post\n\n", [ServerSentEvent(b"/post", "endpoint")]),
    (b"event: a\nevent: b\ndata: 1\n\ndata: 2\n\n", [ServerSentEvent(b"1", "b"), ServerSentEvent(b"2")]),
    (b"event: a\n\ndata: 1\n\n", [ServerSentEvent(b"1")]),
    (b"event: a\nevent\ndata: 1\n\n", [ServerSentEvent(b"1")]),
    (b"data: 1\nevent: a\xff\0\n\n", [ServerSentEvent(b"1", "a\ufffd\0")]),
    # comments and unknown fields
    (b":\n: ping\n:data: 1\n\n", []),
    (b": ping\n\ndata: 1\n: pong\ndata: 2\n\n", [ServerSentEvent(b"1\n2")]),
    (b"Data: 1\n data: 2\ndata : 3\nfoo\nfoo: 4\ndata: 5\n\n", [ServerSentEvent(b"5")]),
    # BOM
    (BOM, []),
    (BOM + b"data: 1\n\n", [ServerSentEvent(b"1")]),
    (BOM + b": ping\ndata: 1\n\n", [ServerSentEvent(b"1")]),
    (BOM + BOM + b"data: 1\n\n", []),
    (BOM[:2] + b"data: 1\n\ndata: 2\n\n", [ServerSentEvent(b"2")]),
    (b"\n" + BOM + b"data: 1\n\n", []),
    (b"data: 1\n\n" + BOM + b"data: 2\n\n", [ServerSentEvent(b"1")]),
    (b"data: " + BOM + b"\n\n", [ServerSentEvent(BOM)]),
    # id
    (b"id: 1\ndata: a\n\ndata: b\n\n", [ServerSentEvent(b"a", id="1"), ServerSentEvent(b"b", id="1")]),
    (b"data: a\nid: 1\n\nid\ndata: b\n\n", [ServerSentEvent(b"a", id="1"), ServerSentEvent(b"b")]),
    (b"id: 1\n\ndata: b\n\n", [ServerSentEvent(b"b", id="1")]),
    (b"id: 1\nid: 2\0\ndata: a\n\n", [ServerSentEvent(b"a", id="1")]),
    (b"id: \xc3\xa9\xff\ndata: a\n\n", [ServerSentEvent(b"a", id="é\ufffd")]),
]


@pytest.mark.parametrize(("stream", "events"), TABLE)
@pytest.mark.requirement("HTTPM-9")
def test_events_are_found_wherever_the_stream_is_cut(stream, events):
    expected = reference(stream)
    assert expected[0] == events
    assert_same_everywhere(stream, expected)


@pytest.mark.parametrize(
    ("stream", "last"),
    [
        (b"id: 1\ndata: a\n\n", "1"),
        (b"id: 1\n\n", "1"),
        (b"id: 1\ndata\n\n", "1"),
        (b"id: 1\ndata: a\n", ""),  # the event is not whole, so it must come again
        (b"id: 1\n\nid: 2\ndata: b\n", "1"),
        (b"id: 1\n\ndata: b\n\n", "1"),
        (b"id: 1\n\nid\n\n", ""),
        (b"id: 1\n\nid: 2\0\n\n", "1"),
        (b"id: 1\n\nID: 2\n\n", "1"),
    ],
)
def test_the_last_id_counts_with_the_blank_line(stream, last):
    assert reference(stream)[1] == last
    assert_same_everywhere(stream, reference(stream))


@pytest.mark.parametrize(
    ("value", "retry"),
    [
        (b"0", 0),
        (b"1500", 1500),
        (b"007", 7),
        (b"9" * 18, 10**18 - 1),
        (b"9" * 19, 3),
        (b"9" * 1_000_000, 3),
        (b"", 3),
        (b"-1", 3),
        (b"+1", 3),
        (b"1.5", 3),
        (b"1_0", 3),
        (b" 1", 3),
        (b"1 ", 3),
        (b"0x1", 3),
        ("١".encode(), 3),
        ("²".encode(), 3),
    ],
)
def test_retry_is_digits_or_nothing(value, retry):
    decoder = EventStreamDecoder()
    assert decoder.retry is None
    assert decoder.feed(b"retry: 3\n") == []
    assert decoder.retry == 3
    assert decoder.feed(b"retry: " + value + b"\n") == []
    assert decoder.retry == retry


@steady
@given(streams)
def test_any_stream_gives_the_same_events_at_every_cut(stream):
    for limit in (LIMIT, MAX_EVENT):
        assert_same_everywhere(stream, reference(stream, limit), limit)


@steady
@given(st.lists(streams, max_size=30).map(b"\n\n".join), st.lists(st.integers(0, 10_000), max_size=60))
def test_a_long_stream_gives_the_same_events_in_any_pieces(stream, points):
    for limit in (LIMIT, MAX_EVENT):
        assert run(cut(stream, points), limit) == reference(stream, limit)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_bytes_gives_bytes(kind):
    decoder = EventStreamDecoder()
    events = [*decoder.feed(kind(b"data: 1\nda")), *decoder.feed(kind(b"ta: 2\n\n"))]
    assert events == [ServerSentEvent(b"1\n2")]
    assert type(events[0].data) is bytes


def test_an_event_comes_with_its_last_byte_and_does_not_wait_for_the_next():
    for end in (b"\n", b"\r"):
        decoder = EventStreamDecoder()
        assert decoder.feed(b"data: 1" + end) == []
        assert decoder.feed(end) == [ServerSentEvent(b"1")]


def test_an_event_is_an_immutable_value():
    assert ServerSentEvent(b"1") == ServerSentEvent(b"1", "message", "")
    with pytest.raises(AttributeError):
        ServerSentEvent(b"1").data = b"2"  # pyright: ignore[reportAttributeAccessIssue] - that it fails is the point


# --------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "stream",
    [
        b"data: 123456\n\n",
        b"data:1\ndata:2\n\n",
        b"event:1\nid:22\n\n",
        b":01234567890\n\n",
        b":01234567890\n" * 5 + b"data: 123456\n:01234567890\n\n",
        b"data: 123456\n\n" * 3,
        BOM + b"data: 123456\n\n",
        b"\n" * 50,
    ],
)
def test_exactly_the_limit_is_accepted(stream):
    assert not reference(stream, LIMIT)[3]
    assert_same_everywhere(stream, reference(stream, LIMIT), LIMIT)


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (b"data: 1234567\n\n", "an event"),
        (b"data: 1234567", "an event"),
        (b"data:1\ndata:23\n\n", "an event"),
        (b"data:1\nid:4567\n", "an event"),
        (b"foo:1\nfoo:2\nfoo", "an event"),
        (b"x" * 13, "an event"),
        (b"data\n" * 4, "an event"),
        (b":012345678901\n", "a comment"),
        (b":012345678901", "a comment"),
        (b"data: 123456\n:012345678901", "a comment"),
    ],
)
def test_one_byte_more_is_an_error(stream, kind):
    for chunks in ([stream], bytewise(stream)):
        text = f"the peer sent {kind} of more than {LIMIT} bytes"
        decoder, error = feed_all(chunks, LIMIT)
        assert str(error).startswith(text)
        for chunk in (b"data: 1\n\n", b"\n\n", b""):
            with pytest.raises(RemoteProtocolError, match=f"can no longer be read: {text}.*new Decoder"):
                decoder.feed(chunk)
    assert_same_everywhere(stream, reference(stream, LIMIT), LIMIT)


def test_events_before_the_error_are_handed_out_first():
    decoder = EventStreamDecoder(LIMIT)
    assert decoder.feed(b"id:1\ndata:a\n\nid:2\ndata: too long\n\ndata:c\n\n") == [
        ServerSentEvent(b"a", id="1")
    ]
    assert decoder.last_event_id == "1"
    with pytest.raises(RemoteProtocolError, match=f"more than {LIMIT} bytes"):
        decoder.feed(b"")


@pytest.mark.parametrize(
    "chunk", [b"x" * 4096, b":" * 4096, b"data:" + b"x" * 90 + b"\n", b"data\n" * 50, b"id\n"]
)
def test_memory_is_bounded_until_the_error(chunk):
    limit = 64 * 1024
    tracemalloc.start()
    try:
        _, error = feed_all(repeat(chunk, limit), limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, RemoteProtocolError)
    assert peak < 6 * limit


def test_the_largest_event_byte_by_byte_is_linear():
    # Most of the line is there at once: work that grows with it would be done half a million times.
    steps = 512 * 1024
    decoder = EventStreamDecoder()
    decoder.feed(b"data:" + b"x" * (MAX_EVENT - steps - 5))
    for _ in range(steps):
        decoder.feed(b"x")
    assert decoder.feed(b"\n\n") == [ServerSentEvent(b"x" * (MAX_EVENT - 5))]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_many_events_in_one_chunk_are_linear(end):
    count = 100_000
    assert EventStreamDecoder().feed((b"data: 1" + end + end) * count) == [ServerSentEvent(b"1")] * count


def test_many_data_lines_in_one_event_are_linear():
    first, count = b"x" * 32 * 1024 * 1024, 100_000
    decoder = EventStreamDecoder(2 * len(first))
    assert decoder.feed(b"data:" + first + b"\n" + b"data\n" * count + b"\n") == [
        ServerSentEvent(first + b"\n" * count)
    ]


def test_keep_alives_never_add_up():
    decoder = EventStreamDecoder(LIMIT)
    decoder.feed(b"data: 1\n")
    for _ in range(1000):
        assert decoder.feed(b": ping\n") == []
    assert decoder.feed(b"\n") == [ServerSentEvent(b"1")]


# --------------------------------------------------------------------- writing


@pytest.mark.parametrize("data", [b"{}", b'{"a":\n1}', b'{"a":\r1}'])
def test_a_message_is_an_event_with_its_place_in_the_stream(data):
    assert encode_message(data, b"w-1", 3) == encode_event(data, event="message", id="w-1.3")


@pytest.mark.parametrize(
    ("written", "wire"),
    [
        (encode_event(b"{}"), b"data: {}\n\n"),
        (encode_event(b""), b"data: \n\n"),
        (encode_event(b"", id="7"), b"id: 7\ndata: \n\n"),
        (encode_event(b"{}", id=""), b"id: \ndata: {}\n\n"),
        (encode_event(b"/post", event="endpoint"), b"event: endpoint\ndata: /post\n\n"),
        (
            encode_event(b"{}", event="message", id="7", retry=0),
            b"id: 7\nevent: message\nretry: 0\ndata: {}\n\n",
        ),
        (encode_event(b"", retry=1500), b"retry: 1500\ndata: \n\n"),
        (encode_event(b" x"), b"data:  x\n\n"),
        (encode_event("é".encode(), id="é"), "id: é\ndata: é\n\n".encode()),
    ],
)
def test_events_on_the_wire(written, wire):
    assert written == wire


@pytest.mark.parametrize(
    "text",
    [
        "\n\n",
        "\r\r",
        "\r\n\r\n",
        "\n\r",
        "x\n\ndata: evil\n\n",
        "x\r\rdata: evil\r\r",
        "x\r\n\r\ndata: evil\r\n\r\n",
        "x\nid: evil",
        "x\revent: evil",
        "x\r\nretry: 1",
        "\nid: evil\n",
        ": x\n:\ndata: evil",
        "\ufeffdata: evil\n\n",
    ],
)
def test_text_cannot_become_a_field_or_an_event(text):
    data = text.encode()
    stream = encode_event(data, id="1", event="e") + encode_event(data) + KEEP_ALIVE + encode_event(b"last")
    decoder = EventStreamDecoder()
    expected = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert decoder.feed(stream) == [
        ServerSentEvent(expected, "e", "1"),
        ServerSentEvent(expected, id="1"),
        ServerSentEvent(b"last", id="1"),
    ]
    assert decoder.last_event_id == "1"
    assert decoder.retry is None
    for name, value in (("id", text + "\n"), ("event", text + "\r")):
        with pytest.raises(ValueError, match=f"the {name} of an event must not contain CR, LF or NUL"):
            encode_event(b"{}", **{name: value})


@pytest.mark.parametrize("name", ["id", "event"])
@pytest.mark.parametrize("bad", ["\r", "\n", "\0", "a\nb", "a\r\nb", "a\0", "x" * 10_000 + "\n"])
def test_a_one_line_field_rejects_line_breaks(name, bad):
    with pytest.raises(ValueError, match=f"the {name} of an event must not contain CR, LF or NUL") as caught:
        encode_event(b"{}", **{name: bad})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["id", "event"])
@pytest.mark.parametrize("bad", ["\ud800", "x" * 10_000 + "\udfff"])
def test_a_field_rejects_invalid_text(name, bad):
    with pytest.raises(ValueError, match=f"the {name} of an event must be valid UTF-8 text"):
        encode_event(b"{}", **{name: bad})


@pytest.mark.parametrize("bad", [-1, True, 1.5, "1", "1\ndata: evil"])
def test_retry_is_a_whole_number_of_milliseconds(bad):
    with pytest.raises(ValueError, match="the retry of an event must be a whole number of milliseconds"):
        encode_event(b"{}", retry=bad)


one_line = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]))


@steady
@given(
    st.lists(st.tuples(st.binary(), one_line | st.none(), one_line | st.none(), st.integers(0, 10**18 - 1))),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_encoding_and_decoding_round_trip(written, points):
    stream, expected, last = b"", [], ""
    for data, event, name, retry in written:
        stream += encode_event(data, event=event, id=name, retry=retry) + KEEP_ALIVE
        last = last if name is None else name
        # The format has no CR of its own: a reader sees LF for it.
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        expected.append(ServerSentEvent(lines, event or "message", last))
    retry = written[-1][3] if written else None
    assert run(cut(stream, points)) == (expected, last, retry, False)


@steady
@given(st.binary())
def test_any_data_is_one_event(data):
    (event,) = EventStreamDecoder().feed(encode_event(data))
    assert event.data == b"\n".join((data + b".").splitlines())[:-1]
