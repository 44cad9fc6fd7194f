"""Work that is done one piece after the other, in the order in which it came, and never by who hands it in.

Keeps callbacks in order without making the reader of a connection wait for them. Knows nothing of what the
work is.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

__all__ = ["MAX_QUEUED_CALLBACKS", "CallbackQueue", "Spawn", "is_task_cancellation"]

MAX_QUEUED_CALLBACKS: Final = 1000
"""How much work may wait: a peer that talks faster than it is listened to must not fill the memory."""

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Who starts a task and answers for its end."""

logger: Final = logging.getLogger("toolpost.client")

# Reaches the threads and the tasks that a piece of work starts, where a look at the current task would not.
_RUNNING_QUEUE: Final[ContextVar["CallbackQueue | None"]] = ContextVar("_RUNNING_QUEUE", default=None)


class CallbackQueue:
    """A queue with a task that lives only as long as there is work."""

    __slots__ = ("_limit", "_spawn", "_task", "_waiting")

    def __init__(self, spawn: Spawn, limit: int = MAX_QUEUED_CALLBACKS) -> None:
        self._spawn = spawn
        self._limit = limit
        self._waiting: deque[Callable[[], Awaitable[object]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Hand in some work; False if too much waits already. Its errors are logged."""
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(work)
        if self._task is None:
            self._task = self._spawn(self._run())
        return True

    @property
    def is_in_callback(self) -> bool:
        """Whether the caller is itself a piece of the work, which would wait for itself."""
        return _RUNNING_QUEUE.get() is self

    async def wait_idle(self) -> None:
        """Return when nothing waits and nothing is being done."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Drop what waits; what is being done may end."""
        self._waiting.clear()

    async def _run(self) -> None:
        _RUNNING_QUEUE.set(self)
        try:
            while self._waiting:
                try:
                    await self._waiting.popleft()()
                except BaseException as error:
                    if is_task_cancellation(error):
                        raise
                    logger.exception("a callback failed")
        finally:
            self._task = None


def is_task_cancellation(error: BaseException) -> bool:
    """Whether an exception is meant for the task that it has reached, and does not come from a callback.

    A callback may raise anything. `SystemExit` and `KeyboardInterrupt` would end the loop with the task, and
    whoever waits would wait for ever.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit)
