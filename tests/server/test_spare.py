"""The task in reserve: what runs in it, what it sees, and what is left of it."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from toolpost import Client, Context, Server
from toolpost.server.spare import AT_WORK, IN_RESERVE, Going, Spare

MARK: ContextVar[str] = ContextVar("MARK", default="nothing")


async def turns(count: int = 3) -> None:
    """Let others run."""
    for _ in range(count):
        await asyncio.sleep(0)


def held(test: Any) -> Any:
    """A test with a spare that has its task."""

    def run() -> None:
        async def main() -> None:
            spare = Spare()
            spare.hold()
            await turns()
            try:
                await test(spare)
            finally:
                spare.let_go()
                await turns()
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def finished(going: Any) -> Any:
    """What work gives that waits."""
    assert isinstance(going, Going)
    given: list[Any] = []

    async def rest() -> None:
        given.append(await going)

    await going.go_on(rest())
    return given[0]


@held
async def test_work_that_does_not_wait_needs_no_task(spare: Spare) -> None:
    before = asyncio.all_tasks()

    async def work() -> int:
        return 3

    assert [spare.start(work()), spare.start(work())] == [3, 3]
    assert asyncio.all_tasks() == before


@held
async def test_work_that_waits_goes_on_in_the_task_it_saw(spare: Spare) -> None:
    seen: list[Any] = []

    async def work() -> str:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        return "done"

    caller = asyncio.current_task()
    going = spare.start(work())
    assert asyncio.current_task() is caller
    assert await finished(going) == "done"
    assert seen[0] is seen[1] is not caller
    assert seen[0].get_name() == AT_WORK


@held
async def test_what_work_raises_before_it_waits_is_raised(spare: Spare) -> None:
    async def work() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            spare.start(work())
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == [
        IN_RESERVE
    ]


@held
async def test_time_limits_and_groups_end_the_work_and_nothing_else(spare: Spare) -> None:
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

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                await asyncio.Event().wait()
        return "failed"

    assert await finished(spare.start(limited())) == "late"
    await turns()
    assert await finished(spare.start(grouped())) == "failed"


@held
async def test_context_variables_stay_with_their_work(spare: Spare) -> None:
    async def work(name: str, *, waits: bool) -> tuple[str, str]:
        before = MARK.get()
        MARK.set(name)
        if waits:
            await asyncio.sleep(0)
        return before, MARK.get()

    assert spare.start(work("one", waits=False)) == ("nothing", "one")
    assert spare.start(work("two", waits=False)) == ("nothing", "two")
    assert await finished(spare.start(work("three", waits=True))) == ("nothing", "three")
    assert MARK.get() == "nothing"


@held
async def test_work_may_start_other_work(spare: Spare) -> None:
    async def inner() -> str:
        await asyncio.sleep(0)
        return "inner"

    async def outer() -> str:
        going = spare.start(inner())
        assert isinstance(going, Going)
        return "outer " + await finished(going)

    assert await finished(spare.start(outer())) == "outer inner"


@held
async def test_work_that_cancels_itself_hears_of_it_where_it_waits(spare: Spare) -> None:
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

    assert spare.start(work(waits=False)) == "did not wait"
    await turns()
    spare.start(asyncio.sleep(0, "prepares another one"))
    await turns()
    assert await finished(spare.start(work(waits=True))) == "went on"
    assert heard == ["cancelled"]


@held
async def test_a_task_that_was_just_called_can_be_cancelled(spare: Spare) -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    for _ in range(2):  # the second time there is no reserve yet, and the work has not begun
        going = spare.start(work())
        assert isinstance(going, Going)

        async def rest(going: Going[None] = going) -> None:
            await going

        task = going.go_on(rest())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        going.close()
    assert ends == ["cancelled"]


def test_without_somebody_who_holds_it_there_is_no_reserve() -> None:
    async def main() -> None:
        async def work() -> str:
            return "done"

        assert await finished(Spare().start(work())) == "done"

    asyncio.run(main())


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_tools_see_one_task_and_leak_nothing(revision: str) -> None:
    server = Server("spare")
    seen: list[Any] = []

    @server.tool
    async def mark(name: str, ctx: Context) -> str:
        first = asyncio.current_task()
        before = MARK.get()
        MARK.set(name)
        if name != "quick":
            await asyncio.sleep(0)
        seen.append(asyncio.current_task() is first)
        await ctx.info(before)
        return before

    async def main() -> None:
        async with Client(server, revision=revision) as client:
            said = [(await client.call_tool("mark", {"name": name})).text for name in ["quick", "slow"] * 3]
            assert said == ["nothing"] * 6

    asyncio.run(main())
    assert seen == [True] * 6
