"""The timer of long requests: one per worker; it watches requests that run at two checks."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from raw_server import Clock
from raw_server import run as run_until_complete
from toolpost.server.http.disconnect_timer import CHECK_INTERVAL, DisconnectTimer
from waiting import until

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a clock of its own."""
    run_until_complete(main(), Clock)


class Request:
    """A request, and how often it was asked to watch for a disconnect."""

    def __init__(self, *, fails: bool = False) -> None:
        self.visits = 0
        self.fails = fails

    def start_watching(self) -> bool:
        if self.fails:
            raise OSError("no")
        self.visits += 1
        return True


def watch(timer: Any, request: Request) -> None:
    """Act like the code that serves a request."""
    timer.fresh[request] = False
    if not timer.is_checking:
        timer.start()


def make_timer() -> Any:
    return DisconnectTimer(asyncio.get_running_loop())


def test_a_request_is_watched_once():
    async def main():
        timer, one = make_timer(), Request()
        watch(timer, one)
        assert not one.visits
        await until(lambda: one.visits)
        await asyncio.sleep(10 * CHECK_INTERVAL)
        assert one.visits == 1

    run(main)


def test_a_request_that_ends_soon_is_not_watched():
    async def main():
        timer, short, stays = make_timer(), Request(), Request()
        watch(timer, short)
        watch(timer, stays)
        timer.fresh.pop(short, None)
        await until(lambda: any(timer.fresh.values()) or stays.visits)
        watch(timer, late := Request())
        await until(lambda: stays.visits)
        timer.fresh.pop(stays, None)
        timer.fresh.pop(late, None)
        timer.fresh.pop(late, None)  # no error
        await asyncio.sleep(10 * CHECK_INTERVAL)
        assert (short.visits, late.visits) == (0, 0)

    run(main)


def test_all_have_one_timer_which_ends_with_them(monkeypatch: pytest.MonkeyPatch):
    async def main():
        loop: Any = asyncio.get_running_loop()
        timer, set_for = make_timer(), []
        call_later = loop.call_later

        def counted(delay: float, *args: Any, **more: Any) -> Any:
            set_for.extend([delay] if args[0] == timer._check else [])
            return call_later(delay, *args, **more)

        monkeypatch.setattr(loop, "call_later", counted)
        for _ in range(2):
            for exchange in [Request() for _ in range(100)]:
                watch(timer, exchange)
                timer.fresh.pop(exchange, None)
        assert len(set_for) == 1
        await until(lambda: not timer.is_checking)
        count = len(set_for)
        await asyncio.sleep(10 * CHECK_INTERVAL)
        assert len(set_for) == count
        watch(timer, one := Request())
        assert len(set_for) == count + 1
        timer.fresh.pop(one, None)

    run(main)


def test_a_request_that_cannot_be_watched_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture):
    async def main():
        timer, one = make_timer(), Request()
        watch(timer, Request(fails=True))
        watch(timer, one)
        await until(lambda: one.visits)

    run(main)
    assert "could not watch a request" in caplog.text


def test_the_timer_has_no_context_of_a_request():
    async def main():
        WHO.set("ann")
        seen: list[str] = []

        class Curious(Request):
            def start_watching(self) -> bool:
                seen.append(WHO.get())
                return True

        watch(make_timer(), Curious())
        await until(lambda: seen)
        assert seen == ["nobody"]

    run(main)
