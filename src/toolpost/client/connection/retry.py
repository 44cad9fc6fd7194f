"""Runs work over a connection, and again where that is harmless and there is time.

Owns the tries of a request, from the wait for a connection to the last error. `retry_policy` decides what may
be repeated and when; `reconnect` restores the connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import NO_LIMITS, CallLimits
from toolpost.client.connection.reconnect import Reconnector
from toolpost.client.connection.retry_policy import CircuitBreaker, FirstAttempt, RetryPolicy
from toolpost.client.connection.status import ConnectionState, Stats, Transition
from toolpost.errors import MCPError, RateLimited, RequestFailed, RequestTimeout, TransportError

T = TypeVar("T")

logger: Final = logging.getLogger("toolpost.client")


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

    def get_healthy_dispatcher(self) -> Dispatcher | None:
        """Return the connection, if it belongs to this loop and nothing has failed lately."""
        return None if self.breaker.failures else self._reconnector.find_local_dispatcher()

    async def run(
        self,
        work: Callable[[Dispatcher, CallLimits], Awaitable[T]],
        limits: CallLimits,
        *,
        safe: bool | None = None,
        first_attempt: FirstAttempt[T] | None = None,
    ) -> T:
        """Run some work over the connection, and again where `retry_policy` allows it.

        Args:
            work: what to do.
            limits: how long it may take, all tries together.
            safe: what `is_retry_safe` returned.
            first_attempt: the outcome of the first try, if it was made already.
        """
        loop, policy, left = asyncio.get_running_loop(), None, limits
        first = started = loop.time() if first_attempt is None else first_attempt.started
        while True:
            if self.breaker.failures and first_attempt is None:
                self._check_reachable(started)
            try:
                if first_attempt is None:
                    dispatcher = self._reconnector.active_dispatcher
                    if dispatcher is None:
                        left = await self.wait_connected(left)
                        dispatcher = self._reconnector.dispatcher
                    result = await work(dispatcher, left)
                else:
                    result = first_attempt.get_result()
            except (TransportError, RateLimited) as error:
                now, first_attempt = loop.time(), None
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
                self.record_answer()
                return result

    def record_answer(self) -> None:
        """Record that the server can be reached."""
        if self.breaker.failures:
            self.breaker.record_success()
            self._connection_state.enter(Transition("ready"))

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
