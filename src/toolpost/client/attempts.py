"""Work over a connection, tried again where that does no harm and while there is time.

Owns the tries of a request, from the wait for a connection to the last error, and the breaker for a server
that cannot be reached. Which requests may be repeated and when is told in `retry`, how a connection comes
back in `supervise`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from toolpost.client.call import NO_LIMITS, Limits, Tried
from toolpost.client.life import Life, Transition
from toolpost.client.link import Link
from toolpost.client.retry import Breaker, Tries
from toolpost.client.stats import Stats
from toolpost.client.supervise import Supervisor
from toolpost.errors import MCPError, RateLimited, RequestFailed, RequestTimeout, TransportError

__all__ = ["Attempts"]

T = TypeVar("T")

logger: Final = logging.getLogger("toolpost.client")


class Attempts:
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

    def __init__(self, supervisor: Supervisor, life: Life, stats: Stats, name: str, retries: int) -> None:
        if not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users err
            raise ValueError(f"retries: how often a request is sent once more, 0 or more, not {retries!r}")
        self._supervisor = supervisor
        self._life = life
        self._stats = stats
        self._name = name
        self._retries = retries
        self._breaker = Breaker()

    async def hold(self, limits: Limits = NO_LIMITS) -> Link:
        """The connection; one that was lost is opened anew first.

        Args:
            limits: how long to wait for that.

        Raises:
            ChannelClosed: there is none, or none can be had.
            RequestTimeout: the server did not come back in time.
        """
        if not self._supervisor.ready:
            try:
                async with asyncio.timeout(limits.timeout):
                    return await self._supervisor.hold()
            except TimeoutError:
                self._stats.timeouts += 1
                cause = self._supervisor.cause
                raise RequestTimeout(
                    f"the connection was lost, and not there again within {limits.timeout:.1f} s: {cause}",
                    sent=False,
                    peer=self._name,
                ) from cause
        return self._supervisor.link

    async def wait(self, limits: Limits) -> Limits:
        """What is left of the time once there is a connection; see `hold`."""
        if self._supervisor.ready:
            return limits
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.hold(limits)
        return limits.less(loop.time() - began)

    def reached(self) -> None:
        """The server can be reached."""
        self._breaker.worked()

    def relent(self) -> None:
        """Somebody wants to try a server that is left alone: the next request is sent."""
        self._breaker.relent()

    def steady(self) -> Link | None:
        """The connection, if there is one in this loop and nothing has failed lately."""
        return None if self._breaker.failures else self._supervisor.here()

    async def run(
        self,
        work: Callable[[Link, Limits], Awaitable[T]],
        limits: Limits,
        *,
        safe: bool | None = None,
        tried: Tried[T] | None = None,
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
                    link = self._supervisor.going
                    if link is None:
                        limits = await self.wait(limits)
                        link = self._supervisor.link
                    result = await work(link, limits)
                else:
                    result = tried.tell()
            except (TransportError, RateLimited) as error:
                now, tried = loop.time(), None
                self._failed(error, began, now)
                tries = tries or Tries(self._retries, safe=safe)
                pause = tries.pause(error, now)
                if pause is None or self._supervisor.left:
                    raise
                spent = now - first + pause
                if whole.timeout is not None:
                    if spent > whole.timeout / 2:
                        raise  # too little is left for an answer
                    limits = whole.less(spent)
                logger.info("%s: sent once more in %.1f s: %s", self._name, pause, error)
                self._stats.retries += 1
                await asyncio.sleep(pause)
                began = loop.time()
            else:
                self.answered()
                return result

    def answered(self) -> None:
        """The server has answered: it can be reached."""
        if self._breaker.failures:
            self._breaker.worked()
            self._life.enter(Transition("ready"))

    def _failed(self, error: MCPError, began: float, now: float) -> None:
        """Count a request that has not reached the server, over a connection that stands."""
        if not isinstance(error, RequestFailed) or error.sent or not self._supervisor.ready:
            return
        pause = self._breaker.failed(began, now)
        if pause is not None:
            self._life.enter(Transition("backoff", error, pause, self._breaker.failures))

    def _check_reachable(self, now: float) -> None:
        left = self._breaker.wait(now)
        if left > 0:
            raise RequestFailed(
                f"the server could not be reached {self._breaker.failures} times in a row",
                sent=False,
                hint=f"it is left alone for {left:.1f} s more",
                peer=self._name,
            )
