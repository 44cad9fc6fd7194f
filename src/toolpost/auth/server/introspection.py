"""Token introspection (RFC 7662): the authorization server checks tokens that only it can read.

Results are cached for a short time, so that a revoked token is soon refused. Other verifiers use the cache
too.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from math import inf
from typing import Final
from urllib.parse import urlencode

from toolpost.auth.arguments import check_duration, check_text
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
RESULT_CACHE_SECONDS: Final = 30.0  # by default: a revoked token is accepted for this time
REJECTION_CACHE_SECONDS: Final = 10.0  # at most: an invalid token rarely becomes valid
MAX_CONCURRENT_REQUESTS: Final = 32
"""Invented tokens must not flood the authorization server. Tokens that were valid before have as many
requests of their own, so that they do not wait behind invented ones."""
MAX_WAITING_REQUESTS: Final = 128  # clients would give up before more are answered
KNOWN_TOKEN_SECONDS: Final = 24 * 3600.0  # for which a token that was valid uses its own requests

# In lower case. Other tokens of the same issuer, such as ID tokens, are refused.
_ACCESS_TOKEN_TYPES: Final = frozenset(
    {"bearer", "dpop", "access", "access_token", "urn:ietf:params:oauth:token-type:access_token"}
)


class Introspection:
    """Checks tokens by asking the authorization server (RFC 7662).

    Args:
        endpoint: the introspection endpoint.
        client_id: the id of this server there.
        client_secret: its secret there.
        issuer: the issuer of the principals. If a response names an issuer, it must be this one.
        audience: the audience of the tokens, if that is not the URL of the resource.
        cache_ttl: seconds to cache a result; 0 turns the cache off.
        http: the HTTP library, as in `Http(http=…)`.

    Raises:
        ValueError: an argument is invalid; the error names it.

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
        check_text("client_id", client_id)
        check_text("client_secret", client_secret)
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
        cache_key = " ".join((token, *wanted))  # a token may be valid for one server only
        why = self._rejections.get(cache_key)
        if isinstance(why, str):
            raise TokenRejected(why)
        pool = self._request_pools[self._known_tokens.get(cache_key) is not None]
        try:
            found = await pool.join(cache_key, partial(self._introspect, token, wanted, pool))
        except TokenRejected as error:
            self._rejections.put(cache_key, error.message, min(self.cache_ttl, REJECTION_CACHE_SECONDS))
            raise
        self._known_tokens.put(cache_key, found, KNOWN_TOKEN_SECONDS)
        return found

    async def _introspect(self, token: str, wanted: tuple[str, ...], pool: "_RequestPool") -> Principal:
        headers = {"authorization": self._credentials, "content-type": FORM_TYPE}
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        try:
            async with asyncio.timeout(ISSUER_TIMEOUT), pool.semaphore:
                status, claims = await fetch_json(self._http, self._endpoint, headers, body)
        except TimeoutError:
            raise RequestFailed(f"{self._endpoint} did not respond within {ISSUER_TIMEOUT:g} s") from None
        if status == 401:
            raise RequestFailed(f"{self._endpoint} responded with 401: check client_id= and client_secret=")
        if status != 200 or "active" not in claims:
            raise RequestFailed(f"{self._endpoint} responded to introspection with {status}")
        if claims.get("active") is not True:
            raise TokenRejected("the token is not active")
        for name in ("token_type", "token_use", "typ"):  # RFC 7662, and additions of providers
            kind = claims.get(name, "bearer")
            if not isinstance(kind, str) or kind.lower() not in _ACCESS_TOKEN_TYPES:
                raise TokenRejected(f"the token is not an access token: wrong {name}")
        if self.issuer and "iss" in claims:
            check_issuer_claim(claims, self.issuer)
        check_audience(claims, wanted)
        check_times(claims, LEEWAY)
        return build_principal({"iss": self.issuer, **claims} if self.issuer else claims)


class _RequestPool:
    """The requests about tokens of one kind, sent and waiting."""

    def __init__(self) -> None:
        self._flights: dict[str, SingleFlight[Principal]] = {}
        self.semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def join(self, key: str, ask: Callable[[], Awaitable[Principal]]) -> Principal:
        """Return the result of a request, which is sent once for all callers with the same key."""
        if not self._flights:  # a semaphore belongs to one event loop, and the server may run in another one
            self.semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        flight = self._flights.get(key)
        if flight is None:
            if len(self._flights) >= MAX_CONCURRENT_REQUESTS + MAX_WAITING_REQUESTS:
                raise RequestFailed("too many tokens are waiting for introspection")
            flight = self._flights[key] = SingleFlight()
        try:
            return await flight.join(ask)
        finally:
            if not flight.is_running and self._flights.get(key) is flight:
                del self._flights[key]


class VerificationCache:
    """Results by the digests of tokens: a principal, or the reason why a token is rejected."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, tuple[Principal | str, float]] = OrderedDict()

    def get(self, token: str) -> Principal | str | None:
        """Return the result for a token, if there is one that has not expired."""
        digest = sha256(token.encode()).digest()
        found, until = self._entries.get(digest, (None, inf))
        if until > time.time():
            return found
        del self._entries[digest]
        return None

    def put(self, token: str, found: Principal | str, ttl: float) -> None:
        """Cache the result for a token, but not beyond the token's expiry."""
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
