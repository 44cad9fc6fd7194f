"""TARGET: URLs, commands, files, modules, and names from an mcp.json."""

import json
import sys
from pathlib import Path

import pytest

from toolpost import Http, Stdio
from toolpost.cli import errors
from toolpost.cli.errors import CommandError
from toolpost.cli.output import CommandOutput
from toolpost.cli.target import TargetConnector, TargetSpec, parse_target

SERVERS = {
    "notes": {"command": "notes-server", "args": ["--fast"], "env": {"A": "1", "B": "2"}},
    "far": {"url": "https://example.com/mcp", "headers": {"X-Team": "blue", "X-Key": "k"}},
    "broken": {"args": []},
    "socket": {"url": "ws://example.com"},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a server and an mcp.json."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weather.py").touch()
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": SERVERS}))
    return tmp_path


RUN = (sys.executable, "-m", "toolpost", "run")


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["http://h/mcp"], TargetSpec("url", ("http://h/mcp",), "http://h/mcp")),
        (["HTTPS://h/mcp?key=secret"], TargetSpec("url", ("HTTPS://h/mcp?key=secret",), "HTTPS://h/mcp")),
        (["--", "npx", "-y", "@a/b"], TargetSpec("command", ("npx", "-y", "@a/b"), "npx b")),
        (["--", "/x/run", "--key=s"], TargetSpec("command", ("/x/run", "--key=s"), "run")),
        (["weather.py"], TargetSpec("file", (*RUN, "weather.py"), "weather.py")),
        (["./weather.py:app"], TargetSpec("file", (*RUN, "./weather.py:app"), "./weather.py:app")),
        (["pack.mod:app"], TargetSpec("file", (*RUN, "pack.mod:app"), "pack.mod:app")),
        (["notes"], TargetSpec("name", ("notes", "mcp.json"), "notes")),
    ],
)
def test_words_name_a_server(home, words, target):
    assert parse_target(words) == target


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (["--"], "no command after --", "npx"),
        (["nowhere.py"], "file not found: nowhere.py", None),
        (["nowhere/weather.py:app"], "file not found: nowhere/weather.py", None),
        (["note"], "unknown server 'note' in mcp.json", "did you mean 'notes'?"),
        (["zzz"], "unknown server 'zzz' in mcp.json", "available: notes, far, broken, socket"),
        (["localhost:8000/mcp"], "unknown server", "http://localhost:8000/mcp"),
        (["servers.json"], "unknown server", "--config servers.json NAME"),
    ],
)
def test_words_that_name_no_server_are_a_usage_error(home, words, problem, hint):
    with pytest.raises(CommandError, match=problem.replace("(", r"\(")) as raised:
        parse_target(words)
    assert raised.value.exit_code == errors.USAGE
    assert (hint is None) == (raised.value.hint is None)
    assert (hint or "") in (raised.value.hint or "")


def test_without_an_mcp_json_the_error_explains_targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match=r"no mcp\.json in this folder") as raised:
        parse_target(["notes"])
    assert raised.value.hint is not None
    assert "http://" in raised.value.hint


def test_names_are_looked_for_where_programs_keep_them(home):
    (home / ".vscode").mkdir()
    (home / ".vscode" / "mcp.json").write_text('{"servers": {"code": {"command": "x"}}}')
    assert parse_target(["code"]).words == ("code", ".vscode/mcp.json")
    (home / "own.json").write_text('{"servers": {"notes": {"command": "y"}}}')
    assert parse_target(["notes"], "own.json").words == ("notes", "own.json")
    with pytest.raises(CommandError, match=r"'code' in own\.json"):
        parse_target(["code"], "own.json")


def reach(*words: str, **options: object) -> TargetConnector:
    return TargetConnector(parse_target(words), CommandOutput(), **options)  # type: ignore[arg-type] - a table of them


def test_options_extend_the_entry_of_a_file(home):
    stdio = reach("notes", env={"B": "3", "C": "4"}).resolve_target()
    assert isinstance(stdio, Stdio)
    assert (stdio.command, stdio.args, stdio.env) == (
        "notes-server",
        ("--fast",),
        {"A": "1", "B": "3", "C": "4"},
    )
    http = reach("far", headers={"x-team": "red"}).resolve_target()
    assert isinstance(http, Http)
    assert dict(http.headers or {}) == {"x-team": "red", "x-key": "k"}


@pytest.mark.parametrize(
    ("words", "options", "problem"),
    [
        (["notes"], {"headers": {"a": "b"}}, "--header requires a server with a URL"),
        (["far"], {"env": {"a": "b"}}, "--env requires a server that toolpost starts"),
        (["broken"], {}, "mcp.json, server 'broken'"),
        (["socket"], {}, "mcp.json, server 'socket': the URL"),
        (["http://user:secret@h/"], {}, "must not contain a user"),
    ],
)
def test_mismatches_are_reported(home, words, options, problem):
    with pytest.raises(CommandError, match=problem):
        reach(*words, **options).resolve_target()
