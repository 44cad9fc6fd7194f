"""A function that blocks the loop is named in the log while it blocks."""

import asyncio
import logging
import sys
import threading
from typing import Any

import pytest

from toolpost import Client, Server
from toolpost.server.runtime.worker_threads import SlowCallbackMonitor
from waiting import until


class Told(logging.Handler):
    """Sets an event when a line is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.heard.set()


@pytest.fixture
def told():
    handler = Told()
    logger = logging.getLogger("toolpost.server")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_tool_that_blocks_the_loop_is_named_with_the_line_at_which_it_stands(told):
    server = Server("s", version="1")

    @server.tool
    async def blocks() -> str:
        told.heard.wait(30)  # until it is logged
        return "done"

    async def main() -> None:
        async with SlowCallbackMonitor(0.05), Client(server) as client:
            assert (await client.call_tool("blocks")).data == "done"

    asyncio.run(main())
    (text,) = told.texts
    assert "blocks (" in text.split(" has blocked")[0]
    assert f"{__file__}:" in text
    assert "threading.py:" in text
    assert "asyncio.to_thread" in text


class Impatient(threading.Event):
    """An event whose `wait` returns at once, so that the loop is checked all the time."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def test_a_loop_that_waits_or_works_in_small_steps_is_left_alone(told, monkeypatch):
    async def main() -> None:
        signs = 0
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def count(*args: Any, **options: Any) -> Any:
            nonlocal signs
            signs += 1
            return call(*args, **options)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        monitor = SlowCallbackMonitor(60)
        monitor._stopping = Impatient()
        async with monitor:
            await until(lambda: signs > 100)

    asyncio.run(main())
    assert told.texts == []


def test_a_loop_that_is_closed_under_it_ends_it(told):
    loop, closed = asyncio.new_event_loop(), threading.Event()
    monitor = SlowCallbackMonitor()

    class Late(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return not closed.wait(60)

    monitor._stopping = Late()
    loop.run_until_complete(monitor.__aenter__())
    loop.close()
    closed.set()
    monitor._thread.join(60)
    assert not monitor._thread.is_alive()
    assert told.texts == []


SCRIPT = """
import time
from toolpost import Server

server = Server("s", version="1")

@server.tool
async def slow() -> str:
    time.sleep(2.3)
    return "done"

server.run()
"""


def test_a_server_process_says_so_on_stderr(caplog):
    async def main() -> None:
        async with Client([sys.executable, "-c", SCRIPT]) as client:
            await client.call_tool("slow")

    with caplog.at_level(logging.INFO, "toolpost.child"):
        asyncio.run(main())
    assert "slow (<string>:7) has blocked the event loop for more than 1 s" in caplog.text
