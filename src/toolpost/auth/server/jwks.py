"""The keys that an authorization server signs with: read, cached, and fetched again when they rotate.

Owns which key may check which signature: a key is tried only with an algorithm of its own kind, so that a
public key cannot pass for a secret. The arithmetic is joserfc's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final, NamedTuple, cast

from toolpost.auth.jose import CompactJws, import_jose
from toolpost.errors import MCPError, RequestFailed
from toolpost.rate_limit import TokenBucket

logger: Final = logging.getLogger("toolpost.auth")

ALGORITHMS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", "")),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    **dict.fromkeys(("EdDSA", "Ed25519"), ("OKP", "Ed25519")),
    **dict.fromkeys(("HS256", "HS384", "HS512"), ("oct", "")),
}
"""Algorithm → the kind of key that it takes, and its curve. There is no "none"."""

ASYMMETRIC_ALGORITHMS: Final = tuple(name for name, (kind, _) in ALGORITHMS.items() if kind != "oct")

MAX_KEYS: Final = 64  # keys of a set that are read, at some cost each: providers publish two or three
MIN_RSA_BITS: Final = 2048  # bits of an RSA key that count as safe (RFC 7518 §3.3)
KEYS_LIFETIME: Final = 3600.0  # seconds until keys are fetched again; a withdrawn one is good for so long
MAX_EARLY_FETCHES: Final = 4  # fetches at once for unknown keys, which may rotate soon after a fetch
EARLY_FETCH_INTERVAL: Final = 30.0  # seconds until one more of these: anybody can invent names of keys
MAX_STALENESS: Final = 24 * 3600.0  # seconds for which old keys are good while the issuer is unreachable
FETCH_RETRY_DELAY: Final = 3.0  # seconds after a failed fetch: the issuer may not have started yet
REFRESH_TIMEOUT: Final = 0.5  # seconds that requests wait for a fetch if their keys are only old
FETCH_TIMEOUT: Final = 10.0  # seconds that requests wait for a fetch if their keys are missing

_USAGE_MEMBERS: Final = frozenset({"use", "key_ops", "alg"})


class VerificationKey(NamedTuple):
    """A key, and what it may be used for."""

    kid: str | None
    kind: str
    curve: str
    algorithm: str | None
    material: Any

    def can_verify(self, algorithm: str, kid: str | None) -> bool:
        """Whether it may check a signature of this algorithm by the key of this name."""
        kind, curve = ALGORITHMS[algorithm]
        named = kid is None or self.kid in {None, kid}
        return (
            named and self.kind == kind and curve in {"", self.curve} and self.algorithm in {None, algorithm}
        )

    def has_signed(self, token: CompactJws) -> bool:
        """Whether a signature is by this key, which must be fit for its algorithm."""
        model = import_jose().jws.JWSRegistry.algorithms[token.algorithm]
        try:
            return bool(model.verify(token.signing_input, token.signature, self.material))
        except Exception as error:  # noqa: BLE001 - a signature that cannot be read is none
            logger.debug("a signature cannot be checked: %s", type(error).__name__)
            return False


def read_keys(given: Any) -> list[VerificationKey]:
    """Return the keys in a JWK set, a JWK, a PEM text, or several of these, without those for other uses."""
    keys = [key for each in _split_keys(given)[:MAX_KEYS] if (key := _read_key(each)) is not None]
    if not keys:
        raise ValueError("there is no key in it that could check a signature")
    return keys


def _split_keys(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        found = cast("Mapping[str, Any]", given).get("keys", [given])
        return cast("list[Any]", found) if isinstance(found, list) else []
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return [given]
    return list(cast("Iterable[Any]", given))


def _read_key(given: Any) -> VerificationKey | None:
    """Return one key; None if it is of no use here, which says nothing of the others."""
    jwk = import_jose().jwk
    try:
        if isinstance(given, Mapping):
            told: dict[str, Any] = dict(cast("Mapping[str, Any]", given))
            if not all(isinstance(told.get(name), str | None) for name in ("alg", "kid")):
                return None
            if told.get("use", "sig") != "sig" or "verify" not in told.get("key_ops", ["verify"]):
                return None
            # Its uses were checked above; joserfc would check more.
            material = jwk.import_key({name: told[name] for name in told if name not in _USAGE_MEMBERS})
        else:
            told = {}
            material = _import_pem(jwk, given) if isinstance(given, str | bytes) else given
        facts: dict[str, Any] = material.as_dict(private=False) if material.key_type != "oct" else {}
        if material.key_type == "RSA" and material.raw_value.key_size < MIN_RSA_BITS:
            logger.warning("an RSA key with fewer than %d bits is not used", MIN_RSA_BITS)
            return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is one key among others
        logger.debug("a key cannot be read: %s", type(error).__name__)
        return None
    kid = told.get("kid", facts.get("kid"))
    return VerificationKey(kid, material.key_type, facts.get("crv", ""), told.get("alg"), material)


def _import_pem(jwk: Any, text: str | bytes) -> Any:
    """Import a key in PEM. A text that is none does not count as a secret: those come in a JWK."""
    for kind in ("RSA", "EC", "OKP"):
        try:
            return jwk.import_key(text, kind)
        except Exception:  # noqa: BLE001, S112 - it is of another kind
            continue
    raise ValueError("no PEM")


def _get_time() -> float:
    return monotonic()


class KeySource:
    """The keys of an issuer, fetched when they are first needed and again when they rotate.

    There is one fetch at a time, which goes on when its waiters leave; a `SingleFlight` would cancel it.
    """

    def __init__(self, load: Callable[[], Awaitable[list[VerificationKey]]]) -> None:
        self._load = load
        self._keys: list[VerificationKey] = []
        self._fetched_at = self._next_fetch_at = float("-inf")
        self._early_fetches = TokenBucket(MAX_EARLY_FETCHES, 1 / EARLY_FETCH_INTERVAL, _get_time)
        self._fetch_task: asyncio.Task[bool] | None = None
        self._fetch_began_at = 0.0

    async def find_keys(self, algorithm: str, kid: str | None) -> list[VerificationKey]:
        """Return the keys that may have made a signature; RequestFailed if they cannot be fetched now."""
        age = monotonic() - self._fetched_at
        if age >= KEYS_LIFETIME + MAX_STALENESS:
            self._keys = []
        is_old, timeout = age >= KEYS_LIFETIME, REFRESH_TIMEOUT if self._keys else FETCH_TIMEOUT
        fetched = is_old and await self._refresh_keys(timeout)
        if not self._filter_keys(algorithm, kid) and not fetched:
            fetched = await self._refresh_keys(FETCH_TIMEOUT, early=not is_old)
            if not fetched:
                raise RequestFailed("the keys of the authorization server cannot be fetched")
        return self._filter_keys(algorithm, kid)

    async def verify_signature(self, token: CompactJws) -> bool:
        """Return whether one of the keys has signed it; RequestFailed if they cannot be fetched now.

        If no known one has, they are fetched again: a key may have been replaced by one of the same name.
        """
        algorithm, kid, began = token.algorithm, token.kid, monotonic()
        if any(key.has_signed(token) for key in await self.find_keys(algorithm, kid)):
            return True
        if self._fetched_at >= began:
            return False
        # Keys that were fetched just now are enough, if newer ones cannot be had.
        recent = began - self._fetched_at < EARLY_FETCH_INTERVAL
        try:
            fetched = await self._refresh_keys(FETCH_TIMEOUT, early=True)
        except RequestFailed:
            fetched = False
        if not fetched and not recent:
            raise RequestFailed("the keys of the authorization server cannot be fetched again now")
        return any(key.has_signed(token) for key in self._filter_keys(algorithm, kid))

    def _filter_keys(self, algorithm: str, kid: str | None) -> list[VerificationKey]:
        return [key for key in self._keys if key.can_verify(algorithm, kid)]

    async def _refresh_keys(self, timeout: float, *, early: bool = False) -> bool:
        """Return whether the keys were fetched within so many seconds after the fetch began."""
        loop, fetch = asyncio.get_running_loop(), self._fetch_task
        if fetch is None or fetch.done() or fetch.get_loop() is not loop:
            if monotonic() < self._next_fetch_at:
                return False
            if early and not self._early_fetches.take():
                raise RequestFailed(
                    "a token names a key that is not known, and it is too early to ask for it"
                )
            fetch = self._fetch_task = loop.create_task(self._reload(), name="toolpost keys")
            self._fetch_began_at = monotonic()
        await asyncio.wait([fetch], timeout=max(self._fetch_began_at + timeout - monotonic(), 0))
        return fetch.done() and not fetch.cancelled() and fetch.result()

    async def _reload(self) -> bool:
        try:
            self._keys = await self._load()
        except Exception as error:  # noqa: BLE001 - there may be no waiter left to raise it to
            told = error if isinstance(error, MCPError | ValueError) else type(error).__name__
            logger.warning("the keys of the authorization server cannot be fetched: %s", told)
            self._next_fetch_at = monotonic() + FETCH_RETRY_DELAY
            return False
        self._fetched_at = monotonic()
        return True
