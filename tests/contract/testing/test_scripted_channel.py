"""`ScriptedChannel` keeps the contract of a channel, and follows its script."""

import asyncio

import pytest

from toolpost import Channel
from toolpost.errors import ChannelClosed
from toolpost.testing import ScriptedChannel, memory_pair


def test_it_is_a_channel():
    assert isinstance(ScriptedChannel(), Channel)


def test_the_in_memory_pair_comes_along():
    async def main() -> None:
        left, right = memory_pair()
        await left.send(b"1")
        assert await right.receive() == b"1"
        await left.close()
        await right.close()

    asyncio.run(main())


def test_fed_messages_arrive_in_order_and_in_every_form():
    async def main() -> None:
        channel = ScriptedChannel()
        channel.feed(b"raw", '"text"', {"a": 1}, [1, 2])
        channel.end("enough")
        assert [await channel.receive() for _ in range(4)] == [b"raw", b'"text"', b'{"a":1}', b"[1,2]"]
        for _ in range(2):  # it stays ended
            with pytest.raises(ChannelClosed, match="enough"):
                await channel.receive()

    asyncio.run(main())


def test_receive_waits():
    async def main() -> None:
        channel = ScriptedChannel()
        received = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        assert not received.done()
        channel.feed(b"x")
        assert await received == b"x"

    asyncio.run(main())


def test_sent_messages_can_be_read():
    async def main() -> None:
        channel = ScriptedChannel()
        await channel.send(b'{"a":1}')
        await channel.send(b'{"a":2}', related=7)
        assert channel.sent == [{"a": 1}, {"a": 2}]
        assert channel.raw == [b'{"a":1}', b'{"a":2}']
        assert channel.related == [None, 7]
        assert channel.unread == 2
        assert await channel.next_sent() == {"a": 1}
        assert channel.unread == 1

    asyncio.run(main())


def test_closing_ends_both_directions():
    async def main() -> None:
        channel = ScriptedChannel()
        assert not channel.closed
        await channel.close()
        await channel.close()
        assert channel.closed
        with pytest.raises(ChannelClosed):
            await channel.receive()
        with pytest.raises(ChannelClosed) as caught:
            await channel.send(b"x")
        assert caught.value.sent is False

    asyncio.run(main())


def test_a_send_can_be_made_to_fail():
    async def main() -> None:
        channel = ScriptedChannel()
        channel.broken = BrokenPipeError("gone")
        with pytest.raises(BrokenPipeError):
            await channel.send(b"x")
        assert channel.raw == []

    asyncio.run(main())


def test_a_send_can_be_made_to_wait():
    async def main() -> None:
        channel = ScriptedChannel()
        channel.writable.clear()
        sending = asyncio.create_task(channel.send(b"x"))
        await asyncio.sleep(0)
        assert channel.raw == []
        channel.writable.set()
        await sending
        assert channel.raw == [b"x"]

    asyncio.run(main())


def test_any_exception_can_end_it():
    async def main() -> None:
        channel = ScriptedChannel()
        channel.end(OSError("the cable is cut"))
        with pytest.raises(OSError, match="cable"):
            await channel.receive()

    asyncio.run(main())
