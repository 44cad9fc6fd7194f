"""Whoever can tell from a token on whose behalf a request speaks, and the memory of what was told before.

Owns the promise that `Jwt` and `Introspection` keep and that a function of your own is fitted to, and the
cache: a token that was found good is one look-up the next time, until it ends. Tokens are kept as digests.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from toolpost.errors import TokenRejected
from toolpost.principal import Principal

__all__ = ["MAX_KNOWN", "Check", "Memory", "Verifier", "verifier_of"]

MAX_KNOWN: Final = 4096
"""Tokens that are remembered as good, for each endpoint: many users at once, at about 1 KiB each."""

Check: TypeAlias = Callable[[str], "Principal | str | Awaitable[Principal | str | None] | None"]
"""A function of your own: gets the token; returns whose it is, or None if it is not good *here*."""


@runtime_checkable
class Verifier(Protocol):
    """Tells whose a token is."""

    keep: float
    """Seconds for which an answer may be remembered; 0 to be asked each time."""

    async def verify(self, token: str, resource: str) -> Principal:
        """Whose the token is, if it is good and was issued for this resource.

        Raises:
            TokenRejected: it is not; the text is for the log and must not hold the token.
            TransportError: nobody could be asked.
        """
        ...


class _Own:
    """A function of somebody's own, as a verifier. It is asked each time: it may know of revocation."""

    keep = 0.0

    def __init__(self, check: Check) -> None:
        self._check = check

    async def verify(self, token: str, resource: str) -> Principal:
        del resource  # the function knows what it accepts
        found = self._check(token)
        whose = Principal.of(await found if isawaitable(found) else found)
        if whose is None or not (whose.subject or whose.client):
            raise TokenRejected("the verifier does not know the token, or names nobody")
        return whose


def verifier_of(given: Any) -> Verifier:
    """What was given, as a verifier.

    Raises:
        TypeError: it cannot verify anything.
    """
    if not isinstance(given, type):
        if isinstance(given, Verifier):
            return given
        if callable(given):
            return _Own(cast("Check", given))
    raise TypeError(
        "verifier has to be Jwt(…), Introspection(…) or a function that takes a token and returns a "
        f"Principal or None, not {given!r}"
    )


class Memory:
    """Principals by the digests of their tokens, each until its token ends or its time is over."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()

    def recall(self, token: str) -> Principal | None:
        """Whose a token is, if that was found out before."""
        digest = _digest(token)
        known = self._known.get(digest)
        if known is None:
            return None
        principal, until = known
        if until <= time.time():
            del self._known[digest]
            return None
        return principal

    def note(self, token: str, principal: Principal, keep: float) -> None:
        """Remember whose a token is, for so many seconds, but not beyond its own end."""
        ends = principal.claims.get("exp")
        until = time.time() + keep
        if isinstance(ends, int | float):
            until = min(until, ends)
        if until <= time.time():
            return
        self._known[_digest(token)] = principal, until
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
