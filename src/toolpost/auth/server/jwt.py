"""Verification of JWT access tokens (RFC 9068, RFC 7519): claims, signatures, and the keys of the issuer.

Keys are cached, and fetched again when they rotate. A key is tried only with algorithms of its own kind, so
that a public key cannot pass for a secret. Introspection shares the checks of claims, without joserfc.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple, cast

from toolpost.auth.arguments import check_duration
from toolpost.auth.fetch import check_backend, fetch_json
from toolpost.auth.jose import CompactJws, import_jose, parse_jws
from toolpost.auth.urls import (
    MAX_QUOTED_LENGTH,
    check_issuer,
    check_url,
    is_same_resource,
    list_server_metadata_urls,
)
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.json_schema import as_list
from toolpost.principal import Principal
from toolpost.token_bucket import TokenBucket

logger: Final = logging.getLogger("toolpost.auth")

LEEWAY: Final = 30.0  # seconds by which two clocks may differ
TOKEN_CACHE_SECONDS: Final = 300.0  # for which a valid token is not checked again

_EXAMPLE_JWKS_URI: Final = "https://login.example.com/jwks"
# ID tokens look similar, but are not issued for this resource.
_ACCESS_TOKEN_TYPES: Final = frozenset({"", "jwt", "at+jwt"})

ALGORITHMS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", "")),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    **dict.fromkeys(("EdDSA", "Ed25519"), ("OKP", "Ed25519")),
    **dict.fromkeys(("HS256", "HS384", "HS512"), ("oct", "")),
}
"""Algorithm → its kind of key, and the curve. There is no "none"."""

ASYMMETRIC_ALGORITHMS: Final = tuple(name for name, (kind, _) in ALGORITHMS.items() if kind != "oct")

MAX_KEYS: Final = 64  # keys of a set that are read; providers publish two or three
MIN_RSA_BITS: Final = 2048  # of a safe RSA key (RFC 7518 §3.3)
KEYS_LIFETIME: Final = 3600.0  # seconds until keys are fetched again; a withdrawn key is accepted until then
MAX_EARLY_FETCHES: Final = 4  # in a row for unknown keys, which may rotate soon after a fetch
EARLY_FETCH_INTERVAL: Final = 30.0  # seconds until one more of these: a client can invent names of keys
MAX_STALENESS: Final = 24 * 3600.0  # seconds for which old keys are used while the issuer is unreachable
FETCH_RETRY_DELAY: Final = 3.0  # seconds after a failed fetch: the issuer may not have started yet
REFRESH_TIMEOUT: Final = 0.5  # seconds that requests wait for a fetch if their keys are only old
FETCH_TIMEOUT: Final = 10.0  # seconds that requests wait for a fetch if their keys are missing

_USAGE_MEMBERS: Final = frozenset({"use", "key_ops", "alg"})


class Jwt:
    """Checks access tokens by their signature.

    Args:
        issuer: their issuer, exactly as the tokens name it.
        jwks_uri: the URL of its keys; by default from its metadata.
        keys: its keys, if they are known: a JWK set, a JWK, PEM strings, keys of joserfc.
        algorithms: the allowed algorithms; by default all asymmetric ones.
        leeway: seconds by which clocks may differ.
        audience: the audience of the tokens, if that is not the URL of the resource.
        http: the HTTP library, as in `Http(http=…)`.

    Raises:
        MCPError: joserfc is not installed.
        ValueError: an argument is invalid; the error names it.

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
        import_jose()  # raises if it is not installed
        self.issuer = check_issuer(issuer)
        self._algorithms = frozenset([algorithms] if isinstance(algorithms, str) else algorithms)
        unknown = sorted(self._algorithms - ALGORITHMS.keys())
        if unknown or not self._algorithms:
            raise ValueError(f"algorithms may only contain {', '.join(ALGORITHMS)}, not {unknown}")
        if keys is not None and jwks_uri is not None:
            raise ValueError("pass jwks_uri= or keys=, not both")
        if keys is None and not self._algorithms <= set(ASYMMETRIC_ALGORITHMS):
            raise ValueError("symmetric algorithms require keys=; a key set contains no secrets")
        self._leeway = check_duration(leeway, "leeway", 600)
        self._uri = None if jwks_uri is None else check_url(jwks_uri, "jwks_uri", _EXAMPLE_JWKS_URI)
        self._keys = None if keys is None else read_keys(keys)
        for_algorithms = (key.can_verify(each, None) for key in self._keys or () for each in self._algorithms)
        if self._keys is not None and not any(for_algorithms):
            raise ValueError("keys= has no key for any of algorithms=")
        self._audience = parse_audience(audience)
        self._http = check_backend(http)
        self._key_source = KeySource(self._fetch_keys)

    def __repr__(self) -> str:
        return f"Jwt({self.issuer!r})"

    async def verify(self, token: str, *resources: str) -> Principal:
        """Return the principal of a token, as `Verifier` describes it."""
        read = parse_jws(token)
        claims = read.claims
        # Before the signature, so that an invalid token causes no fetch of keys.
        check_issuer_claim(claims, self.issuer)
        check_audience(claims, self._audience or resources)
        if claims.get("exp") is None:
            raise TokenRejected("the token has no exp")
        check_times(claims, self._leeway)
        if read.algorithm not in self._algorithms:
            raise TokenRejected("the signature algorithm is not allowed")
        if read.typ not in _ACCESS_TOKEN_TYPES:
            raise TokenRejected("the token is not an access token: wrong typ")
        keys, source = self._keys, self._key_source
        if not (await source.verify_signature(read) if keys is None else is_signed_by(keys, read)):
            raise TokenRejected("the signature matches no key of the issuer")
        return build_principal(claims)

    async def _fetch_keys(self) -> "list[VerificationKey]":
        uri = self._uri
        if uri is None:
            metadata = await fetch_issuer_metadata(self._http, self.issuer)
            uri = check_url(metadata.get("jwks_uri"), "jwks_uri", _EXAMPLE_JWKS_URI)
        status, found = await fetch_json(self._http, uri)
        if status != 200:
            raise MCPError(f"{uri} responded with {status} instead of a key set")
        try:
            return [key for key in read_keys(found) if key.kind != "oct"]
        except ValueError as error:
            raise MCPError(f"{uri}: {error}") from None


async def fetch_issuer_metadata(engine: object, issuer: str) -> dict[str, Any]:
    """Return the metadata of an authorization server, from the first well-known URL that has it."""
    for url in list_server_metadata_urls(issuer):
        status, found = await fetch_json(engine, url)
        if status == 200 and found:
            if found.get("issuer") != issuer:  # by simple string comparison (RFC 8414 §3.3)
                named = repr(found.get("issuer"))[:MAX_QUOTED_LENGTH]
                raise MCPError(
                    f"the metadata at {url} has issuer {named}, but issuer= is {issuer!r}",
                    hint="copy the issuer exactly, including any slash at the end",
                )
            return found
    raise MCPError(f"{issuer} publishes no metadata at the URLs that RFC 8414 and OpenID Connect define")


# --------------------------------------------------------------------- claims, of introspection too


def parse_audience(given: Any) -> tuple[str, ...]:
    """Return the audience that a user gave as a tuple; empty if there is none."""
    if given is not None and (not isinstance(given, str) or not given):
        raise TypeError(f"audience must be a string, as in the aud of the tokens, not {given!r}")
    return () if given is None else (given,)


def check_issuer_claim(claims: Mapping[str, Any], issuer: str) -> None:
    """Reject a token of another issuer."""
    named = claims.get("iss")
    if named != issuer:
        found = repr(named)[:MAX_QUOTED_LENGTH]
        raise TokenRejected(f"wrong token issuer: iss is {found}, expected {issuer!r}")


def check_audience(claims: Mapping[str, Any], resources: Sequence[str]) -> None:
    """Reject a token that was issued for none of these resources."""
    meant: Any = claims.get("aud")
    named = as_list(meant) or [meant]
    if not any(is_same_resource(each, here) for each in named for here in resources):
        found, due = repr(meant)[:MAX_QUOTED_LENGTH], " or ".join(map(repr, resources))
        raise TokenRejected(f"wrong token audience: aud is {found}, expected {due}")


def check_times(claims: Mapping[str, Any], leeway: float) -> None:
    """Reject a token that is not valid now."""
    ends, begins, issued = (_read_time(claims, name) for name in ("exp", "nbf", "iat"))
    now = time.time()
    if ends is not None and ends + leeway <= now:
        raise TokenRejected(f"the token has expired: {now - ends:.0f} s ago (exp)")
    if begins is not None and begins - leeway > now:
        raise TokenRejected(f"the token's nbf is {begins - now:.0f} s in the future; check the clocks")
    if issued is not None and issued - leeway > now:
        raise TokenRejected(f"the token's iat is {issued - now:.0f} s in the future; check the clocks")


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRejected(f"the token's {name} is not a valid time")
    return float(value)


def build_principal(claims: dict[str, Any]) -> Principal:
    """Return the principal that the claims of a token name."""
    subject, client = read_text(claims, "sub"), read_text(claims, "client_id") or read_text(claims, "azp")
    if not subject and not client:
        raise TokenRejected("the token names no subject and no client")
    return Principal(subject, read_text(claims, "iss"), client, _read_scopes(claims), claims)


def _read_scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes: a string with spaces (RFC 9068), or a list, as some providers write it."""
    granted = claims.get("scope", claims.get("scp"))
    if isinstance(granted, str):
        return frozenset(granted.split())
    return frozenset(each for each in as_list(granted) if isinstance(each, str))


def read_text(claims: Mapping[str, Any], name: str) -> str:
    """Return a claim if it is a string, else an empty string."""
    value = claims.get(name)
    return value if isinstance(value, str) else ""


# --------------------------------------------------------------------- keys


class VerificationKey(NamedTuple):
    """A key and its uses."""

    kid: str | None
    kind: str
    curve: str
    algorithm: str | None
    material: Any

    def can_verify(self, algorithm: str, kid: str | None) -> bool:
        """Return whether the key may verify signatures of this algorithm, by the key of this name."""
        kind, curve = ALGORITHMS[algorithm]
        if kid is not None and self.kid not in {None, kid}:
            return False
        return self.kind == kind and curve in {"", self.curve} and self.algorithm in {None, algorithm}

    def has_signed(self, token: CompactJws) -> bool:
        """Return whether a signature is by this key, which must be of the kind that the algorithm needs."""
        model = import_jose().jws.JWSRegistry.algorithms[token.algorithm]
        try:
            return bool(model.verify(token.signing_input, token.signature, self.material))
        except Exception as error:  # noqa: BLE001 - an unreadable signature is not valid
            logger.debug("could not verify a signature: %s", type(error).__name__)
            return False


def is_signed_by(keys: Iterable[VerificationKey], token: CompactJws) -> bool:
    """Return whether one of these keys has signed a token."""
    return any(key.can_verify(token.algorithm, token.kid) and key.has_signed(token) for key in keys)


def read_keys(given: Any) -> list[VerificationKey]:
    """Return the keys for signatures in a JWK set, a JWK, a PEM string, or several of these."""
    keys = [key for each in _split_keys(given)[:MAX_KEYS] if (key := _read_key(each)) is not None]
    if not keys:
        raise ValueError("no key can verify a signature")
    return keys


def _split_keys(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        return as_list(cast("Mapping[str, Any]", given).get("keys", [given]))
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return [given]
    return list(cast("Iterable[Any]", given))


def _read_key(given: Any) -> VerificationKey | None:
    """Return one key; None if it is not usable."""
    jwk = import_jose().jwk
    try:
        if isinstance(given, Mapping):
            members: dict[str, Any] = dict(cast("Mapping[str, Any]", given))
            if not all(isinstance(members.get(name), str | None) for name in ("alg", "kid")):
                return None
            if members.get("use", "sig") != "sig" or "verify" not in members.get("key_ops", ["verify"]):
                return None
            # joserfc would check the uses again, and refuse more.
            material = jwk.import_key({name: members[name] for name in members if name not in _USAGE_MEMBERS})
        else:
            members = {}
            material = _import_pem(jwk, given) if isinstance(given, str | bytes) else given
        facts: dict[str, Any] = material.as_dict(private=False) if material.key_type != "oct" else {}
        if material.key_type == "RSA" and material.raw_value.key_size < MIN_RSA_BITS:
            logger.warning("ignored an RSA key with fewer than %d bits", MIN_RSA_BITS)
            return None
    except Exception as error:  # noqa: BLE001 - joserfc raises errors of several kinds; other keys may work
        logger.debug("could not load a key: %s", type(error).__name__)
        return None
    kid = members.get("kid", facts.get("kid"))
    return VerificationKey(kid, material.key_type, facts.get("crv", ""), members.get("alg"), material)


def _import_pem(jwk: Any, text: str | bytes) -> Any:
    """Import a key in PEM. Other strings are not taken as secrets: those come in a JWK."""
    for kind in ("RSA", "EC", "OKP"):
        try:
            return jwk.import_key(text, kind)
        except Exception:  # noqa: BLE001, S112 - it is of another kind
            continue
    raise ValueError("not PEM")


class KeySource:
    """The keys of an issuer, fetched when they are first needed and again when they rotate.

    One fetch runs at a time. It continues when its callers are cancelled, unlike a `SingleFlight`.
    """

    def __init__(self, load: Callable[[], Awaitable[list[VerificationKey]]]) -> None:
        self._load = load
        self._keys: list[VerificationKey] = []
        self._fetched_at = self._next_fetch_at = float("-inf")
        self._early_fetches = TokenBucket(MAX_EARLY_FETCHES, 1 / EARLY_FETCH_INTERVAL, lambda: monotonic())  # noqa: PLW0108 - the clock of tests
        self._fetch_task: asyncio.Task[bool] | None = None
        self._fetch_began_at = 0.0

    async def verify_signature(self, token: CompactJws) -> bool:
        """Return whether one of the keys has signed a token; RequestFailed if they cannot be fetched now.

        If none has, keys are fetched again: a key may be new, or replace one of the same name.
        """
        began = monotonic()
        age = began - self._fetched_at
        is_old = age >= KEYS_LIFETIME
        if age >= KEYS_LIFETIME + MAX_STALENESS:
            self._keys = []
        if is_old:
            await self._refresh_keys(REFRESH_TIMEOUT if self._keys else FETCH_TIMEOUT)
        if is_signed_by(self._keys, token):
            return True
        if self._fetched_at >= began:
            return False
        # Keys that were fetched recently are enough if newer ones cannot be fetched.
        is_known = any(key.can_verify(token.algorithm, token.kid) for key in self._keys)
        is_enough = is_known and age < EARLY_FETCH_INTERVAL
        if not await self._refresh_keys(FETCH_TIMEOUT, early=not is_old) and not is_enough:
            raise RequestFailed("the keys of the authorization server cannot be fetched again yet")
        return is_signed_by(self._keys, token)

    async def _refresh_keys(self, timeout: float, *, early: bool = False) -> bool:
        """Return whether the keys were fetched within `timeout` seconds after the fetch began."""
        loop, fetch = asyncio.get_running_loop(), self._fetch_task
        if fetch is None or fetch.done() or fetch.get_loop() is not loop:
            if monotonic() < self._next_fetch_at or (early and not self._early_fetches.take()):
                return False
            fetch = self._fetch_task = loop.create_task(self._reload(), name="toolpost keys")
            self._fetch_began_at = monotonic()
        await asyncio.wait([fetch], timeout=max(self._fetch_began_at + timeout - monotonic(), 0))
        return fetch.done() and not fetch.cancelled() and fetch.result()

    async def _reload(self) -> bool:
        try:
            self._keys = await self._load()
        except Exception as error:  # noqa: BLE001 - there may be no caller left to raise it to
            problem = error if isinstance(error, MCPError | ValueError) else type(error).__name__
            logger.warning("could not fetch the keys of the authorization server: %s", problem)
            self._next_fetch_at = monotonic() + FETCH_RETRY_DELAY
            return False
        self._fetched_at = monotonic()
        return True
