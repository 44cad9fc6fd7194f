"""Runs work over a connection, and again where that is harmless and there is time.

Owns the tries of a request, from the wait for a connection to the last error: the methods that are safe to
repeat, the number of tries, the pauses between them, and the circuit breaker. `reconnect` restores the
connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final, TypeVar, cast

from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import NO_LIMITS, CallLimits
from toolpost.client.connection.reconnect import MIN_BACKOFF, Backoff, Reconnector
from toolpost.client.connection.status import ConnectionState, Stats, Transition
from toolpost.errors import (
    ChannelClosed,
    MCPError,
    RateLimited,
    RequestFailed,
    RequestTimeout,
    TransportError,
)
from toolpost.protocol.methods import ROWS

T = TypeVar("T")

logger: Final = logging.getLogger("toolpost.client")

RETRY_SAFE_METHODS: Final = frozenset(row.name for row in ROWS if row.repeatable)
"""What may be asked twice as well as once: it changes nothing, or nothing more the second time."""

TOO_MANY_REQUESTS: Final = 429
"""The status that turns a request away before it was looked at. A 503 may come from anywhere, at any time."""

MAX_FAILURES: Final = 5
"""How many requests in a row may find that the server cannot be reached, before it is left alone."""


MAX_PLAUSIBLE_RETRY_AFTER: Final = 1e9
"""Seconds beyond which a wait is no wait."""

MAX_REQUEST_RETRY_AFTER: Final = 300.0
"""Seconds that a request waits at most because a server says so: others have to come back later."""


class RetryPolicy:
    """Decides for one request whether and when it is sent again; `safe` is what `Retrier.run` got."""

    __slots__ = ("_backoff", "_latest", "_left", "_safe")

    def __init__(self, retries: int, *, safe: bool | None, started: float, timeout: float | None) -> None:
        self._left = 0 if safe is False else retries
        self._safe = safe
        self._latest = inf if timeout is None else started + timeout / 2  # the rest is for the answer
        self._backoff: Backoff | None = None

    def next_delay(self, error: MCPError, now: float) -> float | None:
        """Return the seconds to wait before the next try; None if the error is final or time is short."""
        delay = self._choose_delay(error, now)
        return None if delay is None or now + delay > self._latest else delay

    def _choose_delay(self, error: MCPError, now: float) -> float | None:
        if not self._left or isinstance(error, RequestTimeout) or not (self._safe or _is_unserved(error)):
            return None
        wish = _parse_retry_after(error)
        if wish is not None:
            if wish > MAX_REQUEST_RETRY_AFTER:
                return None
            self._left -= 1
            return wish
        if isinstance(error, RateLimited):
            return None  # who does not say when is asked by whoever knows better
        status = error.status if isinstance(error, RequestFailed) else None
        if status is not None and not _is_temporary(status):
            return None
        self._left -= 1
        if isinstance(error, ChannelClosed):
            return 0.0  # whoever opens it anew waits as long as that needs
        if self._backoff is None:
            self._backoff = Backoff()
        return self._backoff.next_delay(now)


def _parse_retry_after(error: MCPError) -> float | None:
    """Return the seconds after which a server that refused wants the request again; None if not given."""
    if isinstance(error, RequestFailed):
        return error.retry_after
    data: Any = error.data if isinstance(error, RateLimited) else None
    wait: Any = cast("dict[str, Any]", data).get("retryAfter") if isinstance(data, dict) else None
    return float(wait) if isinstance(wait, int | float) and 0 <= wait <= MAX_PLAUSIBLE_RETRY_AFTER else None


def _is_unserved(error: MCPError) -> bool:
    """Return whether an error proves that the request was not served."""
    if isinstance(error, RequestFailed) and error.status == TOO_MANY_REQUESTS:
        return True
    return isinstance(error, RateLimited) or (isinstance(error, TransportError) and not error.sent)


def _is_temporary(status: int) -> bool:
    """Return whether a status means that a later try may succeed."""
    return status >= 500 or status in {408, 425, 429}


class CircuitBreaker:
    """Keeps requests from a server that cannot be reached, and lets one through from time to time."""

    __slots__ = ("_backoff", "_counted", "_until", "failures")

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._counted = 0.0
        self._until = 0.0
        self.failures = 0
        """How many requests in a row have not reached the server; those at the same time are one."""

    def record_success(self) -> None:
        """Record that the server can be reached."""
        self.failures = 0
        self._backoff.reset()

    def allow_next(self) -> None:
        """Let the next request through."""
        self._until = 0.0

    def record_failure(self, began: float, now: float) -> float | None:
        """Count a failure; return the seconds for which the server is left alone, or None."""
        if self.failures and began <= self._counted:
            return None
        self.failures += 1
        self._counted = now
        if self.failures < MAX_FAILURES:
            return None
        pause = self._backoff.next_delay(now)
        self._until = now + pause
        return pause

    def seconds_until_allowed(self, now: float) -> float:
        """Return how long requests are still held back; a caller that gets 0 is the one to try."""
        if self.failures < MAX_FAILURES:
            return 0.0
        left = self._until - now
        if left > 0:
            return left
        self._until = now + MIN_BACKOFF
        return 0.0


class Retrier:
    """The retries and the circuit breaker of one client."""

    def __init__(
        self,
        reconnector: Reconnector,
        connection_state: ConnectionState,
        stats: Stats,
        name: str,
        retries: int,
    ) -> None:
        self._reconnector = reconnector
        self._connection_state = connection_state
        self._stats = stats
        self._name = name
        self._retries = retries
        self.breaker = CircuitBreaker()

    async def ensure_connected(self, limits: CallLimits = NO_LIMITS) -> Dispatcher:
        """Return the connection; one that was lost is opened again first, within the time-out."""
        if not self._reconnector.is_connected:
            try:
                async with asyncio.timeout(limits.timeout):
                    return await self._reconnector.ensure_connected()
            except TimeoutError:
                self._stats.timeouts += 1
                cause = self._reconnector.cause
                raise RequestTimeout(
                    f"the connection was lost, and not there again within {limits.timeout:.1f} s: {cause}",
                    sent=False,
                    peer=self._name,
                ) from cause
        return self._reconnector.dispatcher

    async def wait_connected(self, limits: CallLimits) -> CallLimits:
        """Wait for a connection; return what is left of the limits."""
        if self._reconnector.is_connected:
            return limits
        loop = asyncio.get_running_loop()
        started = loop.time()
        await self.ensure_connected(limits)
        return limits.subtract(loop.time() - started)

    async def run(
        self,
        work: Callable[[Dispatcher, CallLimits], Awaitable[T]],
        limits: CallLimits,
        *,
        safe: bool | None = None,
    ) -> T:
        """Run some work over the connection, and again where `RetryPolicy` allows it, all within `limits`.

        `safe` is whether it may be done again although the server may have got it. None means unknown: it is
        repeated only if it was certainly not served. False means never.
        """
        loop, policy, left = asyncio.get_running_loop(), None, limits
        first = started = loop.time()
        while True:
            if self.breaker.failures:
                self._check_reachable(started)
            try:
                dispatcher = self._reconnector.active_dispatcher
                if dispatcher is None:
                    left = await self.wait_connected(left)
                    dispatcher = self._reconnector.dispatcher
                result = await work(dispatcher, left)
            except (TransportError, RateLimited) as error:
                now = loop.time()
                self._record_failure(error, started, now)
                policy = policy or RetryPolicy(
                    self._retries, safe=safe, started=first, timeout=limits.timeout
                )
                pause = policy.next_delay(error, now)
                if pause is None or self._reconnector.is_closed:
                    raise
                left = limits.subtract(now - first + pause)
                logger.info("%s: sent once more in %.1f s: %s", self._name, pause, error)
                self._stats.retries += 1
                await asyncio.sleep(pause)
                started = loop.time()
            else:
                if self.breaker.failures:
                    self.breaker.record_success()
                    self._connection_state.enter(Transition("ready"))
                return result

    def _record_failure(self, error: MCPError, started: float, now: float) -> None:
        """Count a request that has not reached the server although there is a connection."""
        if not isinstance(error, RequestFailed) or error.sent or not self._reconnector.is_connected:
            return
        pause = self.breaker.record_failure(started, now)
        if pause is not None:
            self._connection_state.enter(Transition("backoff", error, pause, self.breaker.failures))

    def _check_reachable(self, now: float) -> None:
        left = self.breaker.seconds_until_allowed(now)
        if left > 0:
            raise RequestFailed(
                f"the server could not be reached {self.breaker.failures} times in a row",
                sent=False,
                hint=f"it is left alone for {left:.1f} s more",
                peer=self._name,
            )
