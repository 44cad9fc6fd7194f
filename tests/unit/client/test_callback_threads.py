"""The threads of a client's callbacks: bounded, separate, and without effect on others."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial

import pytest

from raw_server import Asked, RawServer, run
from toolpost.client.client import Client
from toolpost.protocol.methods import DATES
from toolpost.threads import ThreadPool
from toolpost.types import CallToolResult, LogParams, Result


@pytest.fixture
def crew():
    """Two threads that end with the test."""
    crew = ThreadPool(2)
    yield crew
    crew.close()


@pytest.fixture(autouse=True)
def no_thread_left():
    """Check that no toolpost thread outlives its test."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("toolpost"):
            thread.join(10)
            assert not thread.is_alive(), thread.name


def test_an_async_callback_runs_on_the_loop_and_a_sync_one_does_not(crew):
    async def on_loop(value: int) -> tuple[int, int]:
        return value, threading.get_ident()

    def in_thread(value: int) -> tuple[int, int]:
        return value, threading.get_ident()

    class Callable:
        async def __call__(self, value: int) -> tuple[int, int]:
            return await on_loop(value)

    async def main() -> None:
        here = threading.get_ident()
        assert await crew.call_function(on_loop, 1) == (1, here)
        assert await crew.call_function(partial(on_loop, 1)) == (1, here)
        assert await crew.call_function(lambda value: on_loop(value), 1) == (1, here)  # noqa: PLW0108 - it is the case
        assert await crew.call_function(Callable(), 1) == (1, here)
        value, there = await crew.call_function(in_thread, 1)
        assert value == 1
        assert there != here

    run(main())


@pytest.mark.parametrize("error", [LookupError("oops"), SystemExit(3), KeyboardInterrupt()])
def test_exceptions_belong_to_the_caller(crew, error):
    def fail() -> None:
        raise error

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(type(error)):
                await crew.call_function(fail)
        assert await crew.call_function(int) == 0

    run(main())


def test_threads_are_reused_daemons_and_see_the_context(crew):
    variable: ContextVar[int] = ContextVar("variable")

    def look() -> tuple[int, bool, str]:
        thread = threading.current_thread()
        return variable.get(), thread.daemon, thread.name

    async def main() -> None:
        variable.set(7)
        assert {await crew.call_function(look) for _ in range(5)} == {(7, True, "toolpost-1")}

    run(main())


def test_callbacks_wait_for_a_thread_unless_they_are_abandoned(crew):
    gate = threading.Event()
    begun = threading.Semaphore(0)
    done: list[str] = []

    def block() -> None:
        begun.release()
        assert gate.wait(10)

    async def main() -> None:
        busy = [asyncio.create_task(crew.call_function(block)) for _ in range(2)]
        await asyncio.sleep(0)
        assert all(begun.acquire(timeout=10) for _ in busy)
        given_up = asyncio.create_task(crew.call_function(done.append, "given up"))
        patient = asyncio.create_task(crew.call_function(done.append, "patient"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        assert done == []
        gate.set()
        await patient
        await asyncio.gather(*busy)
        assert done == ["patient"]

    run(main())


def test_a_callback_may_outlive_the_loop(crew):
    gate, begun, ended = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert gate.wait(10)
        ended.set()

    async def main() -> None:
        task = asyncio.create_task(crew.call_function(block))
        await asyncio.sleep(0)
        assert begun.wait(10)
        task.cancel()

    asyncio.run(main())
    gate.set()
    assert ended.wait(10)
    assert asyncio.run(crew.call_function(int)) == 0


def test_a_crew_that_was_closed_gets_new_threads():
    crew = ThreadPool()
    for _ in range(2):
        old = asyncio.run(crew.call_function(threading.current_thread))
        crew.close()
        old.join(10)
        assert not old.is_alive()


def test_a_crew_without_references_leaves_no_threads():
    thread = asyncio.run(ThreadPool().call_function(threading.current_thread))
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_callbacks_do_not_use_threads_that_others_may_block():
    async def call(asked: Asked) -> Result:
        await asked.log("info", "hello")
        return CallToolResult(content=[])

    async def ask(asked: Asked) -> Result:
        await asked.ask("roots/list")
        return CallToolResult(content=[])

    gate = threading.Event()

    def block() -> list[str]:
        assert gate.wait(20)
        return []

    async def main() -> None:
        heard = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_log(_: LogParams) -> None:
            loop.call_soon_threadsafe(heard.set)

        loop.set_default_executor(ThreadPoolExecutor(1))
        in_the_way = asyncio.create_task(asyncio.to_thread(block))  # threads of the program
        one = Client(RawServer({"tools/call": ask}), revision=DATES[3], on_roots=block)
        two = Client(RawServer({"tools/call": call}), revision=DATES[3], on_log=on_log)
        async with asyncio.timeout(10), one, two:
            asks = [asyncio.create_task(one.call_tool("t")) for _ in range(50)]
            await two.call_tool("t")
            try:
                await heard.wait()
            finally:
                gate.set()
                await asyncio.gather(in_the_way, *asks)

    run(main())
