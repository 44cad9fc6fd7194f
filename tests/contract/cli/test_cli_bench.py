import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from revision_dates import LATEST, LATEST_SESSION

SERVER = '''
import sys
from toolpost import Server, ToolError

server = Server("load")
calls = 0


@server.tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@server.tool
def moody() -> str:
    """Work once, then never again."""
    global calls
    calls += 1
    if calls > 1:
        raise ToolError("not today")
    return "once"


if __name__ == "__main__":
    server.run(http=sys.argv[1] if len(sys.argv) > 1 else None)
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    file = tmp_path_factory.mktemp("load") / "load.py"
    file.write_text(SERVER)
    return file


def bench(*words, code=0):
    """Return the output of `toolpost bench`."""
    done = subprocess.run(
        [sys.executable, "-m", "toolpost", "bench", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


@contextmanager
def serving(server):
    """The URL of the server, in a process of its own."""
    words = [sys.executable, str(server), "127.0.0.1:0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        try:
            yield line.partition(" at ")[2].split()[0]
        finally:
            process.terminate()


def test_a_server_is_pinged(server):
    out, err = bench(server, "--for", "0.3", "--concurrency", "3")
    assert f"0.3 s of ping on {server} ({LATEST.date}), 3 concurrent" in err
    assert "throughput" in out
    assert "p50" in out
    assert "█" in out
    assert "errors" not in out


@pytest.mark.parametrize("revision", [LATEST_SESSION.date, LATEST.date])
def test_a_tool_is_called_over_http_in_both_eras(server, revision):
    words = ["add", "--args", '{"a": 1, "b": 2}', "--for", "0.3", "--revision", revision, "--json"]
    with serving(server) as url:
        told = json.loads(bench(url, *words)[0])
    assert (told["what"], told["revision"], told["concurrency"]) == ("calls of add", revision, 8)
    assert told["answered"] > 0
    assert told["failed"] == 0
    assert told["milliseconds"]["p50"] <= told["milliseconds"]["p99"] <= told["milliseconds"]["max"]
    assert sum(row["count"] for row in told["histogram"]) == told["answered"]


def test_a_rate_is_kept_to_and_lists_are_asked_for(server):
    words = ["--list", "--rate", "20", "--for", "0.5", "--json", "--", sys.executable, server]
    told = json.loads(bench(*words)[0])
    assert (told["what"], told["rate"]) == ("tools/list", 20)
    assert 0 < told["answered"] <= 10
    assert told["seconds"] >= 0.5


def test_errors_are_counted_by_kind(server):
    out, _ = bench(server, "moody", "--for", "0.2", "--json", code=1)
    told = json.loads(out)
    assert told["answered"] == 0
    assert told["errors"] == [{"kind": "ToolError", "count": told["failed"], "example": "not today"}]
    out, _ = bench(server, "moody", "--for", "0.2", code=1)
    assert "ToolError: not today" in out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing"], 1, "nothing"),
        (["add", "--args", "{"], 2, "--args: not a JSON object"),
        (["add", "--args", "[]"], 2, "--args: not a JSON object"),
        (["--args", "{}"], 2, "--args requires a tool"),
        (["add", "--list"], 2, "--list and TOOL cannot be combined"),
        (["--for", "0"], 2, "x>0"),
    ],
)
def test_invalid_options_are_reported_before_anything_is_measured(server, words, code, told):
    out, err = bench(server, *words, code=code)
    assert told in err
    assert out == ""


def test_an_interrupt_prints_the_results_so_far(server):
    words = [sys.executable, "-m", "toolpost", "bench", str(server), "--for", "600", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "600 s of ping" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err == ""
    assert json.loads(out)["failed"] == 0


def test_a_terminal_without_unicode_gets_ascii(server):
    done = subprocess.run(
        [sys.executable, "-m", "toolpost", "bench", str(server), "--for", "0.1"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"#" in done.stdout
    assert done.stdout.isascii()
