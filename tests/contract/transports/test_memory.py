"""The memory transport: order, capacity, closing, and no loss when a task is cancelled."""

import asyncio

import pytest

from toolpost import Channel
from toolpost.errors import ChannelClosed, LocalProtocolError
from toolpost.testing import memory_pair


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 20))


async def settle():
    """Let every task run until it waits for another one."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_both_ends_are_channels():
    assert all(isinstance(end, Channel) for end in memory_pair())


def test_messages_arrive_whole_in_order_and_are_not_copied():
    async def main():
        one, other = memory_pair()
        there = [b'{"n":%d}' % n for n in range(100)]
        back = [b"[%d]" % n for n in range(100)]
        for data in there:
            await one.send(data)
        for data in back:
            await other.send(data, related=1)
        assert [await other.receive() for _ in there] == there
        assert [await one.receive() for _ in back] == back
        big = bytes(3 * 1024 * 1024)
        await one.send(big)
        assert await other.receive() is big

    run(main)


def test_a_receiver_waits_for_the_message():
    async def main():
        one, other = memory_pair()
        waiting = asyncio.create_task(other.receive())
        await settle()
        assert not waiting.done()
        await one.send(b"1")
        assert await waiting == b"1"

    run(main)


def test_a_sender_waits_for_room():
    async def main():
        one, other = memory_pair(limit=2)
        await one.send(b"1")
        await one.send(b"2")
        third = asyncio.create_task(one.send(b"3"))
        await settle()
        assert not third.done()
        assert await other.receive() == b"1"
        await third
        assert [await other.receive() for _ in range(2)] == [b"2", b"3"]

    run(main)


def test_waiting_senders_are_served_in_order():
    async def main():
        one, other = memory_pair(limit=1)
        await one.send(b"0")
        waiting = [asyncio.create_task(one.send(b"%d" % n)) for n in range(1, 5)]
        await settle()
        assert await other.receive() == b"0"
        # There is room now, and the first waiter has not run yet: a newcomer may not overtake.
        late = asyncio.create_task(one.send(b"5"))
        assert [await other.receive() for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
        await asyncio.gather(*waiting, late)

    run(main)


def test_a_newcomer_in_the_same_turn_does_not_overtake():
    async def main():
        one, other = memory_pair(limit=1)
        await one.send(b"0")
        waiting = asyncio.create_task(one.send(b"1"))
        await settle()
        await other.receive()  # wakes the waiting sender, which runs only in the next turn
        late = one.send(b"2")
        task = asyncio.create_task(late)
        assert [await other.receive() for _ in range(2)] == [b"1", b"2"]
        await asyncio.gather(waiting, task)

    run(main)


@pytest.mark.parametrize("turns", range(4))
def test_a_cancelled_receive_loses_no_message(turns):
    async def main():
        one, other = memory_pair()
        waiting = asyncio.create_task(other.receive())
        await settle()
        await one.send(b"1")
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = waiting.cancel()
        got = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert (got == b"1") is not cancelled
        await one.send(b"2")
        rest = [await other.receive() for _ in range(1 + cancelled)]
        assert rest == ([b"1", b"2"] if cancelled else [b"2"])

    run(main)


def test_a_receive_that_timed_out_is_simply_tried_again():
    async def main():
        one, other = memory_pair()
        for n in range(50):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.receive(), 0)
            await one.send(b"%d" % n)
            assert await other.receive() == b"%d" % n

    run(main)


def test_the_other_end_reads_earlier_messages_before_the_end():
    async def main():
        one, other = memory_pair()
        await one.send(b"1")
        await one.send(b"2")
        await one.close()
        assert [await other.receive(), await other.receive()] == [b"1", b"2"]
        for _ in range(2):
            with pytest.raises(ChannelClosed, match="the other end of the channel was closed") as caught:
                await other.receive()
            assert caught.value.sent

    run(main)


def test_the_end_that_closed_reads_no_more():
    async def main():
        one, other = memory_pair()
        await other.send(b"1")
        await one.close()
        with pytest.raises(ChannelClosed, match="this end of the channel was closed"):
            await one.receive()

    run(main)


@pytest.mark.parametrize("closer", [0, 1])
def test_a_waiting_reader_is_notified_of_the_end(closer):
    async def main():
        ends = memory_pair(limit=1)
        one, other = ends
        await one.send(b"0")
        senders = [asyncio.create_task(one.send(b"%d" % n)) for n in range(3)]
        receiver = asyncio.create_task(one.receive())
        await settle()
        await ends[closer].close()
        for task in (*senders, receiver):
            with pytest.raises(ChannelClosed, match="end of the channel was closed") as caught:
                await task
            assert caught.value.sent is (task is receiver)
        if closer == 0:
            assert await other.receive() == b"0"

    run(main)


@pytest.mark.parametrize("closer", [0, 1])
def test_sending_after_the_end_is_refused_and_safe_to_repeat_elsewhere(closer):
    async def main():
        ends = memory_pair()
        await ends[closer].close()
        await ends[closer].close()
        for end in ends:
            with pytest.raises(ChannelClosed, match="end of the channel was closed") as caught:
                await end.send(b"1")
            assert (caught.value.sent, caught.value.retry_safe) == (False, True)
        await ends[1 - closer].close()

    run(main)


def test_a_second_receiver_is_refused():
    async def main():
        one, other = memory_pair()
        first = asyncio.create_task(other.receive())
        await settle()
        with pytest.raises(LocalProtocolError, match="another task is already receiving"):
            await other.receive()
        await one.send(b"1")
        # The message belongs to its waiter, even if the waiter has not run yet.
        with pytest.raises(LocalProtocolError):
            await other.receive()
        assert await first == b"1"
        await one.send(b"2")
        assert await other.receive() == b"2"

    run(main)


@pytest.mark.parametrize("limit", [0, -1])
def test_at_least_one_message_has_to_fit(limit):
    with pytest.raises(ValueError, match="at least 1"):
        memory_pair(limit)
