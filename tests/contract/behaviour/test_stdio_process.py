"""A server as a process: its descriptors, its signals, its end."""

import asyncio
import json
import os
import signal
import sys
from typing import Any

import pytest

from connected_clients import PROGRAMS, stdio, until
from expected_limits import MAX_LINE
from features import on
from toolpost import Client
from toolpost.errors import ChannelClosed
from waiting import close_pipes

pytestmark = on("stdio")

ROUGH = [sys.executable, str(PROGRAMS / "rough.py")]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
PIPE = asyncio.subprocess.PIPE
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


@pytest.mark.requirement("STDIO-1", "STDIO-2", "STDIO-4")
async def test_other_output_does_not_reach_the_stream(link, revision):
    lines = []
    client = Client(stdio("rough", stderr=lines.append), revision=revision)
    async with client:
        assert (await client.call_tool("prints")).text == "é said"
        assert (await client.call_tool("reads")).text == "''"
        assert client.stats.discarded == {}
    text = "\n".join(lines)
    for source in ("before the start", "from print", "from write", "from a child", "from C"):
        assert f"stray {source}" in text


async def test_a_tool_that_blocks_the_loop_only_delays_others(link):
    client = await link.fresh("rough")
    slow, quick = client.call_tool("blocks", {"seconds": 0.1}), client.call_tool("number")
    results = await asyncio.gather(slow, quick)
    assert results[0].text == "blocked"


async def test_a_stuck_thread_does_not_keep_the_process_alive(link):
    client = await link.fresh("rough")
    call = asyncio.ensure_future(client.call_tool("stuck"))
    assert (await client.call_tool("number")).text
    await client.close()
    with pytest.raises(ChannelClosed):
        await call


async def test_a_server_that_dies_reports_its_code_and_last_words(link):
    client = await link.fresh("rough")
    with pytest.raises(ChannelClosed, match=r"(?s)7.*last words|last words.*7"):
        await client.call_tool("dies", {"code": 7})


async def test_a_killed_server_is_reported(link):
    client = await link.fresh("rough")
    number = int((await client.call_tool("number")).text)
    call = asyncio.ensure_future(client.call_tool("forever"))
    await until(lambda: "tools/call" in client.pending.values())
    os.kill(number, signal.SIGKILL)
    with pytest.raises(ChannelClosed, match=r"SIGKILL|-9"):
        await call


# --------------------------------------------------------------------- without our client


async def bare() -> Any:
    """A server without any client yet."""
    return await asyncio.create_subprocess_exec(
        *ROUGH, stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL, env=BUFFERED, limit=1 << 26
    )


async def start() -> Any:
    """A server with a manual handshake."""
    process = await bare()
    await say(process, HELLO)
    assert (await hear(process))["id"] == 1
    await say(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    return process


async def say(process, message) -> None:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    process.stdin.write(data + b"\n")
    await process.stdin.drain()


async def hear(process) -> dict:
    async with asyncio.timeout(20):
        return json.loads(await process.stdout.readline())


def call(number, name, **meta) -> dict:
    params = {"name": name, "arguments": {}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def ended(process) -> int:
    async with asyncio.timeout(20):
        rest, code = await asyncio.gather(process.stdout.read(), process.wait())
    process.stdin.close()
    close_pipes(process)
    assert rest == b""
    return code


@pytest.mark.requirement("STDIO-13", "LIFE-3", "LIFE-9")
@pytest.mark.parametrize("busy", [None, "forever", "stuck"])
async def test_the_end_of_stdin_ends_the_server(runner, busy, transport):
    process = await start()
    if busy:
        await say(process, call(2, busy))
    process.stdin.close()
    assert await ended(process) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_requests_finish(runner, number, transport):
    process = await start()
    await say(process, call(2, "slow", progressToken=5))
    assert (await hear(process))["method"] == "notifications/progress"
    process.send_signal(number)
    process.send_signal(signal.SIGUSR1)  # only now does it finish
    answer = await hear(process)
    assert answer["id"] == 2
    assert answer["result"]["content"][0]["text"] == "finished"
    assert await ended(process) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_idle_server(runner, number, transport):
    process = await start()
    process.send_signal(number)
    assert await ended(process) == 0


async def test_an_oversized_line_gets_an_error_and_the_server_continues(runner, transport):
    process = await start()
    await say(process, b'"' + b"x" * (MAX_LINE + 10) + b'"')
    answer = await hear(process)
    assert answer["error"]["code"] == -32600
    assert "too long" in answer["error"]["message"]
    await say(process, {"jsonrpc": "2.0", "id": 3, "method": "ping"})
    assert (await hear(process))["id"] == 3
    process.stdin.close()
    assert await ended(process) == 0


@pytest.mark.requirement("LIFE-10", "LIFE-11")
async def test_an_unknown_revision_is_answered_with_our_latest_of_the_session_era(runner, transport):
    process = await bare()
    params = {**HELLO["params"], "protocolVersion": "1999-01-01"}
    await say(process, {**HELLO, "params": params})
    assert (await hear(process))["result"]["protocolVersion"] == "2025-11-25"
    process.stdin.close()
    assert await ended(process) == 0


@pytest.mark.requirement("LIFE-1")
async def test_nothing_but_ping_is_served_before_the_handshake(runner, transport):
    process = await bare()
    await say(process, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert "error" in await hear(process)
    await say(process, {"jsonrpc": "2.0", "id": 2, "method": "ping"})
    assert (await hear(process))["result"] == {}
    await say(process, b"this is no JSON")
    assert (await hear(process))["error"]["code"] == -32700
    process.stdin.close()
    assert await ended(process) == 0


async def test_a_signal_ends_a_subscription_with_its_result(runner, transport):
    process = await bare()
    facts = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in facts.items()}
    params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    await say(process, {"jsonrpc": "2.0", "id": 4, "method": "subscriptions/listen", "params": params})
    assert (await hear(process))["method"] == "notifications/subscriptions/acknowledged"
    process.send_signal(signal.SIGTERM)
    answer = await hear(process)
    assert answer["id"] == 4
    assert "result" in answer
    assert await ended(process) == 0
