"""`RateLimit`, the middleware that limits how often a client may call, and which requests such limits count.

`server.middleware` exports it beside the others. The arithmetic of a rate is in `toolpost.token_bucket`.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from toolpost.errors import RateLimited
from toolpost.protocol.methods import INITIALIZE, PING, SUBSCRIPTIONS_LISTEN, TOOLS_CALL
from toolpost.server.options import check_counts, check_timeouts
from toolpost.server.runtime.request import Call, Next
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
        clock: returns the time, in seconds.
    """

    def __init__(
        self,
        calls: int,
        seconds: float = 1.0,
        *,
        method: str | None = None,
        tool: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_counts(calls=calls)
        check_timeouts(seconds=seconds)
        self._calls = calls
        self._refill = calls / seconds
        self._method = TOOLS_CALL if tool is not None else method
        self._tool = tool
        self._clock = clock
        self._seconds = seconds
        self._buckets_by_key = OrderedDict[object, TokenBucket]()  # the most recently used last
        self._buckets_by_session = WeakKeyDictionary[Any, TokenBucket]()

    async def __call__(self, call: Call, next: Next) -> Any:  # noqa: A002 - the usual name
        """Serve the call unless its client has used up its rate."""
        tool = call.params.name if isinstance(call.params, CallToolParams) else None
        is_counted = self._method in (None, call.method) and self._tool in (None, tool)
        if is_counted and is_limitable(call):
            self._take(call.context.conversation)
        return await next(call)

    def _take(self, client: object) -> None:
        self._forget_idle()
        buckets: MutableMapping[Any, TokenBucket]
        buckets = self._buckets_by_key if isinstance(client, str) else self._buckets_by_session
        bucket = buckets.pop(client, None) or TokenBucket(self._calls, self._refill, self._clock)
        buckets[client] = bucket
        if not bucket.take():
            raise RateLimited(
                f"Too many requests: at most {self._calls} in {self._seconds:g} s; "
                f"try again in {bucket.delay:.1f} s",
                {"retryAfter": round(bucket.delay, 3)},
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
