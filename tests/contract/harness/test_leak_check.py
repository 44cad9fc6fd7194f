"""The leak check: what it detects, what it waits for, and that it fails the test."""

import asyncio
import os
import socket
import subprocess
import tempfile
import threading
import weakref
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import leak_check
from leak_check import Holdings

pytest_plugins = ["pytester"]


@contextmanager
def child(runner):
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                pass  # it has begun, but has no name yet
            yield f"process {process.pid} sleep 60"
        finally:
            process.kill()


@contextmanager
def zombie(runner):
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield f"process {process.pid} (true) Z"


@contextmanager
def thread(runner):
    over = threading.Event()
    idle = threading.Thread(target=over.wait, name="idle")
    idle.start()
    yield f"thread <Thread(idle, started {idle.ident})>"
    over.set()


@contextmanager
def descriptor(runner):
    with socket.socket() as one:
        yield f"descriptor {one.fileno()}, socket:[{os.fstat(one.fileno()).st_ino}]"


@contextmanager
def file(runner):
    with tempfile.TemporaryDirectory() as name:
        yield f"temporary file {Path(name).name}"


@contextmanager
def task(runner):
    sleeper = runner.get_loop().create_task(asyncio.sleep(60), name="sleeper")
    yield f"task {sleeper!r}"
    sleeper.cancel()
    runner.run(asyncio.wait({sleeper}))


@pytest.fixture
def runner():
    with asyncio.Runner() as runner, leak_check.lasting(runner):
        yield runner


@pytest.mark.parametrize("leave", [child, zombie, thread, descriptor, file, task])
def test_leaks_are_found_and_named(leave, runner, monkeypatch):
    before = Holdings()
    with leave(runner) as name:
        assert leak_check.describe_leaks(Holdings() - before) == [name]
        with monkeypatch.context() as patch:
            patch.setattr(leak_check, "PATIENCE", 0)
            assert any(before.left().values())
    assert leak_check.describe_leaks(before.left()) == []


@pytest.mark.parametrize("leave", [child, zombie, thread, descriptor, file, task])
def test_deliberately_held_resources_are_not_leaks(leave, runner):
    before = Holdings()
    with ExitStack() as stack:
        with before.on_purpose():
            stack.enter_context(leave(runner))
        assert leak_check.describe_leaks(Holdings() - before) == []


def test_a_descriptor_is_found_that_took_the_number_of_another():
    with socket.socket() as old, socket.socket() as new:
        before = Holdings()
        os.dup2(new.fileno(), old.fileno())
        assert (Holdings() - before)["descriptors"] == {(str(old.fileno()), os.fstat(new.fileno()).st_ino)}


def test_a_child_is_waited_for_that_a_thread_reaps(runner):
    before = Holdings()
    process = subprocess.Popen(["sleep", "0.1"])
    threading.Thread(target=process.wait).start()
    assert leak_check.describe_leaks(before.left()) == []


def test_a_lasting_loop_runs_while_it_is_waited_for(runner):
    before = Holdings()
    runner.get_loop().create_task(asyncio.sleep(0.01))
    assert leak_check.describe_leaks(before.left()) == []


def test_garbage_is_not_left():
    class Knot:
        def __init__(self) -> None:
            self.itself = self

    before = Holdings()
    number = os.dup(1)
    weakref.finalize(Knot(), os.close, number)
    assert leak_check.describe_leaks(before.left()) == []


def run():
    async def main():
        waiter = asyncio.create_task(asyncio.Event().wait(), name="waiter")
        await asyncio.sleep(0)
        return waiter

    assert asyncio.run(main()).cancelled()


def close():
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it would complain about the task that dies with it
    waiter = loop.create_task(asyncio.Event().wait(), name="waiter")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert not waiter.done()


def in_thread():
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@pytest.mark.parametrize("cut_off", [run, close, in_thread])
def test_a_closed_loop_reports_its_unfinished_tasks(cut_off):
    cut_off()
    (line,) = leak_check.cut_off
    leak_check.cut_off.clear()
    assert line.startswith("<Task pending name='waiter' coro=<Event.wait() running at ")


def test_a_finished_loop_reports_nothing():
    async def main():
        await asyncio.create_task(asyncio.sleep(0))

    asyncio.run(main())
    assert leak_check.cut_off == []


LEAKY = """
import asyncio, os, pytest, socket, subprocess, tempfile, threading

over = threading.Event()
held = []

async def main():
    asyncio.create_task(asyncio.sleep(60), name="sleeper")

def test_descriptor(): held.append(os.dup(1))
def test_child(): held.append(subprocess.Popen(["sleep", "60"]))
def test_thread(): threading.Thread(target=over.wait, name="idle").start()
def test_file(): os.close(tempfile.mkstemp(prefix="mine")[0])
def test_task(): asyncio.run(main())

def test_is_not_blamed_for_another(tmp_path):
    (tmp_path / "file").touch()

def test_that_fails():
    os.dup(1)
    raise RuntimeError("mine")

def test_end():
    over.set()
    with held[1] as child: child.kill()
"""

SHARING = """
import os, pytest

@pytest.fixture(scope="module")
def shared(): return os.dup(1)

def test_begins(shared): pass
def test_ends(shared): pass
"""


def test_a_test_or_a_module_that_leaves_something_fails(pytester, monkeypatch):
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeconftest('import leak_check\npytest_plugins = ["leak_check"]\nleak_check.PATIENCE = 0.1')
    pytester.makepyfile(test_leaky=LEAKY, test_sharing=SHARING)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=9, failed=1, errors=6)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_descriptor*",
            "leaked resources:",
            "descriptor [0-9]*, *",
            "*ERROR at teardown of test_child*",
            "leaked resources:",
            "process [0-9]* sleep 60",
            "*ERROR at teardown of test_thread*",
            "leaked resources:",
            "thread <Thread(idle, *",
            "*ERROR at teardown of test_file*",
            "leaked resources:",
            "temporary file mine*",
            "*ERROR at teardown of test_task*",
            "leaked resources:",
            "task <Task pending name='sleeper' coro=<sleep() *",
            "*ERROR at teardown of test_ends*",
            "leaked resources:",
            "descriptor [0-9]*, *",
        ]
    )
