"""The only import of joserfc, which is an extra: parses JWS, and signs those of a client.

A client signs assertions of its identity (RFC 7523) and DPoP proofs (RFC 9449). Signatures are verified in
`auth.server`. No key is ever shown.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolpost.auth.urls import normalize_origin
from toolpost.errors import AuthError, TokenRejected

MAX_JWS_PART: Final = 32 * 1024  # characters of a part of a JWS: more than an HTTP header holds


def import_jose() -> Any:
    """Import joserfc with its modules; AuthError if it is not installed."""
    try:
        for name in ("jwk", "jws", "util"):
            import_module(f"joserfc.{name}")
    except ImportError as error:
        raise AuthError("signatures require joserfc", hint="pip install 'toolpost[auth]'") from error
    return import_module("joserfc")


def hash_s256(text: str) -> str:
    """Return the SHA-256 of a string in base64url: a PKCE challenge, or the `ath` of a proof."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class CompactJws(NamedTuple):
    """The parts of a compact JWS."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signing_input: bytes
    signature: bytes
    algorithm: str  # empty if the header has none
    kid: str | None  # the name of the key
    typ: str  # in lower case, without the optional prefix (RFC 7515 §4.1.9)


@cache
def _make_registry() -> Any:
    registry = import_jose().jws.JWSRegistry()
    # A proof contains a key, and RSA signatures may be long: more than joserfc allows by default.
    registry.max_header_length = registry.max_payload_length = registry.max_signature_length = MAX_JWS_PART
    return registry


def parse_jws(text: str, label: str = "the token") -> CompactJws:
    """Parse a compact JWS whose payload is a JSON object. Raises TokenRejected, without the text."""
    jose = import_jose()
    jws, decode = jose.jws, jose.util.urlsafe_b64decode
    try:
        found = jws.extract_compact(text.encode("ascii"), registry=_make_registry())
        # As strict as for all other JSON: joserfc would accept NaN, a byte order mark and UTF-16.
        header = msgspec.json.decode(decode(found.segments["header"]), type=dict[str, Any])
        claims = msgspec.json.decode(found.payload, type=dict[str, Any])
        signed = found.segments["header"] + b"." + found.segments["payload"]
        signature = decode(found.segments["signature"])
    except Exception:  # noqa: BLE001 - joserfc raises errors of several kinds, and some repeat the text
        why = "it does not consist of two JSON objects and a signature in base64url"
        raise TokenRejected(f"{label} is not a JWT: {why}") from None
    if "crit" in header or header.get("b64", True) is not True:
        raise TokenRejected(f"{label} is not a JWT: it requires extensions")
    algorithm, kid, typ = header.get("alg"), header.get("kid"), header.get("typ", "")
    return CompactJws(
        header,
        claims,
        signed,
        signature,
        algorithm=algorithm if isinstance(algorithm, str) else "",
        kid=kid if isinstance(kid, str) else None,
        typ=typ.lower().removeprefix("application/") if isinstance(typ, str) else "?",
    )


# --------------------------------------------------------------------- signing

DPOP_ALGORITHM: Final = "ES256"  # every server with DPoP accepts it
ASSERTION_LIFETIME: Final = 60  # seconds; an assertion is used at once
MAX_NONCE_LENGTH: Final = 1024  # characters of a nonce that is sent back; servers use a few tens

_SIGNING_ALGORITHMS: Final = frozenset({
    "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519",
})  # fmt: skip


class PrivateKey:
    """A private key that signs JWS."""

    def __init__(self, key: Any, algorithm: str, key_id: str | None = None) -> None:
        self._key = key
        self._algorithm = algorithm
        self._key_id = key_id

    def __repr__(self) -> str:
        return f"PrivateKey({self._algorithm})"

    def export(self, *, private: bool) -> dict[str, str]:
        """Return the key as a JWK, which is a secret if it is private."""
        parts: dict[str, Any] = self._key.as_dict(private=private)
        return {name: value for name, value in parts.items() if isinstance(value, str)}

    def sign_assertion(self, client_id: str, audience: str) -> str:
        """Return an assertion of the client's identity for one authorization server."""
        now = int(time.time())
        header = {"typ": "JWT"} if self._key_id is None else {"typ": "JWT", "kid": self._key_id}
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "iat": now,
            "exp": now + ASSERTION_LIFETIME,
            "jti": secrets.token_urlsafe(16),
        }
        return self.sign(header, claims)

    def sign(self, header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
        """Return a compact JWS."""
        jws, header = import_jose().jws, {"alg": self._algorithm, **header}
        return jws.serialize_compact(header, msgspec.json.encode(claims), self._key, [self._algorithm])


def load_key(key: "str | bytes | Mapping[str, Any]", algorithm: str, key_id: str | None = None) -> PrivateKey:
    """Return the private key that a user gave as PEM or as a JWK."""
    if algorithm not in _SIGNING_ALGORITHMS:
        hint = f"use one of {', '.join(sorted(_SIGNING_ALGORITHMS))}"
        raise AuthError(f"{algorithm!r} is not an algorithm for a private key", hint=hint)
    jose = import_jose()
    jwk, jws = jose.jwk, jose.jws
    try:
        if isinstance(key, Mapping):
            found = jwk.import_key(dict(key))
        else:
            kind = "EC" if algorithm.startswith("ES") else "OKP" if algorithm.startswith("Ed") else "RSA"
            found = jwk.import_key(key, kind)
        jws.serialize_compact({"alg": algorithm}, b"{}", found, [algorithm])  # raises for another algorithm
    except Exception:  # noqa: BLE001 - joserfc raises errors of several kinds, and some repeat the key
        hint = "pass a PEM string or a JWK, and its algorithm"
        raise AuthError(f"not a private key for {algorithm}", hint=hint) from None
    return PrivateKey(found, algorithm, key_id)


class DpopProver:
    """Makes DPoP proofs with one key."""

    def __init__(self, key: Mapping[str, str] | None = None) -> None:
        if key is None:
            made = import_jose().jwk.ECKey.generate_key("P-256", private=True)
            self._key = PrivateKey(made, DPOP_ALGORITHM)
        else:
            self._key = load_key(key, DPOP_ALGORITHM)
        self._nonces: dict[str, str] = {}

    def __repr__(self) -> str:
        return "DpopProver(…)"

    @property
    def jwk(self) -> dict[str, str]:
        """The private key, to be stored with the token bound to it."""
        return self._key.export(private=True)

    def build_header(self, method: str, url: str, token: str | None = None) -> dict[str, str]:
        """Return the header with a fresh proof for one request; the URL is signed without its query."""
        parts, nonce = urlsplit(url), self._nonces.get(normalize_origin(url))
        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
            "iat": int(time.time()),
        }
        if nonce is not None:
            claims["nonce"] = nonce
        if token is not None:
            claims["ath"] = hash_s256(token)
        key = self._key.export(private=False)
        public = {name: key[name] for name in ("kty", "crv", "x", "y")}
        return {"dpop": self._key.sign({"typ": "dpop+jwt", "jwk": public}, claims)}

    def store_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
        """Store the nonce of a response; return whether it is new."""
        nonce = headers.get("dpop-nonce")
        if not nonce or len(nonce) > MAX_NONCE_LENGTH or not nonce.isascii() or not nonce.isprintable():
            return False
        origin = normalize_origin(url)
        is_new = nonce != self._nonces.get(origin)
        self._nonces[origin] = nonce
        return is_new
