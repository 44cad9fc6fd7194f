"""The timer of long requests: one for all of a worker; it watches those that are there at two checks."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from hosted import run
from toolpost.server.http import disconnect
from toolpost.server.http.disconnect import DisconnectTimer
from waiting import until

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "CHECK_INTERVAL", 0.002)
    monkeypatch.setattr(disconnect, "KEEP_ALIVE_INTERVAL", 0.004)


class Request:
    """A request, and what the timer did with it."""

    def __init__(self, name: str = "", visits: list[str] | None = None, *, fails: bool = False) -> None:
        self.name = name
        self.visits: list[str] = [] if visits is None else visits
        self.fails = fails

    def start_watching(self, timer: Any) -> bool:
        if self.fails:
            raise OSError("no")
        self.visits.append(f"{self.name}watch")
        timer.keep_alive(self)
        return True

    def on_keep_alive(self) -> None:
        self.visits.append(f"{self.name}beat")


def watch(timer: Any, request: Request) -> None:
    """Do as those who serve a request."""
    timer.fresh[request] = False
    if not timer.is_checking:
        timer.start()


class Timer(DisconnectTimer):
    """A timer that is used as an endpoint does."""

    def add(self, request: Any) -> None:
        self.fresh[request] = False
        if not self.is_checking:
            self.start()

    def remove(self, request: Any) -> None:
        self.fresh.pop(request, None)


def make_timer() -> Any:
    return Timer(asyncio.get_running_loop())


def test_a_request_is_watched_once_and_then_kept_alive():
    async def main():
        timer, one = make_timer(), Request()
        watch(timer, one)
        assert not one.visits
        await until(lambda: len(one.visits) > 3)
        assert one.visits[:4] == ["watch", "beat", "beat", "beat"]
        timer.forget(one)
        timer.forget(one)  # no error
        heard = len(one.visits)
        await asyncio.sleep(0.02)
        assert len(one.visits) == heard

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
        await asyncio.sleep(0.02)
        assert (short.visits, late.visits) == ([], [])
        timer.forget(stays)

    run(main)


def test_requests_are_kept_alive_in_their_order():
    async def main():
        visits: list[str] = []
        timer, requests = make_timer(), [Request(f"{number} ", visits) for number in range(20)]
        for request in requests:
            watch(timer, request)
        await until(lambda: len(visits) >= 60)
        assert visits[:20] == [f"{number} watch" for number in range(20)]
        assert visits[20:60] == [f"{number} beat" for number in range(20)] * 2
        for request in requests:
            timer.forget(request)

    run(main)


def test_all_have_one_timer_which_ends_with_them(monkeypatch: pytest.MonkeyPatch):
    async def main():
        loop: Any = asyncio.get_running_loop()
        timer, set_for = make_timer(), []
        call_at = loop.call_at

        def counted(when: float, *args: Any, **more: Any) -> Any:
            set_for.extend([when] if args[0] == timer._check else [])
            return call_at(when, *args, **more)

        monkeypatch.setattr(loop, "call_at", counted)
        for _ in range(2):
            for request in [Request() for _ in range(100)]:
                watch(timer, request)
                timer.fresh.pop(request, None)
        assert len(set_for) == 1
        await until(lambda: not timer.is_checking)
        count = len(set_for)
        await asyncio.sleep(0.02)
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
        await until(lambda: len(one.visits) > 2)
        timer.forget(one)

    run(main)
    assert "a request could not be watched" in caplog.text


def test_the_timer_has_no_context_of_a_request():
    async def main():
        WHO.set("ann")
        seen: list[str] = []

        class Curious(Request):
            def start_watching(self, timer: Any) -> bool:
                seen.append(WHO.get())
                return True

        watch(make_timer(), Curious())
        await until(lambda: seen)
        assert seen == ["nobody"]

    run(main)
