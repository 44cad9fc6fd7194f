"""Access tokens that only their issuer can read: the authorization server is asked about them (RFC 7662).

Owns the request and what makes its result good. Results are cached for a short while, so that a token that
was revoked is soon refused. The cache serves other verifiers too.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from math import inf
from typing import Any, Final
from urllib.parse import urlencode

from toolpost.auth.arguments import check_duration
from toolpost.auth.fetch import FORM_TYPE, ISSUER_TIMEOUT, check_backend, encode_basic, fetch_json
from toolpost.auth.server.jwt import (
    LEEWAY,
    build_principal,
    check_audience,
    check_issuer_claim,
    check_times,
    parse_audience,
)
from toolpost.auth.urls import check_issuer, check_url
from toolpost.errors import RequestFailed, TokenRejected
from toolpost.principal import Principal
from toolpost.single_flight import SingleFlight

MAX_CACHED_TOKENS: Final = 4096  # tokens in one cache
RESULT_CACHE_SECONDS: Final = 30.0  # by default: so long may a revoked token be good
REJECTION_CACHE_SECONDS: Final = 10.0  # at most: a token that is not good will hardly become so
MAX_CONCURRENT_REQUESTS: Final = 32
"""Requests at once: invented tokens must not flood the authorization server. Tokens that were good before
have as many of their own, so that they do not wait behind inventions."""
MAX_WAITING_REQUESTS: Final = 128  # that wait for their turn: clients would give up before more are answered
KNOWN_TOKEN_SECONDS: Final = 24 * 3600.0  # for which a token that was good has precedence, and nothing else

# In lower case; other tokens of the same issuer are not good here.
_ACCESS_TOKEN_TYPES: Final = frozenset(
    {"bearer", "dpop", "access", "access_token", "urn:ietf:params:oauth:token-type:access_token"}
)


class Introspection:
    """Asks the authorization server whose a token is.

    Args:
        endpoint: where to ask.
        client_id: by what name we are known there.
        client_secret: what proves it.
        issuer: who has to have issued the tokens, where the answer says it; it is the issuer of the principal
            in any case.
        audience: what tokens say they are for, if that is not the URL of the resource.
        cache_ttl: seconds for which an answer is remembered; 0 to ask each time.
        http: what carries HTTP, as in `Http(http=…)`.

    Raises:
        ValueError: an argument cannot work; the text names it.

    Examples:
        >>> asks = Introspection("https://login.example.com/introspect", "notes", "secret")
        >>> auth = Auth("https://login.example.com", verifier=asks)
    """

    def __init__(
        self,
        endpoint: str,
        client_id: str,
        client_secret: str,
        *,
        issuer: str = "",
        audience: str | None = None,
        cache_ttl: float = RESULT_CACHE_SECONDS,
        http: object = None,
    ) -> None:
        self.cache_ttl = check_duration(cache_ttl, "cache_ttl", 3600)
        self._endpoint = check_url(endpoint, "endpoint", "https://login.example.com/introspect")
        for name, value in (("client_id", client_id), ("client_secret", client_secret)):
            if not isinstance(value, str) or not value:  # pyright: ignore[reportUnnecessaryIsInstance] - it may come from an environment that lacks it
                raise ValueError(
                    f"{name} has to be a text; it is {'empty' if value == '' else type(value).__name__}"
                )
        self._credentials = encode_basic(client_id, client_secret)
        self.issuer = issuer and check_issuer(issuer)
        self._audience = parse_audience(audience)
        self._http = check_backend(http)
        self._rejections, self._known_tokens = VerificationCache(), VerificationCache()
        self._request_pools = {True: _RequestPool(), False: _RequestPool()}

    def __repr__(self) -> str:
        return f"Introspection({self._endpoint!r})"

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a token, as `Verifier` describes it."""
        wanted = self._audience or resources
        about = " ".join((token, *wanted))  # what is refused for one server may be good for another
        why = self._rejections.get(about)
        if isinstance(why, str):
            raise TokenRejected(why)
        pool = self._request_pools[self._known_tokens.get(about) is not None]
        try:
            found = await pool.join(about, partial(self._introspect, token, wanted, pool))
        except TokenRejected as error:
            self._rejections.put(about, error.message, min(self.cache_ttl, REJECTION_CACHE_SECONDS))
            raise
        self._known_tokens.put(about, found, KNOWN_TOKEN_SECONDS)
        return found

    async def _introspect(self, token: str, wanted: tuple[str, ...], pool: "_RequestPool") -> Principal:
        claims = await self._send_request(token, pool)
        if claims.get("active") is not True:
            raise TokenRejected("its issuer says that it is not active")
        for name in ("token_type", "token_use", "typ"):  # RFC 7662, and what providers add to it
            kind = claims.get(name, "bearer")
            if not isinstance(kind, str) or kind.lower() not in _ACCESS_TOKEN_TYPES:
                raise TokenRejected(f"it is no access token, by its {name}")
        if self.issuer and "iss" in claims:
            check_issuer_claim(claims, self.issuer)
        check_audience(claims, wanted)
        check_times(claims, LEEWAY)
        return build_principal({"iss": self.issuer, **claims} if self.issuer else claims)

    async def _send_request(self, token: str, pool: "_RequestPool") -> dict[str, Any]:
        headers = {"authorization": self._credentials, "content-type": FORM_TYPE}
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        try:
            async with asyncio.timeout(ISSUER_TIMEOUT), pool.semaphore:
                status, claims = await fetch_json(self._http, self._endpoint, headers, body)
        except TimeoutError:
            raise RequestFailed(f"{self._endpoint} did not answer within {ISSUER_TIMEOUT:g} s") from None
        if status == 401:
            raise RequestFailed(f"{self._endpoint} answers with 401: see client_id= and client_secret=")
        if status != 200 or "active" not in claims:
            raise RequestFailed(f"{self._endpoint} answers to introspection with {status}")
        return claims


class _RequestPool:
    """The requests about tokens of one kind: those that wait, and those that are sent."""

    def __init__(self) -> None:
        self._flights: dict[str, SingleFlight[Principal]] = {}
        self.semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def join(self, about: str, ask: Callable[[], Awaitable[Principal]]) -> Principal:
        """Return the result of a request, which is sent once for all that need it."""
        if not self._flights:  # it belongs to one event loop, and a server may run in another one next
            self.semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        flight = self._flights.get(about)
        if flight is None:
            if len(self._flights) >= MAX_CONCURRENT_REQUESTS + MAX_WAITING_REQUESTS:
                raise RequestFailed("too many tokens wait for the authorization server to be asked")
            flight = self._flights[about] = SingleFlight()
        try:
            return await flight.join(ask)
        finally:
            if not flight.is_running and self._flights.get(about) is flight:
                del self._flights[about]


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
