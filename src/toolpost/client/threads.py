"""Threads for callbacks that are not async, so that none of them ever blocks the loop.

Owns a bounded crew of daemon threads for each client: a callback that is stuck costs one thread of its
client, takes nothing from other clients or from the loop's own executor, and does not keep the process from
ending. Knows nothing of what a callback is for.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

__all__ = ["THREADS", "Crew"]

THREADS: Final = 40
"""Enough for many people who think about an answer at once, few enough for a small machine."""

_Job: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Crew:
    """The threads of one client; each is made when it is first needed.

    Args:
        threads: how many there may be. Callbacks beyond that wait their turn.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._most = threads
        self._size = 0
        self._idle = threading.Semaphore(0)  # counts those that wait for a job, until all were busy once
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    async def run(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """What a callback returns: on the loop if it is async, otherwise in a thread."""
        if inspect.iscoroutinefunction(callback):
            return await callback(*arguments)
        value = await self.in_thread(partial(callback, *arguments))
        return await value if inspect.isawaitable(value) else value

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """What a blocking call returns. It sees the caller's context variables."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self._idle.acquire(blocking=False) and self._size < self._most:
            name = f"toolpost callback {self._size + 1}"
            threading.Thread(target=_serve, args=(self._jobs, self._idle), name=name, daemon=True).start()
            self._size += 1
        self._jobs.put((partial(contextvars.copy_context().run, call), future))
        value, error = await future
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let the threads end once they are done; nobody waits for them. New callbacks get new threads."""
        self._dismiss()
        self._size, self._idle, self._jobs = 0, threading.Semaphore(0), SimpleQueue()

    def __del__(self) -> None:
        self._dismiss()  # a client that nobody closed leaves no threads behind

    def _dismiss(self) -> None:
        for _ in range(self._size):
            self._jobs.put(None)


def _serve(jobs: "SimpleQueue[_Job | None]", idle: threading.Semaphore) -> None:
    """Take jobs until there are no more."""
    while (job := jobs.get()) is not None:
        call, future = job
        value, error = None, None
        try:
            value = None if future.cancelled() else call()  # it may have waited its turn for too long
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to the caller
            error = raised
        idle.release()
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            future.get_loop().call_soon_threadsafe(_settle, future, value, error)
        del job, call, future, value, error


def _settle(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if not future.done():  # otherwise cancelled: nobody waits any more
        # An exception travels as a value: thrown into a task, some kinds of it would end the task unheard.
        future.set_result((value, error))
