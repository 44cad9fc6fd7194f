import json
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pexpect
import pytest

WEATHER = '''
import os
from toolpost import Server

server = Server("weather")


@server.tool
def forecast(city: str) -> str:
    """Tell the weather."""
    return os.environ.get("SKY", "sunshine")
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder that contains only a project with a server, which is the current folder."""
    project = tmp_path / "sky"
    project.mkdir()
    (project / "weather.py").write_text(WEATHER)
    monkeypatch.chdir(project)
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "COPILOT_HOME", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def install(*words, code=0):
    """Run `toolpost install`; return its output and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "toolpost", "install", *words],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert not done.stderr.startswith("Traceback")
    return done.stdout, done.stderr


def started(home, name="weather.py"):
    return ["-m", "toolpost", "run", str(home / "sky" / name)]


# --------------------------------------------------------------------- the command


def test_a_server_is_installed_once_and_starts_from_the_configuration(home):
    out, err = install("weather.py", "--for", "cursor", "--yes", "--env", "SKY=rain")
    file = home / ".cursor/mcp.json"
    assert "weather responds; tools: 1" in err
    assert f'+      "command": "{sys.executable}"' in out
    assert f"Written: {file}" in out
    written = file.read_bytes()
    entry = json.loads(written)["mcpServers"]["weather"]
    assert entry == {"command": sys.executable, "args": started(home), "env": {"SKY": "rain"}}

    out, _ = install("weather.py", "--for", "cursor", "--yes")
    assert out == f"weather is already installed: {file}\n"
    assert file.read_bytes() == written
    assert [path.name for path in file.parent.iterdir()] == ["mcp.json"]

    out, _ = install("weather.py", "--for", "cursor", "--name", "twice", "--no-check", "--yes")
    assert f"Backup: {file}.bak\n" in out
    assert Path(f"{file}.bak").read_bytes() == written

    words = ["call", "--config", str(file), "weather", "forecast", "--city", "Oslo"]
    done = subprocess.run(
        [sys.executable, "-m", "toolpost", *words], check=True, capture_output=True, cwd=home
    )
    assert b"rain" in done.stdout


def test_without_a_terminal_the_change_is_only_shown(home):
    out, err = install("weather.py", "--for", "claude-code", "--no-check", code=2)
    assert '+    "weather": {' in out
    assert "nothing was written" in err
    assert "--yes" in err
    assert not (home / ".claude.json").exists()


def test_json_output_reports_the_change(home):
    _, err = install("weather.py", "--for", "kiro", "--no-check", "--json", code=2)
    assert '"weather"' in json.loads(err)["error"]["diff"]
    out, _ = install("weather.py", "--for", "kiro", "--no-check", "--json", "--yes")
    told = json.loads(out)
    assert (told["status"], told["host"], told["backup"]) == ("written", "kiro", None)
    out, _ = install("weather.py", "--for", "kiro", "--remove", "--json", "--yes")
    told = json.loads(out)
    assert told["status"] == "removed"
    assert json.loads(Path(told["backup"]).read_text())["mcpServers"]["weather"]
    assert json.loads(Path(told["file"]).read_text()) == {"mcpServers": {}}
    out, _ = install("weather.py", "--for", "kiro", "--remove", "--json")
    assert json.loads(out)["status"] == "unchanged"


def test_a_user_at_a_terminal_is_asked(home):
    words = ["-m", "toolpost", "install", "weather.py", "--for", "zed", "--no-check"]
    file = home / ".config/zed/settings.json"
    for answer, code, written in (("n", 1, False), ("y", 0, True)):
        with pexpect.spawn(
            sys.executable, words, timeout=30, encoding="utf-8", dimensions=(40, 200)
        ) as terminal:
            terminal.expect(r"Change .*settings\.json\? \[y/N\]")
            assert "\x1b[32m+" in terminal.before  # what is new is green
            terminal.sendline(answer)
            terminal.expect(pexpect.EOF)
            terminal.wait()
            assert terminal.exitstatus == code
        assert file.exists() is written


def test_a_broken_server_is_not_installed(home):
    Path("broken.py").write_text("import nothing_of_that_name\n")
    _, err = install("broken.py", "--for", "cursor", "--yes", code=3)
    assert "nothing_of_that_name" in err
    assert "Nothing was written" in err
    assert "--no-check" in err
    assert not (home / ".cursor").exists()


def test_print_writes_nothing(home):
    out, err = install("weather.py", "--for", "vscode", "--scope", "project", "--print")
    assert json.loads(out) == {
        "servers": {"weather": {"type": "stdio", "command": sys.executable, "args": started(home)}}
    }
    assert ".vscode/mcp.json" in err
    out, _ = install("weather.py:server", "--for", "codex", "--print", "--name", "sky", "--env", "A=1")
    assert tomllib.loads(out) == {
        "mcp_servers": {
            "sky": {"command": sys.executable, "args": started(home, "weather.py:server"), "env": {"A": "1"}}
        }
    }
    out, _ = install("far.away:server", "--for", "lm-studio", "--print")
    assert json.loads(out)["mcpServers"]["away"]["args"][-1] == "far.away:server"
    assert [path.name for path in home.iterdir()] == ["sky"]


def test_a_generic_file_name_is_replaced_by_that_of_the_folder(home):
    Path("weather.py").rename("server.py")
    out, _ = install("server.py", "--for", "cursor", "--print")
    assert [*json.loads(out)["mcpServers"]] == ["sky"]


def test_a_url_is_installed(home):
    words = ("http://127.0.0.1:1/mcp", "--name", "far", "--yes")
    _, err = install(*words, "--for", "windsurf", code=3)
    assert "refused" in err
    install(*words, "--for", "windsurf", "--no-check")
    file = home / ".codeium/windsurf/mcp_config.json"
    assert json.loads(file.read_text()) == {"mcpServers": {"far": {"serverUrl": "http://127.0.0.1:1/mcp"}}}


class Closed(BaseHTTPRequestHandler):
    """Requires a login."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format, *args):  # noqa: A002 - the library's word
        pass


def test_a_login_is_left_to_the_host(home):
    with ThreadingHTTPServer(("127.0.0.1", 0), Closed) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/mcp"
        _, err = install("--http", url, "--name", "far", "--for", "gemini-cli", "--yes")
        server.shutdown()
        thread.join()
    assert "requires a login" in err
    assert json.loads((home / ".gemini/settings.json").read_text())["mcpServers"]["far"] == {"httpUrl": url}
