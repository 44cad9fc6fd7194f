"""Threads for functions that are not async."""

import asyncio
import functools
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from toolpost import Client, Context, File, Server, SyncContext
from toolpost.errors import InternalError
from toolpost.server.registry.media import Media
from toolpost.server.runtime.worker_threads import WorkerThreads
from toolpost.threads import STUCK_THREADS_FACTOR
from toolpost.types import EmbeddedResource

NAME: ContextVar[str] = ContextVar("NAME")


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("toolpost-")}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = ours()
    yield
    for thread in ours() - before:
        thread.join(10)
        assert not thread.is_alive()


def run(main) -> None:
    """Run a test with threads, and wait until they end."""

    async def whole() -> None:
        work = WorkerThreads(2)
        try:
            async with asyncio.timeout(30):  # a hanging test has failed
                await main(work)
        finally:
            work.close()

    asyncio.run(whole())


def test_a_call_runs_in_a_thread_and_sees_the_callers_context():
    async def main(work: WorkerThreads) -> None:
        NAME.set("caller")
        thread, name = await work.run_in_thread(lambda: (threading.current_thread(), NAME.get()))
        assert thread is not threading.current_thread()
        assert thread.daemon
        assert name == "caller"
        await work.run_in_thread(lambda: NAME.set("thread"))
        assert NAME.get() == "caller"

    run(main)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_of_a_call_is_raised_at_its_await(error):
    def fail() -> None:
        raise error

    async def main(work: WorkerThreads) -> None:
        with pytest.raises(type(error)) as caught:
            await work.run_in_thread(fail)
        assert caught.value is error
        assert await work.run_in_thread(lambda: "still here") == "still here"

    run(main)


def test_a_thread_starts_when_all_are_busy_and_is_reused():
    async def main(work: WorkerThreads) -> None:
        first = await work.run_in_thread(threading.current_thread)
        assert await work.run_in_thread(threading.current_thread) is first
        both = threading.Barrier(2)
        await asyncio.gather(work.run_in_thread(both.wait), work.run_in_thread(both.wait))
        assert await work.run_in_thread(threading.current_thread) in ours()

    run(main)


def test_calls_beyond_the_limit_wait_their_turn():
    async def main(work: WorkerThreads) -> None:
        gate = threading.Event()
        before = ours()
        stuck = [asyncio.ensure_future(work.run_in_thread(gate.wait)) for _ in range(2)]
        more = [asyncio.ensure_future(work.run_in_thread(lambda n=n: n)) for n in range(5)]
        await asyncio.sleep(0)
        assert len(ours() - before) == 2
        gate.set()
        assert await asyncio.gather(*stuck, *more) == [True, True, 0, 1, 2, 3, 4]
        assert len(ours() - before) == 2

    run(main)


@pytest.mark.requirement("CANC-4")
def test_a_call_that_is_abandoned_before_it_starts_never_runs():
    ran = []

    async def main(work: WorkerThreads) -> None:
        gate = threading.Event()
        stuck = [asyncio.ensure_future(work.run_in_thread(gate.wait)) for _ in range(2)]
        late = asyncio.ensure_future(work.run_in_thread(lambda: ran.append("late")))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        gate.set()
        await asyncio.gather(*stuck, work.run_in_thread(lambda: ran.append("last")))

    run(main)
    assert ran == ["last"]


def test_an_abandoned_call_is_harmless():
    async def main(work: WorkerThreads) -> None:
        begun, gate = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            loop.call_soon_threadsafe(begun.set)
            gate.wait()

        call = asyncio.ensure_future(work.run_in_thread(slow))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.set()
        assert await work.run_in_thread(lambda: "next") == "next"

    run(main)


class Stuck:
    """Calls that do not return before the gate opens."""

    def __init__(self, work: WorkerThreads) -> None:
        self.gate = threading.Event()
        self.threads: list[threading.Thread] = []
        self._work = work

    async def begin(self) -> asyncio.Task[None]:
        """Start a call that does not end."""
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            self.threads.append(threading.current_thread())
            loop.call_soon_threadsafe(begun.set)
            self.gate.wait()

        call = asyncio.ensure_future(self._work.run_in_thread(wait))
        await begun.wait()
        return call

    async def give_up(self, *calls: asyncio.Task[None]) -> None:
        """Abandon calls; a new one if none is given."""
        for call in calls or [await self.begin()]:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


@pytest.mark.requirement("CANC-4")
def test_abandoned_calls_that_never_return_do_not_delay_others():
    async def main(work: WorkerThreads) -> None:
        stuck = Stuck(work)
        try:
            for _ in range(5):
                await stuck.give_up()
            assert len(set(stuck.threads)) == 5
            assert await work.run_in_thread(lambda: "next") == "next"
        finally:
            stuck.gate.set()

    run(main)


def test_a_waiting_call_gets_the_place_of_an_abandoned_one():
    async def main(work: WorkerThreads) -> None:
        stuck = Stuck(work)
        try:
            calls = [await stuck.begin() for _ in range(2)]
            waits = asyncio.ensure_future(work.run_in_thread(lambda: "my turn"))
            await asyncio.sleep(0)
            assert not waits.done()
            await stuck.give_up(calls[0])
            assert await waits == "my turn"
            await stuck.give_up(calls[1])
        finally:
            stuck.gate.set()

    run(main)


def test_when_all_threads_are_stuck_calls_fail_at_once_until_one_returns():
    async def main(work: WorkerThreads) -> None:
        stuck = Stuck(work)
        try:
            for _ in range(2 * STUCK_THREADS_FACTOR - 1):
                await stuck.give_up()
            last = await stuck.begin()
            waits = [asyncio.ensure_future(work.run_in_thread(lambda: "never")) for _ in range(3)]
            await asyncio.sleep(0)
            await stuck.give_up(last)
            for call in (*waits, work.run_in_thread(lambda: "never")):
                with pytest.raises(InternalError, match="all 20 threads are blocked by abandoned calls"):
                    await call
        finally:
            stuck.gate.set()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await work.run_in_thread(lambda: "again") == "again"
                    break
                except InternalError:
                    await asyncio.sleep(0)

    run(main)


def test_a_returning_thread_takes_a_free_place_or_ends():
    async def main(work: WorkerThreads) -> None:
        stuck = Stuck(work)
        await stuck.give_up()
        stuck.gate.set()
        [back] = stuck.threads
        async with asyncio.timeout(10):  # it has a place: none was made instead
            while await work.run_in_thread(threading.current_thread) is not back:
                pass
        stuck = Stuck(work)
        for _ in range(3):
            await stuck.give_up()
        busy = Stuck(work)
        calls = [await busy.begin() for _ in range(2)]
        stuck.gate.set()
        async with asyncio.timeout(10):
            while any(thread.is_alive() for thread in stuck.threads):  # noqa: ASYNC110 - the end of a thread has no event
                await asyncio.sleep(0)
        busy.gate.set()
        await asyncio.gather(*calls)

    run(main)


def test_a_tool_that_never_returns_does_not_delay_other_tools():
    gate = threading.Event()
    server = Server("s", threads=2)

    @server.tool(timeout=0.01)
    def hangs() -> str:
        gate.wait()
        return ""

    @server.tool
    def quick() -> str:
        return "quick"

    async def main() -> None:
        async with asyncio.timeout(30), Client(server) as client:
            for _ in range(4):
                assert (await client.call_tool("hangs", raise_on_error=False)).is_error
            assert (await client.call_tool("quick")).text == "quick"

    try:
        asyncio.run(main())
    finally:
        gate.set()


def test_a_loop_may_end_before_its_threads():
    gate = threading.Event()
    began: list[threading.Thread] = []

    async def main(work: WorkerThreads) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            began.append(threading.current_thread())
            loop.call_soon_threadsafe(begun.set)
            gate.wait()

        call = asyncio.ensure_future(work.run_in_thread(slow))
        await begun.wait()
        call.cancel()

    run(main)
    assert [thread.is_alive() for thread in began] == [True]
    gate.set()
    began[0].join(10)
    assert not began[0].is_alive()


def test_calls_after_close_get_new_threads():
    async def main(work: WorkerThreads) -> None:
        first = await work.run_in_thread(threading.current_thread)
        work.close()
        assert await work.run_in_thread(threading.current_thread) is not first

    run(main)


def test_a_bound_function_runs_in_a_thread_or_on_the_loop():
    server = Server("s")
    here = threading.current_thread()

    @server.tool
    async def on_the_loop(ctx: Context) -> str:
        return f"{threading.current_thread() is here}, {type(ctx).__name__}"

    @server.tool
    def in_a_thread(ctx: SyncContext) -> str:
        return f"{threading.current_thread() is here}, {type(ctx).__name__}"

    async def main() -> None:
        async with Client(server) as client:
            assert (await client.call_tool("on_the_loop")).text == "True, Context"
            assert (await client.call_tool("in_a_thread")).text == "False, SyncContext"

    asyncio.run(main())


def test_a_returned_file_is_read_in_a_thread_on_every_call(tmp_path, monkeypatch):
    page = tmp_path / "page.txt"
    kept = File(page)
    server = Server("s")
    readers: list[threading.Thread] = []
    read = Media.read

    def seen(media: Media) -> bytes:
        readers.extend([threading.current_thread()] if media.path is not None else [])
        return read(media)

    monkeypatch.setattr(Media, "read", seen)

    @server.tool
    async def one() -> File:
        return kept

    @server.tool
    async def several() -> list[str | File]:
        return ["first", kept]

    @server.tool
    def blocking() -> list[str | File]:
        return [kept, File(b"bytes", mime_type="text/plain"), "last"]

    async def main() -> None:
        async with Client(server) as client:
            for tool, place in (("one", 0), ("several", 1), ("blocking", 0)):
                page.write_text(tool)
                block = (await client.call_tool(tool)).content[place]
                assert isinstance(block, EmbeddedResource)
                assert block.resource.text == tool

    asyncio.run(main())
    assert len(readers) == 3
    assert threading.main_thread() not in readers


def test_a_wrapper_may_hide_whether_a_function_is_async():
    server = Server("s")

    async def later(x: int) -> int:
        return x + 1

    def hides(x: int) -> Any:
        return later(x)

    @functools.wraps(later)
    def knows(x: int) -> int:
        return x + 2

    server.tool(hides)
    server.tool(name="knows")(knows)

    async def main() -> None:
        async with Client(server) as client:
            assert (await client.call_tool("hides", {"x": 1})).text == "2"
            assert (await client.call_tool("knows", {"x": 1})).text == "3"

    asyncio.run(main())
