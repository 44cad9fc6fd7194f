"""A bounded pool of daemon threads for blocking calls.

An abandoned call keeps its thread until it returns, but not its place in the pool: it neither delays other
calls nor the end of the process.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Final, cast

from toolpost.errors import InternalError

MAX_THREADS: Final = 40  # calls that run at once by default
STUCK_THREADS_FACTOR: Final = 10  # threads per place, including those stuck in abandoned calls


class ThreadPool:
    """The threads of one server or client, started as needed; `most` calls run at once, others wait."""

    def __init__(self, most: int = MAX_THREADS) -> None:
        self._most = most
        self._workers: _WorkerThreads | None = None

    async def run_in_thread(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call with the caller's context variables, and return its result.

        Raises InternalError if all threads are stuck in abandoned calls.
        """
        workers = self._workers = self._workers or _WorkerThreads(self._most)
        job = _ThreadJob(functools.partial(contextvars.copy_context().run, call))
        workers.put(job)
        try:
            value, error = await job.future
        except BaseException:
            workers.abandon(job)
            raise
        if error is not None:
            raise error
        return value

    async def call_function(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the user and return its value. If it is not async, it runs in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        value = await self.run_in_thread(functools.partial(function, *arguments))
        return await value if inspect.isawaitable(value) else value

    def close(self) -> None:
        """Let the threads end after their calls, without waiting for them. New calls get new threads."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    __del__ = close


class _ThreadJob:
    """A call and the future of its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.is_running = False
        self.is_abandoned = False

    def deliver_result(self, value: Any, error: BaseException | None) -> None:
        """Set the result of the future, from any thread.

        An exception is passed as a value: set on a future, some kinds raise TypeError or stop the loop.
        """
        future = self.future
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(lambda: future.done() or future.set_result((value, error)))


class _WorkerThreads:
    """Threads that share a queue; `most` of them may take jobs."""

    def __init__(self, most: int) -> None:
        from queue import SimpleQueue  # noqa: PLC0415 - start-up time

        self._most = most
        self._jobs: SimpleQueue[_ThreadJob | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the attributes below
        self._thread_count = 0  # threads that take jobs
        self._job_count = 0  # jobs that run or wait
        self._stuck_count = 0  # threads in abandoned calls
        self._closed = False

    def put(self, job: _ThreadJob) -> None:
        """Queue a job; InternalError if all threads are stuck."""
        with self._lock:
            self._start_thread_if_needed(self._job_count + 1)
            if not self._thread_count:
                raise self._make_exhausted_error()
            self._job_count += 1
            self._jobs.put(job)

    def abandon(self, job: _ThreadJob) -> None:
        """Free the place of a running job, whose thread is stuck until the call returns."""
        with self._lock:
            if not job.is_running:
                return
            job.is_abandoned = True
            self._stuck_count += 1
            self._thread_count -= 1
            self._job_count -= 1
            self._start_thread_if_needed(self._job_count)
            if not self._thread_count:  # queued jobs would never run
                for _ in range(self._job_count):
                    cast("_ThreadJob", self._jobs.get()).deliver_result(None, self._make_exhausted_error())
                self._job_count = 0

    def close(self) -> None:
        """Let each thread end when no job is left."""
        with self._lock:
            self._closed = True
            for _ in range(self._thread_count):
                self._jobs.put(None)

    def run_jobs(self) -> None:
        """Take jobs until the pool closes or another thread has taken the place."""
        stays = True
        while stays and (job := self._jobs.get()) is not None:
            value, error = None, None
            with self._lock:
                job.is_running = not job.future.cancelled()
            try:
                if job.is_running:
                    value = job.call()
            except BaseException as raised:  # noqa: BLE001 - the caller gets it, whatever it is
                error = raised
            stays = self._finish_job(job)
            job.deliver_result(value, error)
            del job, value, error

    def _finish_job(self, job: _ThreadJob) -> bool:
        """Return whether the thread takes another job: another thread may have its place."""
        with self._lock:
            job.is_running = False
            if not job.is_abandoned:
                self._job_count -= 1
                return True
            self._stuck_count -= 1
            stays = self._thread_count < self._most and not self._closed
            self._thread_count += stays
            return stays

    def _start_thread_if_needed(self, load: int) -> None:
        """Start a thread if this number of jobs needs one more, and the limits allow it."""
        limit = min(load, self._most, STUCK_THREADS_FACTOR * self._most - self._stuck_count)
        if self._thread_count < limit:
            name = f"toolpost-{self._thread_count + 1}"
            threading.Thread(target=self.run_jobs, name=name, daemon=True).start()
            self._thread_count += 1

    def _make_exhausted_error(self) -> InternalError:
        problem = f"all {self._stuck_count} threads are blocked by abandoned calls"
        return InternalError(f"Internal error: {problem}")
