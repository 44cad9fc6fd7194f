"""The keys that an authorization server signs with: read, fetched, kept, and fetched again when they rotate.

Owns which key may check which signature: a key is tried only with an algorithm of its own kind, so that
nobody can pass off a public key as a secret. The arithmetic is joserfc's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from time import monotonic
from typing import Any, Final, NamedTuple, cast

from toolpost.auth.compact import Compact
from toolpost.errors import MCPError, RequestFailed

__all__ = ["ALGORITHMS", "ASYMMETRIC", "Key", "KeySource", "jose", "read_keys", "verified"]

logger: Final = logging.getLogger("toolpost.auth")

ALGORITHMS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "RS256": ("RSA", ()),
    "RS384": ("RSA", ()),
    "RS512": ("RSA", ()),
    "PS256": ("RSA", ()),
    "PS384": ("RSA", ()),
    "PS512": ("RSA", ()),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519",)),
    "Ed25519": ("OKP", ("Ed25519",)),
    "HS256": ("oct", ()),
    "HS384": ("oct", ()),
    "HS512": ("oct", ()),
}
"""Algorithm → the kind of key that it takes, and its curves. There is no "none"."""

ASYMMETRIC: Final = tuple(name for name, (kind, _) in ALGORITHMS.items() if kind != "oct")

MAX_KEYS: Final = 64
"""Keys of a set that are looked at: providers publish two or three, and each costs some work to read."""

MIN_RSA: Final = 2048
"""Bits of an RSA key that count as safe (RFC 7518 §3.3)."""

FRESH: Final = 3600.0
"""Seconds after which a key set is fetched again: so long may a key be good that was withdrawn."""

EARLY: Final = 4
"""Fetches at once because of keys that nobody knows: keys may rotate soon after they were fetched."""

COOL: Final = 30.0
"""Seconds after which there may be one more of these: anybody can invent names of keys."""

STALE: Final = 24 * 3600.0
"""Seconds for which keys are good beyond that while the authorization server cannot be reached."""

AGAIN: Final = 3.0
"""Seconds after a fetch that has failed: the server may have been started before its issuer."""

SOON: Final = 0.5
"""Seconds in which a fetch usually succeeds: so long do requests wait for it whose keys are only old."""

PATIENCE: Final = 10.0
"""Seconds that requests wait for a fetch whose keys are not there."""


class Jose(NamedTuple):
    """The parts of joserfc that are used here."""

    jwk: Any
    jws: Any


def jose() -> Jose:
    """joserfc, which only those need who check signatures.

    Raises:
        MCPError: it is not installed.
    """
    try:
        return Jose(import_module("joserfc.jwk"), import_module("joserfc.jws"))
    except ImportError as error:
        raise MCPError("checking signatures needs joserfc", hint="pip install 'toolpost[auth]'") from error


class Key(NamedTuple):
    """A key, and what it may be used for."""

    kid: str | None
    kind: str
    curve: str
    algorithm: str | None
    material: Any

    def fits(self, algorithm: str, kid: str | None) -> bool:
        """Whether it may check a signature of this algorithm by the key of this name."""
        kind, curves = ALGORITHMS[algorithm]
        named = kid is None or self.kid is None or self.kid == kid
        alike = self.kind == kind and (not curves or self.curve in curves)
        return named and alike and self.algorithm in {None, algorithm}


def read_keys(given: Any) -> list[Key]:
    """The keys in a JWK set, a JWK, a PEM text, or several of these; those for other uses are left out.

    Raises:
        ValueError: there is none.
    """
    keys: list[Key] = []
    for each in _each(given):
        key = _key(each)
        if key is not None:
            keys.append(key)
    if not keys:
        raise ValueError("there is no key in it that could check a signature")
    return keys


def _each(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        found = cast("Mapping[str, Any]", given).get("keys", [given])
        return list(cast("Iterable[Any]", found))[:MAX_KEYS] if isinstance(found, list) else []
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return [given]
    return list(cast("Iterable[Any]", given))[:MAX_KEYS]


def _key(given: Any) -> Key | None:
    """One key; None if it is of no use to us, which says nothing of the others."""
    jwk = jose().jwk
    try:
        if isinstance(given, Mapping):
            told: dict[str, Any] = dict(cast("Mapping[str, Any]", given))
            if not all(isinstance(told.get(name), str | None) for name in ("alg", "kid")):
                return None
            if told.get("use", "sig") != "sig" or "verify" not in told.get("key_ops", ["verify"]):
                return None
            # What it may be used for was looked at; joserfc would look for more.
            material = jwk.import_key(
                {name: told[name] for name in told if name not in {"use", "key_ops", "alg"}}
            )
        else:
            told = {}
            material = _from_text(jwk, given) if isinstance(given, str | bytes) else given
        facts: dict[str, Any] = material.as_dict(private=False) if material.key_type != "oct" else {}
        if material.key_type == "RSA" and material.raw_value.key_size < MIN_RSA:
            logger.warning("an RSA key with fewer than %d bits is not used", MIN_RSA)
            return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is one key among others
        logger.debug("a key cannot be read: %s", type(error).__name__)
        return None
    algorithm = told.get("alg")
    return Key(
        told.get("kid", facts.get("kid")), material.key_type, facts.get("crv", ""), algorithm, material
    )


def _from_text(jwk: Any, text: str | bytes) -> Any:
    """A key in PEM. A text that is none is no secret either: that is said in a JWK."""
    for kind in ("RSA", "EC", "OKP"):
        try:
            return jwk.import_key(text, kind)
        except Exception:  # noqa: BLE001, S112 - it is of another kind
            continue
    raise ValueError("no PEM")


def verified(token: Compact, key: Key) -> bool:
    """Whether the key has signed it. Ask only keys that fit."""
    model = jose().jws.JWSRegistry.algorithms[token.algorithm]
    try:
        return bool(model.verify(token.signed, token.signature, key.material))
    except Exception as error:  # noqa: BLE001 - a signature that cannot be read is none
        logger.debug("a signature cannot be checked: %s", type(error).__name__)
        return False


class KeySource:
    """The keys of an issuer, fetched when they are first needed and again when they rotate.

    One fetch is under way at a time, for all who wait. It goes on when they leave.

    Args:
        load: fetches the keys.
    """

    def __init__(self, load: Callable[[], Awaitable[list[Key]]]) -> None:
        self._load = load
        self._keys: list[Key] = []
        self._since = self._next = float("-inf")
        self._early, self._counted = float(EARLY), monotonic()
        self._fetch: asyncio.Task[bool] | None = None
        self._began = 0.0

    async def fitting(self, algorithm: str, kid: str | None) -> list[Key]:
        """The keys that may have made a signature; none only if the issuer has none.

        Raises:
            MCPError: nobody can say so now, since the keys cannot be fetched.
        """
        age = monotonic() - self._since
        if age >= FRESH + STALE:
            self._keys = []
        fetched = age >= FRESH and await self._fetched(SOON if self._keys else PATIENCE)
        found = self._among(algorithm, kid)
        if not found and not fetched and await self._fetched(PATIENCE, early=age < FRESH):
            found = self._among(algorithm, kid)
        elif not found and not fetched:
            raise RequestFailed("the keys of the authorization server cannot be fetched")
        return found

    async def have_signed(self, token: Compact) -> bool:
        """Whether one of the keys has signed it. If none has that we know, they are fetched again.

        A key may have been replaced by one of the same name, or of none.

        Raises:
            MCPError: nobody can say so now, since the keys cannot be fetched.
        """
        algorithm, kid, began = token.algorithm, token.kid, monotonic()
        if any(verified(token, key) for key in await self.fitting(algorithm, kid)):
            return True
        if self._since >= began:
            return False
        recent = began - self._since < COOL  # then they say enough, if there is nothing newer to be had
        try:
            fetched = await self._fetched(PATIENCE, early=True)
        except RequestFailed:
            fetched = False
        if not fetched and not recent:
            raise RequestFailed("the keys of the authorization server cannot be fetched again now")
        return any(verified(token, key) for key in self._among(algorithm, kid))

    def _among(self, algorithm: str, kid: str | None) -> list[Key]:
        return [key for key in self._keys if key.fits(algorithm, kid)]

    async def _fetched(self, patience: float, *, early: bool = False) -> bool:
        """Whether the keys were fetched, at the latest so many seconds after that has begun."""
        loop, fetch = asyncio.get_running_loop(), self._fetch
        if fetch is None or fetch.done() or fetch.get_loop() is not loop:
            if monotonic() < self._next:
                return False  # somebody has just tried
            if early:
                self._spend()
            fetch = self._fetch = loop.create_task(self._load_again(), name="toolpost keys")
            self._began = monotonic()
        await asyncio.wait([fetch], timeout=max(self._began + patience - monotonic(), 0))
        return fetch.done() and not fetch.cancelled() and fetch.result()

    def _spend(self) -> None:
        """Count a fetch because of a key that nobody knows.

        Raises:
            RequestFailed: there were too many.
        """
        now = monotonic()
        self._early = min(self._early + (now - self._counted) / COOL, EARLY)
        self._counted = now
        if self._early < 1:
            raise RequestFailed("a token names a key that is not known, and it is too early to ask for it")
        self._early -= 1

    async def _load_again(self) -> bool:
        try:
            self._keys = await self._load()
        except Exception as error:  # noqa: BLE001 - there may be nobody who waits for it
            told = error if isinstance(error, MCPError | ValueError) else type(error).__name__
            logger.warning("the keys of the authorization server cannot be fetched: %s", told)
            self._next = monotonic() + AGAIN
            return False
        self._since = monotonic()
        return True
