"""TARGET: URLs, commands, files, modules, and names from an mcp.json."""

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

import exit_codes
from command_line import SHOP, toolpost


def test_a_name_from_an_mcp_json_is_reached(tmp_path):
    _, python, path = SHOP
    (tmp_path / "own.json").write_text(json.dumps({"servers": {"shop": {"command": python, "args": [path]}}}))
    said = toolpost("ping", "--config", "own.json", "shop", cwd=tmp_path)
    assert said.out.startswith("shop: ")


def test_a_python_file_is_reached(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom toolpost import Server\nserver = Server('mine')\n"
        "@server.tool\ndef env(name: str) -> str:\n    return os.environ.get(name, 'not set')\n"
    )
    said = toolpost("call", "--env", "TOKEN=x", "mine.py", "env", "--name", "TOKEN", cwd=tmp_path)
    assert (said.code, said.out) == (exit_codes.OK, "x\n")
    said = toolpost(
        "call", "--env", "TOKEN", "mine.py:server", "env", "--name", "TOKEN", cwd=tmp_path, TOKEN="y"
    )
    assert said.out == "y\n"
    said = toolpost("call", "mine.py", "env", "--name", "TOKEN", cwd=tmp_path, TOKEN="secret")
    assert said.out == "not set\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--header", "X", "http://h/"], "NAME:VALUE"),
        (["--env", "SURELY_NOT_SET", "x"], "SURELY_NOT_SET is not set in your environment"),
        (["--revision", "20", "x"], "'20' is not one of 2024-11-05"),
        (["--timeout", "-1", "x"], "-1"),
        (["--config", "nowhere.json", "x"], "nowhere.json"),
        ([], "Missing argument 'TARGET'"),
    ],
)
def test_options_that_cannot_be_meant_are_usage_errors(words, problem, tmp_path):
    said = toolpost("ping", *words, cwd=tmp_path)
    assert said.code == exit_codes.USAGE
    assert problem in said.err


class Closed(BaseHTTPRequestHandler):
    """A server that rejects every client."""

    def do_POST(self) -> None:
        """Refuse."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
        """Log nothing."""


@pytest.fixture
def closed() -> Iterator[str]:
    """The URL of a server that rejects every client."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Closed) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()
        thread.join()


def test_a_server_that_wants_a_login_has_an_exit_code_of_its_own(closed):
    said = toolpost("ping", closed)
    assert said.code == exit_codes.REFUSED
    assert "Hint: " in said.err
    assert toolpost("ping", "--header", "Authorization: Bearer x", closed).code == exit_codes.REFUSED


def test_a_server_that_is_not_there_cannot_be_reached():
    said = toolpost("list", "http://127.0.0.1:1/mcp")
    assert said.code == exit_codes.UNREACHABLE
    assert said.err.startswith("Error: http://127.0.0.1:1/mcp: ")


def test_a_server_that_does_not_answer_is_given_up():
    said = toolpost("ping", "--timeout", "0.3", "--", sys.executable, "-c", "import time; time.sleep(60)")
    assert said.code == exit_codes.UNREACHABLE


def test_the_last_words_of_a_server_that_dies_are_shown():
    said = toolpost("ping", "--", sys.executable, "-c", "import sys; sys.exit('no database')")
    assert said.code == exit_codes.UNREACHABLE
    assert "no database" in said.err
    assert "toolpost doctor" in said.err


@pytest.mark.parametrize("given", ["=x", "TOOLPOST_NOT_SET"])
def test_a_variable_has_a_name_and_a_value(given):
    told = toolpost("list", "--env", given, "--", sys.executable, "-c", "")
    assert (told.code, told.out) == (exit_codes.USAGE, "")
    assert "NAME=VALUE" in told.err or "TOOLPOST_NOT_SET=VALUE" in told.err
