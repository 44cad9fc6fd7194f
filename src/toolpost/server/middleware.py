"""Middleware around every request and notification: `async (call, next)`.

Each class makes one kind of middleware. All but `Logging` act on the requests of clients only.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from hashlib import sha256
from typing import Any, Final
from weakref import WeakKeyDictionary

from toolpost.errors import InternalError, RateLimited, RPCError, StoreUnavailable
from toolpost.protocol.methods import INITIALIZE, PING, SUBSCRIPTIONS_LISTEN, TOOLS_CALL
from toolpost.server.context import Context
from toolpost.server.options import check_counts, check_timeouts
from toolpost.server.runtime.request import Call, Middleware, Next, Observer, Outcome
from toolpost.stores.store import RecordStore
from toolpost.token_bucket import TokenBucket
from toolpost.types.tools import CallToolParams

__all__ = [
    "Call",
    "Concurrency",
    "Logging",
    "MaskErrors",
    "Middleware",
    "Next",
    "Observer",
    "Outcome",
    "RateLimit",
    "Timeout",
]

_EXEMPT_METHODS: Final = frozenset({INITIALIZE, PING, SUBSCRIPTIONS_LISTEN})
"""Methods without limits: the handshake, pings, and requests that are meant to last."""

MAX_CLIENTS: Final = 65_536
"""Clients whose rate is remembered; beyond that, the least recently active one is forgotten."""


def _is_limitable(call: Call) -> bool:
    """Return whether limits apply to a call: a request of a client whose method is not exempt."""
    return call.incoming and not call.is_notification and call.method not in _EXEMPT_METHODS


class Timeout:
    """Cancel requests that take too long."""

    def __init__(self, seconds: float) -> None:
        check_timeouts(seconds=seconds)
        self.seconds = seconds

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call within the timeout."""
        if not _is_limitable(call):
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
        if not _is_limitable(call):
            return await next(call)
        loop = asyncio.get_running_loop()
        if loop not in self._semaphores:
            self._semaphores[loop] = asyncio.Semaphore(self._limit)
        async with self._semaphores[loop]:
            return await next(call)


class RateLimit:
    """Limit each client to `calls` requests per `seconds`, with bursts up to `calls`.

    A client is a principal, with all of its sessions; without a principal, a session or, where there are
    none, an address. Over HTTP a stateless client is answered with 429 and `Retry-After`.

    Args:
        calls: the number of requests.
        seconds: the length of the period.
        method: count only requests of this method, such as "tools/call"; all methods by default.
        tool: count only calls of this tool.
        shared: count in the store of the server, for all workers together. Each call costs two commands
            there. While the store is unavailable, each worker counts alone.
        clock: returns the time, in seconds.
    """

    def __init__(
        self,
        calls: int,
        seconds: float = 1.0,
        *,
        method: str | None = None,
        tool: str | None = None,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_counts(calls=calls)
        check_timeouts(seconds=seconds)
        self._calls = calls
        self._refill = calls / seconds
        self._method = TOOLS_CALL if tool is not None else method
        self._tool = tool
        self._is_shared = shared
        self._clock = clock
        self._seconds = seconds
        self._buckets_by_key = OrderedDict[object, TokenBucket]()  # the most recently used last
        self._buckets_by_session = WeakKeyDictionary[Any, TokenBucket]()

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call unless its client has used up its rate."""
        tool = call.params.name if isinstance(call.params, CallToolParams) else None
        is_counted = self._method in (None, call.method) and self._tool in (None, tool)
        if is_counted and _is_limitable(call):
            await self._count(call.context)
        return await next(call)

    async def _count(self, context: Context) -> None:
        client = context.conversation
        if self._is_shared and isinstance(client, str):
            with contextlib.suppress(StoreUnavailable):
                await self._take_shared(context.server.store.records, client)
                return
        self._take(client)

    async def _take_shared(self, records: RecordStore, client: str) -> None:
        """Count a call in the store. The record is the time at which the rate is unused again (GCRA)."""
        about = f"{client} {self._calls} {self._seconds} {self._method} {self._tool}"
        key = f"rate/{sha256(about.encode()).hexdigest()[:24]}"
        while True:
            found, now = await records.get(key), time.time()
            unused_at = max(now, float(found or 0)) + 1 / self._refill
            delay = unused_at - now - self._seconds
            if delay > 0:
                raise self._make_error(delay)
            if await records.swap(key, found, b"%f" % unused_at, unused_at - now):
                return

    def _take(self, client: object) -> None:
        self._forget_idle()
        buckets: MutableMapping[Any, TokenBucket]
        buckets = self._buckets_by_key if isinstance(client, str) else self._buckets_by_session
        bucket = buckets.pop(client, None) or TokenBucket(self._calls, self._refill, self._clock)
        buckets[client] = bucket
        if not bucket.take():
            raise self._make_error(bucket.delay)

    def _make_error(self, delay: float) -> RateLimited:
        return RateLimited(
            f"Too many requests: at most {self._calls} in {self._seconds:g} s; try again in {delay:.1f} s",
            {"retryAfter": round(delay, 3)},
        )

    def _forget_idle(self) -> None:
        """Forget clients whose rate has recovered; if there are too many, the least recently active ones."""
        now = self._clock()
        while self._buckets_by_key:
            oldest = next(iter(self._buckets_by_key))
            is_recent = now - self._buckets_by_key[oldest].updated_at < self._seconds
            if is_recent and len(self._buckets_by_key) < MAX_CLIENTS:
                return
            del self._buckets_by_key[oldest]


class Logging:
    """Log a line for every request and notification: direction, method, outcome, duration."""

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger("toolpost.calls")
        self._level = level

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call and log it."""
        start = time.perf_counter()
        ended = "ok"
        try:
            return await next(call)
        except BaseException as error:  # a cancelled call has ended as well
            ended = type(error).__name__
            raise
        finally:
            took = (time.perf_counter() - start) * 1000
            arrow = "→" if call.incoming else "←"
            self._logger.log(self._level, "%s %s %s in %.1f ms", arrow, call.method, ended, took)


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
