"""Several processes that do the same work: started together, replaced when one dies, ended together.

Owns the processes and the signals of the one that started them. Knows nothing of the work.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

__all__ = ["WorkerProcesses"]

server_logger: Final = logging.getLogger("toolpost.server")

MIN_WORKER_LIFETIME: Final = 1.0
"""Seconds that a worker has to live: one that dies sooner would die again, and is not replaced."""

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class WorkerProcesses:
    """Processes that fork from this one.

    Args:
        count: how many.
        work: what each of them does, until SIGTERM tells it to stop.
    """

    def __init__(self, count: int, work: Callable[[], None]) -> None:
        self._count = count
        self._work = work
        self._started_at: dict[int, float] = {}
        self._stopping = False

    def run(self) -> None:
        """Let them work until a signal tells us to stop.

        Raises:
            RuntimeError: one has died as soon as it was started.
        """
        # Who holds only the reading end of it learns of our death, however sudden.
        ours, theirs = os.pipe()
        before = {number: signal.signal(number, self._stop) for number in _STOP_SIGNALS}
        try:
            for _ in range(self._count):
                self._start(ours, theirs)
            self._replace_dead(ours, theirs)
        finally:
            self._stop()
            for pid in list(self._started_at):
                os.waitpid(pid, 0)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(ours)
            os.close(theirs)

    def _replace_dead(self, ours: int, theirs: int) -> None:
        """Replace those who die, until all are gone because they were told to."""
        while self._started_at:
            pid, status = os.wait()
            started = self._started_at.pop(pid, None)
            if started is None or self._stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            if time.monotonic() - started < MIN_WORKER_LIFETIME:
                raise RuntimeError(f"a worker has ended with code {code} as soon as it was started")
            server_logger.error("worker %d has ended with code %d, and is replaced", pid, code)
            self._start(ours, theirs)

    def _start(self, ours: int, theirs: int) -> None:
        # A signal that came here would be heard by a process that does not know yet who it is.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        pid = os.fork()
        if pid:
            self._started_at[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            if self._stopping:
                self._stop()
            return
        code = 1
        try:
            for number in _STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            os.close(theirs)
            threading.Thread(target=_exit_with_parent, args=(ours,), daemon=True).start()
            self._work()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 - what is raised here must not reach the code of the parent
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for pid in self._started_at:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _exit_with_parent(ours: int) -> None:
    os.read(ours, 1)
    os.kill(os.getpid(), signal.SIGTERM)
