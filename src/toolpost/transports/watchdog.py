"""Ends a process that was told to leave and cannot: a function may block the loop, or refuse to be cancelled.

Owns one thread, which looks at stdin, at the parent process and at the clock, and at nothing else: it works
while the loop does not. A process that ends by itself never hears of it.
"""

import logging
import os
import select
import threading
from typing import Final, Self

__all__ = ["EXIT_GRACE_PERIOD", "Watchdog"]

EXIT_GRACE_PERIOD: Final = 10.0
"""Seconds between being told to leave and being made to: more than all that ends in order may take."""

WATCHDOG_INTERVAL: Final = 1.0
"""Seconds between two looks at the parent process."""

_log: Final = logging.getLogger("toolpost.server")


class Watchdog:
    """Watches over the end of this process while it serves stdin and stdout.

    Args:
        grace: seconds that the process has to end by itself.
    """

    def __init__(self, grace: float = EXIT_GRACE_PERIOD) -> None:
        self._grace = grace
        self._finished = threading.Event()
        self._exit_requested = threading.Event()
        self._parent = os.getppid()

    def request_exit(self, *_: object) -> None:
        """The process is to leave; may be called by a signal."""
        self._exit_requested.set()

    def __enter__(self) -> Self:
        if hasattr(select, "poll"):
            stdin = os.dup(0)
            threading.Thread(target=self._watch, args=(stdin,), name="toolpost-watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()

    def _watch(self, stdin: int) -> None:
        hangup = select.poll()
        hangup.register(stdin, 0)  # nothing but the end of it
        try:
            while not (
                self._finished.is_set() or self._exit_requested.is_set() or os.getppid() != self._parent
            ):
                if hangup.poll(WATCHDOG_INTERVAL * 1000):
                    break
        finally:
            os.close(stdin)
        if not self._finished.wait(self._grace):
            _log.error("the process does not end by itself within %s s, and is ended", self._grace)
            os._exit(0)
