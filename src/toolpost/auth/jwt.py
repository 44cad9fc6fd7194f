"""Access tokens that are signed texts (RFC 9068, RFC 7519): whose they are, if they are good here.

Owns the checks, in one ladder: who issued it, for whom, when, the algorithm, the signature. A token that
fails is refused with a reason for the log. Keys and their rotation are in `keys`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from toolpost.auth.compact import Compact, Malformed, object_in, split
from toolpost.auth.issuer import (
    MAX_NAMED,
    check_url,
    engine_of,
    fetch,
    foreign,
    issuer_of,
    metadata,
    seconds_of,
)
from toolpost.auth.keys import ALGORITHMS, ASYMMETRIC, Key, KeySource, jose, read_keys, verified
from toolpost.auth.places import same_place
from toolpost.errors import MCPError, TokenRejected
from toolpost.principal import Principal

__all__ = ["LEEWAY", "Jwt", "audience_of", "check_audience", "check_times", "principal_of"]

LEEWAY: Final = 30.0
"""Seconds by which two clocks may differ."""

KEEP: Final = 300.0
"""Seconds for which a good token is not looked at again: so long may one be good whose key was withdrawn."""

_KEYS: Final = "https://login.example.com/jwks"
_TYPES: Final = frozenset({"", "jwt", "at+jwt"})
"""What an access token may say it is. Identity tokens look alike; they are not issued for this resource."""


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

    keep = KEEP

    def __init__(
        self,
        issuer: str,
        *,
        jwks_uri: str | None = None,
        keys: Any = None,
        algorithms: Iterable[str] = ASYMMETRIC,
        leeway: float = LEEWAY,
        audience: str | None = None,
        http: object = None,
    ) -> None:
        jose()  # whoever lacks it learns it now
        self.issuer = issuer_of(issuer)
        self._algorithms = frozenset([algorithms] if isinstance(algorithms, str) else algorithms)
        unknown = sorted(self._algorithms - ALGORITHMS.keys())
        if unknown or not self._algorithms:
            raise ValueError(f"algorithms has {unknown or 'nothing'} in it; known: {', '.join(ALGORITHMS)}")
        if keys is not None and jwks_uri is not None:
            raise ValueError("give jwks_uri= or keys=, not both")
        if keys is None and not self._algorithms <= set(ASYMMETRIC):
            raise ValueError("algorithms with a secret need keys=; no key set has secrets in it")
        self._leeway = seconds_of(leeway, "leeway", 600)
        self._uri = None if jwks_uri is None else check_url(jwks_uri, "jwks_uri", _KEYS)
        self._known = None if keys is None else read_keys(keys)
        if self._known is not None and not any(
            key.fits(name, None) for key in self._known for name in self._algorithms
        ):
            raise ValueError("none of keys= is for one of algorithms=")
        self._audience = audience_of(audience)
        self._http = engine_of(http)
        self._source = KeySource(self._load)

    def __repr__(self) -> str:
        return f"Jwt({self.issuer!r})"

    async def verify(self, token: str, *resources: str) -> Principal:
        """Whose the token is.

        Raises:
            TokenRejected: it is not good here.
            TransportError: the keys of its issuer cannot be fetched.
        """
        try:
            read = split(token)
            claims = object_in(read.payload)
        except Malformed as error:
            raise TokenRejected(f"it is no JWT: {error}") from None
        # First, so that no key is asked for because of a token that cannot be good.
        if claims.get("iss") != self.issuer:
            raise TokenRejected(foreign(claims.get("iss"), self.issuer))
        check_audience(claims, self._audience or resources)
        if claims.get("exp") is None:
            raise TokenRejected("it has no end")
        check_times(claims, self._leeway)
        await self._check_signature(read)
        return principal_of(claims)

    async def _check_signature(self, token: Compact) -> None:
        algorithm = token.algorithm
        if algorithm not in self._algorithms:
            raise TokenRejected("it is signed with an algorithm that is not allowed")
        if token.typ not in _TYPES:
            raise TokenRejected("it is no access token, by its type")
        if not await self._signed(token):
            raise TokenRejected("no key of its issuer has signed it")

    async def _signed(self, token: Compact) -> bool:
        if self._known is None:
            return await self._source.have_signed(token)
        return any(key.fits(token.algorithm, token.kid) and verified(token, key) for key in self._known)

    async def _load(self) -> list[Key]:
        uri = self._uri
        if uri is None:
            uri = check_url((await metadata(self._http, self.issuer)).get("jwks_uri"), "jwks_uri", _KEYS)
        status, found = await fetch(self._http, "GET", uri)
        if status != 200:
            raise MCPError(f"{uri} answers with {status}, and not with a key set")
        try:
            return [key for key in read_keys(found) if key.kind != "oct"]
        except ValueError as error:
            raise MCPError(f"{uri}: {error}") from None


def audience_of(given: Any) -> tuple[str, ...]:
    """What tokens say they are for, where it was said; nothing otherwise.

    Raises:
        TypeError: it is no text.
    """
    if given is not None and (not isinstance(given, str) or not given):
        raise TypeError(f"audience has to be a text, which the tokens have in aud, not {given!r}")
    return () if given is None else (given,)


def check_audience(claims: Mapping[str, Any], resources: Sequence[str]) -> None:
    """Return if a token was issued for one of these.

    Raises:
        TokenRejected: it was not.
    """
    meant = claims.get("aud")
    named = cast("list[Any]", meant) if isinstance(meant, list) else [meant]
    if not any(same_place(each, here) for each in named for here in resources):
        found, due = repr(cast("Any", meant))[:MAX_NAMED], " or ".join(map(repr, resources))
        raise TokenRejected(f"it was issued for another resource: its aud is {found}, where {due} is due")


def check_times(claims: Mapping[str, Any], leeway: float) -> None:
    """Return if a token is good now, as far as it says when.

    Raises:
        TokenRejected: it is not, or what it says is no time.
    """
    ends, begins, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    now = time.time()
    if ends is not None and ends + leeway <= now:
        raise TokenRejected(f"it has expired: {now - ends:.0f} s ago, by its exp")
    if begins is not None and begins - leeway > now:
        raise TokenRejected(f"it is not good yet: by its nbf in {begins - now:.0f} s; do the clocks differ?")
    if issued is not None and issued - leeway > now:
        raise TokenRejected(f"its iat is in the future: by {issued - now:.0f} s; do the clocks differ?")


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRejected(f"its {name} is no time")
    return float(value)


def principal_of(claims: dict[str, Any]) -> Principal:
    """Whose a token is, by its claims.

    Raises:
        TokenRejected: they name nobody.
    """
    subject, client = _text(claims, "sub"), _text(claims, "client_id") or _text(claims, "azp")
    if not subject and not client:
        raise TokenRejected("it names nobody")
    return Principal(subject, _text(claims, "iss"), client, _scopes(claims), claims)


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """What was granted: a text with spaces (RFC 9068), or a list, as some providers write it."""
    granted = claims.get("scope", claims.get("scp"))
    if isinstance(granted, str):
        return frozenset(granted.split())
    listed = cast("list[Any]", granted) if isinstance(granted, list) else []
    return frozenset(each for each in listed if isinstance(each, str))


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return value if isinstance(value, str) else ""
