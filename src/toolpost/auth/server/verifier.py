"""The interface of token verifiers, functions of users as verifiers, and the cache of their results.

`Jwt` and `Introspection` implement the interface. The cache holds digests of tokens until they expire.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from inspect import isawaitable, iscoroutinefunction, signature
from math import inf
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.principal import Principal
from toolpost.threads import ThreadPool

MAX_CACHED_TOKENS: Final = 4096  # tokens that are cached as good, for each endpoint
MAX_THREADS: Final = 16  # functions that are not async and check a token at the same time
MAX_WAITING_TOKENS: Final = 256  # tokens that wait for one of these threads; they may be invented

VerifyFunction: TypeAlias = Callable[[str], "Principal | str | Awaitable[Principal | str | None] | None"]
"""A function of your own: gets the token; returns whose it is, or None if it is not good *here*."""


@runtime_checkable
class Verifier(Protocol):
    """Tells whose a token is."""

    cache_ttl: float
    """Seconds for which an answer may be remembered; 0 to be asked each time."""

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a token that is good and was issued for one of these URLs of the server.

        Raises:
            TokenRejected: it is not; the text is for the log and must not hold the token.
            TransportError: the token cannot be checked now.
        """
        ...


class _FunctionVerifier:
    """A function of a user as a verifier. It is called each time, in a thread if it is not async."""

    cache_ttl = 0.0

    def __init__(self, check: VerifyFunction) -> None:
        self._check = check
        called = getattr(check, "__call__", check)  # noqa: B004 - of an object, what is called may be async
        self._threads = (
            None if iscoroutinefunction(check) or iscoroutinefunction(called) else ThreadPool(MAX_THREADS)
        )
        self._waiting = 0

    async def verify(self, token: str, *resources: str) -> Principal:
        del resources  # the function knows what it accepts
        found = await self._run_in_thread(token) if self._threads is not None else self._check(token)
        found = await found if isawaitable(found) else found
        if not isinstance(found, Principal | str | None):
            kind = type(found).__name__
            raise MCPError(f"the verifier returned a {kind}, where a Principal, a subject or None is due")
        whose = Principal.from_value(found)
        if whose is None or not (whose.subject or whose.client):
            raise TokenRejected("the verifier does not know the token, or names nobody")
        return whose

    async def _run_in_thread(self, token: str) -> Any:
        assert self._threads is not None, "it is asked only then"
        if self._waiting >= MAX_THREADS + MAX_WAITING_TOKENS:
            raise RequestFailed("too many tokens wait for the verifier")
        self._waiting += 1
        try:
            return await self._threads.run_in_thread(lambda: self._check(token))
        finally:
            self._waiting -= 1


def make_verifier(given: Any) -> Verifier:
    """Return an argument as a verifier."""
    if not isinstance(given, type):
        if isinstance(given, Verifier):
            return given
        if callable(given):
            _check_arity(given)
            return _FunctionVerifier(cast("VerifyFunction", given))
    raise TypeError(
        "verifier has to be Jwt(…), Introspection(…) or a function that takes a token and returns a "
        f"Principal or None, not {given!r}"
    )


def _check_arity(check: Callable[..., Any]) -> None:
    try:
        taken = signature(check)
    except (TypeError, ValueError):
        return  # one that was not written in Python may have none
    try:
        taken.bind("token")
    except TypeError:
        raise TypeError(f"verifier takes {taken}, where it gets one argument, the token") from None


class VerificationCache:
    """Results by the digests of tokens: a principal, or the reason why a token is not good."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, tuple[Principal | str, float]] = OrderedDict()

    def get(self, token: str) -> Principal | str | None:
        """Return the result for a token, if there is one that is not too old."""
        digest = sha256(token.encode()).digest()
        found, until = self._entries.get(digest, (None, inf))
        if until > time.time():
            return found
        del self._entries[digest]
        return None

    def put(self, token: str, found: Principal | str, ttl: float) -> None:
        """Keep the result for a token for some seconds, but not beyond its expiry."""
        now = time.time()
        ends = found.claims.get("exp") if isinstance(found, Principal) else None
        until = min(now + ttl, ends) if isinstance(ends, int | float) else now + ttl
        if until <= now:
            return
        digest = sha256(token.encode()).digest()
        self._entries[digest] = found, until
        self._entries.move_to_end(digest)
        if len(self._entries) > MAX_CACHED_TOKENS:
            self._entries.popitem(last=False)
