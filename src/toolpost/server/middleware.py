"""Middleware around every request and notification: `async (call, next)`.

Each class makes one kind of middleware, which acts on requests of clients only. `AccessLog` is an observer.
"""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from toolpost.errors import InternalError, RPCError
from toolpost.server.access_log import AccessLog
from toolpost.server.options import check_counts, check_timeouts
from toolpost.server.rate_limit import RateLimit, is_limitable
from toolpost.server.runtime.dispatch import Call, Middleware, Next, Observer, Outcome

__all__ = [
    "AccessLog",
    "Call",
    "Concurrency",
    "MaskErrors",
    "Middleware",
    "Next",
    "Observer",
    "Outcome",
    "RateLimit",
    "Timeout",
]


class Timeout:
    """Cancel requests that take too long."""

    def __init__(self, seconds: float) -> None:
        check_timeouts(seconds=seconds)
        self.seconds = seconds

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call within the timeout."""
        if not is_limitable(call):
            return await next(call)
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                return await next(call)
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = f"{call.method} timed out after {self.seconds} s"
            raise InternalError(message) from error


class Concurrency:
    """Limit how many requests run at once; the others wait.

    A request keeps its slot while it asks the client something. If the client calls another tool before it
    answers, that call needs a second slot: with `Concurrency(1)` each would wait for the other.

    Args:
        limit: the number of requests, for each event loop.
    """

    def __init__(self, limit: int) -> None:
        check_counts(limit=limit)
        self._limit = limit
        # A semaphore belongs to the loop in which it is first waited for.
        self._semaphores = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call when there is a free slot."""
        if not is_limitable(call):
            return await next(call)
        loop = asyncio.get_running_loop()
        if loop not in self._semaphores:
            self._semaphores[loop] = asyncio.Semaphore(self._limit)
        async with self._semaphores[loop]:
            return await next(call)


class MaskErrors:
    """Hide internal errors from clients: every error that is not meant for them gets the same message."""

    def __init__(self, text: str = "Internal error") -> None:
        self._text = text

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call and mask its errors."""
        try:
            return await next(call)
        except RPCError:
            raise
        except Exception as error:
            if not call.incoming or call.is_notification:
                raise
            raise InternalError(self._text) from error
