"""The memory transport: order, capacity, closing, and no loss when a task is cancelled."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolpost.transports.memory import memory_pair


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 20))


async def settle():
    """Let every task run until it waits for another one."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_no_more_than_the_limit_lies_between_the_ends():
    async def main():
        one, other = memory_pair(limit=8)
        seen = []

        async def flood():
            for n in range(2000):
                await one.send(b"%d" % n)
                seen.append(len(other._queue.arrived))

        senders = [asyncio.create_task(flood()) for _ in range(5)]
        for _ in range(10_000):
            await other.receive()
        await asyncio.gather(*senders)
        assert max(seen) == 8

    run(main)


@pytest.mark.parametrize("turns", range(3))
@pytest.mark.parametrize("victim", range(3))
def test_a_cancelled_send_sends_nothing_and_makes_way(turns, victim):
    async def main():
        one, other = memory_pair(limit=1)
        await one.send(b"x")
        waiting = [asyncio.create_task(one.send(b"%d" % n)) for n in range(3)]
        await settle()
        assert await other.receive() == b"x"
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = waiting[victim].cancel()
        expected = [b"%d" % n for n in range(3) if n != victim or not cancelled]
        assert [await other.receive() for _ in expected] == expected
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not other._queue.arrived

    run(main)


class Schedule:
    """Sends, receives and cancels as instructed, and records what must arrive."""

    def __init__(self):
        self.one, self.other = memory_pair(limit=2)
        self.sent = []
        self.received = []
        self.receiver = None

    def send(self):
        data = b"%d" % len(self.sent)
        self.sent.append((data, asyncio.create_task(self.one.send(data))))

    def receive(self):
        if self.receiver is None or self.receiver.done():
            self.receiver = asyncio.create_task(self.take())

    async def take(self):
        self.received.append(await self.other.receive())

    def stop_sending(self):
        waiting = [task for _, task in self.sent if not task.done()]
        for task in waiting[:1]:
            task.cancel()

    def stop_receiving(self):
        if self.receiver is not None:
            self.receiver.cancel()

    async def finish(self):
        await settle()
        self.stop_receiving()
        await settle()
        while self.other._queue.arrived:
            await self.take()
            await settle()
        assert self.received == [data for data, task in self.sent if not task.cancelled()]


@given(st.lists(st.sampled_from(["send", "receive", "stop_sending", "stop_receiving", "turn"]), max_size=60))
def test_after_any_cancellation_the_rest_arrives_in_order(steps):
    async def main():
        schedule = Schedule()
        for step in steps:
            if step == "turn":
                await asyncio.sleep(0)
            else:
                getattr(schedule, step)()
        await schedule.finish()

    run(main)
