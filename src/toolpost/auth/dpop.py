"""DpopProver that a token is used by whom it was issued to (RFC 9449), one for each request.

Owns the key of a client and the nonces that servers want to see, each origin its own. What is signed and how
is told in `signing`.
"""

from collections.abc import Mapping
from typing import Final

from toolpost.auth.guard import normalize_origin
from toolpost.auth.signing import DPOP_ALGORITHM, PrivateKey, generate_key, load_key

__all__ = ["DpopProver"]

MAX_NONCE_LENGTH: Final = 1024
"""Characters of a nonce that is sent back: the RFC names none, and servers use a few tens."""

MAX_ORIGINS: Final = 64
"""How many origins are remembered: one client talks to a server and to who issues its tokens."""


class DpopProver:
    """Makes proofs with one key.

    Args:
        key: the private key as a JWK; None makes a new one.

    Raises:
        AuthError: the library for it is not installed.
    """

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
        """The header with a fresh proof for one request."""
        nonce = self._nonces.get(normalize_origin(url))
        return {"dpop": self._key.sign_proof(method, url, nonce=nonce, token=token)}

    def store_nonce(self, url: str, headers: Mapping[str, str]) -> bool:
        """Remember the nonce that a response names; whether it is another one than before."""
        nonce = headers.get("dpop-nonce")
        if not nonce or len(nonce) > MAX_NONCE_LENGTH or not nonce.isascii() or not nonce.isprintable():
            return False
        origin = normalize_origin(url)
        before = self._nonces.pop(origin, None)
        self._nonces[origin] = nonce  # at the end: the oldest goes first
        if len(self._nonces) > MAX_ORIGINS:
            del self._nonces[next(iter(self._nonces))]
        return nonce != before
