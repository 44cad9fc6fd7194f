"""Share one piece of async work among any number of waiters, none of whom can cancel it for the others.

Owns the task, which is cancelled with its last waiter. While it runs, it belongs to one event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _SharedTask(Generic[T]):
    def __init__(self, do: Callable[[], Awaitable[T]]) -> None:
        self.task = asyncio.ensure_future(do())
        self.waiters = 0


class SingleFlight(Generic[T]):
    """Runs work once, however many ask for it at the same time."""

    def __init__(self) -> None:
        self._work: _SharedTask[T] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the work is under way."""
        return self._work is not None and not self._work.task.done()

    async def join(self, do: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the work under way, or of `do`, which starts it."""
        work = self._work
        if work is None or work.task.done():
            work = self._work = _SharedTask(do)
        work.waiters += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiters -= 1
            if not work.waiters and not work.task.done():
                if self._work is work:
                    self._work = None  # new callers must not join a task that is being cancelled
                work.task.cancel()
                await asyncio.wait([work.task])
            if work.task.done() and not work.task.cancelled():
                work.task.exception()  # mark it as retrieved: a waiter that has left does not
