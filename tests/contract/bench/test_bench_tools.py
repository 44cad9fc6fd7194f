"""The small tools of the bench: rejected arguments, output and exit codes."""

import os
import pstats
import subprocess
import sys
from cProfile import Profile
from pathlib import Path

import pytest

from bench import command, contenders, instructions, profile, publish
from bench.command import exit_code
from bench.micro import __main__ as micro
from bench.process import ROOT, Failed, environment

TOOLS = ("bench.instructions", "bench.micro", "bench.profile", "bench.publish")
PAGES = [ROOT / page for page in publish.PAGES]


def run(*words, stdout=subprocess.PIPE):
    """Run a tool as a user does."""
    command = [sys.executable, *words]
    return subprocess.run(
        command, check=False, text=True, cwd=ROOT, env=environment(), stdout=stdout, stderr=subprocess.PIPE
    )


def set_arguments(monkeypatch, *words):
    """Set the command line of a tool."""
    monkeypatch.setattr(sys, "argv", ["tool", *words])


def program(path, *lines):
    """A shell script that stands in for a program."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def gone(pid):
    """Return whether the process is gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# --------------------------------------------------------------------- what they receive


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_explains_itself_and_does_nothing(tool):
    before = [page.stat().st_mtime_ns for page in PAGES]
    ran = run("-m", tool, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"usage: python -m {tool}")
    assert [page.stat().st_mtime_ns for page in PAGES] == before


@pytest.mark.parametrize(
    ("tool", "words", "message"),
    [
        (
            instructions,
            ["nonsense"],
            "unknown: nonsense; available: stateless-constant, stateless, stateless-context",
        ),
        (
            micro,
            ["whole", "nonsense"],
            "no step has nonsense in its name; available: decode envelope, decode",
        ),
        (profile, ["nonsense"], "invalid choice: 'nonsense'"),
        (profile, ["--calls", "0"], "'0' is not a whole number of 1 or more"),
        (profile, ["--calls", "-3"], "'-3' is not a whole number of 1 or more"),
        (profile, ["--calls", "many"], "'many' is not a whole number of 1 or more"),
        (
            profile,
            ["stdio", "--running"],
            "a server that listens: stateless-constant, stateless, stateless-context",
        ),
        (publish, ["nonsense"], "unrecognized arguments: nonsense"),
    ],
)
def test_unknown_arguments_of_a_tool_are_rejected(tool, words, message, monkeypatch, capsys):
    set_arguments(monkeypatch, *words)
    with pytest.raises(SystemExit) as refused:
        tool.main()
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


# --------------------------------------------------------------------- how they end


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (Failed("it fell over"), 1, "bench: it fell over\n"),
    ],
)
def test_an_exit_is_reported_with_its_code_and_without_a_traceback(error, code, message, monkeypatch, capsys):
    def main():
        raise error

    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    assert exit_code(main) == code
    assert capsys.readouterr().err == message


def test_a_reader_that_leaves_is_not_a_failure():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = run("-m", "bench.micro", "bind", stdout=writing)
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_an_interrupt_ends_the_counting_and_both_of_its_processes(tmp_path):
    pids = tmp_path / "pids"
    # The first process that gets a message interrupts us, and would run for long.
    program(tmp_path / "valgrind", f"echo $$ >> {pids}", "read hello", "kill -INT $PPID", "exec sleep 600")
    ran = run("-c", COUNTING, str(tmp_path))
    assert (ran.returncode, ran.stderr) == (130, "")
    assert [pid for pid in pids.read_text().split() if not gone(int(pid))] == []


COUNTING = """
import os, sys
from bench import command, contenders, instructions
contenders.BARE = None
os.environ["PATH"] = sys.argv[1] + os.pathsep + os.environ["PATH"]
sys.argv[1:] = ["stdio"]
sys.exit(command.exit_code(instructions.main))
"""


def test_an_interrupt_ends_py_spy_and_the_server(tmp_path):
    os.mkfifo(tmp_path / "started")
    program(tmp_path / "py-spy", f"echo $$ > {tmp_path / 'started'}", "exec sleep 600")
    ran = run("-c", SPYING, str(tmp_path))
    assert (ran.returncode, ran.stderr) == (130, "")
    spying, server = map(int, (tmp_path / "pids").read_text().split())
    assert gone(spying)
    assert gone(server)


SPYING = """
import pathlib, signal, sys
from bench import command, profile
here = pathlib.Path(sys.argv[1])

class Loader:
    def run(self, port, pid, *_):
        (here / "pids").write_text((here / "started").read_text() + str(pid))
        signal.raise_signal(signal.SIGINT)

profile.Loader = Loader
profile.spy = lambda: str(here / "py-spy")
sys.argv[1:] = ["--running"]
sys.exit(command.exit_code(profile.main))
"""


# --------------------------------------------------------------------- publish


def test_missing_results_are_reported(monkeypatch):
    monkeypatch.setattr(publish, "HERE", ROOT / "bench" / "nowhere")
    set_arguments(monkeypatch)
    with pytest.raises(Failed, match=r"^bench/nowhere/results.md does not exist; `make bench` writes"):
        publish.main()


def test_a_mark_without_results_is_reported(monkeypatch):
    def nothing():
        raise KeyError("the results have nothing under 'Speed'")

    monkeypatch.setattr(publish, "publish", nothing)
    set_arguments(monkeypatch)
    with pytest.raises(Failed, match=r"^the results have nothing under 'Speed'$"):
        publish.main()


# --------------------------------------------------------------------- micro


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["whole"], ["whole connection", "whole application", "bare msgspec"]),
        (["decode_params", "json module"], ["decode params", "bare msgspec", "json module"]),
    ],
)
def test_chosen_steps_stand_beside_bare_msgspec(words, names, monkeypatch, capsys):
    set_arguments(monkeypatch, *words)
    monkeypatch.setattr(micro, "measure", lambda steps: {step.__name__: 3000.0 for step in steps})
    assert micro.main() == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in lines] == names
    assert all(line[20:38].split() == ["3,000", "1.00"] for line in lines)


# --------------------------------------------------------------------- instructions


def test_counting_describes_its_columns(monkeypatch, capsys):
    set_arguments(monkeypatch, "stateless", "session-context")
    monkeypatch.setattr(instructions.shutil, "which", lambda _: "valgrind")
    monkeypatch.setattr(instructions, "per_call", lambda _: 1100)
    monkeypatch.setattr(instructions, "read_record", lambda: ("0", {"stateless": 1000}))
    assert instructions.main() == 0
    about, empty, *lines = capsys.readouterr().out.splitlines()
    assert "about 20 seconds" in about
    assert not empty
    assert lines == [
        f"{'one call':49}  recorded →       now",
        f"{'ASGI, stateless, tool without context':49}     1,000 →     1,100  +10.0%",
        "ASGI, session, tool with context that awaits once         – →     1,100",
        "recorded with Python 0: not comparable",
    ]


def test_a_missing_environment_is_reported_before_counting(monkeypatch, capsys):
    set_arguments(monkeypatch)
    monkeypatch.setattr(instructions.shutil, "which", lambda _: "valgrind")
    monkeypatch.setattr(contenders, "BARE", "nowhere")
    with pytest.raises(Failed, match=r"`nowhere`, which does not exist; create it with `.* nowhere`$"):
        instructions.main()
    assert capsys.readouterr().out == ""


def test_both_runs_of_a_way_are_counted(tmp_path, monkeypatch):
    # As callgrind would, but that an instruction is a call: core_path.py has them as its last argument.
    program(tmp_path / "valgrind", 'for calls; do :; done; echo "Collected : $calls" >&2')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert instructions.count_instructions("stateless") == [(200, 200), (800, 800)]
    assert instructions.per_call("stateless") == 1


# --------------------------------------------------------------------- profile, inside


@pytest.mark.parametrize("way", ["stateless", "session-context", "stdio"])
def test_a_profile_is_of_the_requests_alone(way, monkeypatch, capsys):
    monkeypatch.setattr(contenders, "BARE", None)
    set_arguments(monkeypatch, way, "--calls", "1000", "--order", "cumulative")
    assert profile.main() == 0
    head, _, about, *lines = capsys.readouterr().out.splitlines()
    # Imports would be a thousand calls per request more.
    assert 20 < float(head.partition(": ")[2].split()[0]) < 500
    assert head.endswith(" µs per request")
    assert "Excluded: the start, the first 200 requests, the bench (" in about
    rows = [line.split(maxsplit=3) for line in lines[4:]]
    assert 20 < len(rows) <= profile.SHOWN
    functions = {function: float(calls) for calls, _, _, function in rows}
    assert not any("bench/" in name or "import" in name or str(ROOT) in name for name in functions)
    assert 1.0 in {calls for name, calls in functions.items() if name.startswith("toolpost/server/")}
    shares = [float(share.rstrip("%")) for _, _, share, _ in rows]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] <= 100


def test_few_requests_have_counts_and_no_time(monkeypatch, capsys):
    set_arguments(monkeypatch, "--calls", "1")
    assert profile.main() == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith("function calls per request, times from 1000 requests on")
    assert "    1.00        –           –  toolpost/" in out


def test_c_calls_of_the_bench_count_as_its_own(tmp_path):
    space = {}
    for name, file in (("bench", contenders.TARGETS / "one.py"), ("other", Path("/lib/python3.11/two.py"))):
        exec(compile(f"def {name}(): len(''); len('')", str(file), "exec"), space)
    seen = Profile()
    seen.runcall(space["bench"])
    seen.runcall(space["other"])
    seen.dump_stats(tmp_path / "seen")
    spent = profile.spent(pstats.Stats(str(tmp_path / "seen")))
    assert spent[profile.BENCH].calls == 3
    assert spent["two.py:1 other"].calls == 1
    assert spent["<built-in method builtins.len>"].calls == 2


def test_a_failed_process_is_reported():
    with pytest.raises(Failed, match=r"^nonsense ended with 1: KeyError: 'nonsense'$"):
        profile.profiled("nonsense", 1)


# --------------------------------------------------------------------- profile, outside


def test_py_spy_is_looked_for_beside_the_interpreter_first(tmp_path, monkeypatch):
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        folder.mkdir()
        program(folder / "py-spy")
    monkeypatch.setattr(sys, "executable", str(ours / "python"))
    monkeypatch.setenv("PATH", str(others))
    assert profile.spy() == str(ours / "py-spy")
    (ours / "py-spy").unlink()
    assert profile.spy() == str(others / "py-spy")


@pytest.mark.parametrize(
    ("python", "shown"),
    [(ROOT / ".venv/bin/python", ".venv/bin/python"), (Path("/opt/bin/python"), "/opt/bin/python")],
)
def test_without_py_spy_the_advice_is_for_the_interpreter_that_runs(python, shown, monkeypatch, capsys):
    set_arguments(monkeypatch, "--running")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(profile, "spy", lambda: None)
    assert profile.main() == 2
    assert capsys.readouterr().out == f"py-spy is not installed: {shown} -m pip install py-spy\n"


def test_threads_that_wait_are_left_out():
    stacks = """\
_bootstrap (threading.py:1002);wait (threading.py:331) 300
run (threading.py:982);Condition.wait (threading.py:331) 300
run (run.py:1);select (selectors.py:468) 300
_bootstrap (threading.py:1002);_worker (concurrent/futures/thread.py:81) 300
run (run.py:1);send (a b.py:2) 3
run (run.py:1);read (toolpost/mould.py:3) 1"""
    assert profile.leaves(stacks) == {"send (a b.py:2)": 3, "read (toolpost/mould.py:3)": 1}


def test_the_samples_of_py_spy_are_printed_without_its_messages(tmp_path, monkeypatch, capfd):
    write = "printf 'run (a.py:1);wait (threading.py:331) 9\\nrun (a.py:1);send (b.py:2) 9\\n' > $9"
    monkeypatch.setattr(profile, "spy", lambda: program(tmp_path / "py-spy", write, 'echo "Wrote $9"'))
    monkeypatch.setattr(profile, "SECONDS", -0.9)  # and so the load lasts for an instant
    set_arguments(monkeypatch, "--running")
    assert profile.main() == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[2:] == ["of the time  function, and the line in it", "     100.0%  send (b.py:2)"]
    assert err == ""


def test_missing_permissions_of_py_spy_are_reported(tmp_path, monkeypatch):
    refuse = program(tmp_path / "py-spy", "echo 'Permission Denied' >&2", "exit 1")
    monkeypatch.setattr(profile, "spy", lambda: refuse)
    monkeypatch.setattr(profile, "SECONDS", -0.9)
    set_arguments(monkeypatch, "--running")
    with pytest.raises(Failed, match=r"^py-spy found nothing and ended with 1: Permission Denied$"):
        profile.main()
