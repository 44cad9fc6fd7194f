"""Servers that refuse to exit: they are stopped, and their output stays out of the stream."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).parent / "programs" / "stubborn.py")
ABOUT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
HELLO = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": ABOUT},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "stay"}}


def start(way: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, PROGRAM, way], stdin=pipe, stdout=pipe, stderr=pipe)


def wire(*messages: object) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


@pytest.mark.requirement("STDIO-13")
@pytest.mark.parametrize("way", ["refuses", "blocks", "hangs"])
@pytest.mark.parametrize("told", ["EOF", "SIGTERM"])
def test_a_server_exits_in_any_state_of_its_functions(way, told):
    with start(way) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(wire(*HELLO, CALL))
        process.stdin.flush()
        assert process.stderr.readline().strip() in (b"staying", b"hanging")
        if told == "EOF":
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        process.stdin.close()


def test_output_of_a_lifespan_stays_out_of_the_stream():
    with start("prints") as process:
        out, err = process.communicate(
            wire(*HELLO, {"jsonrpc": "2.0", "id": 2, "method": "ping"}), timeout=30
        )
        assert process.returncode == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == [1, 2]
    assert err.split() == [b"up", b"up", b"down"]
