"""Share one piece of async work among any number of waiters, none of whom can cancel it for the others.

Owns the task, which is cancelled with its last waiter. Each event loop has its own task.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class _SharedTask(Generic[T]):
    def __init__(self, task: "asyncio.Task[T]") -> None:
        self.task = task
        self.waiters = 0


class SingleFlight(Generic[T]):
    """Runs work once, however many ask for it at the same time."""

    def __init__(self) -> None:
        self._tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, _SharedTask[T]] = WeakKeyDictionary()

    @property
    def is_running(self) -> bool:
        """Whether the work is under way in this loop."""
        work = self._tasks.get(asyncio.get_running_loop())
        return work is not None and not work.task.done()

    async def join(self, do: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the work under way, or of `do`, which starts it."""
        loop = asyncio.get_running_loop()
        work = self._tasks.get(loop)
        if work is None or work.task.done():
            work = self._tasks[loop] = _SharedTask(loop.create_task(_await_result(do)))
        work.waiters += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiters -= 1
            if not work.waiters and not work.task.done():
                if self._tasks.get(loop) is work:
                    del self._tasks[loop]  # new callers must not join a task that is being cancelled
                work.task.cancel()
                await asyncio.wait([work.task])
            if work.task.done() and not work.task.cancelled():
                work.task.exception()  # mark it as retrieved: a waiter that has left does not


async def _await_result(do: Callable[[], Awaitable[T]]) -> T:
    return await do()
