"""`RateLimit`: middleware that limits how many requests a client may make in a period.

Counts in this process, or in the store for all workers. The algorithm of one process is in `token_bucket`.
"""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from hashlib import sha256
from typing import Any, Final
from weakref import WeakKeyDictionary

from toolpost.errors import RateLimited, StoreUnavailable
from toolpost.protocol.methods import INITIALIZE, PING, SUBSCRIPTIONS_LISTEN, TOOLS_CALL
from toolpost.server.options import check_counts, check_timeouts
from toolpost.server.runtime.dispatch import Call, Next
from toolpost.stores.store import RecordStore
from toolpost.token_bucket import TokenBucket
from toolpost.types.tools import CallToolParams

_EXEMPT_METHODS: Final = frozenset({INITIALIZE, PING, SUBSCRIPTIONS_LISTEN})
"""Methods without limits: the handshake, pings, and requests that are meant to last."""

MAX_CLIENTS: Final = 65_536
"""Clients whose rate is remembered; beyond that, the least recently active one is forgotten."""


def is_limitable(call: Call) -> bool:
    """Return whether limits apply to a call: a request of a client whose method is not exempt."""
    return call.incoming and not call.is_notification and call.method not in _EXEMPT_METHODS


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
        by: returns what to count by, instead of the client, such as `lambda call: call.params.name`.
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
        by: Callable[[Call], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_counts(calls=calls)
        check_timeouts(seconds=seconds)
        self._calls = calls
        self._refill = calls / seconds
        self._method = TOOLS_CALL if tool is not None else method
        self._tool = tool
        self._is_shared = shared
        self._by = by
        self._clock = clock
        self._seconds = seconds
        self._buckets_by_key = OrderedDict[object, TokenBucket]()  # the most recently used last
        self._buckets_by_session = WeakKeyDictionary[Any, TokenBucket]()

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call unless its client has used up its rate."""
        tool = call.params.name if isinstance(call.params, CallToolParams) else None
        is_counted = self._method in (None, call.method) and self._tool in (None, tool)
        if is_counted and is_limitable(call):
            await self._count(call)
        return await next(call)

    async def _count(self, call: Call) -> None:
        context = call.context
        client = context.conversation if self._by is None else self._by(call)
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
