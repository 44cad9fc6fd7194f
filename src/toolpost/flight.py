"""One piece of work for any number of waiters, none of whom can break it for the others.

Owns the task, which ends when nobody waits any more. Knows nothing of what is done. A flight may be used from
several event loops; each has its own work then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["Flight"]

T = TypeVar("T")


class _Work(Generic[T]):
    def __init__(self, task: "asyncio.Task[T]") -> None:
        self.task = task
        self.waiting = 0


class Flight(Generic[T]):
    """Work that is done once, however many want it done at the same time."""

    def __init__(self) -> None:
        self._works: WeakKeyDictionary[asyncio.AbstractEventLoop, _Work[T]] = WeakKeyDictionary()

    @property
    def busy(self) -> bool:
        """Whether the work is being done in this loop."""
        work = self._works.get(asyncio.get_running_loop())
        return work is not None and not work.task.done()

    async def join(self, do: Callable[[], Awaitable[T]]) -> T:
        """What comes of the work that is being done, or is begun now.

        Args:
            do: begins the work; not called if it is being done.
        """
        loop = asyncio.get_running_loop()
        work = self._works.get(loop)
        if work is None or work.task.done():
            work = self._works[loop] = _Work(loop.create_task(_awaited(do)))
        work.waiting += 1
        try:
            return await asyncio.shield(work.task)
        finally:
            work.waiting -= 1
            if not work.waiting and not work.task.done():
                if self._works.get(loop) is work:
                    del self._works[loop]  # who comes now wants it done, and not what is being given up
                work.task.cancel()  # nobody wants it any more
                await asyncio.wait([work.task])
            if work.task.done() and not work.task.cancelled():
                work.task.exception()  # each waiter has its own; one that has left does not look


async def _awaited(do: Callable[[], Awaitable[T]]) -> T:
    return await do()
