"""A simulated event loop with its own clock: one seed determines time, chance and order.

Nothing in it waits: if no task can continue, the clock jumps to the next timer. Without a timer the
simulation is stuck, which is an error. There are no threads and no descriptors. While it runs, `time` and
`secrets` return the simulated time and chance.

The order of `call_soon` is kept, because all asyncio code depends on it. What differs between two real runs
is random: when a message arrives, and how long work takes (the actors use `rng`); which of several timers of
the same instant is first; whether these run in one iteration of the loop or in several; and how much time an
iteration takes, so that a timer may expire in the middle of something. Another seed may make it slower,
coarser, or both.
"""

import asyncio
import gc
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from itertools import count
from typing import Any, Self, TypeVar

import pytest

__all__ = ["Stuck", "World"]

EPOCH = 1_800_000_000.0
"""The Unix time at which a simulation begins."""

TURNS = 200_000
"""The limit of loop iterations of a simulation: the longest one needs a hundredth of it."""

INSTANT = 1e-6
"""Seconds within which timers come in any order."""

PACES = (0.0, 0.0, 1e-5, 1e-3)
"""Seconds that one iteration of the loop takes: negligible, or those of a busy machine."""

GRAINS = (1e-9, 2 * INSTANT, 2e-3)
"""Seconds that the loop's clock cannot tell apart: timers within them run in one iteration."""

T = TypeVar("T")


class Stuck(AssertionError):
    """A task waits and no timer is left, or the simulation never ends."""


class _Task(asyncio.Task[Any]):
    """A task that has the same place in a set in every run: others are sorted by their address."""

    _numbers = count(1)

    def __new__(cls, *_: Any, **__: Any) -> Self:
        task = super().__new__(cls)
        task.number = next(cls._numbers)
        return task

    number: int

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """The same for a future."""

    _numbers = count(1)

    def __new__(cls, *_: Any, **__: Any) -> Self:
        future = super().__new__(cls)
        future.number = next(cls._numbers)
        return future

    number: int

    def __hash__(self) -> int:
        return self.number


class _Ear(logging.Handler):
    """Records the errors that toolpost logs."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self._errors.append(f"{record.name}: {record.getMessage()}" + (f": {cause!r}" if cause else ""))


class World(asyncio.BaseEventLoop):
    """A simulated event loop: without I/O, threads and real time.

    Args:
        seed: determines everything that is random.

    Attributes:
        rng: the random generator of the actors.
        trace: the events so far, one line each.
        errors: the errors that toolpost or the loop reported.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.rng = random.Random(seed)
        self.trace: list[str] = []
        self.errors: list[str] = []
        self._now = 0.0
        self._turns = 0
        self._order = random.Random(self.rng.random())
        self._pace = self.rng.choice(PACES)
        self._clock_resolution = self.rng.choice(GRAINS)
        self._selector = self
        self._scheduled: list[asyncio.TimerHandle]
        _Task._numbers, _Future._numbers = count(1), count(1)
        self.set_task_factory(lambda loop, coro, **more: _Task(coro, loop=loop, **more))
        self.set_exception_handler(self._complain)

    def note(self, what: str) -> None:
        """Add an event to the trace."""
        self.trace.append(f"{self._now:11.6f} {what}")

    def live(self, play: Callable[["World"], Coroutine[Any, Any, T]]) -> T:
        """Run a scenario once, and return its result. Closes the loop.

        Raises:
            Stuck: it does not end.
        """
        with self._alone():
            try:
                return self.run_until_complete(play(self))
            finally:
                self.run_until_complete(self.shutdown_asyncgens())
                self.errors += [f"left behind: {task}" for task in asyncio.all_tasks(self)]
                self._discard()
                self.close()
                gc.collect(0)  # garbage of this simulation: its finalizers may report errors

    # ----------------------------------------------------------------- time and order

    def time(self) -> float:
        """Return the seconds since the start."""
        return self._now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Schedule a call; calls of the same instant run in random order."""
        late = self._order.random() * INSTANT
        return super().call_at(when + late, callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        """Create a future of this loop."""
        return _Future(loop=self)

    def _run_once(self) -> None:
        self._turns += 1
        self._now += self._pace
        if self._turns > TURNS:
            raise Stuck(f"{TURNS} turns, and no end; at work: {asyncio.all_tasks(self)}")
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs

    def select(self, timeout: float | None) -> list[Any]:
        """Let time pass, like a selector without events."""
        if timeout is None:
            raise Stuck(f"nothing will ever happen; waiting: {asyncio.all_tasks(self)}")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Do nothing: no other thread has to be woken."""

    # ----------------------------------------------------------------- the end of the world

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _discard(self) -> None:
        """Cancel the tasks that a scenario left behind; they were reported already."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.wait(left, timeout=60))

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Replace the clock, random sources and logging of the process meanwhile."""
        state, collects = random.getstate(), gc.isenabled()
        gc.disable()  # when it comes is chance, too
        ear = _Ear(self.errors)
        logs = [logging.getLogger("toolpost"), logging.getLogger("asyncio")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: EPOCH + self._now)
            patch.setattr(time, "time_ns", lambda: int((EPOCH + self._now) * 1e9))
            patch.setattr(time, "monotonic", self.time)
            source = random.Random(self.rng.random())
            patch.setattr(secrets, "_sysrand", source)
            patch.setattr(secrets, "randbits", source.getrandbits)
            random.seed(self.seed)
            for log in logs:
                patch.setattr(log, "propagate", False)  # others would write it all down, which takes long
                log.addHandler(ear)
            try:
                yield
            finally:
                for log in logs:
                    log.removeHandler(ear)
                random.setstate(state)
                if collects:
                    gc.enable()
