"""Eager tasks: the task in which work runs, its context, and its end."""

import asyncio
import sys
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from toolpost import Client, Server
from toolpost.server.runtime.eager_tasks import resume, start_task

MARK: ContextVar[str] = ContextVar("MARK", default="nothing")


def run(main: Any) -> None:
    """Run a coroutine, and check that it leaves no task behind."""

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await main()
            await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


async def turns(count: int = 3) -> None:
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def finished(going: Any) -> Any:
    """Return the result of work that became a task."""
    assert isinstance(going, asyncio.Task)
    return await going


def test_work_that_does_not_wait_is_done_at_once():
    async def work() -> int:
        return 3

    async def main():
        assert [start_task(work()), start_task(work())] == [3, 3]

    run(main)


def test_work_runs_in_one_task_from_its_beginning():
    seen: list[Any] = []

    async def work() -> str:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        return "done"

    async def main():
        caller = asyncio.current_task()
        going = start_task(work())
        assert asyncio.current_task() is caller
        assert await finished(going) == "done"
        assert seen[0] is seen[1] is not caller

    run(main)


def test_an_exception_before_the_first_wait_is_raised():
    async def work() -> None:
        raise ValueError("no")

    async def main():
        with pytest.raises(ValueError, match="no"):
            start_task(work())

    run(main)


def test_time_limits_and_groups_end_the_work_and_nothing_else():
    async def limited() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        raise AssertionError("it should be late")

    async def grouped() -> str:
        async def fails() -> None:
            raise ValueError("no")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                await asyncio.Event().wait()
        except ExceptionGroup:
            return "failed"
        raise AssertionError("it should fail")

    async def main():
        assert await finished(start_task(limited())) == "late"
        assert await finished(start_task(grouped())) == "failed"

    run(main)


def test_context_variables_stay_with_their_work():
    async def work(name: str, *, waits: bool) -> tuple[str, str]:
        before = MARK.get()
        MARK.set(name)
        if waits:
            await asyncio.sleep(0)
        return before, MARK.get()

    async def main():
        assert start_task(work("one", waits=False)) == ("nothing", "one")
        assert start_task(work("two", waits=False)) == ("nothing", "two")
        assert await finished(start_task(work("three", waits=True))) == ("nothing", "three")
        assert MARK.get() == "nothing"

    run(main)


def test_work_may_start_other_work():
    async def inner() -> str:
        await asyncio.sleep(0)
        return "inner"

    async def outer() -> str:
        return "outer " + await finished(start_task(inner()))

    async def main():
        assert await finished(start_task(outer())) == "outer inner"

    run(main)


def test_work_that_cancels_itself_ends_at_its_await():
    heard: list[str] = []

    async def work(*, waits: bool) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if not waits:
            return "did not wait"
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append("cancelled")
            task.uncancel()
        return "went on"

    async def main():
        assert start_task(work(waits=False)) == "did not wait"
        assert await finished(start_task(work(waits=True))) == "went on"
        assert heard == ["cancelled"]

    run(main)


def test_work_that_ends_at_once_leaves_a_task_that_is_done():
    """A function may keep its task, and wait for its end."""
    tasks: list[asyncio.Task[Any]] = []

    def keep_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)

    async def returns() -> int:
        keep_task()
        return 1

    async def raises() -> None:
        keep_task()
        raise ValueError("no")

    async def main():
        start_task(returns())
        with pytest.raises(ValueError, match="no"):
            start_task(raises())
        assert [task.done() for task in tasks] == [False, False]
        await turns()
        assert [task.done() for task in tasks] == [True, True]
        assert len(set(map(id, tasks))) == 2

    run(main)


@pytest.mark.parametrize(
    "wait", [lambda: asyncio.Event().wait(), lambda: asyncio.sleep(0)], ids=["future", "turn"]
)
@pytest.mark.parametrize("later", [0, 1])
def test_work_can_be_cancelled_before_its_task_had_a_turn(later: int, wait: Any):
    ends: list[str] = []

    async def work() -> None:
        try:
            await wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def main():
        task = start_task(work())
        assert isinstance(task, asyncio.Task)
        await turns(later)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert ends == ["cancelled"]

    run(main)


@pytest.mark.parametrize("later", [0, 1])
def test_a_cancellation_reaches_the_innermost_await(later: int):
    """As with every task: the awaited object is cancelled first, and may suppress the cancellation."""

    async def main():
        awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await awaited

        task = start_task(work())
        assert isinstance(task, asyncio.Task)
        await turns(later)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert awaited.cancelled()

    run(main)


@pytest.mark.parametrize("later", [0, 1])
def test_what_is_done_before_the_first_turn_is_not_waited_for(later: int):
    async def main():
        awaited: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def work() -> str:
            return await awaited

        task = start_task(work())
        await turns(later)
        awaited.set_result("there")
        assert await finished(task) == "there"

    run(main)


def test_a_task_that_is_closed_ends_its_work():
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")

    async def main():
        task: Any = start_task(work())
        await turns()
        task.get_coro().close()
        assert ends == ["ended"]
        task.cancel()
        with pytest.raises(RuntimeError, match="already awaited"):
            await task

    run(main)


def test_it_works_without_a_task_around_it():
    """As in a callback of the loop."""

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def main():
        loop = asyncio.get_running_loop()
        started: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(lambda: started.set_result(start_task(work())))
        assert await finished(await started) == "done"

    run(main)


@pytest.mark.parametrize("fails", [False, True])
def test_a_coroutine_that_was_started_goes_on_in_the_task_of_its_caller(fails: bool):
    async def work() -> str:
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(0.001 if fails else 10):
                await asyncio.sleep(60 if fails else 0)
        except TimeoutError:
            return "late"
        assert asyncio.current_task() is task
        return "done"

    async def main():
        going = work()
        assert await resume(going, going.send(None)) == ("late" if fails else "done")

    run(main)


# --------------------------------------------------------------------- tools


async def nap(seconds: float = 0.01) -> str:
    await asyncio.sleep(seconds)
    return "rested"


def serving(**tools: Any) -> Server:
    server = Server("s")
    for name, fn in {"nap": nap, **tools}.items():
        server.tool(name=name)(fn)
    return server


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_function_that_takes_back_its_cancellation_is_harmless(count: int):
    async def swallow() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        task.uncancel()
        return "ok"

    async def main():
        async with Client(serving(swallow=swallow)) as client:
            await client.call_tool("swallow")
            await client.call_tool("swallow")
            await turns(count)
            assert (await client.call_tool("nap", timeout=2)).text == "rested"

    run(main)


def test_a_timer_of_an_earlier_call_cancels_no_later_one():
    """Cancelling a finished task has no effect, so a function may leave such a timer behind."""
    fired: list[bool] = []

    async def watched() -> str:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.02, lambda: fired.append(task.cancel()))
        return "ok"

    async def main():
        async with Client(serving(watched=watched)) as client:
            await client.call_tool("watched")
            assert (await client.call_tool("nap", {"seconds": 0.05}, timeout=2)).text == "rested"
            assert fired == [False]

    run(main)


def test_what_a_function_keeps_by_its_task_is_its_own():
    kept: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
    done: list[Any] = []

    async def first() -> bool:
        task = asyncio.current_task()
        assert task is not None
        known = task in kept
        kept[task] = "a secret"
        task.add_done_callback(done.append)
        return known

    async def second() -> bool:
        task: Any = asyncio.current_task()
        known = hasattr(task, "tenant")
        task.tenant = "a secret"
        return known

    async def main():
        async with Client(serving(first=first, second=second)) as client:
            assert [(await client.call_tool("first")).data for _ in range(3)] == [False] * 3
            assert [(await client.call_tool("second")).data for _ in range(3)] == [False] * 3
            await turns()
            assert len(done) == 3

    run(main)


def test_the_name_that_a_function_gives_its_task_stays():
    async def named() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("mine")
        await asyncio.sleep(0)
        return task.get_name()

    async def main():
        async with Client(serving(named=named)) as client:
            for _ in range(3):
                assert (await client.call_tool("named")).text == "mine"

    run(main)


if sys.version_info >= (3, 12):

    def test_a_failed_group_of_eager_tasks_cancels_no_later_call():
        async def group() -> str:
            async def bad() -> None:
                raise ValueError

            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(bad())
            except ExceptionGroup:
                return "caught"
            raise AssertionError("it should fail")

        async def main():
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            async with Client(serving(group=group)) as client:
                for _ in range(2):
                    await client.call_tool("group")
                    assert (await client.call_tool("nap", timeout=2)).text == "rested"

        run(main)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_tools_see_one_task_and_leak_nothing(revision: str):
    seen: list[bool] = []

    async def mark(name: str) -> str:
        first = asyncio.current_task()
        before = MARK.get()
        MARK.set(name)
        if name != "quick":
            await asyncio.sleep(0)
        seen.append(asyncio.current_task() is first)
        return before

    async def main():
        async with Client(serving(mark=mark), revision=revision) as client:
            said = [(await client.call_tool("mark", {"name": name})).text for name in ["quick", "slow"] * 3]
            assert said == ["nothing"] * 6

    run(main)
    assert seen == [True] * 6
