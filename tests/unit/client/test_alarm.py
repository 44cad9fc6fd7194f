"""One timer for all requests of a connection: it expires for late requests only."""

import asyncio
from collections.abc import Coroutine
from math import inf
from typing import Any

import pytest

from raw_server import Clock
from toolpost.client.connection.pending import CHECK_INTERVAL_PER_CALL, DeadlineTimer


class Waiting:
    """A call with a deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.rang: list[float] = []

    def expire(self) -> None:
        self.rang.append(asyncio.get_running_loop().time())
        self.deadline = inf


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(main)


def watch(*deadlines: float) -> tuple[DeadlineTimer, list[Waiting]]:
    """Return a timer and its calls; the timer is set as the dispatcher does it."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    waiting = [Waiting(now + after) for after in deadlines]
    calls: Any = dict(enumerate(waiting))
    alarm = DeadlineTimer(loop, calls)
    for each in waiting:
        if each.deadline < alarm.next:
            alarm.set(each.deadline)
    return alarm, waiting


@pytest.mark.parametrize("deadlines", [(5.0, 7.0, 60.0), (60.0, 7.0, 5.0), (5.0, 5.0, 7.0), (3.0, inf)])
def test_each_call_gets_its_own_deadline(deadlines):
    async def main() -> None:
        began = asyncio.get_running_loop().time()
        _, waiting = watch(*deadlines)
        await asyncio.sleep(100)
        heard = [[at - began for at in each.rang] for each in waiting]
        assert heard == [
            [] if after == inf else pytest.approx([after], abs=2 * CHECK_INTERVAL_PER_CALL * len(deadlines))
            for after in deadlines
        ]

    run(main())


def test_a_timer_without_deadlines_is_not_restarted():
    async def main() -> None:
        alarm, [each] = watch(5.0)
        each.deadline = inf
        await asyncio.sleep(10)
        assert each.rang == []
        assert alarm.next == inf

    run(main())


def test_a_moved_deadline_expires_once():
    async def main() -> None:
        alarm, [each] = watch(5.0)
        each.deadline += 20
        await asyncio.sleep(10)
        assert each.rang == []
        assert alarm.next == each.deadline
        await asyncio.sleep(20)
        assert len(each.rang) == 1

    run(main())


def test_one_that_is_stopped_does_not_ring():
    async def main() -> None:
        alarm, [each] = watch(5.0)
        alarm.stop()
        alarm.stop()
        assert alarm.next == inf
        await asyncio.sleep(10)
        assert each.rang == []

    run(main())


def test_calls_that_expire_one_after_the_other_are_checked_together():
    """Otherwise n requests would be checked n times."""

    async def main() -> None:
        count = 2000
        _, waiting = watch(*(5 + CHECK_INTERVAL_PER_CALL * number for number in range(count)))
        await asyncio.sleep(10)
        moments = {each.rang[0] for each in waiting}
        assert len(moments) <= 3

    run(main())
