"""Injected faults: each kind, in both directions, planned and random."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from calculator import calculator
from toolpost import Client, RequestTimeout
from toolpost.errors import ChannelClosed, RequestFailed
from toolpost.testing import (
    Chance,
    Fault,
    Faulty,
    ScriptedChannel,
    Transcript,
    faulty,
    in_process,
    memory_pair,
    no_leaks,
)

WAYS = {"memory": calculator, "http": lambda: in_process(calculator())}


NEVER = 0.05
"""Seconds to wait for an answer that will not come."""


def sums(target, *, lost=False, retries=0):
    """Return the outcomes of three sequential calls: a sum, or the name of an error."""

    async def main():
        found = []
        async with Client(target, timeout=20, retries=retries) as mcp:
            for n in (1, 2, 3):
                try:
                    result = await mcp.call_tool(
                        "add", {"a": n, "b": 0}, timeout=NEVER if lost and n == 2 else 20
                    )
                    found.append(result.data)
                except (ChannelClosed, RequestTimeout) as error:
                    found.append(type(error).__name__)
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fault", "second"),
    [
        (Fault("drop", "client", 2, "tools/call"), "RequestTimeout"),
        (Fault("drop", "server", 2, "tools/call"), "RequestTimeout"),
        (Fault("drop", "server", 3), "RequestTimeout"),
        (Fault("delay", "server", 2, "tools/call", seconds=0.01), 2),
        (Fault("delay", "client", 2, "tools/call", seconds=0.01), 2),
        (Fault("duplicate", "server", 2, "tools/call"), 2),
        (Fault("reorder", "client", 2, "tools/call", seconds=0.01), 2),
        (Fault("reorder", "server", 2, "tools/call", seconds=0.01), 2),
        (Fault("garbage", "server", 2, "tools/call"), "RequestTimeout"),
        (Fault("garbage", "server", 2, "tools/call", data=b"Listening"), "RequestTimeout"),
        (Fault("cut", "server", 2, "tools/call"), "ChannelClosed"),
        (Fault("cut", "client", 2, "tools/call"), "ChannelClosed"),
        (Fault("drop", "server", 9), 2),
    ],
    ids=lambda value: f"{value.kind} {value.sender} {value.nth}" if isinstance(value, Fault) else "",
)
def test_one_fault_touches_one_call(way, fault, second):
    assert sums(faulty(WAYS[way](), fault), lost=second == "RequestTimeout") == [1, second, 3]


def test_a_client_recovers_from_recoverable_faults():
    """A message that was cut before it was sent is resent; the fault does not recur on the next
    connection."""
    transcript = Transcript()
    target = transcript.wrap(faulty(calculator(), Fault("cut", "client", 2, "tools/call")))
    assert sums(target, retries=2) == [1, 2, 3]
    assert any(line.startswith("2→") for line in transcript.lines())


# --------------------------------------------------------------------- on a channel


def test_a_channel_of_a_server():
    async def main():
        ours, theirs = memory_pair()
        server = Faulty(theirs, Fault("drop", "client", 1), Fault("duplicate", "server"), end="server")
        await ours.send(b'{"method":"a"}')
        await ours.send(b'{"method":"b"}')
        assert await server.receive() == b'{"method":"b"}'
        await server.send(b"[]")
        assert [await ours.receive(), await ours.receive()] == [b"[]", b"[]"]
        await server.close()
        await ours.close()

    asyncio.run(main())


def test_order_changes_both_ways():
    async def main():
        inner = ScriptedChannel()
        channel = Faulty(
            inner, Fault("reorder", "client", 1, seconds=5), Fault("reorder", "server", 1, seconds=5)
        )
        inner.feed("1", "2", "3")
        assert [await channel.receive() for _ in range(3)] == [b"2", b"1", b"3"]
        await channel.send(b"a")
        await channel.send(b"b")
        assert inner.raw == [b"b", b"a"]
        await channel.close()

    asyncio.run(main())


def test_without_another_message_a_delayed_one_arrives():
    async def main():
        inner = ScriptedChannel()
        soon: dict[str, Any] = {"nth": 1, "seconds": 0.001}
        channel = Faulty(inner, Fault("reorder", "client", **soon), Fault("reorder", "server", **soon))
        inner.feed("1")
        assert await channel.receive() == b"1"
        await channel.send(b"1", 7)
        await inner.next_sent()
        assert (inner.raw, inner.related) == ([b"1"], [7])
        await channel.close()

    asyncio.run(main())


def test_delayed_messages_arrive_before_the_end():
    async def main():
        inner = ScriptedChannel()
        channel = Faulty(inner, Fault("reorder", seconds=5))
        inner.feed("1")
        inner.end("gone")
        assert await channel.receive() == b"1"
        with pytest.raises(ChannelClosed, match="gone"):
            await channel.receive()
        await channel.close()

    asyncio.run(main())


def test_a_cut_ends_both_ways():
    async def main():
        inner = ScriptedChannel()
        channel = Faulty(inner, Fault("cut", "client"))
        reading = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        with pytest.raises(ChannelClosed, match="the connection was cut"):
            await channel.send(b"a")
        with pytest.raises(ChannelClosed, match="the connection was cut"):
            await reading
        assert inner.closed

    asyncio.run(main())


def test_a_cancelled_waiter_loses_nothing():
    async def main():
        inner = ScriptedChannel()
        channel = Faulty(inner, Fault("delay", seconds=0.02))
        inner.feed("1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await channel.receive()
        assert await channel.receive() == b"1"
        await channel.close()

    asyncio.run(main())


def test_duplicated_and_corrupted_messages():
    async def main():
        inner = ScriptedChannel()
        channel = Faulty(inner, Fault("duplicate", "client", 1), Fault("garbage", "client", 2))
        await channel.send(b"[1]")
        await channel.send(b"[2,3]", 4)
        assert inner.raw == [b"[1]", b"[1]", b"[2"]
        await channel.close()

    asyncio.run(main())


def test_unreadable_messages_have_no_method():
    async def main():
        inner = ScriptedChannel()
        channel = Faulty(inner, Fault("drop", method="x"), Fault("drop", nth=3))
        inner.feed("oops", {"id": 1, "result": {}}, {"method": "y"}, {"method": "x"}, {"method": "x"})
        assert await channel.receive() == b"oops"
        assert await channel.receive() == b'{"id":1,"result":{}}'
        assert await channel.receive() == b'{"method":"x"}'
        await channel.close()

    asyncio.run(main())


def heard(*faults):
    """Send a hundred messages, and return those that arrive."""

    async def main():
        inner, found = ScriptedChannel(), []
        channel = Faulty(inner, *faults)
        inner.feed(*range(100))
        inner.end()
        with suppress(ChannelClosed):
            while True:
                found.append(await channel.receive())
        await channel.close()
        return found

    return asyncio.run(main())


def test_chance_is_the_same_for_the_same_seed():
    often: dict[str, Any] = {
        "drop": 0.2,
        "duplicate": 0.2,
        "garbage": 0.2,
        "reorder": 0.2,
        "delay": 0.01,
        "cut": 0.01,
    }
    found = [heard(Chance(seed, seconds=0.001, **often)) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert heard(Chance(1, sender="client", drop=1)) == heard() == [b"%d" % n for n in range(100)]
    assert heard(Chance(1, drop=1)) == []


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"kind": "dorp"}, "kind: 'dorp' is not one of 'cut', "),
        ({"kind": "drop", "sender": "host"}, "sender: 'host' is not one of 'client', 'server'"),
        ({"kind": "drop", "nth": 0}, "nth: must be at least 1"),
    ],
)
def test_a_fault_that_would_never_happen_is_refused(fault: Any, why):
    with pytest.raises(ValueError, match=why):
        Fault(**fault)


def test_a_message_that_is_overtaken_twice_leaves_nothing_behind():
    async def main():
        inner = ScriptedChannel()
        plan = [Fault("reorder", "client", nth, seconds=60) for nth in (1, 3)]
        channel = Faulty(inner, *plan)
        async with no_leaks():
            for n in range(4):
                await channel.send(b"%d" % n)
            await channel.close()
        assert inner.raw == [b"1", b"0", b"3", b"2"]

    asyncio.run(main())


def test_later_messages_may_fail_too():
    async def main():
        inner = ScriptedChannel()
        inner.broken = RequestFailed("HTTP 500")
        channel = Faulty(inner, Fault("reorder", "client", seconds=0))
        async with no_leaks():
            await channel.send(b"[1]")
        await channel.close()

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"", b'{"x":' + b"[" * 100_000])
def test_garbage_can_replace_any_message(data):
    async def main():
        inner = ScriptedChannel()
        channel = Faulty(inner, Chance(1, garbage=1))
        await channel.send(data)
        await channel.close()
        assert len(inner.raw) == 1

    asyncio.run(main())
