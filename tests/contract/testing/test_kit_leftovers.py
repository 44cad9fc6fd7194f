"""Resources that stay open are found, with and without a loop; those that end soon are not reported."""

import asyncio
import os
import socket
import subprocess
import threading

import pytest

import leak_check
from calculator import calculator
from toolpost import Client
from toolpost.testing import in_process, no_leaks

FOUND_SOCKET = r"leaked resources:\ndescriptor \d+, socket:\["


def test_a_conversation_leaves_nothing():
    async def main():
        for target in (calculator(), in_process(calculator()), in_process(calculator(), "sse")):
            async with no_leaks(), Client(target) as mcp:
                await mcp.call_tool("add", {"a": 1, "b": 2})

    with no_leaks():
        asyncio.run(main())


def test_a_descriptor_is_found():
    held: list[socket.socket] = []
    with pytest.raises(AssertionError, match=FOUND_SOCKET), no_leaks(timeout=0):
        held.append(socket.socket())
    held[0].close()


def test_a_thread_is_found():
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="mine")
    with pytest.raises(AssertionError, match=r"thread <Thread\(mine"), no_leaks(timeout=0):
        thread.start()
    over.set()
    thread.join()


def test_a_process_is_found():
    held: list[subprocess.Popen[bytes]] = []
    with pytest.raises(AssertionError, match=r"process \d+"), no_leaks(timeout=0):
        held.append(subprocess.Popen(["sleep", "60"]))
    held[0].kill()
    held[0].wait()


def test_a_task_is_found_when_its_loop_ends():
    async def main():
        asyncio.create_task(asyncio.sleep(60), name="sleeper")  # noqa: RUF006 - that it is forgotten is the point
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="task <Task pending name='sleeper'"), no_leaks():
        asyncio.run(main())
    leak_check.cut_off.clear()


def test_a_task_is_found_while_its_loop_runs():
    async def main():
        held: list[asyncio.Task[None]] = []
        with pytest.raises(AssertionError, match="task <Task pending name='sleeper'"):
            async with no_leaks(timeout=0):
                held.append(asyncio.create_task(asyncio.sleep(60), name="sleeper"))
        held[0].cancel()
        async with no_leaks():
            held.append(asyncio.create_task(asyncio.sleep(0.01)))
            await asyncio.to_thread(int)  # its thread belongs to the loop

    asyncio.run(main())


def test_resources_that_end_soon_are_awaited():
    with no_leaks():
        process = subprocess.Popen(["sleep", "0.1"])
        threading.Thread(target=process.wait).start()


def opens_and_fails(held: list[int]) -> None:
    held.append(os.dup(1))
    raise ZeroDivisionError


def test_a_failed_test_is_not_checked():
    held: list[int] = []
    with pytest.raises(ZeroDivisionError), no_leaks():
        opens_and_fails(held)
    os.close(held[0])


def test_where_a_loop_runs_it_has_to_go_on():
    async def main():
        with pytest.raises(RuntimeError, match="use `async with no_leaks"), no_leaks():
            pass

    asyncio.run(main())
