"""Questions on a terminal: a child process has a real one, and a simulated user types."""

import json
import os
import pty
import re
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

ATTACH = """
import fcntl, sys, termios
if sys.argv[1]:
    fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)
"""
ASK = """
import json
from msgspec import convert, to_builtins
from toolpost.errors import LocalProtocolError
from toolpost.prompting import terminal
from toolpost.types import ElicitParams
try:
    result = to_builtins(terminal(convert(json.loads(sys.argv[2]), ElicitParams)))
except LocalProtocolError as error:
    result = str(error)
print(json.dumps(result))
"""


class Told(NamedTuple):
    """The output of a child process: its last line on stdout as JSON, and the whole screen."""

    result: Any
    screen: str


def played(
    typed: str,
    *arguments: str,
    program: str = ASK,
    controls: bool = True,
    stdin: str = "pipe",
    stderr: str = "tty",
) -> Told:
    """Run a program on a terminal, and type a line at each prompt."""
    ours, theirs = pty.openpty()
    lines = re.findall(r"[^\n\x04]*[\n\x04]", typed)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", ATTACH + program, str(theirs) if controls else "", *arguments],
            stdin=theirs if stdin == "tty" else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=theirs if stderr == "tty" else subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[theirs],  # as long as a process has it open, written data can be read
            env={**os.environ, "TERM": "xterm"},
        ) as child:
            os.close(theirs)
            theirs = -1
            shown = b""
            while chunk := _read(ours):
                shown += chunk
                if lines and shown.endswith((b"> ", b"] ")):
                    os.write(ours, lines.pop(0).encode())
            assert child.stdout is not None
            said = child.stdout.read()
        assert child.returncode == 0, shown.decode(errors="replace")
        return Told(json.loads(said.splitlines()[-1]), shown.decode().replace("\r\n", "\n"))
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux reports in this way that no process has it open any more
        return b""


def form(properties: Any, *, message: str = "Who are you?", required: list[str] | None = None) -> str:
    schema = {"type": "object", "properties": properties, "required": required or []}
    return json.dumps({"message": message, "requestedSchema": schema})


def url(address: str) -> str:
    return json.dumps({"message": "Please log in.", "mode": "url", "url": address})


FIELDS = {
    "name": {"type": "string", "title": "Your name", "description": "As in your passport", "minLength": 2},
    "age": {"type": "integer", "minimum": 18},
    "size": {"type": "number", "default": 1.5},
    "mail": {"type": "string", "format": "email"},
    "tea": {"type": "boolean"},
    "colour": {"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"], "default": "b"},
    "cakes": {"type": "array", "items": {"enum": ["plum", "pear"]}, "maxItems": 1},
    "other": {"type": "object"},
}


# --------------------------------------------------------------------- forms


@pytest.mark.requirement("ELIC-4", "ELIC-5", "ELIC-15", "ELIC-42")
def test_a_form_is_asked_field_by_field_and_invalid_values_are_asked_again():
    typed = [
        "",
        "A",
        "Ann",
        "x",
        "17",
        "18",
        "",
        "ann",
        "",
        "maybe",
        "y",
        "1",
        "1,2",
        "7",
        "2",
        '{"a":1}',
        "y",
    ]
    told = played("\n".join([*typed, ""]), form(FIELDS, required=["name", "age"]))
    assert told.result == {
        "action": "accept",
        "content": {
            "name": "Ann",
            "age": 18,
            "size": 1.5,
            "tea": True,
            "colour": "r",
            "cakes": ["pear"],
            "other": {"a": 1},
        },
    }
    for line in (
        "  | Who are you?",
        "Your name\n  | As in your passport",
        "This field is required.",
        "The value must have at least 2 characters.",
        "The value must be an integer.",
        "The value must be at least 18.",
        "size (optional)",
        "number [1.5]>",
        "The value must be an email address.",
        "The value must be y or n.",
        "  1) Red\n  2) Blue",
        "number [Blue]>",
        "The value must have at most 1 choices.",
        "The value must be one of 'plum', 'pear'.",
        "  4. mail: (skipped)",
        "  5. tea: yes",
        "  6. colour: Red",
        '  8. other: {"a":1}',
    ):
        assert line in told.screen, line


@pytest.mark.requirement("ELIC-5")
def test_values_can_be_changed_before_they_are_sent():
    fields = {
        "a": {"type": "string"},
        "b": {"type": "array", "items": {"enum": ["x", "y"]}, "default": ["x"]},
    }
    typed = "first\n0\n" + "what?\n9\n1\nsecond\n2\ny, x\n1\n\n" + "yes\n"
    told = played(typed, form(fields))
    assert told.result == {"action": "accept", "content": {"b": ["y", "x"]}}
    assert "  1. a: second\n" in told.screen
    assert "  1. a: (skipped)\n  2. b: y, x\n" in told.screen


@pytest.mark.requirement("ELIC-4")
@pytest.mark.parametrize(
    ("typed", "action"),
    [
        ("!decline\n", "decline"),
        ("!cancel\n", "cancel"),
        ("\x04", "cancel"),
        ("Ann\n!decline\n", "decline"),
        ("Ann\nn\n", "decline"),
        ("Ann\n!cancel\n", "cancel"),
        ("Ann\n\x04", "cancel"),
    ],
)
def test_the_user_may_say_no_at_any_time(typed, action):
    told = played(typed, form({"name": {"type": "string"}}))
    assert told.result == {"action": action}
    assert "!decline declines, !cancel or Ctrl-D cancels" in told.screen
    assert f"Answer: {action}." in told.screen


def test_a_form_without_fields_is_a_question_all_the_same():
    told = played("y\n", form({}))
    assert told.result == {"action": "accept", "content": {}}
    assert "The form has no fields." in told.screen
    assert played("n\n", json.dumps({"message": "?"})).result == {"action": "decline"}


def test_text_of_a_server_is_escaped_for_the_terminal():
    evil = "\x1b[2J\x1b]0;bank\x07\u202e\r\x9b1m\nYour answer: sent"
    fields = {
        f"f{evil}": {"type": "string", "enum": [evil], "title": evil, "description": evil, "default": evil}
    }
    told = played("\ny\n", form(fields, message=evil))
    assert told.result["action"] == "accept"
    ours = told.screen.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert not [char for char in ours if not char.isprintable() and char != "\n"]
    assert "  | \\x1b[2J\\x1b]0;bank\\x07\\u202e" in ours
    assert "\nYour answer: sent" not in ours


# --------------------------------------------------------------------- URLs

BROWSER = """
import sys
with open(sys.argv[1], "w") as file:
    file.write(sys.argv[2])
"""


def visited(typed: str, address: str, folder: Any, monkeypatch: Any) -> tuple[Told, str | None]:
    """Return the output, and the address that the browser received."""
    script, opened = folder / "browser.py", folder / "opened"
    script.write_text(BROWSER)
    monkeypatch.setenv("BROWSER", f"{sys.executable} {script} {opened} %s")
    told = played(typed, url(address))
    return told, opened.read_text() if opened.exists() else None


@pytest.mark.requirement("ELIC-6", "ELIC-37", "ELIC-38", "ELIC-39")
def test_a_url_is_shown_in_full_and_opened_when_the_user_says_so(tmp_path, monkeypatch):
    address = "https://login.example:8443/a/b?c=d&e=%20#f"
    told, opened = visited("what?\ny\n", address, tmp_path, monkeypatch)
    assert told.result == {"action": "accept"}
    assert opened == address
    assert f"Full address: {address}\n" in told.screen
    assert "\n    \x1b[1mlogin.example\x1b[0m\n" in told.screen
    assert "Careful" not in told.screen
    assert told.screen.index(address) < told.screen.index("Open it in your browser?")


@pytest.mark.requirement("ELIC-4", "ELIC-6", "ELIC-37")
@pytest.mark.parametrize(
    ("typed", "action"),
    [("n\n", "decline"), ("!decline\n", "decline"), ("!cancel\n", "cancel"), ("\x04", "cancel")],
)
def test_a_url_is_not_opened_without_consent(typed, action, tmp_path, monkeypatch):
    told, opened = visited(typed, "https://login.example/", tmp_path, monkeypatch)
    assert told.result == {"action": action}
    assert opened is None


@pytest.mark.requirement("ELIC-39")
@pytest.mark.parametrize(
    ("address", "warning"),
    [
        ("https://xn--pypal-4ve.example/", "the host name may imitate another one"),
        ("https://p\u0430ypal.example/", "xn--"),
        ("https://bank.example@evil.example/", "before the @ is not the host; the host is evil.example"),
        ("http://login.example/", "not encrypted"),
        ("https://" + "\u0430" * 70 + ".example/", "may imitate another"),
    ],
)
def test_an_odd_url_comes_with_a_warning(address, warning, tmp_path, monkeypatch):
    told, opened = visited("n\n", address, tmp_path, monkeypatch)
    assert f"Warning: {warning}" in told.screen or warning in told.screen.partition("Warning: ")[2]
    assert opened is None


@pytest.mark.parametrize(
    "address",
    [
        "",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://",
        "https://[x",
        "https://good.example\\@evil.example/",
        "https://a.example/\x1b[2J",
        "https://a.example/ b",
        "--version",
    ],
)
def test_a_url_that_is_not_a_web_page_is_not_opened(address, tmp_path, monkeypatch):
    told, opened = visited("y\n", address, tmp_path, monkeypatch)
    assert told.result == {"action": "decline"}
    assert "It was not opened" in told.screen
    assert opened is None
    assert "\x1b[2J" not in told.screen


def test_without_a_browser_the_user_opens_it(monkeypatch):
    monkeypatch.setenv("BROWSER", f"{sys.executable} -c 'raise SystemExit(1)' %s")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("DISPLAY", raising=False)
    told = played("y\n", url("http://localhost/"))
    assert told.result == {"action": "accept"}
    assert "Open the address yourself" in told.screen


# --------------------------------------------------------------------- where it is asked


@pytest.mark.parametrize(
    "where", [{}, {"stdin": "tty"}, {"controls": False, "stdin": "tty"}, {"stderr": "file"}]
)
def test_the_terminal_is_found_wherever_it_is(where):
    told = played("Ann\ny\n", form({"name": {"type": "string"}}), **where)
    assert told.result["content"] == {"name": "Ann"}
    assert "  1. name: Ann" in told.screen


def test_without_a_terminal_it_says_so():
    told = played("", form({}), controls=False, stderr="file")
    assert told.result.startswith("the server asks for user input, but there is no terminal")
    program = "sys.stdin.close()\n" + ASK
    assert "no terminal" in played("", form({}), program=program, controls=False, stderr="file").result


def test_a_plain_terminal_gets_no_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in played("n\n", url("https://login.example/")).screen


TWO = """
import json, threading
from toolpost.prompting import terminal
from toolpost.types import ElicitParams
schema = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
answers = []
def ask(name):
    answers.append(terminal(ElicitParams(message=name, requested_schema=schema)).content)
threads = [threading.Thread(target=ask, args=[name]) for name in ("left", "right")]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(answers))
"""


def test_two_concurrent_prompts_take_turns():
    told = played("1\n2\ny\n3\n4\ny\n", program=TWO)
    assert sorted(told.result, key=str) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


CLIENT = """
import asyncio, json
from toolpost import Client, Context, Server
from toolpost.prompting import terminal, requesting_server
server = Server("library\\x1b[2J")
@server.tool
async def borrow(ctx: Context) -> str:
    return str((await ctx.elicit("How many days?", int)).data)
async def main():
    async with Client(server, revision=sys.argv[2], on_elicitation=terminal) as client:
        return (await client.call_tool("borrow")).text
print(json.dumps([asyncio.run(main()), requesting_server()]))
"""


@pytest.mark.requirement("ELIC-3")
@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
def test_the_user_sees_which_server_asks(revision):
    told = played("7\ny\n", revision, program=CLIENT)
    assert told.result == ["7", None]
    assert "\x1b[1mServer (it calls itself 'library[2J')\x1b[0m asks:\n  | How many days?" in told.screen


@pytest.mark.requirement("ELIC-37")
def test_earlier_input_does_not_count_as_consent(tmp_path, monkeypatch):
    """A `y` that was typed earlier, for something else, opens nothing."""
    early = """
import os, threading
os.write(os.open("/dev/tty", os.O_WRONLY), b"ready] ")
os.read(os.open("/dev/tty", os.O_RDONLY), 1)  # the first of two letters; the second is typed ahead
"""
    told = played("xy\n" + "\x04", url("https://a.example/"), program=early + ASK)
    assert told.result == {"action": "cancel"}


def test_a_long_line_cannot_look_like_one_of_ours():
    message = "Hello" + " " * 200 + "The page is on this host:    evil.example"
    told = played("y\n", form({}, message=message))
    rows = [row for row in told.screen.splitlines() if "evil" in row or "leads" in row]
    assert rows
    assert all(row.startswith("  | ") for row in rows)
