"""Work over a connection, tried again where that does no harm and while there is time.

Owns the tries of a request, from the wait for a connection to the last error, and the breaker for a server
that cannot be reached. Which requests may be repeated and when is told in `retry`, how a connection comes
back in `supervise`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from toolpost.client.connection.dispatcher import Dispatcher
from toolpost.client.connection.pending import NO_LIMITS, CallLimits, FirstAttempt
from toolpost.client.connection.reconnect import Reconnector
from toolpost.client.connection.retry_policy import CircuitBreaker, RetryPolicy
from toolpost.client.connection.status import ConnectionState, Stats, Transition
from toolpost.errors import MCPError, RateLimited, RequestFailed, RequestTimeout, TransportError

T = TypeVar("T")

logger: Final = logging.getLogger("toolpost.client")


class Retrier:
    """What is tried over the connections of one client.

    Args:
        supervisor: who has the connection.
        life: is told when the server cannot be reached over one that stands.
        stats: where to count.
        name: what to call the server.
        retries: how often a request may be sent once more.

    Raises:
        ValueError: that is no number of times.
    """

    def __init__(
        self, supervisor: Reconnector, life: ConnectionState, stats: Stats, name: str, retries: int
    ) -> None:
        if not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users err
            raise ValueError(f"retries: how often a request is sent once more, 0 or more, not {retries!r}")
        self._reconnector = supervisor
        self._connection_state = life
        self._stats = stats
        self._name = name
        self._retries = retries
        self._breaker = CircuitBreaker()

    async def ensure_connected(self, limits: CallLimits = NO_LIMITS) -> Dispatcher:
        """The connection; one that was lost is opened anew first.

        Args:
            limits: how long to wait for that.

        Raises:
            ChannelClosed: there is none, or none can be had.
            RequestTimeout: the server did not come back in time.
        """
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
        """What is left of the time once there is a connection; see `ensure_connected`."""
        if self._reconnector.is_connected:
            return limits
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.ensure_connected(limits)
        return limits.subtract(loop.time() - began)

    def record_connected(self) -> None:
        """The server can be reached."""
        self._breaker.record_success()

    def allow_next(self) -> None:
        """Somebody wants to try a server that is left alone: the next request is sent."""
        self._breaker.allow_next()

    def get_healthy_dispatcher(self) -> Dispatcher | None:
        """The connection, if there is one in this loop and nothing has failed lately."""
        return None if self._breaker.failures else self._reconnector.find_local_dispatcher()

    async def run(
        self,
        work: Callable[[Dispatcher, CallLimits], Awaitable[T]],
        limits: CallLimits,
        *,
        safe: bool | None = None,
        tried: FirstAttempt[T] | None = None,
    ) -> T:
        """What comes of some work over the connection, which is done once more where that can do no harm.

        Args:
            work: what to do.
            limits: how long it may take, all tries together.
            safe: whether the work may be done twice, as far as the server is concerned; None if nobody
                knows, and False if it must not be.
            tried: what has come of the first try, if it was made already.

        Raises:
            MCPError: what the last try came to.
        """
        loop, tries, whole = asyncio.get_running_loop(), None, limits
        first = began = loop.time() if tried is None else tried.began
        while True:
            if self._breaker.failures and tried is None:
                self._check_reachable(began)
            try:
                if tried is None:
                    link = self._reconnector.active_dispatcher
                    if link is None:
                        limits = await self.wait_connected(limits)
                        link = self._reconnector.dispatcher
                    result = await work(link, limits)
                else:
                    result = tried.get_result()
            except (TransportError, RateLimited) as error:
                now, tried = loop.time(), None
                self._record_failure(error, began, now)
                tries = tries or RetryPolicy(self._retries, safe=safe)
                pause = tries.next_delay(error, now)
                if pause is None or self._reconnector.is_closed:
                    raise
                spent = now - first + pause
                if whole.timeout is not None:
                    if spent > whole.timeout / 2:
                        raise  # too little is left for an answer
                    limits = whole.subtract(spent)
                logger.info("%s: sent once more in %.1f s: %s", self._name, pause, error)
                self._stats.retries += 1
                await asyncio.sleep(pause)
                began = loop.time()
            else:
                self.record_answer()
                return result

    def record_answer(self) -> None:
        """The server has answered: it can be reached."""
        if self._breaker.failures:
            self._breaker.record_success()
            self._connection_state.enter(Transition("ready"))

    def _record_failure(self, error: MCPError, began: float, now: float) -> None:
        """Count a request that has not reached the server, over a connection that stands."""
        if not isinstance(error, RequestFailed) or error.sent or not self._reconnector.is_connected:
            return
        pause = self._breaker.record_failure(began, now)
        if pause is not None:
            self._connection_state.enter(Transition("backoff", error, pause, self._breaker.failures))

    def _check_reachable(self, now: float) -> None:
        left = self._breaker.seconds_until_allowed(now)
        if left > 0:
            raise RequestFailed(
                f"the server could not be reached {self._breaker.failures} times in a row",
                sent=False,
                hint=f"it is left alone for {left:.1f} s more",
                peer=self._name,
            )
