"""Long requests: they end when their client disconnects, and send keep-alive comments."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from hosted import run
from toolpost.server.http import disconnect_timer, exchange
from toolpost.server.http.disconnect_timer import CONNECTION_MONITOR, DisconnectTimer
from toolpost.server.http.exchange import (
    ClientDisconnected,
    HttpExchange,
    ResponseAborted,
)
from waiting import until

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect_timer, "CHECK_INTERVAL", 0.002)
    monkeypatch.setattr(exchange, "KEEP_ALIVE_INTERVAL", 0.004)


async def run_while_connected(
    exchange: Any, work: Any, pulse: Any = None, *, is_detached: bool = False
) -> Any:
    exchange.pulse, exchange.is_detached, exchange.task = pulse, is_detached, asyncio.current_task()
    with exchange:
        return await work


class Peer:
    """An ASGI server with one request.

    Args:
        tells: whether it reports a disconnect; None if it does not support that.
    """

    def __init__(self, *, tells: bool | None = None) -> None:
        self.gone = asyncio.Event()
        self.asked = 0
        self.guests: list[HttpExchange] = []
        self.dismissed: list[HttpExchange] = []
        self._tells = tells
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
        if tells is not None:
            scope[CONNECTION_MONITOR] = self
        self.exchange = HttpExchange(scope, self._receive, self._send)

    def watch_disconnect(self, guest: HttpExchange) -> bool:
        self.guests.append(guest)
        return self._tells is True

    def unwatch_disconnect(self, guest: HttpExchange) -> None:
        self.dismissed.append(guest)

    def serve(self, work: Any, *arguments: Any, **options: Any) -> "asyncio.Task[Any]":
        """Serve the request, as the endpoint does."""
        self.exchange.unwanted = options.pop("unwanted", None)
        timer = DisconnectTimer(asyncio.get_running_loop())
        timer.fresh[self.exchange] = False
        timer.start()
        return asyncio.create_task(run_while_connected(self.exchange, work, *arguments, **options))

    async def _receive(self) -> dict[str, Any]:
        self.asked += 1
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Any) -> None:
        pass


async def forever() -> None:
    await asyncio.Event().wait()


def test_a_connection_monitor_replaces_the_watcher():
    async def main():
        peer, unwanted = Peer(tells=True), []
        work = peer.serve(forever(), unwanted=lambda: unwanted.append(1))
        await until(lambda: peer.guests)
        before = asyncio.all_tasks()
        (guest,) = peer.guests
        guest.on_disconnect()
        with pytest.raises(ClientDisconnected):
            await work
        assert before == {work, asyncio.current_task()}
        assert (peer.asked, unwanted, peer.exchange.is_disconnected) == (0, [1], True)

    run(main)


@pytest.mark.parametrize("tells", [None, False])
def test_without_a_connection_monitor_a_task_waits(tells):
    async def main():
        peer, unwanted = Peer(tells=tells), []
        work = peer.serve(forever(), unwanted=lambda: unwanted.append(1))
        await until(lambda: peer.asked)
        peer.gone.set()
        with pytest.raises(ClientDisconnected):
            await work
        assert (peer.asked, unwanted, peer.exchange.is_disconnected) == (1, [1], True)

    run(main)


def test_finished_work_gets_no_disconnect():
    async def main():
        peer, go_on = Peer(tells=True), asyncio.Event()

        async def work() -> str:
            await go_on.wait()
            return "done"

        working = peer.serve(work())
        await until(lambda: peer.guests)
        go_on.set()
        assert await working == "done"
        assert peer.dismissed == peer.guests
        assert not peer.exchange.is_disconnected

    run(main)


def test_a_client_that_goes_after_its_request_was_aborted():
    async def main():
        peer, unwanted = Peer(tells=True), []
        work = peer.serve(forever(), unwanted=lambda: unwanted.append(1))
        await until(lambda: peer.guests)
        (guest,) = peer.guests
        peer.exchange.abort()
        guest.on_disconnect()
        with pytest.raises(ClientDisconnected):
            await work
        assert not unwanted  # it was cancelled before

    run(main)


def test_a_request_may_be_aborted():
    async def main():
        peer, unwanted = Peer(tells=True), []
        work = peer.serve(forever(), unwanted=lambda: unwanted.append(1))
        await until(lambda: peer.guests)
        peer.exchange.abort()
        peer.exchange.abort()
        with pytest.raises(ResponseAborted):
            await work
        assert work.cancelling() == 0
        assert not peer.exchange.is_disconnected
        assert not unwanted

    run(main)


def test_a_pulse_has_the_context_of_no_request():
    async def main():
        heard: dict[str, set[str]] = {"ann": set(), "bob": set()}

        async def attended(name: str) -> None:
            WHO.set(name)

            async def pulse() -> None:
                heard[name].add(WHO.get())

            await Peer(tells=True).serve(forever(), pulse)

        working = [asyncio.create_task(attended(name)) for name in heard]
        await until(lambda: all(heard.values()))
        for each in working:
            each.cancel()
        await asyncio.wait(working)
        assert heard == {"ann": {"nobody"}, "bob": {"nobody"}}

    run(main)


def test_a_pulse_that_takes_long_is_waited_for():
    async def main():
        beats: list[str] = []
        go_on = asyncio.Event()

        async def slow() -> None:
            beats.append("slow")
            await go_on.wait()

        async def other() -> None:
            beats.append("other")

        working = [Peer(tells=True).serve(forever(), pulse) for pulse in (slow, other)]
        await until(lambda: beats.count("other") > 3)
        assert beats.count("slow") == 1
        go_on.set()
        await until(lambda: beats.count("slow") > 1)
        for each in working:
            each.cancel()
        await asyncio.wait(working)

    run(main)


def test_no_message_is_sent_to_a_disconnected_client():
    async def main():
        peer, go_on = Peer(tells=True), asyncio.Event()
        working = peer.serve(go_on.wait())
        await until(lambda: peer.guests)
        del peer.exchange.scope[CONNECTION_MONITOR]
        go_on.set()
        assert await working is True
        assert not peer.dismissed

    run(main)


def test_a_pulse_beats_on_where_tasks_begin_at_once():
    """With `asyncio.eager_task_factory`, a task may end before its creator has it."""

    async def main():
        beats: list[int] = []

        async def pulse() -> None:
            beats.append(1)

        def eager(loop: Any, work: Any, **more: Any) -> Any:
            try:
                work.send(None)
            except StopIteration:
                done = loop.create_future()
                done.set_result(None)
                return done
            raise AssertionError("it does not wait")

        working = Peer(tells=True).serve(forever(), pulse)
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.set_task_factory(eager)
        try:
            await until(lambda: len(beats) > 2)
        finally:
            loop.set_task_factory(None)
            working.cancel()
            await asyncio.wait([working])

    run(main)


def test_a_pulse_that_fails_beats_on():
    async def main():
        beats: list[int] = []

        async def failing() -> None:
            beats.append(1)
            raise OSError("no store")

        working = Peer(tells=True).serve(forever(), failing)
        await until(lambda: len(beats) > 2)
        working.cancel()
        await asyncio.wait([working])

    run(main)


def test_detached_work_goes_on_without_its_client_and_without_a_pulse():
    async def main():
        peer, go_on, beats = Peer(tells=True), asyncio.Event(), []

        async def pulse() -> None:
            beats.append(1)

        working = peer.serve(go_on.wait(), pulse, is_detached=True)
        await until(lambda: beats)
        (guest,) = peer.guests
        guest.on_disconnect()
        await asyncio.sleep(0.01)
        count = len(beats)
        await asyncio.sleep(0.02)
        assert len(beats) == count
        go_on.set()
        assert await working is True
        assert peer.exchange.is_disconnected

    run(main)


def test_work_that_begins_late_is_watched_all_the_same():
    """For example after a slow function that finds the principal."""

    async def main():
        peer = Peer(tells=True)
        timer = DisconnectTimer(asyncio.get_running_loop())
        timer.fresh[peer.exchange] = False
        timer.start()
        await asyncio.sleep(0.02)
        assert not peer.guests
        working = asyncio.create_task(run_while_connected(peer.exchange, forever()))
        await until(lambda: peer.guests)
        assert not timer.fresh
        peer.guests[0].on_disconnect()
        with pytest.raises(ClientDisconnected):
            await working

    run(main)
