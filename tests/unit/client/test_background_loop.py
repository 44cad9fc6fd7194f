"""Background loops: a thread with a loop that ends only on close, or at the exit of the interpreter."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

import leak_check
from toolpost.client import sync as module
from toolpost.client.sync import CoroutineFactory, LoopThread, _close_all


async def nothing() -> None:
    pass


async def forever() -> None:
    await asyncio.Event().wait()


def begin(home: LoopThread, work: CoroutineFactory[Any]) -> "Future[Any]":
    future = home.submit(work)
    assert future is not None
    return future


@pytest.fixture
def home():
    """A loop thread that ends with the test."""
    home = LoopThread(nothing)
    yield home
    home.close()
    assert not home.thread.is_alive()
    assert home not in module._LOOP_THREADS


@pytest.mark.parametrize("error", [LookupError, SystemExit, KeyboardInterrupt])
def test_exceptions_of_work_are_raised_in_the_waiting_caller(home, error):
    async def fail() -> None:
        raise error

    other = begin(home, forever)
    for _ in range(2):
        with pytest.raises(error):
            begin(home, fail).result(10)
    assert not other.done()


def raises() -> None:
    raise SystemExit


@pytest.mark.parametrize("end", [raises, lambda: asyncio.get_running_loop().stop()])
def test_nothing_that_happens_on_the_loop_ends_it(home, end):
    async def work() -> int:
        asyncio.get_running_loop().call_soon(end)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return 1

    assert begin(home, work).result(10) == 1
    assert begin(home, work).result(10) == 1


def test_a_waiter_fails_even_if_the_loop_has_ended(home):
    async def cancel_all() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await forever()

    waiting = begin(home, forever)
    with pytest.raises(CancelledError):
        begin(home, cancel_all).result(10)
    with pytest.raises(CancelledError):
        waiting.result(10)
    home.thread.join(10)
    assert home.submit(forever) is None


def test_work_that_refuses_to_end_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(module, "CANCEL_TIMEOUT", 0.01)
    home = LoopThread(nothing)
    begun = threading.Event()
    stop = threading.Event()

    async def stubborn() -> None:
        begun.set()
        while not stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)

    future = begin(home, stubborn)
    assert begun.wait(10)
    home.close()
    with pytest.raises(CancelledError):
        future.result(10)
    assert "did not stop" in caplog.text
    stop.set()
    leak_check.cut_off.clear()


def test_a_home_that_is_being_left_takes_no_more():
    gate = threading.Event()
    begun = threading.Event()

    async def parting() -> None:
        begun.set()
        while not gate.is_set():  # noqa: ASYNC110 - it is set by another thread
            await asyncio.sleep(0)

    home = LoopThread(parting)
    leaving = threading.Thread(target=home.close)
    leaving.start()
    assert begun.wait(10)
    assert home.submit(nothing) is None
    gate.set()
    leaving.join(10)
    home.close()
    assert not home.thread.is_alive()


# --------------------------------------------------------------------- the exit of the interpreter


def test_the_exit_leaves_all_homes_and_waits_for_none_for_ever(monkeypatch):
    monkeypatch.setattr(module, "EXIT_TIMEOUT", 0.01)
    cancelled = threading.Event()

    async def stuck() -> None:
        try:
            await forever()
        finally:
            cancelled.set()

    homes = [LoopThread(nothing), LoopThread(stuck)]
    _close_all()
    for home in homes:
        home.thread.join(10)
        assert not home.thread.is_alive()
    assert cancelled.is_set()


STUBBORN = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), file=open(sys.argv[1], "w"))
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {}}
        result["serverInfo"] = {"name": "s", "version": "1"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
while True:
    time.sleep(1)  # stays, whatever becomes of stdin
"""

FORGETFUL = """
import sys
from toolpost import Stdio, SyncClient
stdio = Stdio(sys.executable, ["-c", sys.argv[1], sys.argv[2]], stdin_wait=0.1, term_wait=0.1)
SyncClient(stdio, revision="2025-11-25").connect()
"""


def test_a_server_that_ignores_everything_does_not_outlive_a_forgetful_script(tmp_path):
    file = tmp_path / "pid"
    subprocess.run([sys.executable, "-c", FORGETFUL, STUBBORN, file], check=True, timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


STUCK = """
import threading, time
from toolpost import Context, Server, SyncClient
from toolpost.errors import ChannelClosed
server = Server("s")
asked = threading.Event()

@server.tool
async def ask(context: Context) -> str:
    await context.sample("?")
    return ""

def stuck(_):
    asked.set()
    time.sleep(3600)

def call():
    try:
        client.call_tool("ask", timeout=0.2)
    except ChannelClosed:
        print("left")

with SyncClient(server, revision="2025-11-25", on_sampling=stuck) as client:
    caller = threading.Thread(target=call)
    caller.start()
    asked.wait()
caller.join()
"""


def test_a_callback_that_never_returns_does_not_keep_a_script_from_ending():
    done = subprocess.run([sys.executable, "-c", STUCK], check=True, timeout=60, capture_output=True)
    assert done.stdout.split() == [b"left"]


def test_work_whose_future_is_cancelled_while_it_runs_is_cancelled(home):
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await forever()
        finally:
            cancelled.set()

    future = begin(home, work)
    assert begun.wait(10)
    assert future.cancel()
    assert cancelled.wait(10)
