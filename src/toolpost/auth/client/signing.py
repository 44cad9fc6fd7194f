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

DPOP_ALGORITHM: Final = "ES256"  # every server that knows DPoP accepts it
ASSERTION_LIFETIME: Final = 60  # seconds for which a statement about who we are is good; it is used at once
MAX_NONCE_LENGTH: Final = 1024  # characters of a nonce that is sent back; servers use a few tens
MAX_ORIGINS: Final = 64  # whose nonces are remembered: one client talks to two servers

_SIGNING_ALGORITHMS: Final = frozenset({
    "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519",
})  # fmt: skip


class PrivateKey:
    """A private key that signs statements."""

    def __init__(self, key: Any, algorithm: str, key_id: str | None = None) -> None:
        self._key = key
        self._algorithm = algorithm
        self._key_id = key_id

    def __repr__(self) -> str:
        return f"PrivateKey({self._algorithm})"

    def export(self, *, private: bool) -> dict[str, str]:
        """Return the key as a JWK; with its private parts it is a secret."""
        parts: dict[str, Any] = self._key.as_dict(private=private)
        return {name: value for name, value in parts.items() if isinstance(value, str)}

    def sign_assertion(self, client_id: str, audience: str) -> str:
        """Return a statement who the client is, for one authorization server."""
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
    """Return a key of a user: PEM, or a JWK as a mapping."""
    if algorithm not in _SIGNING_ALGORITHMS:
        hint = f"one of {', '.join(sorted(_SIGNING_ALGORITHMS))}"
        raise AuthError(f"{algorithm!r} is no algorithm for a private key", hint=hint)
    jwk, jws = import_jose()
    try:
        if isinstance(key, Mapping):
            found = jwk.import_key(dict(key))
        else:
            kind = "EC" if algorithm.startswith("ES") else "OKP" if algorithm.startswith("Ed") else "RSA"
            found = jwk.import_key(key, kind)
        jws.serialize_compact({"alg": algorithm}, b"{}", found, [algorithm])  # raises if it does not fit
    except Exception:  # noqa: BLE001 - whatever a library raises, and its text may repeat the key
        hint = "give PEM text or a JWK, and the algorithm it is for"
        raise AuthError(f"this is no private key for {algorithm}", hint=hint) from None
    return PrivateKey(found, algorithm, key_id)


class DpopProver:
    """Makes proofs with one key."""

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
        """The private key, to be stored with the token that is bound to it."""
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
        before = self._nonces.pop(origin, None)
        self._nonces[origin] = nonce  # at the end: the oldest goes first
        if len(self._nonces) > MAX_ORIGINS:
            del self._nonces[next(iter(self._nonces))]
        return nonce != before
