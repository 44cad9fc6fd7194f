"""The display of messages and its destination; a slow reader or a full disk stops no traffic."""

import json
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from toolpost.cli.output import find_unused_path
from toolpost.cli.tap.command import StdioInspection
from toolpost.cli.tap.http_messages import MAX_SESSIONS, ExchangeTracker
from toolpost.cli.tap.recorder import (
    MAX_BACKLOG,
    BackgroundWriter,
    MessageKind,
    ObservedMessage,
    TapRecorder,
    format_as_json,
    format_as_text,
)
from toolpost.protocol.methods import CLIENT, SERVER, Role
from toolpost.testing import Tape, read_tape

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


def said(at=0.0, by: Role = SERVER, size=0, kind: MessageKind = "result", **members):
    return ObservedMessage(at=at, by=by, size=size, kind=kind, **members)


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (said(at=1.5, by=CLIENT, size=40, kind="request", id=1, method="ping"), "1.500 → 1 ping 40 B"),
        (said(size=2048, id="a", method="ping", duration=0.0125), "0.000 ← a ping 12.5 ms 2.0 KiB"),
        (said(size=3 << 20, duration=2.5), "0.000 ← result 2.50 s 3.0 MiB"),
        (said(size=9, kind="error", id=1, summary="-1 no", failed=True), "0.000 ← 1 error ✗ -1 no 9 B"),
        (said(kind="note", summary="it ended"), "0.000 ← it ended"),
        (said(size=1, kind="notification", method="a\x1b[2J\nb"), "0.000 ← a\\u001b[2J\\nb 1 B"),
        (said(size=1, kind="notification", method="x", violations=["no", "way"]), "0.000 ← x 1 B ! no ! way"),
    ],
)
def test_a_message_is_a_line(seen, line):
    assert " ".join(format_as_text(seen).split()) == line
    assert "\x1b[" in format_as_text(seen, colour=True)


def test_full_shows_whole_messages():
    seen = ObservedMessage(at=0, by=CLIENT, size=40, kind="request", id=1, method="ping", body=PING)
    lines = format_as_text(seen, {"method": "ping"}).splitlines()
    assert [line.strip() for line in lines[1:]] == ["{", '"method": "ping"', "}"]


def test_json_output_has_one_object_per_message():
    seen = ObservedMessage(
        at=0.25,
        by=SERVER,
        size=9,
        kind="error",
        id=1,
        method="ping",
        duration=0.1,
        violations=["x"],
        failed=True,
    )
    assert json.loads(format_as_json(seen)) == {
        "at": 0.25, "from": "server", "kind": "error", "id": 1, "method": "ping", "ms": 100, "bytes": 9,
        "failed": True, "violations": ["x"],
    }  # fmt: skip
    note = ObservedMessage(at=0, by=SERVER, size=0, kind="note", summary="gone")
    assert json.loads(format_as_json(note)) == {
        "at": 0,
        "from": "server",
        "kind": "note",
        "summary": "gone",
    }


# --------------------------------------------------------------------- where it goes


def test_lines_that_are_not_read_in_time_are_counted():
    reader, writer = os.pipe()
    outlet = BackgroundWriter(writer)
    line, count, read = "x" * (1024 * 1024), 9, list[bytes]()
    for _ in range(count):
        outlet.put(line)
    with open(reader, "rb") as file:  # noqa: PTH123 - it is a descriptor
        thread = threading.Thread(target=lambda: read.extend(file))
        thread.start()
        outlet.close()
        os.close(writer)
        thread.join()
    *shown, gap = [each.decode().rstrip() for each in read]
    assert set(shown) == {line}
    assert len(shown) <= MAX_BACKLOG // len(line)
    assert gap == f"… {count - len(shown)} lines dropped: the reader was too slow"


def test_a_closed_reader_is_ignored():
    reader, writer = os.pipe()
    os.close(reader)
    outlet = BackgroundWriter(writer)
    outlet.put("x")
    outlet._thread.join()
    outlet.put("y")
    outlet.close()
    os.close(writer)


def test_a_batch_is_kept_once(tmp_path):
    shown: list[str] = []
    with Tape(tmp_path / "t.jsonl") as tape:
        ear = StdioInspection(TapRecorder(shown.append, tape))
        ear.feed(CLIENT, b"[" + PING + b",")
        ear.feed(CLIENT, PING.replace(b"1}", b"2}") + b"]\n")
        ear.feed(CLIENT, b"")
    _, (line,) = read_tape(tmp_path / "t.jsonl")
    assert len(line.message) == 2
    assert len([text for text in shown if "ping" in text]) == 2


def test_a_message_that_cannot_be_shown_stops_nothing():
    shown: list[str] = []

    class Broken(TapRecorder):
        def record(self, by, data, link=1):
            raise ValueError("a fault of ours")

    ear = StdioInspection(Broken(shown.append))
    ear.feed(CLIENT, PING + b"\n" + PING + b"\n")
    assert len([text for text in shown if "a fault of ours" in text]) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_ends_only_the_recording(tmp_path):
    shown: list[str] = []
    with Tape(tmp_path / "t.jsonl") as tape, open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123 - no file
        kept: Any = tape._file
        tape._file = cast("Any", full)
        teller = TapRecorder(shown.append, tape)
        for _ in range(2):
            teller.record(CLIENT, PING)
        tape._file = kept
    assert [" ".join(text.split()[1:]) for text in shown] == [
        "→ ✗ recording stopped: No space left on device"
    ]


def test_a_recording_gets_an_unused_name(tmp_path):
    first = tmp_path / "a.jsonl"
    assert find_unused_path(first) == first
    first.touch()
    assert find_unused_path(first) == tmp_path / "a-1.jsonl"


def test_old_sessions_are_forgotten():
    posts = ExchangeTracker(lambda _: None, lambda: 0.0)
    for number in range(MAX_SESSIONS + 5):
        posts.begin("POST", "/mcp", {"mcp-session-id": str(number)})
    assert len(posts._sessions) == MAX_SESSIONS
