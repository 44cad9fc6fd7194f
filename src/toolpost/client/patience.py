"""How long a client waits, and who hears of it in the meantime.

Owns the numbers that a user gives and what they come to for one request. Waits for nothing itself.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from toolpost.client.call import CallLimits
from toolpost.client.door import check_seconds
from toolpost.client.life import StateCallback
from toolpost.client.threads import CallbackThreads
from toolpost.types.base import UNSET, Unset
from toolpost.types.notices import LogParams, ProgressParams

__all__ = [
    "DEFAULT_MAX_TIMEOUT",
    "ClientTimeouts",
    "EventCallbacks",
    "LogCallback",
    "NotificationCallback",
    "ProgressCallback",
]

DEFAULT_MAX_TIMEOUT: Final = 300.0
"""How long a request with progress may take, unless the user says something else: five minutes of work."""

ProgressCallback: TypeAlias = Callable[[ProgressParams], object]
LogCallback: TypeAlias = Callable[[LogParams], object]
NotificationCallback: TypeAlias = Callable[[str, Any], object]
"""Is given the method and the params: typed where the method is one of the protocol, else a dict."""


class EventCallbacks(NamedTuple):
    """Who hears what the server says without being asked."""

    log: LogCallback | None = None
    progress: ProgressCallback | None = None
    notification: NotificationCallback | None = None
    state: StateCallback | None = None


class ClientTimeouts(NamedTuple):
    """How many seconds to wait: for an answer, one with progress, a connection, a probe, a sign of life."""

    timeout: float | None
    max_timeout: float | Unset | None
    connect_timeout: float | None
    probe_timeout: float
    heartbeat: float | None = None

    def check(self) -> None:
        """Return if all of them are numbers of seconds.

        Raises:
            TypeError: one is no number.
            ValueError: one is not more than 0.
        """
        for what, seconds in self._asdict().items():
            check_seconds(what, None if seconds is UNSET else seconds)

    @property
    def effective_probe_timeout(self) -> float:
        """How long a probe may take: it must leave time for the handshake."""
        wait = self.connect_timeout
        return self.probe_timeout if wait is None else min(self.probe_timeout, wait / 2)

    def make_limits(
        self,
        timeout: float | None,
        progress: ProgressCallback | None,
        crew: CallbackThreads,
        *,
        extendable: bool,
    ) -> CallLimits:
        """What a caller's time-out and progress callback come to."""
        check_seconds("timeout", timeout)
        wait = self.timeout if timeout is None else timeout
        cap = self.max_timeout
        if cap is UNSET:
            cap = DEFAULT_MAX_TIMEOUT  # None waits for ever, unless the user has set a cap
        elif wait is None:
            wait = cap
        if wait is not None and cap is not None:
            cap = max(wait, cap)
        return CallLimits(
            timeout=None if wait == inf else wait,
            cap=cap,
            progress=None if progress is None else partial(crew.run, progress),
            extendable=extendable,
        )
