"""Callback queues: callbacks in order, one at a time, without blocking the caller."""

import asyncio
from functools import partial
from typing import Any

import pytest

from raw_server import run
from toolpost.client.connection.incoming import CallbackQueue


def test_work_is_done_in_order_one_piece_at_a_time():
    async def main() -> None:
        lane = CallbackQueue(asyncio.create_task)
        trace: list[str] = []

        async def work(name: str) -> None:
            trace.append(f"{name} begins")
            await asyncio.sleep(0)
            trace.append(f"{name} ends")

        assert lane.put(partial(work, "a"))
        assert lane.put(partial(work, "b"))
        assert trace == []  # the caller continues
        await lane.wait_idle()
        assert trace == ["a begins", "a ends", "b begins", "b ends"]
        await lane.wait_idle()

    run(main())


@pytest.mark.parametrize(
    "error",
    [LookupError("oops"), SystemExit("oops"), KeyboardInterrupt("oops"), asyncio.CancelledError("oops")],
)
def test_a_failure_is_logged_and_the_next_piece_is_done(error, caplog):
    async def main() -> None:
        lane = CallbackQueue(asyncio.create_task)
        done: list[int] = []

        async def fail() -> None:
            raise error

        async def work() -> None:
            done.append(1)

        lane.put(fail)
        lane.put(work)
        await lane.wait_idle()
        assert done == [1]

    run(main())
    assert "oops" in caplog.text


def test_too_much_work_is_refused():
    async def main() -> None:
        lane = CallbackQueue(asyncio.create_task, limit=2)
        gate, begun = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            begun.set()
            await gate.wait()

        assert lane.put(first)
        await begun.wait()  # it is being done, and does not wait any more
        assert [lane.put(gate.wait) for _ in range(3)] == [True, True, False]
        gate.set()
        await lane.wait_idle()

    run(main())


def test_queued_callbacks_can_be_dropped():
    async def main() -> None:
        lane = CallbackQueue(asyncio.create_task)
        done: list[str] = []
        gate, begun = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            begun.set()
            await gate.wait()
            done.append("first")

        async def second() -> None:
            done.append("second")

        lane.put(first)
        lane.put(second)
        await begun.wait()
        lane.stop()
        gate.set()
        await lane.wait_idle()
        assert done == ["first"]

    run(main())


def test_a_lane_whose_task_is_cancelled_before_it_began_is_idle():
    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []

        def spawn(work):
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        lane = CallbackQueue(spawn)
        lane.put(asyncio.Event().wait)
        tasks[0].cancel()
        await lane.wait_idle()

    run(main())


def test_work_knows_that_it_is_work_also_in_its_threads_and_tasks():
    async def main() -> None:
        lane, other = CallbackQueue(asyncio.create_task), CallbackQueue(asyncio.create_task)
        seen: list[tuple[bool, bool]] = []
        loop = asyncio.get_running_loop()

        async def look() -> None:
            seen.append((lane.is_in_callback, other.is_in_callback))

        def in_a_thread() -> None:
            asyncio.run_coroutine_threadsafe(look(), loop).result()

        async def work() -> None:
            await look()
            await asyncio.create_task(look())
            await asyncio.to_thread(in_a_thread)

        lane.put(work)
        await lane.wait_idle()
        assert seen == [(True, False)] * 3
        assert not lane.is_in_callback

    run(main())


def test_a_lane_whose_task_is_cancelled_ends_at_once():
    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        done: list[int] = []
        begun = asyncio.Event()

        def spawn(work):
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        async def first() -> None:
            begun.set()
            await asyncio.Event().wait()

        async def second() -> None:
            done.append(2)

        lane = CallbackQueue(spawn)
        lane.put(first)
        lane.put(second)
        await begun.wait()
        tasks[0].cancel()
        await lane.wait_idle()
        assert tasks[0].cancelled()
        assert done == []

    run(main())


def test_a_lane_that_is_thrown_away_at_work_goes_quietly():
    tasks: list[Any] = []
    lane = CallbackQueue(tasks.append)  # type: ignore[arg-type] - the task is not used

    async def work() -> None:
        await asyncio.sleep(0)

    lane.put(work)
    tasks[0].send(None)
    tasks[0].close()
