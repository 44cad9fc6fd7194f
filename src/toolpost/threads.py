"""Threads for calls that block, so that none of them ever blocks a loop.

Owns a bounded pool of daemon threads. A call that was given up keeps its thread as long as it likes, but not
its place: it holds up nobody else, and does not keep the process from ending. What is called is not known.
"""

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from toolpost.errors import InternalError

if TYPE_CHECKING:
    from queue import SimpleQueue

__all__ = ["STUCK", "THREADS", "Threads"]

THREADS: Final = 40
"""Enough for many slow calls at once, few enough for a small machine."""

STUCK: Final = 10
"""Threads per place, counting those that are stuck in calls which were given up. Nothing can end such a
thread, and each costs memory: with more of them the whole machine would suffer from one bad function.
"""


class Threads:
    """The threads of one server or client; each is made when it is first needed.

    Args:
        most: how many may be at work. Calls beyond that wait their turn.
    """

    def __init__(self, most: int = THREADS) -> None:
        self._crew = _Crew(most)

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """What a blocking call returns. It sees the caller's context variables.

        Raises:
            InternalError: all threads that there may be are stuck in calls that were given up.
        """
        crew = self._crew
        job = _Job(functools.partial(contextvars.copy_context().run, call), asyncio.get_running_loop())
        crew.put(job)
        try:
            value, error = await job.future
        except BaseException:  # nobody waits for it any more
            crew.give_up(job)
            raise
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Let the threads end once they are done; nobody waits for them. New calls get new threads."""
        crew, self._crew = self._crew, _Crew(self._crew.most)
        crew.close()

    def __del__(self) -> None:
        self._crew.close()  # who is forgotten without being closed leaves no threads behind


class _Job:
    """A call, and who waits for it."""

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.runs = False
        self.stuck = False

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Hand over what became of it, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            self.loop.call_soon_threadsafe(_settle, self.future, value, error)


class _Crew:
    """Threads that share a queue.

    Attributes:
        most: how many may take jobs.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._jobs: SimpleQueue[_Job | None]
        """Made with the first job."""
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._size = 0
        """The threads that take jobs."""
        self._load = 0
        """The jobs that they have, or that wait for them."""
        self._stuck = 0
        """The threads in calls that were given up."""
        self._closed = False

    def put(self, job: _Job) -> None:
        """Have a job done.

        Raises:
            InternalError: there is no thread for it, and can be none.
        """
        with self._lock:
            if not hasattr(self, "_jobs"):
                from queue import SimpleQueue  # noqa: PLC0415 - 0.6 ms of a start

                self._jobs = SimpleQueue()
            self._grow(self._load + 1)
            if not self._size:
                raise self._exhausted()
            self._load += 1
            self._jobs.put(job)

    def give_up(self, job: _Job) -> None:
        """Free the place of a job, if it has one: the thread is lost until the call returns."""
        with self._lock:
            if not job.runs:
                return
            job.stuck = True
            self._stuck += 1
            self._size -= 1
            self._load -= 1
            self._grow(self._load)
            if not self._size:  # whatever waits would wait for ever
                for _ in range(self._load):
                    cast("_Job", self._jobs.get()).settle(None, self._exhausted())
                self._load = 0

    def close(self) -> None:
        """Let each thread end when there are no more jobs."""
        with self._lock:
            self._closed = True
            for _ in range(self._size):
                self._jobs.put(None)

    def serve(self) -> None:
        """Take jobs until there are no more."""
        stays = True
        while stays and (job := self._jobs.get()) is not None:
            value, error = None, None
            try:
                if self._begin(job):
                    value = job.call()
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to the caller
                error = raised
            stays = self._end(job)
            job.settle(value, error)
            del job, value, error

    def _begin(self, job: _Job) -> bool:
        """Whether the job is still wanted: it may have waited its turn for too long."""
        with self._lock:
            job.runs = not job.future.cancelled()
            return job.runs

    def _end(self, job: _Job) -> bool:
        """Whether the thread is to take another job: another one may have its place by now."""
        with self._lock:
            job.runs = False
            if not job.stuck:
                self._load -= 1
                return True
            self._stuck -= 1
            stays = self._size < self.most and not self._closed
            self._size += stays
            return stays

    def _grow(self, load: int) -> None:
        """Make a thread if this many jobs need one more, and there may be one."""
        if self._size < min(load, self.most, STUCK * self.most - self._stuck):
            threading.Thread(target=self.serve, name=f"toolpost-{self._size + 1}", daemon=True).start()
            self._size += 1

    def _exhausted(self) -> InternalError:
        return InternalError(
            f"Internal error: all {self._stuck} threads are stuck in calls that were given up"
        )


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not future.done():  # otherwise cancelled: nobody waits any more
        # An exception travels as a value: thrown into a task, some kinds of it would end the task unheard.
        future.set_result((value, error))
