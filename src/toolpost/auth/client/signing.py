"""Keys and signed statements of a client: who it is (RFC 7523), and that it owns a token (RFC 9449).

Owns the claims, the key of a client, and the nonces of each origin. Needs the extra `auth`, and shows no key.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from toolpost.auth.jose import hash_s256, import_jose
from toolpost.auth.urls import normalize_origin
from toolpost.errors import AuthError

DPOP_ALGORITHM: Final = "ES256"  # algorithm of proofs: every server that knows DPoP accepts it
ASSERTION_LIFETIME: Final = 60  # seconds for which a statement about who we are is good; it is used at once

_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_SIGNING_ALGORITHMS: Final = frozenset(
    {*_CURVES, "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519"}
)


class PrivateKey:
    """A private key that signs statements."""

    def __init__(self, key: Any, algorithm: str, key_id: str | None = None) -> None:
        self._key = key
        self._algorithm = algorithm
        self._key_id = key_id
        self._public: dict[str, Any] = key.as_dict(private=False)

    def __repr__(self) -> str:
        return f"PrivateKey({self._algorithm})"

    @property
    def jwk(self) -> dict[str, str]:
        """The private key, to be kept; a secret."""
        return {
            name: value for name, value in self._key.as_dict(private=True).items() if isinstance(value, str)
        }

    def sign_assertion(self, client_id: str, audience: str) -> str:
        """Return a statement who the client is, for one authorization server."""
        now = int(time.time())
        header: dict[str, Any] = {"alg": self._algorithm, "typ": "JWT"}
        if self._key_id is not None:
            header["kid"] = self._key_id
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "iat": now,
            "exp": now + ASSERTION_LIFETIME,
            "jti": secrets.token_urlsafe(16),
        }
        return self._sign(header, claims)

    def sign_proof(self, method: str, url: str, *, nonce: str | None = None, token: str | None = None) -> str:
        """Return a proof for one request; the URL is signed without its query."""
        parts = urlsplit(url)
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
        public = {
            name: self._public[name] for name in ("kty", "crv", "x", "y", "n", "e") if name in self._public
        }
        return self._sign({"alg": self._algorithm, "typ": "dpop+jwt", "jwk": public}, claims)

    def _sign(self, header: dict[str, Any], claims: Mapping[str, Any]) -> str:
        jws = import_jose().jws
        return jws.serialize_compact(header, msgspec.json.encode(claims), self._key, [self._algorithm])


def generate_key(algorithm: str = DPOP_ALGORITHM) -> PrivateKey:
    """Return a new key."""
    jwk = import_jose().jwk
    return PrivateKey(jwk.ECKey.generate_key(_CURVES[algorithm], private=True), algorithm)


def load_key(key: "str | bytes | Mapping[str, Any]", algorithm: str, key_id: str | None = None) -> PrivateKey:
    """Return a key of a user: PEM, or a JWK as a mapping."""
    if algorithm not in _SIGNING_ALGORITHMS:
        hint = f"one of {', '.join(sorted(_SIGNING_ALGORITHMS))}"
        raise AuthError(f"{algorithm!r} is no algorithm for a private key", hint=hint)
    jwk, jws = import_jose()
    try:
        if isinstance(key, Mapping):
            found = jwk.import_key(dict(key))
        else:
            kind = "EC" if algorithm in _CURVES else "OKP" if algorithm.startswith("Ed") else "RSA"
            found = jwk.import_key(key, kind)
        jws.serialize_compact({"alg": algorithm}, b"{}", found, [algorithm])  # raises if it does not fit
    except Exception:  # noqa: BLE001 - whatever a library raises, and its text may repeat the key
        hint = "give PEM text or a JWK, and the algorithm it is for"
        raise AuthError(f"this is no private key for {algorithm}", hint=hint) from None
    return PrivateKey(found, algorithm, key_id)


def is_private_key(jwk: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a JWK is a private key for an algorithm."""
    import_jose()
    try:
        load_key(jwk, algorithm)
    except AuthError:
        return False
    return True


# --------------------------------------------------------------------- dpop

MAX_NONCE_LENGTH: Final = 1024
"""Characters of a nonce that is sent back: the RFC names none, and servers use a few tens."""

MAX_ORIGINS: Final = 64
"""Origins that are remembered: one client talks to a server and to its authorization server."""


class DpopProver:
    """Makes proofs with one key."""

    def __init__(self, key: Mapping[str, str] | None = None) -> None:
        self._key: PrivateKey = generate_key() if key is None else load_key(key, DPOP_ALGORITHM)
        self._nonces: dict[str, str] = {}

    def __repr__(self) -> str:
        return "DpopProver(…)"

    @property
    def jwk(self) -> dict[str, str]:
        """The private key, to be kept with the token that is bound to it."""
        return self._key.jwk

    def build_header(self, method: str, url: str, token: str | None = None) -> dict[str, str]:
        """Return the header with a fresh proof for one request."""
        nonce = self._nonces.get(normalize_origin(url))
        return {"dpop": self._key.sign_proof(method, url, nonce=nonce, token=token)}

    def store_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
        """Store the nonce of a response; return whether it is new."""
        nonce = headers.get("dpop-nonce")
        if not nonce or len(nonce) > MAX_NONCE_LENGTH or not nonce.isascii() or not nonce.isprintable():
            return False
        origin = normalize_origin(url)
        before = self._nonces.pop(origin, None)
        self._nonces[origin] = nonce  # at the end: the oldest goes first
        if len(self._nonces) > MAX_ORIGINS:
            del self._nonces[next(iter(self._nonces))]
        return nonce != before
