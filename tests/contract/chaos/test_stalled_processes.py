"""Processes that are stopped for a while, and readers that do not read: only their own clients wait."""

import asyncio
import signal
from os import kill

import pytest

from hosted import Site, call, legacy, message, modern, opening
from raw_http import wired
from server_processes import (
    FIRST,
    NEW,
    OLD,
    WAYS,
    caller,
    memory,
    piped,
    run,
    stdio,
    still,
    stopped,
    victim,
)
from toolpost import Client, RequestTimeout
from waiting import until

MEGABYTE = 1024 * 1024


# --------------------------------------------------------------------- SIGSTOP and SIGCONT


async def survives(mcp: Client, stop, go_on) -> None:
    """Check that a client recovers when its server was stopped for a while."""
    await mcp.call_tool("echo", {"text": "before"})
    await stop()
    with pytest.raises(RequestTimeout):
        await mcp.call_tool("echo", {"text": "hasty"}, timeout=0.2)
    patient = [asyncio.create_task(mcp.call_tool("echo", {"text": str(n)}, timeout=40)) for n in range(5)]
    with pytest.raises(RequestTimeout):
        await mcp.call_tool("echo", {"text": "hasty"}, timeout=0.2)
    assert not any(each.done() for each in patient)
    go_on()
    assert [(await each).text for each in patient] == list("01234")
    assert (await mcp.call_tool("echo", {"text": "after"})).text == "after"
    assert not mcp.pending


@pytest.mark.requirement("TIME-3")
@pytest.mark.parametrize("revision", [FIRST, OLD, NEW])
def test_calls_of_a_server_over_pipes_that_stands_still_time_out_or_complete(revision):
    async def main():
        async with Client(stdio(), revision=revision) as mcp:
            pid = int((await mcp.call_tool("pid")).text)

            async def stop() -> None:
                kill(pid, signal.SIGSTOP)
                await until(lambda: stopped(pid))

            await survives(mcp, stop, lambda: kill(pid, signal.SIGCONT))
            assert int((await mcp.call_tool("pid")).text) == pid

    run(main)


@pytest.mark.requirement("TIME-3")
@pytest.mark.parametrize("way", WAYS)
def test_calls_of_a_server_over_http_that_stands_still_time_out_or_complete(way):
    async def main():
        async with victim() as server, server.client(way) as mcp:
            await survives(mcp, server.stop, lambda: server.tell(signal.SIGCONT))

    run(main)


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_client_does_not_delay_others_and_continues(way):
    async def main():
        async with victim() as server, caller(server.entry(way), WAYS[way][0], 0, echoes=200) as client:
            await client.stop()
            async with server.client(way) as mcp:
                for number in range(50):
                    assert (await mcp.call_tool("echo", {"text": str(number)})).text == str(number)
            client.tell(signal.SIGCONT)
            assert await client.ends() == 0
            assert client.output == "done\n"

    run(main)


# --------------------------------------------------------------------- full pipes


@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_server_that_does_not_read_costs_its_callers_their_time_and_no_memory(revision):
    async def main():
        async with Client(stdio(), revision=revision) as mcp:
            pid = int((await mcp.call_tool("pid")).text)
            text = "x" * MEGABYTE
            kill(pid, signal.SIGSTOP)
            calls = [mcp.call_tool("echo", {"text": text}, timeout=0.3) for _ in range(8)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(end, RequestTimeout) for end in ends), ends
            assert not mcp.pending
            kill(pid, signal.SIGCONT)
            assert (await mcp.call_tool("echo", {"text": "after"})).text == "after"

    run(main)


BOUND = 48 * MEGABYTE
"""How much a server may grow while a client does not read: less than half of what is sent to it."""

FLOOD = {"count": 4000, "size": 32 * 1024}
"""Data for a client that does not read: 128 MB."""


def greeting(revision: str) -> list[bytes]:
    return [opening(revision), message("notifications/initialized")]


def test_a_client_over_pipes_that_does_not_read_is_not_buffered_for():
    async def main():
        async with piped() as server:
            stdin, stdout = server.process.stdin, server.process.stdout
            assert stdin is not None
            assert stdout is not None

            def ask(number: int, name: str, **arguments: object) -> None:
                params = {**call(name, **arguments), "_meta": {"progressToken": number}}
                stdin.write(message("tools/call", params, number) + b"\n")

            stdin.writelines(line + b"\n" for line in greeting(OLD))
            ask(1, "echo", text="warm")
            await stdout.readline()
            await stdout.readline()
            before = memory(server.pid)
            ask(2, "flood", **FLOOD)
            await still(server.pid)
            assert memory(server.pid) < before + BOUND
            server.tell(signal.SIGKILL)

    run(main)


@pytest.mark.parametrize("way", WAYS)
def test_an_http_client_that_does_not_read_has_no_unbounded_buffer_and_does_not_delay_others(way):
    async def main():
        async with victim() as server, wired(server.port) as wire:
            async with server.client(way) as mcp:
                await mcp.call_tool("echo", {"text": "warm"})
            before = memory(server.pid)
            params = {**call("flood", **FLOOD), "_meta": {"progressToken": 1}}
            if way == "stateless":
                await wire.ask("POST", "/mcp", *modern("tools/call", params, meta={"progressToken": 1}))
            elif way == "session":
                session = await Site(None, server.port).open()
                await wire.ask("POST", "/mcp", legacy(session), message("tools/call", params, 1))
            else:
                await wire.ask("GET", "/sse", {"Accept": "text/event-stream"})
                await wire.head()
                place = (await wire.event()).data
                for each in (*greeting(FIRST), message("tools/call", params, 1)):
                    answer = await Site(None, server.port).post(
                        {"Content-Type": "application/json"}, each, place
                    )
                    assert answer.status == 202, answer
            if way != "sse":
                await wire.head()
            async with server.client(way) as mcp:  # others are served meanwhile
                for number in range(50):
                    assert (await mcp.call_tool("echo", {"text": str(number)})).text == str(number)
            await still(server.pid)
            assert memory(server.pid) < before + BOUND

    run(main)


def test_answers_that_a_client_over_pipes_does_not_read_are_bounded():
    async def main():
        async with piped() as server:
            stdin, stdout = server.process.stdin, server.process.stdout
            assert stdin is not None
            assert stdout is not None
            stdin.writelines(line + b"\n" for line in greeting(OLD))
            stdin.write(message("tools/call", call("echo", text="warm"), 1) + b"\n")
            await stdout.readline()
            await stdout.readline()
            before = memory(server.pid)
            for number in range(2, 4002):
                stdin.write(message("tools/call", call("big", size=64 * 1024), number) + b"\n")
            await still(server.pid)
            assert memory(server.pid) < before + 4 * BOUND
            server.tell(signal.SIGKILL)

    run(main)
