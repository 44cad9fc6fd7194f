"""Access tokens that are signed texts (RFC 9068, RFC 7519): whose they are, if they are good here.

Owns the checks, in one ladder: who issued it, for whom, when, the algorithm, the signature. A token that
fails is refused with a reason for the log. Keys and their rotation are in `keys`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from toolpost.auth.server.issuer import (
    MAX_QUOTED_LENGTH,
    check_backend,
    check_duration,
    check_issuer,
    check_url,
    describe_wrong_issuer,
    fetch_issuer_metadata,
    fetch_json,
)
from toolpost.auth.server.jwks import (
    ALGORITHMS,
    ASYMMETRIC_ALGORITHMS,
    CompactJws,
    KeySource,
    MalformedToken,
    VerificationKey,
    decode_object,
    import_jose,
    is_signed_by,
    read_keys,
    split_jws,
)
from toolpost.auth.urls import is_same_resource
from toolpost.errors import MCPError, TokenRejected
from toolpost.principal import Principal

LEEWAY: Final = 30.0
"""Seconds by which two clocks may differ."""

TOKEN_CACHE_SECONDS: Final = 300.0
"""Seconds for which a good token is not looked at again: so long may one be good whose key was withdrawn."""

_EXAMPLE_JWKS_URI: Final = "https://login.example.com/jwks"
_ACCESS_TOKEN_TYPES: Final = frozenset({"", "jwt", "at+jwt"})
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
        import_jose()  # whoever lacks it learns it now
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
        self._static_keys = None if keys is None else read_keys(keys)
        if self._static_keys is not None and not any(
            key.can_verify(name, None) for key in self._static_keys for name in self._algorithms
        ):
            raise ValueError("none of keys= is for one of algorithms=")
        self._audience = parse_audience(audience)
        self._http = check_backend(http)
        self._key_source = KeySource(self._fetch_keys)

    def __repr__(self) -> str:
        return f"Jwt({self.issuer!r})"

    async def verify(self, token: str, *resources: str) -> Principal:
        """Whose the token is.

        Raises:
            TokenRejected: it is not good here.
            TransportError: the keys of its issuer cannot be fetched.
        """
        try:
            read = split_jws(token)
            claims = decode_object(read.payload)
        except MalformedToken as error:
            raise TokenRejected(f"it is no JWT: {error}") from None
        # First, so that no key is asked for because of a token that cannot be good.
        if claims.get("iss") != self.issuer:
            raise TokenRejected(describe_wrong_issuer(claims.get("iss"), self.issuer))
        check_audience(claims, self._audience or resources)
        if claims.get("exp") is None:
            raise TokenRejected("it has no end")
        check_times(claims, self._leeway)
        await self._check_signature(read)
        return build_principal(claims)

    async def _check_signature(self, token: CompactJws) -> None:
        algorithm = token.algorithm
        if algorithm not in self._algorithms:
            raise TokenRejected("it is signed with an algorithm that is not allowed")
        if token.typ not in _ACCESS_TOKEN_TYPES:
            raise TokenRejected("it is no access token, by its type")
        if not await self._is_signed(token):
            raise TokenRejected("no key of its issuer has signed it")

    async def _is_signed(self, token: CompactJws) -> bool:
        if self._static_keys is None:
            return await self._key_source.verify_signature(token)
        return any(
            key.can_verify(token.algorithm, token.kid) and is_signed_by(token, key)
            for key in self._static_keys
        )

    async def _fetch_keys(self) -> list[VerificationKey]:
        uri = self._uri
        if uri is None:
            uri = check_url(
                (await fetch_issuer_metadata(self._http, self.issuer)).get("jwks_uri"),
                "jwks_uri",
                _EXAMPLE_JWKS_URI,
            )
        status, found = await fetch_json(self._http, "GET", uri)
        if status != 200:
            raise MCPError(f"{uri} answers with {status}, and not with a key set")
        try:
            return [key for key in read_keys(found) if key.kind != "oct"]
        except ValueError as error:
            raise MCPError(f"{uri}: {error}") from None


def parse_audience(given: Any) -> tuple[str, ...]:
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
    if not any(is_same_resource(each, here) for each in named for here in resources):
        found, due = repr(cast("Any", meant))[:MAX_QUOTED_LENGTH], " or ".join(map(repr, resources))
        raise TokenRejected(f"it was issued for another resource: its aud is {found}, where {due} is due")


def check_times(claims: Mapping[str, Any], leeway: float) -> None:
    """Return if a token is good now, as far as it says when.

    Raises:
        TokenRejected: it is not, or what it says is no time.
    """
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
    """Whose a token is, by its claims.

    Raises:
        TokenRejected: they name nobody.
    """
    subject, client = _read_text(claims, "sub"), _read_text(claims, "client_id") or _read_text(claims, "azp")
    if not subject and not client:
        raise TokenRejected("it names nobody")
    return Principal(subject, _read_text(claims, "iss"), client, _read_scopes(claims), claims)


def _read_scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """What was granted: a text with spaces (RFC 9068), or a list, as some providers write it."""
    granted = claims.get("scope", claims.get("scp"))
    if isinstance(granted, str):
        return frozenset(granted.split())
    listed = cast("list[Any]", granted) if isinstance(granted, list) else []
    return frozenset(each for each in listed if isinstance(each, str))


def _read_text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return value if isinstance(value, str) else ""
