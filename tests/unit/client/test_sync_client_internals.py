"""The synchronous client: scripts, threads, callbacks that use it, and a close without leaks."""

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from raw_server import Asked, RawServer
from toolpost.channel import Channel
from toolpost.client.client import Client
from toolpost.client.sync import SyncClient
from toolpost.errors import ChannelClosed, ConnectFailed
from toolpost.types import (
    Result,
)


@pytest.fixture(autouse=True)
def no_thread_left():
    """Check that no toolpost thread outlives its test."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("toolpost"):
            thread.join(10)
            assert not thread.is_alive(), thread.name


async def hang(_: Asked) -> Result:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_connection_that_fails_leaves_nothing():
    client = SyncClient("https://mcp.example.com")
    with pytest.raises(ConnectFailed):
        client.connect()
    assert client._loop_thread is not None
    assert not client._loop_thread.thread.is_alive()


def test_closing_ends_the_waits_of_other_threads():
    server = RawServer({"tools/call": hang})
    with ThreadPoolExecutor(4) as pool:
        client = SyncClient(server).connect()
        calls = [pool.submit(lambda: client.call_tool("t")) for _ in range(4)]
        client._run(lambda _: server.until(lambda: server.methods.count("tools/call") == 4))
        client.close()
        for call in calls:
            with pytest.raises(ChannelClosed):
                call.result(10)


def test_work_that_is_handed_over_when_the_loop_stops_is_an_error_and_not_a_hang():
    client = SyncClient(RawServer()).connect()
    begun = threading.Event()

    async def forever(_: Client) -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client._run, forever)
        assert begun.wait(10)
        client.close()
        with pytest.raises(ChannelClosed, match="the client was closed"):
            waiting.result(10)


@pytest.fixture
def interruptible():
    """Restore Python's default handling of Ctrl-C, which the test runner changes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_call_is_cancelled():
    async def interrupt(asked: Asked) -> Result:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return await hang(asked)

    server = RawServer({"tools/call": interrupt})
    with SyncClient(server) as client:
        with pytest.raises(KeyboardInterrupt):
            client.call_tool("t")
        client._run(lambda _: server.until(lambda: server.cancelled))


def test_a_thread_that_fails_to_connect_leaves_the_others_alone():
    gate = threading.Event()

    class Slow(RawServer):
        async def serve(self, channel: Channel) -> None:
            begun.set()
            while not gate.is_set():  # noqa: ASYNC110 - it is set by another thread
                await asyncio.sleep(0)
            await super().serve(channel)

    begun = threading.Event()
    client = SyncClient(Slow())
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(client.connect)
        assert begun.wait(10)
        with client._lock:
            client._connecting += 1  # as if we had begun, and were interrupted
        client._abort_connect()
        gate.set()
        assert connecting.result(10) is client
    client.ping()
    client.close()
