"""Access tokens that are JWTs (RFC 9068, RFC 7519): the checks of issuer, audience, times and signature.

A token that fails is refused with a reason for the log. The checks of claims are shared with introspection,
which works without joserfc. Keys and their rotation are in `jwks`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from toolpost.auth.arguments import check_duration
from toolpost.auth.fetch import check_backend, fetch_json
from toolpost.auth.jose import CompactJws, MalformedToken, import_jose, parse_jws
from toolpost.auth.server.jwks import ALGORITHMS, ASYMMETRIC_ALGORITHMS, KeySource, VerificationKey, read_keys
from toolpost.auth.urls import (
    MAX_QUOTED_LENGTH,
    check_issuer,
    check_url,
    is_same_resource,
    list_server_metadata_urls,
)
from toolpost.errors import MCPError, TokenRejected
from toolpost.principal import Principal

LEEWAY: Final = 30.0  # seconds by which two clocks may differ
TOKEN_CACHE_SECONDS: Final = 300.0  # for which a good token is not checked again, with or without its key

_EXAMPLE_JWKS_URI: Final = "https://login.example.com/jwks"
# Identity tokens look alike, but are not issued for this resource.
_ACCESS_TOKEN_TYPES: Final = frozenset({"", "jwt", "at+jwt"})


class Jwt:
    """Checks access tokens by their signature.

    Args:
        issuer: who has to have issued them, exactly as the tokens say it.
        jwks_uri: where its keys are; without it, and without `keys`, its metadata tell.
        keys: its keys, where they are known: a JWK set, a JWK, PEM texts, keys of joserfc.
        algorithms: what they may be signed with; all that have a public key, unless you say so.
        leeway: seconds by which clocks may differ.
        audience: what tokens say they are for, if that is not the URL of the resource.
        http: what carries HTTP, as in `Http(http=…)`.

    Raises:
        MCPError: joserfc is not installed.
        ValueError: an argument cannot work; the text names it.

    Examples:
        >>> issuer = "https://login.example.com"
        >>> auth = Auth(issuer, verifier=Jwt(issuer, audience="api://notes"))
    """

    cache_ttl = TOKEN_CACHE_SECONDS

    def __init__(
        self,
        issuer: str,
        *,
        jwks_uri: str | None = None,
        keys: Any = None,
        algorithms: Iterable[str] = ASYMMETRIC_ALGORITHMS,
        leeway: float = LEEWAY,
        audience: str | None = None,
        http: object = None,
    ) -> None:
        import_jose()  # if it is missing, raise now
        self.issuer = check_issuer(issuer)
        self._algorithms = frozenset([algorithms] if isinstance(algorithms, str) else algorithms)
        unknown = sorted(self._algorithms - ALGORITHMS.keys())
        if unknown or not self._algorithms:
            raise ValueError(f"algorithms has {unknown or 'nothing'} in it; known: {', '.join(ALGORITHMS)}")
        if keys is not None and jwks_uri is not None:
            raise ValueError("give jwks_uri= or keys=, not both")
        if keys is None and not self._algorithms <= set(ASYMMETRIC_ALGORITHMS):
            raise ValueError("algorithms with a secret need keys=; no key set has secrets in it")
        self._leeway = check_duration(leeway, "leeway", 600)
        self._uri = None if jwks_uri is None else check_url(jwks_uri, "jwks_uri", _EXAMPLE_JWKS_URI)
        self._keys = None if keys is None else read_keys(keys)
        for_algorithms = (key.can_verify(each, None) for key in self._keys or () for each in self._algorithms)
        if self._keys is not None and not any(for_algorithms):
            raise ValueError("none of keys= is for one of algorithms=")
        self._audience = parse_audience(audience)
        self._http = check_backend(http)
        self._key_source = KeySource(self._fetch_keys)

    def __repr__(self) -> str:
        return f"Jwt({self.issuer!r})"

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a token, as `Verifier` describes it."""
        try:
            read = parse_jws(token)
        except MalformedToken as error:
            raise TokenRejected(f"it is no JWT: {error}") from None
        claims = read.claims
        # First, so that no key is asked for because of a token that cannot be good.
        check_issuer_claim(claims, self.issuer)
        check_audience(claims, self._audience or resources)
        if claims.get("exp") is None:
            raise TokenRejected("it has no end")
        check_times(claims, self._leeway)
        await self._check_signature(read)
        return build_principal(claims)

    async def _check_signature(self, token: CompactJws) -> None:
        if token.algorithm not in self._algorithms:
            raise TokenRejected("it is signed with an algorithm that is not allowed")
        if token.typ not in _ACCESS_TOKEN_TYPES:
            raise TokenRejected("it is no access token, by its type")
        if self._keys is None:
            signed = await self._key_source.verify_signature(token)
        else:
            fitting = (key for key in self._keys if key.can_verify(token.algorithm, token.kid))
            signed = any(key.has_signed(token) for key in fitting)
        if not signed:
            raise TokenRejected("no key of its issuer has signed it")

    async def _fetch_keys(self) -> list[VerificationKey]:
        uri = self._uri
        if uri is None:
            metadata = await _fetch_issuer_metadata(self._http, self.issuer)
            uri = check_url(metadata.get("jwks_uri"), "jwks_uri", _EXAMPLE_JWKS_URI)
        status, found = await fetch_json(self._http, uri)
        if status != 200:
            raise MCPError(f"{uri} answers with {status}, and not with a key set")
        try:
            return [key for key in read_keys(found) if key.kind != "oct"]
        except ValueError as error:
            raise MCPError(f"{uri}: {error}") from None


async def _fetch_issuer_metadata(engine: object, issuer: str) -> dict[str, Any]:
    """Return the metadata of an authorization server, from the first well-known place that has them."""
    for url in list_server_metadata_urls(issuer):
        status, found = await fetch_json(engine, url)
        if status == 200 and found:
            if found.get("issuer") != issuer:  # by simple string comparison (RFC 8414 §3.3)
                named = repr(found.get("issuer"))[:MAX_QUOTED_LENGTH]
                raise MCPError(
                    f"the metadata at {url} name another issuer: {named}, where issuer= is {issuer!r}",
                    hint="write issuer= letter by letter as they do, a slash at the end included",
                )
            return found
    raise MCPError(f"{issuer} publishes no metadata where RFC 8414 or OpenID Connect say")


# --------------------------------------------------------------------- claims, of introspection too


def parse_audience(given: Any) -> tuple[str, ...]:
    """Return the audience that a user gave as a tuple, which is empty without one."""
    if given is not None and (not isinstance(given, str) or not given):
        raise TypeError(f"audience has to be a text, which the tokens have in aud, not {given!r}")
    return () if given is None else (given,)


def check_issuer_claim(claims: Mapping[str, Any], issuer: str) -> None:
    """Refuse a token by another issuer."""
    named = claims.get("iss")
    if named != issuer:
        found = repr(named)[:MAX_QUOTED_LENGTH]
        raise TokenRejected(f"another issuer has issued it: its iss is {found}, where {issuer!r} is due")


def check_audience(claims: Mapping[str, Any], resources: Sequence[str]) -> None:
    """Refuse a token that was issued for none of these resources."""
    meant = claims.get("aud")
    named = cast("list[Any]", meant) if isinstance(meant, list) else [meant]
    if not any(is_same_resource(each, here) for each in named for here in resources):
        found, due = repr(cast("Any", meant))[:MAX_QUOTED_LENGTH], " or ".join(map(repr, resources))
        raise TokenRejected(f"it was issued for another resource: its aud is {found}, where {due} is due")


def check_times(claims: Mapping[str, Any], leeway: float) -> None:
    """Refuse a token that is not valid now, as far as it says when it is."""
    ends, begins, issued = (_read_time(claims, name) for name in ("exp", "nbf", "iat"))
    now = time.time()
    if ends is not None and ends + leeway <= now:
        raise TokenRejected(f"it has expired: {now - ends:.0f} s ago, by its exp")
    if begins is not None and begins - leeway > now:
        raise TokenRejected(f"it is not good yet: by its nbf in {begins - now:.0f} s; do the clocks differ?")
    if issued is not None and issued - leeway > now:
        raise TokenRejected(f"its iat is in the future: by {issued - now:.0f} s; do the clocks differ?")


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRejected(f"its {name} is no time")
    return float(value)


def build_principal(claims: dict[str, Any]) -> Principal:
    """Return the principal that the claims of a token name."""
    subject, client = _read_text(claims, "sub"), _read_text(claims, "client_id") or _read_text(claims, "azp")
    if not subject and not client:
        raise TokenRejected("it names nobody")
    return Principal(subject, _read_text(claims, "iss"), client, _read_scopes(claims), claims)


def _read_scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes: a string with spaces (RFC 9068), or a list, as some providers write it."""
    granted = claims.get("scope", claims.get("scp"))
    if isinstance(granted, str):
        return frozenset(granted.split())
    listed = cast("list[Any]", granted) if isinstance(granted, list) else []
    return frozenset(each for each in listed if isinstance(each, str))


def _read_text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return value if isinstance(value, str) else ""
