"""The keys that an authorization server signs with: read, fetched, kept, and fetched again when they rotate.

Owns which key may check which signature: a key is tried only with an algorithm of its own kind, so that
nobody can pass off a public key as a secret. The arithmetic is joserfc's.

PART compact: A signed text in three parts (JWS, compact): what its header says, before anybody trusts it.

Owns the shape and its bounds. Which algorithms and keys are good is for others to say; nothing is verified
here.
"""

import asyncio
import binascii
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolpost.errors import MCPError, RequestFailed

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_OPENING_BRACKET: Final = re.compile(rb"[\[{]")
MAX_BRACKETS: Final = 2048
"""Objects and lists in a part: claims are flat, and a decoder should not be sent into the depths."""


class MalformedToken(ValueError):
    """A text is no compact JWS; says why, without repeating it."""


class CompactJws(NamedTuple):
    """A compact JWS, taken apart."""

    header: dict[str, Any]
    payload: bytes
    signing_input: bytes
    signature: bytes

    @property
    def algorithm(self) -> str:
        """What it says it is signed with."""
        named = self.header.get("alg")
        return named if isinstance(named, str) else ""

    @property
    def kid(self) -> str | None:
        """The name of the key that it says it is signed with."""
        named = self.header.get("kid")
        return named if isinstance(named, str) else None

    @property
    def typ(self) -> str:
        """What it says it is, in lower case and without the prefix that may be left out (RFC 7515 §4.1.9)."""
        named = self.header.get("typ", "")
        return named.lower().removeprefix("application/") if isinstance(named, str) else "?"


def split_jws(text: str) -> CompactJws:
    """A compact JWS, taken apart.

    Raises:
        MalformedToken: it is none, or demands extensions that nobody here knows.
    """
    parts = text.split(".", 3)
    if len(parts) != 3:
        raise MalformedToken("it does not have three parts")
    head, payload, signature = parts
    header = decode_object(decode_base64url(head))
    if "crit" in header or header.get("b64", True) is not True:
        raise MalformedToken("it demands extensions")
    return CompactJws(
        header, decode_base64url(payload), f"{head}.{payload}".encode(), decode_base64url(signature)
    )


def decode_base64url(part: str) -> bytes:
    """The bytes in base64url without padding, written in the one way that there is.

    Raises:
        MalformedToken: it is something else.
    """
    if _BASE64URL.fullmatch(part) is None:
        raise MalformedToken("a part is not in base64url")
    try:
        data = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise MalformedToken("a part is not in base64url") from None
    # Some bits of the last letter carry nothing. They have to be zero, or many texts would be one token.
    if urlsafe_b64encode(data).rstrip(b"=") != part.encode():
        raise MalformedToken("a part is not in base64url")
    return data


def decode_object(data: bytes) -> dict[str, Any]:
    """The JSON object in some bytes.

    Raises:
        MalformedToken: there is none.
    """
    if len(_OPENING_BRACKET.findall(data)) > MAX_BRACKETS:
        raise MalformedToken("a part is nested too much")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise MalformedToken("a part is no JSON") from None
    if not isinstance(found, dict):
        raise MalformedToken("a part is no JSON object")
    return cast("dict[str, Any]", found)


# --------------------------------------------------------------------- keys

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

ASYMMETRIC_ALGORITHMS: Final = tuple(name for name, (kind, _) in ALGORITHMS.items() if kind != "oct")

MAX_KEYS: Final = 64
"""Keys of a set that are looked at: providers publish two or three, and each costs some work to read."""

MIN_RSA_BITS: Final = 2048
"""Bits of an RSA key that count as safe (RFC 7518 §3.3)."""

KEYS_LIFETIME: Final = 3600.0
"""Seconds after which a key set is fetched again: so long may a key be good that was withdrawn."""

MAX_EARLY_FETCHES: Final = 4
"""Fetches at once because of keys that nobody knows: keys may rotate soon after they were fetched."""

EARLY_FETCH_INTERVAL: Final = 30.0
"""Seconds after which there may be one more of these: anybody can invent names of keys."""

MAX_STALENESS: Final = 24 * 3600.0
"""Seconds for which keys are good beyond that while the authorization server cannot be reached."""

FETCH_RETRY_DELAY: Final = 3.0
"""Seconds after a fetch that has failed: the server may have been started before its issuer."""

REFRESH_TIMEOUT: Final = 0.5
"""Seconds in which a fetch usually succeeds: so long do requests wait for it whose keys are only old."""

FETCH_TIMEOUT: Final = 10.0
"""Seconds that requests wait for a fetch whose keys are not there."""


class JoseModules(NamedTuple):
    """The parts of joserfc that are used here."""

    jwk: Any
    jws: Any


def import_jose() -> JoseModules:
    """joserfc, which only those need who check signatures.

    Raises:
        MCPError: it is not installed.
    """
    try:
        return JoseModules(import_module("joserfc.jwk"), import_module("joserfc.jws"))
    except ImportError as error:
        raise MCPError("checking signatures needs joserfc", hint="pip install 'toolpost[auth]'") from error


class VerificationKey(NamedTuple):
    """A key, and what it may be used for."""

    kid: str | None
    kind: str
    curve: str
    algorithm: str | None
    material: Any

    def can_verify(self, algorithm: str, kid: str | None) -> bool:
        """Whether it may check a signature of this algorithm by the key of this name."""
        kind, curves = ALGORITHMS[algorithm]
        named = kid is None or self.kid is None or self.kid == kid
        alike = self.kind == kind and (not curves or self.curve in curves)
        return named and alike and self.algorithm in {None, algorithm}


def read_keys(given: Any) -> list[VerificationKey]:
    """The keys in a JWK set, a JWK, a PEM text, or several of these; those for other uses are left out.

    Raises:
        ValueError: there is none.
    """
    keys: list[VerificationKey] = []
    for each in _split_keys(given):
        key = _read_key(each)
        if key is not None:
            keys.append(key)
    if not keys:
        raise ValueError("there is no key in it that could check a signature")
    return keys


def _split_keys(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        found = cast("Mapping[str, Any]", given).get("keys", [given])
        return list(cast("Iterable[Any]", found))[:MAX_KEYS] if isinstance(found, list) else []
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return [given]
    return list(cast("Iterable[Any]", given))[:MAX_KEYS]


def _read_key(given: Any) -> VerificationKey | None:
    """One key; None if it is of no use to us, which says nothing of the others."""
    jwk = import_jose().jwk
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
            material = _import_pem(jwk, given) if isinstance(given, str | bytes) else given
        facts: dict[str, Any] = material.as_dict(private=False) if material.key_type != "oct" else {}
        if material.key_type == "RSA" and material.raw_value.key_size < MIN_RSA_BITS:
            logger.warning("an RSA key with fewer than %d bits is not used", MIN_RSA_BITS)
            return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is one key among others
        logger.debug("a key cannot be read: %s", type(error).__name__)
        return None
    algorithm = told.get("alg")
    return VerificationKey(
        told.get("kid", facts.get("kid")), material.key_type, facts.get("crv", ""), algorithm, material
    )


def _import_pem(jwk: Any, text: str | bytes) -> Any:
    """A key in PEM. A text that is none is no secret either: that is said in a JWK."""
    for kind in ("RSA", "EC", "OKP"):
        try:
            return jwk.import_key(text, kind)
        except Exception:  # noqa: BLE001, S112 - it is of another kind
            continue
    raise ValueError("no PEM")


def is_signed_by(token: CompactJws, key: VerificationKey) -> bool:
    """Whether the key has signed it. Ask only keys that fit."""
    model = import_jose().jws.JWSRegistry.algorithms[token.algorithm]
    try:
        return bool(model.verify(token.signing_input, token.signature, key.material))
    except Exception as error:  # noqa: BLE001 - a signature that cannot be read is none
        logger.debug("a signature cannot be checked: %s", type(error).__name__)
        return False


class KeySource:
    """The keys of an issuer, fetched when they are first needed and again when they rotate.

    One fetch is under way at a time, for all who wait. It goes on when they leave.

    Args:
        load: fetches the keys.
    """

    def __init__(self, load: Callable[[], Awaitable[list[VerificationKey]]]) -> None:
        self._load = load
        self._keys: list[VerificationKey] = []
        self._fetched_at = self._next_fetch_at = float("-inf")
        self._fetch_budget, self._budget_updated_at = float(MAX_EARLY_FETCHES), monotonic()
        self._fetch_task: asyncio.Task[bool] | None = None
        self._fetch_began_at = 0.0

    async def find_keys(self, algorithm: str, kid: str | None) -> list[VerificationKey]:
        """The keys that may have made a signature; none only if the issuer has none.

        Raises:
            MCPError: nobody can say so now, since the keys cannot be fetched.
        """
        age = monotonic() - self._fetched_at
        if age >= KEYS_LIFETIME + MAX_STALENESS:
            self._keys = []
        fetched = age >= KEYS_LIFETIME and await self._refresh_keys(
            REFRESH_TIMEOUT if self._keys else FETCH_TIMEOUT
        )
        found = self._filter_keys(algorithm, kid)
        if not found and not fetched and await self._refresh_keys(FETCH_TIMEOUT, early=age < KEYS_LIFETIME):
            found = self._filter_keys(algorithm, kid)
        elif not found and not fetched:
            raise RequestFailed("the keys of the authorization server cannot be fetched")
        return found

    async def verify_signature(self, token: CompactJws) -> bool:
        """Whether one of the keys has signed it. If none has that we know, they are fetched again.

        A key may have been replaced by one of the same name, or of none.

        Raises:
            MCPError: nobody can say so now, since the keys cannot be fetched.
        """
        algorithm, kid, began = token.algorithm, token.kid, monotonic()
        if any(is_signed_by(token, key) for key in await self.find_keys(algorithm, kid)):
            return True
        if self._fetched_at >= began:
            return False
        recent = (
            began - self._fetched_at < EARLY_FETCH_INTERVAL
        )  # then they say enough, if there is nothing newer to be had
        try:
            fetched = await self._refresh_keys(FETCH_TIMEOUT, early=True)
        except RequestFailed:
            fetched = False
        if not fetched and not recent:
            raise RequestFailed("the keys of the authorization server cannot be fetched again now")
        return any(is_signed_by(token, key) for key in self._filter_keys(algorithm, kid))

    def _filter_keys(self, algorithm: str, kid: str | None) -> list[VerificationKey]:
        return [key for key in self._keys if key.can_verify(algorithm, kid)]

    async def _refresh_keys(self, patience: float, *, early: bool = False) -> bool:
        """Whether the keys were fetched, at the latest so many seconds after that has begun."""
        loop, fetch = asyncio.get_running_loop(), self._fetch_task
        if fetch is None or fetch.done() or fetch.get_loop() is not loop:
            if monotonic() < self._next_fetch_at:
                return False  # somebody has just tried
            if early:
                self._spend_fetch_budget()
            fetch = self._fetch_task = loop.create_task(self._reload(), name="toolpost keys")
            self._fetch_began_at = monotonic()
        await asyncio.wait([fetch], timeout=max(self._fetch_began_at + patience - monotonic(), 0))
        return fetch.done() and not fetch.cancelled() and fetch.result()

    def _spend_fetch_budget(self) -> None:
        """Count a fetch because of a key that nobody knows.

        Raises:
            RequestFailed: there were too many.
        """
        now = monotonic()
        self._fetch_budget = min(
            self._fetch_budget + (now - self._budget_updated_at) / EARLY_FETCH_INTERVAL, MAX_EARLY_FETCHES
        )
        self._budget_updated_at = now
        if self._fetch_budget < 1:
            raise RequestFailed("a token names a key that is not known, and it is too early to ask for it")
        self._fetch_budget -= 1

    async def _reload(self) -> bool:
        try:
            self._keys = await self._load()
        except Exception as error:  # noqa: BLE001 - there may be nobody who waits for it
            told = error if isinstance(error, MCPError | ValueError) else type(error).__name__
            logger.warning("the keys of the authorization server cannot be fetched: %s", told)
            self._next_fetch_at = monotonic() + FETCH_RETRY_DELAY
            return False
        self._fetched_at = monotonic()
        return True
