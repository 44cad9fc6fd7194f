"""`toolpost tap -- command`: bytes, ends, signals and exit codes pass; messages are shown and kept."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from expected_limits import MAX_LINE
from revision_dates import DATES
from toolpost import Client, RPCError, Stdio
from toolpost.testing import read_tape, replay

TAP = [sys.executable, "-m", "toolpost", "tap"]
HELLO = [sys.executable, str(Path(__file__).parents[3] / "examples" / "hello.py")]
PATIENCE = 30

ECHO = """
import sys
sys.stderr.write("words\\n"); sys.stderr.flush()
while data := sys.stdin.buffer.read1(65536):
    sys.stdout.buffer.write(data); sys.stdout.buffer.flush()
sys.exit(7)
"""


def python(source):
    return ["--", sys.executable, "-c", source]


def tapped(*words, said=b"", **options):
    """Run a tap whose host sends something and exits; return the outcome."""
    return subprocess.run(
        [*TAP, *words], input=said, capture_output=True, timeout=PATIENCE, check=False, **options
    )


@contextlib.contextmanager
def tapping(*words, apart=False) -> Generator[Any]:
    """Start a tap whose host is the test; `apart` puts it into its own process group."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*TAP, *words], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=apart
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# --------------------------------------------------------------------- what passes


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        b"no message\r\n\r\n \xff\xfe\x00\n[1,2\nlast line without an end",
        bytes(range(256)) * 1000,
        b"x" * (2 * MAX_LINE),
    ],
    ids=["nothing", "a message", "junk", "all bytes", "a long line"],
)
def test_bytes_pass_unchanged(said):
    ended = tapped(*python(ECHO), said=said)
    assert ended.stdout == said
    assert ended.returncode == 7
    assert b"words\n" in ended.stderr


def test_oversized_messages_are_forwarded_without_inspection(tmp_path):
    long = b'{"jsonrpc":"2.0","id":5,"method":"x","params":{"data":"' + b"y" * (MAX_LINE + 1) + b'"}}\n'
    ended = tapped("--record", str(tmp_path / "talk.jsonl"), *python(ECHO), said=long)
    assert ended.stdout == long
    assert ended.stderr.count(b"longer than 4194304 bytes, not inspected") == 2
    assert (tmp_path / "talk.jsonl").stat().st_size < 1000


def test_the_end_of_a_server_is_the_end_though_its_host_stays():
    with tapping(*python("print('{}', flush=True); raise SystemExit(3)")) as tap:
        assert tap.stdout.read() == b"{}\n"
        assert tap.wait(PATIENCE) == 3


def test_a_server_that_closes_its_stdin_is_not_written_to():
    with tapping(
        *python("import os, sys; os.close(0); print(flush=True); sys.stderr.write('x'); input()")
    ) as tap:
        assert tap.wait(PATIENCE) == 1


def test_a_host_that_does_not_read_any_more_is_not_written_to():
    source = "import sys\nfor line in sys.stdin: print('x' * 100000, flush=True)"
    with tapping(*python(source)) as tap:
        tap.stdin.write(b"\n")
        tap.stdin.flush()
        assert tap.stdout.read(10) == b"x" * 10
        tap.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            for _ in range(100):
                tap.stdin.write(b"\n")
                tap.stdin.flush()
        assert tap.wait(PATIENCE) != 0


def test_the_words_of_a_server_that_has_ended_all_arrive():
    source = "import sys; sys.stdout.write('x' * 3_000_000 + chr(10))"
    assert tapped(*python(source)).stdout == b"x" * 3_000_000 + b"\n"


def test_a_process_that_keeps_the_stdout_of_an_exited_server_open_is_not_awaited(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    waits = "import os; open(os.environ['GATE']).read()"
    source = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {waits!r}]); os._exit(4)"
    with tapping("--env", f"GATE={gate}", *python(source)) as tap:
        try:
            assert tap.wait(PATIENCE) == 4
        finally:
            gate.write_text("")  # the remaining clients may disconnect


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_passes_and_reaches_the_server_once(number):
    source = (
        "import os, signal, sys\n"
        "heard = []\n"
        "def hear(number, frame):\n"  # not by `print`, which may not be over yet
        "    heard.append(number); os.write(1, b'%d\\n' % number)\n"
        f"signal.signal({int(number)}, hear)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
        "sys.exit(40 + len(heard))"
    )
    with tapping(*python(source), apart=True) as tap:
        assert tap.stdout.readline() == b"ready\n"
        os.killpg(tap.pid, number)
        assert tap.stdout.readline() == b"%d\n" % number
        tap.stdin.close()
        assert tap.wait(PATIENCE) == 41


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_server_that_is_killed_takes_the_tap_with_it(number):
    ended = tapped(*python(f"import os; os.kill(os.getpid(), {int(number)})"))
    assert ended.returncode == -number
    assert f"the server was killed by {number.name}" in ended.stderr.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_tap_that_is_killed_takes_the_server_with_it():
    source = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\nsignal.pause()"
    )
    with tapping(*python(source)) as tap:
        assert tap.stdout.readline() == b"\n"
        tap.kill()
        tap.wait(PATIENCE)
        assert tap.stdout.read() == b""  # no process holds the other end of the server's stderr or stdout
        assert b"closed" not in tap.stderr.read()


def test_a_host_that_never_reads_stderr_stops_no_other():
    count = 1200
    source = "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush()"
    line = b'{"jsonrpc":"2.0","method":"notifications/x","params":{"text":"' + b"z" * 2000 + b'"}}\n'
    with tapping("--full", *python(source)) as tap:
        for _ in range(count):
            tap.stdin.write(line)
            tap.stdin.flush()
            assert tap.stdout.readline() == line
        tap.stdin.close()
        assert tap.stdout.read() == b""


# --------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("date", DATES)
def test_a_conversation_is_shown_and_breaks_no_rule(date):
    shown: list[str] = []
    asyncio.run(_talk(Stdio(TAP[0], [*TAP[1:], "--", *HELLO], stderr=shown.append), date))
    text = "\n".join(shown)
    assert " ! " not in text
    assert "→   2 tools/list" in text
    assert "←   2 tools/list  1 item" in text
    assert "tools/call  greet" in text
    assert "✗ -32602 Unknown tool: nope" in text
    assert "the server ended with exit code 0" in text


async def _talk(target, date=None):
    async with Client(target, revision=date) as mcp:
        await mcp.list_tools()
        told = await mcp.call_tool("greet", {"name": "Ann"})
        with pytest.raises(RPCError, match="Unknown tool: nope"):
            await mcp.call_tool("nope", {})
        return str(told.content[0])


def test_violations_are_marked():
    source = (
        "import sys\n"
        "print('Starting…', flush=True)\n"
        "sys.stdin.readline()\n"
        'print(\'{"jsonrpc":"2.0","id":8,"result":{}}\', flush=True)'
    )
    ended = tapped(*python(source), said=b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
    lines = [" ".join(line[10:].split()) for line in ended.stderr.decode().splitlines()]
    for first, second in (
        ("← not a message: 'Starting…'", "! message is not JSON"),
        ("→ 1 tools/list", "! sent before initialization"),
        ("← 8 result", "! no request in flight has the id 8"),
    ):
        at = next(at for at, line in enumerate(lines) if line.startswith(first))
        assert lines[at + 1].startswith(second)


def test_messages_can_go_to_a_file_as_objects(tmp_path):
    there = tmp_path / "messages"
    there.write_text("before\n")
    said = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\njunk\n'
    ended = tapped("--json", "--full", "--to", str(there), *python(ECHO), said=said)
    assert ended.stderr == b"words\n"
    before, *lines = there.read_text().splitlines()
    assert before == "before"
    told = [json.loads(line) for line in lines]
    ping = next(each for each in told if each.get("method") == "ping")
    assert {key: ping[key] for key in ("from", "kind", "id", "bytes")} == {
        "from": "client", "kind": "request", "id": 1, "bytes": 40,
    }  # fmt: skip
    assert ping["message"]["method"] == "ping"
    assert any(each["kind"] == "junk" and each["message"] == "junk" and each["violations"] for each in told)


def test_secrets_are_neither_shown_nor_kept_but_passed(tmp_path):
    call = {"name": "x", "arguments": {"api_key": "tiger1", "note": "Bearer abcdefgh12345", "city": "Oslo"}}
    said = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode() + b"\n"
    env = ["--env", "SERVICE_TOKEN=panther"]
    ended = tapped(
        "--full", "--record", str(tmp_path / "t.jsonl"), *env, *python(ECHO), said=said + b"a panther\n"
    )
    assert ended.stdout == said + b"a panther\n"
    for text in (ended.stderr.decode(), (tmp_path / "t.jsonl").read_text()):
        assert "Oslo" in text
        assert not [secret for secret in ("tiger1", "abcdefgh12345", "panther") if secret in text]


def test_the_server_has_the_environment_of_the_host():
    source = "import os; print(os.environ['OF_HOST'], os.environ['OF_LINE'])"
    ended = tapped("--env", "OF_LINE=2", *python(source), env={**os.environ, "OF_HOST": "1"})
    assert ended.stdout == b"1 2\n"


# --------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("date", [DATES[0], DATES[-1]])
def test_a_recording_can_be_played_and_is_not_overwritten(tmp_path, date):
    there = tmp_path / "talk.jsonl"
    for name in ("talk.jsonl", "talk-1.jsonl"):
        target = Stdio(TAP[0], [*TAP[1:], "--record", str(there), "--", *HELLO], stderr="discard")
        told = asyncio.run(_talk(target, date))
        header, lines = read_tape(tmp_path / name)
        assert header.target.endswith("hello.py")
        assert {line.sender for line in lines} == {"client", "server"}
        assert asyncio.run(_talk(replay(tmp_path / name), date)) == told


# --------------------------------------------------------------------- how it fails


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--", "no-such-program"], 3, "could not start no-such-program: No such file or directory"),
        (["--listen", "127.0.0.1:1", "--", "cat"], 2, "--listen requires a URL"),
        (["--record", "/no/such/folder/x", "--", "cat"], 2, "could not write /no/such/folder/x"),
        (["--header", "a:b", "--", "cat"], 2, "--header requires a server with a URL"),
        ([], 2, "Missing argument 'TARGET'"),
    ],
)
def test_impossible_requests_are_reported(words, code, said):
    ended = tapped(*words)
    assert ended.returncode == code
    assert said in ended.stderr.decode()
    assert ended.stdout == b""
