"""The file format of recordings: writing, reading, and invalid files."""

import json

import pytest

from expected_limits import TAPE_FORMAT
from toolpost.errors import MCPError
from toolpost.testing import Tape, read_tape

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_has_a_header_and_a_line_for_each_message(tmp_path):
    path = tmp_path / "talk.jsonl"
    with Tape(path, target="weather") as tape:
        tape.write("client", PING)
        tape.write("server", b'{"jsonrpc":"2.0","id":1,"result":{}}', link=2)
    header, first, second = rows(path)
    assert (header["tape"], header["target"]) == (TAPE_FORMAT, "weather")
    assert first == {"at": first["at"], "from": "client", "message": json.loads(PING)}
    assert (second["from"], second["link"], second["message"]["result"]) == ("server", 2, {})
    assert 0 <= first["at"] <= second["at"]


def test_invalid_json_is_a_string(tmp_path):
    path = tmp_path / "talk.jsonl"
    with Tape(path) as tape:
        tape.write("server", b"Listening on 8000")
        tape.write("server", b"\xff")
        tape.write("server", b"[" * 100_000)
    assert [line.text for line in read_tape(path)[1]][:2] == ["Listening on 8000", "�"]


def test_other_events_are_recorded(tmp_path):
    path = tmp_path / "talk.jsonl"
    with Tape(path) as tape:
        tape.write_loss(3, "HTTP 503")
        tape.write_end("server", "it exited")
    lost, closed = read_tape(path)[1]
    assert (lost.lost, lost.why, closed.closed) == (3, "HTTP 503", "it exited")


def test_secrets_are_masked_before_they_are_written(tmp_path):
    path = tmp_path / "talk.jsonl"
    with Tape(path, target="wolf", secrets=["wolf"]) as tape:
        tape.write("client", b'{"params":{"apiKey":"1","city":"Wolfsburg, wolf"}}')
        tape.write("server", b"a wolf is no JSON")
        tape.write_loss(1, "wolf")
        tape.write_end("server", "wolf")
    assert "wolf" not in path.read_text()
    assert "Wolfsburg" in path.read_text()


def test_a_tape_that_was_closed_goes_on(tmp_path):
    path = tmp_path / "talk.jsonl"
    tape = Tape(path)
    tape.close()
    tape.close()
    tape.write("client", PING)
    tape.close()
    assert len(read_tape(path)[1]) == 1


def test_empty_lines_and_unknown_members_do_not_matter(tmp_path):
    path = tmp_path / "talk.jsonl"
    path.write_text(
        '{"tape":1,"colour":"red"}\n\n{"at":0,"from":"client","text":"hi","http":{"status":200}}\n'
    )
    assert [line.text for line in read_tape(path)[1]] == ["hi"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: not a recording"),
        ("hello", "line 1: not a recording"),
        ('{"tape":2}', "has format 2; this version reads format 1"),
        ('{"tape":1}\n{"at":0}', "line 2: invalid line"),
        ('{"tape":1}\n{"at":0,"from":"me"}', "line 2: invalid line"),
    ],
)
def test_another_file_is_refused(tmp_path, text, complaint):
    path = tmp_path / "talk.jsonl"
    path.write_text(text)
    with pytest.raises(MCPError, match=complaint):
        read_tape(path)
