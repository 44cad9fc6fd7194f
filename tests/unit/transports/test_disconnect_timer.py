"""The timer of watched requests: one for all, soon after the start and then at intervals."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from hosted import run
from toolpost.server.http import disconnect
from toolpost.server.http.disconnect import DisconnectTimer, DisconnectWatcher
from waiting import until


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "FIRST_CHECK_DELAY", 0.002)
    monkeypatch.setattr(disconnect, "KEEP_ALIVE_INTERVAL", 0.004)


class One(DisconnectWatcher):
    """Somebody, and the visits to them."""

    def __init__(self, name: str = "", visits: list[str] | None = None) -> None:
        self.name = name
        self.visits: list[str] = [] if visits is None else visits

    def on_first_check(self) -> None:
        self.visits.append(f"{self.name}look")

    def on_keep_alive(self) -> None:
        self.visits.append(f"{self.name}beat")


def test_one_is_looked_at_once_and_then_beats():
    async def main():
        one = One()
        DisconnectTimer.for_running_loop().add(one)
        assert not one.visits
        await until(lambda: len(one.visits) > 3)
        assert one.visits[:4] == ["look", "beat", "beat", "beat"]
        DisconnectTimer.for_running_loop().remove(one)

    run(main)


def test_who_comes_first_is_visited_first():
    async def main():
        visits: list[str] = []
        everybody = [One(str(number), visits) for number in range(20)]
        for one in everybody:
            DisconnectTimer.for_running_loop().add(one)
        await until(lambda: len(visits) >= 60)
        for turn, what in enumerate(("look", "beat", "beat")):
            assert [said for said in visits if what in said][20 * (turn == 2) :][:20] == [
                f"{number}{what}" for number in range(20)
            ]
        for one in everybody:
            DisconnectTimer.for_running_loop().remove(one)

    run(main)


def test_who_has_left_is_not_visited_any_more():
    async def main():
        early, late, stays = One(), One(), One()
        for one in (early, late, stays):
            DisconnectTimer.for_running_loop().add(one)
        DisconnectTimer.for_running_loop().remove(early)
        await until(lambda: late.visits)
        DisconnectTimer.for_running_loop().remove(late)
        heard = list(late.visits)
        await until(lambda: len(stays.visits) > 4)
        assert not early.visits
        assert late.visits == heard
        DisconnectTimer.for_running_loop().remove(stays)
        DisconnectTimer.for_running_loop().remove(stays)  # nobody minds

    run(main)


def test_all_have_one_timer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disconnect, "FIRST_CHECK_DELAY", 3600.0)

    async def main():
        loop: Any = asyncio.get_running_loop()
        set_for: list[float] = []
        call_at = loop.call_at

        def counted(when: float, *args: Any, **more: Any) -> Any:
            set_for.append(when)
            return call_at(when, *args, **more)

        loop.call_at = counted
        everybody = [One() for _ in range(100)]
        for one in everybody:
            DisconnectTimer.for_running_loop().add(one)
            DisconnectTimer.for_running_loop().remove(one)
        for one in everybody:
            DisconnectTimer.for_running_loop().add(one)
        assert len(set_for) == 1
        for one in everybody:
            DisconnectTimer.for_running_loop().remove(one)

    run(main)


def test_one_who_cannot_be_visited_keeps_nobody_from_it(caplog: pytest.LogCaptureFixture):
    class Odd(One):
        def on_first_check(self) -> None:
            raise OSError("nobody there")

    async def main():
        odd, one = Odd(), One()
        DisconnectTimer.for_running_loop().add(odd)
        DisconnectTimer.for_running_loop().add(one)
        await until(lambda: len(one.visits) > 2)
        for each in (odd, one):
            DisconnectTimer.for_running_loop().remove(each)

    run(main)
    assert "somebody could not be looked after" in caplog.text


def test_loops_that_begin_meanwhile_in_other_threads_hurt_nobody():
    async def here() -> None:
        DisconnectTimer.for_running_loop()

    class Busy(asyncio.SelectorEventLoop):
        """While somebody looks whether it is closed, another one begins."""

        watched = False

        def is_closed(self) -> bool:
            if self.watched:
                begun.append(asyncio.new_event_loop())
                disconnect._TIMERS[begun[-1]] = DisconnectTimer()
            return super().is_closed()

    begun: list[asyncio.AbstractEventLoop] = []
    busy = Busy()
    busy.run_until_complete(here())
    busy.watched = True
    asyncio.run(here())
    busy.watched = False
    assert begun
    for loop in (busy, *begun):
        loop.close()


def test_each_loop_has_its_own_and_none_is_kept():
    class Stuck(One):
        loop: Any

    left_behind = Stuck()
    loops: list[weakref.ref[Any]] = []

    async def first():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        stuck = Stuck()  # nobody but the patrol holds it, and it holds the loop
        stuck.loop = asyncio.get_running_loop()
        for one in (left_behind, stuck):
            DisconnectTimer.for_running_loop().add(one)

    async def second():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        one = One()
        DisconnectTimer.for_running_loop().add(one)
        await until(lambda: len(one.visits) > 2)
        DisconnectTimer.for_running_loop().remove(one)

    asyncio.run(first())
    asyncio.run(second())
    assert not left_behind.visits
    gc.collect()
    assert [loop() for loop in loops] == [None, None]
