"""A thread with an event loop in it, where the client of a `SyncClient` lives.

Owns the thread from its start to its end; whoever still waits for work in it fails with its end. Homes that
nobody has left are left when the interpreter exits. Knows nothing of what the work is.
"""

import asyncio
import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from toolpost.errors import LocalProtocolError

__all__ = ["CoroutineFactory", "LoopThread"]

CANCEL_TIMEOUT: Final = 5.0
"""Seconds that tasks have to end when they are cancelled: a process needs some to be ended in order."""

EXIT_TIMEOUT: Final = 5.0
"""Seconds that an interpreter which exits waits for all homes to be left in order, before it insists."""

T = TypeVar("T")
CoroutineFactory: TypeAlias = Callable[[], Coroutine[Any, Any, T]]

logger: Final = logging.getLogger("toolpost.client")

_LOOP_THREADS: Final[set["LoopThread"]] = set()
"""Those with a thread. A script may have forgotten its client, which is not left all the same."""


class LoopThread:
    """A thread where coroutines run, from now on and until it is left.

    Args:
        parting: what to do last.
    """

    def __init__(self, parting: CoroutineFactory[None]) -> None:
        self._cleanup = parting
        self._lock = threading.Lock()
        self._is_closing = False
        self._is_closed = False
        self._stop_requested = asyncio.Event()
        self._futures: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run_loop, name="toolpost client", daemon=True)
        _LOOP_THREADS.add(self)
        self.thread.start()

    @property
    def is_closing(self) -> bool:
        """Whether it is being left, and takes no more work."""
        return self._is_closing

    def submit(self, work: CoroutineFactory[T], future: "Future[T]") -> bool:
        """Begin some work; False if the home is being left and takes no more.

        Args:
            work: what to do.
            future: gets its result. It is cancelled when the home is left first, and cancelling it cancels
                the work; whoever made it can do so even if an interrupt keeps us from returning.

        Raises:
            LocalProtocolError: this is the thread itself, which would wait for itself.
        """
        self._check_thread()
        with self._lock:
            if not self._is_closing:
                self._submit_to_loop(work, future)
            return not self._is_closing

    def close(self) -> None:
        """Do what is to be done last, and end the thread. Several may leave at once.

        Raises:
            LocalProtocolError: this is the thread itself, which would wait for itself.
        """
        self._check_thread()
        parting = self.start_closing()
        try:
            if parting is not None:
                parting.result()
        except CancelledError:
            pass  # somebody else was faster
        finally:
            self.stop()
            self.thread.join()

    def start_closing(self) -> "Future[None] | None":
        """Take no more work but the last, and begin that; None if it is done."""
        with self._lock:
            self._is_closing = True
            if self._is_closed:
                return None
            parting: Future[None] = Future()
            self._submit_to_loop(self._cleanup, parting)
            return parting

    def stop(self) -> None:
        """Cancel whatever still runs, and let the thread end."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop_requested.set)

    def _check_thread(self) -> None:
        if threading.current_thread() is self.thread:
            raise LocalProtocolError("an async callback cannot use a SyncClient, which would wait for itself")

    def _submit_to_loop(self, work: CoroutineFactory[T], future: "Future[T]") -> None:
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        self._loop.call_soon_threadsafe(self._start_task, work, future)

    def _start_task(self, work: CoroutineFactory[T], future: "Future[T]") -> None:
        if future.cancelled():
            return

        async def run() -> T:
            return await work()

        def give_up(_: "Future[T]") -> None:
            if future.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(task.cancel)

        task = self._loop.create_task(run())
        task.add_done_callback(partial(_copy_outcome, future))
        future.add_done_callback(give_up)

    def _run_loop(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        main = loop.create_task(self._main())
        try:
            while not main.done():
                try:
                    loop.run_until_complete(main)
                except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                    # A task has ended with it, or a callback stopped the loop. The others go on.
                    logger.debug("the thread of a client goes on after %r", error)
        finally:
            with self._lock:
                self._is_closing = self._is_closed = True
            for future in list(self._futures):
                future.cancel()
            loop.close()
            _LOOP_THREADS.discard(self)

    async def _main(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._stop_requested.wait()
        with self._lock:
            self._is_closing = self._is_closed = True
        await asyncio.sleep(0)  # what was handed over last becomes a task
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            _, stuck = await asyncio.wait(rest, timeout=CANCEL_TIMEOUT)
            if stuck:
                logger.warning("%d tasks refuse to end, and are left alone", len(stuck))
        await self._loop.shutdown_asyncgens()


def _copy_outcome(future: "Future[T]", task: "asyncio.Task[T]") -> None:
    """Give whoever waits what has come of a task."""
    if task.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    error = task.exception()
    if error is None:
        future.set_result(task.result())
    else:
        future.set_exception(error)


@atexit.register
def _close_all() -> None:
    """Leave all homes at once, in bounded time: a server that ignores the end of its stdin would stay."""
    homes = [home for home in list(_LOOP_THREADS) if home.thread.is_alive()]  # none is after a fork
    deadline = time.monotonic() + EXIT_TIMEOUT + CANCEL_TIMEOUT
    wait([parting for home in homes if (parting := home.start_closing())], EXIT_TIMEOUT)
    for home in homes:
        home.stop()
    for home in homes:
        home.thread.join(max(0.0, deadline - time.monotonic()))
