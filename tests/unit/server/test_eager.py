"""Work that begins at once: in which task it runs, what it sees, and what becomes of both."""

import asyncio
import sys
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from toolpost import Client, Server
from toolpost.server.runtime import eager
from toolpost.server.runtime.eager import StartedTask, start_eagerly

MARK: ContextVar[str] = ContextVar("MARK", default="nothing")


def run(main: Any) -> None:
    """Run it to its end, which leaves nothing behind."""

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await main()
            await turns()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


async def turns(count: int = 3) -> None:
    """Let others run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def finished(going: Any) -> Any:
    """What work gives that waits."""
    assert isinstance(going, StartedTask)
    given: list[Any] = []

    async def rest() -> None:
        given.append(await going)

    await going.resume_with(rest())
    return given[0]


def test_work_that_does_not_wait_is_done_at_once():
    async def work() -> int:
        return 3

    async def main():
        assert [start_eagerly(work()), start_eagerly(work())] == [3, 3]

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
        going = start_eagerly(work())
        assert asyncio.current_task() is caller
        assert await finished(going) == "done"
        assert seen[0] is seen[1] is not caller

    run(main)


def test_what_work_raises_before_it_waits_is_raised():
    async def work() -> None:
        raise ValueError("no")

    async def main():
        with pytest.raises(ValueError, match="no"):
            start_eagerly(work())

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
        assert await finished(start_eagerly(limited())) == "late"
        assert await finished(start_eagerly(grouped())) == "failed"

    run(main)


def test_context_variables_stay_with_their_work():
    async def work(name: str, *, waits: bool) -> tuple[str, str]:
        before = MARK.get()
        MARK.set(name)
        if waits:
            await asyncio.sleep(0)
        return before, MARK.get()

    async def main():
        assert start_eagerly(work("one", waits=False)) == ("nothing", "one")
        assert start_eagerly(work("two", waits=False)) == ("nothing", "two")
        assert await finished(start_eagerly(work("three", waits=True))) == ("nothing", "three")
        assert MARK.get() == "nothing"

    run(main)


def test_work_may_start_other_work():
    async def inner() -> str:
        await asyncio.sleep(0)
        return "inner"

    async def outer() -> str:
        return "outer " + await finished(start_eagerly(inner()))

    async def main():
        assert await finished(start_eagerly(outer())) == "outer inner"

    run(main)


def test_work_that_cancels_itself_hears_of_it_where_it_waits():
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
        assert start_eagerly(work(waits=False)) == "did not wait"
        assert await finished(start_eagerly(work(waits=True))) == "went on"
        assert heard == ["cancelled"]

    run(main)


@pytest.mark.parametrize("later", [0, 2])
def test_work_can_be_cancelled_before_its_task_had_a_turn(later: int):
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def main():
        going = start_eagerly(work())
        assert isinstance(going, StartedTask)

        async def rest() -> None:
            await going

        task = going.resume_with(rest())
        await turns(later)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ends == ["cancelled"]

    run(main)


def test_a_task_that_is_closed_ends_its_work():
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")

    async def main():
        going: Any = start_eagerly(work())

        async def rest() -> None:
            await going

        task = going.resume_with(rest())
        await turns()
        task.get_coro().close()
        assert ends == ["ended"]
        task.cancel()
        with pytest.raises(RuntimeError, match="already awaited"):
            await task
        with pytest.raises(TypeError, match="for a task"):
            await task.get_coro()

    run(main)


# --------------------------------------------------------------------- a task that nobody has kept


async def which() -> int:
    """Tell the task by its number, and do not hold on to it: it lives until its turn."""
    return id(asyncio.current_task())


def test_work_of_one_turn_shares_a_task_that_nobody_has_kept():
    async def main():
        first: Any = start_eagerly(which())
        assert [start_eagerly(which()), start_eagerly(which())] == [first, first]
        assert len(asyncio.all_tasks()) == 2

    run(main)


def test_a_task_that_has_had_its_turn_serves_nothing_else():
    async def main():
        start_eagerly(which())
        await turns()
        assert eager._EagerCoroutine.spare is None
        assert await finished(start_eagerly(nap())) == "rested"

    run(main)


def test_a_task_that_anybody_has_kept_serves_nothing_else():
    kept: list[Any] = []

    async def keep() -> int:
        kept.append(asyncio.current_task())
        return id(kept[-1])

    async def main():
        first = start_eagerly(keep())
        assert start_eagerly(which()) != first

    run(main)


def test_a_task_that_was_cancelled_before_its_turn_serves_nothing_else():
    async def main():
        start_eagerly(which())
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        assert await finished(start_eagerly(nap())) == "rested"

    run(main)


@pytest.mark.parametrize("value", ["alice", {}], ids=["another value", "an equal one"])
def test_work_of_another_context_has_a_task_of_its_own(value: Any):
    """Also if what differs is equal: who changes it would change that of another one."""
    variable: ContextVar[Any] = ContextVar("variable")

    async def seen() -> tuple[int, Any]:
        return id(asyncio.current_task()), variable.get()

    async def main():
        mine: Any = {}
        for given in (value, mine):
            variable.set(given)
            first: Any = start_eagerly(seen())
            again: Any = start_eagerly(seen())
            assert first[0] == again[0]
            assert first[1] is again[1] is given
        assert first[0] != (await in_turn(value))[0]

    async def in_turn(given: Any) -> Any:
        variable.set(given)
        return start_eagerly(seen())

    run(main)


def test_what_work_sets_is_seen_by_no_other_work():
    async def change() -> int:
        MARK.set("changed")
        return id(asyncio.current_task())

    async def main():
        first = start_eagerly(change())
        assert start_eagerly(which()) != first
        assert MARK.get() == "nothing"

    run(main)


def test_work_that_lets_the_loop_run_harms_nobody():
    """As those do who run a loop within a loop, in notebooks."""

    async def again() -> str:
        task: Any = asyncio.current_task()
        with pytest.raises(StopIteration):
            task.get_coro().send(None)  # its turn
        return "done"

    async def main():
        before = asyncio.current_task()
        assert start_eagerly(again()) == "done"
        assert asyncio.current_task() is before
        assert eager._EagerCoroutine.spare is None
        assert await finished(start_eagerly(nap())) == "rested"

    run(main)


def test_a_loop_has_tasks_of_its_own():
    async def main():
        start_eagerly(which())
        spare = eager._EagerCoroutine.spare
        assert spare is not None
        tasks = await asyncio.to_thread(asyncio.run, other())
        assert id(spare.task) not in tasks

    async def other() -> list[Any]:
        return [start_eagerly(which()), start_eagerly(which())]

    run(main)


def test_where_nobody_counts_who_holds_on_each_has_a_task_of_its_own(monkeypatch):
    monkeypatch.setattr(eager, "_CAN_REUSE_TASKS", False)

    async def main():
        numbers = [start_eagerly(which()) for _ in range(3)]
        assert len(set(numbers)) == 3

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
def test_a_function_that_takes_back_its_cancellation_harms_nobody(count: int):
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
    """Whoever cancels a task that is done does nothing, so a function may leave such a timer behind."""
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
