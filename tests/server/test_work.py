"""Threads for functions that are not async."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from toolpost import Client, Context, File, Server, SyncContext
from toolpost.server.media import Media
from toolpost.server.work import Work
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
    """Run a test with threads, and let them end."""

    async def whole() -> None:
        work = Work(2)
        try:
            await main(work)
        finally:
            work.close()

    asyncio.run(whole())


def test_a_call_runs_in_a_thread_and_sees_the_callers_context():
    async def main(work: Work) -> None:
        NAME.set("caller")
        thread, name = await work.in_thread(lambda: (threading.current_thread(), NAME.get()))
        assert thread is not threading.current_thread()
        assert thread.daemon
        assert name == "caller"
        await work.in_thread(lambda: NAME.set("thread"))
        assert NAME.get() == "caller"

    run(main)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_a_call_raises_is_raised_where_it_is_awaited(error):
    def fail() -> None:
        raise error

    async def main(work: Work) -> None:
        with pytest.raises(type(error)) as caught:
            await work.in_thread(fail)
        assert caught.value is error
        assert await work.in_thread(lambda: "still here") == "still here"

    run(main)


def test_a_thread_is_made_when_all_are_busy_and_used_again():
    async def main(work: Work) -> None:
        first = await work.in_thread(threading.current_thread)
        assert await work.in_thread(threading.current_thread) is first
        both = threading.Barrier(2)
        await asyncio.gather(work.in_thread(both.wait), work.in_thread(both.wait))
        assert await work.in_thread(threading.current_thread) in ours()

    run(main)


def test_calls_beyond_the_limit_wait_their_turn():
    async def main(work: Work) -> None:
        gate = threading.Event()
        before = ours()
        stuck = [asyncio.ensure_future(work.in_thread(gate.wait)) for _ in range(2)]
        more = [asyncio.ensure_future(work.in_thread(lambda n=n: n)) for n in range(5)]
        await asyncio.sleep(0)
        assert len(ours() - before) == 2
        gate.set()
        assert await asyncio.gather(*stuck, *more) == [True, True, 0, 1, 2, 3, 4]
        assert len(ours() - before) == 2

    run(main)


@pytest.mark.requirement("CANC-4")
def test_a_call_that_is_given_up_before_its_turn_never_runs():
    ran = []

    async def main(work: Work) -> None:
        gate = threading.Event()
        stuck = [asyncio.ensure_future(work.in_thread(gate.wait)) for _ in range(2)]
        late = asyncio.ensure_future(work.in_thread(lambda: ran.append("late")))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        gate.set()
        await asyncio.gather(*stuck, work.in_thread(lambda: ran.append("last")))

    run(main)
    assert ran == ["last"]


def test_a_call_that_is_given_up_while_it_runs_hurts_nobody():
    async def main(work: Work) -> None:
        begun, gate = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            loop.call_soon_threadsafe(begun.set)
            gate.wait()

        call = asyncio.ensure_future(work.in_thread(slow))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.set()
        assert await work.in_thread(lambda: "next") == "next"

    run(main)


def test_a_loop_may_end_before_its_threads():
    gate = threading.Event()
    began: list[threading.Thread] = []

    async def main(work: Work) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            began.append(threading.current_thread())
            loop.call_soon_threadsafe(begun.set)
            gate.wait()

        call = asyncio.ensure_future(work.in_thread(slow))
        await begun.wait()
        call.cancel()

    run(main)
    assert [thread.is_alive() for thread in began] == [True]
    gate.set()
    began[0].join(10)
    assert not began[0].is_alive()


def test_after_the_end_new_calls_get_new_threads():
    async def main(work: Work) -> None:
        first = await work.in_thread(threading.current_thread)
        work.close()
        assert await work.in_thread(threading.current_thread) is not first

    run(main)


def test_a_bound_function_runs_where_it_belongs():
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


def test_a_file_that_a_function_returns_is_read_in_a_thread_and_each_time_anew(tmp_path, monkeypatch):
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
