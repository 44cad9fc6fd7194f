"""The detector of calls that block an event loop: it reports them and fails the test."""

import asyncio
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import blocking
from toolpost import Client, File, Server

pytest_plugins = ["pytester"]


def wait():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.001)
        process.kill()


def communicate():
    subprocess.Popen(["cat"], stdin=subprocess.PIPE).communicate()


def waitpid():
    with subprocess.Popen(["true"]) as process:
        os.waitpid(process.pid, 0)
        process.returncode = 0


def join():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    thread.join(timeout=0.001)
    over.set()


def result():
    over = threading.Event()
    with ThreadPoolExecutor() as pool:
        with suppress(TimeoutError):
            pool.submit(over.wait).result(timeout=0.001)
        over.set()


def get():
    with suppress(queue.Empty):
        queue.Queue().get(timeout=0.001)


def on_socket(method, *arguments):
    def call():
        left, right = socket.socketpair()
        with left, right:
            right.send(b"x")
            left.settimeout(0.001)
            with suppress(OSError):
                getattr(left, method)(*arguments)

    return call


@pytest.mark.parametrize(
    ("block", "function"),
    [
        (lambda: time.sleep(0), "sleep"),
        (lambda: socket.getaddrinfo("127.0.0.1", 1), "getaddrinfo"),
        (on_socket("accept"), "socket.accept"),
        (on_socket("connect", b""), "socket.connect"),
        (on_socket("recv", 1), "socket.recv"),
        (on_socket("sendall", b""), "socket.sendall"),
        (communicate, "Popen.communicate"),
        (wait, "Popen.wait"),
        (waitpid, "waitpid"),
        (join, "Thread.join"),
        (result, "Future.result"),
        (get, "Queue.get"),
        (File(__file__).read, "open"),
    ],
)
def test_a_call_that_waits_is_seen_in_a_loop_and_only_there(block, function):
    block()
    assert blocking.seen == []

    async def main():
        block()

    asyncio.run(main())
    noted = [note.split(" at ")[0] for note in blocking.seen]
    blocking.seen.clear()
    assert noted == [function]


def test_code_that_does_not_block_is_accepted(tmp_path):
    async def main():
        await asyncio.sleep(0)
        await asyncio.to_thread(time.sleep, 0)
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            left.sendall(b"x")
        done = threading.Thread(target=int)
        done.start()
        await asyncio.to_thread(done.join)
        done.join()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await process.wait()
        Path(__file__).read_bytes()  # noqa: ASYNC240 - is tested

    asyncio.run(main())


def rest() -> str:
    time.sleep(0)
    return "slept"


async def doze() -> str:
    return rest()


@pytest.mark.parametrize(("tool", "blocks"), [(rest, False), (doze, True)])
def test_a_tool_that_sleeps_blocks_the_loop_only_if_it_is_async(tool, blocks):
    server = Server("naps")
    server.tool(tool)

    async def main():
        async with Client(server) as client:
            assert (await client.call_tool(tool.__name__)).text == "slept"

    asyncio.run(main())
    noted = [*blocking.seen]
    blocking.seen.clear()
    assert bool(noted) is blocks


def test_a_test_that_blocks_the_loop_fails(pytester, monkeypatch):
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeconftest('pytest_plugins = ["blocking"]')
    pytester.makepyfile(
        "import asyncio, time\n"
        "async def main(): time.sleep(0)\n"
        "def test_blocks(): asyncio.run(main())\n"
        "def test_is_not_blamed_for_another(): pass\n"
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["E *the event loop was blocked by sleep at *test_a_test_that_blocks*.py:2"])
