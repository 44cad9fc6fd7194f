"""Threads for functions that are not async, so that none of them ever blocks the loop.

Owns a bounded pool of daemon threads: one that is stuck costs one thread, holds up nobody else, and does not
keep the process from ending. Knows how a function is called, and nothing of what it is for.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from toolpost.server.context import Context
from toolpost.server.media import Media
from toolpost.server.sync import SyncContext

if TYPE_CHECKING:
    from toolpost.server.bind import Bound
    from toolpost.server.verbatim import Verbatim

__all__ = ["THREADS", "Work"]

THREADS: Final = 40
"""Enough for many slow functions at once, few enough for a small machine."""

_Job: TypeAlias = tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class Work:
    """The threads of one server; each is made when it is first needed.

    Args:
        threads: how many there may be. Calls beyond that wait their turn.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._most = threads
        self._crew = _Crew()

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """What a blocking call returns. It sees the caller's context variables."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        crew = self._crew
        crew.jobs.put((lambda: context.run(call), future, loop))
        if not crew.idle.acquire(blocking=False) and crew.size < self._most:
            crew.size += 1
            threading.Thread(target=crew.serve, name=f"toolpost-{crew.size}", daemon=True).start()
        value, error = await future
        if error is not None:
            raise error
        return value

    async def run(self, bound: "Bound | Verbatim", arguments: Any, context: Context) -> Any:
        """What a function returns that was bound: on the loop if it is async, otherwise in a thread."""
        if bound.is_async:
            value = await bound.call(arguments, context)
        else:
            loop = asyncio.get_running_loop()
            value = await self.in_thread(lambda: bound.call(arguments, SyncContext(context, loop)))
        return await self.in_thread(lambda: _loaded(value)) if _has_file(value) else value

    def close(self) -> None:
        """Let the threads end once they are done; nobody waits for them. New calls get new threads."""
        crew, self._crew = self._crew, _Crew()
        for _ in range(crew.size):
            crew.jobs.put(None)


def _has_file(value: Any) -> bool:
    """Whether a file has to be read before the value can be sent."""
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else (value,)
    return any(isinstance(item, Media) and item.path is not None for item in items)


def _loaded(value: Any) -> Any:
    """The value with the files in it read."""
    if isinstance(value, Media):
        return value.loaded()
    return [item.loaded() if isinstance(item, Media) else item for item in value]


class _Crew:
    """Threads that share a queue. `idle` counts those that wait for a job, as long as not all are busy."""

    def __init__(self) -> None:
        self.size = 0
        self.idle = threading.Semaphore(0)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def serve(self) -> None:
        """Take jobs until there are no more."""
        while (job := self.jobs.get()) is not None:
            call, future, loop = job
            value, error = None, None
            try:
                value = None if future.cancelled() else call()  # it may have waited its turn for too long
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to the caller
                error = raised
            self.idle.release()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                loop.call_soon_threadsafe(_settle, future, value, error)
            del job, call, future, value, error


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not future.done():  # otherwise cancelled: nobody waits any more
        # An exception travels as a value: thrown into a task, some kinds of it would end the task unheard.
        future.set_result((value, error))
