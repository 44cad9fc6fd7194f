"""Single flight: concurrent callers share one running task.

A cancelled caller does not cancel the task for the others; the last one does. A running task belongs to one
event loop.
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
    """Runs work once for all callers that need it at the same time."""

    def __init__(self) -> None:
        self._work: _SharedTask[T] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the work is running."""
        return self._work is not None and not self._work.task.done()

    async def join(self, do: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the running work; if there is none, start `do`."""
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
                work.task.exception()  # mark it as retrieved: a cancelled caller does not
