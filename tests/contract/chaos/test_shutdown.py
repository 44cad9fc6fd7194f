"""SIGTERM and SIGINT under load: the process exits in time with code 0, and clients are notified."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress

import pytest

from server_processes import NEW, OLD, WAYS, begun, failures, gone, run, stdio, victim
from toolpost import Client
from toolpost.errors import ChannelClosed
from waiting import until

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


async def nothing(*_: object) -> None:
    """Subscribe to changes."""


@SIGNALS
@pytest.mark.parametrize("revision", [OLD, NEW])
@pytest.mark.parametrize("tools", [(), ("hang", "blocked")], ids=["idle", "busy"])
def test_a_server_over_pipes_stops_in_any_state(number, revision, tools):
    async def main():
        async with Client(stdio(drain=0.2), revision=revision, on_notification=nothing) as mcp:
            pid = int((await mcp.call_tool("pid")).text)
            calls = [call for tool in tools for call in await begun(mcp, tool, 3)]
            os.kill(pid, number)
            for error in await failures(calls):
                assert isinstance(error, ChannelClosed)
                assert "with code 0" in str(error), error
            await until(lambda: gone(pid))
            with suppress(ChannelClosed):  # an idle connection may not know it yet
                await mcp.call_tool("pid")
            assert int((await mcp.call_tool("pid")).text) != pid

    run(main)


@SIGNALS
def test_a_call_over_pipes_that_can_finish_does(number, tmp_path):
    async def main():
        async with Client(stdio()) as mcp:
            pid = int((await mcp.call_tool("pid")).text)
            [call] = await begun(mcp, "hold", path=str(tmp_path / "go"))
            os.kill(pid, number)
            (tmp_path / "go").touch()
            assert (await call).text == str(pid)
            await until(lambda: gone(pid))

    run(main)


@SIGNALS
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_over_http_stops_in_any_state(number, workers):
    async def main():
        more = {"workers": workers, "stateless": True} if workers > 1 else {}
        ways = ["stateless"] if workers > 1 else list(WAYS)
        async with victim(drain=0.2, **more) as server, AsyncExitStack() as stack:
            calls: list[asyncio.Task[object]] = []
            clients: list[Client] = []
            for way in ways:
                for tool in ("hang", "blocked", None):  # the last one only listens, or has an idle session
                    mcp = await stack.enter_async_context(server.client(way, on_notification=nothing))
                    clients.append(mcp)
                    calls += [] if tool is None else await begun(mcp, tool, 3)
            server.tell(number)
            assert await server.ends() == 0
            assert server.output == ""
            # In a session a client comes back for the rest; the next server knows nothing of it.
            await stack.enter_async_context(victim(address=f"127.0.0.1:{server.port}"))
            await failures(calls)
            for mcp in clients:
                assert (await mcp.call_tool("echo", {"text": "here"})).text == "here"

    run(main)


@SIGNALS
@pytest.mark.parametrize("way", WAYS)
def test_a_call_over_http_that_can_finish_does(number, way, tmp_path):
    async def main():
        async with victim() as server, server.client(way) as mcp:
            [call] = await begun(mcp, "hold", path=str(tmp_path / "go"))
            server.tell(number)
            (tmp_path / "go").touch()
            assert (await call).text == str(server.pid)
            assert await server.ends() == 0

    run(main)
