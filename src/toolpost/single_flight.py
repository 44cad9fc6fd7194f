"""One piece of work for any number of waiters, none of whom can break it for the others.

Owns the task, which ends when nobody waits any more. Knows nothing of what is done. A flight may be used from
several event loops; each has its own work then.
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
    """Work that is done once, however many want it done at the same time."""

    def __init__(self) -> None:
        self._tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, _SharedTask[T]] = WeakKeyDictionary()

    @property
    def is_running(self) -> bool:
        """Whether the work is being done in this loop."""
        work = self._tasks.get(asyncio.get_running_loop())
        return work is not None and not work.task.done()

    async def join(self, do: Callable[[], Awaitable[T]]) -> T:
        """What comes of the work that is being done, or is begun now.

        Args:
            do: begins the work; not called if it is being done.
        """
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
                    del self._tasks[loop]  # who comes now wants it done, and not what is being given up
                work.task.cancel()  # nobody wants it any more
                await asyncio.wait([work.task])
            if work.task.done() and not work.task.cancelled():
                work.task.exception()  # each waiter has its own; one that has left does not look


async def _await_result(do: Callable[[], Awaitable[T]]) -> T:
    return await do()
