"""The options of a client: the defaults of time-outs and retries, and the callbacks for events.

Holds every default once; `Client` spells them out as keywords. Checks the values and computes the limits of
one request from them. Waiting and retrying is done in `client.connection`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from toolpost.client.arguments import check_seconds
from toolpost.client.connection.incoming import CallbackThreads
from toolpost.client.connection.pending import CallLimits
from toolpost.client.connection.status import StateCallback
from toolpost.types.base import UNSET, Unset
from toolpost.types.notifications import LogParams, ProgressParams

DEFAULT_MAX_TIMEOUT: Final = 300.0
"""Seconds that a request with progress may take in all, unless `max_timeout` is given."""

ProgressCallback: TypeAlias = Callable[[ProgressParams], object]
LogCallback: TypeAlias = Callable[[LogParams], object]
NotificationCallback: TypeAlias = Callable[[str, Any], object]
"""Receives the method and the params: typed where the method is one of the protocol, else a dict."""


class EventCallbacks(NamedTuple):
    """Callbacks for what the server sends without being asked, and for the state of the connection."""

    log: LogCallback | None = None
    progress: ProgressCallback | None = None
    notification: NotificationCallback | None = None
    state: StateCallback | None = None


@dataclass(frozen=True)
class ClientOptions:
    """What a user of a client can tune. All times are in seconds."""

    timeout: float | None = 60.0
    """How long to wait for an answer; progress restarts it. None waits without limit."""
    max_timeout: float | Unset | None = UNSET
    """How long to wait in all, whatever the progress: `DEFAULT_MAX_TIMEOUT` if unset, None for no limit."""
    connect_timeout: float | None = 30.0
    """How long opening a connection may take, negotiation included."""
    probe_timeout: float = 5.0
    """How long to wait for the answer to the first request, which old servers may not send."""
    heartbeat: float | None = None
    """The interval between two pings; None sends none."""
    retries: int = 2
    """How often a request that was lost is sent again."""
    strict: bool = False
    """Whether an item of a list that cannot be decoded is an error, instead of being left out."""
    cache: bool = True
    """Whether to cache lists and resources as long as a stateless server allows."""

    def __post_init__(self) -> None:
        for name in ("timeout", "max_timeout", "connect_timeout", "probe_timeout", "heartbeat"):
            seconds = getattr(self, name)
            check_seconds(name, None if seconds is UNSET else seconds)
        if not isinstance(self.retries, int) or self.retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users err
            raise ValueError(
                f"retries: how often a request is sent once more, 0 or more, not {self.retries!r}"
            )

    @property
    def effective_probe_timeout(self) -> float:
        """The time-out of the probe, shortened where that is needed to leave time for the handshake."""
        wait = self.connect_timeout
        return self.probe_timeout if wait is None else min(self.probe_timeout, wait / 2)

    def make_limits(
        self,
        timeout: float | None,
        progress: ProgressCallback | None,
        threads: CallbackThreads,
        *,
        extendable: bool,
    ) -> CallLimits:
        """Return the limits of a request with this time-out and progress callback."""
        check_seconds("timeout", timeout)
        wait = self.timeout if timeout is None else timeout
        cap = self.max_timeout
        if cap is UNSET:
            cap = DEFAULT_MAX_TIMEOUT  # a time-out of None is not capped by this
        elif wait is None:
            wait = cap
        if wait is not None and cap is not None:
            cap = max(wait, cap)
        return CallLimits(
            timeout=None if wait == inf else wait,
            cap=cap,
            progress=None if progress is None else partial(threads.run, progress),
            extendable=extendable,
        )
