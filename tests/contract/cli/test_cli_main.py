"""Behaviour of all commands: help, errors, exit codes, Ctrl-C, closed pipes, completion."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

import exit_codes
from command_line import PATIENCE, SHOP, TALKER, TOOLPOST, environment, on_terminal, toolpost
from toolpost import __version__


def test_the_version_is_shown():
    assert toolpost("--version") == (exit_codes.OK, f"toolpost {__version__}\n", "")


def test_a_command_that_is_none_is_a_usage_error():
    said = toolpost("lst", "x")
    assert said.code == exit_codes.USAGE
    assert "No such command 'lst'" in said.err


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["ping", "nowhere.py"], exit_codes.USAGE, "file not found: nowhere.py"),
        (["ping", "--revision", "1999"], exit_codes.USAGE, "1999"),
        (["ping", "--", "no-such-program"], exit_codes.UNREACHABLE, "no-such-program"),
    ],
)
def test_errors_are_json_for_programs(words, code, part, tmp_path):
    said = toolpost(words[0], "--json", *words[1:], cwd=tmp_path)
    assert (said.code, said.out) == (code, "")
    told = json.loads(said.err)["error"]
    assert told["exit"] == code
    assert part in told["message"]


def test_an_error_says_what_to_do():
    said = toolpost("ping", "--", "no-such-program")
    assert said.err.startswith("Error: no-such-program: program 'no-such-program' not found\nHint: ")
    assert "\x1b" not in said.err


def test_ctrl_c_ends_a_command_quietly():
    with on_terminal("call", "wait", *SHOP) as child:
        child.expect("warning: waiting")
        child.sendintr()
        child.expect(pexpect.EOF)
        assert "Traceback" not in child.before
    assert child.exitstatus == exit_codes.INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_server_too(number):
    command = [*TOOLPOST, "listen", "--json", *TALKER, "stay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        news = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -number
    assert b"Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(news[1]["data"], 0)


def test_a_signal_that_is_ignored_stays_so():
    script = 'trap "" HUP; exec "$0" "$@"'
    command = ["sh", "-c", script, *TOOLPOST, "listen", "--json", *TALKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", [("--help",), ("call", "--json", "hello", "--name", "you", *SHOP)])
def test_a_stream_that_is_closed_is_none_that_is_missed(closed, words):
    script = f'exec "$0" "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", script, *TOOLPOST, *words], capture_output=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (exit_codes.OK, b"")
    assert bool(done.stdout) == (">&-" not in closed.split())


@pytest.mark.parametrize("words", [("--help",), ("list", *SHOP), ("list", "--json", *SHOP)])
def test_a_full_disk_is_reported(words, tmp_path):
    script = f'ulimit -f 0; exec "$0" "$@" > {tmp_path}/out'
    done = subprocess.run(
        ["sh", "-c", script, *TOOLPOST, *words], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == exit_codes.FAILED
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_ends_a_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen([*TOOLPOST, "list", *SHOP], stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (exit_codes.CLOSED_PIPE, b"")


def test_colours_and_boxes_are_for_terminals():
    with on_terminal("list", "--tools", *SHOP) as child:
        child.expect(pexpect.EOF)
        assert "╭" in child.before
        assert "\x1b[" in child.before
    with on_terminal("list", "--tools", *SHOP, NO_COLOR="1") as child:
        child.expect(pexpect.EOF)
        assert "╭" not in child.before
        assert "\x1b" not in child.before
    assert toolpost("list", "--tools", *SHOP).out.startswith("NAME")


def test_a_terminal_obeys_nothing_that_a_server_says():
    with on_terminal("call", "blink", *SHOP) as child:
        child.expect(pexpect.EOF)
        assert r"\u001b[5mblink\u001b[0m" in child.before
    assert toolpost("call", "blink", *SHOP).out == "\x1b[5mblink\x1b[0m\n"


def test_the_stderr_of_a_server_is_shown_on_request():
    assert toolpost("ping", *TALKER).err == ""
    assert toolpost("ping", "-v", *TALKER).err == "python talker.py | the talker starts\n"


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("li", ["list", "listen"]),
        ("call s", ["shop", "shop.py", "servers/"]),
        ("call servers/", ["servers/other.py"]),
        ("call --revision 2025-0", ["2025-03-26", "2025-06-18"]),
        ("call shop.py p", ["picture", "pay"]),
        ("call shop sh", ["ship"]),
        ("call shop.py order --s", ["--size", "--save"]),
        ("call shop.py order --size l", ["large"]),
        ("call nowhere x", []),
        ("call shop.py nothing --", []),
        ("prompt shop.py ", ["praise"]),
        ("prompt shop.py praise --d", ["--dish"]),
        ("complete shop.py p", ["prompt"]),
    ],
)
def test_shells_complete(typed, proposed, tmp_path):
    (tmp_path / "shop.py").symlink_to(SHOP[-1])
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "other.py").touch()
    (tmp_path / "servers" / "other.txt").touch()
    entry = {"command": sys.executable, "args": [SHOP[-1]]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": entry, "other": entry}}))
    (tmp_path / ".mcp.json").write_text("{")
    words = f"toolpost {typed}"
    done = subprocess.run(
        TOOLPOST,
        env=environment(
            _TOOLPOST_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1)
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines() if line] == proposed


def test_the_script_for_a_shell_is_printed():
    done = subprocess.run(
        TOOLPOST,
        env=environment(_TOOLPOST_COMPLETE="zsh_source"),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert "#compdef toolpost" in done.stdout


def test_a_program_in_the_path_of_the_user_is_not_needed(tmp_path: Path):
    assert toolpost("ping", *SHOP, cwd=tmp_path, PATH="").code == exit_codes.OK
