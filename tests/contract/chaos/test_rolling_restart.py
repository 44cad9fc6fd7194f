"""A rolling restart: workers are replaced one by one, and no request is rejected."""

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from hosted import Site, call, legacy, modern
from raw_http import Wire, wired
from round_robin import RoundRobin, round_robin
from server_processes import NEW, OLD, Victim, begun, run, victim
from session_site import listening, text, tool
from toolpost import Client

KEY = "a key that all processes of a fleet have"
CLIENTS = 8


class Caller:
    """A client that calls without a pause on one connection, until it is asked to close it."""

    def __init__(self, proxy: RoundRobin, session: str | None) -> None:
        self._proxy = proxy
        self._session = session
        self.served: Counter[str] = Counter()
        """How many calls each process has answered."""
        self.closed = 0
        """How many connections the server has asked to close."""
        self.stop = False
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Call until `stop`."""
        while not self.stop:
            async with wired(self._proxy.port) as wire:
                while not self.stop and await self._call(wire):
                    pass

    async def _call(self, wire: Wire) -> bool:
        """Make one call; return whether the connection stays open."""
        if self._session is None:
            await wire.ask("POST", "/mcp", *modern("tools/call", call("pid")))
        else:
            await wire.ask("POST", "/mcp", legacy(self._session), tool("pid", 1))
        answer = await wire.answer()
        assert answer.status == 200, answer
        self.served[text(answer)] += 1
        self._answered.set()
        if answer.headers.get("connection") != "close":
            return True
        assert await wire.ended()
        self.closed += 1
        return False

    async def answers(self, count: int = 2) -> None:
        """Wait for `count` more responses; the last one was requested after this call."""
        for _ in range(count):
            self._answered.clear()
            await self._answered.wait()


async def replace(old: Victim, proxy: RoundRobin, stack: AsyncExitStack, callers: list[Caller]) -> Victim:
    """Start a new process, send new connections to it, and stop the old one as a platform does."""
    new = await stack.enter_async_context(victim(key=KEY))
    proxy.ports = [new.port if port == old.port else port for port in proxy.ports]
    for caller in callers:  # a connection that was on its way to the old one has arrived
        await caller.answers()
    old.tell(signal.SIGTERM)
    assert await old.ends() == 0
    assert old.output == ""
    return new


def test_workers_are_replaced_one_by_one_and_no_request_is_refused():
    async def main():
        async with AsyncExitStack() as stack:
            old = [await stack.enter_async_context(victim(key=KEY)) for _ in range(2)]
            proxy = await stack.enter_async_context(round_robin(*(each.port for each in old)))
            site = Site(None, proxy.port)
            sessions = [await site.open() if number % 2 else None for number in range(CLIENTS)]
            callers = [Caller(proxy, session) for session in sessions]
            async with asyncio.TaskGroup() as group:
                for caller in callers:
                    group.create_task(caller.run())
                new = [await replace(each, proxy, stack, callers) for each in old]
                for caller in callers:
                    await caller.answers()
                    caller.stop = True
            served = sum((caller.served for caller in callers), Counter[str]())
            assert set(served) == {str(each.pid) for each in (*old, *new)}
            assert sum(caller.closed for caller in callers) >= CLIENTS

    run(main)


def test_a_listening_client_comes_back_to_another_worker():
    async def main():
        async with AsyncExitStack() as stack:
            old = [await stack.enter_async_context(victim(key=KEY)) for _ in range(2)]
            proxy = await stack.enter_async_context(round_robin(*(each.port for each in old)))
            session = await Site(None, proxy.port).open()
            last: str | None = None
            for each in old:
                proxy.ports = [each.port]
                async with wired(proxy.port) as wire:
                    await wire.ask("GET", "/mcp", listening(session, last))
                    assert (await wire.head()).status == 200
                    last = (await wire.event()).id
                    await replace(each, proxy, stack, [])
                    await wire.events()
            async with wired(proxy.port) as wire:
                await wire.ask("GET", "/mcp", listening(session, last))
                assert (await wire.head()).status == 200

    run(main)


@pytest.mark.parametrize("revision", [OLD, NEW])
def test_a_toolpost_client_is_not_affected(revision, tmp_path):
    """Calls before, during and after; one of them is being served when its worker gets the signal."""

    async def main():
        async with AsyncExitStack() as stack:
            old = [await stack.enter_async_context(victim(key=KEY)) for _ in range(2)]
            proxy = await stack.enter_async_context(round_robin(*(each.port for each in old)))
            url = f"http://127.0.0.1:{proxy.port}/mcp"
            mcp = await stack.enter_async_context(Client(url, revision=revision))
            for number, each in enumerate(old):
                path = tmp_path / str(number)
                [held] = await begun(mcp, "hold", path=str(path))
                replacing = asyncio.create_task(replace(each, proxy, stack, []))
                for _ in range(20):
                    assert int((await mcp.call_tool("pid")).text)
                path.touch()
                assert int((await held).text)
                await replacing
                assert int((await mcp.call_tool("pid")).text)

    run(main)
