"""Our server on real pipes: messages sent ahead, and messages that are too long."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from expected_limits import MAX_LINE
from revision_dates import DATES

PROGRAM = str(Path(__file__).parents[2] / "support" / "programs" / "stdio_server.py")
PING = {"jsonrpc": "2.0", "id": "last", "method": "ping"}


def hello(date, capabilities=None) -> list[dict[str, Any]]:
    """Return everything that a client can send before it has received anything."""
    about = {"name": "eager", "version": "1"}
    opening = {"protocolVersion": date, "capabilities": capabilities or {}, "clientInfo": about}
    return [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "prompts/list"},
    ]


def wire(*messages):
    lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in messages]
    return b"".join(line + b"\n" for line in lines)


def talk(*chunks, count, limit=MAX_LINE):
    """Write these chunks separately; return this many responses, and stderr."""
    command = [sys.executable, PROGRAM, str(limit)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for chunk in chunks:
            process.stdin.write(chunk)
        answers = [json.loads(process.stdout.readline()) for _ in range(count)]
        rest, said = process.communicate(timeout=20)
        assert (rest, process.returncode) == (b"", 0)
    return answers, said.decode()


# --------------------------------------------------------------------- what is sent ahead


@pytest.mark.requirement("LIFE-1")
@pytest.mark.parametrize("date", DATES[:-1])
@pytest.mark.parametrize("size", [None, 1, 100])
def test_messages_after_the_handshake_are_answered_in_order(date, size):
    data = wire(*hello(date), PING)
    chunks = [data] if size is None else [data[at : at + size] for at in range(0, len(data), size)]
    answers, _ = talk(*chunks, count=4)
    assert [answer["id"] for answer in answers] == [1, 2, 3, "last"]
    first, tools, prompts, pong = (answer["result"] for answer in answers)
    assert first["protocolVersion"] == date
    assert [tool["name"] for tool in tools["tools"]] == ["size", "ask"]
    assert [prompt["name"] for prompt in prompts["prompts"]] == ["greet"]
    assert pong == {}


# --------------------------------------------------------------------- what is too long

LONG = b'{"name":"size","arguments":{"text":"%s"}}' % (b"x" * 10_000)


@pytest.mark.requirement("MSG-15")
@pytest.mark.parametrize(
    ("line", "id_"),
    [
        (b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":%s}', {"id": "a"}),
        (b'{"method":"tools/call","params":%s,"jsonrpc":"2.0","id":7}', {"id": 7}),
        (b'"%s"', {}),
    ],
)
def test_a_request_that_is_too_long_is_refused_by_its_id(line, id_):
    long = line % LONG
    answers, said = talk(wire(*hello(DATES[-2]), long, PING), count=5, limit=5000)
    refusals = [answer for answer in answers if "error" in answer]
    message = f"Invalid request: message too long: {len(long)} bytes (limit: 5000)"
    assert refusals == [{"jsonrpc": "2.0", **id_, "error": {"code": -32600, "message": message}}]
    assert "dropped a message from the client" in said


@pytest.mark.requirement("MSG-19")
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":%s}',
        b'{"jsonrpc":"2.0","id":1,"result":%s}',
    ],
)
def test_a_notification_or_an_answer_that_is_too_long_is_not_answered(line):
    answers, said = talk(wire(*hello(DATES[-2]), line % LONG, PING), count=4, limit=5000)
    assert [answer["id"] for answer in answers] == [1, 2, 3, "last"]
    assert "dropped a message from the client" in said
