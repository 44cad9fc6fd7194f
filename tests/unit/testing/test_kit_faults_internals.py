"""Injected faults: each kind, in both directions, planned and random."""

import asyncio
import random

from toolpost.errors import ChannelClosed
from toolpost.testing import (
    Fault,
    Faulty,
    ScriptedChannel,
)
from toolpost.testing.faults import garble_message


def test_a_delayed_message_is_not_sent_after_the_close():
    async def main():
        for seconds in (0, 60):
            inner = ScriptedChannel()
            channel = Faulty(inner, Fault("reorder", "client", seconds=seconds))
            await channel.send(b"a")
            if not seconds:
                inner.broken = ChannelClosed("gone")
                assert channel._late_task is not None
                await asyncio.wait([channel._late_task])
            await channel.close()
            assert inner.raw == []

    asyncio.run(main())


def test_garbled_is_never_the_same():
    rng = random.Random(1)
    assert all(garble_message(rng, b'{"jsonrpc":"2.0"}') != b'{"jsonrpc":"2.0"}' for _ in range(100))
