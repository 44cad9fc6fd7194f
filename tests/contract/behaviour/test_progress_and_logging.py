"""Progress, logs, cancellation and timeouts."""

import asyncio

import pytest

from connected_clients import until
from features import lacks, needs
from toolpost import MCPError, RequestTimeout
from toolpost.errors import InternalError, InvalidParams
from toolpost.types import LogParams


async def seen(client, which) -> list[str]:
    """Return the names of the calls that started, or ended."""
    text = (await client.call_tool("seen", {"which": which})).text
    return [word.strip('"') for word in text.strip("[]").split(",")]


# --------------------------------------------------------------------- progress


@pytest.mark.requirement("PROG-1", "PROG-3", "PROG-6")
@pytest.mark.parametrize("tool", ["steps", "steps_sync"])
async def test_progress_is_sent_before_the_response_and_only_increases(link, tool):
    client = await link("asking")
    heard = []
    await client.call_tool(tool, {"count": 3}, progress=lambda p: heard.append((p.progress, p.total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.requirement("PROG-5")
@pytest.mark.parametrize("tool", ["steps", "steps_sync"])
async def test_progress_is_sent_only_to_requests_that_asked_for_it(link, tool):
    client = await link("asking")
    await client.call_tool("seen", {"which": "ended"})  # late messages of earlier calls have arrived by now
    thrown_away = dict(client.stats.discarded)
    heard = {1: [], 4: []}
    calls = [
        client.call_tool(tool, {"count": 1}, progress=lambda p: heard[1].append(p.total)),
        client.call_tool(tool, {"count": 9}),
        client.call_tool(tool, {"count": 4}, progress=lambda p: heard[4].append(p.total)),
    ]
    assert [result.text for result in await asyncio.gather(*calls)] == ["done"] * 3
    assert heard == {1: [1], 4: [4] * 4}
    # Progress with an unknown token would have been dropped and counted.
    assert client.stats.discarded == thrown_away
    assert link.desk.notices == []


# --------------------------------------------------------------------- logs


@needs("sessions")
@pytest.mark.requirement("LOG-1", "LOG-10")
async def test_a_session_receives_the_level_it_wants(link):
    client = await link.attended("asking")
    assert client.capabilities.logging is not None
    await client.call_tool("lines")
    await until(lambda: len(link.desk.logs) == 5)
    assert link.desk.logs[-1] == LogParams(level="emergency", data="m", logger="tests")
    link.desk.logs.clear()
    await client.set_log_level("error")
    await client.call_tool("lines")
    await client.call_tool("lines_sync")
    await until(lambda: len(link.desk.logs) == 3)
    assert [line.level for line in link.desk.logs] == ["error", "emergency", "error"]


@needs("sessions")
@pytest.mark.requirement("LOG-2")
async def test_an_unknown_level_is_rejected(link):
    client = await link("asking")
    with pytest.raises(InvalidParams):
        await client.request("logging/setLevel", {"level": "loud"})


@lacks("sessions")
@pytest.mark.requirement("LOG-6", "LOG-7")
async def test_a_request_receives_the_level_it_asks_for(link):
    client = await link.attended("asking")
    graver = ["warning", "error", "emergency"]
    await client.call_tool("lines")  # a client with a log callback starts at "info"
    await client.set_log_level("warning")
    await client.call_tool("lines")
    await until(lambda: len(link.desk.logs) == 7)
    assert [line.level for line in link.desk.logs] == ["info", *graver, *graver]


# --------------------------------------------------------------------- cancellation


@pytest.mark.requirement("CANC-2", "CANC-4", "CANC-10", "STDIO-9", "STDIO-10", "STDIO-11")
@pytest.mark.parametrize("tool", ["wait", "wait_sync", "stubborn"])
async def test_cancellation_reaches_the_function(link, tool, transport):
    client = await link("asking")
    await client.call_tool("seen", {"which": "ended"})  # late messages of earlier calls have arrived by now
    thrown_away = dict(client.stats.discarded)
    began = asyncio.Event()
    name = f"{tool} {link.revision}"
    call = asyncio.ensure_future(client.call_tool(tool, {"name": name}, progress=lambda _: began.set()))
    await asyncio.wait_for(asyncio.shield(_either(began, call)), 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(10):
        while name not in await seen(client, "ended"):
            pass
    await client.call_tool("seen", {"which": "ended"})  # the function's last message would be here first
    assert link.desk.logs == []
    assert client.stats.discarded == thrown_away  # neither progress nor a response arrived
    assert not client.pending or all(method == "subscriptions/listen" for method in client.pending.values())


async def _either(event, call):
    waiter = asyncio.ensure_future(event.wait())
    await asyncio.wait([waiter, call], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()


@pytest.mark.requirement("CANC-5", "CANC-6", "CANC-9")
async def test_cancellations_of_unknown_requests_are_ignored(link):
    client = await link("asking")
    for params in ({"requestId": 99999}, {"requestId": "x", "reason": "none"}, {"requestId": None}, {}):
        await client.notify("notifications/cancelled", params)
    assert (await client.call_tool("steps", {"count": 1})).text == "done"


@pytest.mark.requirement("TIME-1", "TIME-2", "TIME-3")
async def test_a_request_has_a_timeout_that_cancels_it(link):
    client = await link("asking")
    name = f"late {link.revision}"
    with pytest.raises(RequestTimeout):
        await client.call_tool("wait", {"name": name}, timeout=0.3)
    if name in await seen(client, "started"):  # otherwise it was cancelled before it started
        async with asyncio.timeout(10):
            while name not in await seen(client, "ended"):
                pass


async def test_a_request_may_be_cancelled_by_its_id(link):
    client = await link("asking")
    call = asyncio.ensure_future(client.call_tool("wait", {"name": "by id"}))
    await until(lambda: "tools/call" in client.pending.values())
    [number] = [number for number, method in client.pending.items() if method == "tools/call"]
    assert await client.cancel(number, "no longer wanted")
    with pytest.raises(MCPError):
        await call
    assert not await client.cancel(number)
    assert (await client.call_tool("steps", {"count": 1})).text == "done"


@pytest.mark.requirement("PING-1")
async def test_ping_is_answered_while_tools_work(link):
    client = await link("asking")
    call = asyncio.ensure_future(client.call_tool("wait", {"name": "ping"}))
    await client.ping()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_many_slow_calls_do_not_block_fast_ones(link):
    client = await link("asking")
    slow = [asyncio.ensure_future(client.call_tool("wait", {"name": f"slow {n}"})) for n in range(64)]
    assert (await client.call_tool("steps", {"count": 1})).text == "done"
    for call in slow:
        call.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_calls_above_the_limit_are_rejected(link):
    client = await link("asking")
    slow = [asyncio.ensure_future(client.call_tool("wait", {"name": "many"})) for _ in range(120)]
    await until(lambda: sum(call.done() for call in slow) >= 20)
    assert all(isinstance(call.exception(), MCPError) for call in slow if call.done())
    for call in slow:
        call.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    async with asyncio.timeout(10):
        while (
            told := await _tried(client)
        ) is None:  # a stateless server notices our disconnect with a delay
            pass
    assert told == "done"


async def _tried(client):
    try:
        return (await client.call_tool("steps", {"count": 1})).text
    except InternalError:
        return None
