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

__all__ = ["Home", "Work"]

END_PATIENCE: Final = 5.0
"""Seconds that tasks have to end when they are cancelled: a process needs some to be ended in order."""

EXIT_PATIENCE: Final = 5.0
"""Seconds that an interpreter which exits waits for all homes to be left in order, before it insists."""

T = TypeVar("T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, T]]

logger: Final = logging.getLogger("toolpost.client")

_HOMES: Final[set["Home"]] = set()
"""Those with a thread. A script may have forgotten its client, which is not left all the same."""


class Home:
    """A thread where coroutines run, from now on and until it is left.

    Args:
        parting: what to do last.
    """

    def __init__(self, parting: Work[None]) -> None:
        self._parting = parting
        self._gate = threading.Lock()
        self._leaving = False
        self._over = False
        self._left = asyncio.Event()
        self._waiting: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._live, name="toolpost client", daemon=True)
        _HOMES.add(self)
        self.thread.start()

    @property
    def left(self) -> bool:
        """Whether it is being left, and takes no more work."""
        return self._leaving

    def begin(self, work: Work[T], future: "Future[T]") -> bool:
        """Begin some work; False if the home is being left and takes no more.

        Args:
            work: what to do.
            future: gets its result. It is cancelled when the home is left first, and cancelling it cancels
                the work; whoever made it can do so even if an interrupt keeps us from returning.

        Raises:
            LocalProtocolError: this is the thread itself, which would wait for itself.
        """
        self._check_thread()
        with self._gate:
            if not self._leaving:
                self._hand_over(work, future)
            return not self._leaving

    def leave(self) -> None:
        """Do what is to be done last, and end the thread. Several may leave at once.

        Raises:
            LocalProtocolError: this is the thread itself, which would wait for itself.
        """
        self._check_thread()
        parting = self.begin_leaving()
        try:
            if parting is not None:
                parting.result()
        except CancelledError:
            pass  # somebody else was faster
        finally:
            self.stop()
            self.thread.join()

    def begin_leaving(self) -> "Future[None] | None":
        """Take no more work but the last, and begin that; None if it is done."""
        with self._gate:
            self._leaving = True
            if self._over:
                return None
            parting: Future[None] = Future()
            self._hand_over(self._parting, parting)
            return parting

    def stop(self) -> None:
        """Cancel whatever still runs, and let the thread end."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._left.set)

    def _check_thread(self) -> None:
        if threading.current_thread() is self.thread:
            raise LocalProtocolError("an async callback cannot use a SyncClient, which would wait for itself")

    def _hand_over(self, work: Work[T], future: "Future[T]") -> None:
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        self._loop.call_soon_threadsafe(self._start, work, future)

    def _start(self, work: Work[T], future: "Future[T]") -> None:
        if future.cancelled():
            return

        async def run() -> T:
            return await work()

        def give_up(_: "Future[T]") -> None:
            if future.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(task.cancel)

        task = self._loop.create_task(run())
        task.add_done_callback(partial(_pass_on, future))
        future.add_done_callback(give_up)

    def _live(self) -> None:
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
            with self._gate:
                self._leaving = self._over = True
            for future in list(self._waiting):
                future.cancel()
            loop.close()
            _HOMES.discard(self)

    async def _main(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._left.wait()
        with self._gate:
            self._leaving = self._over = True
        await asyncio.sleep(0)  # what was handed over last becomes a task
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            _, stuck = await asyncio.wait(rest, timeout=END_PATIENCE)
            if stuck:
                logger.warning("%d tasks refuse to end, and are left alone", len(stuck))
        await self._loop.shutdown_asyncgens()


def _pass_on(future: "Future[T]", task: "asyncio.Task[T]") -> None:
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
def _leave_all() -> None:
    """Leave all homes at once, in bounded time: a server that ignores the end of its stdin would stay."""
    homes = [home for home in list(_HOMES) if home.thread.is_alive()]  # none is after a fork
    deadline = time.monotonic() + EXIT_PATIENCE + END_PATIENCE
    wait([parting for home in homes if (parting := home.begin_leaving())], EXIT_PATIENCE)
    for home in homes:
        home.stop()
    for home in homes:
        home.thread.join(max(0.0, deadline - time.monotonic()))
